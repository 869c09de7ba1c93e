"""Reading stores for Spark: what there is, where it is cut, and the nodes of a slice.

Every use opens the store anew, read-only, which takes 3 ms, and closes it. Spark keeps its Python
workers for the whole session: a handle kept in one would hold a lock of the store, and would go on
reading the old file where somebody has put a new store into the same place.

A read transaction keeps all pages of its snapshot from being reused, and a task may take minutes.
So nodes are copied out in chunks, each in a short transaction of its own. That is sound because
entries never change: an ID below the pinned end is there, was deleted, or was trimmed; and a
node keeps its key for life, so reading goes on above the last one.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamkeep.engine import keyspace
from streamkeep.engine.api import Store
from streamkeep.engine.nodes import NodeWalk
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn
from streamkeep.format.checksum import open_row
from streamkeep.format.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.envelope import PAGE_VALUE
from streamkeep.format.errors import NoSuchKeyError, StreamkeepError
from streamkeep.format.keys import NODES, SEGMENTS, node_key, unpack_node_key
from streamkeep.format.manifest import SegmentRecord, decode_segment_record
from streamkeep.pipeline.arrow import Node
from streamkeep.pipeline.options import EARLIEST, LATEST, Offset, OptionError, ReadOptions
from streamkeep.pipeline.plan import Slice

_CHUNK_NODES: Final = 512
_CHUNK_BYTES: Final = 8 << 20
_CHUNK_S: Final = 0.05


class StreamReplacedError(StreamkeepError):
    """A stream was deleted since a read of it was planned; another may have its key now."""


@dataclass(frozen=True, slots=True)
class Pin:
    """What is to be read of one stream, fixed when the DataFrame is made: both IDs included."""

    key: bytes
    number: int
    start: StreamId
    end: StreamId


@contextmanager
def reading(path: str | Path) -> Iterator[Store[bytes]]:
    """Open a store for reading, for the length of a block."""
    with Store(path, readonly=True, create=False) as store:
        yield store


# --- what there is --------------------------------------------------------------------------------


def find_keys(txn: Txn, options: ReadOptions, *, all_there: bool) -> list[bytes]:
    """Return the keys of the streams that were asked for.

    Args:
        all_there: raise for a key that does not exist.
    """
    names = [name for name, _ in keyspace.iter_keys(txn)]
    if options.keys is None:
        pattern = options.pattern
        assert pattern is not None
        return [name for name in names if pattern.fullmatch(name.decode(errors="backslashreplace"))]
    existing = set(names)
    for key in options.keys:
        if all_there and key not in existing:
            known = {name.decode(errors="backslashreplace"): name for name in names}
            near = difflib.get_close_matches(key.decode(), known, n=3)
            there = f"did you mean {', '.join(near)}?" if near else f"{len(names)} others are there"
            raise NoSuchKeyError(f"{options.path}: no stream {key.decode()!r}; {there}")
    return [key for key in options.keys if key in existing]


def pin_streams(txn: Txn, options: ReadOptions) -> tuple[Pin, ...]:
    """Return what a batch read covers, as of now."""
    pins = []
    for key in find_keys(txn, options, all_there=True):
        stream = txn.find_stream(key)
        if stream is None:
            continue
        starting = EARLIEST if options.starting is None else options.starting.of(key)
        if starting == LATEST:
            raise OptionError("a batch read cannot start at 'latest': nothing is behind it")
        end = options.ending.of(key)
        if end == EARLIEST:
            raise OptionError("a read cannot end at 'earliest': nothing is before it")
        last = StreamId(stream.record.last_live_ms, stream.record.last_live_seq)
        first = _resolved(starting, MIN_ID)
        pins.append(Pin(key, stream.number, first, min(last, _resolved(end, MAX_ID))))
    return tuple(pins)


def _resolved(offset: Offset, bound: StreamId) -> StreamId:
    return offset if isinstance(offset, StreamId) else bound


def manifest(txn: Txn) -> Iterator[SegmentRecord]:
    """Yield the segments that the archive has, by stream number and ID."""
    for db_key, value in txn.cursor(SEGMENTS):
        body = open_row(SEGMENTS, db_key, value, "segment record")
        yield decode_segment_record(db_key, body, "segment record")


# --- where it is cut ------------------------------------------------------------------------------


def stored_bytes(txn: Txn, pin: Pin) -> int:
    """Return how much is stored of what is pinned, about."""
    stream = _stream_of(txn, pin.key, pin.number)
    record = stream.record
    if pin.start > pin.end or not record.length:
        return 0
    first, last = (record.first_ms, record.first_seq), (record.last_live_ms, record.last_live_seq)
    if pin.start <= first and pin.end >= last:
        return stream.node_bytes()
    nodes = sum(1 for _ in _node_keys(txn, stream, pin.start, pin.end))
    return nodes * (stream.node_bytes() // stream.nodes())


def cut_stream(txn: Txn, pin: Pin, slice_bytes: int) -> list[Slice]:
    """Return the range of a pin as slices of about `slice_bytes`, cut between nodes."""
    stream = _stream_of(txn, pin.key, pin.number)
    if pin.start > pin.end or not stream.record.length:
        return []
    record = stream.record
    node_size = stream.node_bytes() // max(1, stream.nodes()) or PAGE_VALUE
    node_entries = record.length // max(1, stream.nodes())
    per_slice = max(1, slice_bytes // node_size)
    slices: list[Slice] = []
    start, count = pin.start, 0
    for ms, seq in _node_keys(txn, stream, pin.start, pin.end):
        at = StreamId(ms, seq)
        if count >= per_slice and at > start:
            slices.append(_slice(pin, start, at.previous(), count, node_size, node_entries))
            start, count = at, 0
        count += 1
    slices.append(_slice(pin, start, pin.end, count, node_size, node_entries))
    return slices


def _slice(
    pin: Pin, start: StreamId, end: StreamId, nodes: int, node_size: int, node_entries: int
) -> Slice:
    return Slice(pin.key, pin.number, start, end, nodes * node_size, nodes * node_entries)


def _node_keys(
    txn: Txn, stream: Stream, start: StreamId, end: StreamId
) -> Iterator[tuple[int, int]]:
    """Yield the keys of the nodes that may hold entries of a range, without reading the nodes."""
    walk = NodeWalk(txn, stream)
    if not walk.seek(*start):
        return
    if not walk.on_tail:
        cursor = txn.cursor(NODES)
        found = cursor.set_range(node_key(stream.number, walk.ms, walk.seq))
        last = node_key(stream.number, *end)
        while found and (db_key := cursor.key()) <= last:
            yield unpack_node_key(db_key)[1:]
            found = cursor.next()
    if stream.has_tail() and (stream.tail_ms, stream.tail_seq) <= end:
        yield stream.tail_ms, stream.tail_seq


# --- the nodes of a slice -------------------------------------------------------------------------


def read_nodes(store: Store[bytes], one: Slice) -> Iterator[Node]:
    """Yield the nodes that hold the entries of a slice, ascending."""
    after: StreamId | None = None
    while True:
        nodes, after = _copy_nodes(store, one, after)
        yield from nodes
        if after is None:
            return


def _copy_nodes(
    store: Store[bytes], one: Slice, after: StreamId | None
) -> tuple[list[Node], StreamId | None]:
    """Return a chunk of the nodes of a slice, and the key to go on above; None at the end."""
    nodes: list[Node] = []
    size = 0
    deadline = time.monotonic() + _CHUNK_S
    with store.snapshot() as snapshot:
        stream = _stream_of(snapshot.txn, one.key, one.number)
        walk = NodeWalk(snapshot.txn, stream)
        found = walk.seek(*one.start) if after is None else walk.above(*after)
        while found and (walk.ms, walk.seq) <= one.end:
            data = walk.load()
            nodes.append((walk.ms, walk.seq, data, b""))
            size += len(data)
            if len(nodes) >= _CHUNK_NODES or size >= _CHUNK_BYTES or time.monotonic() > deadline:
                return nodes, StreamId(walk.ms, walk.seq)
            found = walk.next()
    return nodes, None


def _stream_of(txn: Txn, key: bytes, number: int) -> Stream:
    """Return the stream that a pin or slice is of."""
    stream = txn.find_stream(key)
    if stream is None or stream.number != number:
        raise StreamReplacedError(
            f"stream {key!r} was deleted or renamed since this read was planned; load() it again"
        )
    return stream
