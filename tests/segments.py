"""Segments for tests, written without a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamkeep.engine.segment_files import open_segment
from streamkeep.format import node
from streamkeep.format.envelope import encode_envelope
from streamkeep.format.manifest import ARCHIVED, SegmentRecord, record_of
from streamkeep.format.segment import Segment, segment_path
from streamkeep.format.segment_writer import SegmentWriter

UUID = bytes(range(16))
TOP = (1 << 64) - 1

Pairs = tuple[int, int, list[bytes]]


def nodes_of(entries: list[Pairs], max_size: int = 200, number: int = 7) -> list[bytes]:
    """Return the envelopes of these entries."""
    return [
        encode_envelope(number, ms, seq, 1, 2, b"", data, b"")
        for ms, seq, data in node.encode_nodes(entries, max_size)
    ]


def write(envelopes: list[bytes], **options: Any) -> bytes:
    """Return a segment with these nodes."""
    values: dict[str, Any] = {
        "store_uuid": UUID,
        "stream_number": 7,
        "key": b"orders",
        "created_ms": 1,
        "epoch": 2,
        "file_number": 3,
        "block_bytes": 600,
        **options,
    }
    writer = SegmentWriter(**values)
    data = b"".join([writer.add(envelope, "node") for envelope in envelopes]) + writer.finish()
    assert writer.size == len(data)
    return data


def opened(data: bytes) -> Segment:
    """Open the segment in `data`."""
    return Segment.open(lambda offset, size: data[offset : offset + size], len(data), "here")


def entries_of(segment: Segment) -> list[Pairs]:
    """Return all entries of a segment."""
    found: list[Any] = []
    for number in range(len(segment.index.blocks)):
        for one in segment.block(number):
            wanted = node.Range(0, 0, TOP, TOP, 1 << 40, False, node.PAIRS)
            node.read_range(one.listpack, one.ms, one.seq, wanted, found)
    return found


def some(count: int, first: int = 1000) -> list[Pairs]:
    """Return entries, three per millisecond."""
    return [
        (first + i // 3, i % 3, [b"item", b"sku-%d" % i, b"n", b"%d" % i]) for i in range(count)
    ]


def write_file(
    folder: Path, entries: list[Pairs], *, number: int = 7, file_number: int = 3, **options: Any
) -> SegmentRecord:
    """Write a segment below the archive folder of a store; return the row that it would have."""
    data = write(
        nodes_of(entries, number=number),
        stream_number=number,
        file_number=file_number,
        **options,
    )
    path = segment_path(number, b"orders", entries[0][:2], entries[-1][:2], 1, file_number)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    return record_of(
        open_segment(folder / path),
        stream_number=number,
        path=path,
        key=b"orders",
        sequence=0,
        created_ms=1,
        epoch=1,
        origin=ARCHIVED,
    )
