"""Files of the journal are written before they are used, while no caller waits for them."""

from __future__ import annotations

import errno
import itertools
import os
import random
import select
from pathlib import Path
from unittest.mock import Mock

import pytest

from crash.losses import small_journal
from crash.power import another_boot, watched
from inside import checkpoint_now, context_of, journal_of, lock_is_awaited
from patience import wait_until
from stopped import child_of
from stores import Open
from streamkeep import Store, StoreError, StoreFullError
from streamkeep.engine.journal import reader
from streamkeep.engine.journal.journal import RECYCLED
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, Reader, file_name, journal_names
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.safe_files import Folder


def test_blocks_are_written_ahead_of_records_for_which_callers_wait(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one sync in 20 also writes the map of the file's blocks."""
    filled: list[tuple[int, int]] = []
    write = files.write_zeros

    def watch(handle: int, start: int, size: int, most: int) -> None:
        assert os.pread(handle, size, start) == bytes(size)
        write(handle, start, size, most)
        assert os.fstat(handle).st_size == before
        filled.append((start, start + size))

    monkeypatch.setattr(files, "write_zeros", watch)
    store = open_store(sync="none")
    journal = journal_of(store)
    for _ in range(100):
        store.xadd("s", {"f": os.urandom(1000)})
    assert filled == []  # no caller waits for a sync
    begin = journal.log.offset
    before = (store.path / JOURNAL_FOLDER / file_name(journal.log.number)).stat().st_size
    for _ in range(300):
        store.using("commit").xadd("s", {"f": os.urandom(1000)})
    end = journal.log.offset
    assert filled[0][0] <= begin + (2 << 12)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(filled))
    assert sum(stop - start for start, stop in filled) >= end - begin - (1 << 16)
    assert len(filled) < 20


def test_a_retired_file_is_what_a_full_disk_has_for_deletions(open_store: Open) -> None:
    store = open_store(sync="none")
    journal = journal_of(store)
    store.xadd("s", {"f": "v"})
    assert journal.drop_recycled()  # the first file has brought it
    while journal.log.number < 3:
        store.xadd("s", {"f": os.urandom(1 << 18)})
    assert not journal.drop_recycled()
    checkpoint_now(store)
    assert journal.drop_recycled()


def test_a_record_larger_than_a_file_leaves_the_recycled_one_as_it_is(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_journal():
        store = open_store(sync="none")
        journal = journal_of(store)
        for size in (98_304, 1, 31_000, 31_000):
            store.xadd("s", {"f": bytes(size)})
        checkpoint_now(store)
        assert journal.folder.size(RECYCLED) == journal.file_size
        with monkeypatch.context() as patch:
            patch.setattr(files, "reserve", Mock(side_effect=OSError(errno.ENOSPC, "no room")))
            with pytest.raises(StoreFullError):
                store.xadd("s", {"f": bytes(3 * journal.file_size)})
        assert journal.folder.size(RECYCLED) == journal.file_size


def test_a_store_of_few_commits_keeps_small_journal_files(tmp_path: Path) -> None:
    """The size of the next file doubles: 6.5 MiB of commits leave one of 4 MiB."""
    with Store(tmp_path / "s", sync="none") as store:
        for _ in range(104):
            store.xadd("s", {"f": os.urandom(1 << 16)})
    sizes = [one.stat().st_size for one in (tmp_path / "s" / JOURNAL_FOLDER).iterdir()]
    assert 3 << 20 < sum(sizes) < 7 << 20


def test_a_copy_with_holes_gets_the_blocks_that_it_lacks(path: Path) -> None:
    """As `rsync --sparse` makes it: a write to a hole through a map ends a process, if the disk is
    full."""
    with Store(path) as store:
        store.xadd("s", {"f": "v"})
    mapped = [*path.glob("journal/*.skj"), path / "waiters" / "board", path / "lock.mdb"]
    for one in mapped:
        data = one.read_bytes()
        one.write_bytes(data.rstrip(b"\0"))
        os.truncate(one, len(data))
        assert one.stat().st_blocks * 512 < len(data)
    with Store(path):
        assert all(one.stat().st_blocks * 512 >= one.stat().st_size for one in mapped)


def test_files_of_the_next_epoch_are_read(open_store: Open) -> None:
    store = open_store(sync="none")
    journal = journal_of(store)
    journal.raise_epoch()  # as a standby does that goes back
    store.xadd("s", {"f": "v"})
    start = journal.log.start_of(file_name(journal.log.number))
    assert start is not None
    assert start.commit_number == journal.control.newest() - 1


def test_a_file_that_was_begun_again_is_the_one_that_is_synced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync of the former file of that name would lose what the new one holds."""
    store.xadd("s", {"f": "v"})
    journal = journal_of(store)
    failpoints.arm(
        "commit:journaled", Mock(side_effect=OSError("the commit fails after its record"))
    )
    with pytest.raises(OSError, match="after its record"):
        store.xadd("s", {"f": bytes(journal.first_size)})  # more than fits: it begins file 2
    failpoints.disarm()
    path = store.path / JOURNAL_FOLDER / file_name(2)
    former = path.stat().st_ino
    journal.control.set_durable(1, 0, 0)  # as if a sync for the first commit were still to come
    journal.syncs.wait_for(1)
    synced: list[int] = []
    sync_data = files.sync_data

    def watch(handle: int) -> None:
        sync_data(handle)
        synced.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(files, "sync_data", watch)
    context_of(store).start_over()  # as another process, which knows nothing of file 2
    store.xadd("s", {"f": "v"})
    assert path.stat().st_ino != former
    assert synced[-1] == path.stat().st_ino


def test_the_name_of_a_file_that_was_begun_again_is_on_disk(path: Path, tmp_path: Path) -> None:
    """The folder was synced for the first file of that name, whose commit failed afterwards."""
    with small_journal(), watched(path) as disk, Store(path, sync="none") as store:
        store.xadd("s", {"n": 1})
        journal, first = journal_of(store), store.durability().last_commit

        def sync_and_fail() -> None:
            assert journal.control.durable() < first
            journal.syncs.wait_for(first)  # as a thread that waits for it does
            raise OSError("the commit fails after its record")

        failpoints.arm("commit:journaled", sync_and_fail)
        with pytest.raises(OSError, match="after its record"):
            store.xadd("s", {"n": 2, "pad": bytes(journal.first_size)})  # it begins file 2
        store.using("commit").xadd("s", {"n": 3})
        assert journal.log.number == 2
        for seed in range(8):
            disk.lose_power(tmp_path / f"lost-{seed}", random.Random(seed))
    for seed in range(8):
        with another_boot(seed + 1), Store(tmp_path / f"lost-{seed}") as found:
            assert [entry.fields[b"n"] for entry in found.xrange("s")] == [b"1", b"3"]


def test_a_failed_commit_takes_nothing_back_that_others_have_committed(open_store: Open) -> None:
    """Its record is cut off under the lock, so no other process has written one in its place."""
    store = open_store(sync="none")
    store.xadd("s", {"n": "first"})
    ready, go, done = os.pipe(), os.pipe(), os.pipe()

    def work() -> None:
        with Store(store.path) as other:  # what it commits is on disk
            os.write(ready[1], b"y")
            os.read(go[0], 1)
            for number in range(5):
                other.xadd("s", {"n": number})
            os.write(done[1], b"y")

    child = child_of(work)
    os.read(ready[0], 1)
    control = journal_of(store).control

    def committed() -> bool:
        return bool(select.select([done[0]], [], [], 0)[0])

    early: list[bool] = []

    def watcher(name: str) -> None:
        if name == "commit:journaled":
            raise OSError("the commit fails after its record")
        if name == "commit:failed":
            failpoints.unwatch(watcher)
            os.write(go[1], b"y")
            wait_until(lambda: lock_is_awaited(control) or committed())
            early.append(committed())

    failpoints.watch(watcher)
    with pytest.raises(OSError, match="after its record"):
        store.xadd("s", {"n": "failed", "pad": bytes(200_000)})
    assert os.waitpid(child, 0)[1] == 0
    assert early == [False]
    found = [b"first", b"0", b"1", b"2", b"3", b"4"]
    assert [entry.fields[b"n"] for entry in store.xrange("s")] == found
    context_of(store).start_over()  # as another process, which reads the journal
    assert [entry.fields[b"n"] for entry in store.xrange("s")] == found


def test_a_commit_that_was_published_is_made_although_an_interrupt_came(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(sync="none")
    for number in range(3):
        store.xadd("s", {"n": number})
    journal_of(store).control._file._writes = True  # as where an overwritten block may move
    write_at = files.write_at

    def write_and_interrupt(handle: int, data: bytes, offset: int) -> None:
        write_at(handle, data, offset)
        monkeypatch.undo()
        raise KeyboardInterrupt

    failpoints.arm(
        "commit:journaled", lambda: monkeypatch.setattr(files, "write_at", write_and_interrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        store.xadd("s", {"n": 3})
    store.xadd("s", {"n": 4})
    assert [entry.fields[b"n"] for entry in store.xrange("s")] == [b"%d" % n for n in range(5)]


def test_a_file_that_is_retired_while_names_are_read_is_passed_over(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(sync="none")
    store.xadd("s", {"n": 0})
    journal = journal_of(store)
    behind = Reader(journal.folder, journal.log.owner)
    behind.go_to(*journal.log.position)
    store.xadd("s", {"pad": bytes(journal.first_size)})  # more than fits: it begins file 2
    names = journal_names(journal.folder)
    monkeypatch.setattr(reader, "journal_names", lambda folder: [file_name(1), *names])
    behind.number = 0  # its file is gone
    os.remove(store.path / JOURNAL_FOLDER / file_name(1))
    assert behind.next() is not None
    assert behind.position == journal.log.position


def test_a_file_that_two_processes_have_begun_in_vain_is_begun_once_more(open_store: Open) -> None:
    """The first one would go on in its file, which has the header of the second one."""
    with small_journal():
        store = open_store(sync="none")
    store.xadd("s", {"n": 0})
    journal = journal_of(store)
    pad = bytes(journal.first_size)  # more than fits, and no flush is due
    big: dict[str, int | bytes] = {"n": 1, "pad": pad}

    def fail_once(one: Store) -> None:
        failpoints.arm(
            "commit:journaled", Mock(side_effect=OSError("the commit fails after its record"))
        )
        with pytest.raises(OSError, match="after its record"):
            one.xadd("s", big)

    def work() -> None:
        with Store(store.path, sync="none") as other:
            fail_once(other)

    fail_once(store)
    assert os.waitpid(child_of(work), 0)[1] == 0
    store.xadd("s", big)
    store.xadd("s", {"n": 2})
    context_of(store).start_over()  # as another process, which reads the journal
    assert [entry.fields[b"n"] for entry in store.xrange("s")] == [b"0", b"1", b"2"]


def test_without_a_descriptor_no_file_is_begun_and_the_store_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Folder.names

    def fails(folder: Folder) -> list[str]:
        if folder.path.name == "journal":
            raise OSError(errno.EMFILE, "simulated")
        return names(folder)

    with monkeypatch.context() as broken:
        broken.setattr(Folder, "names", fails)
        with pytest.raises(StoreError, match="as many files open as it may"):
            store.xadd("s", {"n": 0})
    store.xadd("s", {"n": 1})
    assert store.xlen("s") == 1
