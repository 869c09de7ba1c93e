"""What users of one store owe each other: in one process, with different rights, when it opens."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import streamkeep
from inside import environment_of, journal_of
from patience import PATIENCE_S, handles_below, line_of, wait_until
from stopped import child_of, ended, status_of, stop, stopped_child
from stores import Open
from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint import checkpoint_file
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.store.registry import registry
from streamkeep.engine.system import failpoints, lock_file
from streamkeep.engine.system.long_wait import LongWait
from streamkeep.engine.system.safe_files import Folder
from test_engine_store.test_life import run
from tiers import daily_or_all

pytestmark = pytest.mark.both_modes


def test_a_readonly_store_refuses_to_write_beside_one_that_writes(open_store: Open) -> None:
    store = open_store()
    store.xadd("s", {"n": 0}, id="1-0")
    reader = open_store(readonly=True)

    async def add() -> None:
        await AsyncStore(reader).xadd("s", {"n": 1})

    def pipeline() -> None:
        with reader.pipeline() as pipe:
            pipe.xadd("s", {"n": 1})
            pipe.execute()

    for write in (
        lambda: reader.xadd("s", {"n": 1}),
        lambda: reader.xdel("s", "1-0"),
        lambda: reader.delete("s"),
        lambda: reader.using(sync="none").xadd("s", {"n": 1}),
        lambda: reader.using(sync="none").xtrim("s", maxlen=0),
        lambda: reader.transaction().__enter__(),
        lambda: reader.erase("s", "1-0"),
        lambda: reader.archive(),
        lambda: reader.maintain(),
        lambda: reader.drop_segments("s"),
        lambda: list(reader.adopt_segments("nothing.seg")),
        lambda: reader.restore_archive("s"),
        lambda: reader.sync(),
        lambda: asyncio.run(add()),
        pipeline,
    ):
        with pytest.raises(streamkeep.StoreError, match="readonly=True"):
            write()
    assert reader.xlen("s") == 1
    store.xadd("s", {"n": 1})
    assert reader.xlen("s") == 2


def test_a_second_opening_cannot_have_what_the_first_has_not(
    open_store: Open, tmp_path: Path
) -> None:
    with pytest.raises(streamkeep.StreamkeepError, match="read_durable"):
        Store(tmp_path / "store", readonly=True, read_durable=True)
    open_store(max_store_bytes=4 << 20, node_max_entries=10)
    for options in ({"max_store_bytes": 8 << 20}, {"node_max_entries": 20}, {"node_max_bytes": 9}):
        with pytest.raises(streamkeep.StoreError, match="another max_store_bytes"):
            open_store(**options)
    with pytest.raises(streamkeep.StoreError, match="retired_max_bytes=1073741824"):
        open_store(retired_max_bytes=64 << 20)
    with pytest.raises(streamkeep.StoreLockedError, match="open in this process"):
        open_store(force_recovery="checkpoint")
    with open_store() as same, open_store(max_store_bytes=4 << 20, node_max_entries=10):
        same.xadd("s", {"n": 0})


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start a thread; return it, and the list that gets its result or error."""
    results: list[object] = []

    def work() -> None:
        try:
            results.append(action())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, results


@contextmanager
def closing(store: Store) -> Iterator[threading.Thread]:
    """Have another thread wait to close a store on which this one has a transaction."""
    with store.transaction() as txn:
        txn.xadd("s", {"n": 1})
        thread, _ = in_thread(store.close)
        wait_until(lambda: not environment_of(store).users)
        yield thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_closing_one_store_does_not_stop_the_opening_of_others(
    open_store: Open, tmp_path: Path
) -> None:
    def play() -> str:
        with closing(open_store("one")), Store(tmp_path / "other", sync="none") as other:
            other.xadd("s", {"n": 0})
        return "done"

    thread, results = in_thread(play)
    thread.join(PATIENCE_S)
    assert results == ["done"]


def test_opening_waits_for_another_thread_that_closes(open_store: Open, tmp_path: Path) -> None:
    def open_again() -> int:
        with Store(tmp_path / "store", sync="none") as store:
            return store.xlen("s")

    def play() -> object:
        with closing(open_store()):
            with pytest.raises(streamkeep.StoreError, match="transaction open"):
                open_again()  # it would wait for itself
            thread, results = in_thread(open_again)
        thread.join(PATIENCE_S)
        return results

    thread, results = in_thread(play)
    thread.join(PATIENCE_S)
    assert results == [[1]]


def test_only_the_last_user_closes(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = open_store(), open_store()
    environment = environment_of(one)
    closing_files = environment.close_files
    left: list[int] = []

    def close_files() -> None:
        left.append(environment.users)
        closing_files()

    monkeypatch.setattr(environment, "close_files", close_files)
    begun = [in_thread(one.close), in_thread(other.close)]
    for thread, results in begun:
        thread.join(PATIENCE_S)
        assert results == [None]
    assert left == [0]


def test_a_failed_opening_leaves_no_descriptors(path: Path) -> None:
    with Store(path) as store:
        store.xadd("s", {"n": 0})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = handles_below(path)
    recycled = os.dup(0)  # where the next would be
    os.close(recycled)
    failures = 0
    try:
        for more in range(0, 40, daily_or_all(8, 1)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (recycled + more, before[1]))
            try:
                Store(path, sync="none").close()
            except streamkeep.StreamkeepError:
                failures += 1
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                assert handles_below(path) == there, more
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert failures > 1
    with Store(path) as store:
        assert store.xlen("s") == 1
        journal = journal_of(store)
        assert not journal.control.is_shared()  # no process counts as having it open


def test_a_child_forked_during_an_opening_does_not_keep_the_lock(path: Path) -> None:
    opened, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        opened.set()
        go_on.wait(PATIENCE_S)

    failpoints.arm("create:named", wait)
    thread, results = in_thread(lambda: Store(path, sync="none").close())
    assert opened.wait(PATIENCE_S)
    reader, writer = os.pipe()
    running, runs = os.pipe()

    def run() -> None:
        os.close(writer)
        os.write(runs, b"r")
        os.read(reader, 1)  # until the parent closes its end

    child = child_of(run)
    os.close(reader)
    os.close(runs)
    try:
        # A child that has not run yet still has what it inherited: only Python's hook closes it.
        assert os.read(running, 1) == b"r"
        go_on.set()
        thread.join(PATIENCE_S)
        assert results == [None]
        lock = CheckpointFile(Folder(path), readonly=True)
        assert lock.try_exclusive()
        lock.close()
    finally:
        os.close(running)
        os.close(writer)
        assert status_of(child) == 0


def test_a_child_forked_during_a_closing_keeps_nothing_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path, sync="none")
    store.xadd("s", {"n": 0})
    environment = environment_of(store)
    assert environment.checkpoint_file is not None
    half, go_on = threading.Event(), threading.Event()

    def close_lobby() -> None:
        half.set()
        go_on.wait(PATIENCE_S)

    monkeypatch.setattr(environment.waiters, "close", close_lobby)
    thread, results = in_thread(store.close)
    assert half.wait(PATIENCE_S)  # the files of checkpoints are closed, the lock is not

    def look() -> None:
        assert environment.checkpoint_file is not None
        assert environment.checkpoint_file.handle < 0
        assert not registry.environments

    assert status_of(child_of(look)) == 0
    go_on.set()
    thread.join(PATIENCE_S)
    assert results == [None]


UNLISTED = """
import sys
from streamkeep.engine.store import opening
from streamkeep.engine.api.store import Store
opening.is_listed = lambda path: False
with Store(sys.argv[1], readonly=True) as store:
    print(store.xlen("s"), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_who_cannot_be_listed_reads_beside_nobody_who_writes(
    open_store: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store() as store:
        store.xadd("s", {"n": 0})
    monkeypatch.setattr(checkpoint_file, "_SHORT_PATIENCE_S", 0.1)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", UNLISTED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        for reader in readers:
            assert line_of(reader) == b"1\n"
        with pytest.raises(streamkeep.StoreLockedError, match=r"permission to write lock\.mdb"):
            open_store()
        with open_store(readonly=True) as listed:
            assert listed.xlen("s") == 1
    finally:
        for reader in readers:
            reader.communicate()
    with open_store() as store:
        store.xadd("s", {"n": 1})
        with pytest.raises(AssertionError, match="open in another process"):
            run(UNLISTED, path)


def lock_the_store(path: Path) -> None:
    assert CheckpointFile(Folder(path), readonly=False).try_exclusive()


def lock_the_data(path: Path) -> None:
    fcntl.flock(os.open(path / "data.mdb", os.O_RDONLY), fcntl.LOCK_EX)


def lock_lmdb(path: Path) -> None:
    fcntl.lockf(os.open(path / "lock.mdb", os.O_RDWR), fcntl.LOCK_EX, 1)


@pytest.mark.parametrize("lock", [lock_the_store, lock_the_data, lock_lmdb])
def test_an_opening_names_a_process_that_is_stopped_in_the_middle_of_one(
    path: Path, lock: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(path).close()
    for patience in ("_PATIENCE_S", "_SHORT_PATIENCE_S"):
        monkeypatch.setattr(checkpoint_file, patience, 0.1)
    monkeypatch.setattr(lock_file, "LongWait", impatient)

    def open_and_stop() -> None:
        lock(path)
        stop()

    child = stopped_child(open_and_stop)
    with ended(child):
        for readonly in (False, True):
            if not (readonly and lock is lock_the_data):  # a reader does not look at it
                with pytest.raises(
                    streamkeep.StoreLockedError, match=f"process {child}, .*kill -CONT {child}"
                ):
                    Store(path, readonly=readonly)
    Store(path).close()


def test_an_opening_says_for_which_process_it_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compaction may take a minute, in which nothing was said."""
    Store(path).close()
    monkeypatch.setattr(checkpoint_file, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(checkpoint_file, "LongWait", impatient)

    def work() -> None:
        lock_the_store(path)
        stop()
        time.sleep(PATIENCE_S)

    child = stopped_child(work)
    with ended(child):
        os.kill(child, signal.SIGCONT)
        with pytest.raises(streamkeep.StoreLockedError, match="compacting the store for"):
            Store(path)
    assert caplog.text.count(f"has been taken by process {child}; next: end it if") == 1


def test_a_full_disk_without_a_block_for_a_new_lock_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Folder, name: str, flags: int = os.O_RDONLY) -> int:
        if flags & os.O_EXCL:
            raise OSError(errno.ENOSPC, "no room")
        return opened(folder, name, flags)

    opened = Folder.open
    Store(tmp_path / "s").close()
    monkeypatch.setattr(lock_file, "moves_blocks", lambda handle: True)
    monkeypatch.setattr(Folder, "open", full)
    with pytest.raises(streamkeep.StoreFullError):
        Store(tmp_path / "s")


def impatient(lock: str, users: Callable[[], list[int]]) -> LongWait:
    wait = LongWait(lock, users)
    wait.limit_s = 0.1
    return wait


@pytest.mark.slow
def test_who_cannot_be_listed_checks_nothing_beside_a_writer(
    open_store: Open, tmp_path: Path
) -> None:
    code = """
import sys
from streamkeep import recovery
from streamkeep.recovery.fsck import source
source.is_listed = lambda path: False
source._open_lmdb = lambda path: None
print(list(recovery.check(sys.argv[1])))
"""
    with open_store() as store:
        store.xadd("s", {"n": 0})
        with pytest.raises(AssertionError, match="reading it at the same time needs"):
            run(code, tmp_path / "store")
    assert run(code, tmp_path / "store") == "[]\n"


@contextmanager
def slow_opening(
    path: Path,
) -> Iterator[tuple[list[Store[bytes]], list[threading.Thread], CheckpointFile]]:
    """Have two threads open a store while it is locked as for a recovery, until the block ends.

    The block gets a list of what they have opened, the threads, and the lock.
    """
    with Store(path) as store:
        store.xadd("s", {"n": 0})
    recovering = CheckpointFile(Folder(path), readonly=False)
    assert recovering.try_exclusive()
    opened: list[Store[bytes]] = []
    threads = [
        threading.Thread(target=lambda: opened.append(streamkeep.open(path))) for _ in range(2)
    ]
    try:
        threads[0].start()
        # One that has given up already is seen no more.
        wait_until(lambda: any(one.lock for one in registry.openings) or not threads[0].is_alive())
        threads[1].start()
        yield opened, threads, recovering
    finally:
        recovering.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        for store in opened:
            store.close()


def test_an_opening_that_takes_long_keeps_no_other_store_from_opening(tmp_path: Path) -> None:
    with slow_opening(tmp_path / "one") as (opened, threads, _):
        for _ in range(2):
            with streamkeep.open(tmp_path / "other") as other:
                other.xadd("s", {"n": 0})
        assert opened == []
        assert all(thread.is_alive() for thread in threads)
    assert len(opened) == 2
    assert environment_of(opened[0]) is environment_of(opened[1])
    assert registry.openings == []
    with streamkeep.open(tmp_path / "one") as store:
        assert store.xlen("s") == 1


def test_a_thread_opens_a_store_after_another_has_failed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_file, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(threading, "excepthook", lambda told: failed.append(told.exc_value))
    failed: list[object] = []
    with slow_opening(tmp_path / "one") as (opened, threads, _):
        for thread in threads:
            thread.join(PATIENCE_S)
        assert opened == []
    assert [type(one) for one in failed] == [streamkeep.StoreLockedError] * 2
    assert registry.openings == []
    with streamkeep.open(tmp_path / "one") as store:
        assert store.xlen("s") == 1


def test_a_child_that_is_forked_while_a_store_is_opened_may_open_it(tmp_path: Path) -> None:
    """It neither waits for the thread of its parent nor keeps that from getting the lock."""
    ends = os.pipe()
    with slow_opening(tmp_path / "one") as (opened, _, recovering):

        def work() -> None:
            os.close(ends[1])
            recovering.close()  # else the child would hold the lock, too
            with streamkeep.open(tmp_path / "other") as other:
                other.xadd("s", {"n": 0})
            os.read(ends[0], 1)  # until the parent has it open
            with streamkeep.open(tmp_path / "one") as store:
                assert store.xlen("s") == 1

        child = child_of(work)
        os.close(ends[0])
    assert len(opened) == 2
    os.close(ends[1])
    assert status_of(child) == 0
