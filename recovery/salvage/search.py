"""Step one of a repair: find everything readable of a damaged store.

1. Look at the rows that the trees lead to. Correct single damaged bytes (`damaged_bytes`), note
   what is damaged, and hide it. Indexes are not looked at: the new store makes its own.
2. If anything was damaged, search all pages that are damaged or that no tree leads to
   (`raw_pages`), and note the envelopes found (`placement`). Rows that are found are added at once;
   they have no commit number, so of two copies the one with higher counters is used.
3. Put the noted envelopes back (`placement`).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH
from streamkeep.engine.system.progress import Advance
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.humanize import count_text
from streamkeep.format.lmdb_file.lmdb_pages import BIG
from streamkeep.format.node.envelope import Envelope
from streamkeep.format.rows import records
from streamkeep.format.rows.group_records import decode_consumer, decode_group
from streamkeep.format.rows.producers import decode_producer
from streamkeep.format.rows.retired import is_former_name
from streamkeep.recovery.fsck.pages import PageWalk
from streamkeep.recovery.fsck.source import PAGE_SIZES, Source
from streamkeep.recovery.pages import raw_pages
from streamkeep.recovery.pages.tree import Hole, PageFile, Row, Tables
from streamkeep.recovery.salvage import placement
from streamkeep.recovery.salvage.damaged_bytes import ByteGuesser
from streamkeep.recovery.salvage.found import Found, read_names

_DERIVED: Final = (keys.CONSUMER_PEL, keys.PEL_ORDER, keys.GARBAGE)  # the engine makes them
# Tables whose rows no other row counts; `archive` knows which segments have no row.
_UNCOUNTED: Final = (keys.META, keys.GROUPS, keys.RETIRED, keys.ERASURES, keys.ROWS)
_SECOND: Final = (keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER, keys.NAMES)  # another one has the same
_BAD_KEY: Final = "the key is not possible in its table"
_NUMBER_SIZE: Final = 8
_NODE_KEY_SIZE: Final = 24
_NO_ID: Final = bytes(16)
_ANY_AGE: Final = (1 << 64, 0)


class Search:
    """Finds everything readable of `source`; what is found is in `found`.

    Attributes:
        damaged: whether any damage was found.
        names: the damaged rows of `keys`.
        highest_epoch: the highest epoch of an envelope found without its tree.
    """

    def __init__(
        self, source: Source, found: Found, progress: Advance, guesser: ByteGuesser
    ) -> None:
        self.source = source
        self.found = found
        self.report = found.report
        self._guesser = guesser
        self.names: list[tuple[bytes, bytes]] = []
        # With a damaged meta page, the newest commit may be missing.
        self.damaged = source.tables is None or any(one.code == "SK003" for one in source.found)
        self._progress = progress
        self.highest_epoch = 0
        self._newest: tuple[int, int] | None = None  # (epoch, commit) of the trees
        self._unsure: Counter[int] = Counter()  # rows of pages that may be free, by table

    def run(self) -> None:
        walk = None
        tables = self.source.tables
        if tables is not None:
            walk = PageWalk(tables, self._progress)
            for _ in walk.findings():
                self.damaged = True
            self._newest = self._commit_of(tables)
            self._read_garbage(tables)
            for table in keys.TABLES:
                if table not in _DERIVED:
                    before = b""
                    for row in tables.walk(table):
                        self._look_at(table, row, in_order=row.key > before)
                        before = max(before, row.key)
        truncation = "" if walk is None else walk.truncation()
        if truncation:
            self.report.other.append(f"the end of {DATA_FILE} ({truncation})")
        if self.damaged:
            self._scan(walk)
        read_names(self.found)
        if self.damaged:
            nodes_until = (0, 0)  # a later node than the trees is live, though it is not in them
            if tables is not None and self.has_holes(keys.RETIRED) and not self.holes():
                nodes_until = self._newest or _ANY_AGE
            placement.place(self.found, nodes_until)
        self._tell_missing(walk)
        self.report.corrected += self._guesser.corrected

    def _tell_missing(self, walk: PageWalk | None) -> None:
        """Report rows that no page has any more, of tables in which nothing else tells of them."""
        uncounted = []
        for table in _UNCOUNTED:
            name = keys.TABLES[table].name
            if walk is None or (table in walk.tables.missing and not walk.main_sound):
                uncounted.append(name)
            elif lost := self.missing_rows(table):
                self.report.other.append(f"{count_text(lost, 'row')} of {name}, in damaged pages")
        unsure = ", ".join(
            f"{count_text(count, 'row')} of {keys.TABLES[table].name}"
            for table, count in sorted(self._unsure.items())
            if count and table not in _SECOND
        )
        if unsure:
            self.report.other.append(f"the proof of {unsure}, which may be old or deleted")
        if uncounted:
            names = ", ".join(uncounted)
            self.report.other.append(f"perhaps rows of {names}: what counts them is damaged")

    # --- rows of the trees ------------------------------------------------------------------

    def _read_garbage(self, tables: Tables) -> None:
        """Note the numbers of rows that were deleted and only waited to be removed."""
        for row in tables.walk(keys.GARBAGE):
            try:
                body = row_body(keys.GARBAGE, row.key, row.value(), "garbage")
                kind, number = records.decode_garbage(body, "garbage")
            except CorruptionError:
                self.damaged = True
                continue
            if kind != records.STREAM_NODES or tables.lacks(keys.STREAMS, keys.pack_number(number)):
                self.found.note(garbage_note(kind, number))

    def _commit_of(self, tables: Tables) -> tuple[int, int] | None:
        """Return epoch and number of the commit of the trees; None if one is unknown."""
        slot = self.source.slot
        try:
            newest = tables.newest_commit()
        except CorruptionError:
            if slot is None:
                return None
            newest = slot.commit_number
        try:
            body = tables.get_row(keys.META, META_EPOCH, "meta")
            if body is not None:
                return records.decode_epoch(body, "meta"), newest
        except CorruptionError:
            pass
        return None if slot is None else (slot.epoch, newest)

    def _look_at(self, table: int, row: Row, *, in_order: bool) -> None:
        """Have `found` show a row of a tree if it is sound, corrected, or not at all."""
        db_key = row.key
        try:
            value = row.value()
        except CorruptionError:
            value = b""
        if table == keys.STREAMS:
            shown = self._stream(db_key, value, self._envelope(row, value))
        elif table in (keys.NODES, keys.RETIRED) and db_key[_NUMBER_SIZE:] != _NO_ID:
            shown = self._node(table, db_key, value, self._envelope(row, value))
        else:
            shown = value
            try:
                row_body(table, db_key, value, "row")
            except CorruptionError:
                shown = self._guesser.row(table, db_key, value)
            if shown is None:
                self._lose_row(table, db_key, value, "the checksum does not match")
            elif not keys.fits(table, db_key):
                self._lose_row(table, db_key, value, _BAD_KEY)
        if not keys.fits(table, db_key):
            return  # `found` shows no such rows
        if shown is None and not in_order:  # a sound row may have the same key
            shown = self.found.get(table, db_key)
            shown = None if shown == value else shown
        if shown is None:
            self.found.hide(table, db_key)
        elif shown != value or not in_order:
            self.found.put(table, db_key, shown)

    def _envelope(self, row: Row, value: bytes) -> bytes | None:
        """Return the value of a row if it is a sound envelope, or can be made one."""
        if raw_pages.readable_envelope(value) is not None:
            return value
        leaf = row.leaf
        if leaf is None:
            return None
        if leaf.flags[row.at] == BIG:  # its size in the leaf may be wrong
            whole = raw_pages.envelope_at(row.pages, leaf.places[row.at])
            if whole is not None:
                return whole
        return self._guesser.node(value)

    def _node(self, table: int, db_key: bytes, value: bytes, good: bytes | None) -> bytes | None:
        """Return what to show under the key of a node; note what cannot be read."""
        envelope = None if good is None else raw_pages.readable_envelope(good)
        if good is None or envelope is None:
            self.damaged = True
            if keys.fits(table, db_key):
                self.found.note(placement.DAMAGED[table] + db_key, value)
            else:
                self._lose_row(table, db_key, value, _BAD_KEY)
            return None
        own_key = keys.node_key(envelope.number, envelope.ms, envelope.seq)
        if own_key == db_key:
            return good
        self.damaged = True  # the key of another node: it is not certain that it is live
        former = is_former_name(envelope.ms, envelope.seq)
        if table == keys.RETIRED and not former and self.found.get(table, own_key) is None:
            self.found.put(table, own_key, good)
            return None
        if keys.fits(table, db_key):  # that of the key is lost, unless it is found elsewhere
            self.found.note(placement.DAMAGED[table] + db_key, placement.OTHER_NODE)
        if table == keys.NODES:
            placement.note_newest(self.found, placement.FOUND_NODE, envelope, good)
        else:
            placement.keep_node(self.found, envelope, "the node had the key of another node")
        return None

    def _stream(self, db_key: bytes, value: bytes, good: bytes | None) -> bytes | None:
        """Return what to show under the key of a stream; note what cannot be read."""
        envelope = None if good is None else raw_pages.readable_envelope(good)
        if envelope is not None and keys.pack_number(envelope.number) == db_key:
            return good
        self.damaged = True
        if keys.fits(keys.STREAMS, db_key):
            self.found.note(placement.DAMAGED[keys.STREAMS] + db_key, value)
            if self.source.partial(keys.STREAMS, db_key) is not None:
                return raw_pages.record_only(value)  # the newest record of the stream is in it
        elif good is not None and envelope is not None and envelope.record:
            placement.note_newest(self.found, placement.FOUND_RECORD, envelope, good)
        else:
            self._lose_row(keys.STREAMS, db_key, value, _BAD_KEY)
        return None

    def _lose_row(self, table: int, db_key: bytes, value: bytes, why: str) -> None:
        self.damaged = True
        name = keys.TABLES[table].name
        if table in _SECOND:
            return
        if table == keys.KEYS:  # `names` may have it; otherwise a stream gets another name
            self.names.append((db_key, value))
            return
        self.found.lost.keep_value("row", why, value, table=name, key=db_key.hex())
        if table == keys.RETIRED and len(db_key) == _NODE_KEY_SIZE:
            number = keys.unpack_node_key(db_key)[0]
            self.report.other.append(f"the name of stream {number}, which is deleted and archived")
        elif table != keys.META:
            self.report.other.append(f"row {db_key.hex()} of {name}")

    # --- pages without a tree ---------------------------------------------------------------

    def _scan(self, walk: PageWalk | None) -> None:
        """Find every envelope and row in pages that no tree leads to."""
        tables = self.source.tables
        try:
            folder = self.source.folder
            pages = PageFile(folder, PAGE_SIZES[-1]) if tables is None else tables.pages
        except OSError:
            self.report.other.append(f"everything in {DATA_FILE}, which cannot be read")
            return
        free_known = walk is not None and walk.free_known
        free = None if walk is None else walk.free
        # If a table was removed without damage, its pages are in the free list, mixed with pages
        # that were free before.
        removed = walk is not None and walk.main_sound and tables is not None
        missing = set(tables.missing) if removed and tables is not None else set()
        nodes_known = free_known and not missing & {keys.NODES, keys.STREAMS}
        holes = self.has_holes(keys.RETIRED)
        retired_known = keys.RETIRED not in missing and (free_known or not holes)
        last = None if tables is None else tables.meta.last_page

        def is_free(number: int) -> bool:
            if last is not None and number > last:  # written after the commit of the trees
                return True
            return free is not None and number in free

        def wanted(number: int) -> bool:
            if walk is None or number >= walk.pages:
                return number > 1
            if number in walk.damaged:
                return number > 1
            return number not in walk.map or (number > 1 and is_free(number))

        for one in raw_pages.scan_pages(pages, wanted, self._progress):
            free_page = is_free(one.page)
            if isinstance(one, raw_pages.RawRow):
                if free_known and free_page and one.table not in missing:
                    continue
                if one.table in _DERIVED or self._is_changed(one.table, one.db_key):
                    continue
                present = self.found.get(one.table, one.db_key)
                sure = free_known and not free_page
                if not (sure or self._is_in_hole(one.table, one.db_key)):
                    continue  # deleted, or an older copy
                if present is None or (not sure and _is_newer(one, present)):
                    self.found.put(one.table, one.db_key, one.value)
                    self._unsure[one.table] += present is None and not sure
            else:
                key = keys.node_key(one.envelope.number, one.envelope.ms, one.envelope.seq)
                old = free_page if nodes_known else not self._is_in_hole(keys.NODES, key)
                self._note_envelope(one, live=nodes_known and not free_page, old=old)
                if not retired_known and (free_page or not free_known):
                    self._note_maybe_retired(one.envelope, one.value)

    def _note_envelope(self, one: raw_pages.RawEnvelope, *, live: bool, old: bool) -> None:
        envelope = one.envelope
        tail = bool(envelope.record)
        self.highest_epoch = max(self.highest_epoch, envelope.epoch)
        newer = self._newest is not None and placement.age_of(envelope) > self._newest
        sure = newer or (live and one.headed)
        number = keys.pack_number(envelope.number)
        key = keys.node_key(envelope.number, envelope.ms, envelope.seq)
        if self._is_changed(keys.STREAMS, number) if tail else self._is_changed(keys.NODES, key):
            return
        if tail:
            placement.note_newest(
                self.found, placement.FOUND_RECORD, envelope, one.value, known_live=sure
            )
        if envelope.listpack and (not tail or sure):
            prefix = placement.OLD_NODE if old and not newer else placement.FOUND_NODE
            placement.note_newest(self.found, prefix, envelope, one.value, known_live=sure)

    def _is_changed(self, table: int, db_key: bytes) -> bool:
        """Return whether the journal says what became of a row, found or not."""
        tables = self.source.tables
        return tables is not None and tables.is_changed(table, db_key)

    def _note_maybe_retired(self, envelope: Envelope, value: bytes) -> None:
        """Note a node that may have been in `retired`, unless it is in `nodes`."""
        key = keys.node_key(envelope.number, envelope.ms, envelope.seq)
        if self._is_changed(keys.RETIRED, key):
            return
        if envelope.listpack and not envelope.record and self.found.get(keys.NODES, key) is None:
            placement.note_newest(self.found, placement.MAYBE_RETIRED, envelope, value)

    def has_holes(self, table: int) -> bool:
        """Return whether rows of a table may be in pages that cannot be read."""
        tables = self.source.tables
        return tables is None or table in tables.missing or bool(tables.tree(table).cut)

    def _is_in_hole(self, table: int, db_key: bytes) -> bool:
        """Return whether the row with a key may be in pages that cannot be read."""
        tables = self.source.tables
        if tables is None or table in tables.missing:
            return True
        with suppress(CorruptionError):  # of its value; its leaf is sound then
            return not tables.tree(table).find(db_key)[1]
        return False

    def missing_rows(self, table: int) -> int:
        """Return how many rows of a table are in no page that can be read, by LMDB's count."""
        tables = self.source.tables
        if tables is None or not self.damaged:
            return 0
        tree = tables.tree(table)
        missing = tree.database.entries - sum(len(leaf.keys) for leaf in tree.leaves())
        for db_key, _ in self.found.rows(table) if missing > 0 else ():
            with suppress(CorruptionError):  # of its value; the tree leads to it then
                missing -= tree.find(db_key)[0] is None and not self._is_changed(table, db_key)
        return max(0, missing)

    def holes(self) -> list[Hole]:
        """Return the keys of `nodes` between which rows may be missing."""
        tables = self.source.tables
        if tables is None or keys.NODES in tables.missing:
            return [(None, None)]
        return list(tables.tree(keys.NODES).cut.values())


def garbage_note(kind: int, number: int) -> bytes:
    """Return the note that rows with a number are garbage."""
    return b"G" + bytes((kind,)) + keys.pack_number(number)


def _is_newer(one: raw_pages.RawRow, present: bytes) -> bool:
    """Return whether a row has higher counters than another copy of it."""
    try:
        counters = _counters(one.table, one.db_key, one.value)
        return counters > _counters(one.table, one.db_key, present)
    except CorruptionError:
        return False


def _counters(table: int, db_key: bytes, value: bytes) -> tuple[int, ...]:
    body = row_body(table, db_key, value, "row")
    if table == keys.GROUPS:
        group = decode_group(body, "row")
        return group.next_order, group.last_ms, group.last_seq, group.next_consumer
    if table == keys.CONSUMERS and keys.is_name_key(db_key):
        consumer = decode_consumer(body, "row")
        return consumer.number, consumer.seen_time, consumer.active_time
    if table == keys.PRODUCERS and keys.is_name_key(db_key):
        producer, _ = decode_producer(body, "row")
        return (producer.number, producer.next_order)
    if table in (keys.META, keys.KEYS):
        return (int.from_bytes(body[:8], "big"),)
    return (0,)
