"""What two snapshots of the store differ by, as commands for a replica that has the first one.

A stream that is new, or has changed in a way that no short commands express, is sent whole, as a
RESTORE of what DUMP says. The order of the commands of a stream matters:

1. XADD of the entries that are new, and XSETID for the counters.
2. Groups. An XCLAIM makes an entry pending only while the entry exists, so it comes before
3. XTRIM and XDEL of the entries that are gone.
4. XSETID, where XDEL has moved max_deleted_id too far: trimming does not move it.

Whatever makes step 1 or 2 impossible is found when it is come to. The RESTORE that follows in the
same transaction undoes what was sent before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from streamkeep.commands.strings import DEADLINES, FOREVER, stamp, stored_string, string_deadlines
from streamkeep.engine.commands import rows
from streamkeep.engine.commands.dump import pending_of, stream_parts
from streamkeep.engine.commands.keys import iter_keys, name_of
from streamkeep.engine.commands.xrange import read_ids
from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.core.id_codec import MAX, Id, id_text, next_id
from streamkeep.format.core.keys import (
    CONSUMERS,
    GROUPS,
    KEYS,
    NODES,
    PEL,
    is_name_key,
    node_key,
    pack_number,
    unpack_node_key,
)
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, read_range
from streamkeep.format.redis.rdb import RdbWriter
from streamkeep.format.redis.resp import encode_command
from streamkeep.format.redis.stream_dump import (
    NOBODYS_OWNER,
    TYPE_5,
    UNOWNED_LOSS,
    Losses,
    Target,
    write_payload,
)
from streamkeep.format.rows.extension import IDEMPOTENCE, split_sections
from streamkeep.format.rows.group_records import decode_consumer, decode_group
from streamkeep.format.rows.nacks import Nack, count_nacks, decode_nack
from streamkeep.format.rows.records import StreamRecord, decode_key_row
from streamkeep.replication.changes import Changes
from streamkeep.transfer.differences import merged

SPLIT: Final = b""  # here, what was sent is a state that a replica may show
_SMALL: Final = 256 << 10  # bytes of a new stream that is sent as one payload in any case
_MOST_PAYLOAD: Final = 32 << 20
_IDS: Final = 100  # of one command
_PIECE: Final = 64 << 10
_ALL: Final = 1 << 62  # entries
_AFTER_COUNT: Final = 9  # of the bytes of a node: behind its header and its number of entries
_KEYS: Final = 16  # small streams in a piece of a file, at most

Entry = tuple[int, int, list[bytes]]  # ms, seq, [field, value, ...]


class TooLarge(StreamkeepError):
    """A stream that must be sent whole is too large for one command."""


class _Inexpressible(Exception):
    """No short commands make this change of a stream."""


# --- reading --------------------------------------------------------------------------------------


def _deadline(txn: ReadTxn, number: int) -> int:
    row = rows.row_get(txn, rows.row_key(DEADLINES, pack_number(number)))
    return FOREVER if row is None else stamp(row)


def _entries(
    txn: ReadTxn, stream: Stream, db_key: bytes, first: Id, last: Id
) -> dict[Id, list[bytes]]:
    """Return the entries of one node in a range, by ID; none if there is no such node."""
    _, ms, seq = unpack_node_key(db_key)
    walk = NodeWalk(txn, stream)
    out: list[Any] = []
    if walk.seek(ms, seq) and (walk.ms, walk.seq) == (ms, seq):
        read_range(walk.load(), ms, seq, Range(*first, *last, _ALL, False, int(PAIRS)), out)
    return {(ms, seq): flat for ms, seq, flat in out}


def _group(txn: ReadTxn, stream: Stream, db_key: bytes) -> Group | None:
    where = f"groups of {stream.number}"
    body = txn.get_row(GROUPS, db_key, where)
    return None if body is None else Group(txn, stream, decode_group(body, where))


def _nacks(group: Group, keys: set[bytes]) -> Iterator[Nack]:
    """Yield the pending entries of some pages, ascending by ID; all where there are no pages."""
    inline = group.pel.inline_page()
    pages = (
        [inline]
        if inline is not None
        else [group.pel.page(key) for key in sorted(keys) if group.txn.get(PEL, key) is not None]
    )
    for page in pages:
        for index in range(count_nacks(page.data)):
            yield decode_nack(page.data, index)


def _note_settings(stream: Stream, losses: Losses) -> None:
    """Note what no replica gets."""
    if stream.record.extension:
        losses.add("retention of a stream", int(stream.retention() is not None))
        if IDEMPOTENCE in split_sections(stream.record.extension, f"stream {stream.number}"):
            losses.add("stream whose messages of producers are only in full copies", newer=True)


# --- the whole store ------------------------------------------------------------------------------


def file_of(txn: ReadTxn, target: Target, losses: Losses) -> Iterator[bytes]:
    """Yield an RDB file of a snapshot, piece by piece."""
    writer = RdbWriter(target)
    writer.losses = losses
    strings = string_deadlines(txn)
    out = bytearray(writer.begin(txn.rows(KEYS) + len(strings)))
    for name, _ in strings:
        found = stored_string(txn, name)
        if found is not None and txn.stream_number(name) == 0:
            out += writer.string(name, found[0], found[1])
    for count, (name, number) in enumerate(iter_keys(txn), 1):
        stream = txn.find_stream(name)
        assert stream is not None
        _note_settings(stream, losses)
        parts = stream_parts(txn, stream)
        for piece in writer.stream(name, parts, stream.nodes(), _deadline(txn, number)):
            out += piece
            if len(out) >= _PIECE:
                yield bytes(out)
                out.clear()
        if count % _KEYS == 0:
            yield bytes(out)
            out.clear()
    yield bytes(out) + writer.end()


# --- a step ---------------------------------------------------------------------------------------


class Step:
    """The difference of two snapshots.

    Args:
        changes: the rows by which they may differ.
        losses: receives what a replica does not get.
    """

    def __init__(
        self, before: ReadTxn, after: ReadTxn, changes: Changes, target: Target, losses: Losses
    ) -> None:
        self.before = before
        self.after = after
        self.changes = changes
        self.target = target
        self.losses = losses
        self._moved: dict[bytes, int] = {}  # what RENAME has put where; 0 for nothing

    def commands(self) -> Iterator[bytes]:
        """Yield commands, and SPLIT where the replica may show what it has."""
        changes = self.changes
        numbers = set(changes.streams)
        names = set(changes.strings)
        for table in (NODES, GROUPS):
            numbers.update(changes.rows[table])
        for db_key in changes.names:
            for txn in (self.before, self.after):
                value = txn.get(KEYS, db_key)
                if value is not None:
                    body = row_body(KEYS, db_key, value, "key row")
                    number, name = decode_key_row(body, "key row")
                    numbers.add(number)
                    names.add(name)
        moves: dict[int, tuple[bytes, bytes]] = {}
        for number in numbers:
            old, new = name_of(self.before, number), name_of(self.after, number)
            names.update(name for name in (old, new) if name is not None)
            if old is not None and new is not None and old != new:
                moves[number] = old, new
        yield from self._renames(moves)
        for name in sorted(names):
            yield from self._key(name)
            yield SPLIT

    def _renames(self, moves: dict[int, tuple[bytes, bytes]]) -> Iterator[bytes]:
        """Rename streams, each before its name is taken; those in a circle are sent whole."""
        while moves:
            sources = {old for old, _ in moves.values()}
            free = [number for number, (_, new) in moves.items() if new not in sources]
            if not free:
                return
            for number in free:
                old, new = moves.pop(number)
                yield encode_command(b"RENAME", old, new)
                self._moved[old], self._moved[new] = 0, number

    def _key(self, name: bytes) -> Iterator[bytes]:
        before, after = self.before, self.after
        there = self._moved.get(name, -1)
        string = None
        if there < 0:
            there = before.stream_number(name)
            string = stored_string(before, name) if there == 0 else None
        stream = after.find_stream(name)
        if stream is None:
            wanted = stored_string(after, name)  # or one that is over, until its DEL
            if there or (wanted is None and string is not None):
                yield encode_command(b"DEL", name)  # a Streamkeep lets no SET replace a stream
            if wanted is not None and wanted != string:
                end = () if wanted[1] == FOREVER else ("PXAT", wanted[1])
                yield encode_command(b"SET", name, wanted[0], *end)
            return
        base = None
        if there == stream.number:
            old_name = name_of(before, there)
            base = None if old_name is None else before.find_stream(old_name)
        deadline = _deadline(after, stream.number)
        if base is None or base.record.extension != stream.record.extension:
            _note_settings(stream, self.losses)
        if base is None and stream.node_bytes() < _SMALL:
            yield self._restore(stream, deadline)
            return
        try:
            if base is None and (there or string is not None):
                yield encode_command(b"DEL", name)
            yield from self._stream(base, stream)
        except _Inexpressible:
            yield self._restore(stream, deadline)
            return
        if deadline != (FOREVER if base is None else _deadline(before, stream.number)):
            if deadline == FOREVER:
                yield encode_command(b"PERSIST", name)
            else:
                yield encode_command(b"PEXPIREAT", name, deadline)

    # --- a stream ---------------------------------------------------------------------------

    def _restore(self, stream: Stream, deadline: int) -> bytes:
        if stream.node_bytes() > _MOST_PAYLOAD:
            raise TooLarge(
                f"the stream {stream.name!r} was replaced, and has {stream.node_bytes()} bytes"
            )
        parts = stream_parts(self.after, stream)
        payload = write_payload(parts, stream.nodes(), self.target, self.losses)
        until = 0 if deadline == FOREVER else deadline
        return encode_command(b"RESTORE", stream.name, until, payload, "REPLACE", "ABSTTL")

    def _stream(self, base: Stream | None, stream: Stream) -> Iterator[bytes]:
        """Bring a stream up to date; raise _Inexpressible."""
        name, record = stream.name, stream.record
        old = StreamRecord(0, 0) if base is None else base.record
        if record.last_id() < old.last_id() or record.max_deleted_id() < old.max_deleted_id():
            raise _Inexpressible
        added, last = 0, old.last_id()
        for run in self._new_entries(stream, last):
            yield b"".join(
                [encode_command(b"XADD", name, f"{ms}-{seq}", *flat) for ms, seq, flat in run]
            )
            yield SPLIT
            added, last = added + len(run), run[-1][:2]
        counted = old.entries_added + added
        if record.entries_added < counted:
            raise _Inexpressible
        deleted = old.max_deleted_id()
        if (record.last_id(), record.entries_added) != (last, counted):
            deleted = record.max_deleted_id()
            yield self._set_id(stream)
        if record.length > old.length + added:
            raise _Inexpressible  # others are below its last ID, since that was set back
        yield from self._groups(base, stream)
        if base is not None and (
            record.length != old.length + added or not self._only_grew(base, stream)
        ):
            for one, command in self._removals(base, stream):
                deleted = max(deleted, one)
                yield command
        if deleted != record.max_deleted_id():
            if record.max_deleted_id() == (0, 0):
                raise _Inexpressible  # XSETID would keep the other one
            yield self._set_id(stream)

    def _only_grew(self, base: Stream, stream: Stream) -> bool:
        """Return whether all entries of before are there for certain, which is cheap to see.

        The counters do not say it: XSETID sets them, also back.
        """
        if self.changes.rows[NODES].get(stream.number) or not (
            base.has_tail() and stream.has_tail()
        ):
            return False
        if (base.tail_ms, base.tail_seq) != (stream.tail_ms, stream.tail_seq):
            return False
        was, now = base.tail_data(), stream.tail_data()
        end = len(was) - 1  # of the entries; they begin behind a header and their number
        return now[_AFTER_COUNT:end] == was[_AFTER_COUNT:end]

    def _set_id(self, stream: Stream) -> bytes:
        record = stream.record
        counters = ("ENTRIESADDED", record.entries_added)
        deleted = ("MAXDELETEDID", id_text(*record.max_deleted_id()))
        return encode_command(
            b"XSETID", stream.name, id_text(*record.last_id()), *counters, *deleted
        )

    def _new_entries(self, stream: Stream, last: Id) -> Iterator[list[Entry]]:
        """Yield the entries above an ID, node by node."""
        start = next_id(*last)
        if not stream.record.length or stream.record.last_live_id() < start or start == (0, 0):
            return
        walk = NodeWalk(self.after, stream)
        found = walk.seek(*start)
        while found:
            out: list[Any] = []
            wanted = Range(*start, MAX, MAX, _ALL, False, int(PAIRS))
            read_range(walk.load(), walk.ms, walk.seq, wanted, out)
            if out:
                yield out
            found = walk.next()

    def _removals(self, base: Stream, stream: Stream) -> Iterator[tuple[Id, bytes]]:
        """Yield commands that remove entries, each with the highest ID that it deletes."""
        name, record, old = stream.name, stream.record, base.record
        if not old.length:
            return
        if not record.length:
            yield (0, 0), encode_command(b"XTRIM", name, "MAXLEN", "=", 0)
            return
        first = record.first_id()
        if first > old.first_id():
            yield (0, 0), encode_command(b"XTRIM", name, "MINID", "=", id_text(*first))
        walk = NodeWalk(self.before, base)
        walk.seek(*first)
        number = stream.number
        lowest = node_key(number, walk.ms, walk.seq)
        touched = set(self.changes.rows[NODES].get(number, ()))
        touched.update(
            node_key(number, one.tail_ms, one.tail_seq) for one in (base, stream) if one.has_tail()
        )
        for db_key in sorted(touched):
            if db_key < lowest:
                continue
            was = _entries(self.before, base, db_key, first, old.last_id())
            now = _entries(self.after, stream, db_key, first, old.last_id())
            if any(was.get(one) != flat for one, flat in now.items()):
                raise _Inexpressible  # IDs that were given a second time
            gone = [one for one in was if one not in now]
            for start in range(0, len(gone), _IDS):
                some = gone[start : start + _IDS]
                yield some[-1], encode_command(b"XDEL", name, *(id_text(*one) for one in some))

    # --- groups -----------------------------------------------------------------------------

    def _groups(self, base: Stream | None, stream: Stream) -> Iterator[bytes]:
        if base is None:
            for group in groups_of(self.after, stream):
                yield from self._changed_group(base, stream, None, group)
            return
        for db_key in sorted(self.changes.rows[GROUPS].get(stream.number, ())):
            old = _group(self.before, base, db_key)
            new = _group(self.after, stream, db_key)
            if old is not None and (new is None or new.record.number != old.record.number):
                yield encode_command(b"XGROUP", "DESTROY", stream.name, old.record.name)
                old = None
            if new is not None:
                yield from self._changed_group(base, stream, old, new)

    def _changed_group(
        self, base: Stream | None, stream: Stream, old: Group | None, group: Group
    ) -> Iterator[bytes]:
        key, record = stream.name, group.record
        name = record.name
        place = (id_text(*record.last_id()), "ENTRIESREAD", record.entries_read)
        if old is None:
            yield encode_command(b"XGROUP", "CREATE", key, name, *place)
            if record.entries_read > stream.record.entries_added:  # CREATE would lower it
                yield encode_command(b"XGROUP", "SETID", key, name, *place)
            for consumer in group.consumers():
                yield encode_command(b"XGROUP", "CREATECONSUMER", key, name, consumer.name)
            made = ((nack.id(), nack) for nack in pending_of(group))
            yield from self._pending(base, stream, group, made)
            return
        if (old.last_id(), old.record.entries_read) != (group.last_id(), record.entries_read):
            yield encode_command(b"XGROUP", "SETID", key, name, *place)
        gone: list[bytes] = []
        for db_key in sorted(self.changes.rows[CONSUMERS].get(record.number, ())):
            if is_name_key(db_key):
                was = self.before.get_row(CONSUMERS, db_key, "consumer")
                now = self.after.get_row(CONSUMERS, db_key, "consumer")
                if was is None and now is not None:
                    consumer = decode_consumer(now, "consumer")
                    yield encode_command(b"XGROUP", "CREATECONSUMER", key, name, consumer.name)
                elif was is not None and now is None:
                    gone.append(decode_consumer(was, "consumer").name)
        pages = self.changes.rows[PEL].get(record.number, set())
        yield from self._pending(base, stream, group, _differing(old, group, pages))
        for former in gone:  # after their pending entries have gone to others
            yield encode_command(b"XGROUP", "DELCONSUMER", key, name, former)

    def _pending(
        self,
        base: Stream | None,
        stream: Stream,
        group: Group,
        differing: Iterator[tuple[Id, Nack | None]],
    ) -> Iterator[bytes]:
        """Yield XCLAIM for pending entries that are new or differ, XACK for those that are gone."""
        claims: list[Nack] = []
        gone: list[bytes] = []
        for one, nack in differing:
            if nack is not None:
                claims.append(nack)
            else:
                gone.append(id_text(*one))
            if len(claims) == _IDS:
                yield from self._claims(base, stream, group, claims)
                claims = []
            if len(gone) == _IDS:
                yield encode_command(b"XACK", stream.name, group.record.name, *gone)
                gone = []
        yield from self._claims(base, stream, group, claims)
        if gone:
            yield encode_command(b"XACK", stream.name, group.record.name, *gone)

    def _claims(
        self, base: Stream | None, stream: Stream, group: Group, claims: list[Nack]
    ) -> Iterator[bytes]:
        key, name = stream.name, group.record.name
        wanted = [nack.id() for nack in claims]
        found = set(read_ids(self.after, stream, wanted, -1))
        missing = [one for one in wanted if one not in found]
        if missing and (
            base is None or len(read_ids(self.before, base, missing, -1)) < len(missing)
        ):
            raise _Inexpressible  # Redis makes no entry pending that does not exist
        claims.sort(key=lambda nack: nack.order_key)
        delivery = attrgetter("consumer", "delivery_time", "delivery_count")
        for (number, time, count), together in groupby(claims, delivery):
            texts = [id_text(*nack.id()) for nack in together]
            how = ("RETRYCOUNT", count, "FORCE")
            if number == 0 and self.target.kind >= TYPE_5:
                yield encode_command(b"XNACK", key, name, "FAIL", "IDS", len(texts), *texts, *how)
                continue
            if number == 0:
                self.losses.add(UNOWNED_LOSS, len(texts), newer=True)
            owner = group.consumer_name(number) if number else NOBODYS_OWNER
            words = ("TIME", time, *how, "JUSTID")
            yield encode_command(b"XCLAIM", key, name, owner, 0, *texts, *words)


def _differing(old: Group, new: Group, pages: set[bytes]) -> Iterator[tuple[Id, Nack | None]]:
    """Yield what is pending in another way than before, None for what is no longer, by ID."""
    was, now = (((nack.id(), nack) for nack in _nacks(group, pages)) for group in (old, new))
    for one, left, right in merged(was, now):
        if left is None or right is None or _delivery(old, left) != _delivery(new, right):
            yield one, right


def _delivery(group: Group, nack: Nack) -> tuple[int, int, bytes]:
    return nack.delivery_time, nack.delivery_count, group.consumer_name(nack.consumer)
