"""Step two of a repair, streams: make records, names and nodes of the new store agree.

Nodes are primary data, and so are the settings of a record and the counters that cannot be counted.
All other fields of a record are derived from the nodes. Damaged nodes are read here up to the
damage, because now the nodes before and after them are in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    KEYS,
    NAMES,
    NODES,
    STREAMS,
    name_key,
    node_key,
    pack_number,
    unpack_node_key,
    unpack_number,
)
from streamkeep.format.node.envelope import (
    Envelope,
    decode_envelope,
    encode_envelope,
    set_trimmed,
    trimmed_slots,
)
from streamkeep.format.node.node import tombstone_slots
from streamkeep.format.node.stream_facts import Problem, StreamFacts
from streamkeep.format.rows.extension import RETENTION, split_sections, without_section
from streamkeep.format.rows.records import (
    PAGE_FIT,
    REOPEN,
    StreamRecord,
    decode_key_row,
    decode_stream_record,
    encode_key_row,
)
from streamkeep.format.rows.retention import retention_of
from streamkeep.recovery.pages.tree import Hole
from streamkeep.recovery.salvage.losses import IdRange, Report, StreamLoss
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import (
    first_unread,
    key_of,
    live_slots,
    next_key,
    slots_of,
    store_slots,
)
from streamkeep.recovery.salvage.notes import (
    DAMAGED_NAME,
    DAMAGED_STREAM,
    OLD_NODE,
    PARTIAL_STREAM,
    age_of,
    damaged_nodes,
    split_candidate,
    split_partial,
    without_record,
)

_NODE_ENTRIES: Final = 100  # stream-node-max-entries of a record that was lost
_NAMED: Final = b"K"  # note: the name of a stream
_NUMBER_SIZE: Final = 8


class StreamRebuilder:
    """Rebuilds all streams of a new store.

    Args:
        epoch: epoch of the new store.
        holes: ranges of keys of `nodes` in which rows may be missing.
    """

    def __init__(
        self,
        out: BulkStore,
        report: Report,
        lost: LostAndFound,
        epoch: int,
        holes: list[Hole],
    ) -> None:
        self.out = out
        self.report = report
        self.lost = lost
        self.epoch = epoch
        self.holes = holes

    def run(self) -> None:
        """Rebuild everything."""
        self._names()
        self._records()
        for db_key, value in damaged_nodes(self.out):
            self._read_damaged_node(db_key, value)
        for key, value in self.out.notes(DAMAGED_STREAM):
            self._read_damaged_tail(unpack_number(key[1:]), value)
        for key, value in self.out.notes(PARTIAL_STREAM):
            self._read_partial_tail(unpack_number(key[1:]), *split_partial(value))
        self._second_names()
        for db_key, value in self.out.rows(STREAMS):
            self._stream(unpack_number(db_key), value)

    # --- names and records ------------------------------------------------------------------

    def _names(self) -> None:
        """Give every name its own key, and leave one name per stream."""
        for db_key, value in self.out.rows(KEYS):
            try:
                number, name = decode_key_row(open_row(KEYS, db_key, value, "key row"), "key row")
            except CorruptionError as error:
                self.out.delete(KEYS, db_key)
                self.lost.keep_value("name", error.problem, value, key=db_key.hex())
                self.report.other.append(f"the name of a stream: {error.problem}")
                continue
            own_key = name_key(b"", name)
            if own_key != db_key:
                self.out.delete(KEYS, db_key)
                if self.out.get(KEYS, own_key) is not None:
                    continue  # this loop has visited that row or will visit it
                self.report.rebuild("keys of stream names")
                self.out.put_row(KEYS, own_key, encode_key_row(number, name))
            known = self.out.noted(_NAMED + pack_number(number))
            if known is not None and known != name:
                self.report.rebuild("second names of a stream (removed)")
                if self.out.get_row(NAMES, pack_number(number), "names") != name:
                    self.out.delete(KEYS, own_key)
                    continue
                self.out.delete(KEYS, name_key(b"", known))
            self.out.note(_NAMED + pack_number(number), name)

    def _records(self) -> None:
        """Give every stream with a name or nodes a record, and every record a name."""
        for key, _ in self.out.notes(_NAMED):
            self._ensure_record(key[1:])
        number = -1
        for db_key, _ in self.out.rows(NODES):
            found = unpack_number(db_key[:_NUMBER_SIZE])
            if found != number:
                number = found
                self._ensure_record(db_key[:_NUMBER_SIZE])
        for db_key, _ in self.out.rows(STREAMS):
            if self.out.noted(_NAMED + db_key) is None:
                self._give_name(db_key)

    def _second_names(self) -> None:
        """Have `names` hold what `keys` does."""
        for db_key, value in self.out.rows(NAMES):
            name = self.out.noted(_NAMED + db_key)
            if name is None or seal_row(NAMES, db_key, name) != value:
                self.out.delete(NAMES, db_key)
                if name is None:
                    self.report.rebuild("second names of streams (removed)")
        for key, name in self.out.notes(_NAMED):
            if self.out.get(NAMES, key[1:]) is None:
                self.out.put_row(NAMES, key[1:], name)
                self.report.rebuild("second names of streams")

    def name_losses(self) -> None:
        """Set the names of the streams in the report to those in the new store."""
        for loss in self.report.streams.values():
            loss.name = self._name(loss.number) or loss.name

    def _ensure_record(self, db_key: bytes) -> None:
        """Make a record for a stream that has none."""
        if self.out.get(STREAMS, db_key) is not None:
            return
        number = unpack_number(db_key)
        loss = self._loss(number)
        loss.notes.append("its record, and with it the entries of its tail node")
        loss.entries = None
        record = StreamRecord(PAGE_FIT, _NODE_ENTRIES)
        self._put_stream(number, record, None)

    def _give_name(self, db_key: bytes) -> None:
        """Give a stream that has lost its name the one in `names`, or else a new one."""
        number = unpack_number(db_key)
        name = self.out.get_row(NAMES, db_key, "names")
        if name is None or self.out.get(KEYS, name_key(b"", name)) is not None:
            name = b"lost+found/stream-%d" % number
            while self.out.get(KEYS, name_key(b"", name)) is not None:
                name += b"'"
            self.out.put_row(NAMES, db_key, name)
            self._loss(number).notes.append("its name; this is a new one, RENAME can change it")
            self._keep_damaged_names()
        else:
            self.report.rebuild("names of streams")
        self.out.put_row(KEYS, name_key(b"", name), encode_key_row(number, name))
        self.out.note(_NAMED + db_key, name)

    def _keep_damaged_names(self) -> None:
        """Keep the damaged rows of `keys` in lost+found: one of them has a lost name."""
        for key, value in self.out.notes(DAMAGED_NAME):
            why = "the checksum does not match"
            self.lost.keep_value("row", why, value, table="keys", key=key[1:].hex())
            self.report.other.append(f"row {key[1:].hex()} of keys")
            self.out.unnote(key)

    def _name(self, number: int) -> bytes | None:
        return self.out.noted(_NAMED + pack_number(number))

    def _loss(self, number: int) -> StreamLoss:
        loss = self.report.stream(number)
        loss.name = self._name(number)
        return loss

    # --- damaged nodes ------------------------------------------------------------------------

    def _read_damaged_node(self, db_key: bytes, value: bytes) -> None:
        """Store the entries of a damaged node up to the damage."""
        if self.out.get(NODES, db_key) is not None or len(db_key) != _NUMBER_SIZE + 16:
            return  # a sound copy was found
        number, ms, seq = unpack_node_key(db_key)
        following = next_key(self.out, number, (ms, seq)) or self._tail_of(number)
        slots = slots_of(value, number, (ms, seq), following)
        loss = self._loss(number)
        loss.unverified += store_slots(self.out, number, self.epoch, slots)
        end = None if following is None else StreamId(*following)
        loss.ranges.append((first_unread(slots, (ms, seq)), end))
        self._keep_older(db_key, {(slot.ms, slot.seq) for slot in slots})

    def _keep_older(self, db_key: bytes, read: set[tuple[int, int]]) -> None:
        """Move the other entries of an older copy of a damaged node to lost+found."""
        noted = self.out.noted(OLD_NODE + db_key)
        if noted is None:
            return
        number, ms, seq = unpack_node_key(db_key)
        envelope = decode_envelope(split_candidate(noted)[1], "page")
        more = live_slots(envelope.listpack, ms, seq, read)
        self._loss(number).moved += self.lost.keep_entries(
            "in an older copy of a damaged node; may have been deleted since",
            self._name(number),
            number,
            more,
        )

    def _read_damaged_tail(self, number: int, value: bytes) -> None:
        """Store the entries of the tail node in a damaged row of `streams` up to the damage."""
        present = self.out.get(STREAMS, pack_number(number))
        envelope = None if present is None else decode_envelope(present, "stream")
        highest = (0, 0)
        if envelope is not None and envelope.listpack:
            held = live_slots(envelope.listpack, envelope.ms, envelope.seq)
            highest = max(((slot.ms, slot.seq) for slot in held), default=highest)
        for db_key, _ in self.out.rows(NODES, pack_number(number)):
            highest = max(highest, unpack_node_key(db_key)[1:])
        loss = self._loss(number)
        if present is None:
            loss.notes.append("its settings and some counters: its record was damaged")
            self._put_stream(number, StreamRecord(PAGE_FIT, _NODE_ENTRIES), None)
            if self.out.noted(_NAMED + pack_number(number)) is None:
                self._give_name(pack_number(number))
        slots = slots_of(value, number, key_of(value), None, record=True) if value else []
        more = [slot for slot in slots if (slot.ms, slot.seq) > highest]
        if more and envelope is not None and envelope.listpack:
            self._seal_tail(number, envelope)
        loss.unverified += store_slots(self.out, number, self.epoch, more)
        loss.entries = None
        loss.ranges.append((first_unread(more, highest), None))

    def _read_partial_tail(self, number: int, before: bytes, value: bytes) -> None:
        """Store the entries of a tail that lacks some that came after what it had `before`."""
        key = key_of(value)
        known = len(slots_of(before, number, key, None, record=True))
        slots = slots_of(value, number, key, None, record=True)
        store_slots(self.out, number, self.epoch, slots)
        loss = self._loss(number)
        following = slots[known:]
        end = StreamId(following[0].ms, following[0].seq) if following else None
        loss.ranges.append((first_unread(slots[:known], key), end))

    def _seal_tail(self, number: int, envelope: Envelope) -> None:
        """Move the tail node to `nodes`, because other nodes follow it.

        An old copy of the row may have been found, with a tail node that has got entries since.
        """
        db_key = node_key(envelope.number, envelope.ms, envelope.seq)
        present = self.out.get(NODES, db_key)
        if present is None or age_of(present) < _age(envelope):
            self.out.put(NODES, db_key, without_record(envelope))
        record = decode_stream_record(envelope.record, "stream")
        self._put_stream(number, record, None)

    def _tail_of(self, number: int) -> tuple[int, int] | None:
        value = self.out.get(STREAMS, pack_number(number))
        if value is None:
            return None
        envelope = decode_envelope(value, "stream")
        return (envelope.ms, envelope.seq) if envelope.listpack else None

    # --- one stream ---------------------------------------------------------------------------

    def _stream(self, number: int, value: bytes) -> None:
        """Make the record and the nodes of a stream agree."""
        envelope: Envelope | None = decode_envelope(value, "stream")
        assert envelope is not None
        stated = envelope.record
        try:
            record = decode_stream_record(stated, "stream")
            split_sections(record.extension, "stream")
        except CorruptionError:
            self._loss(number).notes.append("its settings and some counters: its record is damaged")
            record = StreamRecord(PAGE_FIT, _NODE_ENTRIES)
        self._drop_bad_retention(number, record)
        facts = self._fix_nodes(number)
        tail = self._fix_tail(envelope, facts) if envelope.listpack else None
        if envelope.listpack and tail is None:
            facts = self._fix_nodes(number)
        self._count_losses(number, record, facts)
        self._derive(record, facts)
        if envelope.listpack and tail is None:
            record.flags |= REOPEN
        if record.encode() != stated or (envelope.listpack and tail is not envelope):
            self.report.rebuild("stream records")
            self._put_stream(number, record, tail)

    def _drop_bad_retention(self, number: int, record: StreamRecord) -> None:
        """Drop a retention that cannot be read; `split_sections` must accept the extension."""
        try:
            retention_of(record.extension, "stream")
        except CorruptionError as error:
            record.extension = without_section(record.extension, RETENTION)
            self._loss(number).notes.append(f"its retention: {error.problem}")

    def _fix_nodes(self, number: int) -> StreamFacts:
        """Walk over the nodes of a stream until none has to be changed; return their facts."""
        while True:
            facts = StreamFacts()
            if not any(list(self._walk(number, facts))):
                return facts

    def _walk(self, number: int, facts: StreamFacts) -> Iterator[bool]:
        """Add the nodes to the facts; fix the first one with a problem, and yield True for it."""
        before = b""
        for db_key, value in self.out.rows(NODES, pack_number(number)):
            problems = facts.add_sealed(db_key, value, True)
            if problems:
                self._fix_node(db_key, value, before, problems)
                yield True
                return
            before = db_key

    def _fix_node(
        self, db_key: bytes, value: bytes, before: bytes, problems: list[Problem]
    ) -> None:
        """Fix the problems of a node; `before` is the key of the node before it."""
        number, ms, seq = unpack_node_key(db_key)
        codes = {problem.code for problem in problems}
        if "SK110" in codes:
            self.out.delete(NODES, db_key)
            self._read_damaged_node(db_key, value)
            return
        envelope = decode_envelope(value, "macro node")
        if "SK111" in codes:
            self._drop_older(before, db_key, envelope)
            return
        tombstones = tombstone_slots(envelope.listpack, ms, seq)
        good = trimmed_slots(envelope.trimmed) & tombstones
        self.report.rebuild("slots marked as trimmed")
        self.out.put(
            NODES,
            db_key,
            encode_envelope(
                number,
                ms,
                seq,
                envelope.epoch,
                envelope.commit_number,
                b"",
                envelope.listpack,
                set_trimmed(b"", sorted(good)),
            ),
        )

    def _drop_older(self, before: bytes, db_key: bytes, envelope: Envelope) -> None:
        """Move the older of two nodes with overlapping IDs to lost+found."""
        other_value = self.out.get(NODES, before)
        assert other_value is not None
        other = decode_envelope(other_value, "macro node")
        older, key = (other, before) if _age(other) < _age(envelope) else (envelope, db_key)
        self.out.delete(NODES, key)
        loss = self._loss(older.number)
        loss.moved += self.lost.keep_entries(
            "the node overlaps a newer macro node",
            self._name(older.number),
            older.number,
            live_slots(older.listpack, older.ms, older.seq),
        )

    def _fix_tail(self, envelope: Envelope, facts: StreamFacts) -> Envelope | None:
        """Add the tail node to the facts and return it; None if it had to be removed."""
        number, key = envelope.number, (envelope.ms, envelope.seq)
        if facts.sealed_nodes and key <= facts.highest:
            self._loss(number).moved += self.lost.keep_entries(
                "the tail node overlaps a sealed macro node",
                self._name(number),
                number,
                [
                    slot
                    for slot in live_slots(envelope.listpack, *key)
                    if (slot.ms, slot.seq) > facts.highest
                ],
            )
            return None
        problems = facts.add_node(*key, envelope.listpack, envelope.trimmed)
        codes = {problem.code for problem in problems}
        if "SK110" in codes:
            slots = slots_of(without_record(envelope), number, key, None)
            loss = self._loss(number)
            loss.unverified += store_slots(self.out, number, self.epoch, slots)
            loss.ranges.append((first_unread(slots, key), None))
            return None
        if "SK113" in codes:
            self.report.rebuild("slots marked as trimmed")
            good = trimmed_slots(envelope.trimmed) & tombstone_slots(envelope.listpack, *key)
            trimmed = set_trimmed(b"", sorted(good))
            return Envelope(
                number, *key, self.epoch, 1, envelope.record, envelope.listpack, trimmed
            )
        return envelope

    def _count_losses(self, number: int, record: StreamRecord, facts: StreamFacts) -> None:
        """Report how many entries are lost, if the record says so."""
        missing = record.length - facts.length
        loss = self.report.streams.get(number)
        if missing > 0 and (loss is None or not loss.ranges):
            holes = self._holes_of(number)
            if not holes:
                return  # no node can be missing: the length was wrong
            loss = self._loss(number)
            loss.ranges += holes
        if loss is not None and loss.ranges and loss.entries is not None:
            loss.entries = max(0, int(missing))

    def _holes_of(self, number: int) -> list[IdRange]:
        found: list[IdRange] = []
        own = pack_number(number)
        for low, high in self.holes:
            start = (low or b"")[:_NUMBER_SIZE]
            end = (high or b"")[:_NUMBER_SIZE]
            if (not low or start <= own) and (not high or own <= end):
                first = _id_in(low) if start == own else MIN_ID
                found.append((first, _id_in(high) if end == own else None))
        return found

    def _derive(self, record: StreamRecord, facts: StreamFacts) -> None:
        """Set the fields of the record that are derived from the nodes."""
        record.length = int(facts.length)
        record.first_ms, record.first_seq = facts.first
        record.last_live_ms, record.last_live_seq = facts.last
        record.sealed_nodes = int(facts.sealed_nodes)
        record.sealed_bytes = int(facts.sealed_bytes)
        record.tombstones = int(facts.tombstones)
        last = max((record.last_ms, record.last_seq), facts.last)
        record.last_ms, record.last_seq = last
        record.entries_added = max(record.entries_added, record.length)
        deleted = min((record.max_deleted_ms, record.max_deleted_seq), last)
        record.max_deleted_ms, record.max_deleted_seq = deleted

    def _put_stream(self, number: int, record: StreamRecord, tail: Envelope | None) -> None:
        value = encode_envelope(
            number,
            tail.ms if tail else 0,
            tail.seq if tail else 0,
            self.epoch,
            1,
            record.encode(),
            tail.listpack if tail else b"",
            tail.trimmed if tail else b"",
        )
        self.out.put(STREAMS, pack_number(number), value)


def _age(envelope: Envelope) -> tuple[int, int]:
    return envelope.epoch, envelope.commit_number


def _id_in(db_key: bytes | None) -> StreamId:
    if db_key is None or len(db_key) < _NUMBER_SIZE + 16:
        return MIN_ID
    return StreamId(*unpack_node_key(db_key[: _NUMBER_SIZE + 16])[1:])
