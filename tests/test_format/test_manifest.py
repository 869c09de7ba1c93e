"""Rows about segments and erasures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments import TOP, nodes_of, opened, some, write
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_NUMBER
from streamkeep.format.rows.records import is_safe_path
from streamkeep.format.segment import manifest
from test_format.made_segments import ids

# --- the manifest -------------------------------------------------------------------------------

u64 = st.integers(0, TOP)
numbers = st.integers(0, LAST_NUMBER)
paths = st.text("abc.%-", min_size=1, max_size=10).filter(lambda text: text not in (".", ".."))
records = st.builds(
    lambda numbers, first, last, epoch, origin, path, key: manifest.SegmentRecord._make(
        (
            numbers[0],
            *min(first, last),
            *max(first, last),
            1 + numbers[1] // 2,
            *numbers[2:9],
            epoch,
            origin,
            path,
            key,
        )
    ),
    st.lists(numbers, min_size=9, max_size=9),
    ids,
    ids,
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 2),
    st.lists(paths, min_size=1, max_size=3).map("/".join),
    st.binary(max_size=80),
)


@given(records)
def test_manifest_rows_come_back(record: manifest.SegmentRecord) -> None:
    body = record.encode()
    assert manifest.decode_segment_record(record.db_key(), body, "row") == record
    for size in range(manifest.SEGMENT_RECORD.size + len(record.path.encode())):
        with pytest.raises(CorruptionError):
            manifest.decode_segment_record(record.db_key(), body[:size], "row")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", "a\0b"])
def test_paths_that_leave_the_archive_are_refused(path: str) -> None:
    assert not is_safe_path(path)
    record = manifest.record_of(opened(write(nodes_of(some(5)))), path, 0)
    with pytest.raises(CorruptionError, match="leads out of the archive"):
        manifest.decode_segment_record(record.db_key(), record.encode(), "row")


def test_manifest_rows_that_make_no_sense_are_refused() -> None:
    data = write(nodes_of(some(5)))
    record = manifest.record_of(opened(data), "7-o/x.seg", 0)
    assert (record.size_bytes, record.entries) == (len(data), 5)
    assert record.checksum == opened(data).checksum
    wrong: tuple[dict[str, Any], ...] = ({"entries": 0}, {"origin": 3}, {"last_ms": 1})
    for change in wrong:
        bad = record._replace(**change)
        with pytest.raises(CorruptionError):
            manifest.decode_segment_record(bad.db_key(), bad.encode(), "row")


@given(u64)
def test_erasures_come_back(time_ms: int) -> None:
    assert manifest.decode_erasure(manifest.encode_erasure(time_ms), "row") == time_ms
    with pytest.raises(CorruptionError):
        manifest.decode_erasure(manifest.encode_erasure(time_ms)[1:], "row")
