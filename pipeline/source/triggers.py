"""The checks of a streaming read at each trigger: where the batch ends, and what is lost.

The loops here are interpreted, and the codec is compiled: a trigger takes about a microsecond per
node that it covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from streamkeep.engine.tables.manifest import find_segment
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.node.node import live_ids, peek_counts
from streamkeep.pipeline.options import ARCHIVE, LATEST, LIVE, ReadOptions
from streamkeep.pipeline.source.losses import ADVICE, DataLossError, node_remains
from streamkeep.pipeline.source.offsets import BEGINNING, Position, Positions, key_text
from streamkeep.pipeline.source.pins import find_streams
from streamkeep.pipeline.source.stream_nodes import StreamNodes

_COUNTED_NODES: Final = 20_000  # beyond this number, the rest is estimated


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

    def after_reading(self, last: StreamId) -> Position:
        """Return the position after an entry, with what shows later whether entries were lost."""
        following = self.first_after(last)
        if following is not None:
            return Position(self.number, last, following)
        return Position(self.number, last, added=self.stream.record.entries_added)

    def met(self, position: Position, start: Positions, key: bytes) -> Position:
        """Return the end of a batch; of a stream that has no position yet, with its first entry."""
        known = start.get(key, BEGINNING)
        if known.number == self.number:
            return position
        return replace(position, first=self.first_after(MIN_ID))

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
        """Return the number of entries after an ID in the next nodes, and the next node's key."""
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
                count += peek_counts(data)[0]
            nodes += 1
        return count, None

    def tombstones_after(self, after: StreamId) -> int:
        """Return the number of deleted entries that nodes after an ID still hold."""
        nodes = self.source_nodes.nodes(after.next(), MAX_ID, None)
        loaded = (found.load() for found in islice(nodes, _COUNTED_NODES))
        return sum(peek_counts(data)[1] for data in loaded if data)

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
        else:
            before = MIN_ID
            if isinstance(starting, StreamId) and starting > MIN_ID:
                before = starting.previous()
            positions[key] = stream.after_reading(before)
    return positions


def newest_positions(txn: Txn, options: ReadOptions, start: Positions) -> Positions:
    """Return the positions after all present entries."""
    positions = dict(start)
    for key, stream in trigger_streams(txn, options):
        if stream.last > stream.after(start.get(key, BEGINNING)):
            positions[key] = stream.met(stream.end(), start, key)
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
            positions[key] = steps.stream.met(steps.position(), start, key)
            if steps.ended:
                del walks[key]
    return positions


class _Steps:
    """The entries of one stream after an ID, taken in portions."""

    def __init__(self, stream: TriggerStream, after: StreamId, last: StreamId) -> None:
        self.stream = stream
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
            return Position(self.stream.number, self.id, StreamId(*self._ids[0]))
        if self.id >= self.stream.last:
            return self.stream.end()
        return Position(self.stream.number, self.id)


# --- lost entries ---------------------------------------------------------------------------------


def check_nothing_lost(txn: Txn, options: ReadOptions, key: bytes, position: Position) -> None:
    """Raise DataLossError if entries after a position were trimmed before they were read.

    `losses` says how trimmed entries differ from deleted ones.
    """
    if position.number == 0:
        return  # no position yet
    stream = txn.find_stream(key)
    if stream is None or stream.number != position.number:
        raise _stream_gone(key, position, made_again=stream is not None)
    record = stream.record
    after = position.id
    trimmed = record.length == 0 or (record.first_ms, record.first_seq) > after
    if not trimmed:
        return
    current = TriggerStream(txn, stream, options.source)
    first = current.first_after(after)
    deleted = StreamId(record.max_deleted_ms, record.max_deleted_seq)
    what: str | None = None
    lost: int | None = None
    if position.next is not None:
        if first is not None and first <= position.next:
            return
        if deleted >= position.next and (
            deleted == position.next or node_remains(current.source_nodes, position.next)
        ):
            return
        what = f"entries from {position.next} on"
    elif position.added is not None and record.entries_added > position.added:
        there = current.source_nodes.count(after.next(), MAX_ID).entries
        lost = record.entries_added - position.added - there
        if lost <= 0:
            return
        if deleted > after and (
            lost <= 1 + current.tombstones_after(after)
            or (after > MIN_ID and node_remains(current.source_nodes, after))
        ):
            return
        what = f"{lost} entries after {after}"
    if what is not None:
        following = "no entry remains" if first is None else f"the first remaining entry is {first}"
        raise DataLossError(
            f"stream {key_text(key)!r}: {what} were trimmed before they were read, and are not "
            f"archived; {following}; {ADVICE}",
            key,
            lost,
        )


def _stream_gone(key: bytes, position: Position, *, made_again: bool) -> DataLossError:
    again = " and created again" if made_again else ""
    unread = "unread entries of the former stream are lost"
    if position.next is not None:
        unread = f"entries from {position.next} on were not read and are lost"
    follow = "reads the new stream from its beginning" if made_again else "forgets the stream"
    return DataLossError(
        f"stream {key_text(key)!r} was deleted{again} after entry {position.id} was read; "
        f"{unread}; next: failOnDataLoss=false {follow}",
        key,
    )


def batch_gone(key: bytes, begin: StreamId, last: Position) -> DataLossError:
    """Return the error for a stream that was deleted after a batch of it was planned."""
    return DataLossError(
        f"stream {key_text(key)!r} was deleted, and perhaps created again, after a batch of it was "
        f"planned; its entries from {begin.next()} to {last.id} are lost; next: "
        "failOnDataLoss=false continues without them",
        key,
    )


def deleted_streams(txn: Txn, positions: Positions) -> list[DataLossError]:
    """Return an error for each stream of a query that does not exist any more."""
    return [
        _stream_gone(key, position, made_again=False)
        for key, position in positions.items()
        if position.number and txn.find_stream(key) is None
    ]


# --- lag ------------------------------------------------------------------------------------------


def report(
    txn: Txn,
    options: ReadOptions,
    start: Positions,
    planned: Positions,
    lost: Mapping[bytes, int],
) -> dict[str, dict[str, object]]:
    """Return the newest entry of each stream, the lag of a query, and what it reads and has lost.

    Args:
        start, planned: the ends of the batch that is being planned.
        lost: how many entries of each stream were found lost since the query began.
    """
    found: dict[str, dict[str, object]] = {}
    for key, stream in trigger_streams(txn, options):
        after = stream.after(planned.get(key, BEGINNING))
        begin = stream.after(start.get(key, BEGINNING))
        behind = stream.entries_after(after)
        there = stream.source_nodes.count(begin.next(), after).entries if begin < after else 0
        found[key.decode("utf-8", "backslashreplace")] = {
            "id": str(stream.last),
            "entriesBehind": behind,
            "secondsBehind": max(0, stream.last.ms - after.ms) / 1000 if behind and after.ms else 0,
            "entriesPlanned": there,
            "entriesLost": lost.get(key, 0),
        }
    return found
