"""A process that works on a store: threads, tasks of asyncio, a server, or clients of a server."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import streamkeep
from crash.workload import faults
from crash.workload.actors import ALONE, Actor, Step
from crash.workload.oracle import (
    DEAD,
    GROUP,
    OWN,
    QUEUE,
    RETRIES,
    Moment,
    Oracle,
    View,
    contents,
    dump,
    kind_of,
    put_order,
    read_notes,
)
from inside import environment_of
from patience import run_threads
from resp_peer import Line, Peer, decode
from streamkeep import aio
from streamkeep.engine.api.views import Sync
from streamkeep.engine.store.environment import Environment
from streamkeep.format.core.errors import (
    RecoveryNeededError,
    StaleSnapshotError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
)
from streamkeep.jobs import Job, Queue
from streamkeep.jobs.worker_runs import end_soon
from streamkeep.server import serve

_PR_SET_PDEATHSIG: Final = 1


class Halfway(Exception):
    """Raised in the middle of a transaction."""


@dataclass
class Work:
    """What a process is to do.

    Attributes:
        kind: "threads", "tasks", "server", "clients", "visits" or "watches".
        path: of the store, or of the socket for clients.
        sync: the mode that the store is opened in.
        flushes: LMDB gets so many commits at a time.
        readonly: the store is opened for reading only.
        oracle, notes: of a process that watches: what snapshots must show.
        steps: of each actor, at most.
        faults: what happens to this process.
    """

    kind: str
    path: Path
    sync: Sync
    actors: list[Actor]
    errors: Path
    flushes: int = 1000
    readonly: bool = False
    oracle: Oracle | None = None
    notes: list[Path] = field(default_factory=list)
    steps: int = 1 << 30
    socket: Path | None = None
    faults: faults.Faults = field(default_factory=faults.Faults)


def fork(work: Callable[[], object], errors: Path) -> int:
    """Run something in a new process, which dies with this one; return its number.

    What it prints, and what it raises, is appended to the file `errors`.
    """
    parent = os.getpid()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the child has one of its own
    child = os.fork()
    if child:
        signal.signal(signal.SIGINT, handler)
        return child
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        out = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 2)
        os.dup2(out, 1)
        work()
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def run(work: Work) -> None:
    threading.excepthook = end_at_once
    kinds = {
        "threads": _threads,
        "tasks": _tasks,
        "server": _serve,
        "clients": _clients,
        "visits": _visit,
        "watches": _watch,
    }
    with faults.inside(work.faults), flushing(work.flushes):
        kinds[work.kind](work)


@contextmanager
def flushing(commits: int) -> Iterator[None]:
    """Have stores that are opened in the block flush after so many commits."""
    make = Environment.__init__

    def make_flushing(one: Environment, *args: Any, **options: Any) -> None:
        make(one, *args, **options)
        one.context.memtable.most_commits = commits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "__init__", make_flushing)
        yield


def perform(on: Any, actor: Actor, operation: list[Any]) -> Any:
    """Call the method of an operation; return what it returns."""
    name, key, *more = operation
    if kind_of(key) == QUEUE:  # in a transaction that this thread has begun, a part of it
        return of_jobs(actor, name, key, *more)
    if name == "add" and len(more[0]) == 1:
        return on.xadd(key, contents(more[0][0]))
    if name == "add":
        return on.xadd_many(key, [contents(token) for token in more[0]])
    if name == "delete":
        return on.xdel(key, *more[1])
    if name == "erase":
        return on.erase(key, *more[1])
    if name == "trim":
        return on.xtrim(key, maxlen=more[0], approximate=False)
    if name in ("read", "take"):
        return on.xreadgroup(GROUP, actor.name, {key: ">"}, count=more[0])
    if name == "ack":
        return on.xack(key, GROUP, *more[0])
    if name == "group":
        return on.xgroup_create(key, GROUP, id="0", mkstream=True)
    if name == "retain":
        return on.set_retention(key, archive=True)
    if name == "archive" and actor.style.publishes:
        return on.archive(seal=actor.random.random() < 0.5)
    return getattr(on, name)()


def of_jobs(actor: Actor, name: str, key: str, what: Any, *more: Any) -> Any:
    """Call the method of an operation on the actor's queue; return what it returns."""
    queue: Queue = actor.queue
    if name == "put":
        job_key, due_ms, delay_s, priority = more
        payloads = [[token, job_key, due_ms] for token in what]
        return queue.put_many(payloads, key=job_key, delay=delay_s, priority=priority)
    if name == "get":
        return take(actor, (actor.state.get(key) or View()), queue.get_many(what))
    if name in ("requeue", "drop"):
        letters = [one for one in queue.dead_letters() if payload_of(one.fields)[0] in what]
        change = queue.requeue if name == "requeue" else queue.drop_dead
        assert change(*letters) == len(what), f"{what} have the dead letters {letters}"
    elif name == "cancel":
        ids = [actor.state[key].jobs[token].id for token in what]
        assert all(queue.cancel(str(one)) for one in ids), f"{ids} cannot be cancelled"
    elif name == "done":
        queue.done_many([actor.held[token] for token in what])
    else:
        (job,) = (actor.held[token] for token in what)
        if name == "soon":
            end_soon(job, None)
        elif name == "retry":
            retried = job.retry(reason="it was to be tried again")
            assert retried == (actor.state[key].jobs[what[0]].failed < RETRIES)
        elif name == "fail":
            job.fail("for good")
        else:
            job.give_back()
    return None


def payload_of(fields: dict[bytes, bytes]) -> list[Any]:
    """Return what `of_jobs` has put."""
    payload: list[Any] = json.loads(fields[b"payload"])
    return payload


def take(actor: Actor, view: View, jobs: list[Job]) -> list[str]:
    """Hold jobs that the actor has taken; return their tokens. None of them may come now that has
    ended, is not due, or waits for another one of its key."""
    for job in jobs:
        token, key, due_ms = job.payload
        known = view.jobs.get(token)
        assert known is not None, f"{token} was taken, and has ended or was never put"
        assert known.failed != DEAD, f"{token} was taken, and is a dead letter"
        assert token not in actor.held, f"{token} was taken twice"
        assert job.attempt == known.failed + 1, f"{token}: attempt {job.attempt} of {known}"
        assert due_ms <= time.time() * 1000, f"{token} was taken before {due_ms}"
        before = [
            other
            for other, one in view.jobs.items()
            if key is not None and one.key == key and one.failed != DEAD
            if other in actor.held or put_order(other) < put_order(token)
        ]
        assert not before, f"{token} was taken before {before} of the key {key}"
        actor.held[token] = job
    return [job.payload[0] for job in jobs]


def told(operation: list[Any], result: Any) -> Any:
    """Return what the notes keep of a result: IDs."""
    name = operation[0]
    if name == "add":
        return result if isinstance(result, list) else [result]
    if name in ("take", "read"):
        entries = result[0][1] if result else []
        return [entry[0] if isinstance(entry, list) else entry.id for entry in entries]
    if name == "put":
        return [job.id for job in result]
    return result if name == "get" else None


def attempt(actor: Actor, call: Callable[[Step], list[Any]]) -> bool:
    """Choose a step, and run it between its notes; return False if the actor cannot go on."""
    step = actor.step()
    actor.begin(step)
    try:
        with faults.interruptible():
            results = call(step)
    except BaseException as error:
        return failed(actor, step, error)
    actor.done(step, [told(*one) for one in zip(step.operations, results, strict=True)])
    return True


def failed(actor: Actor, step: Step, error: BaseException) -> bool:
    """Note how a step has failed; return False if the actor cannot go on, and raise what no fault
    explains."""
    if isinstance(error, (KeyboardInterrupt, ConnectionError, StoreLockedError)):
        return False
    if isinstance(error, RecoveryNeededError):
        if not faults.poisoned():
            raise error
        return False
    if isinstance(error, StoreClosedError):
        return False
    if isinstance(error, ServerError) and faults.server_fails() and "Injected" not in str(error):
        return False
    if isinstance(error, Halfway) or faults.explains(error) or _injected(error):
        if step.operations[0][0] == "erase":
            return False  # it is many commits: some of them may have been made
        actor.refused(step)
        return True
    raise error


def _injected(error: BaseException) -> bool:
    return isinstance(error, ServerError) and "Injected" in str(error) and faults.server_fails()


def look(actor: Actor, store: Any) -> None:
    """Compare a stream of the actor with what it must hold now."""
    keys = [key for key, view in actor.state.items() if kind_of(key) == OWN and view.exists]
    if keys:
        key = actor.random.choice(keys)
        entries = store.xrange(key)
        found = [entry.fields["t"] for entry in entries]
        expected = list(actor.state[key].live)
        assert found == expected, f"{key} shows {found}, not {expected}"


def on_store(store: Any, actor: Actor, step: Step) -> list[Any]:
    first = step.operations[0]
    if first[0] == "checkpoint":
        environment_of(store).make_checkpoint()
        return [None]
    if first[0] in ALONE:
        return [perform(store, actor, first)]
    if step.how == "single":
        on = store if store.sync_mode == step.sync else store.using(step.sync)
        return [perform(on, actor, first)]
    if step.how == "pipeline":
        with store.pipeline() as pipe:
            for operation in step.operations:
                perform(pipe, actor, operation)
            return list(pipe.execute())
    with store.transaction(sync=step.sync) as txn:
        return in_transaction(txn, actor, step)


def in_transaction(txn: Any, actor: Actor, step: Step) -> list[Any]:
    """Run the commands of a step; raise Halfway where it says so."""
    results = []
    for number, operation in enumerate(step.operations):
        if number == step.fails_after:
            raise Halfway
        results.append(perform(txn, actor, operation))
    if step.fails_after == len(step.operations):
        raise Halfway
    return results


def _open(work: Work) -> Any:
    """Open the store; again, if a fault prevents it."""
    while True:
        try:
            store = streamkeep.open(
                work.path,
                sync=work.sync,
                interval=0.03,
                decode_responses=True,
                readonly=work.readonly,
            )
        except StoreError:
            if not faults.trouble():
                raise
            time.sleep(0.02)
        else:
            break
    return store


def _threads(work: Work) -> None:
    """A thread for each actor; the first one has the main thread, where interrupts come."""
    store = _open(work)

    def act(actor: Actor) -> None:
        actor.queue = Queue(
            store, actor.name, retries=RETRIES, backoff="5ms..50ms", max_deaths=1 << 20
        )
        for number in range(work.steps):
            if not attempt(actor, partial(on_store, store, actor)):
                return
            if number % 16 == 0 and not faults.trouble():
                look(actor, store)
            _rest(actor)

    threads = [threading.Thread(target=act, args=(one,)) for one in work.actors[1:]]
    for thread in threads:
        thread.start()
    act(work.actors[0])
    for thread in threads:
        thread.join()
    if not faults.poisoned():
        store.close()


def end_at_once(args: threading.ExceptHookArgs) -> None:
    """End the process when one of its threads has failed, so that it is seen."""
    traceback.print_exception(args.exc_value)
    os._exit(1)


def _rest(actor: Actor) -> None:
    if actor.style.rest_s and actor.random.random() < 0.3:
        time.sleep(actor.random.random() * actor.style.rest_s)


def _tasks(work: Work) -> None:
    async def act(store: aio.AsyncStore[str], actor: Actor) -> None:
        for _ in range(work.steps):
            step = actor.step()
            actor.begin(step)
            try:
                results = await on_async_store(store, work.sync, actor, step)
            except BaseException as error:
                if not failed(actor, step, error):
                    return
            else:
                its = zip(step.operations, results, strict=True)
                actor.done(step, [told(*one) for one in its])
            if actor.style.rest_s and actor.random.random() < 0.3:
                await asyncio.sleep(actor.random.random() * actor.style.rest_s)

    async def main() -> None:
        store = aio.AsyncStore(await asyncio.to_thread(_open, work))
        await asyncio.gather(*(act(store, one) for one in work.actors))
        if not faults.poisoned():
            await store.close()

    asyncio.run(main())


async def on_async_store(store: Any, sync: str, actor: Actor, step: Step) -> list[Any]:
    first = step.operations[0]
    if first[0] == "checkpoint":
        await asyncio.to_thread(environment_of(store._store).make_checkpoint)
        return [None]
    if first[0] in ALONE:
        return [await perform(store, actor, first)]
    if step.how == "single":
        on = store if sync == step.sync else store.using(step.sync)
        return [await perform(on, actor, first)]
    if step.how == "pipeline":
        async with store.pipeline() as pipe:
            for operation in step.operations:
                perform(pipe, actor, operation)
            return list(await pipe.execute())
    return list(await store.run(lambda txn: in_transaction(txn, actor, step), sync=step.sync))


def _visit(work: Work) -> None:
    for readonly in itertools.cycle([True, False]):
        try:
            with streamkeep.open(work.path, readonly=readonly) as store, store.snapshot() as one:
                for key in one:
                    entries = one.xrange(key)
                    assert len(entries) == one.xlen(key)
        except StoreError as error:
            refused = isinstance(error, (RecoveryNeededError, StoreLockedError))
            if not (refused and readonly) and not faults.trouble():
                raise
        time.sleep(0.01)


def _watch(work: Work) -> None:
    """Take snapshots, and compare each with what was acknowledged before it and tried until then.

    The store stays open for some of them, so that the process follows what others write.
    """
    assert work.oracle is not None
    oracle = work.oracle.without_jobs()
    random_ = random.Random(work.faults.seed)
    while True:
        try:
            with _open(work) as store:
                for _ in range(random_.choice([1, 5, 50])):
                    moment = Moment(time.monotonic())
                    with store.snapshot() as snapshot:
                        found = dump(snapshot, jobs=False)
                    notes = {path.stem: read_notes(path, jobs=False) for path in work.notes}
                    wrong = oracle.problems(found, notes, moment)
                    assert not wrong, "a snapshot shows: " + "\n  ".join(wrong[:8])
                    time.sleep(random_.choice([0.0, 0.002, 0.05]))
        except StaleSnapshotError:
            pass  # an erasure has rewritten a segment
        except StoreError as error:
            refused = isinstance(error, (RecoveryNeededError, StoreLockedError))
            if not (refused and work.readonly) and not faults.trouble():
                raise


def _serve(work: Work) -> None:
    options = serve.Options(unix=work.socket)
    try:
        serve.run(work.path, options, sync=work.sync)
    except StoreError:
        if not faults.trouble():
            raise


def _clients(work: Work) -> None:
    """A thread for each actor, with a connection of its own."""

    def act(actor: Actor) -> None:
        while not work.path.exists():
            time.sleep(0.01)
        try:
            with Peer(work.path) as peer:
                for _ in range(work.steps):
                    if not attempt(actor, partial(on_peer, peer, actor)):
                        return
                    _rest(actor)
        except ConnectionError:
            pass  # the server was killed

    threads = [threading.Thread(target=act, args=(one,)) for one in work.actors]
    run_threads(threads)


class ServerError(Exception):
    """The reply to a command was an error."""


def on_peer(peer: Peer, actor: Actor, step: Step) -> list[Any]:
    """Run a step as a client: several commands are one MULTI, sent at once."""
    if step.how == "single":
        return [_reply(peer.ask(*words_of(actor, step.operations[0])))]
    peer.send("MULTI")
    for operation in step.operations:
        peer.send(*words_of(actor, operation))
    peer.send("EXEC")
    for _ in range(len(step.operations) + 1):
        _reply(decode(peer.read()))
    return [_reply(one) for one in _reply(decode(peer.read()))]


def _reply(reply: Any) -> Any:
    if isinstance(reply, Line) and reply.startswith("-"):
        raise ServerError(reply)
    return _text(reply)


def _text(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_text(one) for one in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


def words_of(actor: Actor, operation: list[Any]) -> list[Any]:
    name, key, *more = operation
    if name == "add":
        fields = contents(more[0][0])
        return ["XADD", key, "*", *(word for pair in fields.items() for word in pair)]
    if name == "delete":
        return ["XDEL", key, *more[1]]
    if name == "trim":
        return ["XTRIM", key, "MAXLEN", more[0]]
    if name in ("read", "take"):
        return ["XREADGROUP", "GROUP", GROUP, actor.name, "COUNT", more[0], "STREAMS", key, ">"]
    if name == "ack":
        return ["XACK", key, GROUP, *more[0]]
    assert name == "group", operation
    return ["XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM"]
