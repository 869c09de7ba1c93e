"""Flushes: one that fails loses nothing, and commits after it need room."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import call
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lmdb
import pytest

import streamkeep
from erased import SECRET, grep
from inside import (
    checkpoint_now,
    checkpointer_of,
    context_of,
    environment_of,
    journal_of,
    lock_is_awaited,
)
from patience import PATIENCE_S, thread_of, wait_until
from stopped import child_of, copy_of_killed, killed
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint import checkpoint
from streamkeep.engine.store import opening
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn import begin
from streamkeep.engine.txn.context import EngineContext
from streamkeep.engine.txn.page_memory import kept_pages
from streamkeep.format.core.errors import StoreFullError
from test_engine_txn.test_commits import assert_right, expected, numbers

COUNT = 20


def disk_full() -> lmdb.Error:
    return lmdb.DiskError("mdb_txn_commit: No space left on device")


def disk_fails() -> lmdb.Error:
    error = lmdb.Error("mdb_txn_commit: Input/output error")
    vars(error)["code"] = errno.EIO  # as py-lmdb has it
    return error


FAILURES = [disk_full, disk_fails]


@contextmanager
def failing(error: Callable[[], Exception]) -> Iterator[list[str]]:
    """Let LMDB make no commit; provide a list that gets one item for each that it tries."""
    tried: list[str] = []

    def fail() -> None:
        arm()
        tried.append("flush")
        raise error()

    def arm() -> None:
        failpoints.arm("flush:ending", fail)

    arm()
    try:
        yield tried
    finally:
        failpoints.disarm()


def opened(path: Path, **options: Any) -> Store[bytes]:
    """Open a store that flushes after two commits, and whose checkpointer does nothing."""
    store = Store(path, sync="none", **options)
    context_of(store).memtable.most_commits = 2
    checkpointer_of(store).stop()
    return store


def in_child(work: Callable[[], None]) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child_of(work), 0)[1]) == 0


@pytest.mark.parametrize("error", FAILURES)
def test_a_flush_that_fails_loses_nothing_and_only_deletions_follow(
    path: Path, tmp_path: Path, error: Callable[[], lmdb.Error]
) -> None:
    with opened(path) as store:
        with failing(error) as tried:
            store.xadd("s", {"n": 0})
            store.xadd("s", {"n": 1})  # is made whatever happens to the flush
            assert len(tried) == 2  # again, after it has made what room it can
            for _ in range(COUNT):
                with pytest.raises(StoreFullError):
                    store.xadd("s", {"n": "refused"})
            with pytest.raises(StoreFullError), store.transaction() as txn:
                txn.xadd("s", {"n": "refused"})
            assert len(tried) > COUNT
            assert numbers(store) == expected(2)
            with store.snapshot() as snapshot:
                assert snapshot.xlen("s") == 2

            def work() -> None:
                with Store(path, readonly=True) as other:
                    assert numbers(other) == expected(2)

            in_child(work)
            store.sync()
            copy = copy_of_killed(store, tmp_path / "copy")
            with store.transaction() as txn:
                assert txn.xtrim("s", maxlen=1, approximate=False) == 1
            assert numbers(store) == [b"1"]
        store.xadd("s", {"n": 2})
        assert context_of(store).memtable.commits == 1  # after the flush of those before
        store.xadd("s", {"n": 3})
        assert context_of(store).memtable.commits == 0
        assert numbers(store) == expected(4)[1:]
    assert_right(copy, 2)
    with streamkeep.open(path) as store:
        assert numbers(store) == expected(4)[1:]


def test_a_flush_that_finds_the_disk_full_gives_back_what_was_kept_for_it(tmp_path: Path) -> None:
    """On btrfs, the second try needs other blocks; and without a flush, deletions free nothing."""
    with opened(tmp_path / "store") as store:
        store.xadd("s", {"n": 0})
        assert has_room(store)
        failpoints.arm("flush:ending", Mock(side_effect=disk_full()))
        store.xadd("s", {"n": 1})
        assert context_of(store).memtable.commits == 0
        assert not has_room(store)
        assert not journal_of(store).drop_recycled()
        assert numbers(store) == expected(2)


def test_a_memtable_that_is_too_big_takes_no_deletion_either(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.xadd_many("s", [{"n": number} for number in range(COUNT)])
        store.xadd("t", {"n": 0})
        with failing(disk_full):
            store.xadd("t", {"n": 1})
            context_of(store).memtable.bytes = 64 << 20
            with pytest.raises(StoreFullError):
                store.xtrim("s", maxlen=1, approximate=False)
        assert store.xtrim("s", maxlen=1, approximate=False) == COUNT - 1
        assert context_of(store).memtable.commits == 1


def test_a_store_is_closed_and_reopened_although_no_flush_is_possible(path: Path) -> None:
    store = opened(path)
    context_of(store).memtable.most_commits = 1000
    store.xadd("s", {"n": 0})
    checkpoint_now(store)
    with failing(disk_full):
        for number in range(1, COUNT):
            store.xadd("s", {"n": number})
        checkpoint_now(store)  # of what data.mdb has
        store.close()
    assert_right(path, COUNT)


def test_an_erasure_needs_a_flush(path: Path) -> None:
    with opened(path) as store:
        secret = store.xadd("k", {"f": SECRET})
        store.xadd("s", {"n": 0})
        with failing(disk_full), pytest.raises(StoreFullError):
            store.erase("k", secret)
        assert store.xrange("k") == []
        store.erase("k")
        assert grep(path) == []
    assert_right(path, 1)


def test_a_flush_waits_for_no_reader_and_no_reader_for_it(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    with opened(tmp_path / "store") as store:
        store.xadd("s", {"n": 0})
        with store.snapshot() as snapshot:
            failpoints.arm("flush:ending", wait)
            writing = thread_of(store.xadd, "s", {"n": 1})
            assert begun.wait(PATIENCE_S)
            assert numbers(store) == expected(2)  # the commit is made
            failpoints.arm("flush:ended", lambda: None)
            go_on.set()
            writing.join(PATIENCE_S)
            assert numbers(store) == expected(2)
            assert numbers(snapshot) == expected(1)  # type: ignore[arg-type]


def test_a_big_commit_is_flushed_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "store", sync="none") as store:
        store.xadd("s", {"n": 0})
        assert context_of(store).memtable.commits == 1
        store.xadd("s", {"n": 1, "f": bytes(2 << 20)})
        assert context_of(store).memtable.commits == 0
        assert numbers(store) == expected(2)


def is_clear(store: Store[bytes]) -> bool:
    """Return whether the memory of this process has been cleared since the last erasure."""
    return context_of(store).erasures == journal_of(store).control.erasures()


def release_room(store: Store[bytes]) -> None:
    checkpoints = environment_of(store).checkpoints
    assert checkpoints is not None
    checkpoints.release_room()


def has_room(store: Store[bytes]) -> bool:
    """Return whether room for the next flush is reserved."""
    return (store.path / "data.mdb").stat().st_size > context_of(store).size()


def test_the_last_process_gives_back_what_was_reserved(tmp_path: Path) -> None:
    """Also for one that wrote later, and ended first; a small store has small files."""
    path = tmp_path / "s"

    def write() -> None:
        with Store(path, sync="none") as own:
            for number in range(1500):
                own.xadd("s", {"n": number, "f": "v" * 500}, maxlen=100)

    with Store(path, sync="none") as store:
        store.xadd("s", {"f": "v"})
        child = child_of(write)
        assert os.waitpid(child, 0)[1] == 0
        assert store.xlen("s") >= 100
    assert sum(one.stat().st_blocks * 512 for one in path.rglob("*")) < 8 << 20
    assert list(recovery.check(path)) == []


def test_room_that_was_given_back_is_reserved_again(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.xadd("s", {"n": 0})
        checkpoint_now(store)
        failpoints.arm(
            "commit:journaled", Mock(side_effect=OSError("the commit fails after its record"))
        )
        with pytest.raises(OSError, match="after its record"):
            store.xadd("s", {"n": 1})
        release_room(store)
        store.xadd("s", {"n": 1})
        assert has_room(store)


def test_a_store_is_closed_although_the_disk_does_not_take_the_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the file system became read-only after an error."""
    store = opened(tmp_path / "store")
    store.xadd("s", {"n": 0})
    assert has_room(store)
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", Mock(side_effect=OSError(errno.EROFS, "simulated")))
        store.close()
    with Store(tmp_path / "store") as store:
        assert store.xlen("s") == 1


def test_what_another_process_has_just_reserved_is_not_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(context: EngineContext) -> None:
        killed(lambda: Store(path, sync="none").xadd("s", {"n": 1}))
        begin.release_room(context)

    with opened(path) as store:
        store.xadd("s", {"n": 0})
        checkpoint_now(store)
        monkeypatch.setattr(checkpoint, "release_room", late)
        release_room(store)
        assert has_room(store)


@pytest.mark.parametrize("shown", ["", "for a moment", "while another process deletes"])
def test_a_full_store_from_whose_nodes_much_was_deleted_has_room(path: Path, shown: str) -> None:
    """Each node is written anew, which is more than the file may take beyond the limit."""
    with Store(path, sync="none", max_store_bytes=4 << 20) as store:
        ids = []
        with pytest.raises(StoreFullError):
            while True:
                ids += store.xadd_many("s", [{"f": os.urandom(100).hex()} for _ in range(50)])

        def delete(some: range) -> None:
            with Store(path, sync="none", max_store_bytes=4 << 20) as one:
                for first in some:
                    one.xdel("s", *ids[first::20])

        with store.snapshot() if shown else nullcontext():
            (in_child if shown.startswith("while") else call)(partial(delete, range(3)))
            assert store.xlen("s") < len(ids)
        delete(range(3, 15))
        store.xadd("s", {"f": "v"})
        assert store.used_bytes < 16 << 20  # four times what it holds


def test_transactions_in_a_store_that_is_half_full_find_room(path: Path) -> None:
    """A checkpoint makes it, which a transaction that has begun cannot wait for."""
    with Store(path, sync="none", max_store_bytes=16 << 20) as store:
        checkpointer_of(store).stop()
        for _ in range(100):
            with store.transaction() as transaction:
                transaction.xadd_many("s", [{"f": "x" * 5000}] * 50)
            store.xtrim("s", maxlen=600, approximate=False)


def test_a_store_is_closed_although_another_process_has_made_it_bigger_than_its_map(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAPS", (1 << 20,))
    Store(path).close()

    def write() -> None:
        with Store(path, sync="none") as other:
            other.xadd("s", {"f": bytes(4 << 20)})

    with Store(path) as store:
        in_child(write)
        assert (path / "data.mdb").stat().st_size > store.map_size_bytes


def test_a_data_file_that_grows_makes_a_checkpoint_due(tmp_path: Path) -> None:
    """Each flush of entries for many streams writes many pages, which are free only afterwards."""
    with Store(tmp_path / "s", sync="none") as store:
        checkpointer_of(store).stop()
        context = context_of(store)
        checkpoint_now(store)
        before = context.size()
        context.watched = True  # the thread is stopped
        number = 0
        while context.keeps_up():
            number += 1
            store.xadd(f"s{number * 7919 % 5000}", {"f": "v" * 100})
        assert before + (4 << 20) < context.size() < before + (12 << 20)
        checkpoint_now(store)
        context.bytes_since_checkpoint = 0  # as the thread does
        store.xadd("s", {"f": "v"})
        checkpoint_now(store)
        assert context.keeps_up()


def test_memory_is_cleared_after_an_erasure_for_which_a_writer_waited(path: Path) -> None:
    ready, go = os.pipe(), os.pipe()

    def work() -> None:
        with streamkeep.open(path, sync="none") as own, own.transaction() as txn:
            os.write(ready[1], b"y")
            os.read(go[0], 1)
            journal_of(own).begin_clean_file()  # as an erasure does
            txn.xadd("s", {"n": "of the other one"})

    clear: list[bool] = []
    with Store(path, sync="none") as store:
        context_of(store).memtable.most_commits = 2
        store.xadd("s", {"n": "first"})
        child = child_of(work)
        os.read(ready[0], 1)
        writer = thread_of(lambda: [store.xadd("s", {"n": 1}) for _ in range(20)])
        wait_until(lambda: lock_is_awaited(journal_of(store).control))
        failpoints.watch(lambda name: clear.append(is_clear(store) or name != "flush:ending"))
        os.write(go[1], b"y")
        writer.join()
        assert os.waitpid(child, 0)[1] == 0
        failpoints.disarm()
        assert clear
        assert all(clear)
        assert store.xlen("s") == 22


def test_memory_is_cleared_before_the_commits_of_a_dead_process_are_flushed(path: Path) -> None:
    def work() -> None:
        own = opened(path)
        context_of(own).memtable.most_commits = 1000
        for number in range(COUNT):
            own.xadd("s", {"n": number})
        journal_of(own).control.count_erasure()

    clear: list[bool] = []
    with opened(path) as store:
        killed(work)
        failpoints.arm("flush:ending", lambda: clear.append(is_clear(store)))
        assert numbers(store) == expected(COUNT)
        store.xadd("s", {"n": COUNT})
        assert clear == [True]
        assert numbers(store) == expected(COUNT + 1)


def test_a_flush_is_remembered_for_erasures(tmp_path: Path) -> None:
    """Its pages stay in LMDB's memory, which an erasure clears."""
    with Store(tmp_path / "store", sync="none") as store:
        before = kept_pages(context_of(store))
        for number in range(900):
            store.row_put(b"space", b"%d" % number, b"value")
        checkpoint_now(store)
        assert kept_pages(context_of(store)) > before
