"""Reading stores for Spark: finding streams, cutting them into slices, and the nodes of a slice.

Each use opens the store read-only, which takes 3 ms, and closes it again. Spark keeps its Python
workers for the whole session. A store that stays open in one would hold a lock, and would read the
old file after a user has replaced the store.

A read transaction keeps all pages of its snapshot from being reused, and a task may take minutes.
So nodes are copied in chunks, each in a short transaction. That is correct because entries never
change: an ID below the pinned end exists, or was deleted or trimmed. A node keeps its key even when
it moves to the archive, so the next chunk begins above the last key.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys
from streamkeep.engine.commands.history import Unreadable
from streamkeep.engine.model.manifest import iter_segments
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.core.errors import NoSuchKeyError, StreamkeepError
from streamkeep.format.node.columns import CopiedNode
from streamkeep.pipeline.options import (
    ARCHIVE,
    AUTO,
    EARLIEST,
    LATEST,
    Offset,
    OptionError,
    ReadOptions,
)
from streamkeep.pipeline.plan import Slice
from streamkeep.pipeline.stream_nodes import StreamNodes

_CHUNK_BYTES: Final = 2 << 20
_COPIES: Final = 8  # parts of a chunk, after each of which the clock is checked
_CHUNK_S: Final = 0.05
_MOST_RENEWALS: Final = 100


class StreamReplacedError(StreamkeepError):
    """A stream was deleted after a read of it was planned; another one may have its key now."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The range to read of one stream, fixed when the DataFrame is made; both IDs are included."""

    key: bytes
    number: int
    start: StreamId
    end: StreamId


@contextmanager
def reading(path: str | Path) -> Iterator[Store[bytes]]:
    """Open a store for reading, for the length of a block."""
    with Store(path, readonly=True, create=False) as store:
        yield store


# --- finding streams ------------------------------------------------------------------------------


def find_streams(txn: Txn, options: ReadOptions, *, all_there: bool) -> dict[bytes, int]:
    """Return the keys and numbers of the requested streams.

    A deleted stream may still have segments under its old number. A read of the archive also finds
    these, if no stream has the key now.

    Args:
        all_there: raise for a key that does not exist.
    """
    numbers = dict(keys.iter_keys(txn))
    if options.source == ARCHIVE:
        living = set(numbers.values())
        for record in iter_segments(txn):
            if record.stream_number not in living and numbers.get(record.key, 0) not in living:
                numbers[record.key] = record.stream_number
    chosen = chosen_keys(options, list(numbers), all_there=all_there)
    return {key: numbers[key] for key in chosen}


def chosen_keys(options: ReadOptions, known: list[bytes], *, all_there: bool) -> list[bytes]:
    """Return the requested ones of the known keys, in the order of the option."""
    shown = {name.decode(errors="backslashreplace"): name for name in known}
    if options.pattern is not None:
        return [name for text, name in sorted(shown.items()) if options.pattern.fullmatch(text)]
    existing = set(known)
    for key in options.keys or ():
        if all_there and key not in existing:
            near = difflib.get_close_matches(key.decode(), shown, n=3)
            advice = f"did you mean {', '.join(near)}?" if near else f"it has {len(known)} others"
            raise NoSuchKeyError(f"{options.path}: no stream {key.decode()!r}; {advice}")
    return [key for key in options.keys or () if key in existing]


def pin_streams(txn: Txn, options: ReadOptions) -> tuple[Pin, ...]:
    """Return the ranges of a batch read, fixed at this moment."""
    pins = []
    for key, number in find_streams(txn, options, all_there=True).items():
        stream = txn.find_stream(key)
        last = MAX_ID
        if stream is not None and stream.number == number:
            last = StreamId(stream.record.last_ms, stream.record.last_seq)
        pins.append(pin_between(options, key, number, last))
    return tuple(pins)


def pin_between(options: ReadOptions, key: bytes, number: int, last: StreamId) -> Pin:
    """Return the range of a batch read in a stream whose newest entry is `last`."""
    starting = EARLIEST if options.starting is None else options.starting.of(key)
    if starting == LATEST:
        raise OptionError("a batch read cannot start at 'latest': no entry follows it")
    ending = options.ending.of(key)
    if ending == EARLIEST:
        raise OptionError("a read cannot end at 'earliest': no entry precedes it")
    return Pin(key, number, _resolved(starting, MIN_ID), min(last, _resolved(ending, MAX_ID)))


def _resolved(offset: Offset, bound: StreamId) -> StreamId:
    return offset if isinstance(offset, StreamId) else bound


# --- cutting them into slices ---------------------------------------------------------------------


def pinned_bytes(txn: Txn, pin: Pin, source: str) -> int:
    """Return about how many bytes a read of a pinned range takes."""
    if pin.start > pin.end:
        return 0
    return stream_nodes(txn, pin.key, pin.number, source).size_bytes(pin.start, pin.end)


def cut_stream(txn: Txn, pin: Pin, source: str, slice_bytes: int) -> list[Slice]:
    """Return a pinned range as slices of about `slice_bytes`, cut between nodes."""
    if pin.start > pin.end:
        return []
    slices: list[Slice] = []
    start, size, entries, any_there = pin.start, 0, 0, False
    stream = stream_nodes(txn, pin.key, pin.number, source)
    for mark in stream.marks(pin.start, pin.end, slice_bytes):
        if size and size + mark.size_bytes // 2 > slice_bytes and mark.id > start:
            end = mark.id.previous()
            slices.append(Slice(pin.key, pin.number, start, end, size, entries))
            start, size, entries = mark.id, 0, 0
        size += mark.size_bytes
        entries += mark.entries
        any_there = True
    if any_there:
        slices.append(Slice(pin.key, pin.number, start, pin.end, size, entries))
    return slices


def stream_nodes(txn: Txn, key: bytes, number: int, source: str) -> StreamNodes:
    """Return the nodes of the stream of a pin or slice.

    Raises:
        StreamReplacedError: the stream was deleted, and nothing of it remains.
    """
    stream = txn.find_stream(key)
    if stream is not None and stream.number == number:
        return StreamNodes(txn, number, stream, source)
    if source == ARCHIVE:
        return StreamNodes(txn, number, None, source)
    raise StreamReplacedError(
        f"stream {key!r} was deleted or renamed after this read was planned; next: load() the "
        "DataFrame again"
    )


# --- the nodes of a slice -------------------------------------------------------------------------


def read_nodes(store: Store[bytes], one: Slice, source: str = AUTO) -> Iterator[list[CopiedNode]]:
    """Yield the nodes of a slice, ascending, in chunks."""
    after: StreamId | None = None
    renewals = 0
    while True:
        try:
            nodes, after = _copy_nodes(store, one, source, after)
        except Unreadable as error:
            renewals += 1
            with store.snapshot() as snapshot:
                if renewals > _MOST_RENEWALS or error.still_named(snapshot.txn):
                    raise error.error from None
            continue  # the segment was erased or dropped; the newest manifest has the change
        yield nodes
        if after is None:
            return


def _copy_nodes(
    store: Store[bytes], one: Slice, source: str, after: StreamId | None
) -> tuple[list[CopiedNode], StreamId | None]:
    """Return a chunk of the nodes of a slice, and its last key; None at the end."""
    nodes: list[CopiedNode] = []
    size = 0
    deadline = time.monotonic() + _CHUNK_S
    with store.snapshot() as snapshot:
        stream = stream_nodes(snapshot.txn, one.key, one.number, source)
        for copied in stream.chunks(one.start, one.end, after, _CHUNK_BYTES // _COPIES):
            nodes += [node for node in copied if node[2]]
            size += sum(len(node[2]) for node in copied)
            if size >= _CHUNK_BYTES or time.monotonic() > deadline:
                return nodes, StreamId(*copied[-1][:2])
    return nodes, None
