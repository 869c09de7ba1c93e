"""The index of a segment: read in parts, lies, and trailers that lie."""

from __future__ import annotations

import pytest
import zstandard

from segments import entries_of, nodes_of, opened, some, write
from test_format.made_segments import forge, problems, row_of


def test_the_index_of_a_long_segment_is_read_in_parts() -> None:
    segment = opened(write(nodes_of(some(3000), 100), block_bytes=1))
    assert segment.trailer.index_size > 32 << 10
    assert entries_of(segment) == some(3000)


@pytest.mark.parametrize(
    "change",
    [
        {"entries": 5},
        {"nodes": 2, "entries": 3},
        {"first_ms": 2},
        {"last_ms": 1, "last_seq": 0},
        {"last_ms": 90},
        {"offset": 1},
        {"raw_size": 999},
        {"size": 10},
        {"nodes": 0},
        {"first_ms": 95},
    ],
)
def test_an_index_that_lies_with_right_checksums_is_reported(change: dict[str, int]) -> None:
    raw = b"".join(nodes_of([(1, 0, [b"f", b"v"]), (9, 0, [b"f", b"w"]), (9, 1, [b"f", b"x"])]))
    block = zstandard.ZstdCompressor(write_checksum=True).compress(raw)
    good = row_of(block, len(raw), entries=3, last_seq=1)
    assert problems(forge([block], [good])) == []
    assert problems(forge([block], [good._replace(**change)]))


def test_trailers_that_lie_with_right_checksums_are_reported() -> None:
    raw = b"".join(nodes_of([(1, 0, [b"f", b"v"])]))
    block = zstandard.ZstdCompressor().compress(raw)
    row = row_of(block, len(raw), last_ms=1)
    assert problems(forge([block], [row])) == []
    for name in ("entries", "nodes", "raw_size", "first_ms", "last_seq", "index_size"):
        assert problems(forge([block], [row], {name: 77}))
    for name in ("blocks_size", "dictionary_size", "index_checksum"):
        assert problems(forge([block], [row], {name: 3}))
    twice = [row, row._replace(offset=len(block))]
    assert problems(forge([block, block], twice))
