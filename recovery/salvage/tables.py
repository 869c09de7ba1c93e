"""Step one of a repair: copy everything readable of a damaged store into a new one.

1. Copy the rows that the trees lead to, if their checksums match. Correct single damaged bytes
   (`guess_bytes`). Do not copy indexes: `rebuild` makes them from the other rows.
2. If anything was damaged, search all pages that are damaged or that no tree leads to
   (`raw_pages`), and note the envelopes found in the new store's scratch table (`notes`). Store the
   rows found at once; rows have no commit number, so of two copies the one with higher counters is
   used.
3. Put the noted envelopes back (`placement`).
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.crash_recovery.stored_version import META_EPOCH
from streamkeep.engine.system.progress import Advance
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
    MAX_DB_KEY,
    META,
    NAMES,
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
)
from streamkeep.format.lmdb_file.lmdb_pages import BIG
from streamkeep.format.lmdb_file.meta_page import decode_meta_page
from streamkeep.format.node.envelope import Envelope
from streamkeep.format.rows.group_records import decode_consumer, decode_group
from streamkeep.format.rows.producers import decode_producer
from streamkeep.format.rows.records import (
    GROUP_ROWS,
    IDEMPOTENCE_ROWS,
    STREAM_NODES,
    decode_epoch,
    decode_garbage,
)
from streamkeep.format.rows.retired import is_former_name
from streamkeep.recovery.fsck.pages import PageWalk
from streamkeep.recovery.fsck.sorting import SortedPairs
from streamkeep.recovery.fsck.source import Source
from streamkeep.recovery.pages.raw_pages import RawEnvelope, RawRow, envelope_at, scan_pages
from streamkeep.recovery.pages.tree import Hole, Row, Tables
from streamkeep.recovery.salvage.guess_bytes import ByteGuesser
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import record_only
from streamkeep.recovery.salvage.notes import (
    DAMAGED_NAME,
    DAMAGED_NODE,
    DAMAGED_RETIRED,
    DAMAGED_STREAM,
    FOUND_NODE,
    FOUND_RECORD,
    MAYBE_RETIRED,
    OLD_NODE,
    PARTIAL_STREAM,
    Candidate,
    note_newest,
    pack_partial,
    readable_envelope,
)
from streamkeep.recovery.salvage.placement import Placement, keep_node

_DERIVED: Final = (CONSUMER_PEL, PEL_ORDER)  # `rebuild` makes them
_BAD_KEY: Final = "the key is not possible in its table"
_NUMBER_SIZE: Final = 8
NODE_KEY_SIZE: Final = 24
_NO_ID: Final = bytes(16)


class Salvage:
    """Copies everything readable of `source` into `out`.

    Attributes:
        damaged: whether any damage was found.
        highest_epoch: the highest epoch of an envelope found without its tree.
    """

    def __init__(
        self,
        source: Source,
        out: BulkStore,
        report: Report,
        lost: LostAndFound,
        progress: Advance,
    ) -> None:
        self.source = source
        self.out = out
        self.report = report
        self.lost = lost
        self._guesser = ByteGuesser()
        self.damaged = source.tables is None or source.meta_damaged()
        self._progress = progress
        self.highest_epoch = 0
        self._newest: tuple[int, int] | None = None  # (epoch, commit) of the trees
        self._garbage: dict[int, SortedPairs] = {}

    def run(self) -> None:
        """Copy everything."""
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
        truncation = walk.truncation() if walk is not None else self._truncation()
        if truncation:
            self.report.other.append(f"the end of {DATA_FILE} ({truncation})")
        if self.damaged:
            self._scan(walk)
            Placement(self.out, self.report, self.lost).run()
        self.report.corrected += self._guesser.corrected

    def _truncation(self) -> str:
        """Return the problem if the file is shorter than its checkpoint says, else "".

        Used if both meta pages are damaged.
        """
        slot = self.source.slot
        meta = None if slot is None else decode_meta_page(slot.meta_page)
        path = self.source.path / DATA_FILE
        if meta is None or not path.exists():
            return ""
        size, expected = path.stat().st_size, (meta.last_page + 1) * meta.page_size
        if size >= expected:
            return ""
        return f"truncated: {size:,} bytes, expected {expected:,}"

    # --- rows of the trees ------------------------------------------------------------------

    def _read_garbage(self, tables: Tables) -> None:
        """Collect the numbers of rows that were deleted and only waited to be removed."""
        for kind in (STREAM_NODES, GROUP_ROWS, IDEMPOTENCE_ROWS):
            self._garbage[kind] = SortedPairs()
        for row in tables.walk(GARBAGE):
            try:
                body = open_row(GARBAGE, row.key, row.value(), "garbage")
                kind, number = decode_garbage(body, "garbage")
            except CorruptionError:
                self.damaged = True
                continue
            kept = kind == STREAM_NODES and not tables.lacks(STREAMS, pack_number(number))
            if kind in self._garbage and not kept:
                self._garbage[kind].add(number)

    def _commit_of(self, tables: Tables) -> tuple[int, int] | None:
        """Return epoch and number of the commit of the trees; None if the epoch is unknown."""
        slot = self.source.slot
        try:
            newest = tables.newest_commit()
        except CorruptionError:
            newest = tables.meta.commit_number if slot is None else slot.commit_number
        try:
            body = tables.get_row(META, META_EPOCH, "meta")
            if body is not None:
                return decode_epoch(body, "meta"), newest
        except CorruptionError:
            pass
        return None if slot is None else (slot.epoch, newest)

    def _copy_table(self, tables: Tables, table: int) -> None:
        kind = _GARBAGE_OF.get(table)
        doomed = self._garbage[kind].firsts() if kind is not None else None
        for row in tables.walk(table):
            db_key = row.key
            prefix = int.from_bytes(db_key[:_NUMBER_SIZE], "big")
            if doomed is None or not doomed.has(prefix):
                try:
                    value = row.value()
                except CorruptionError:
                    value = b""
                self._copy_row(table, row, value)

    def _copy_row(self, table: int, row: Row, value: bytes) -> None:
        db_key = row.key
        former_name = table == RETIRED and db_key[_NUMBER_SIZE:] == _NO_ID
        if table in (NODES, RETIRED) and not former_name:
            self._copy_node(table, db_key, value, self._envelope(row, value))
        elif table == STREAMS:
            self._copy_stream(db_key, value, self._envelope(row, value))
        else:
            good = _good_row(table, db_key, value) or self._guesser.row(table, db_key, value)
            if good is None:
                self._lose_row(table, db_key, value, "the checksum does not match")
            elif not fits(table, db_key):
                self._lose_row(table, db_key, value, _BAD_KEY)
            else:
                self.out.put(table, db_key, good)

    def _envelope(self, row: Row, value: bytes) -> bytes | None:
        """Return the value of a row if it is a sound envelope, or can be made one."""
        if readable_envelope(value) is not None:
            return value
        if row.leaf is None:
            return None
        if row.leaf.flags[row.index] == BIG:
            whole = envelope_at(row.pages, row.leaf.places[row.index])
            if whole is not None:
                self.report.rebuild("sizes of macro nodes in their leaves")
                return whole
        return self._guesser.envelope(value)

    def _copy_node(self, table: int, db_key: bytes, value: bytes, good: bytes | None) -> None:
        envelope = None if good is None else readable_envelope(good)
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
        """Move a sound node with the key of another node; it is not certain that it is live."""
        self.damaged = True
        if table == NODES:
            candidate = Candidate(envelope.epoch, envelope.commit_number, False, False)
            note_newest(self.out, FOUND_NODE + own_key, candidate, value)
        elif not is_former_name(envelope.ms, envelope.seq) and self.out.get(table, own_key) is None:
            self.report.rebuild("keys of retired nodes")
            self.out.put(table, own_key, value)
        else:
            keep_node(self.lost, self.report, envelope, "the node had the key of another node")

    def _copy_stream(self, db_key: bytes, value: bytes, good: bytes | None) -> None:
        envelope = None if good is None else readable_envelope(good)
        if good is not None and envelope is not None and pack_number(envelope.number) == db_key:
            self.out.put(STREAMS, db_key, good)
            return
        self.damaged = True
        if fits(STREAMS, db_key):
            replay = self.source.replay
            before = None if replay is None else replay.partial.get((STREAMS, db_key))
            if before is None:
                self.out.note(DAMAGED_STREAM + db_key, value)
            else:  # the newest record of the stream is in `value`, and most of its entries
                self.out.put(STREAMS, db_key, record_only(value))
                self.out.note(PARTIAL_STREAM + db_key, pack_partial(before, value))
        elif good is not None and envelope is not None and envelope.record:
            candidate = Candidate(envelope.epoch, envelope.commit_number, False, True)
            note_newest(self.out, FOUND_RECORD + pack_number(envelope.number), candidate, good)
        else:
            self._lose_row(STREAMS, db_key, value, _BAD_KEY)

    def _lose_row(self, table: int, db_key: bytes, value: bytes, why: str) -> None:
        self.damaged = True
        name = TABLES[table].name
        if table in (IDEMPOTENCY, IDEMPOTENCY_ORDER, NAMES):
            return  # another table contains it; `rebuild` reports what both have lost
        if table == KEYS and fits(KEYS, db_key) and len(db_key) < MAX_DB_KEY:  # a note has one more
            self.out.note(DAMAGED_NAME + db_key, value)
            return
        self.lost.keep_value("row", why, value, table=name, key=db_key.hex())
        if table == RETIRED and len(db_key) == NODE_KEY_SIZE:
            number = unpack_node_key(db_key)[0]
            self.report.other.append(f"the name of stream {number}, which is deleted and archived")
        elif table != META:
            self.report.other.append(f"row {db_key.hex()} of {name}")

    # --- pages without a tree ---------------------------------------------------------------

    def _scan(self, walk: PageWalk | None) -> None:
        """Find every envelope and row in pages that no tree leads to."""
        tables = self.source.tables
        pages = tables.pages if tables is not None else self.source.raw_pages()
        if pages is None:
            self.report.other.append(f"everything in {DATA_FILE}, which cannot be read")
            return
        free_known = walk is not None and walk.free_known
        free = None if walk is None else walk.free
        damaged = None if walk is None else walk.damaged
        # If a table was removed without damage, its pages are in the free list, mixed with pages
        # that were free before.
        removed = walk is not None and walk.main_sound and tables is not None
        missing = set(tables.missing) if removed and tables is not None else set()
        nodes_known = free_known and not missing & {NODES, STREAMS}
        holes = tables is None or RETIRED in tables.missing or bool(tables.tree(RETIRED).cut)
        retired_known = RETIRED not in missing and (free_known or not holes)

        last = None if tables is None else tables.meta.last_page

        def is_free(number: int) -> bool:
            if last is not None and number > last:  # written after the commit of the trees
                return True
            return free is not None and number < free.pages and free.is_marked(number)

        def wanted(number: int) -> bool:
            if walk is None or number >= walk.map.pages:
                return number > 1
            if damaged is not None and damaged.is_marked(number):
                return number > 1
            return not walk.map.is_marked(number) or (number > 1 and is_free(number))

        for found in scan_pages(pages, wanted, self._progress):
            free_page = is_free(found.page)
            if isinstance(found, RawRow):
                if not free_known or not free_page or found.table in missing:
                    self._found_row(found, sure=free_known and not free_page)
            else:
                live = nodes_known and not free_page
                self._found_envelope(found, live=live, free=nodes_known and free_page)
                if not retired_known and (free_page or not free_known):
                    self._note_maybe_retired(found.envelope, found.value)

    def _found_row(self, found: RawRow, *, sure: bool) -> None:
        if found.table in _DERIVED or found.table == GARBAGE:
            return
        if self._is_changed(found.table, found.db_key):
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
        candidate = Candidate(*age, sure, tail)
        number = pack_number(envelope.number)
        key = node_key(envelope.number, envelope.ms, envelope.seq)
        if self._is_changed(STREAMS, number) if tail else self._is_changed(NODES, key):
            return
        if tail:
            note_newest(self.out, FOUND_RECORD + number, candidate, found.value)
        if envelope.listpack and (not tail or sure):
            prefix = OLD_NODE if free and not newer else FOUND_NODE
            note_newest(self.out, prefix + key, candidate, found.value)

    def _is_changed(self, table: int, db_key: bytes) -> bool:
        """Return whether the journal says what became of a row, found or not."""
        tables = self.source.tables
        return tables is not None and tables.is_changed(table, db_key)

    def _note_maybe_retired(self, envelope: Envelope, value: bytes) -> None:
        """Note a node that may have been in `retired`, unless it is in `nodes`."""
        key = node_key(envelope.number, envelope.ms, envelope.seq)
        if self._is_changed(RETIRED, key):
            return
        if envelope.listpack and not envelope.record and self.out.get(NODES, key) is None:
            candidate = Candidate(envelope.epoch, envelope.commit_number, False, False)
            note_newest(self.out, MAYBE_RETIRED + key, candidate, value)

    def holes(self) -> list[Hole]:
        """Return the keys of `nodes` between which rows may be missing."""
        tables = self.source.tables
        if tables is None or NODES in tables.missing:
            return [(None, None)]
        return list(tables.tree(NODES).cut.values())


_GARBAGE_OF: Final = {
    NODES: STREAM_NODES,
    PEL: GROUP_ROWS,
    CONSUMERS: GROUP_ROWS,
    PRODUCERS: IDEMPOTENCE_ROWS,
    IDEMPOTENCY: IDEMPOTENCE_ROWS,
    IDEMPOTENCY_ORDER: IDEMPOTENCE_ROWS,
}


def _good_row(table: int, db_key: bytes, value: bytes) -> bytes | None:
    try:
        open_row(table, db_key, value, "row")
    except CorruptionError:
        return None
    return value


def _is_newer(found: RawRow, present: bytes) -> bool:
    """Return whether a row has higher counters than another copy of it."""
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
