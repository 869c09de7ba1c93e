"""How a wait ends: doors that close, interrupts, no board, and wake-ups under stress."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from blocked import BLOCKED, Callers, bells, ids, tickets
from inside import wait_table_of, waiters_of
from patience import PATIENCE_S, handles_below, thread_of, wait_until
from stores import Open
from streamkeep import StoreError
from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.blocking import waiters
from streamkeep.engine.notify.notifier import Bell, Notifier
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.safe_files import Folder

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

NEW = {"s": ">"}


# --- doors ----------------------------------------------------------------------------------------


def test_a_door_whose_reader_is_gone_is_removed_by_its_next_ring(tmp_path: Path) -> None:
    bell = Bell(Folder(tmp_path))
    bells = Notifier(Folder(tmp_path))
    assert bells.notify(bell.number, 7)
    assert bells.notify(bell.number, 8)
    assert bell.notifications() == [7, 8]
    bell.abandon()  # as when its process is killed
    assert not bells.notify(bell.number, 9)
    assert not (tmp_path / bell.name).exists()
    assert not bells.notify(bell.number, 9)
    bells.close()


def test_few_doors_are_kept_open(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    made = [Bell(folder) for _ in range(200)]
    before = len(handles_below(tmp_path))
    bells = Notifier(folder)
    for number, bell in enumerate(made, start=1):
        assert bells.notify(bell.number, number)
    assert len(handles_below(tmp_path)) <= before + 64
    assert [bell.notifications() for bell in made] == [[number] for number in range(1, 201)]
    bells.close()
    assert len(handles_below(tmp_path)) == before
    for bell in made:
        bell.close()


# --- how a wait ends ----------------------------------------------------------------------------


def test_closing_the_store_ends_its_waits(open_store: Open, no_fallback: None) -> None:
    store, other = open_store(), open_store()
    other.xgroup_create("s", "g", mkstream=True)
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0))
    assert callers.end() == [BLOCKED, BLOCKED]
    wait_until(lambda: tickets(other) == 0)
    other.xadd("s", {"f": "v"})
    other.close()
    assert bells(other) == []


def test_an_interrupt_leaves_nothing(store: Store, no_fallback: None) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    calls: list[Callable[[], Any]] = [
        lambda: store.xread({"s": "$"}, block=0),
        lambda: store.xreadgroup("g", "c", NEW, block=0),
    ]
    former = signal.getsignal(signal.SIGINT)
    for call in calls:
        helper = threading.Thread(target=_interrupt, args=(store,))
        came: list[int] = []

        def once(number: int, frame: object, came: list[int] = came) -> None:
            came.append(number)
            if len(came) == 1:  # the next one may come when the call has ended
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, once)
        try:
            helper.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            helper.join()
        finally:
            signal.signal(signal.SIGINT, former)
        assert tickets(store) == 0
        assert bells(store) == []
    store.xadd("s", {"f": "v"})


def test_a_writer_that_is_interrupted_after_its_commit_wakes_the_reader(
    store: Store, no_fallback: None
) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "0"}, block=0))
    failpoints.arm("commit:made", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.xadd("s", {"f": "v"}, id="1-1")
    wait_until(lambda: callers.finished == [0])
    assert ids(callers.end()[0]) == [b"1-1"]


def _interrupt(store: Store) -> None:
    wait_until(lambda: tickets(store) == 1)
    while tickets(store):  # one that comes just before the system call is seen only after it
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_no_door_is_left_behind(store: Store) -> None:
    callers = Callers(store)
    for _ in range(20):
        callers.start(lambda: store.xread({"s": "$"}, block=0))
    assert len(bells(store)) == 20
    store.xadd("s", {"f": "v"})
    wait_until(lambda: len(callers.finished) == 20)
    store.close()
    assert bells(store) == []


def test_a_task_that_waits_when_its_loop_is_closed_leaves_no_door(store: Store) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        task = asyncio.create_task(AsyncStore(store).xread({"s": "$"}, block=0))
        while not tickets(store):
            await asyncio.sleep(0)
        del task

    loop.run_until_complete(begin())
    loop.close()
    gc.collect()
    assert bells(store) == []


# --- without a board ----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["board", "pipes", "rows"])
def test_without_a_board_the_store_is_asked_again_and_again(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, no_fallback: None, missing: str
) -> None:
    if missing == "board":
        monkeypatch.setattr(waiters, "WaitTable", Mock(side_effect=PermissionError))
    elif missing == "pipes":
        monkeypatch.delattr(os, "mkfifo")
    store = open_store()
    if missing == "rows":
        many = [(b"%d" % number, b"", 0) for number in range(6_340)]
        assert wait_table_of(store).register(1, many)
    found: list[Any] = []
    thread = thread_of(lambda: found.append(store.xread({"s": "0"}, block=0)))
    store.xadd("s", {"f": "v"}, id="1-1")
    thread.join(PATIENCE_S)
    assert ids(found[0]) == [b"1-1"]
    assert store.xread({"s": "$"}, block=20) == []


def test_a_store_that_is_only_read_waits_too(open_store: Open) -> None:
    open_store().close()
    reader = open_store(readonly=True)
    assert reader.xread({"s": "$"}, block=20) == []
    with pytest.raises(streamkeep.StoreError, match="readonly"):
        reader.xreadgroup("g", "c", NEW, block=20)


def test_a_board_that_somebody_left_in_disorder_is_counted_anew(
    store: Store, no_fallback: None
) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    words = wait_table_of(store).words
    for word in range(512, 1024):
        words[word] = 7
    words[2] = 1  # a process died while it changed the board
    assert tickets(store) == 1
    assert sum(words[word] for word in range(512, 1024)) == 1
    store.xadd("s", {"f": "v"})
    wait_until(lambda: len(callers.finished) == 1)


# --- under stress -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_no_wake_up_is_lost(store: Store, no_fallback: None, seed: int) -> None:
    store.xgroup_create("s", "g", mkstream=True)
    total = 1500
    taken: list[bytes] = []
    seen: list[list[bytes]] = [[], []]
    done = threading.Event()

    def consume(name: str) -> None:
        count = random.Random(f"{seed} {name}").choice([1, 1, 5])
        stop = partial(done.wait, 0)
        taken.extend(one.id for one in store.consume("s", "g", name, count=count, stop=stop))

    def follow(into: list[bytes]) -> None:
        for entry in store.follow("s", "0", block=20_000):
            into.append(entry.id)
            if len(into) == total:
                return

    def produce(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        left = total // 3
        while left:
            some = min(left, rng.choice([1, 1, 1, 2, 7]))
            if some == 1:
                store.xadd("s", {"f": "v"})
            else:
                store.xadd_many("s", [{"f": "v"}] * some)
            left -= some
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.001)

    threads = [threading.Thread(target=consume, args=(f"c{n}",)) for n in range(4)]
    threads += [threading.Thread(target=follow, args=(into,)) for into in seen]
    threads += [threading.Thread(target=produce, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(taken) == total)  # no reader looks by itself: each must be woken
    done.set()
    waiters_of(store).alarm()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    everything = [entry.id for entry in store.xrange("s")]
    assert sorted(taken) == sorted(everything)
    assert seen == [everything, everything]
    assert tickets(store) == 0


def test_a_crowd_leaves_few_doors(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_MOST_SPARE", 2)
    threads = [
        threading.Thread(target=store.xread, args=({"k": "$"},), kwargs={"block": 0})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: tickets(store) == 8)
    store.xadd("k", {"f": "v"})
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(waiters_of(store)._spare) <= 2


def test_the_memory_of_who_waited_forgets_those_who_called_longest_ago(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed full of consumers that never called again."""
    monkeypatch.setattr(waiters, "_MOST_WAITERS", 3)
    waiting = waiters_of(store)

    def ends(name: bytes, *, waited: bool) -> None:
        waiting._expect((b"g", name, b"s"), waited)

    def known() -> list[bytes]:
        return [waiter[1] for waiter in waiting._waited]

    for name in (b"a", b"b", b"c", b"d"):
        ends(name, waited=True)
    assert known() == [b"b", b"c", b"d"]
    ends(b"b", waited=True)
    assert known() == [b"c", b"d", b"b"]
    ends(b"c", waited=False)
    assert known() == [b"d", b"b"]


# --- a process that keeps the wait table's lock ---------------------------------------------------


def test_a_process_that_is_stopped_with_the_lock_of_the_wait_table_stops_no_other(
    store: Store,
) -> None:
    """Calls do without the table: readers poll, and writers wake none."""
    found: list[Any] = []
    early = threading.Thread(
        target=lambda: found.append(store.xread({"s": "$"}, block=0)), daemon=True
    )
    early.start()
    wait_until(lambda: tickets(store) == 1)
    board = os.open(store.path / "waiters" / "board", os.O_RDWR)  # as another process has it
    done: list[str] = []

    def use() -> None:
        store.xadd("s", {"n": 1})
        done.append("xadd")
        assert store.xread({"other": "$"}, block=1) == []
        done.append("xread")
        code = "import streamkeep, sys; streamkeep.open(sys.argv[1]).close()"
        subprocess.run([sys.executable, "-c", code, str(store.path)], check=True)
        done.append("open")

    user = threading.Thread(target=use, daemon=True)
    try:
        fcntl.flock(board, fcntl.LOCK_EX)
        user.start()
        user.join(PATIENCE_S)
        early.join(PATIENCE_S)
        assert done == ["xadd", "xread", "open"]
        assert len(found) == 1
    finally:
        os.close(board)
    store.xadd("s", {"n": 2})  # takes the row that its reader could not remove
    assert tickets(store) == 0


# --- a store that is gone -------------------------------------------------------------------------


def test_a_call_that_waits_in_a_store_that_was_moved_raises(tmp_path: Path) -> None:
    store = streamkeep.open(tmp_path / "store")
    store.xadd("s", {"a": "b"})
    waiting = AsyncStore(store)
    errors: list[Any] = []

    def wait(read: Callable[[], object]) -> None:
        try:
            errors.append(read())
        except StoreError as error:
            errors.append(str(error))

    threads = [
        thread_of(lambda: wait(lambda: store.xread({"s": "$"}, block=60_000))),
        thread_of(lambda: wait(lambda: asyncio.run(waiting.xread({"s": "$"}, block=60_000)))),
    ]
    wait_until(lambda: tickets(store) == 2)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    for thread in threads:
        thread.join()
    assert [str(one).partition(": ")[2][:30] for one in errors] == [
        "the store was deleted or moved"
    ] * 2
    with pytest.raises(StoreError, match=r"moved while it was open; next: open it where it is"):
        store.close()
