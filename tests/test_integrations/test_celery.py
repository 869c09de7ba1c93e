"""The transport and the result backend of Celery: in one process, and with real workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from celery import Celery, canvas
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult
from kombu import Connection, Consumer, Exchange, Producer, Queue

import streamkeep
from patience import PATIENCE_S, wait_until
from streamkeep.format.core.errors import ArgumentError
from streamkeep.integrations.address import parse_address
from streamkeep.integrations.celery import backend, stores, workers
from streamkeep.integrations.celery.topology import SPACE, Topology
from streamkeep.jobs import Queue as JobQueue
from streamkeep.jobs import take
from test_integrations.crew import Crew, lines

TASKS = Exchange("tasks", "direct")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"streamkeep:///{tmp_path}/s"
    stores.close_all()


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as one:
        yield one


def tasks(name: str = "tasks", **options: Any) -> Queue:
    return Queue(name, TASKS, routing_key=name, **options)


def jobs_of(url: str, name: str = "tasks") -> JobQueue:
    return stores.shared(parse_address(url)).queue(name, 5)


def publish(connection: Connection, *bodies: Any, queue: Queue | None = None, **how: Any) -> None:
    with connection.channel() as channel:
        to = queue or tasks()
        producer = Producer(channel)
        for body in bodies:
            producer.publish(
                body, exchange=to.exchange, routing_key=to.routing_key, declare=[to], **how
            )


class Inbox:
    """A consumer that collects messages."""

    def __init__(
        self, connection: Connection, *queues: Queue, prefetch: int = 0, **options: Any
    ) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.messages: list[Any] = []
        self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(
            self.channel, queues or [tasks()], callbacks=[self._note], **options
        )
        self.consumer.consume()

    def _note(self, body: Any, message: Any) -> None:
        self.messages.append(message)

    def wait(self, count: int) -> list[Any]:
        """Wait for `count` messages; return their bodies."""
        while len(self.messages) < count:
            self.connection.drain_events(timeout=PATIENCE_S)
        return [one.payload for one in self.messages]

    def close(self) -> None:
        self.consumer.cancel()
        self.channel.close()


# --- messages -----------------------------------------------------------------------------------


def test_messages_are_consumed_acknowledged_and_gone(connection: Connection, url: str) -> None:
    publish(connection, 1, {"two": "ü"}, "three")
    assert jobs_of(url).stats().waiting == 3
    inbox = Inbox(connection)
    assert inbox.wait(3) == [1, {"two": "ü"}, "three"]
    assert jobs_of(url).stats().running == 3
    for one in inbox.messages:
        one.ack()
    inbox.close()  # commits what was acknowledged
    assert (jobs_of(url).stats().running, jobs_of(url).stats().done) == (0, 3)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.01)


def test_the_room_of_a_consumer_bounds_what_it_takes(connection: Connection, url: str) -> None:
    publish(connection, *range(5))
    inbox = Inbox(connection, prefetch=2)
    inbox.wait(2)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.02)
    assert jobs_of(url).stats().waiting == 3
    inbox.messages[0].ack()
    inbox.wait(3)
    assert jobs_of(url).stats().waiting == 2
    inbox.close()
    assert inbox.messages[1].acknowledged is False


def test_what_was_not_acknowledged_goes_back_when_the_channel_is_closed(
    connection: Connection, url: str
) -> None:
    publish(connection, 1, 2)
    first = Inbox(connection)
    first.wait(2)
    first.messages[0].ack()
    first.close()
    second = Inbox(connection)
    assert second.wait(1) == [2]
    second.messages[0].ack()
    second.close()
    assert jobs_of(url).stats().done == 2


def test_a_rejected_message_goes_back_or_becomes_a_dead_letter(
    connection: Connection, url: str
) -> None:
    publish(connection, 1)
    inbox = Inbox(connection)
    inbox.wait(1)
    inbox.messages[0].requeue()
    inbox.wait(2)
    inbox.messages[1].reject()
    inbox.close()
    [letter] = jobs_of(url).dead_letters()
    assert letter.reason == "the worker rejected it"
    assert jobs_of(url).stats().running == 0


def test_a_message_whose_worker_died_is_marked_as_redelivered(url: str) -> None:
    with Connection(url) as connection:
        publish(connection, 1)
    stores.close_all()
    child = os.fork()
    if not child:
        try:
            Inbox(Connection(url)).wait(1)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with Connection(url) as connection:
        publish(connection, 2)
        inbox = Inbox(connection)
        inbox.wait(2)
        flags = {one.payload: one.delivery_info["redelivered"] for one in inbox.messages}
        assert flags == {1: True, 2: False}
        inbox.close()


def test_a_message_that_was_returned_is_marked_as_redelivered(
    connection: Connection, url: str
) -> None:
    publish(connection, 1)
    inbox = Inbox(connection)
    inbox.wait(1)
    inbox.messages[0].requeue()
    inbox.wait(2)
    assert [one.delivery_info["redelivered"] for one in inbox.messages] == [False, True]
    inbox.close()  # returns it
    again = Inbox(connection)
    again.wait(1)
    assert again.messages[0].delivery_info["redelivered"] is True
    again.messages[0].ack()
    again.close()
    stats = jobs_of(url).stats()
    assert (stats.done, stats.failed) == (1, 0)


def test_one_message_is_taken_without_a_consumer(connection: Connection, url: str) -> None:
    publish(connection, 1, 2)
    bound = tasks()(connection.channel())
    first, second = bound.get(), bound.get(no_ack=True)
    assert (first.payload, second.payload, bound.get()) == (1, 2, None)
    first.ack()
    bound.channel.close()
    assert jobs_of(url).stats().done == 2


def test_priorities_are_those_of_redis(connection: Connection) -> None:
    for priority in (9, 5, 0):
        publish(connection, priority, priority=priority)
    inbox = Inbox(connection)
    assert inbox.wait(3) == [0, 5, 9]
    inbox.close()


def test_a_message_for_later_stays_in_the_store(connection: Connection, url: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    publish(connection, 1, headers={"eta": later.isoformat()})
    publish(connection, 2, headers={"eta": (later - timedelta(days=1)).isoformat()})
    publish(connection, 3, headers={"eta": "tomorrow"})  # as other programs may write it
    assert (jobs_of(url).stats().delayed, jobs_of(url).stats().waiting) == (1, 2)
    with Connection(url, transport_options={"hold_eta": False}) as held_by_workers:
        publish(held_by_workers, 4, headers={"eta": later.isoformat()})
    assert jobs_of(url).stats().waiting == 3
    assert tasks()(connection.channel()).purge() == 4
    assert jobs_of(url).stats()._asdict() | {"waiting": 0, "delayed": 0} == (
        jobs_of(url).stats()._asdict()
    )


def test_a_message_that_has_expired_is_a_dead_letter(connection: Connection, url: str) -> None:
    publish(connection, 1, expiration=0.001)
    publish(connection, 2, expiration=3600)
    time.sleep(0.002)
    assert Inbox(connection).wait(1) == [2]
    assert len(jobs_of(url).dead_letters()) == 1


def test_the_second_url_of_a_failover_is_a_store(url: str) -> None:
    with Connection(["streamkeep:////proc/none", url]) as connection:
        publish(connection, 1)
    assert jobs_of(url).stats().waiting == 1


def test_a_purge_leaves_what_a_worker_has(connection: Connection, url: str) -> None:
    publish(connection, *range(3))
    inbox = Inbox(connection, prefetch=1)
    inbox.wait(1)
    assert tasks()(connection.channel()).purge() == 2
    inbox.messages[0].ack()
    inbox.close()
    assert jobs_of(url).stats().done == 1


def test_a_message_of_a_task_that_the_worker_does_not_have_waits(
    connection: Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("test", set_as_current=False)
    app.task(name="known")(lines)
    monkeypatch.setattr(workers, "_apps", [app])
    publish(connection, 1, headers={"task": "of the next version"})
    publish(connection, 2, headers={"task": "known"})
    publish(connection, 3)
    inbox = Inbox(connection)
    assert inbox.wait(2) == [2, 3]
    assert jobs_of(url).stats().parked == 1
    inbox.close()
    app.task(name="of the next version")(lines)
    newer = Inbox(connection)
    assert sorted(newer.wait(3)) == [1, 2, 3]
    newer.close()


def test_what_kombu_cannot_read_becomes_a_dead_letter(connection: Connection, url: str) -> None:
    jobs_of(url).put(b'{"body": "without properties"}')
    publish(connection, 1)
    inbox = Inbox(connection)
    assert inbox.wait(1) == [1]
    inbox.close()
    [letter] = jobs_of(url).dead_letters()
    assert letter.reason == "Kombu cannot read it: KeyError('properties')"


# --- exchanges ----------------------------------------------------------------------------------


def mailbox(name: str, exchange: Exchange, routing_key: str = "") -> Queue:
    return Queue(name, exchange, routing_key=routing_key, auto_delete=True, durable=False)


def test_fanout_and_topics_reach_all_that_listen_in_any_connection(
    connection: Connection, url: str
) -> None:
    control, events = Exchange("control", "fanout"), Exchange("events", "topic")
    with Connection(url) as other:
        first = Inbox(connection, mailbox("a", control), mailbox("e", events, "task.#"))
        second = Inbox(other, mailbox("b", control), no_ack=True)
        publish(connection, "task", queue=Queue("", events, routing_key="task.sent"))
        publish(connection, "worker", queue=Queue("", events, routing_key="worker.online"))
        publish(connection, "stop", queue=Queue("", control))
        assert sorted(first.wait(2)) == ["stop", "task"]
        assert second.wait(1) == ["stop"]
        first.messages[0].ack()
        first.close()
        publish(connection, "again", queue=Queue("", control))
        assert second.wait(2) == ["stop", "again"]
        second.close()


def test_a_mailbox_has_no_messages_of_its_former_reader(connection: Connection, url: str) -> None:
    control = Exchange("control", "fanout")
    first = Inbox(connection, mailbox("a", control))
    first.close()
    publish(connection, "shutdown", queue=Queue("", control))
    with Connection(url) as restarted:
        second = Inbox(restarted, mailbox("a", control))
        publish(connection, "ping", queue=Queue("", control))
        assert second.wait(1) == ["ping"]
        second.close()


def test_mailboxes_without_a_reader_are_deleted(url: str) -> None:
    opened = stores.shared(parse_address(url)).opened
    topology = Topology(opened)
    topology.declare_passing("gone", 0)
    topology.bind("events", "#", "^.*?$", "gone")
    topology.pass_on(["gone"], {"n": 1})
    assert topology.table("events") == [("#", "^.*?$", "gone")]
    old = b"\0" * 15 + b"\1"
    opened.apply(lambda txn: txn.row_put(SPACE, b"pgone", old))
    assert topology.table("events") == []
    topology.declare_passing("new", 0)
    assert [key for key, _ in opened.store.row_range(SPACE)] == [b"pnew"]
    assert opened.store.keys() == []
    topology.keep(["gone"], {"gone": [("events", "#", "^.*?$")]})  # it was stopped for long
    assert topology.table("events") == [("#", "^.*?$", "gone")]


def test_a_deleted_queue_has_no_binding_and_no_waiting_messages(
    connection: Connection, url: str
) -> None:
    publish(connection, 1)
    bound = tasks()(connection.channel())
    assert bound.queue_declare(passive=True).message_count == 1
    bound.delete()
    assert bound.channel.get_table("tasks") == []
    assert jobs_of(url).stats().waiting == 0


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("streamkeep://localhost/jobs", "names a host"),
        ("streamkeep://", "names a host"),
        ("streamkeep:////tmp/s?fsync=1", "unknown option 'fsync'"),
    ],
)
def test_a_wrong_url_is_refused(wrong: str, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        Connection(wrong).connect()
    with pytest.raises(ArgumentError, match=problem):
        Celery("test", backend=wrong).backend.get("a")


# --- results ------------------------------------------------------------------------------------


@pytest.fixture
def app(url: str) -> Iterator[Celery]:
    one = Celery("test", broker=url, backend=url, set_as_current=False)
    yield one
    one.close()


def test_a_result_wakes_its_callers(app: Celery) -> None:
    results = app.backend
    assert results.get_state("a") == "PENDING"
    with pytest.raises(CeleryTimeoutError):
        AsyncResult("a", app=app).get(timeout=0.01)
    caller: list[Any] = []
    thread = threading.Thread(target=lambda: caller.append(AsyncResult("a", app=app).get()))
    thread.start()
    results.store_result("a", None, "STARTED")
    results.store_result("a", {"is": 7}, "SUCCESS")
    thread.join()
    assert caller == [{"is": 7}]
    results.store_result("b", ValueError("wrong"), "FAILURE")
    with pytest.raises(ValueError, match="wrong"):
        AsyncResult("b", app=app).get(timeout=PATIENCE_S)
    found = dict(results.get_many(["a", "b"], timeout=PATIENCE_S))
    assert {name: one["status"] for name, one in found.items()} == {"a": "SUCCESS", "b": "FAILURE"}
    with pytest.raises(CeleryTimeoutError):
        list(results.get_many(["a", "c"], timeout=0.01))
    results.forget("a")
    assert results.get_state("a") == "PENDING"


def test_a_caller_of_more_results_than_it_has_bells_for_gets_all(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_MOST_BELLS", 1)
    monkeypatch.setattr(backend, "_LOOK_S", 0.01)
    ids = [str(number) for number in range(8)]
    found: list[str] = []

    def follow() -> None:
        found.extend(name for name, _ in app.backend.get_many(ids, timeout=PATIENCE_S))

    thread = threading.Thread(target=follow)
    thread.start()
    for number, one in enumerate(ids, 1):
        app.backend.store_result(one, None, "SUCCESS")
        wait_until(lambda: len(found) == number)  # noqa: B023
    thread.join()
    assert found == ids


def test_results_expire(app: Celery) -> None:
    app.conf.result_expires = 0.001
    app.backend.store_result("a", 1, "SUCCESS")
    wait_until(lambda: app.backend.get(app.backend.get_key_for_task("a")) is None)


def test_the_time_of_a_result_is_changed_and_an_expired_one_stays_gone(app: Celery) -> None:
    results = app.backend
    for name, seconds in (("a", 0.001), ("b", 3600)):
        results.set(name, "1")
        results.expire(name, seconds)
    wait_until(lambda: results.get("a") is None)
    results.expire("a", 3600)
    results.expire("b", 3601)
    results.expire("c", 3600)
    assert results.mget(["a", "b", "c"]) == [None, b"1", None]
    results.expire("b", None)  # without limit
    assert results.get("b") == b"1"


def test_a_task_that_runs_twice_counts_once_for_its_chord(app: Celery) -> None:
    backend = app.backend
    key = backend.get_key_for_chord("g")
    counts = []
    for task_id in ("a", "b", "a", "b", "c"):
        backend._part.task_id = task_id
        counts.append(backend.incr(key))
    assert counts == [1, 2, 2, 2, 3]
    backend.delete(key)
    request = type("Request", (), {"group": "g", "id": "a", "chord": {}})()
    backend.on_chord_part_return(request, "SUCCESS", 1)  # after the end: no error for the body
    assert backend.get(key) is None


def test_a_chord_with_a_group_in_its_group_ends_with_its_last_task(app: Celery) -> None:
    sent: list[Any] = []
    backend = app.backend
    results = [AsyncResult(one, app=app) for one in ("a", "b", "c")]
    GroupResult("g", [results[0], GroupResult("inner", results[1:], app=app)], app=app).save()
    chord = {"task": "body"}
    for number, one in enumerate(results, 1):
        backend.store_result(one.id, number, "SUCCESS")
        request = type("Request", (), {"group": "g", "id": one.id, "chord": chord})()
        with mock.patch.object(canvas.Signature, "delay", sent.append):
            backend.on_chord_part_return(request, "SUCCESS", number)
        assert bool(sent) == (number == 3)
        backend.set_chord_size("g", 3)  # Celery knows it when it sends the last task
    assert len(sent) == 1


# --- real workers -------------------------------------------------------------------------------

APPLICATION = """
import os, time
from celery import Celery
import streamkeep.integrations.celery

URL = "streamkeep:///" + os.path.abspath("s")
app = Celery("app", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 2
app.conf.task_reject_on_worker_lost = True

def note(name, what):
    with open(name, "a") as log:
        log.write(f"{what}\\n")

@app.task
def add(one, two):
    return one + two

@app.task
def total(numbers):
    return sum(numbers)

@app.task(acks_late=True)
def work(number, seconds=0.05):
    note("started", number)
    time.sleep(seconds)
    note("ended", number)
    return number

@app.task(bind=True, max_retries=3)
def fails_twice(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries

@app.task
def fails():
    raise KeyError("expected")

@app.task(acks_late=True)
def dies():
    note("started", "dies")
    os.kill(os.getpid(), 9)
"""


class Workers(Crew):
    """Celery workers in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._count = 0
        (folder / "application.py").write_text(APPLICATION)

    def work(self, *options: str, module: str = "application") -> subprocess.Popen[str]:
        """Start a worker; return when it is ready."""
        self._count += 1
        log = self.folder / f"w{self._count}.log"
        names = ("-n", f"w{self._count}@here", "-f", str(log))
        one = self.start(
            "celery", "-A", module, "worker", "-c", "2", "-l", "info", *names, *options
        )
        wait_until(lambda: " ready." in "".join(lines(log)) or one.poll() is not None)
        assert one.poll() is None, self.log.read_text()
        return one


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Workers]:
    one = Workers(tmp_path)
    with one:
        yield one


@pytest.fixture
def sent(url: str) -> Iterator[Callable[..., Any]]:
    """Signatures of the tasks of the application."""
    app = Celery("app", broker=url, backend=url, set_as_current=False)
    yield lambda name, *args, **how: app.signature(f"application.{name}", args=args, **how)
    app.close()


@pytest.mark.slow
def test_a_worker_runs_what_celery_offers(
    crew: Workers, url: str, sent: Callable[..., Any], tmp_path: Path
) -> None:
    worker = crew.work("-E")

    def add(*args: int) -> Any:
        return sent("add", *args)

    assert add(1, 2).delay().get(timeout=PATIENCE_S) == 3
    chain, group, chord = canvas.chain, canvas.group, canvas.chord
    assert chain(add(1, 2), add(3), add(4)).delay().get(timeout=PATIENCE_S) == 10
    assert group(add(n, n) for n in range(9)).delay().get(timeout=PATIENCE_S) == [*range(0, 18, 2)]
    inner = group(add(1), chain(add(2), group(add(3), add(4))))
    with pytest.raises(KeyError, match="expected"):
        chain(sent("fails"), group(add(1), add(2))).delay().get(timeout=PATIENCE_S)
    last = sent("add", 1, 10, immutable=True)
    assert chain(add(1, 0), inner, last).delay().get(timeout=PATIENCE_S) == 11
    whole = chord([add(n, 1) for n in range(9)], sent("total"))
    assert whole.delay().get(timeout=PATIENCE_S) == 45
    assert sent("fails_twice").delay().get(timeout=PATIENCE_S) == 2
    began = time.monotonic()
    assert add(1, 1).apply_async(countdown=1).get(timeout=PATIENCE_S) == 2
    assert time.monotonic() - began >= 1
    app = add().app
    [reply] = app.control.ping(timeout=PATIENCE_S, limit=1)
    assert reply == {"w1@here": {"ok": "pong"}}
    revoked = add(1, 1).apply_async(countdown=1)
    app.control.revoke(revoked.id)
    with pytest.raises(Exception, match="revoked"):
        revoked.get(timeout=PATIENCE_S)
    long = sent("work", 1, 600).delay()
    wait_until(lambda: lines(tmp_path / "started"))
    [[running]] = app.control.inspect(timeout=2).active().values()
    assert running["id"] == long.id
    app.control.revoke(long.id, terminate=True)
    with pytest.raises(Exception, match=r"revoked|terminated"):
        long.get(timeout=PATIENCE_S)
    events: list[str] = []
    with app.connection() as listener:
        receiver = app.events.Receiver(
            listener, handlers={"*": lambda event: events.append(event["type"])}
        )
        listening = threading.Thread(target=lambda: receiver.capture(limit=None, timeout=None))
        listening.start()
        while "task-succeeded" not in events:  # it sees those from when it began to listen
            add(1, 1).delay().get(timeout=PATIENCE_S)
        receiver.should_stop = True
        add(1, 1).delay()
        listening.join()
    poison = sent("dies").delay()  # five workers die with it
    wait_until(lambda: lines(tmp_path / "started").count("dies") >= 2)
    app.control.revoke(poison.id, terminate=True)
    assert add(2, 2).delay().get(timeout=PATIENCE_S) == 4
    assert app.control.broadcast("shutdown") is None
    assert worker.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_shutdowns_end_tasks_or_return_them(
    crew: Workers, url: str, sent: Callable[..., Any], tmp_path: Path
) -> None:
    queue = jobs_of(url, "celery")
    first = crew.work()
    warm = sent("work", 1, 2).delay()
    wait_until(lambda: "1" in lines(tmp_path / "started"))
    crew.stop(first, signal.SIGTERM)
    assert warm.get(timeout=1) == 1
    assert queue.stats().running == 0
    second = crew.work()
    cold = sent("work", 2, 30).delay()
    # Celery cancels what its pool has reported as begun.
    wait_until(lambda: any((cold.app.control.inspect(timeout=1).active() or {"": []}).values()))
    crew.stop(second, signal.SIGQUIT)
    assert queue.stats().running == 0
    assert "2" not in lines(tmp_path / "ended")
    crew.work()
    wait_until(lambda: lines(tmp_path / "started").count("2") == 2)
    cold.revoke(terminate=True)


@pytest.mark.slow
def test_an_older_worker_leaves_tasks_that_only_the_next_version_has(
    crew: Workers, url: str, sent: Callable[..., Any], tmp_path: Path
) -> None:
    crew.work()
    added = sent("added_later").delay()
    assert sent("add", 1, 1).delay().get(timeout=PATIENCE_S) == 2
    wait_until(lambda: jobs_of(url, "celery").stats().parked == 1)
    newer = APPLICATION + '\n@app.task(name="application.added_later")\ndef later(): return "ran"\n'
    (tmp_path / "newer.py").write_text(newer)
    crew.work(module="newer")
    assert added.get(timeout=PATIENCE_S) == "ran"


def test_a_forked_child_opens_the_store_for_itself(app: Celery, url: str) -> None:
    app.backend.store_result("a", 1, "SUCCESS")
    child = os.fork()
    if not child:
        status = 1
        try:
            app.backend.store_result("b", 2, "SUCCESS")
            publish(Connection(url), 1)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert app.backend.get_result("b") == 2
    [job] = take([jobs_of(url)], jobs_of(url).consumer, 1, timeout=0)
    job.done()
    with streamkeep.open(parse_address(url).path) as store:
        assert store.xinfo_groups("tasks")
