"""Step two of a repair, streams: write the records and the live nodes of a stream.

Nodes are primary data, and so are the settings of a record and the counters that cannot be counted.
The engine counts all else. Damaged nodes are read up to the damage. Of nodes that overlap, the
older one goes to lost+found.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, pairwise
from typing import Final, NamedTuple

from streamkeep.engine.tables.node_walk import append_node
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id, unpack_id
from streamkeep.format.humanize import entries_text
from streamkeep.format.node import envelope as envelopes
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.check import Slot, validate
from streamkeep.format.node.envelope import Envelope, decode_envelope
from streamkeep.format.node.node import NodeIds, tombstone_slots
from streamkeep.format.rows import extension, records
from streamkeep.format.rows.retention import retention_of
from streamkeep.recovery.fsck.source import Source
from streamkeep.recovery.pages.raw_pages import key_of, readable_envelope, without_record
from streamkeep.recovery.salvage import placement
from streamkeep.recovery.salvage.archive import ArchiveWriter
from streamkeep.recovery.salvage.damaged_bytes import first_unread, live_slots, slots_of
from streamkeep.recovery.salvage.found import NAMED, ascending, name_of
from streamkeep.recovery.salvage.losses import IdRange
from streamkeep.recovery.salvage.new_store import NewStore
from streamkeep.recovery.salvage.search import Search, garbage_note

_NODE_ENTRIES: Final = 100  # stream-node-max-entries of a record that was lost
_NUMBER_SIZE: Final = 8
_UNKNOWN: Final = (0, 0)  # the age of a damaged node

Candidate = tuple[
    Id, Envelope | None, bytes
]  # key; a sound envelope, or the bytes of a damaged one


class Node(NamedTuple):
    """A sound node."""

    ms: int
    seq: int
    data: bytes
    trimmed: bytes
    age: tuple[int, int]  # epoch and number of the commit that wrote it
    ids: NodeIds


class StreamWriter:
    """Writes the live part of streams.

    Args:
        search: what has found `found`.
        archive: what was archived: it is not live.
    """

    def __init__(
        self, source: Source, search: Search, out: NewStore, archive: ArchiveWriter
    ) -> None:
        self.source = source
        self.search = search
        self.found = search.found
        self.out = out
        self.report = search.report
        self.archive = archive
        self.holes = search.holes()
        self.without_record = 0  # streams

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the streams that exist, ascending: they have a name or a node."""
        return ascending(
            self.found.numbers(keys.STREAMS),
            self.found.numbers(keys.NAMES) if self.search.has_holes(keys.STREAMS) else (),
            (
                number
                for number in self.found.numbers(keys.NODES)
                if self.found.noted(garbage_note(records.STREAM_NODES, number)) is None
            ),
            *(
                (keys.unpack_number(key) for key, _ in self.found.notes(note))
                for note in (NAMED, placement.DAMAGED[keys.STREAMS])
            ),
        )

    def write(self, number: int) -> bytes:
        """Write a stream without its groups; return its name."""
        record, tail = self._record(number)
        name, is_new = name_of(self.found, number)
        if is_new:
            self.found.lose(number, "its name; this is a new one, RENAME can change it")
            for db_key, value in self.search.names:  # one of these rows has a lost name
                why = "the checksum does not match"
                self.found.lost.keep_value("row", why, value, table="keys", key=db_key.hex())
                self.report.other.append(f"row {db_key.hex()} of keys")
            self.search.names.clear()
        new = self.out.txn().create_stream(name, number).record
        new.node_max_bytes, new.node_max_entries = record.node_max_bytes, record.node_max_entries
        new.extension = extension.without_section(record.extension, extension.IDEMPOTENCE)
        highest: Id = (0, 0)
        for node in self._in_order(number, self._sound(number, tail)):
            highest = node.ids.last_slot
            self._append(name, node)
        for node in self._damaged_tail(number, record, highest):
            self._append(name, node)
        stream = written(self.out.txn(), name)
        self._count_losses(number, record, stream.record)
        last = max(record.last_id(), stream.record.last_id())
        stream.set_last_id(last)
        stream.set_max_deleted(min(record.max_deleted_id(), last))
        stream.set_entries_added(max(record.entries_added, stream.record.length))
        return name

    def _append(self, name: bytes, node: Node) -> None:
        txn = self.out.txn(len(node.data))
        key = node.ms, node.seq
        append_node(txn, written(txn, name), *key, node.data, node.ids, node.trimmed)

    def _record(self, number: int) -> tuple[records.StreamRecord, Envelope | None]:
        """Return the record of a stream, and its row if it has a tail node."""
        value = self.found.get(keys.STREAMS, keys.pack_number(number))
        if value is None:
            self.without_record += 1
            loss = self.report.stream(number)
            damaged = (
                self.found.noted(placement.DAMAGED[keys.STREAMS] + keys.pack_number(number))
                is not None
            )
            loss.notes.append(
                "its settings and some counters: its record was damaged"
                if damaged
                else "its record, and with it the entries of its tail node"
            )
            loss.entries = None
            return records.StreamRecord(records.PAGE_FIT, _NODE_ENTRIES), None
        envelope = envelopes.decode_envelope(value, "stream")
        try:
            record = records.decode_stream_record(envelope.record, "stream")
            extension.split_sections(record.extension, "stream")
        except CorruptionError:
            self.found.lose(number, "its settings and some counters: its record is damaged")
            record = records.StreamRecord(records.PAGE_FIT, _NODE_ENTRIES)
        try:
            retention_of(record.extension, "stream")
        except CorruptionError as error:
            record.extension = extension.without_section(record.extension, extension.RETENTION)
            self.found.lose(number, f"its retention: {error.problem}")
        return record, envelope if envelope.listpack else None

    # --- nodes --------------------------------------------------------------------------------

    def _candidates(self, number: int, tail: Envelope | None) -> Iterator[Candidate]:
        """Yield all nodes of a stream, ascending by key; of the same key, the tail comes last."""
        prefix = keys.pack_number(number)
        sound = self.found.rows(keys.NODES, prefix)
        damaged = self.found.notes(placement.DAMAGED[keys.NODES] + prefix)
        yield from heapq.merge(
            (
                (unpack_id(db_key[_NUMBER_SIZE:]), envelopes.decode_envelope(value, "node"), b"")
                for db_key, value in sound
            ),
            (
                (unpack_id(key), None, value)
                for key, value in damaged
                if self.found.get(keys.NODES, prefix + key) is None  # no sound copy was found
            ),
            [] if tail is None else [((tail.ms, tail.seq), tail, b"")],
            key=lambda one: one[0],
        )

    def _sound(self, number: int, tail: Envelope | None) -> Iterator[Node]:
        """Yield the nodes of a stream, those that are damaged up to the damage."""
        end: list[Candidate | None] = [None]
        for one, following in pairwise(chain(self._candidates(number, tail), end)):
            assert one is not None
            key, envelope, damaged = one
            if envelope is not None:
                if self.search.damaged and self.archive.has(envelope):
                    self.report.stale += 1  # it was trimmed before
                    continue
                try:
                    yield _node(envelope)
                    continue
                except CorruptionError:
                    damaged = without_record(envelope)
            before = None if following is None else following[0]
            slots = slots_of(damaged, number, key, before)
            loss = self.report.stream(number)
            loss.unverified += sum(not slot.deleted for slot in slots)
            end_id = None if before is None else StreamId(*before)
            loss.ranges.append((first_unread(slots, key), end_id))
            self._keep_older(number, key, {(slot.ms, slot.seq) for slot in slots})
            yield from _nodes_of(slots)

    def _keep_older(self, number: int, key: Id, read: set[Id]) -> None:
        """Move the other entries of an older copy of a damaged node to lost+found."""
        noted = self.found.noted(placement.OLD_NODE + keys.node_key(number, *key))
        if noted is not None:
            envelope = envelopes.decode_envelope(placement.split_candidate(noted)[1], "page")
            why = "in an older copy of a damaged node; may have been deleted since"
            self.found.keep(number, why, live_slots(envelope.listpack, *key, read))

    def _in_order(self, number: int, nodes: Iterator[Node]) -> Iterator[Node]:
        """Yield those nodes that do not overlap newer ones."""
        last: Node | None = None
        for node in nodes:
            if last is None or (node.ms, node.seq) > last.ids.last_slot:
                if last is not None:
                    yield last
                last = node
                continue
            older, newer = (last, node) if last.age < node.age else (node, last)
            if (last.ms, last.seq) == (node.ms, node.seq):
                self.report.stale += 1  # an older copy of the node
            else:
                slots = live_slots(older.data, older.ms, older.seq)
                self.found.keep(number, "the node overlaps a newer macro node", slots)
            last = newer
        if last is not None:
            yield last

    def _damaged_tail(
        self, number: int, record: records.StreamRecord, highest: Id
    ) -> Iterator[Node]:
        """Yield the entries above all others of the tail in a damaged row, up to the damage."""
        db_key = keys.pack_number(number)
        value = self.found.noted(placement.DAMAGED[keys.STREAMS] + db_key)
        if value is None:
            return
        before = self.source.partial(keys.STREAMS, db_key)
        key = key_of(value) if value else highest
        slots = slots_of(value, number, key, None, record=True)
        more = [slot for slot in slots if (slot.ms, slot.seq) > highest]
        loss = self.report.stream(number)
        if before is None or readable_envelope(before) is None:
            loss.unverified += sum(not slot.deleted for slot in more)
        if before is None:
            loss.entries = None
            loss.ranges.append((first_unread(more, highest), None))
        else:  # the journal lacks what came between
            known = slots_of(before, number, key, None, record=True)
            following = slots[len(known) :]
            end = StreamId(following[0].ms, following[0].seq) if following else None
            loss.ranges.append((first_unread(known, key), end))
            with suppress(CorruptionError):
                old = records.decode_stream_record(decode_envelope(before, "row").record, "row")
                added = record.entries_added - old.entries_added
                if loss.entries is not None:
                    loss.entries = max(0, added - len(following))
        yield from _nodes_of(more)

    # --- losses -------------------------------------------------------------------------------

    def _count_losses(
        self, number: int, record: records.StreamRecord, now: records.StreamRecord
    ) -> None:
        """Report how many entries are lost, if the record says so."""
        missing = record.length - now.length
        loss = self.report.streams.get(number)
        if missing > 0 and (loss is None or not loss.ranges):
            holes = self._holes_of(number)
            if not holes and not self.source.loses:
                return  # no node can be missing: the length was wrong
            loss = self.report.stream(number)
            loss.ranges += holes
        counted = loss is not None and (loss.ranges or self.source.loses)
        if loss is not None and counted and loss.entries is not None:
            # Fewer than were added: deletions are lost as well, whose entries are there again.
            loss.entries = max(0, int(missing)) if missing >= loss.entries else None
        retention = retention_of(record.extension, "stream")
        gone = record.tombstones - now.tombstones
        if loss is not None and loss.ranges and gone > 0 and retention and retention.archive:
            loss.archived = None
            what = f"up to {entries_text(gone)} that had been trimmed or deleted"
            loss.notes.append(f"{what}, and were not archived yet")

    def _holes_of(self, number: int) -> list[IdRange]:
        ranges: list[IdRange] = []
        own = keys.pack_number(number)
        for low, high in self.holes:
            start = (low or b"")[:_NUMBER_SIZE]
            end = (high or b"")[:_NUMBER_SIZE]
            if (not low or start <= own) and (not high or own <= end):
                first = _id_in(low) if start == own else MIN_ID
                ranges.append((first, _id_in(high) if end == own else None))
        return ranges


def _id_in(db_key: bytes | None) -> StreamId:
    if db_key is None or len(db_key) < _NUMBER_SIZE + 16:
        return MIN_ID
    return StreamId(*keys.unpack_node_key(db_key[: _NUMBER_SIZE + 16])[1:])


def _node(envelope: Envelope) -> Node:
    key = (envelope.ms, envelope.seq)
    ids = validate(envelope.listpack, *key)
    trimmed = envelope.trimmed
    if trimmed:
        slots = envelopes.trimmed_slots(trimmed) & tombstone_slots(envelope.listpack, *key)
        trimmed = envelopes.set_trimmed(b"", sorted(slots))
    return Node(*key, envelope.listpack, trimmed, placement.age_of(envelope), ids)


def _nodes_of(slots: list[Slot]) -> Iterator[Node]:
    """Yield nodes with the live entries among slots."""
    live = [(slot.ms, slot.seq, slot.pairs) for slot in slots if not slot.deleted]
    for ms, seq, data in encode_nodes(live, envelopes.PAGE_LISTPACK):
        yield Node(ms, seq, data, b"", _UNKNOWN, validate(data, ms, seq))


def written(txn: WriteTxn, name: bytes) -> Stream:
    stream = txn.find_stream(name)
    assert stream is not None
    return stream
