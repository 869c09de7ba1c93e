"""Deferred commits: every reader sees them, and no failure, death or fork loses one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkeep
from inside import context_of, defer_for_long, environment_of, journal_of
from patience import wait_until
from stopped import child_of, stop, stopped_child
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.page_memory import kept_pages
from streamkeep.format.core.errors import StoreLockedError

COUNT = 20
PROGRAM = """
import sys
import streamkeep
from inside import context_of, defer_for_long
store = streamkeep.open(sys.argv[1], sync="none")
defer_for_long(store)
for number in range(20):
    store.xadd("s", {"n": number})
assert context_of(store).deferral.raw is not None
"""


def deferring(path: Path, count: int = COUNT) -> Store[bytes]:
    """Open a store and add entries, the commits of which are deferred."""
    store = Store(path, sync="none")
    defer_for_long(store)
    for number in range(count):
        store.xadd("s", {"n": number})
    assert context_of(store).deferral.raw is not None
    return store


def numbers(store: Store[bytes]) -> list[bytes]:
    return [entry.fields[b"n"] for entry in store.xrange("s")]


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked child; return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_reads_snapshots_and_transactions_show_deferred_commits(tmp_path: Path) -> None:
    with deferring(tmp_path / "store") as store:
        assert numbers(store) == expected(COUNT)
        deferral = context_of(store).deferral
        assert deferral.raw is None  # the read has ended it
        store.xadd("s", {"n": COUNT})
        with store.snapshot() as snapshot:
            assert snapshot.xlen("s") == COUNT + 1
        with store.transaction() as txn:
            assert txn.xlen("s") == COUNT + 1
            txn.xadd("s", {"n": COUNT + 1})
        assert numbers(store) == expected(COUNT + 2)
        assert store.durability().last_commit == COUNT + 3


def test_an_idle_store_shows_its_commits(tmp_path: Path) -> None:
    """Another thread ends the transaction, without any call."""
    with Store(tmp_path / "store", sync="none") as store:
        defer_for_long(store)
        for number in range(COUNT):
            store.xadd("s", {"n": number})
        deferral = context_of(store).deferral
        assert deferral.raw is not None
        deferral.idle_s = 0.001
        store.xadd("s", {"n": COUNT})
        for _ in range(100):  # each look of the thread may find the store busy
            store.xadd("s", {"n": COUNT})
        assert store.xlen("s") == COUNT + 101


def test_a_process_that_waits_for_the_disk_is_not_idle(tmp_path: Path) -> None:
    with deferring(tmp_path / "store") as store:
        deferral = context_of(store).deferral
        with journal_of(store).syncs._lock:  # as a thread that waits for the disk
            for _ in range(3):
                deferral._look()
        assert deferral.raw is not None
        deferral.note_own()
        deferral.idle_s = 0.0
        assert not deferral.pays(True)
        deferral.idle_s = 60.0
        deferral.note_synced()
        assert deferral.pays(True)
        assert numbers(store) == expected(COUNT)


@pytest.mark.parametrize("step", ["commit:journaled", "commit:made"])
def test_a_command_that_fails_halfway_takes_no_commit_with_it(tmp_path: Path, step: str) -> None:
    def fail() -> None:
        raise RuntimeError("halfway")

    with deferring(tmp_path / "store") as store:
        failpoints.arm(step, fail)
        with pytest.raises(RuntimeError, match="halfway"):
            store.xadd("s", {"n": COUNT})
        failpoints.disarm()
        made = COUNT + (step == "commit:made")
        assert numbers(store) == expected(made)
        store.xadd("s", {"n": made})
        assert numbers(store) == expected(made + 1)
    assert list(recovery.check(tmp_path / "store")) == []


def test_a_failed_end_of_the_transaction_is_made_good(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("the disk")

    with deferring(tmp_path / "store") as store:
        failpoints.arm("image:ending", fail)
        assert numbers(store) == expected(COUNT)
        assert not context_of(store).deferral.lags
        store.xadd("s", {"n": COUNT})
    with Store(tmp_path / "store") as store:
        assert numbers(store) == expected(COUNT + 1)


def test_another_process_sees_what_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "store"
    ask, told = os.pipe(), os.pipe()
    with Store(path, sync="none") as store:
        store.xadd("s", {"n": 0})

        def work() -> None:
            with streamkeep.open(path, sync="none") as own:
                while (count := int.from_bytes(os.read(ask[0], 4), "big")) != 0:
                    os.write(told[1], b"y" if own.xlen("s") >= count else b"n")

        ended: list[int] = []
        child = threading.Thread(target=lambda: ended.append(in_child(work)))
        child.start()
        count = 1
        for _ in range(60):
            for _ in range(5):
                store.xadd("s", {"n": count})
                count += 1
            os.write(ask[1], count.to_bytes(4, "big"))
            assert os.read(told[0], 1) == b"y"
        os.write(ask[1], bytes(4))
        child.join()
        assert ended == [0]


def test_commits_of_a_dead_process_are_replayed_by_one_that_lives(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Store(path, sync="none") as store:

        def work() -> None:
            own = streamkeep.open(path, sync="none")
            defer_for_long(own)
            number = 0
            while number < COUNT or context_of(own).deferral.raw is None:
                own.xadd("s", {"n": number})
                number += 1
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(work) == -signal.SIGKILL
        found = numbers(store)
        assert len(found) >= COUNT
        assert found == expected(len(found))
        store.xadd("s", {"n": len(found)})
        assert numbers(store) == expected(len(found) + 1)
    assert list(recovery.check(path)) == []


def test_a_fork_leaves_the_transaction_to_the_parent(tmp_path: Path) -> None:
    with deferring(tmp_path / "store") as store:

        def work() -> None:
            with pytest.raises(streamkeep.StoreClosedError):
                store.xadd("s", {"n": 0})
            with pytest.raises(streamkeep.StoreClosedError):
                store.xlen("s")

        assert in_child(work) == 0
        store.xadd("s", {"n": COUNT})
        assert numbers(store) == expected(COUNT + 1)


def test_the_end_of_the_interpreter_makes_deferred_commits(tmp_path: Path) -> None:
    path = tmp_path / "store"
    subprocess.run([sys.executable, "-c", PROGRAM, str(path)], check=True, env=_with_tests())
    with streamkeep.open(path, readonly=True) as store:
        assert store.xlen("s") == COUNT


def _with_tests() -> dict[str, str]:
    """Return an environment in which a program finds the helpers of the tests."""
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}


def test_an_undone_transaction_is_remembered_for_erasures(tmp_path: Path) -> None:
    """Its pages stay in LMDB's memory, which an erasure clears."""

    def fail() -> None:
        raise RuntimeError("halfway")

    with deferring(tmp_path / "store", 300) as store:
        for number in range(200):
            store.row_put(b"space", b"%d" % number, b"value")
        before = kept_pages(context_of(store))
        failpoints.arm("commit:journaled", fail)
        with pytest.raises(RuntimeError, match="halfway"):
            store.row_put(b"space", b"key", b"value")
        failpoints.disarm()
        assert kept_pages(context_of(store)) > before


def is_clear(store: Store[bytes]) -> bool:
    """Return whether the memory of this process has been cleared since the last erasure."""
    context = context_of(store)
    return context.erasures == journal_of(store).control.erasures()


def test_memory_is_cleared_after_an_erasure_for_which_a_writer_waited(tmp_path: Path) -> None:
    path = tmp_path / "store"
    ready, go = os.pipe(), os.pipe()

    def work() -> None:
        with streamkeep.open(path, sync="none") as own, own.transaction() as txn:
            os.write(ready[1], b"y")
            os.read(go[0], 1)
            journal_of(own).begin_clean_file()  # as an erasure does
            txn.xadd("s", {"n": "of the other one"})

    clear: list[bool] = []
    with Store(path, sync="none") as store:
        store.xadd("s", {"n": "first"})
        child = child_of(work)
        os.read(ready[0], 1)
        defer_for_long(store)
        failpoints.watch(lambda name: clear.append(is_clear(store)))
        writer = threading.Thread(target=lambda: [store.xadd("s", {"n": 1}) for _ in range(20)])
        writer.start()
        wait_until(lambda: journal_of(store).control.wanted() != 0)
        os.write(go[1], b"y")
        writer.join()
        os.waitpid(child, 0)
        failpoints.disarm()
        assert clear
        assert all(clear)
        assert store.xlen("s") == 22


def test_memory_is_cleared_before_the_commits_of_a_dead_process_are_made(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def work() -> None:
        store = deferring(path)
        journal_of(store).control.count_erasure()
        os.kill(os.getpid(), signal.SIGKILL)

    clear: list[bool] = []
    with Store(path, sync="none") as store:
        store.xadd("s", {"n": "first"})
        assert in_child(work) != 0
        failpoints.arm("image:replayed", lambda: clear.append(is_clear(store)))
        assert store.xlen("s") == 1 + COUNT
        assert clear == [True]
        failpoints.disarm()


def test_room_is_reserved_after_the_pages_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "store"
    ready, go = os.pipe(), os.pipe()

    def work() -> None:
        with streamkeep.open(path, sync="none") as own, own.transaction() as txn:
            for _ in range(10):
                txn.xadd("big", {"f": bytes(2 << 20)})
            os.write(ready[1], b"y")
            os.read(go[0], 1)

    with Store(path, sync="none") as store:
        ended: list[int] = []
        child = threading.Thread(target=lambda: ended.append(in_child(work)))
        child.start()
        os.read(ready[0], 1)
        defer_for_long(store)
        writer = threading.Thread(target=lambda: [store.xadd("s", {"n": 1}) for _ in range(20)])
        writer.start()
        wait_until(lambda: journal_of(store).control.wanted() != 0)
        os.write(go[1], b"y")
        writer.join()
        assert context_of(store).deferral.raw is not None
        assert os.path.getsize(path / "data.mdb") >= store.used_bytes + (12 << 20)
        with store.snapshot():  # ends the transaction: the child needs the lock to close
            child.join()
        assert ended == [0]


def test_a_map_without_room_for_a_transaction_defers_nothing(tmp_path: Path) -> None:
    """Its end could find the map full when its commits are acknowledged."""
    with Store(tmp_path / "store", sync="none") as store:
        defer_for_long(store)
        environment_of(store).resize(store.used_bytes + (1 << 20))
        for number in range(200):
            store.xadd("s", {"n": number, "f": bytes(20_000)})
        assert not context_of(store).deferral.lags
        assert store.xlen("s") == 200
        assert store.map_size_bytes >= store.used_bytes
    with Store(tmp_path / "store") as store:
        assert store.xlen("s") == 200


@pytest.mark.usefixtures("plain_locks")
def test_a_writer_is_told_which_process_is_stopped(tmp_path: Path) -> None:
    """Its commits are deferred, and LMDB's lock is taken; nothing is lost when it goes on."""
    path = tmp_path / "store"
    go = os.pipe()

    def work() -> None:
        with streamkeep.open(path, sync="none") as own:
            defer_for_long(own)
            for number in range(COUNT):
                own.xadd("s", {"n": number})
            assert context_of(own).deferral.raw is not None
            stop()
            os.read(go[0], 1)

    with Store(path, sync="none") as store:
        context_of(store).lmdb_lock.wait.limit_s = 0.2
        child = stopped_child(work)
        for call in (lambda: store.xadd("s", {"n": COUNT}), lambda: store.xlen("s")):
            with pytest.raises(StoreLockedError, match=f"process {child}, which is stopped"):
                call()
        os.kill(child, signal.SIGCONT)
        context_of(store).lmdb_lock.wait.limit_s = 60.0
        assert numbers(store) == expected(COUNT)
        store.xadd("s", {"n": COUNT})
        os.write(go[1], b"y")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert numbers(store) == expected(COUNT + 1)
    assert list(recovery.check(path)) == []


@pytest.mark.usefixtures("plain_locks")
def test_a_writer_waits_for_a_long_transaction_of_a_process_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "store"
    ready, told = os.pipe()
    go, end = os.pipe()
    looks: list[int] = []

    def users() -> list[int]:
        looks.append(1)
        if len(looks) == 3:
            os.write(end, b"y")
        return []

    with Store(path, sync="none") as store:
        defer_for_long(store)

        def work() -> None:  # it does not close the store: it would wait for this process
            with Store(path).transaction() as txn:
                txn.xadd("s", {"n": 0})
                os.write(told, b"y")
                os.read(go, 1)

        child = child_of(work)
        try:
            os.read(ready, 1)
            wait = context_of(store).lmdb_lock.wait
            wait.limit_s, wait.users = 0.1, users
            context_of(store).deferral.note_synced()  # the last command was a moment ago
            store.xadd("s", {"n": 1})
            assert len(looks) >= 3
        finally:
            os.write(end, b"y")
            os.waitpid(child, 0)
        assert numbers(store) == expected(2)


def test_a_commit_that_waits_for_the_disk_leaves_the_lock_to_other_processes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    Store(path).close()
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        Store(path)
        os.write(told, b"open")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 9) == b"open"
        with deferring(path) as store:
            deferral = context_of(store).deferral
            store.using("commit").xadd("s", {"n": COUNT})
            assert deferral.raw is None
            assert numbers(store) == expected(COUNT + 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


@pytest.mark.parametrize("command", ["xadd", "xlen"])
def test_an_idle_process_makes_way_and_defers_less_if_another_one_waits(
    tmp_path: Path, command: str
) -> None:
    """Where processes take turns, each would wait a millisecond for the other one."""
    path = tmp_path / "store"
    Store(path).close()
    ready, told = os.pipe()
    asked, go = os.pipe()

    def work() -> None:
        with Store(path, sync="none") as own:
            os.write(told, b"open")
            os.read(asked, 2)
            if command == "xadd":
                own.xadd("s", {"n": COUNT})
            os.write(told, b"%d" % own.xlen("s"))

    child = child_of(work)
    try:
        assert os.read(ready, 9) == b"open"
        with deferring(path) as store:
            deferral = context_of(store).deferral
            os.write(go, b"go")
            wait_until(journal_of(store).control.wanted)
            assert deferral.raw is not None
            deferral._image.do(lambda task: deferral._look())
            assert deferral.raw is None
            assert int(os.read(ready, 9)) == COUNT + (command == "xadd")
            for number in range(10):
                store.xadd("s", {"n": number})
                assert deferral.raw is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (ready, told, asked, go):
            os.close(end)
