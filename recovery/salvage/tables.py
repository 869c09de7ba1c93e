"""Take what is readable out of a damaged store, into a new one: step one of a repair.

The trees come first. What they lead to, and whose checksum holds, is copied as it is; one damaged
byte is put right (`mend`). Indexes are not copied: `rebuild` makes them anew.

If anything was damaged, the pages are looked at that nothing leads to, or that are not what they
must be (`raw_pages`). What may be used of them follows from the free list. A page that is neither
used nor free must have belonged to the damaged part of a tree: what it holds is live. A free page
holds what was replaced or deleted: it is used only where the record of a stream is gone, for an
older state of it.

Without a free list, nothing tells a page that was freed from one that was not. Then, of several
copies of a node, the newest (epoch, commit number) counts; nodes below first_id of their stream
were trimmed, and are dropped; nodes behind max_deleted_id cannot have been deleted, and come back;
so do all others if there are exactly as many as the stream record says. What is left may have been
deleted, and goes to lost+found. Of rows, which carry no commit number, the one with the higher
counters is taken.

Memory is bounded: what was found waits in the new store's scratch table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.crash_recovery import META_EPOCH
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    GARBAGE,
    GROUPS,
    IDEMPOTENCY,
    IDEMPOTENCY_ORDER,
    KEYS,
    META,
    NODES,
    PEL,
    PEL_ORDER,
    PRODUCERS,
    RETIRED,
    STREAMS,
    TABLES,
    fits,
    is_name_key,
    node_key,
    pack_number,
    unpack_node_key,
    unpack_number,
)
from streamkeep.format.log.checkpoint import decode_meta_page
from streamkeep.format.node.envelope import Envelope, decode_envelope, encode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.rows.group_records import decode_consumer, decode_group
from streamkeep.format.rows.producers import decode_producer
from streamkeep.format.rows.records import (
    GROUP_ROWS,
    IDEMPOTENCE_ROWS,
    STREAM_NODES,
    StreamRecord,
    decode_epoch,
    decode_garbage,
    decode_stream_record,
)
from streamkeep.format.rows.retired import former_name_key, is_former_name
from streamkeep.recovery.fsck.pages import PageWalk
from streamkeep.recovery.fsck.sorting import SortedPairs
from streamkeep.recovery.fsck.source import Source
from streamkeep.recovery.pages.raw_pages import RawEnvelope, RawRow, scan_pages
from streamkeep.recovery.pages.tree import Hole, Tables
from streamkeep.recovery.salvage.guess_bytes import Mender
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import live_slots

Progress = Callable[[int], None]
Id = tuple[int, int]

_DERIVED: Final = (CONSUMER_PEL, PEL_ORDER)  # made anew by `rebuild`
_BAD_KEY: Final = "no row of its table has such a key"
_NUMBER_SIZE: Final = 8
NODE_KEY_SIZE: Final = 24
_NO_ID: Final = bytes(16)

# Notes in the scratch table; behind each prefix stands a key of a table.
DAMAGED_NODE: Final = b"D"  # value: the damaged bytes of a node
DAMAGED_RETIRED: Final = b"T"  # value: the damaged bytes of a retired node
DAMAGED_STREAM: Final = b"S"  # value: the damaged bytes of a stream's row
_NODE: Final = b"N"  # a node that was found without its tree; value: `Candidate`
_RECORD: Final = b"R"  # a stream's row, likewise
OLD_NODE: Final = b"O"  # an older copy of a node, from a free page; value: `Candidate`
WAITED: Final = b"W"  # a node that may have waited for the archive, while nothing tells

_CANDIDATE: Final = struct.Struct(">IQ??")


class Candidate(NamedTuple):
    """What is known of an envelope that was found without its tree."""

    epoch: int  # which commit wrote it
    commit_number: int
    known_live: bool  # its page is neither free nor used elsewhere
    tail: bool  # it is the tail in a stream's row

    def age(self) -> tuple[int, int]:
        """Return what rises from copy to copy."""
        return self.epoch, self.commit_number


class Salvage:
    """Copies what is readable of `source` into `out`."""

    def __init__(
        self,
        source: Source,
        out: BulkStore,
        report: Report,
        lost: LostAndFound,
        progress: Progress,
    ) -> None:
        self.source = source
        self.out = out
        self.report = report
        self.lost = lost
        self.mender = Mender()
        self.damaged = source.tables is None or source.meta_damaged()
        self._progress = progress
        self.highest_epoch = 0
        self._newest: tuple[int, int] | None = None  # (epoch, commit) of the trees
        self._garbage: dict[int, SortedPairs] = {}

    def run(self) -> None:
        """Take everything out."""
        walk = None
        tables = self.source.tables
        if tables is not None:
            walk = PageWalk(tables, self._progress, keep_free=True)
            for _ in walk.findings():
                self.damaged = True
            self._newest = self._commit_of(tables)
            self._read_garbage(tables)
            for table in TABLES:
                if table not in _DERIVED and table != GARBAGE:
                    self._copy_table(tables, table)
        cut_off = walk.cut_off() if walk is not None else self._cut_off()
        if cut_off:
            self.report.other.append(f"{DATA_FILE} was {cut_off}: what the rest held")
        if self.damaged:
            self._scan(walk)
            self._place_records()
            self._place_nodes()
        self.report.mended += self.mender.mended

    def _cut_off(self) -> str:
        """Return how the file was cut off, where no meta page is left: what a checkpoint says."""
        slot = self.source.slot
        meta = None if slot is None else decode_meta_page(slot.meta_page)
        path = self.source.path / DATA_FILE
        if meta is None or not path.exists():
            return ""
        size, expected = path.stat().st_size, (meta.last_page + 1) * meta.page_size
        if size >= expected:
            return ""
        return f"cut off at {size} bytes, its checkpoint speaks of {expected}"

    # --- what the trees lead to -------------------------------------------------------------

    def _read_garbage(self, tables: Tables) -> None:
        """Learn what had been deleted, and only waited to be removed."""
        for kind in (STREAM_NODES, GROUP_ROWS, IDEMPOTENCE_ROWS):
            self._garbage[kind] = SortedPairs()
        cursor = tables.cursor(GARBAGE)
        found = cursor.first()
        while found:
            try:
                body = open_row(GARBAGE, cursor.key(), cursor.value(), "garbage")
                kind, number = decode_garbage(body, "garbage")
            except CorruptionError:
                self.damaged = True
            else:
                kept = kind == STREAM_NODES and not tables.lacks(STREAMS, pack_number(number))
                if kind in self._garbage and not kept:
                    self._garbage[kind].add(number)
            found = cursor.next()

    def _commit_of(self, tables: Tables) -> tuple[int, int] | None:
        """Return the commit that the trees show; None when its epoch is not known."""
        try:
            body = tables.get_row(META, META_EPOCH, "meta")
            if body is not None:
                return decode_epoch(body, "meta"), tables.meta.commit_number
        except CorruptionError:
            pass
        slot = self.source.slot
        return None if slot is None else (slot.epoch, tables.meta.commit_number)

    def _copy_table(self, tables: Tables, table: int) -> None:
        kind = _GARBAGE_OF.get(table)
        doomed = self._garbage[kind].firsts() if kind is not None else None
        cursor = tables.cursor(table)
        found = cursor.first()
        while found:
            db_key = cursor.key()
            prefix = int.from_bytes(db_key[:_NUMBER_SIZE], "big")
            if doomed is None or not doomed.has(prefix):
                try:
                    value = cursor.value()
                except CorruptionError:
                    value = b""
                self._copy_row(table, db_key, value)
            found = cursor.next()

    def _copy_row(self, table: int, db_key: bytes, value: bytes) -> None:
        named = table == RETIRED and db_key[_NUMBER_SIZE:] == _NO_ID  # of a deleted stream
        if table in (NODES, RETIRED) and not named:
            self._copy_node(table, db_key, value)
        elif table == STREAMS:
            self._copy_stream(db_key, value)
        else:
            good = _good_row(table, db_key, value) or self.mender.row(table, db_key, value)
            if good is None:
                self._lose_row(table, db_key, value, "its checksum does not hold")
            elif not fits(table, db_key):
                self._lose_row(table, db_key, value, _BAD_KEY)
            else:
                self.out.put(table, db_key, good)

    def _copy_node(self, table: int, db_key: bytes, value: bytes) -> None:
        good = value if _envelope(value) is not None else self.mender.envelope(value)
        envelope = None if good is None else _envelope(good)
        if good is None or envelope is None:
            self.damaged = True
            if fits(table, db_key):
                self.out.note((DAMAGED_NODE if table == NODES else DAMAGED_RETIRED) + db_key, value)
            else:
                self._lose_row(table, db_key, value, _BAD_KEY)
            return
        own_key = node_key(envelope.number, envelope.ms, envelope.seq)
        if own_key != db_key:
            self._move_node(table, own_key, envelope, good)
            return
        self.out.put(table, db_key, good)

    def _move_node(self, table: int, own_key: bytes, envelope: Envelope, value: bytes) -> None:
        """A sound node stands under the key of another place: nothing proves that it is live."""
        self.damaged = True
        if table == NODES:
            age = (envelope.epoch, envelope.commit_number)
            self._note_newest(_NODE + own_key, _CANDIDATE.pack(*age, False, False) + value)
        elif not is_former_name(envelope.ms, envelope.seq) and self.out.get(table, own_key) is None:
            self.report.rebuild("keys of retired nodes")
            self.out.put(table, own_key, value)
        else:
            self._keep_copy(envelope, "it stood in the place of another node")

    def _copy_stream(self, db_key: bytes, value: bytes) -> None:
        good = value if _envelope(value) is not None else self.mender.envelope(value)
        envelope = None if good is None else _envelope(good)
        if good is not None and envelope is not None and pack_number(envelope.number) == db_key:
            self.out.put(STREAMS, db_key, good)
            return
        self.damaged = True
        if fits(STREAMS, db_key):
            self.out.note(DAMAGED_STREAM + db_key, value)
        elif good is not None and envelope is not None and envelope.record:
            age = (envelope.epoch, envelope.commit_number)
            noted = _CANDIDATE.pack(*age, False, True) + good
            self._note_newest(_RECORD + pack_number(envelope.number), noted)
        else:
            self._lose_row(STREAMS, db_key, value, _BAD_KEY)

    def _lose_row(self, table: int, db_key: bytes, value: bytes, why: str) -> None:
        self.damaged = True
        name = TABLES[table].name
        if table in (IDEMPOTENCY, IDEMPOTENCY_ORDER):
            return  # each has what the other holds; `rebuild` counts what is lost
        self.lost.keep_value("row", why, value, table=name, key=db_key.hex())
        if table == RETIRED and len(db_key) == NODE_KEY_SIZE:
            number = unpack_node_key(db_key)[0]
            self.report.other.append(f"the name of stream {number}, which is deleted and archived")
        elif table != META:
            self.report.other.append(f"row {db_key.hex()} of {name}")

    # --- what nothing leads to --------------------------------------------------------------

    def _scan(self, walk: PageWalk | None) -> None:
        """Note every envelope and row in pages that the trees do not lead to."""
        tables = self.source.tables
        pages = tables.pages if tables is not None else self.source.raw_pages()
        if pages is None:
            self.report.other.append("data.mdb cannot be read: everything in it")
            return
        free_known = walk is not None and walk.free_known
        free = None if walk is None else walk.free
        damaged = None if walk is None else walk.damaged
        # Where a table was removed, and not damaged, its pages were freed with it: nothing tells
        # what had been free before.
        removed = walk is not None and walk.main_sound and tables is not None
        missing = set(tables.missing) if removed and tables is not None else set()
        nodes_known = free_known and not missing & {NODES, STREAMS}
        holes = tables is None or RETIRED in tables.missing or bool(tables.tree(RETIRED).cut)
        waiting_known = RETIRED not in missing and (free_known or not holes)

        def is_free(number: int) -> bool:
            return free is not None and number < free.pages and free.is_taken(number)

        def wanted(number: int) -> bool:
            if walk is None or number >= walk.map.pages:
                return number > 1
            if damaged is not None and damaged.is_taken(number):
                return number > 1
            return not walk.map.is_taken(number) or (number > 1 and is_free(number))

        for found in scan_pages(pages, wanted, self._progress):
            free_page = is_free(found.page)
            if isinstance(found, RawRow):
                if not free_known or not free_page or found.table in missing:
                    self._found_row(found, sure=free_known and not free_page)
            else:
                live = nodes_known and not free_page
                self._found_envelope(found, live=live, free=nodes_known and free_page)
                if not waiting_known and (free_page or not free_known):
                    self._note_waited(found.envelope, found.value)

    def _found_row(self, found: RawRow, *, sure: bool) -> None:
        if found.table in _DERIVED or found.table == GARBAGE:
            return
        present = self.out.get(found.table, found.db_key)
        if present is None or (not sure and _is_newer(found, present)):
            self.out.put(found.table, found.db_key, found.value)

    def _found_envelope(self, found: RawEnvelope, *, live: bool, free: bool) -> None:
        envelope = found.envelope
        tail = bool(envelope.record)
        age = (envelope.epoch, envelope.commit_number)
        self.highest_epoch = max(self.highest_epoch, envelope.epoch)
        newer = self._newest is not None and age > self._newest
        sure = newer or (live and found.headed)
        value = _CANDIDATE.pack(*age, sure, tail) + found.value
        number = pack_number(envelope.number)
        if tail:
            self._note_newest(_RECORD + number, value)
        if envelope.listpack:
            key = node_key(envelope.number, envelope.ms, envelope.seq)
            prefix = OLD_NODE if free and not newer else _NODE
            if not tail or sure:
                self._note_newest(prefix + key, value)

    def _note_waited(self, envelope: Envelope, value: bytes) -> None:
        """Note what may have waited for the archive: nodes that are nowhere else."""
        key = node_key(envelope.number, envelope.ms, envelope.seq)
        if envelope.listpack and not envelope.record and self.out.get(NODES, key) is None:
            age = (envelope.epoch, envelope.commit_number)
            self._note_newest(WAITED + key, _CANDIDATE.pack(*age, False, False) + value)

    def _note_newest(self, key: bytes, value: bytes) -> None:
        known = self.out.noted(key)
        # LMDB copies a leaf with every row in it: of equal copies, that in a live page counts.
        if known is None or _CANDIDATE.unpack_from(known)[:3] < _CANDIDATE.unpack_from(value)[:3]:
            self.out.note(key, value)

    # --- putting it in place ----------------------------------------------------------------

    def _place_records(self) -> None:
        """Put back stream rows that the trees did not lead to; the newest copy counts.

        One from a free page is an older state of the stream; it is used only if the stream is
        known to exist, by a name or by the row that is damaged.
        """
        named = SortedPairs()
        for _, value in self.out.rows(KEYS):
            named.add(int.from_bytes(value[:_NUMBER_SIZE], "big"))
        names = named.firsts()
        for key, noted in self.out.notes(_RECORD):
            db_key = key[1:]
            number = unpack_number(db_key)
            candidate, value = split_candidate(noted)
            present = self.out.get(STREAMS, db_key)
            if present is not None and _age_of(present) >= candidate.age():
                continue
            exists = candidate.known_live or names.has(number) or present is not None
            if not exists and self.out.noted(DAMAGED_STREAM + db_key) is None:
                self.report.stale += 1
                continue
            self.out.put(STREAMS, db_key, value)
            if not candidate.known_live:
                loss = self.report.stream(number)
                loss.notes.append(
                    f"its record: the newest that was found is of commit {candidate.commit_number} "
                    f"of epoch {candidate.epoch}; if later ones came, their newest entries are lost"
                )
                loss.entries = None

    def holes(self) -> list[Hole]:
        """Return the keys of `nodes` between which rows may be missing."""
        tables = self.source.tables
        if tables is None or NODES in tables.missing:
            return [(None, None)]
        return list(tables.tree(NODES).cut.values())

    def _place_nodes(self) -> None:
        """Put back nodes that the trees did not lead to."""
        number = -1
        doubtful: list[bytes] = []
        for key, noted in self.out.notes(_NODE):
            db_key = key[1:]
            if unpack_number(db_key[:_NUMBER_SIZE]) != number:
                self._settle(number, doubtful)
                number, doubtful = unpack_number(db_key[:_NUMBER_SIZE]), []
            self._place_node(db_key, *split_candidate(noted), doubtful)
        self._settle(number, doubtful)

    def _place_node(
        self, db_key: bytes, candidate: Candidate, value: bytes, doubtful: list[bytes]
    ) -> None:
        envelope = decode_envelope(value, "page")
        record, tail_key, age = self._record_of(envelope.number)
        present = self.out.get(NODES, db_key)
        if present is not None and _age_of(present) >= candidate.age():
            self.report.stale += 1
            return
        if db_key == tail_key and age >= candidate.age():
            self.report.stale += 1  # the tail that is there is newer
            return
        try:
            last = end_ids(envelope.listpack, envelope.ms, envelope.seq).last_slot
        except CorruptionError:
            return
        if self.out.noted(DAMAGED_RETIRED + db_key) is not None:
            if candidate.known_live and self.out.get(RETIRED, db_key) is None:
                self.out.put(RETIRED, db_key, value)
                self.report.recovered += 1
            return
        gone = record is not None and last < (record.first_ms, record.first_seq)
        deleted_stream = self.out.get(RETIRED, former_name_key(envelope.number)) is not None
        if candidate.known_live and (gone or (record is None and deleted_stream)):
            if self.out.get(RETIRED, db_key) is None:
                self.out.put(RETIRED, db_key, value)  # trimmed, and not archived yet
                self.report.recovered += 1
            return
        if gone:
            self.report.stale += 1
            return
        deleted = (0, 0) if record is None else (record.max_deleted_ms, record.max_deleted_seq)
        sure = candidate.known_live or (
            record is not None and (envelope.ms, envelope.seq) > deleted and not candidate.tail
        )
        if sure:
            self._put_node(db_key, envelope)
        elif len(doubtful) < _MOST_DOUBTFUL:
            doubtful.append(db_key)

    def _put_node(self, db_key: bytes, envelope: Envelope) -> None:
        self.out.put(NODES, db_key, _without_record(envelope))
        self.report.recovered += 1

    def _settle(self, number: int, doubtful: list[bytes]) -> None:
        """Decide about the nodes of one stream that may have been deleted."""
        if not doubtful:
            return
        record, _, _ = self._record_of(number)
        present = sum(1 for _ in self.out.rows(NODES, pack_number(number)))
        all_of_them = record is not None and record.sealed_nodes == present + len(doubtful)
        for db_key in doubtful:
            noted = self.out.noted(_NODE + db_key)
            assert noted is not None
            envelope = decode_envelope(split_candidate(noted)[1], "page")
            if all_of_them and not split_candidate(noted)[0].tail:
                self._put_node(db_key, envelope)
            else:
                self._keep_copy(envelope, "it may have been deleted: nothing tells that it was not")

    def _record_of(self, number: int) -> tuple[StreamRecord | None, bytes, tuple[int, int]]:
        """Return the record of a stream as known so far, the key of its tail, and its age."""
        value = self.out.get(STREAMS, pack_number(number))
        if value is None:
            return None, b"", (0, 0)
        envelope = decode_envelope(value, "stream")
        key = node_key(number, envelope.ms, envelope.seq) if envelope.listpack else b""
        try:
            record = decode_stream_record(envelope.record, "stream")
        except CorruptionError:
            return None, key, (envelope.epoch, envelope.commit_number)
        return record, key, (envelope.epoch, envelope.commit_number)

    def _keep_copy(self, envelope: Envelope, why: str) -> None:
        """Put a node into lost+found, as entries."""
        count = self.lost.keep_entries(
            why,
            None,
            envelope.number,
            live_slots(envelope.listpack, envelope.ms, envelope.seq),
            epoch=envelope.epoch,
            commit_number=envelope.commit_number,
        )
        self.report.stream(envelope.number).moved += count


_MOST_DOUBTFUL: Final = 100_000
_GARBAGE_OF: Final = {
    NODES: STREAM_NODES,
    PEL: GROUP_ROWS,
    CONSUMERS: GROUP_ROWS,
    PRODUCERS: IDEMPOTENCE_ROWS,
    IDEMPOTENCY: IDEMPOTENCE_ROWS,
    IDEMPOTENCY_ORDER: IDEMPOTENCE_ROWS,
}


def _envelope(value: bytes) -> Envelope | None:
    try:
        return decode_envelope(value, "row")
    except CorruptionError:
        return None


def _good_row(table: int, db_key: bytes, value: bytes) -> bytes | None:
    try:
        open_row(table, db_key, value, "row")
    except CorruptionError:
        return None
    return value


def split_candidate(noted: bytes) -> tuple[Candidate, bytes]:
    """Return what is known of an envelope that was noted, and its bytes."""
    return Candidate(*_CANDIDATE.unpack_from(noted)), noted[_CANDIDATE.size :]


def _age_of(value: bytes) -> tuple[int, int]:
    envelope = decode_envelope(value, "row")
    return envelope.epoch, envelope.commit_number


def _without_record(envelope: Envelope) -> bytes:
    """Return the tail node of a stream's row as a node of its own; a node as it is."""
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


def _is_newer(found: RawRow, present: bytes) -> bool:
    """Say whether a row has higher counters than another copy of it."""
    try:
        one = _counters(found.table, found.db_key, found.value)
        return one > _counters(found.table, found.db_key, present)
    except CorruptionError:
        return False


def _counters(table: int, db_key: bytes, value: bytes) -> tuple[int, ...]:
    body = open_row(table, db_key, value, "row")
    if table == GROUPS:
        group = decode_group(body, "row")
        return group.next_order, group.last_ms, group.last_seq, group.next_consumer
    if table == CONSUMERS and is_name_key(db_key):
        consumer = decode_consumer(body, "row")
        return consumer.number, consumer.seen_time, consumer.active_time
    if table == PRODUCERS and is_name_key(db_key):
        producer, _ = decode_producer(body, "row")
        return (producer.number, producer.next_order)
    if table in (META, KEYS):
        return (int.from_bytes(body[:8], "big"),)
    return (0,)


def damaged_nodes(out: BulkStore, kind: bytes = DAMAGED_NODE) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, damaged bytes) of the nodes that could not be copied."""
    for key, value in out.notes(kind):
        yield key[1:], value
