"""What a commit has done to streams: the rows that its record changes, before and after.

Records of the journal are physical: an append has the bytes that it adds to the row of a stream,
and not the names of its fields. So `Rows` has all rows as they were before a record. The effects of
a commit are the difference that its record makes, whatever command it came from. They are in an
order in which they can be applied one after the other:

1. streams that are gone, that have another name, and that are new;
2. of each stream: new entries, its counters where these do not say all, entries that are gone;
3. of each group of it: the group, new consumers, deliveries, what is no longer pending, consumers
   that are gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final, Generic, Literal, NamedTuple, cast

from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.entry import Entry, Text, pairs_of
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.id_codec import MAX, Id, bits, id_text, next_id
from streamkeep.format.core.keys import (
    CONSUMERS,
    GROUPS,
    KEYS,
    NAMES,
    NODES,
    PEL,
    STREAMS,
    TABLES,
    is_name_key,
    name_key,
    number_key,
    pack_number,
)
from streamkeep.format.core.values import as_given
from streamkeep.format.journal.journal import DELETE, MOVE, ChangeReader
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.node import ENTRY, TEXT, SlotCursor, read_header
from streamkeep.format.node.ranges import Range, read_slots, resume_cursor
from streamkeep.format.rows.group_records import GroupRecord, decode_consumer, decode_group
from streamkeep.format.rows.nacks import Nack, count_nacks, decode_nack
from streamkeep.format.rows.records import StreamRecord, decode_stream_record

_ALL: Final = 1 << 62  # entries
_MOST_IDS: Final = 1000  # of one effect
_MOST_CURSORS: Final = 1000
_STREAM_TABLES: Final = (NAMES, STREAMS, NODES, GROUPS)
_GROUP_TABLES: Final = (CONSUMERS, PEL)

Kind = Literal[
    "stream_created",
    "stream_deleted",
    "stream_renamed",
    "added",
    "id_set",
    "deleted",
    "trimmed",
    "group_created",
    "group_destroyed",
    "group_moved",
    "consumer_created",
    "consumer_deleted",
    "delivered",
    "returned",
    "acknowledged",
]


class Effect(NamedTuple, Generic[Text]):
    """One change that a commit has made.

    Attributes:
        kind: "stream_created", "stream_deleted", "stream_renamed" (to `name`); "added" (`ids` has
            one ID, `fields` its fields), "deleted" (`ids`), "trimmed" (`number` entries: all up to
            the ID in `ids`), "id_set" (XSETID: the last generated ID in `ids`, entries ever added
            in `number`); "group_created" and "group_moved" (the last delivered ID in `ids`, entries
            read in `number`, -1 if unknown), "group_destroyed"; "consumer_created",
            "consumer_deleted"; "delivered" (`ids` are pending for `consumer`, for the `number`th
            time, since `time_ms`: XREADGROUP, XCLAIM, XAUTOCLAIM), "returned" (`ids` are pending
            for no consumer: XNACK), "acknowledged" (`ids` are no longer pending: XACK, or their
            consumer was deleted).
        key: the stream; of "stream_renamed", its name before.
        ids: IDs of entries, ascending, but for deliveries, which have the order of delivery.
        number, time_ms: see `kind`; the time is in Unix milliseconds.
    """

    kind: Kind
    key: Text
    ids: tuple[Text, ...] = ()
    fields: dict[Text, Text] | None = None
    group: Text | None = None
    consumer: Text | None = None
    name: Text | None = None
    number: int = 0
    time_ms: int = 0

    @property
    def pairs(self) -> list[tuple[Text, Text]]:
        """All (field, value) pairs in the order of the entry, repeated fields included."""
        return [] if self.fields is None else pairs_of(self.fields)


class Commit(NamedTuple, Generic[Text]):
    """One commit of a store.

    Attributes:
        number: its number; they have no gaps. `changes(number)` goes on after it.
        position: the same with the checksum of its record, as text: `changes(position)` also proves
            that the store has made this commit, and not another one with that number.
        effects: what it has changed in streams; empty for other work, such as leases of consumers.
    """

    number: int
    position: str
    effects: tuple[Effect[Text], ...]


def commit_position(number: int, chain: int) -> str:
    """Return the position after a commit, whose record has the checksum `chain`."""
    return f"{number}-{chain:016x}"


def parse_position(value: int | str | bytes) -> tuple[int, int]:
    """Return commit number and checksum, 0 if that is not given; raise ArgumentError."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if isinstance(text, int) and not isinstance(text, bool) and 0 <= text < _ALL:
        return text, 0
    if isinstance(text, str):
        number, dash, chain = text.partition("-")
        digits = number.isascii() and number.isdecimal() and len(number) < 19
        if digits and (not dash or (len(chain) == 16 and set(chain) <= set("0123456789abcdef"))):
            return int(number), int(chain or "0", 16)
    raise ArgumentError(
        f"from_commit must be the number or the position of a commit, not {as_given(value)}"
    )


class Rows(Generic[Text]):
    """All rows of a store as of one commit, which moves on with each record.

    Attributes:
        newer: by table and key, the rows that records have changed; None for no row.
    """

    def __init__(
        self,
        get: Callable[[int, bytes], bytes | None],
        text: Callable[[bytes], Text],
        *,
        decode: bool,
    ) -> None:
        """Begin with the rows that `get(table, db_key)` returns.

        Args:
            text: makes keys, names and IDs of bytes.
            decode: whether entries have texts.
        """
        self.begin(get)
        self._cursors: dict[int, SlotCursor] = {}  # by stream, after the last entry of a node
        self._text: Callable[[bytes], Text] = text
        self._shape: int = int(TEXT if decode else ENTRY)

    def begin(self, get: Callable[[int, bytes], bytes | None]) -> None:
        """Go on with rows that are stored as they are here."""
        self._get_stored = get
        self.newer: dict[tuple[int, bytes], bytes | None] = {}
        self._old: dict[tuple[int, bytes], bytes | None] = {}  # rows before the last record

    def apply(self, body: bytes) -> None:
        """Apply the record of the next commit."""
        self._old = {}
        change = ChangeReader(body, TABLES)
        while change.next():
            table, db_key = change.table, change.db_key
            old = self._get(table, db_key)
            if change.kind == MOVE:
                change.change().check(-1 if old is None else len(old))
                self._put(change.kept, db_key, old)
            gone = change.kind in (DELETE, MOVE)
            self._put(table, db_key, None if gone else change.change().apply(old))

    def _put(self, table: int, db_key: bytes, value: bytes | None) -> None:
        self._old.setdefault((table, db_key), self._get(table, db_key))
        self.newer[table, db_key] = value

    def _get(self, table: int, db_key: bytes) -> bytes | None:
        if (table, db_key) in self.newer:
            return self.newer[table, db_key]
        return self._get_stored(table, db_key)

    def _row(self, table: int, db_key: bytes, value: bytes | None) -> bytes | None:
        """Return the checked body of a row."""
        return None if value is None else row_body(table, db_key, value, TABLES[table].name)

    def effects(self) -> Iterator[Effect[Text]]:
        """Yield the effects of the record that was applied last."""
        touched: dict[int, defaultdict[int, list[bytes]]] = {
            table: defaultdict(list) for table in (*_STREAM_TABLES, *_GROUP_TABLES)
        }
        for table, db_key in sorted(self._old):
            if table in touched:
                touched[table][int.from_bytes(db_key[:8], "big")].append(db_key)
        yield from self._names(touched[NAMES])
        numbers = {number for table in _STREAM_TABLES for number in touched[table]}
        for number in sorted(numbers):
            db_key = pack_number(number)
            name = self._row(NAMES, db_key, self._get(NAMES, db_key))
            if name is None:
                continue  # deleted, perhaps long ago: its rows are removed bit by bit
            key = self._text(name)
            if number in touched[STREAMS]:
                yield from self._entries(key, db_key, touched[NODES][number])
            for group_key in touched[GROUPS][number]:
                yield from self._group(key, group_key, touched)

    # --- names ------------------------------------------------------------------------------

    def _names(self, touched: dict[int, list[bytes]]) -> Iterator[Effect[Text]]:
        moves: dict[bytes, bytes] = {}
        made: list[bytes] = []
        for (db_key,) in touched.values():
            was = self._row(NAMES, db_key, self._old[NAMES, db_key])
            now = self._row(NAMES, db_key, self._get(NAMES, db_key))
            if was is not None and now is None:
                yield Effect("stream_deleted", self._text(was))
            elif was is not None and now is not None and was != now:
                moves[was] = now
            elif was is None and now is not None:
                made.append(now)
        while moves:  # each before its name is taken
            was = next((one for one in moves if moves[one] not in moves), b"")
            if was not in moves:  # names that went round in a circle: by way of another one
                was = next(iter(moves))
                other = b"%s (renamed)" % was
                while self._get(KEYS, name_key(b"", other)) is not None or other in moves:
                    other += b")"
                moves[other], now = moves.pop(was), other
            else:
                now = moves.pop(was)
            yield Effect("stream_renamed", self._text(was), name=self._text(now))
        for name in made:
            yield Effect("stream_created", self._text(name))

    # --- entries ----------------------------------------------------------------------------

    def _entries(self, key: Text, db_key: bytes, nodes: list[bytes]) -> Iterator[Effect[Text]]:
        stored_before, stored = self._old[STREAMS, db_key], self._get(STREAMS, db_key)
        old, new = _record(stored_before), _record(stored)
        values = [*[self._get(NODES, node) for node in nodes], stored]
        added_count = new.entries_added - old.entries_added
        last, counted = old.last_id(), old.entries_added
        gone: list[Id] = []
        added = self._between(values, next_id(*last)) if added_count else {}
        if (
            new.length - old.length != added_count
            or len(added) != added_count
            or new.max_deleted_id() != old.max_deleted_id()
            or (old.length and new.first_id() != old.first_id())
        ):  # not only new entries, as nearly always
            before = self._between(
                [*[self._old[NODES, node] for node in nodes], stored_before], (0, 0)
            )
            after = self._between(values, (0, 0))
            added = {one: entry for one, entry in after.items() if before.get(one) != entry}
            gone = [one for one, entry in before.items() if after.get(one) != entry]
        again = {one for one in gone if one in added}  # IDs that were given a second time
        if again:
            yield from self._gone(key, sorted(again), new, everything=True)
        for one, entry in added.items():
            yield Effect("added", key, (entry.id,), fields=entry.fields)
            last, counted = max(last, one), counted + 1
        if (last, counted) != (new.last_id(), new.entries_added):
            yield Effect("id_set", key, (self._id(new.last_id()),), number=new.entries_added)
        same = new.max_deleted_id() == old.max_deleted_id()
        yield from self._gone(key, [one for one in gone if one not in again], new, trimmed=same)

    def _gone(
        self,
        key: Text,
        ids: list[Id],
        record: StreamRecord,
        *,
        trimmed: bool = False,
        everything: bool = False,
    ) -> Iterator[Effect[Text]]:
        """Yield effects of entries that are gone: the oldest ones may have been trimmed.

        XDEL raises max_deleted_id where that is below the entry, and trimming never does.

        Args:
            trimmed: max_deleted_id is as before.
            everything: these were deleted.
        """
        first = record.first_id() if record.length else (MAX, MAX)
        highest = (0, 0) if trimmed else record.max_deleted_id()
        front = [] if everything else [one for one in ids if highest < one < first]
        apart = set(front)
        left = [one for one in ids if one not in apart]
        for start in range(0, len(left), _MOST_IDS):
            some = left[start : start + _MOST_IDS]
            yield Effect("deleted", key, tuple(map(self._id, some)))
        if front:  # last: what is gone up to there is then what was trimmed
            yield Effect("trimmed", key, (self._id(front[-1]),), number=len(front))

    def _between(self, values: list[bytes | None], start: Id) -> dict[Id, Entry[Text]]:
        """Return the live entries of some nodes from an ID on, in order."""
        found: dict[Id, Entry[Text]] = {}
        for value in values:
            node = None if value is None else decode_envelope(value, "macro node")
            if node is not None and node.listpack:
                wanted = Range(*start, MAX, MAX, _ALL, False, self._shape)
                wanted.ids = []
                out: list[object] = []
                # Most commits append to the node of the one before: go on where that was read.
                cursor = self._cursors.pop(node.number, None) if start > (0, 0) else None
                if cursor is not None:
                    same = (cursor.node.ms, cursor.node.seq) == (bits(node.ms), bits(node.seq))
                    cursor = resume_cursor(cursor, node.listpack) if same else None
                if cursor is None:
                    cursor = SlotCursor(read_header(node.listpack, node.ms, node.seq))
                read_slots(cursor, wanted, out)
                found.update(zip(wanted.ids, cast("list[Entry[Text]]", out), strict=True))
                if len(self._cursors) >= _MOST_CURSORS:
                    self._cursors.clear()
                self._cursors[node.number] = cursor
        return found

    # --- groups -----------------------------------------------------------------------------

    def _group(
        self, key: Text, db_key: bytes, touched: dict[int, defaultdict[int, list[bytes]]]
    ) -> Iterator[Effect[Text]]:
        body = self._row(GROUPS, db_key, self._old[GROUPS, db_key])
        old = None if body is None else decode_group(body, "group")
        body = self._row(GROUPS, db_key, self._get(GROUPS, db_key))
        new = None if body is None else decode_group(body, "group")
        if old is not None and (new is None or new.number != old.number):
            yield Effect("group_destroyed", key, group=self._text(old.name))
            old = None
        if new is None:
            return
        group, prefix = self._text(new.name), pack_number(new.number)
        if old is None or (old.last_id(), old.entries_read) != (new.last_id(), new.entries_read):
            kind: Kind = "group_created" if old is None else "group_moved"
            place = (self._id(new.last_id()),)
            yield Effect(kind, key, place, group=group, number=new.entries_read)
        gone: list[Text] = []
        for row in touched[CONSUMERS][new.number]:
            if is_name_key(row):
                was = self._row(CONSUMERS, row, self._old[CONSUMERS, row])
                now = self._row(CONSUMERS, row, self._get(CONSUMERS, row))
                if was is not None and now is None:
                    gone.append(self._text(decode_consumer(was, "consumer").name))
                elif was is None and now is not None:
                    name = self._text(decode_consumer(now, "consumer").name)
                    yield Effect("consumer_created", key, group=group, consumer=name)
        pages = touched[PEL][new.number]
        before = self._nacks(old, [(page, self._old[PEL, page]) for page in pages])
        after = self._nacks(new, [(page, self._get(PEL, page)) for page in pages])
        changed = [
            one
            for at, one in after.items()
            if at not in before or _delivery(before[at]) != _delivery(one)
        ]
        for (consumer, time, count), nacks in groupby(
            sorted(changed, key=lambda nack: nack.order_key), _delivery
        ):
            owner = None
            if consumer:
                row = number_key(prefix, consumer)
                owner = self._text(self._row(CONSUMERS, row, self._get(CONSUMERS, row)) or b"")
            ids = tuple(self._id(nack.id()) for nack in nacks)
            kind = "delivered" if consumer else "returned"
            yield Effect(kind, key, ids, None, group, owner, number=count, time_ms=time)
        ended = tuple(self._id(one) for one in sorted(before.keys() - after.keys()))
        if ended:
            yield Effect("acknowledged", key, ended, group=group)
        for name in gone:
            yield Effect("consumer_deleted", key, group=group, consumer=name)

    def _nacks(
        self, group: GroupRecord | None, pages: list[tuple[bytes, bytes | None]]
    ) -> dict[Id, Nack]:
        """Return the pending entries of a group in its own row, and in some pages."""
        if group is None:
            return {}
        bodies: list[bytes | None] = [self._row(PEL, page, value) for page, value in pages]
        found: dict[Id, Nack] = {}
        for data in (group.inline_nacks, *bodies):
            for index in range(count_nacks(data) if data else 0):
                nack = decode_nack(data or b"", index)
                found[nack.id()] = nack
        return found

    def _id(self, one: Id) -> Text:
        return self._text(id_text(*one))


def _record(value: bytes | None) -> StreamRecord:
    """Return the record in the row of a stream; an empty one without a row."""
    if value is None:
        return StreamRecord(0, 0)
    return decode_stream_record(decode_envelope(value, "stream").record, "stream")


def _delivery(nack: Nack) -> tuple[int, int, int]:
    return nack.consumer, nack.delivery_time, nack.delivery_count
