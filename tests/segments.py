"""Segments for tests, written without a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inside import uuid_of
from streamkeep.engine.tables import manifest
from streamkeep.engine.tables.segment_files import open_segment
from streamkeep.format.core.keys import RETIRED, node_key
from streamkeep.format.node import node, ranges
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.segment.index import Index
from streamkeep.format.segment.manifest import ARCHIVED, SegmentRecord, record_of
from streamkeep.format.segment.segment import Segment, segment_path
from streamkeep.format.segment.writer import SegmentWriter

UUID = bytes(range(16))
TOP = (1 << 64) - 1

Pairs = tuple[int, int, list[bytes]]


def nodes_of(entries: list[Pairs], max_size: int = 200, number: int = 7) -> list[bytes]:
    return [
        encode_envelope(number, ms, seq, 1, 2, b"", data, b"")
        for ms, seq, data in encode_nodes(entries, max_size)
    ]


def write(envelopes: list[bytes], **options: Any) -> bytes:
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
    of = Index(values.pop("store_uuid"), values.pop("stream_number"), values.pop("key"), [])
    writer = SegmentWriter(of, **values)
    data = b"".join([writer.add(envelope, "node") for envelope in envelopes]) + writer.finish()
    assert writer.size == len(data)
    return data


def opened(data: bytes) -> Segment:
    return Segment.open(lambda offset, size: data[offset : offset + size], len(data), "here")


def entries_of(segment: Segment) -> list[Pairs]:
    found: list[Any] = []
    for number in range(len(segment.index.blocks)):
        for one in segment.block(number):
            wanted = ranges.Range(0, 0, TOP, TOP, 1 << 40, False, node.PAIRS)
            ranges.read_range(one.listpack, one.ms, one.seq, wanted, found)
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
        nodes_of(entries, number=number), stream_number=number, file_number=file_number, **options
    )
    path = segment_path(number, b"orders", entries[0][:2], entries[-1][:2], 1, file_number)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    return record_of(open_segment(folder / path), path, ARCHIVED)


def archive(store: Any, key: str, *parts: list[Pairs], **options: Any) -> int:
    """Make these entries the archive of a stream, one segment for each part; return its number.

    The stream is created when it is missing, and goes up to the last entry.
    """
    with store.transaction() as transaction:
        txn = transaction._txn
        stream = txn.find_stream(key.encode()) or txn.create_stream(key.encode())
        last = parts[-1][-1][:2]
        if (stream.record.last_ms, stream.record.last_seq) < last:
            stream.record.last_ms, stream.record.last_seq = last
        for entries in parts:
            record = write_file(
                store.path / "archive",
                entries,
                number=stream.number,
                file_number=manifest.take_file_number(txn),
                key=key.encode(),
                store_uuid=uuid_of(store),
                **options,
            )
            manifest.put_segment(txn, record._replace(key=key.encode()))
        return int(stream.number)


def retire(store: Any, number: int, entries: list[Pairs]) -> None:
    """Put entries into `retired`, as trimming does."""
    with store.transaction() as transaction:
        for envelope in nodes_of(entries, number=number):
            found = decode_envelope(envelope, "node")
            transaction._txn.put(RETIRED, node_key(number, found.ms, found.seq), envelope)


def pairs_of(store: Any, key: str) -> list[Pairs]:
    return [
        (*entry.stream_id, [part for pair in entry.pairs for part in pair])
        for entry in store.scan(key)
    ]
