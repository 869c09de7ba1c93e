"""What a streaming read asks a store at each trigger: how far there is to read, and what is gone.

Compiled codec, interpreted loop: a step costs a microsecond per node that the trigger covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from streamkeep.engine.nodes import NodeWalk
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn
from streamkeep.format.entry import StreamId
from streamkeep.format.node import live_ids, peek_counts
from streamkeep.pipeline.offsets import BEGINNING, DataLossError, Position, Positions
from streamkeep.pipeline.options import LATEST, ReadOptions
from streamkeep.pipeline.reading import find_keys

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


def first_positions(txn: Txn, options: ReadOptions) -> Positions:
    """Return where a new query begins: at the end of each stream, if nothing else was asked for."""
    positions: Positions = {}
    for key in find_keys(txn, options, all_there=False):
        stream = txn.find_stream(key)
        if stream is None:
            continue
        starting = LATEST if options.starting is None else options.starting.of(key)
        if starting == LATEST:
            positions[key] = _at_end(stream)
        elif isinstance(starting, StreamId) and starting > BEGINNING.id:
            positions[key] = Position(stream.number, starting.previous())
        else:
            positions[key] = Position(stream.number, BEGINNING.id)
    return positions


def newest_positions(txn: Txn, options: ReadOptions, start: Positions) -> Positions:
    """Return where a query that reads everything there is would stand."""
    positions = dict(start)
    for key, stream in _streams(txn, options, start):
        position = start.get(key, BEGINNING)
        if position.number not in (0, stream.number):  # deleted and made again
            position = BEGINNING
        if _last(stream) > position.id:
            positions[key] = _at_end(stream)
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
    for key, stream in _streams(txn, options, start):
        if bound is not None and key not in bound:
            continue
        position = start.get(key, BEGINNING)
        if position.number not in (0, stream.number):
            position = BEGINNING
        last = _last(stream) if bound is None else min(_last(stream), bound[key].id)
        if last > position.id:
            walks[key] = _Steps(txn, stream, position.id, last)
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
    """The live entries of one stream behind an ID, taken in portions."""

    def __init__(self, txn: Txn, stream: Stream, after: StreamId, last: StreamId) -> None:
        self.stream = stream
        self.last = last
        self.id = after
        self.ended = False
        self._walk = NodeWalk(txn, stream)
        self._ids: list[tuple[int, int]] = []  # of the node that stands open, not yet taken
        self._size = 0  # of that node, per entry
        self._more = self._walk.seek(*after.next())

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
        self.id = self.last  # behind it nothing live is wanted, but IDs that were deleted may be
        return entries, size

    def _fill(self) -> bool:
        """Have an entry at hand that has not been taken; False when there is none."""
        while not self._ids and self._more:
            walk = self._walk
            data = walk.load()
            found = live_ids(data, walk.ms, walk.seq)
            if found and found[0] <= self.id:
                found = [one for one in found if one > self.id]
            if found and found[-1] > self.last:
                found = [one for one in found if one <= self.last]
                self._more = False
            self._ids = found
            self._size = len(data) // max(1, len(found))
            self._more = self._more and walk.next()
        return bool(self._ids)

    def position(self) -> Position:
        """Return the position behind what was taken."""
        if self._fill():
            return Position(self.stream.number, self.id, StreamId(*self._ids[0]))
        if self.id >= _last(self.stream):
            return _at_end(self.stream)
        return Position(self.stream.number, self.id)


def _streams(txn: Txn, options: ReadOptions, start: Positions) -> Iterator[tuple[bytes, Stream]]:
    """Yield the streams of a query that are there; new ones are read from their beginning."""
    for key in find_keys(txn, options, all_there=False):
        stream = txn.find_stream(key)
        if stream is not None:
            yield key, stream


def _last(stream: Stream) -> StreamId:
    return StreamId(stream.record.last_live_ms, stream.record.last_live_seq)


def _at_end(stream: Stream) -> Position:
    record = stream.record
    end = StreamId(record.last_ms, record.last_seq)
    return Position(stream.number, end, added=record.entries_added)


# --- what is gone ---------------------------------------------------------------------------------


def check_nothing_lost(txn: Txn, key: bytes, position: Position) -> None:
    """Raise DataLossError when entries behind a position were trimmed before they were read.

    Trimming takes from the front. So what came next is there, or it is gone with all up to the
    first that is there. An entry that was deleted by its ID is nobody's loss: where entries behind
    the position were deleted, too, no loss is claimed.
    """
    if position.number == 0:
        return
    stream = txn.find_stream(key)
    if stream is None:
        return  # nothing to read: the query waits
    if stream.number != position.number:
        raise DataLossError(
            f"stream {key!r} was deleted and made again since entry {position.id} was read; what "
            "was not read of the former one is gone. failOnDataLoss=false reads the new one from "
            "its beginning"
        )
    record = stream.record
    if (record.max_deleted_ms, record.max_deleted_seq) > position.id:
        return
    first = _first_behind(txn, stream, position.id)
    lost: str | None = None
    if position.next is not None and (first is None or first > position.next):
        lost = f"from {position.next}"
    elif position.added is not None and (record.first_ms, record.first_seq) > position.id:
        count = record.entries_added - position.added - record.length
        lost = f"{count} behind {position.id}" if count > 0 else None
    elif position.added is not None and record.length == 0:
        count = record.entries_added - position.added
        lost = f"{count} behind {position.id}" if count > 0 else None
    if lost is not None:
        there = "none is there now" if first is None else f"the first that is there is {first}"
        raise DataLossError(
            f"stream {key!r}: entries {lost} were trimmed before they were read, and are in no "
            f"archive; {there}. failOnDataLoss=false goes on with what is there; archiving the "
            "stream keeps this from happening"
        )


def _first_behind(txn: Txn, stream: Stream, after: StreamId) -> StreamId | None:
    """Return the first live entry behind an ID."""
    if not stream.record.length or _last(stream) <= after:
        return None
    walk = NodeWalk(txn, stream)
    found = walk.seek(*after.next())
    while found:
        for one in live_ids(walk.load(), walk.ms, walk.seq):
            if one > after:
                return StreamId(*one)
        found = walk.next()
    return None


# --- how far behind -------------------------------------------------------------------------------


def entries_behind(txn: Txn, stream: Stream, after: StreamId) -> int:
    """Return how many live entries stand behind an ID; beyond 20,000 nodes, about how many."""
    if not stream.record.length or _last(stream) <= after:
        return 0
    walk = NodeWalk(txn, stream)
    count = nodes = 0
    found = walk.seek(*after.next())
    while found and nodes < _COUNTED_NODES:
        data = walk.load()
        if nodes == 0:
            count += sum(one > after for one in live_ids(data, walk.ms, walk.seq))
        else:
            count += peek_counts(data[:_HEAD])[0]
        nodes += 1
        found = walk.next()
    if not found:
        return count
    first = StreamId(stream.record.first_ms, stream.record.first_seq)
    if after < first:
        return stream.record.length
    share = (_last(stream).ms - walk.ms) / max(1, walk.ms - after.ms)
    return min(stream.record.length, round(count * (1 + share)))


def report(txn: Txn, options: ReadOptions, positions: Positions) -> dict[str, dict[str, object]]:
    """Return the newest entry of each stream, and how far behind it a query is."""
    found: dict[str, dict[str, object]] = {}
    for key, stream in _streams(txn, options, positions):
        position = positions.get(key, BEGINNING)
        after = position.id if position.number in (0, stream.number) else BEGINNING.id
        behind = entries_behind(txn, stream, after)
        last = _last(stream)
        found[key.decode("utf-8", "backslashreplace")] = {
            "id": str(last),
            "entriesBehind": behind,
            "secondsBehind": max(0, last.ms - after.ms) / 1000 if behind and after.ms else 0,
        }
    return found
