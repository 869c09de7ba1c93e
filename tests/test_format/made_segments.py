"""Segments with nodes of several kinds."""

from __future__ import annotations

from typing import Any

import zstandard
from hypothesis import strategies as st

from segments import TOP, UUID, opened
from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError, FormatVersionError
from streamkeep.format.segment.index import Block, Index, Trailer, number_of, seek_table

NUMBER = 7


def trained(size: int, samples: list[bytes]) -> bytes:
    return zstandard.train_dictionary(size, [*samples]).as_bytes()


ids = st.tuples(
    st.sampled_from([0, 5, (1 << 63) - 1, 1 << 63, TOP]) | st.integers(0, TOP), st.integers(0, TOP)
)


def problems(data: bytes) -> list[Exception]:
    """Return what is found wrong with a file; anything but our errors comes out."""
    try:
        segment = opened(data)
    except (CorruptionError, FormatVersionError) as error:
        return [error]
    return list(segment.check())


def forge(blocks: list[bytes], rows: list[Block], wrong: dict[str, Any] | None = None) -> bytes:
    """Return a file with these blocks and index rows, and all checksums right."""
    index = Index(UUID, NUMBER, b"", rows).encode()
    trailer = Trailer(
        rows[0].first_ms,
        rows[0].first_seq,
        rows[-1].last_ms,
        rows[-1].last_seq,
        sum(row.entries for row in rows),
        sum(row.nodes for row in rows),
        sum(row.raw_size for row in rows),
        sum(map(len, blocks)),
        0,
        len(index),
        0,
        number_of(index[-8:]),
        0,
        0,
        0,
        1,
    )._replace(**(wrong or {}))
    return b"".join(blocks) + index + trailer.encode() + seek_table(trailer, rows)


def row_of(block: bytes, raw_size: int, offset: int = 0, **other: int) -> Block:
    row = Block(1, 0, 9, 0, offset, len(block), raw_size, 1, 1, number_of(digest64(block)))
    return row._replace(**other)
