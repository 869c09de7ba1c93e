"""Step two of a repair, the archive: segments, and retired nodes, which are in no segment yet.

Every segment that the manifest names is verified. The file of a sound one is copied. If a file is
damaged, its readable nodes are retired again, so that the archiver writes them to a new segment.
Each node has its own checksum, so they are found even without the file's index.

If rows of the manifest were lost, files that no row names are adopted by the store, stream and IDs
in their index. A file whose range contains an erased entry is not adopted: an erasure may have
replaced it.

Each entry is in one place. Of a live node, a segment and a retired node that overlap, the first of
these is kept, because commands return its entries. What does not fit goes to lost+found.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from uuid import UUID

from streamkeep.engine.archive.iterate import cut_node, has_slot_of
from streamkeep.engine.archive.segment_output import copy_segment
from streamkeep.engine.crash_recovery.stored_rows import META_UUID
from streamkeep.engine.remote.remote_archive import RemoteArchive, check_means, remote_archive
from streamkeep.engine.tables import segment_files
from streamkeep.engine.tables.manifest import NEXT_SEQUENCE
from streamkeep.engine.tables.node_walk import NodeWalk, put_retired
from streamkeep.format.core import keys
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import (
    CorruptionError,
    MissingSegmentError,
    StoreError,
    UntrustedFileError,
)
from streamkeep.format.core.id_codec import Id, unpack_id
from streamkeep.format.humanize import count_text
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import (
    PAGE_LISTPACK,
    Envelope,
    decode_envelope,
    encode_envelope,
)
from streamkeep.format.node.node import end_ids
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.retention import retention_of
from streamkeep.format.rows.retired import encode_former_name, former_name_key, is_former_name
from streamkeep.format.segment import manifest
from streamkeep.format.segment.remains import remains
from streamkeep.format.segment.remote import META_REMOTE, decode_setting
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, SUFFIX, Segment
from streamkeep.recovery.fsck.rows import ERASURE_SHAPE, SEGMENT_SHAPE, parse_row
from streamkeep.recovery.fsck.source import Source
from streamkeep.recovery.salvage.damaged_bytes import first_unread, live_slots, slots_of
from streamkeep.recovery.salvage.found import NAMED, ascending, is_live
from streamkeep.recovery.salvage.new_store import NewStore
from streamkeep.recovery.salvage.placement import DAMAGED, MAYBE_RETIRED, split_candidate
from streamkeep.recovery.salvage.search import Search


class ArchiveWriter:
    """Writes what was archived, or was to be."""

    def __init__(self, source: Source, search: Search, out: NewStore) -> None:
        self.store = source.folder
        self.found = search.found
        self.report = search.report
        self.out = out
        self._uuid = self.found.get_row(keys.META, META_UUID, "meta")
        if self._uuid is None and source.slot is not None:
            self._uuid = source.slot.store_uuid
        self._remote = self._find_remote(source)
        self._records: defaultdict[int, list[manifest.SegmentRecord]] = defaultdict(list)
        self._sequence = 0  # the highest one
        self._named: set[int] = set()  # deleted streams whose last key no row has
        self._sequences: set[int] = set()
        self._live: NodeWalk | None = None  # over the live nodes of the stream that is written
        self._kept: list[tuple[Id, Id]] = []  # its segments that are kept, ascending
        for db_key, value in self.found.rows(keys.SEGMENTS):
            try:
                record = parse_row(SEGMENT_SHAPE, db_key, value)
            except CorruptionError as error:
                self.report.other.append(f"a segment whose row cannot be read: {error.problem}")
                continue
            self._sequence = max(self._sequence, record.sequence)
            self._records[record.stream_number].append(record)
        if search.damaged:  # rows of the manifest may be missing
            missing = search.missing_rows(keys.SEGMENTS) - self._adopt()
            if missing > 0:
                what = count_text(missing, "segment")
                self.report.other.append(f"{what} whose rows were in damaged pages")
        for records in self._records.values():
            records.sort(key=lambda one: one.first_id)

    def _find_remote(self, source: Source) -> RemoteArchive | None:
        """Return the archive in an object store that the store has noted; None without one."""
        body = self.found.get_row(keys.META, META_REMOTE, "meta")
        if body is not None and self._uuid is not None:
            return remote_archive(decode_setting(body, "meta"), str(UUID(bytes=self._uuid)))
        if body is not None:
            return None  # the identity of the store is lost, without which nothing is found there
        with suppress(CorruptionError):
            if source.tables is not None and source.tables.get(keys.META, META_REMOTE) is not None:
                self.report.other.append(
                    "where the archive is also kept: the row is damaged; `streamkeep archive adopt "
                    "STORE URI/UUID` takes the segments from there"
                )
        return None

    def has(self, envelope: Envelope) -> bool:
        """Return whether all entries of a node are in a segment.

        It was trimmed then, and is an older copy, which was found without its tree.
        """
        if envelope.number not in self._records:
            return False
        key = (envelope.ms, envelope.seq)
        live = [(slot.ms, slot.seq) for slot in live_slots(envelope.listpack, *key)]
        first = live[0] if live else key  # the key may be a deleted entry's, below the segment
        for record in self._records[envelope.number]:
            if record.first_id <= first <= record.last_id:
                with suppress(CorruptionError, StoreError):
                    segment = segment_files.open_archived(self.store, record, lambda: self._remote)
                    return segment.those_of(live) == live
        return False

    # --- what was archived ----------------------------------------------------------------------

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the streams that are concerned, ascending, also of deleted ones."""
        return ascending(
            sorted(self._records),
            self.found.numbers(keys.RETIRED),
            self.found.numbers(keys.ERASURES),
            *(
                (keys.unpack_node_key(db_key)[0] for db_key, _ in self.found.notes(note))
                for note in (DAMAGED[keys.RETIRED], MAYBE_RETIRED)
            ),
        )

    def write(self, number: int) -> None:
        """Write what was archived of a stream, after its live part."""
        for db_key, value in self.found.rows(keys.ERASURES, keys.pack_number(number)):
            try:
                time_ms = parse_row(ERASURE_SHAPE, db_key, value)
            except CorruptionError:  # the key says which entry was erased; only the time is lost
                time_ms = 0
            row = manifest.encode_erasure(time_ms)
            self.out.txn().put_row(keys.ERASURES, db_key, row)
        name = self.found.noted(NAMED + keys.pack_number(number))
        with self.out.snapshot() as txn:
            stream = None if name is None else txn.find_stream(name)
            self._live = None if stream is None else NodeWalk(txn, stream)
            self._kept = []
            for record in self._records.get(number, ()):
                self._segment(record)
            self._retired(number)
            self._maybe_retired(number)

    def _overlaps_live(self, first: Id, last: Id) -> bool:
        """Return whether the new store has a live node with IDs from `first` to `last`."""
        walk = self._live
        if walk is None or not walk.seek(*last) or (walk.ms, walk.seq) > last:
            return False
        return end_ids(walk.load(), walk.ms, walk.seq).last_slot >= first

    def _overlaps_kept(self, first: Id, last: Id) -> bool:
        at = bisect_right(self._kept, last, key=lambda one: one[0])
        return at > 0 and self._kept[at - 1][1] >= first

    def _segment(self, record: manifest.SegmentRecord) -> None:
        """Copy the file of a row, or everything readable in it."""
        name = segment_files.stored_name(record.path)
        segment = None
        try:
            segment = segment_files.open_stored(self.store, record.path, record.where)
            check_means(record, segment)
        except UntrustedFileError:
            raise  # not damage: the user must decide whether to trust the owner
        except (CorruptionError, StoreError) as error:
            if isinstance(error.__cause__, PermissionError):  # another user can read it
                raise error.__cause__ from None
            if self._remote is not None and isinstance(error, MissingSegmentError):
                self._put_segment(record)  # in the object store, where fsck checks it
            elif segment is not None and segment.index.store_uuid != self._uuid:
                # That of another store: its streams have these numbers, too.
                self._lose(record, record.first_id, record.last_id, record.entries, str(error))
            else:
                self._unpack(record, None, str(error))
            return
        record = manifest.as_in_file(record, segment)  # the file is right, not the row
        first, last = record.first_id, record.last_id
        if (
            self._overlaps_kept(first, last)
            or self._overlaps_live(first, last)
            or self._has_erased(record, segment)
            or any(True for _ in segment.check())
        ):
            self._unpack(record, segment)
        else:
            if not self.out.folder.exists(name):  # rows of two streams may name the same file
                copy_segment(segment, self.out.folder, name)
            self._put_segment(record)

    def _put_segment(self, record: manifest.SegmentRecord) -> None:
        """Write a row, with a sequence that no other row has."""
        insort(self._kept, (record.first_id, record.last_id))
        if record.sequence in self._sequences:
            record = record._replace(sequence=self._next_sequence())
        self._sequences.add(record.sequence)
        self.out.txn().put_row(keys.SEGMENTS, record.db_key(), record.encode())

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def counters(self) -> dict[bytes, int]:
        """Return the least values of counters of `meta`."""
        return {NEXT_SEQUENCE: self._sequence + 1} if self._sequence else {}

    # --- segments that cannot stay ----------------------------------------------------------------

    def _unpack(
        self, record: manifest.SegmentRecord, segment: Segment | None, why: str = ""
    ) -> None:
        """Retire the nodes of a segment, of which `_retired` writes those that overlap nothing.

        Of damaged blocks, and of a file without its index, only the sound nodes are found.
        """
        if segment is None:
            count = 0
            with suppress(OSError):  # the file is missing: `why` says so
                name = segment_files.stored_name(record.path)
                file = segment_files.SegmentFile(self.store.open(name), record.where)
                nodes = remains(file.read_at, file.size)
                count = self._retire(record, nodes, record.first_id, record.last_id)
            self._lose(record, record.first_id, record.last_id, record.entries - count, why)
            return
        size = segment.trailer.blocks_size + segment.trailer.dictionary_size
        for place, block in enumerate(segment.index.blocks):
            first, last = block.first_id, block.last_id
            try:
                self._retire(record, segment.block(place), first, last)
            except CorruptionError as error:
                rest = remains(segment.read_at, size, block.offset, block.offset + block.size)
                count = self._retire(record, rest, first, last)
                self._lose(record, first, last, block.entries - count, error.problem)

    def _retire(
        self, record: manifest.SegmentRecord, nodes: Iterable[Envelope], first: Id, last: Id
    ) -> int:
        """Retire nodes of a segment again; return the number of their entries."""
        number = record.stream_number
        count = 0
        done: set[Id] = set()  # a file may have a node twice
        for one in nodes:
            key = (one.ms, one.seq)
            try:
                ids = validate(one.listpack, *key)
            except CorruptionError:
                continue
            foreign = one.number != number and record.origin == manifest.ARCHIVED
            # By its first entry: the key may be that of a deleted one.
            if foreign or key in done or not first <= ids.first_live <= last:
                continue
            done.add(key)
            count += int(ids.live)
            parts = [(*key, one.listpack)]
            erased = list(self._erased(number, key, ids.last_slot))
            # With the key of a deleted entry it would overlap what was adopted into the gap below.
            if key != ids.first_live or has_slot_of(*parts[0], erased):
                parts = cut_node(*parts[0], first, last, set(erased))
            for ms, seq, data in parts:
                db_key = keys.node_key(number, ms, seq)
                if self.found.get(keys.RETIRED, db_key) is not None:
                    slots = live_slots(data, ms, seq)
                    self.found.keep(number, "a retired node has the same key", slots, record.key)
                    continue
                value = encode_envelope(
                    number, ms, seq, one.epoch, one.commit_number, b"", data, b""
                )
                self.found.put(keys.RETIRED, db_key, value)
        name_key = former_name_key(number)
        # A row that was found has the last key, and so has the newest of segments without one.
        if number in self._named or not self.found.get(keys.RETIRED, name_key):
            self._named.add(number)
        if count and number in self._named and not is_live(self.found, number):
            name = encode_former_name(number, record.key)  # of then; a row has the last one
            self.found.put(keys.RETIRED, name_key, name)
        return count

    def _has_erased(self, record: manifest.SegmentRecord, segment: Segment) -> bool:
        """Return whether a segment still contains an erased entry."""
        with suppress(CorruptionError):  # of a block, which is checked next
            erased = self._erased(record.stream_number, record.first_id, record.last_id)
            return bool(segment.those_of(erased))
        return False

    def _erased(self, number: int, first: Id, last: Id) -> Iterator[Id]:
        """Yield the IDs of a stream's erased entries from `first` to `last`, both included."""
        start = manifest.erasure_key(number, *first)
        for db_key, _ in self.found.rows(keys.ERASURES, keys.pack_number(number), start):
            one = keys.unpack_node_key(db_key)[1:]
            if one > last:
                return
            yield one

    def _lose(
        self, record: manifest.SegmentRecord, first: Id, last: Id, count: int, why: str
    ) -> None:
        if count > 0:
            loss = self.report.stream(record.stream_number)
            loss.name = loss.name or record.key  # of a deleted stream
            if loss.archived is not None:
                loss.archived += count
            what = count_text(count, "archived entry", "archived entries")
            loss.notes.append(f"{what}, from {StreamId(*first)} to {StreamId(*last)}: {why}")

    # --- retired nodes ----------------------------------------------------------------------------

    def _retired(self, number: int) -> None:
        """Write the retired nodes that can be read, do not overlap and contain a trimmed entry."""
        prefix = keys.pack_number(number)
        for rest, value in self.found.notes(DAMAGED[keys.RETIRED] + prefix):
            self._read_damaged(number, unpack_id(rest), value)
        before: Id | None = None
        for db_key, value in self.found.rows(keys.RETIRED, prefix):
            key = keys.unpack_node_key(db_key)[1:]
            if is_former_name(*key):
                if not is_live(self.found, number):
                    self.out.txn().put(keys.RETIRED, db_key, value)
                continue
            try:
                envelope = decode_envelope(value, "retired node")
                history = history_form(envelope.listpack, *key, envelope.trimmed)
                last = validate(history, *key).last_slot if history else key
                if envelope.record:
                    raise CorruptionError("retired node", "the envelope contains a stream record")
            except CorruptionError as error:
                why = f"a retired node is damaged: {error.problem}"
                self.found.keep(number, why, slots_of(value, number, key, None))
                note = f"retired entries from {StreamId(*key)} on: {error.problem}"
                self.found.lose(number, note)
                continue
            if not history:
                continue  # no trimmed entry
            shown = self.found.get(keys.NODES, db_key)
            if shown is not None and decode_envelope(shown, "node").listpack == envelope.listpack:
                self.report.stale += 1  # the live node itself, which a swapped page had here
            elif (
                self._overlaps_live(key, last)
                or self._overlaps_kept(key, last)
                or (before is not None and key <= before)
            ):
                slots = live_slots(history, *key)
                self.found.keep(number, "a retired node overlaps others", slots)
            else:
                before = last
                txn = self.out.txn(len(value))
                put_retired(txn, number, *key, envelope.listpack, envelope.trimmed)

    def _read_damaged(self, number: int, key: Id, value: bytes) -> None:
        """Put the entries of a damaged node up to the damage back."""
        if self.found.get(keys.RETIRED, keys.node_key(number, *key)) is not None:
            return  # a sound copy was found
        start = keys.node_key(number, *key) + b"\0"
        ends = [
            keys.unpack_node_key(db_key)[1:]
            for table in (keys.RETIRED, keys.NODES)
            for db_key, _ in [
                next(self.found.rows(table, keys.pack_number(number), start), (b"", b""))
            ]
            if db_key
        ]
        following = min(ends, default=None)
        slots = slots_of(value, number, key, following)
        live = [(slot.ms, slot.seq, slot.pairs) for slot in slots if not slot.deleted]
        loss = self.report.stream(number)
        loss.unverified += len(live)
        loss.archived = None
        for ms, seq, data in encode_nodes(live, PAGE_LISTPACK):
            node = encode_envelope(number, ms, seq, 1, 1, b"", data, b"")
            self.found.put(keys.RETIRED, keys.node_key(number, ms, seq), node)
        until = "" if following is None else f" up to but not including {StreamId(*following)}"
        note = f"entries that were not archived yet, from {first_unread(slots, key)}{until}"
        self.found.lose(number, note)

    def _maybe_retired(self, number: int) -> None:
        """Move nodes that may have been retired to lost+found."""
        for rest, noted in self.found.notes(MAYBE_RETIRED + keys.pack_number(number)):
            key = unpack_id(rest)
            db_key = keys.node_key(number, *key)
            if any(
                self.found.get(table, db_key) is not None for table in (keys.NODES, keys.RETIRED)
            ):
                continue
            envelope = decode_envelope(split_candidate(noted)[1], "page")
            try:
                history = history_form(envelope.listpack, *key, envelope.trimmed)
                last = validate(history, *key).last_slot if history else None
            except CorruptionError:
                continue
            if last is not None and self._may_be_retired(number, key, last):
                slots = live_slots(history, *key, set(self._erased(number, key, last)))
                why = "the node may have been trimmed but not archived yet"
                self.found.keep(number, why, slots)

    def _may_be_retired(self, number: int, first: Id, last: Id) -> bool:
        """Return whether entries below the live ones of an archived stream are in no segment."""
        segments = self._records.get(number, [])
        if any(one.first_id <= last and first <= one.last_id for one in segments):
            return False
        record = self.found.record(number)
        try:
            retention = None if record is None else retention_of(record.extension, "stream")
        except CorruptionError:
            record = None
        if record is None:
            return bool(segments)
        archives = bool(segments) or (retention is not None and retention.archive)
        return archives and last < record.first_id()

    # --- files without a row ----------------------------------------------------------------------

    def _adopt(self) -> int:
        """Adopt sound files of this store that no row names; return how many."""
        adopted = 0
        named = {one.path for records in self._records.values() for one in records}

        def unlisted(error: OSError) -> None:
            if isinstance(error, PermissionError):
                raise error
            what = f"segments in {error.filename} that no row names"
            self.report.other.append(f"{what}: it cannot be listed: {error.strerror}")

        for path in self.store.files_below(segment_files.ARCHIVE_FOLDER, unlisted):
            if not path.endswith(SUFFIX) or path in named:
                continue
            try:
                segment = segment_files.open_stored(
                    self.store, path, max_block_bytes=MAX_BLOCK_BYTES
                )
            except (CorruptionError, StoreError):
                continue
            try:
                problem = next(segment.check(), None)
            except StoreError as error:  # too large; the file may be hostile
                self.report.other.append(f"archive file {path}: not adopted: {error}")
                continue
            if problem is not None:
                self.report.other.append(f"archive file {path}: damaged, and no row names it")
                continue
            if segment.index.store_uuid != self._uuid:
                continue
            record = manifest.record_of(segment, path, manifest.ADOPTED)
            number, first, last = record.stream_number, record.first_id, record.last_id
            others = self._records.get(number, ())
            if any(self._erased(number, first, last)) or any(
                one.first_id <= last and first <= one.last_id for one in others
            ):
                self.report.other.append(f"archive file {path}: another file may have replaced it")
            else:
                self._records[number].append(record._replace(sequence=self._next_sequence()))
                adopted += 1
        return adopted
