"""A commit is made once and for all threads and processes, whatever happens at its end."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import lmdb
import pytest

import inside
import streamkeep
from patience import PATIENCE_S, thread_of, wait_until
from stopped import child_of, killed
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreClosedError, StoreError, StoreFullError

COUNT = 20
PROGRAM = """
import sys
import streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
for number in range(20):
    store.xadd("s", {"n": number})
"""


def filled(path: Path) -> Store[bytes]:
    """Open a store and add entries, which the memtable has."""
    store = Store(path, sync="none")
    for number in range(COUNT):
        store.xadd("s", {"n": number})
    return store


def numbers(store: Store[Any]) -> list[bytes]:
    return [entry.fields[b"n"] for entry in store.xrange("s")]


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def assert_right(path: Path, count: int) -> None:
    with streamkeep.open(path) as store:
        assert numbers(store) == expected(count)
    assert list(recovery.check(path)) == []


@pytest.mark.parametrize("place", ["commit:journaled", "commit:published"])
def test_a_reader_that_comes_in_the_middle_of_a_commit_changes_nothing(
    path: Path, place: str
) -> None:
    readers: list[threading.Thread] = []
    seen: list[int] = []
    with filled(path) as store:

        def read() -> None:
            reader = thread_of(lambda: seen.append(store.xlen("s")))
            reader.join(0.05)
            readers.append(reader)

        before = store.durability().last_commit
        for number in range(COUNT, COUNT + 3):
            failpoints.arm(place, read)
            store.xadd("s", {"n": number})
        failpoints.disarm()
        for reader in readers:
            reader.join(PATIENCE_S)
        assert len(seen) == len(readers) == 3
        assert store.durability().last_commit == before + 3
        assert numbers(store) == expected(COUNT + 3)
        store.sync()
    assert_right(path, COUNT + 3)


def over_image(store: Store[Any], act: Callable[[], object], *, late: bool = False) -> None:
    """Have something happen when the next view asks LMDB for a row.

    Args:
        late: instead, it happens when LMDB has noted the number of the view's image, and not yet
            taken its rows.
    """
    context = inside.context_of(store)
    inside.checkpointer_of(store).stop()
    assert context.write_lock is not None
    context.write_lock.release_idle()
    raw = context.raw

    def now() -> None:
        if context.raw is not raw:
            context.raw = raw
            act()

    class Image:
        def __init__(self, *options: Any) -> None:
            self.number = context.image
            if late:
                now()
            self.txn = raw.begin(*options)

        def id(self) -> int:
            return self.number if late else self.txn.id()

        def get(self, *row: Any) -> Any:
            if len(row) == 3:
                now()
            return self.txn.get(*row)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.txn, name)

    context.raw = cast("lmdb.Environment", SimpleNamespace(begin=Image))


def one_more(path: Path) -> Store[bytes]:
    """Return a store that lacks an entry, which is in the journal."""
    store = filled(path)
    inside.flush_now(store)  # the record extends a row that only LMDB has
    killed(lambda: Store(path, sync="none").xadd("s", {"n": COUNT}))
    return store


def test_a_writer_waits_until_a_record_of_another_process_is_applied(tmp_path: Path) -> None:
    """Otherwise it would go on with the rows, or the decoded stream, from before that record."""
    writer = threading.Thread(target=lambda: store.xadd("s", {"n": COUNT + 1}))

    def write() -> None:
        writer.start()
        writer.join(0.05)

    with one_more(tmp_path / "store") as store:
        over_image(store, write)
        assert store.xlen("s") == COUNT + 1
        writer.join(PATIENCE_S)
        assert numbers(store) == expected(COUNT + 2)
    assert_right(tmp_path / "store", COUNT + 2)


def test_rows_of_lmdb_that_are_newer_than_their_number_are_noticed(path: Path) -> None:
    def write() -> None:
        own = Store(path, sync="none")
        inside.flush_each_commit(own)
        for _ in range(2):
            with own.transaction() as both:
                both.xadd("s", {"n": 0})
                both.xadd("t", {"n": 0})

    with filled(path) as store:
        store.xadd("t", {"n": 0})
        inside.flush_now(store)
        store.xadd("s", {"n": 0})  # `t` is in LMDB only
        over_image(store, lambda: killed(write), late=True)
        with store.snapshot() as snapshot:
            assert snapshot.xlen("s") == snapshot.xlen("t") + COUNT
        store.xadd("s", {"n": 0})
        assert store.xlen("s") == COUNT + 4


def test_a_record_that_was_applied_in_part_is_applied_again(tmp_path: Path) -> None:
    with one_more(tmp_path / "store") as store:
        over_image(store, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.xlen("s")
        store.xadd("s", {"n": COUNT + 1})
        assert numbers(store) == expected(COUNT + 2)
    assert_right(tmp_path / "store", COUNT + 2)


class Interrupted(dict[int, Any]):
    """A write set that comes to an interrupt where its end is expected."""

    def items(self) -> Any:
        yield from super().items()
        raise KeyboardInterrupt


def test_a_record_whose_rows_are_in_memory_already_is_not_applied_to_them(path: Path) -> None:
    """It extends a row, and would do so twice."""
    with filled(path) as store:
        with pytest.raises(KeyboardInterrupt), store.transaction() as txn:
            txn.xadd("s", {"n": COUNT})
            txn._txn.changes = Interrupted(txn._txn.changes)
        assert numbers(store) == expected(COUNT + 1)
        store.xadd("s", {"n": COUNT + 1})
        assert numbers(store) == expected(COUNT + 2)
    assert_right(path, COUNT + 2)


@contextmanager
def unpublishable(store: Store[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the disk refuse the number of the newest commit, as where blocks move."""
    control = inside.journal_of(store).control
    write_at = files.write_at

    def refuse(handle: int, data: bytes, offset: int) -> None:
        if (handle, offset) == (control.handle, 8):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_at(handle, data, offset)

    control._file._writes = True
    with monkeypatch.context() as full:
        full.setattr(files, "write_at", refuse)
        yield


def test_a_commit_that_cannot_be_published_is_not_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the newest commit can only be refused where blocks move."""
    with filled(path) as store:
        with unpublishable(store, monkeypatch), pytest.raises(StoreFullError):
            store.xadd("s", {"n": COUNT})
        assert numbers(store) == expected(COUNT)
        store.xadd("s", {"n": COUNT})
        assert numbers(store) == expected(COUNT + 1)
    assert_right(path, COUNT + 1)


def test_a_process_without_descriptors_reads_and_writes_later_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = Mock(side_effect=OSError(errno.EMFILE, "no descriptor"))
    with one_more(tmp_path / "store") as store:
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "open", refuse)
            with pytest.raises(StoreError, match="as many files open"):
                store.xlen("s")
        failpoints.arm("commit:journaled", refuse)
        with pytest.raises(OSError, match="no descriptor"):
            store.xadd("s", {"n": COUNT + 1})
        with monkeypatch.context() as patch:  # now there is no record that could be cut
            patch.setattr(Folder, "open", refuse)
            with pytest.raises(StoreError, match="as many files open"):
                store.xadd("s", {"n": COUNT + 1})
        store.xadd("s", {"n": COUNT + 1})
    assert_right(tmp_path / "store", COUNT + 2)


def test_a_process_goes_on_where_another_one_has_begun_its_file_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(path) as store:
        journal = inside.journal_of(store)
        with unpublishable(store, monkeypatch), pytest.raises(StoreFullError):
            # More than fits: it begins file 2.
            store.xadd("s", {"n": COUNT, "f": bytes(journal.first_size)})
        killed(lambda: Store(path, sync="none").xadd("s", {"n": COUNT}))
        assert numbers(store) == expected(COUNT + 1)
        store.xadd("s", {"n": COUNT + 1})
    assert_right(path, COUNT + 2)


def flush_in_child(path: Path) -> None:
    """Have another process flush, which is killed then."""

    def flush() -> None:
        own = Store(path, sync="none")
        inside.begin_write(own).abort()  # a process may flush while it has a pin
        inside.flush_now(own)

    killed(flush)


def test_a_commit_after_the_flush_of_another_process_is_not_in_its_image(path: Path) -> None:
    with filled(path) as store:
        flush_in_child(path)
        store.xadd("s", {"n": COUNT})
        assert numbers(store) == expected(COUNT + 1)
    assert_right(path, COUNT + 1)


def test_what_another_process_has_flushed_is_not_flushed_again(tmp_path: Path) -> None:
    """A reader notices rows of LMDB that are newer than their number by the commits in between."""
    with filled(tmp_path / "store") as store:
        inside.checkpointer_of(store).stop()
        flush_in_child(tmp_path / "store")
        flushed = inside.context_of(store).raw.info()["last_txnid"]
        inside.flush_each_commit(store)
        inside.begin_write(store).abort()
        assert inside.context_of(store).memtable.commits == 0
        assert inside.context_of(store).raw.info()["last_txnid"] == flushed


def test_a_group_that_another_process_has_changed_is_decoded_again(path: Path) -> None:
    with filled(path) as store:

        def deliver(one: Store[Any]) -> list[bytes]:
            [(_, entries)] = one.xreadgroup("g", "c", {"s": ">"}, count=2)
            one.xack("s", "g", entries[0].id)
            return [entry.fields[b"n"] for entry in entries]

        store.xgroup_create("s", "g", "0")
        assert deliver(store) == [b"0", b"1"]
        killed(lambda: deliver(Store(path, sync="none")))
        assert deliver(store) == [b"4", b"5"]
        assert store.xpending("s", "g")["pending"] == 3
    assert_right(path, COUNT)


def test_a_fork_leaves_the_memtable_and_a_transaction_to_the_parent(path: Path) -> None:
    with filled(path) as store:

        def refused(call: Callable[[], object]) -> None:
            with pytest.raises(StoreClosedError, match="forked"):
                call()

        with store.transaction() as txn:
            txn.xadd("s", {"n": COUNT})

            def work() -> None:
                refused(lambda: store.xadd("s", {"n": 0}))
                refused(lambda: store.xlen("s"))
                with Store(path) as own:
                    assert numbers(own) == expected(COUNT)

            assert os.waitpid(child_of(work), 0)[1] == 0
        store.xadd("s", {"n": COUNT + 1})
        assert numbers(store) == expected(COUNT + 2)
    assert_right(path, COUNT + 2)


def test_the_end_of_the_interpreter_flushes(path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(path)], check=True)
    with streamkeep.open(path, readonly=True) as store:
        assert numbers(store) == expected(COUNT)


def test_an_idle_store_is_flushed_and_gives_its_pin_up(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store:
        context = inside.context_of(store)
        wait_until(lambda: context.pin is None)
        assert context.memtable.commits == 0
        assert numbers(store) == expected(COUNT)


def test_an_idle_process_gives_its_pin_up_although_another_one_goes_on(path: Path) -> None:
    """With a slow disk, there is always a commit between its checkpoint and its look."""
    with filled(path) as store:
        checkpoints = inside.environment_of(store).checkpoints
        assert checkpoints is not None
        assert not checkpoints.unpin_if_idle()
        inside.checkpoint_now(store)
        killed(lambda: Store(path, sync="none").xadd("s", {"n": COUNT}))
        assert numbers(store) == expected(COUNT + 1)
        assert checkpoints.unpin_if_idle()
