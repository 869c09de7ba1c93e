"""Rows of the manifest in a store, and the files that they name."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from inside import begin_write, environment_of
from patience import PATIENCE_S, handles_below
from segments import TOP, entries_of, some, write_file
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import garbage
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.archive.segment_output import segment_output
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables import manifest
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, SegmentFiles, open_segment
from streamkeep.engine.txn.txn import NEXT_GARBAGE, WriteTxn
from streamkeep.format.core import errors
from streamkeep.format.core.keys import GARBAGE, pack_number
from streamkeep.format.rows.records import encode_file_garbage
from streamkeep.format.segment.manifest import SegmentRecord


def row(first: int, last: int, number: int = 7) -> SegmentRecord:
    return SegmentRecord(
        number, first, 0, last, 5, 1, 1, 1, 1, 1, 0, 1, 0, 1, 0, f"{number}-k/{first}.seg", b"k"
    )


@pytest.fixture
def txn(store: Store) -> WriteTxn:
    """A write transaction that is never committed."""
    return begin_write(store)


def test_rows_are_found_by_id(txn: WriteTxn) -> None:
    rows = [manifest.put_segment(txn, one) for one in (row(10, 20), row(30, 30), row(50, TOP))]
    other = manifest.put_segment(txn, row(1, TOP, number=8))
    assert [one.sequence for one in (*rows, other)] == [1, 2, 3, 4]
    assert list(manifest.iter_segments(txn, 7)) == rows
    assert list(manifest.iter_segments(txn)) == [*rows, other]
    find = [manifest.find_segment(txn, 7, ms, 0) for ms in (9, 10, 15, 29, 30, 49, 50, TOP)]
    a, b, c = rows
    assert find == [None, a, a, a, b, b, c, c]
    assert manifest.find_segment(txn, 6, TOP, 0) is None
    assert manifest.find_segment(txn, 9, TOP, 0) is None
    assert manifest.find_segment(txn, 8, TOP, 0) == other

    def touched(first: int, last: int) -> list[SegmentRecord]:
        return list(manifest.overlapping(txn, 7, (first, 0), (last, 0)))

    assert touched(0, TOP) == rows
    assert touched(15, 30) == [a, b]
    assert touched(21, 29) == []
    assert touched(20, 29) == [a]
    assert touched(10, 10) == [a]
    assert touched(60, 70) == [c]
    assert touched(0, 9) == []
    txn.abort()


@pytest.mark.parametrize(("first", "last"), [(10, 20), (5, 10), (20, 25), (12, 13), (0, TOP)])
def test_segments_of_a_stream_never_overlap(txn: WriteTxn, first: int, last: int) -> None:
    manifest.put_segment(txn, row(10, 20))
    with pytest.raises(errors.CorruptionError, match="overlaps segment 7-k"):
        manifest.put_segment(txn, row(first, last))
    manifest.put_segment(txn, row(first, last, number=8))
    txn.abort()


def test_a_change_of_the_manifest_is_seen_by_its_sequence(txn: WriteTxn) -> None:
    one = manifest.put_segment(txn, row(10, 20))
    assert one.sequence == 1
    assert manifest.is_named(txn, one)
    manifest.delete_segment(txn, one)
    assert not manifest.is_named(txn, one)
    again = manifest.put_segment(txn, one._replace(path="7-k/again.seg"))
    assert again.sequence == 3
    assert not manifest.is_named(txn, one)
    assert [manifest.take_file_number(txn) for _ in range(2)] == [1, 2]
    txn.abort()


def test_erasures_are_found_by_range_and_keep_their_first_time(txn: WriteTxn) -> None:
    for number, ms in ((7, 5), (7, 6), (7, TOP), (8, 5), (7, 5)):
        manifest.put_erasure(txn, number, ms, 1)
    assert manifest.erased_ids(txn, 7, (0, 0), (TOP, TOP)) == {(5, 1), (6, 1), (TOP, 1)}
    assert manifest.erased_ids(txn, 7, (5, 2), (6, 1)) == {(6, 1)}
    assert list(manifest.iter_erasures(txn, 8, (0, 0), (9, 0))) == [((5, 1), txn.now_ms())]
    txn.abort()


def test_files_are_opened_by_their_row_and_kept_open(tmp_path: Path) -> None:
    folder = tmp_path / ARCHIVE_FOLDER
    rows = [write_file(folder, some(60, 1000 * n), file_number=n) for n in range(1, 6)]
    found = SegmentFiles(Folder(tmp_path), most_open=2)
    before = len(handles_below(tmp_path))
    for number, one in enumerate(rows, start=1):
        assert entries_of(found.open(one)) == some(60, 1000 * number)
    assert found.open(rows[4]) is found.open(rows[4])
    assert len(handles_below(tmp_path)) == before + 2
    held = found.open(rows[3])
    found.forget(rows[3].path)
    found.close()
    os.unlink(found.path(rows[3]))
    assert entries_of(held) == some(60, 4000)  # who reads it reads on
    del held
    assert len(handles_below(tmp_path)) == before
    with pytest.raises(errors.MissingSegmentError, match="the file is not there"):
        found.open(rows[3])


def test_files_that_are_not_what_their_row_means_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / ARCHIVE_FOLDER
    one, two = (write_file(folder, some(60, 1000 * n), file_number=n) for n in (1, 2))
    found = SegmentFiles(Folder(tmp_path))
    os.replace(found.path(one), found.path(two))
    with pytest.raises(errors.CorruptionError, match="holds another segment"):
        found.open(two)
    found.path(two).write_bytes(b"")
    with pytest.raises(errors.CorruptionError, match="0 bytes, expected at least"):
        found.open(two)
    found.path(one).mkdir()
    with pytest.raises(errors.UntrustedFileError, match="a folder, but a store has a regular file"):
        found.open(one)


def test_a_file_that_shrinks_while_it_is_read_is_reported(tmp_path: Path) -> None:
    record = write_file(tmp_path, some(200))
    segment = open_segment(tmp_path / record.path)
    os.truncate(tmp_path / record.path, 100)
    with pytest.raises(errors.CorruptionError, match=r"bytes, expected"):
        segment.block(1)


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    folder, name = Folder(tmp_path), "7-k/1.seg"
    path = tmp_path / name
    with segment_output(folder, name) as output:
        output.write(b"some")
        output.write(b"thing")
        assert not path.exists()
    assert path.read_bytes() == b"something"
    assert list(path.parent.iterdir()) == [path]
    with (
        pytest.raises(errors.StoreError, match="never replaces a file"),
        segment_output(folder, name) as output,
    ):
        output.write(b"another")
    with pytest.raises(KeyError), segment_output(folder, "7-k/2.seg") as output:
        raise KeyError
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == b"something"


def test_a_full_disk_leaves_nothing_of_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        files, "sync_data", Mock(side_effect=OSError(errno.ENOSPC, "no space left"))
    )
    path = tmp_path / "7-k" / "1.seg"
    with (
        pytest.raises(errors.StoreFullError),
        segment_output(Folder(tmp_path), "7-k/1.seg") as output,
    ):
        output.write(b"something")
    assert list(path.parent.iterdir()) == []


def garbage_of(store: Store) -> list[str]:
    with store.snapshot() as snapshot:
        return [path for _, path in garbage.doomed_files(snapshot.txn)]


def leave(store: Store, *paths: str) -> None:
    """Commit rows of garbage, and make the files."""
    with store.transaction() as transaction:
        for path in paths:
            transaction._txn.put_row(
                GARBAGE,
                pack_number(transaction._txn.take_number(NEXT_GARBAGE)),
                encode_file_garbage(path),
            )
    for path in paths:
        place = store.path / ARCHIVE_FOLDER / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"x")


def test_files_that_are_garbage_go_when_the_store_is_opened(open_store: Open) -> None:
    store = open_store()
    leave(store, "7-k/1.seg", "7-k/2.seg", "8-k/1.seg")
    other = store.path / ARCHIVE_FOLDER / "7-k/3.seg"
    other.write_bytes(b"x")
    os.unlink(store.path / ARCHIVE_FOLDER / "7-k/2.seg")  # killed before the rows went
    assert len(garbage_of(store)) == 3
    store.close()
    store = open_store()
    assert garbage_of(store) == []
    assert [path.name for path in (store.path / ARCHIVE_FOLDER).glob("*/*")] == ["3.seg"]
    other.unlink()  # or fsck would wonder whose it is


@pytest.mark.parametrize("name", ["garbage:synced", "garbage:removed"])
def test_removal_that_was_interrupted_is_done_again(open_store: Open, name: str) -> None:
    store = open_store()
    leave(store, "7-k/1.seg")
    failpoints.arm(name, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        garbage.remove_files(environment_of(store))
    assert garbage_of(store) == ["7-k/1.seg"]
    store.close()
    store = open_store()
    assert garbage_of(store) == []
    assert not (store.path / ARCHIVE_FOLDER / "7-k/1.seg").exists()


def test_a_removal_that_may_not_be_on_disk_is_tried_again(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(store, "7-k/1.seg", "8-k/2.seg")
    sync_folder = files.sync_folder

    def fails(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("7-k"):
            raise OSError(errno.EIO, "simulated")
        sync_folder(handle)

    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_folder", fails)
        garbage.remove_files(environment_of(store))
    assert "cannot sync" in caplog.text
    assert garbage_of(store) == ["7-k/1.seg"]
    garbage.remove_files(environment_of(store))
    assert garbage_of(store) == []


def test_a_file_that_cannot_be_removed_is_named_and_tried_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    leave(store, "7-k/1.seg", "7-k/2.seg")
    stubborn = store.path / ARCHIVE_FOLDER / "7-k/1.seg"
    stubborn.unlink()
    (stubborn / "inside").mkdir(parents=True)
    garbage.remove_files(environment_of(store))
    assert "cannot remove" in caplog.text
    assert garbage_of(store) == ["7-k/1.seg"]
    (stubborn / "inside").rmdir()
    stubborn.rmdir()
    garbage.remove_files(environment_of(store))
    assert garbage_of(store) == []


def test_the_archive_is_locked_between_threads_and_processes(store: Store, tmp_path: Path) -> None:
    environment = environment_of(store)
    with ArchiveLock(environment):
        with pytest.raises(errors.StoreLockedError), ArchiveLock(environment, wait=False):
            pass
        child = (
            "import fcntl, sys\n"
            "with open(sys.argv[1]) as file:\n"
            "    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        )
        lock = store.path / ARCHIVE_FOLDER / "lock"
        command = [sys.executable, "-c", child, str(lock)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert "BlockingIOError" in done.stderr
    with lock.open() as file:  # held by another process, as far as flock can tell
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(errors.StoreLockedError), ArchiveLock(environment, wait=False):
            pass
    with ArchiveLock(environment, wait=False):
        pass
