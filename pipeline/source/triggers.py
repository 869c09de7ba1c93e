"""The checks of a streaming read at each trigger: where the batch ends, and what is lost.

The loops here are interpreted, and the codec is compiled: a trigger takes about a microsecond per
node that it covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from streamkeep.engine.model.manifest import find_segment
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.node.node import live_ids, peek_counts
from streamkeep.pipeline.options import ARCHIVE, LATEST, LIVE, ReadOptions
from streamkeep.pipeline.source.offsets import (
    BEGINNING,
    DataLossError,
    Position,
    Positions,
    key_text,
)
from streamkeep.pipeline.source.pins import find_streams
from streamkeep.pipeline.source.stream_nodes import StreamNodes

_COUNTED_NODES: Final = 20_000  # beyond this number, the rest is estimated
_HEAD: Final = 26


@dataclass
class Budget:
    """How much one trigger may still read; None for no limit."""

    entries: int | None
    size_bytes: int | None

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read."""
        return (self.entries is not None and self.entries <= 0) or (
            self.size_bytes is not None and self.size_bytes <= 0
        )


class TriggerStream:
    """One stream in one snapshot, as a streaming query sees it.

    Attributes:
        last: its newest entry. For a read with the archive it is the last generated ID, because the
            newest entry may already be trimmed and archived.
    """

    def __init__(self, txn: Txn, stream: Stream, source: str) -> None:
        self.stream = stream
        self.number = stream.number
        self.source_nodes = StreamNodes(txn, stream.number, stream, source)
        record = stream.record
        if source == LIVE:
            self.last = StreamId(record.last_live_ms, record.last_live_seq)
        elif source == ARCHIVE:
            segment = find_segment(txn, stream.number, *MAX_ID)
            self.last = MIN_ID if segment is None else StreamId(*segment.last_id)
        else:
            self.last = StreamId(record.last_ms, record.last_seq)

    def end(self) -> Position:
        """Return the position after all present entries."""
        if self.source_nodes.source == ARCHIVE:
            return Position(self.number, self.last)
        record = self.stream.record
        end = StreamId(record.last_ms, record.last_seq)
        return Position(self.number, end, added=record.entries_added)

    def after(self, position: Position) -> StreamId:
        """Return the ID after which a query continues; the lowest if the stream was replaced."""
        return position.id if position.number in (0, self.number) else MIN_ID

    def first_after(self, after: StreamId) -> StreamId | None:
        """Return the first entry after an ID."""
        for ms, seq, load in self.source_nodes.nodes(after.next(), MAX_ID, None):
            data = load()
            for one in live_ids(data, ms, seq) if data else ():
                if one > after:
                    return StreamId(*one)
        return None

    def count_after(self, after: StreamId, most_nodes: int) -> tuple[int, StreamId | None]:
        """Return the number of entries after an ID in so many nodes, and the next node's key."""
        count = nodes = 0
        for ms, seq, load in self.source_nodes.nodes(after.next(), MAX_ID, None):
            if nodes >= most_nodes:
                return count, StreamId(ms, seq)
            data = load()
            if not data:
                continue
            if (ms, seq) <= after:
                count += sum(one > after for one in live_ids(data, ms, seq))
            else:
                count += peek_counts(data[:_HEAD])[0]
            nodes += 1
        return count, None

    def entries_after(self, after: StreamId) -> int:
        """Return the number of entries after an ID; beyond 20,000 nodes it is an estimate."""
        if self.last <= after:
            return 0
        count, following = self.count_after(after, _COUNTED_NODES)
        if following is None:
            return count
        share = (self.last.ms - following.ms) / max(1, following.ms - after.ms)
        return round(count * (1 + share))


def trigger_streams(txn: Txn, options: ReadOptions) -> Iterator[tuple[bytes, TriggerStream]]:
    """Yield the existing streams of a query."""
    for key, number in find_streams(txn, options, all_there=False).items():
        stream = txn.find_stream(key)
        if stream is not None and stream.number == number:
            yield key, TriggerStream(txn, stream, options.source)


# --- where a batch ends ---------------------------------------------------------------------------


def first_positions(txn: Txn, options: ReadOptions) -> Positions:
    """Return where a new query begins: by default at the end of each stream."""
    positions: Positions = {}
    for key, stream in trigger_streams(txn, options):
        starting = LATEST if options.starting is None else options.starting.of(key)
        if starting == LATEST:
            positions[key] = stream.end()
        elif isinstance(starting, StreamId) and starting > MIN_ID:
            positions[key] = Position(stream.number, starting.previous())
        else:
            positions[key] = Position(stream.number, MIN_ID)
    return positions


def newest_positions(txn: Txn, options: ReadOptions, start: Positions) -> Positions:
    """Return the positions after all present entries."""
    positions = dict(start)
    for key, stream in trigger_streams(txn, options):
        if stream.last > stream.after(start.get(key, BEGINNING)):
            positions[key] = stream.end()
    return positions


def limited_positions(
    txn: Txn,
    options: ReadOptions,
    start: Positions,
    budget: Budget,
    bound: Positions | None = None,
) -> Positions:
    """Return where a trigger ends within a budget, which the streams share evenly.

    Args:
        bound: the last positions allowed; streams that are not in it do not advance.
    """
    positions = dict(start)
    walks: dict[bytes, _Steps] = {}
    for key, stream in trigger_streams(txn, options):
        if bound is not None and key not in bound:
            continue
        after = stream.after(start.get(key, BEGINNING))
        last = stream.last if bound is None else min(stream.last, bound[key].id)
        if last > after:
            walks[key] = _Steps(stream, after, last)
    while walks and not budget.spent:
        share = Budget(
            None if budget.entries is None else max(1, budget.entries // len(walks)),
            None if budget.size_bytes is None else max(1, budget.size_bytes // len(walks)),
        )
        for key, steps in list(walks.items()):
            if budget.spent:
                break
            entries, size = steps.take(share)
            if budget.entries is not None:
                budget.entries -= entries
            if budget.size_bytes is not None:
                budget.size_bytes -= size
            positions[key] = steps.position()
            if steps.ended:
                del walks[key]
    return positions


class _Steps:
    """The entries of one stream after an ID, taken in portions."""

    def __init__(self, stream: TriggerStream, after: StreamId, last: StreamId) -> None:
        self._stream = stream
        self.last = last
        self.id = after
        self.ended = False
        self._nodes = stream.source_nodes.nodes(after.next(), last, None)
        self._ids: list[tuple[int, int]] = []  # the IDs of the present node that are not taken yet
        self._size = 0  # bytes per entry of that node

    def take(self, share: Budget) -> tuple[int, int]:
        """Take entries until the share is used up; return their number and size."""
        entries = size = 0
        while self._fill():
            room = len(self._ids)
            if share.entries is not None:
                room = min(room, share.entries - entries)
            if share.size_bytes is not None:
                room = min(room, max(1, (share.size_bytes - size) // max(1, self._size)))
            if room <= 0 or (share.size_bytes is not None and size >= share.size_bytes):
                return entries, size
            self.id = StreamId(*self._ids[room - 1])
            del self._ids[:room]
            entries += room
            size += room * self._size
        self.ended = True
        self.id = self.last  # higher than the last entry if that one was deleted
        return entries, size

    def _fill(self) -> bool:
        """Load IDs until there is one that is not taken; return False if none is left."""
        while not self._ids:
            found = next(self._nodes, None)
            if found is None:
                return False
            data = found.load()
            if data:
                ids = live_ids(data, found.ms, found.seq)
                self._ids = [one for one in ids if self.id < one <= self.last]
                self._size = len(data) // max(1, len(ids))
        return True

    def position(self) -> Position:
        """Return the position after the entries taken so far."""
        if self._fill():
            return Position(self._stream.number, self.id, StreamId(*self._ids[0]))
        if self.id >= self._stream.last:
            return self._stream.end()
        return Position(self._stream.number, self.id)


# --- lost entries ---------------------------------------------------------------------------------


def check_nothing_lost(txn: Txn, options: ReadOptions, key: bytes, position: Position) -> None:
    """Raise DataLossError if entries after a position were trimmed before they were read.

    Trimming removes the oldest entries. So the next entry still exists, live or in the archive, or
    it was trimmed together with all up to the first existing one. A deleted entry is no loss. If
    entries after the position were deleted, the check cannot tell the two apart and passes.
    """
    stream = txn.find_stream(key)
    if position.number == 0 or stream is None:
        return  # no position yet, or no stream: the query waits
    if stream.number != position.number:
        raise DataLossError(
            f"stream {key_text(key)!r} was deleted and created again after entry {position.id} was "
            "read; unread entries of the former stream are lost; next: failOnDataLoss=false reads "
            "the new stream from its beginning"
        )
    record = stream.record
    if (record.max_deleted_ms, record.max_deleted_seq) > position.id:
        return
    trimmed = record.length == 0 or (record.first_ms, record.first_seq) > position.id
    if not trimmed:
        return
    current = TriggerStream(txn, stream, options.source)
    first = current.first_after(position.id)
    lost: str | None = None
    if position.next is not None and (first is None or first > position.next):
        lost = f"entries from {position.next} on"
    elif position.added is not None and record.entries_added > position.added:
        there, more = current.count_after(position.id, _COUNTED_NODES)
        count = record.entries_added - position.added - there
        if more is None and count > 0:
            lost = f"{count} entries after {position.id}"
    if lost is not None:
        following = "no entry remains" if first is None else f"the first remaining entry is {first}"
        raise DataLossError(
            f"stream {key_text(key)!r}: {lost} were trimmed before they were read, and are not "
            f"archived; {following}; next: failOnDataLoss=false continues with the remaining "
            "entries. Archiving the stream prevents such a loss"
        )


# --- lag ------------------------------------------------------------------------------------------


def report(txn: Txn, options: ReadOptions, positions: Positions) -> dict[str, dict[str, object]]:
    """Return the newest entry of each stream, and the lag of a query."""
    found: dict[str, dict[str, object]] = {}
    for key, stream in trigger_streams(txn, options):
        after = stream.after(positions.get(key, BEGINNING))
        behind = stream.entries_after(after)
        found[key.decode("utf-8", "backslashreplace")] = {
            "id": str(stream.last),
            "entriesBehind": behind,
            "secondsBehind": max(0, stream.last.ms - after.ms) / 1000 if behind and after.ms else 0,
        }
    return found
