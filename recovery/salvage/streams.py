"""Make stream records, names and nodes agree again, in the new store: step two of a repair.

Nodes are primary, and so are the settings and the counters of a record that cannot be counted. All
else in a record follows from the nodes. What `salvage` could not read is read here up to the damage
(`rescue`), now that all nodes around it are in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    KEYS,
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
from streamkeep.format.rows.extension import RESTORING, RETENTION, split_sections, without_section
from streamkeep.format.rows.records import (
    PAGE_FIT,
    REOPEN,
    StreamRecord,
    decode_key_row,
    decode_stream_record,
    encode_key_row,
)
from streamkeep.format.rows.restoring import restoring_of
from streamkeep.format.rows.retention import retention_of
from streamkeep.recovery.pages.tree import Hole
from streamkeep.recovery.salvage.losses import IdRange, Report, StreamLoss
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import (
    behind,
    key_of,
    live_slots,
    next_key,
    slots_of,
    store_slots,
)
from streamkeep.recovery.salvage.tables import (
    DAMAGED_STREAM,
    OLD_NODE,
    damaged_nodes,
    split_candidate,
)

_NODE_ENTRIES: Final = 100  # stream-node-max-entries of a record that is made anew
_NAMED: Final = b"K"  # note: the name of a stream
_NUMBER_SIZE: Final = 8
_SETTINGS: Final[tuple[tuple[int, Callable[[bytes, str], object], str], ...]] = (
    (RETENTION, retention_of, "its retention"),
    (RESTORING, restoring_of, "how far its archive has been restored"),
)


class StreamRebuilder:
    """Rebuilds all streams of a new store.

    Args:
        holes: keys of `nodes` between which rows may be missing.
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
            self._rescue_node(db_key, value)
        for key, value in self.out.notes(DAMAGED_STREAM):
            self._rescue_tail(unpack_number(key[1:]), value)
        for db_key, value in self.out.rows(STREAMS):
            self._stream(unpack_number(db_key), value)

    # --- names and records ------------------------------------------------------------------

    def _names(self) -> None:
        """Every name stands under its own key, and no two lead to one stream."""
        for db_key, value in self.out.rows(KEYS):
            try:
                number, name = decode_key_row(open_row(KEYS, db_key, value, "key row"), "key row")
            except CorruptionError as error:
                self.out.delete(KEYS, db_key)
                self.lost.keep_value("name", error.problem, value, key=db_key.hex())
                self.report.other.append(f"the name of a stream: {error.problem}")
                continue
            place = name_key(b"", name)
            if place != db_key:
                self.out.delete(KEYS, db_key)
                if self.out.get(KEYS, place) is not None:
                    continue  # seen, or still to come
                self.report.rebuild("names under the key of another name")
                self.out.put_row(KEYS, place, encode_key_row(number, name))
            known = self.out.noted(_NAMED + pack_number(number))
            if known is not None and known != name:
                self.out.delete(KEYS, place)
                self.report.rebuild("second names of a stream, which were dropped")
                continue
            self.out.note(_NAMED + pack_number(number), name)

    def _records(self) -> None:
        """Every stream with a name or with nodes has a record, and the other way round."""
        for key, _ in self.out.notes(_NAMED):
            self._need_record(key[1:], "its record is lost, and its newest entries with it")
        number = -1
        for db_key, _ in self.out.rows(NODES):
            found = unpack_number(db_key[:_NUMBER_SIZE])
            if found != number:
                number = found
                self._need_record(
                    db_key[:_NUMBER_SIZE], "its record is lost, and its newest entries with it"
                )
        for db_key, _ in self.out.rows(STREAMS):
            if self.out.noted(_NAMED + db_key) is None:
                self._name_anew(db_key)

    def name_losses(self) -> None:
        """Name the streams that have lost something, as they are called now that all is rebuilt."""
        for loss in self.report.streams.values():
            loss.name = self._name(loss.number) or loss.name

    def _need_record(self, db_key: bytes, note: str) -> None:
        if self.out.get(STREAMS, db_key) is not None:
            return
        number = unpack_number(db_key)
        loss = self._loss(number)
        loss.notes.append(note)
        loss.entries = None
        record = StreamRecord(PAGE_FIT, _NODE_ENTRIES)
        self._put_stream(number, record, None)

    def _name_anew(self, db_key: bytes) -> None:
        """Give a stream that has lost its name another one."""
        number = unpack_number(db_key)
        name = b"lost+found/stream-%d" % number
        while self.out.get(KEYS, name_key(b"", name)) is not None:
            name += b"'"
        self.out.put_row(KEYS, name_key(b"", name), encode_key_row(number, name))
        self.out.note(_NAMED + db_key, name)
        self._loss(number).notes.append("its name; this is another one, which can be changed")

    def _name(self, number: int) -> bytes | None:
        return self.out.noted(_NAMED + pack_number(number))

    def _loss(self, number: int) -> StreamLoss:
        loss = self.report.stream(number)
        loss.name = self._name(number)
        return loss

    # --- damaged nodes ------------------------------------------------------------------------

    def _rescue_node(self, db_key: bytes, value: bytes) -> None:
        """Keep what is readable of a damaged node."""
        if self.out.get(NODES, db_key) is not None or len(db_key) != _NUMBER_SIZE + 16:
            return  # a sound copy was found
        number, ms, seq = unpack_node_key(db_key)
        following = next_key(self.out, number, (ms, seq)) or self._tail_of(number)
        slots = slots_of(value, number, (ms, seq), following)
        loss = self._loss(number)
        loss.unverified += store_slots(self.out, number, self.epoch, slots)
        end = None if following is None else StreamId(*following)
        loss.ranges.append((behind(slots, (ms, seq)), end))
        self._keep_older(db_key, {(slot.ms, slot.seq) for slot in slots})

    def _keep_older(self, db_key: bytes, read: set[tuple[int, int]]) -> None:
        """An older copy of a damaged node may hold more: entries that may have been deleted."""
        noted = self.out.noted(OLD_NODE + db_key)
        if noted is None:
            return
        number, ms, seq = unpack_node_key(db_key)
        envelope = decode_envelope(split_candidate(noted)[1], "page")
        held = live_slots(envelope.listpack, ms, seq)
        more = [slot for slot in held if (slot.ms, slot.seq) not in read]
        self._loss(number).moved += self.lost.keep_entries(
            "of an older copy of a damaged node: they may have been deleted since",
            self._name(number),
            number,
            more,
        )

    def _rescue_tail(self, number: int, value: bytes) -> None:
        """Keep what is readable of the tail in a damaged row of `streams`."""
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
            loss.notes.append("its record was damaged: its settings and counters are made anew")
            self._put_stream(number, StreamRecord(PAGE_FIT, _NODE_ENTRIES), None)
            if self.out.noted(_NAMED + pack_number(number)) is None:
                self._name_anew(pack_number(number))
        slots = slots_of(value, number, key_of(value), None, record=True) if value else []
        more = [slot for slot in slots if (slot.ms, slot.seq) > highest]
        if more and envelope is not None and envelope.listpack:
            self._seal_tail(number, envelope)
        loss.unverified += store_slots(self.out, number, self.epoch, more)
        loss.entries = None
        loss.ranges.append((behind(more, highest), None))

    def _seal_tail(self, number: int, envelope: Envelope) -> None:
        """Make the tail a sealed node: others follow it."""
        self._put_sealed(envelope)
        record = decode_stream_record(envelope.record, "stream")
        self._put_stream(number, record, None)

    def _put_sealed(self, envelope: Envelope) -> None:
        db_key = node_key(envelope.number, envelope.ms, envelope.seq)
        self.out.put(NODES, db_key, _sealed(envelope))

    def _tail_of(self, number: int) -> tuple[int, int] | None:
        value = self.out.get(STREAMS, pack_number(number))
        if value is None:
            return None
        envelope = decode_envelope(value, "stream")
        return (envelope.ms, envelope.seq) if envelope.listpack else None

    # --- one stream ---------------------------------------------------------------------------

    def _stream(self, number: int, value: bytes) -> None:
        """Make record and nodes of a stream agree."""
        envelope: Envelope | None = decode_envelope(value, "stream")
        assert envelope is not None
        stated = envelope.record
        try:
            record = decode_stream_record(stated, "stream")
            split_sections(record.extension, "stream")
        except CorruptionError:
            self._loss(number).notes.append("its record cannot be read: settings are made anew")
            record = StreamRecord(PAGE_FIT, _NODE_ENTRIES)
        self._sound_settings(number, record)
        facts = self._sound_nodes(number)
        tail = self._sound_tail(envelope, facts) if envelope.listpack else None
        if envelope.listpack and tail is None:
            facts = self._sound_nodes(number)
        self._settle_length(number, record, facts)
        self._derive(record, facts)
        if envelope.listpack and tail is None:
            record.flags |= REOPEN
        if record.encode() != stated or (envelope.listpack and tail is not envelope):
            self.report.rebuild("stream records")
            self._put_stream(number, record, tail)

    def _sound_settings(self, number: int, record: StreamRecord) -> None:
        """Drop the sections of a record that cannot be read; `rebuild_messages` has one of its own.

        Args:
            record: its sections can be told from each other.
        """
        for tag, decode, what in _SETTINGS:
            try:
                decode(record.extension, "stream")
            except CorruptionError as error:
                record.extension = without_section(record.extension, tag)
                self._loss(number).notes.append(f"{what}: {error.problem}")

    def _sound_nodes(self, number: int) -> StreamFacts:
        """Walk the nodes of a stream, and mend what is wrong with them; return what they hold."""
        while True:
            facts = StreamFacts()
            if not any(list(self._walk(number, facts))):
                return facts

    def _walk(self, number: int, facts: StreamFacts) -> Iterator[bool]:
        """Yield, for each node, whether it had to be changed."""
        before = b""
        for db_key, value in self.out.rows(NODES, pack_number(number)):
            problems = facts.add_sealed(db_key, value, True)
            if problems:
                self._mend_node(db_key, value, before, problems)
                yield True
                return
            before = db_key

    def _mend_node(
        self, db_key: bytes, value: bytes, before: bytes, problems: list[Problem]
    ) -> None:
        number, ms, seq = unpack_node_key(db_key)
        codes = {problem.code for problem in problems}
        if "SK110" in codes:
            self.out.delete(NODES, db_key)
            self._rescue_node(db_key, value)
            return
        envelope = decode_envelope(value, "macro node")
        if "SK111" in codes:
            self._part_overlap(before, db_key, envelope)
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

    def _part_overlap(self, before: bytes, db_key: bytes, envelope: Envelope) -> None:
        """Of two nodes whose IDs overlap, the newer one stays."""
        other_value = self.out.get(NODES, before)
        assert other_value is not None
        other = decode_envelope(other_value, "macro node")
        older, key = (other, before) if _age(other) < _age(envelope) else (envelope, db_key)
        self.out.delete(NODES, key)
        loss = self._loss(older.number)
        loss.moved += self.lost.keep_entries(
            "its IDs overlap those of a newer macro node",
            self._name(older.number),
            older.number,
            live_slots(older.listpack, older.ms, older.seq),
        )

    def _sound_tail(self, envelope: Envelope, facts: StreamFacts) -> Envelope | None:
        """Add the tail to the facts; return it, or None when it could not stay."""
        number, key = envelope.number, (envelope.ms, envelope.seq)
        if facts.sealed_nodes and key <= facts.highest:
            self._loss(number).moved += self.lost.keep_entries(
                "the tail's IDs overlap those of a sealed macro node",
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
            slots, end = slots_of(_sealed(envelope), number, key, None), None
            loss = self._loss(number)
            loss.unverified += store_slots(self.out, number, self.epoch, slots)
            loss.ranges.append((behind(slots, key), end))
            return None
        if "SK113" in codes:
            self.report.rebuild("slots marked as trimmed")
            good = trimmed_slots(envelope.trimmed) & tombstone_slots(envelope.listpack, *key)
            trimmed = set_trimmed(b"", sorted(good))
            return Envelope(
                number, *key, self.epoch, 1, envelope.record, envelope.listpack, trimmed
            )
        return envelope

    def _settle_length(self, number: int, record: StreamRecord, facts: StreamFacts) -> None:
        """Say how many entries are lost, where that is known."""
        missing = record.length - facts.length
        loss = self.report.streams.get(number)
        if missing > 0 and (loss is None or not loss.ranges):
            holes = self._holes_of(number)
            if not holes:
                return  # the count was wrong, and nothing is missing
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
        """Set what follows from the nodes."""
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


def _sealed(envelope: Envelope) -> bytes:
    """Return the node of an envelope as a node of its own."""
    return encode_envelope(
        envelope.number,
        envelope.ms,
        envelope.seq,
        envelope.epoch,
        envelope.commit_number,
        b"",
        envelope.listpack,
        envelope.trimmed,
    )


def _age(envelope: Envelope) -> tuple[int, int]:
    return envelope.epoch, envelope.commit_number


def _id_in(db_key: bytes | None) -> StreamId:
    if db_key is None or len(db_key) < _NUMBER_SIZE + 16:
        return MIN_ID
    return StreamId(*unpack_node_key(db_key[: _NUMBER_SIZE + 16])[1:])
