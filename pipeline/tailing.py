"""What a streaming read asks a store at each trigger: how far there is to read, and what is gone.

Compiled codec, interpreted loop: a step costs a microsecond per node that the trigger covers.
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
from streamkeep.pipeline.joined import JoinedStream
from streamkeep.pipeline.offsets import BEGINNING, DataLossError, Position, Positions, key_text
from streamkeep.pipeline.options import ARCHIVE, LATEST, LIVE, ReadOptions
from streamkeep.pipeline.reading import find_streams

_COUNTED_NODES: Final = 20_000  # beyond, what is left is estimated
_HEAD: Final = 26


@dataclass
class Budget:
    """What one trigger may still read; None for no limit."""

    entries: int | None
    size_bytes: int | None

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read."""
        return (self.entries is not None and self.entries <= 0) or (
            self.size_bytes is not None and self.size_bytes <= 0
        )


class TailedStream:
    """One stream in one snapshot, as a streaming query sees it.

    Attributes:
        last: its newest entry; of a stream read with its archive the last ID that it has given,
            since what is newest may be trimmed and archived already.
    """

    def __init__(self, txn: Txn, stream: Stream, source: str) -> None:
        self.stream = stream
        self.number = stream.number
        self.joined = JoinedStream(txn, stream.number, stream, source)
        record = stream.record
        if source == LIVE:
            self.last = StreamId(record.last_live_ms, record.last_live_seq)
        elif source == ARCHIVE:
            segment = find_segment(txn, stream.number, *MAX_ID)
            self.last = MIN_ID if segment is None else StreamId(*segment.last_id)
        else:
            self.last = StreamId(record.last_ms, record.last_seq)

    def end(self) -> Position:
        """Return the position behind everything there is."""
        if self.joined.source == ARCHIVE:
            return Position(self.number, self.last)
        record = self.stream.record
        end = StreamId(record.last_ms, record.last_seq)
        return Position(self.number, end, added=record.entries_added)

    def after(self, position: Position) -> StreamId:
        """Return the ID behind which a query reads on; of a stream made again, the lowest."""
        return position.id if position.number in (0, self.number) else MIN_ID

    def first_behind(self, after: StreamId) -> StreamId | None:
        """Return the first entry behind an ID."""
        for ms, seq, load in self.joined.nodes(after.next(), MAX_ID, None):
            data = load()
            for one in live_ids(data, ms, seq) if data else ():
                if one > after:
                    return StreamId(*one)
        return None

    def count_behind(self, after: StreamId, most_nodes: int) -> tuple[int, StreamId | None]:
        """Return how many entries stand behind an ID in so many nodes, and the next one's key."""
        count = nodes = 0
        for ms, seq, load in self.joined.nodes(after.next(), MAX_ID, None):
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

    def entries_behind(self, after: StreamId) -> int:
        """Return how many entries stand behind an ID; beyond 20,000 nodes, about how many."""
        if self.last <= after:
            return 0
        count, following = self.count_behind(after, _COUNTED_NODES)
        if following is None:
            return count
        share = (self.last.ms - following.ms) / max(1, following.ms - after.ms)
        return round(count * (1 + share))


def tailed_streams(txn: Txn, options: ReadOptions) -> Iterator[tuple[bytes, TailedStream]]:
    """Yield the streams of a query that are there."""
    for key, number in find_streams(txn, options, all_there=False).items():
        stream = txn.find_stream(key)
        if stream is not None and stream.number == number:
            yield key, TailedStream(txn, stream, options.source)


# --- how far there is to read ---------------------------------------------------------------------


def first_positions(txn: Txn, options: ReadOptions) -> Positions:
    """Return where a new query begins: at the end of each stream, if nothing else was asked for."""
    positions: Positions = {}
    for key, tailed in tailed_streams(txn, options):
        starting = LATEST if options.starting is None else options.starting.of(key)
        if starting == LATEST:
            positions[key] = tailed.end()
        elif isinstance(starting, StreamId) and starting > MIN_ID:
            positions[key] = Position(tailed.number, starting.previous())
        else:
            positions[key] = Position(tailed.number, MIN_ID)
    return positions


def newest_positions(txn: Txn, options: ReadOptions, start: Positions) -> Positions:
    """Return where a query that reads everything there is would stand."""
    positions = dict(start)
    for key, tailed in tailed_streams(txn, options):
        if tailed.last > tailed.after(start.get(key, BEGINNING)):
            positions[key] = tailed.end()
    return positions


def limited_positions(
    txn: Txn,
    options: ReadOptions,
    start: Positions,
    budget: Budget,
    bound: Positions | None = None,
) -> Positions:
    """Return how far a trigger reads within a budget, which the streams share evenly.

    Args:
        bound: where to stop at the latest; streams that are not in it are left alone.
    """
    positions = dict(start)
    walks: dict[bytes, _Steps] = {}
    for key, tailed in tailed_streams(txn, options):
        if bound is not None and key not in bound:
            continue
        after = tailed.after(start.get(key, BEGINNING))
        last = tailed.last if bound is None else min(tailed.last, bound[key].id)
        if last > after:
            walks[key] = _Steps(tailed, after, last)
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
    """The entries of one stream behind an ID, taken in portions."""

    def __init__(self, tailed: TailedStream, after: StreamId, last: StreamId) -> None:
        self.tailed = tailed
        self.last = last
        self.id = after
        self.ended = False
        self._nodes = tailed.joined.nodes(after.next(), last, None)
        self._ids: list[tuple[int, int]] = []  # of the node that stands open, not yet taken
        self._size = 0  # of that node, per entry

    def take(self, share: Budget) -> tuple[int, int]:
        """Step over entries until the share is used up; return how many, and their bytes."""
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
        self.id = self.last  # behind it nothing is wanted, but IDs that were deleted may be
        return entries, size

    def _fill(self) -> bool:
        """Have an entry at hand that has not been taken; False when there is none."""
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
        """Return the position behind what was taken."""
        if self._fill():
            return Position(self.tailed.number, self.id, StreamId(*self._ids[0]))
        if self.id >= self.tailed.last:
            return self.tailed.end()
        return Position(self.tailed.number, self.id)


# --- what is gone ---------------------------------------------------------------------------------


def check_nothing_lost(txn: Txn, options: ReadOptions, key: bytes, position: Position) -> None:
    """Raise DataLossError when entries behind a position were trimmed before they were read.

    Trimming takes from the front. So what came next is there, live or in the archive, or it is gone
    with all up to the first that is there. An entry that was deleted by its ID is nobody's loss:
    where entries behind the position were deleted, too, no loss is claimed.
    """
    stream = txn.find_stream(key)
    if position.number == 0 or stream is None:
        return  # nothing is known, or nothing there: the query waits
    if stream.number != position.number:
        raise DataLossError(
            f"stream {key_text(key)!r} was deleted and made again since entry {position.id} was "
            "read; what was not read of the former one is gone. failOnDataLoss=false reads the new "
            "one from its beginning"
        )
    record = stream.record
    if (record.max_deleted_ms, record.max_deleted_seq) > position.id:
        return
    trimmed = record.length == 0 or (record.first_ms, record.first_seq) > position.id
    if not trimmed:
        return
    tailed = TailedStream(txn, stream, options.source)
    first = tailed.first_behind(position.id)
    lost: str | None = None
    if position.next is not None and (first is None or first > position.next):
        lost = f"from {position.next}"
    elif position.added is not None and record.entries_added > position.added:
        there, more = tailed.count_behind(position.id, _COUNTED_NODES)
        count = record.entries_added - position.added - there
        if more is None and count > 0:
            lost = f"{count} behind {position.id}"
    if lost is not None:
        following = "none is there now" if first is None else f"the first that is there is {first}"
        raise DataLossError(
            f"stream {key_text(key)!r}: entries {lost} were trimmed before they were read, and are "
            f"in no archive; {following}. failOnDataLoss=false goes on with what is there; "
            "archiving the stream keeps this from happening"
        )


# --- how far behind -------------------------------------------------------------------------------


def report(txn: Txn, options: ReadOptions, positions: Positions) -> dict[str, dict[str, object]]:
    """Return the newest entry of each stream, and how far behind it a query is."""
    found: dict[str, dict[str, object]] = {}
    for key, tailed in tailed_streams(txn, options):
        after = tailed.after(positions.get(key, BEGINNING))
        behind = tailed.entries_behind(after)
        found[key.decode("utf-8", "backslashreplace")] = {
            "id": str(tailed.last),
            "entriesBehind": behind,
            "secondsBehind": max(0, tailed.last.ms - after.ms) / 1000 if behind and after.ms else 0,
        }
    return found
