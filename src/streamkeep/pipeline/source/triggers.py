"""The checks of a streaming read at each trigger: where the batch ends, and what is lost.

The loops here are interpreted, and the codec is compiled: a trigger takes about a microsecond per
node that it covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from streamkeep.arrow.keys import key_text
from streamkeep.engine.tables.manifest import erased_ids, iter_erasures
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.node.node import DELETED, live_ids, peek_counts, slots
from streamkeep.pipeline.options import ARCHIVE, EARLIEST, LATEST, LIVE, TAIL, ReadOptions
from streamkeep.pipeline.source.losses import ADVICE, DataLossError, WentBackError, node_remains
from streamkeep.pipeline.source.offsets import BEGINNING, Position, Positions
from streamkeep.pipeline.source.pins import find_streams, newest_archived
from streamkeep.pipeline.source.stream_nodes import StreamNodes, stream_numbered

_ABSENT: Final = {"id": None, "entriesBehind": 0, "secondsBehind": 0, "entriesPlanned": 0}


@dataclass
class Budget:
    """How much one trigger may still read."""

    entries: float = inf
    size_bytes: float = inf

    @property
    def spent(self) -> bool:
        return min(self.entries, self.size_bytes) <= 0


class TriggerStream:
    """One stream in one snapshot, as a streaming query sees it.

    Attributes:
        last: its last generated ID, because the newest entry may already be trimmed. For a read of
            the archive it is the newest entry there.
    """

    def __init__(self, txn: Txn, stream: Stream, source: str) -> None:
        self.stream = stream
        self.number = stream.number
        self.source_nodes = StreamNodes(txn, stream.number, stream, source)
        self.live_nodes = StreamNodes(txn, stream.number, stream, LIVE)
        record = stream.record
        if source == ARCHIVE:
            self.last = newest_archived(txn, stream.number)
        else:
            self.last = StreamId(record.last_ms, record.last_seq)

    def total(self) -> int:
        """Return how many entries were ever added, up to the newest one that a query sees."""
        added = self.stream.record.entries_added
        if self.source_nodes.source != ARCHIVE:
            return added
        others = StreamNodes(self.source_nodes.txn, self.number, self.stream, TAIL)
        return added - others.count(self.last.next(), MAX_ID).entries

    def end(self) -> Position:
        return self._position(self.last, self.total(), None)

    def after_reading(self, last: StreamId, read: int | None = None) -> Position:
        """Return the position after an entry.

        Args:
            read: how many entries come up to it; None to count those after it.
        """
        following = self.first_after(last)
        if following is None:
            return self._position(last, self.total(), None)
        return self._position(last, self.read_at(last) if read is None else read, following)

    def read_at(self, after: StreamId) -> int:
        """Return how many of the entries that were ever added come up to an ID."""
        return self.total() - self.entries_after(after)

    def _position(self, last: StreamId, read: int, following: StreamId | None) -> Position:
        record = self.stream.record
        newest = StreamId(*record.last_id())
        return Position(self.number, last, read, newest, record.entries_added, following)

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
        for ms, seq, load in self.source_nodes.nodes(after.next(), MAX_ID, None):
            data = load()
            for one in live_ids(data, ms, seq) if data else ():
                if one > after:
                    return StreamId(*one)
        return None

    def tombstones_after(self, after: StreamId) -> int:
        """Return the number of deleted entries that live nodes after an ID still hold."""
        count = 0
        for ms, seq, load in self.live_nodes.nodes(after.next(), MAX_ID, None):
            data = load()
            if data and (ms, seq) > after:
                count += peek_counts(data)[1]
            elif data:
                marked = slots(data, ms, seq)
                count += sum(one[:2] > after and bool(one[2] & DELETED) for one in marked)
        return count

    def lost_after(self, position: Position) -> int:
        """Return how many entries after a position were lost since.

        That is what is missing, and not known to be deleted by ID since: erasures and live nodes
        know that; of those in nodes that are gone, only the highest one is known.
        """
        after, following, record = position.id, position.next, self.stream.record
        # What was deleted between the two before the position was taken, `read` may count.
        since = after if following is None or position.last is None else position.last
        live, live_from = self.live_nodes, record.first_id() if record.length else MAX_ID
        erasures = dict(iter_erasures(live.txn, self.number, after.next(), MAX_ID))
        began = erasures.get(following or MAX_ID, inf)  # since the position was taken
        erased = {StreamId(*one) for one, at in erasures.items() if one > since or at >= began}
        ahead = {one for one in erased if one > since and one >= live_from}
        erased -= {one for one in ahead if node_remains(live, one)}  # these are tombstones
        missing = self.total() - (position.read or 0) - self.entries_after(after) - len(erased)
        if missing <= 0:
            return 0
        deleted = StreamId(*record.max_deleted_id())
        if deleted > since or deleted == following:
            gone = deleted not in erased and not node_remains(live, deleted)
            if missing <= self.tombstones_after(since) + gone:
                return 0
        first = self.first_after(after)  # an exact trim leaves tombstones in front of it
        if first is not None and deleted > first:
            missing -= self.tombstones_after(first)
        return max(1, missing)

    def entries_after(self, after: StreamId) -> int:
        return self.source_nodes.count(after.next(), MAX_ID).entries if self.last > after else 0


def trigger_streams(txn: Txn, options: ReadOptions) -> Iterator[tuple[bytes, TriggerStream]]:
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


def start_gone(txn: Txn, options: ReadOptions, key: bytes, number: int) -> DataLossError | None:
    """Return an error if entries from the ID on where a read is to start were trimmed.

    A time is no such ID: a read from a time on begins with the first entry that is there.
    """
    begin, stream = options.starting, txn.find_stream(key)
    starting = begin.of(key) if begin is not None and begin.by_id else MIN_ID
    there = stream is not None and stream.number == number
    if stream is None or not there or not isinstance(starting, StreamId) or starting == MIN_ID:
        return None
    current = TriggerStream(txn, stream, options.source)
    first = current.first_after(MIN_ID)
    if starting > current.last or (first is not None and first <= starting):
        return None
    missing = current.lost_after(Position(number, MIN_ID))
    if not missing:
        return None
    return DataLossError(
        f"stream {key_text(key)!r}: the read is to start at {starting}, but the stream has lost "
        f"{missing} entries to trimming, perhaps some from there on; {_remaining(first)}; next: "
        f"start there, or at {EARLIEST!r}; failOnDataLoss=false does so",
        key,
        missing,
    )


def newest_positions(txn: Txn, options: ReadOptions, start: Positions) -> Positions:
    """Return the positions after all present entries."""
    positions = dict(start)
    for key, stream in trigger_streams(txn, options):
        if stream.last > stream.after(start.get(key, BEGINNING)):
            positions[key] = stream.met(stream.end(), start, key)
    return positions


def under_present_keys(txn: Txn, options: ReadOptions, positions: Positions) -> Positions:
    """Return the positions of the streams that a query reads, by the keys that they have now."""
    streams = ((stream_numbered(txn, one.number, key), one) for key, one in positions.items())
    return {s.name: one for s, one in streams if s is not None and options.wants(s.name)}


def limited_positions(
    txn: Txn, options: ReadOptions, start: Positions, budget: Budget, bound: Positions | None = None
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
        known = start.get(key, BEGINNING)
        after, read = stream.after(known), known.read
        last = stream.last if bound is None else min(stream.last, bound[key].id)
        if last > after:
            if read is None or known.next is None or known.next != stream.first_after(after):
                read = stream.read_at(after)  # some may be lost
            walks[key] = _Steps(stream, after, last, read)
    while walks and not budget.spent:
        share = Budget(max(1, budget.entries / len(walks)), max(1, budget.size_bytes / len(walks)))
        for key, steps in list(walks.items()):
            if budget.spent:
                break
            entries, size = steps.take(share)
            budget.entries -= entries
            budget.size_bytes -= size
            positions[key] = steps.stream.met(steps.position(), start, key)
            if steps.ended:
                del walks[key]
    return positions


class _Steps:
    """The entries of one stream after an ID, taken in portions."""

    def __init__(self, stream: TriggerStream, after: StreamId, last: StreamId, read: int) -> None:
        self.stream = stream
        self.last = last
        self.id = after
        self._read = read  # of all entries of the stream, those up to `id`
        self.ended = False
        self._nodes = stream.source_nodes.nodes(after.next(), last, None)
        self._ids: list[tuple[int, int]] = []  # the IDs of the present node that are not taken yet
        self._size = 0  # bytes per entry of that node

    def take(self, share: Budget) -> tuple[int, int]:
        entries = size = 0
        while self._fill():
            by_size = max(1, (share.size_bytes - size) / max(1, self._size))
            room = int(min(len(self._ids), share.entries - entries, by_size))
            if room <= 0 or size >= share.size_bytes:
                return entries, size
            self.id = StreamId(*self._ids[room - 1])
            del self._ids[:room]
            self._read += room
            entries += room
            size += room * self._size
        self.ended = True
        self.id = self.last  # higher than the last entry if that one was deleted
        return entries, size

    def _fill(self) -> bool:
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
        if self.id >= self.stream.last:
            return self.stream.end()
        return self.stream.after_reading(self.id, self._read)


# --- lost entries ---------------------------------------------------------------------------------


def check_nothing_lost(txn: Txn, options: ReadOptions, key: bytes, position: Position) -> None:
    """Raise DataLossError if entries after a position were lost before they were read."""
    check_same_stream(txn, key, position)
    check_nothing_trimmed(txn, options, key, position)


def check_same_stream(txn: Txn, key: bytes, position: Position) -> None:
    """Raise DataLossError if the stream of a position is gone, or has gone back in time."""
    if position.number == 0:
        return  # no position yet
    stream = stream_numbered(txn, position.number, key)
    if stream is None:
        made_again = txn.find_stream(key) is not None
        unread = "unread entries of the former stream are lost"
        if position.next is not None:
            count = max(1, position.unread)
            unread = f"{count} entries from {position.next} on, or more, were not read and are lost"
        follow = "reads the new stream from its beginning" if made_again else "forgets the stream"
        raise DataLossError(
            f"stream {key_text(key)!r} was deleted{' and created again' if made_again else ''} "
            f"after entry {position.id} was read; {unread}; next: failOnDataLoss=false {follow}",
            key,
            max(1, position.unread),
        )
    record = stream.record
    last, added = StreamId(*record.last_id()), record.entries_added
    if position.last is None or position.added is None:
        return
    if last < position.last or added < position.added:
        raise WentBackError(
            f"stream {key_text(key)!r} has gone back in time: it had {position.added} entries "
            f"added, up to {position.last}, and now has {added}, up to {last}; perhaps an older "
            "copy of the store was put back, or XSETID set it back. Entries that it got since are "
            f"not read if their IDs are not above {min(position.id, last)}; next: "
            "failOnDataLoss=false continues after that entry",
            key,
        )


def check_nothing_trimmed(txn: Txn, options: ReadOptions, key: bytes, position: Position) -> None:
    """Raise DataLossError if entries after a position were trimmed before they were read.

    `losses` says how trimmed entries differ from deleted ones.
    """
    stream = stream_numbered(txn, position.number, key)
    if stream is None or position.read is None:
        return
    record, after, following = stream.record, position.id, position.next
    if record.length and record.first_id() <= after:
        return
    current = TriggerStream(txn, stream, options.source)
    first = current.first_after(after)
    deleted = record.max_deleted_id()
    if following is not None and first is not None and first <= following:
        # Only where the archive was turned off can there be a hole behind an entry that remains.
        archived = not record.length or first < StreamId(*record.first_id())
        if not archived or stream.archiving() or deleted > after or options.source == ARCHIVE:
            return
        where = f"after {first}"
    elif following is None and options.source == ARCHIVE:
        return
    else:
        nearest = after if following is None else following
        known = deleted >= (following or after.next())
        known = known or bool(erased_ids(txn, position.number, nearest, nearest))
        # A node in the archive remains when live ones behind it are trimmed without one.
        whole = stream.archiving() or options.source == ARCHIVE
        nodes = current.source_nodes if whole else current.live_nodes
        if known and node_remains(nodes, nearest):
            return
        where = f"after {after}" if following is None else f"from {following} on"
    lost = current.lost_after(position)
    if not lost:
        return
    raise DataLossError(
        f"stream {key_text(key)!r}: {lost} entries {where} were trimmed before they were read, and "
        f"are not archived; {_remaining(first)}; {ADVICE}",
        key,
        lost,
    )


def _remaining(first: StreamId | None) -> str:
    return "no entry remains" if first is None else f"the first remaining entry is {first}"


def batch_gone(key: bytes, start: Position, last: Position) -> DataLossError:
    """Return the error for a stream that is gone since a batch of it was planned."""
    return DataLossError(
        f"stream {key_text(key)!r} was deleted, and perhaps created again, or its store was "
        f"exchanged, after a batch of it was planned; its entries from {start.id.next()} to "
        f"{last.id} are lost; next: failOnDataLoss=false continues without them",
        key,
        max(1, (last.read or 0) - (start.read or 0)),
    )


def resumed(
    txn: Txn, options: ReadOptions, was: str, store: str, positions: Positions
) -> tuple[Positions, list[tuple[Position, DataLossError]]]:
    """Return the positions from which a query goes on, and what was lost since it had its own.

    A stream that is not the former one any more has no position, and one that was renamed has it
    under its present key. One that has gone back in time is read on after the newest entry that
    both the query and the stream have.

    Args:
        was, store: the UUIDs of the store in which the positions are, and of the present one.
    """
    found: Positions = {}
    losses: list[tuple[Position, DataLossError]] = []
    for key, position in positions.items():
        read = f"stream {key_text(key)!r}"
        stream = stream_numbered(txn, position.number, key)
        try:
            if was != store:
                raise DataLossError(
                    f"{options.path}: the query has read {read} up to {position.id} from store "
                    f"{was}, and now store {store} is there; entries of the former one that were "
                    "not read are lost; next: put that one back, or begin with a new checkpoint; "
                    "failOnDataLoss=false reads this store from its beginning",
                    key,
                    max(1, position.unread),
                )
            check_same_stream(txn, key, position)
            if stream is not None and not options.wants(stream.name):
                raise DataLossError(
                    f"{read} was renamed to {key_text(stream.name)!r}, which the query does not "
                    f"read, after entry {position.id} was read; next: rename it back, or begin a "
                    "query that reads that key; failOnDataLoss=false forgets the stream",
                    key,
                    max(1, position.unread),
                )
        except WentBackError as error:
            losses.append((position, error))
            assert stream is not None
            now = TriggerStream(txn, stream, options.source)
            found[stream.name] = now.after_reading(min(position.id, now.end().id))
        except DataLossError as error:
            losses.append((position, error))
        else:
            found[key if stream is None else stream.name] = position
    if options.source == ARCHIVE:  # what was deleted before it came there is no loss of a read
        return found, losses
    for key, met in trigger_streams(txn, options):
        if key not in found and (lost := met.lost_after(Position(met.number, MIN_ID))):
            problem = (
                f"stream {key_text(key)!r}, which the query meets now: {lost} of its entries were "
                "trimmed before they were read, and are not archived; "
                f"{_remaining(met.first_after(MIN_ID))}; {ADVICE}"
            )
            losses.append((Position(met.number, MIN_ID), DataLossError(problem, key, lost)))
    return found, losses


# --- lag ------------------------------------------------------------------------------------------


def report(
    txn: Txn, options: ReadOptions, start: Positions, planned: Positions, lost: Mapping[bytes, int]
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
    for key in (*lost, *(options.keys or ())):  # of streams that are not there
        name = key.decode("utf-8", "backslashreplace")
        found.setdefault(name, {**_ABSENT, "entriesLost": lost.get(key, 0)})
    return found
