"""Rows of the manifest in a store, and the files that they name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from segments import TOP, entries_of, some, write_file
from streamkeep.engine import manifest
from streamkeep.engine.api import Store
from streamkeep.engine.segment_files import SegmentFiles, open_segment
from streamkeep.engine.txn import WriteTxn
from streamkeep.format.errors import CorruptionError, MissingSegmentError
from streamkeep.format.manifest import SegmentRecord


def row(first: int, last: int, number: int = 7) -> SegmentRecord:
    return SegmentRecord(
        number, first, 0, last, 5, 1, 1, 1, 1, 1, 0, 1, 0, 1, 0, f"{number}-k/{first}.seg", b"k"
    )


@pytest.fixture
def txn(store: Store) -> WriteTxn:
    """A write transaction that is never committed."""
    return store._environment.begin_write()


def test_rows_are_found_by_id(txn: WriteTxn) -> None:
    rows = [manifest.put_segment(txn, one) for one in (row(10, 20), row(30, 30), row(50, TOP))]
    other = manifest.put_segment(txn, row(1, TOP, number=8))
    assert [one.sequence for one in (*rows, other)] == [1, 2, 3, 4]
    assert list(manifest.iter_segments(txn, 7)) == rows
    assert list(manifest.iter_segments(txn)) == [*rows, other]
    assert list(manifest.archived_streams(txn)) == [7, 8]
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
    with pytest.raises(CorruptionError, match="overlaps segment 7-k"):
        manifest.put_segment(txn, row(first, last))
    manifest.put_segment(txn, row(first, last, number=8))
    txn.abort()


def test_a_change_of_the_manifest_is_seen_by_its_sequence(txn: WriteTxn) -> None:
    assert manifest.sequence(txn) == 0
    one = manifest.put_segment(txn, row(10, 20))
    assert manifest.sequence(txn) == 1
    assert manifest.is_named(txn, one)
    manifest.delete_segment(txn, one)
    assert manifest.sequence(txn) == 2
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
    rows = [write_file(tmp_path, some(60, 1000 * n), file_number=n) for n in range(1, 6)]
    found = SegmentFiles(tmp_path, most_open=2)
    before = len(os.listdir("/proc/self/fd"))
    for number, one in enumerate(rows, start=1):
        assert entries_of(found.open(one)) == some(60, 1000 * number)
    assert found.open(rows[4]) is found.open(rows[4])
    assert len(os.listdir("/proc/self/fd")) == before + 2
    held = found.open(rows[3])
    found.forget(rows[3].path)
    found.close()
    os.unlink(found.path(rows[3]))
    assert entries_of(held) == some(60, 4000)  # who reads it reads on
    del held
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(MissingSegmentError, match="the file is not there"):
        found.open(rows[3])


def test_files_that_are_not_what_their_row_means_are_reported(tmp_path: Path) -> None:
    one, two = (write_file(tmp_path, some(60, 1000 * n), file_number=n) for n in (1, 2))
    found = SegmentFiles(tmp_path)
    os.replace(found.path(one), found.path(two))
    with pytest.raises(CorruptionError, match="holds another segment"):
        found.open(two)
    found.path(two).write_bytes(b"")
    with pytest.raises(CorruptionError, match="0 bytes are not a segment"):
        found.open(two)
    found.path(one).mkdir()
    with pytest.raises(CorruptionError, match="cannot be read"):
        found.open(one)


def test_a_file_that_shrinks_while_it_is_read_is_reported(tmp_path: Path) -> None:
    record = write_file(tmp_path, some(200))
    segment = open_segment(tmp_path / record.path)
    os.truncate(tmp_path / record.path, 100)
    with pytest.raises(CorruptionError, match=r"bytes, .* expected"):
        segment.block(1)


def test_the_store_names_no_segments(open_store: Callable[..., Store]) -> None:
    store = open_store()
    store.xadd("orders", {"a": 1})
    with store.snapshot() as snapshot:
        assert list(manifest.iter_segments(snapshot.txn)) == []
        assert manifest.sequence(snapshot.txn) == 0
