"""Salvaging the archive: every segment that the manifest names is verified.

A sound file is copied. If a file is damaged, its readable nodes go back to `retired`, from where
the archiver writes them to a new segment, and its row is removed. Each node has its own checksum,
so nodes are found even without the file's index.

If rows of the manifest were lost, files that no row names are adopted by the store, stream and IDs
in their index. A file whose range contains an erased entry is not adopted: an erasure may have
replaced it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from uuid import UUID

from streamkeep.engine.crash_recovery.stored_version import META_UUID
from streamkeep.engine.remote.remote_archive import RemoteArchive, check_means, remote_archive
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder, copy_file
from streamkeep.engine.tables.manifest import NEXT_SEQUENCE
from streamkeep.engine.tables.segment_files import (
    ARCHIVE_FOLDER,
    SegmentFile,
    open_archived,
    open_stored,
    stored_name,
)
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError, StoreError, UntrustedFileError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import (
    ERASURES,
    META,
    NODES,
    RETIRED,
    SEGMENTS,
    STREAMS,
    node_key,
    pack_number,
    unpack_node_key,
)
from streamkeep.format.humanize import count_text
from streamkeep.format.node.check import Slot, validate
from streamkeep.format.node.envelope import Envelope, decode_envelope, encode_envelope
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.records import encode_number
from streamkeep.format.rows.retired import encode_former_name, former_name_key, retired_key
from streamkeep.format.segment.manifest import (
    ADOPTED,
    SegmentRecord,
    as_in_file,
    decode_erasure,
    encode_erasure,
    record_of,
)
from streamkeep.format.segment.remains import remains
from streamkeep.format.segment.remote import META_REMOTE, decode_setting
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, SUFFIX, Segment
from streamkeep.recovery.salvage.losses import Report, StreamLoss
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import live_slots
from streamkeep.recovery.salvage.overlaps import overlapping, streams_with_archive
from streamkeep.recovery.salvage.retired import (
    RetiredSalvage,
    erasures,
    read_segment_row,
    segment_rows,
)


class ArchiveSalvage:
    """Copies the archive of `store` to `out`.

    Args:
        uuid: UUID of the store in its checkpoint; None if there is no checkpoint.

    Attributes:
        highest_stream: the highest stream number in the archive.
    """

    def __init__(
        self, store: Folder, out: BulkStore, report: Report, lost: LostAndFound, uuid: bytes | None
    ) -> None:
        self._uuid = uuid
        self.store = store
        self.out = out
        self.report = report
        self.lost = lost
        self.highest_stream = 0
        self._previous: SegmentRecord | None = None
        self._sequences: set[int] = set()
        self._named: set[str] = set()
        self._sequence = 0
        self._remote: RemoteArchive | None = None

    def _find_remote(self) -> RemoteArchive | None:
        """Return the archive in an object store that the store has noted; None without one."""
        try:
            body = self.out.get_row(META, META_REMOTE, "meta")
            uuid = self.out.get_row(META, META_UUID, "meta") or self._uuid
            if body is None or uuid is None:
                return None
            return remote_archive(decode_setting(body, "meta"), str(UUID(bytes=uuid)))
        except CorruptionError:
            self.report.other.append(
                "where the archive is also kept: the row is damaged; `streamkeep archive adopt "
                "STORE URI/UUID` takes the segments from there"
            )
            return None

    def run(self, *, rows_lost: bool) -> None:
        """Copy everything.

        Args:
            rows_lost: whether rows of the manifest may be missing.
        """
        for db_key, value in self.out.rows(SEGMENTS):
            try:
                record = read_segment_row(db_key, value)
            except CorruptionError as error:
                self.out.delete(SEGMENTS, db_key)
                self.report.other.append(f"a segment whose row cannot be read: {error.problem}")
                continue
            self._sequence = max(self._sequence, record.sequence)
            self.highest_stream = max(self.highest_stream, record.stream_number)
        for db_key, value in self.out.rows(ERASURES):
            self.highest_stream = max(self.highest_stream, unpack_node_key(db_key)[0])
            try:
                decode_erasure(open_row(ERASURES, db_key, value, "erasure"), "erasure")
            except CorruptionError:  # the key says which entry was erased; only the time is lost
                self.report.rebuild("times of erasures")
                self.out.put_row(ERASURES, db_key, encode_erasure(0))
        self._remote = self._find_remote()
        for db_key, value in self.out.rows(SEGMENTS):
            record = read_segment_row(db_key, value)
            self._named.add(record.path)
            self._copy_segment(record)
        if rows_lost:
            self._adopt()
            for db_key, value in self.out.rows(SEGMENTS):
                self._drop_archived(read_segment_row(db_key, value))
        retired = RetiredSalvage(self.out, self.report, self.lost)
        retired.keep_sound()
        self.highest_stream = max(self.highest_stream, retired.highest_stream)
        for number in streams_with_archive(self.out):
            self._resolve_overlaps(number)
        retired.keep_candidates()
        following = self.out.get_row(META, NEXT_SEQUENCE, "meta")
        used = self._sequence
        if used and (following is None or int.from_bytes(following, "big") <= used):
            self.report.rebuild("counters of `meta`")
            self.out.put_row(META, NEXT_SEQUENCE, encode_number(self._sequence + 1))

    def _copy_segment(self, record: SegmentRecord) -> None:
        """Copy the file of a row, or everything readable in it."""
        if record == self._previous:
            return  # `_keep_row` has just stored it under this key
        if not self.store.exists(stored_name(record.path)) and self._remote is not None:
            self._previous = record  # in the object store of the archive, where fsck checks it
            return
        try:
            segment = open_stored(self.store, record.path, record.where)
            check_means(record, segment)
        except UntrustedFileError:
            raise  # not damage: the user must decide whether to trust the owner
        except (CorruptionError, StoreError) as error:
            self.out.delete(SEGMENTS, record.db_key())
            self._search(record, str(error))
            return
        stored, record = record, as_in_file(record, segment)  # the file is right, not the row
        before = self._previous
        if (
            before is not None
            and before.stream_number == record.stream_number
            and record.first_id <= before.last_id
        ):
            self.out.delete(SEGMENTS, stored.db_key())
            self._keep_segment(record, segment, "the segment overlaps another one")
            return
        if self._has_erased(record, segment):
            self.out.delete(SEGMENTS, stored.db_key())
            self._keep_segment(record, segment, "the segment contains erased entries")
            return
        if any(True for _ in segment.check()):
            self.out.delete(SEGMENTS, stored.db_key())
            self._unpack(record, segment)
            return
        self._copy(record.path)
        self._keep_row(stored, record)
        self._previous = record

    def _keep_row(self, stored: SegmentRecord, right: SegmentRecord) -> None:
        """Store the row that matches the file, with a sequence that no other row has."""
        if right.sequence in self._sequences:
            self._sequence += 1
            right = right._replace(sequence=self._sequence)
        self._sequences.add(right.sequence)
        if right != stored:
            self.report.rebuild("rows of segments")
            self.out.delete(SEGMENTS, stored.db_key())
            self.out.put_row(SEGMENTS, right.db_key(), right.encode())

    def _copy(self, path: str) -> None:
        name = stored_name(path)
        try:
            self.out.folder.make_folder(name.rpartition("/")[0])
            copy_file(self.store, name, self.out.folder, name)
        except OSError as error:
            raise translate_os(error) from error

    def _search(self, record: SegmentRecord, why: str) -> None:
        """Search a file for nodes without its index, and put them into `retired`."""
        found = 0
        with contextlib.suppress(OSError):  # the file is missing: `why` says so
            file = SegmentFile(self.store.open(stored_name(record.path)), record.where)
            found = self._place(
                record, remains(file.read_at, file.size), record.first_id, record.last_id
            )
        self._lose(record, record.first_id, record.last_id, record.entries - found, why)

    def _unpack(self, record: SegmentRecord, segment: Segment) -> None:
        """Put the nodes of a segment into `retired`; of damaged blocks only the sound nodes."""
        size = segment.trailer.blocks_size + segment.trailer.dictionary_size
        for place, block in enumerate(segment.index.blocks):
            first, last = block.first_id, block.last_id
            try:
                self._place(record, segment.block(place), first, last)
            except CorruptionError as error:
                rest = remains(segment.read_at, size, block.offset, block.offset + block.size)
                found = self._place(record, rest, first, last)
                self._lose(record, first, last, block.entries - found, error.problem)

    def _place(self, record: SegmentRecord, nodes: Iterable[Envelope], first: Id, last: Id) -> int:
        """Put nodes of a segment into `retired`; return the number of their entries."""
        number = record.stream_number
        count = 0
        for one in nodes:
            key = (one.ms, one.seq)
            foreign = one.number != number and record.origin != ADOPTED
            if foreign or not first <= key <= last:
                continue
            try:
                ids = validate(one.listpack, *key)
            except CorruptionError:
                continue
            count += int(ids.live)
            erased = set(erasures(self.out, number, key, ids.last_slot))
            db_key = retired_key(number, *key)
            if erased or self.out.get(RETIRED, db_key) is not None:
                why = "a retired node has the same key"
                slots = live_slots(one.listpack, *key, erased)
                if erased:
                    why = "other entries of the node were erased"
                self._keep(number, record.key, slots, why)
                continue
            value = encode_envelope(
                number, *key, one.epoch, one.commit_number, b"", one.listpack, one.trimmed
            )
            self.out.put(RETIRED, db_key, value)
        if count and self.out.get(STREAMS, pack_number(number)) is None:
            self.out.put(RETIRED, former_name_key(number), encode_former_name(number, record.key))
        return count

    def _loss(self, record: SegmentRecord) -> StreamLoss:
        """Return the losses of a stream; the name of a deleted stream comes from its segments."""
        loss = self.report.stream(record.stream_number)
        loss.name = loss.name or record.key
        return loss

    def _lose(self, record: SegmentRecord, first: Id, last: Id, count: int, why: str) -> None:
        if count <= 0:
            self.report.rebuild("damaged segments whose nodes were all found")
            return
        loss = self._loss(record)
        what = count_text(count, "archived entry", "archived entries")
        loss.notes.append(f"{what}, from {StreamId(*first)} to {StreamId(*last)}: {why}")

    def _has_erased(self, record: SegmentRecord, segment: Segment) -> bool:
        """Return whether a segment still contains an erased entry."""
        for one in self._erasures(record):
            try:
                if segment.has_any([one]):
                    return True
            except CorruptionError:
                continue
        return False

    def _erasures(self, record: SegmentRecord) -> Iterator[Id]:
        return erasures(self.out, record.stream_number, record.first_id, record.last_id)

    def _keep_segment(self, record: SegmentRecord, segment: Segment, why: str) -> None:
        """Move the entries of a segment to lost+found, without those that were erased."""
        erased = set(self._erasures(record))
        for place in range(len(segment.index.blocks)):
            try:
                nodes = segment.block(place)
            except CorruptionError:
                continue
            for node in nodes:
                slots = live_slots(node.listpack, node.ms, node.seq, erased)
                self._keep(record.stream_number, record.key, slots, why)
        loss = self._loss(record)
        loss.notes.append(f"archived entries, from {record.first_id} on, are in lost+found: {why}")

    def _keep(self, number: int, key: bytes | None, slots: list[Slot], why: str) -> None:
        self.report.stream(number).moved += self.lost.keep_entries(why, key, number, slots)

    def _drop_archived(self, record: SegmentRecord) -> None:
        """Drop live nodes that were found without their tree and whose entries are all archived.

        Entries in a segment were trimmed before, so these nodes are older copies.
        """
        number = record.stream_number
        segment = None
        start = node_key(number, *record.first_id)
        for db_key, value in self.out.rows(NODES, pack_number(number), start):
            if db_key > node_key(number, *record.last_id):
                return
            segment = segment or open_archived(self.store, record, lambda: self._remote)
            envelope = decode_envelope(value, "node")
            live = live_slots(envelope.listpack, envelope.ms, envelope.seq)
            if all(segment.has_any([(slot.ms, slot.seq)]) for slot in live):
                self.out.delete(NODES, db_key)
                self.report.stale += 1

    def _resolve_overlaps(self, number: int) -> None:
        """Leave each entry in one place; nodes that only a segment has go back to `retired`."""
        resolved = False
        while not resolved:
            resolved = True
            for place in list(overlapping(self.out, number)):
                if place.segment is not None:
                    self._unpack_copied(place.segment)
                    resolved = False  # its nodes may overlap others
                else:
                    self._keep_retired(number, place.db_key)

    def _unpack_copied(self, record: SegmentRecord) -> None:
        """Unpack a sound segment that was already copied, and remove the copy."""
        self.report.rebuild("segments that overlapped nodes and were unpacked")
        self.out.delete(SEGMENTS, record.db_key())
        self._unpack(record, open_archived(self.store, record, lambda: self._remote))
        self.out.folder.remove(stored_name(record.path))

    def _keep_retired(self, number: int, db_key: bytes) -> None:
        """Move a retired node that overlaps others to lost+found."""
        value = self.out.get(RETIRED, db_key)
        assert value is not None
        self.out.delete(RETIRED, db_key)
        envelope = decode_envelope(value, "retired node")
        live = self.out.get(NODES, db_key)
        if live is not None and decode_envelope(live, "node").listpack == envelope.listpack:
            self.report.stale += 1  # the live node itself, which a swapped page of `retired` held
            return
        data = history_form(envelope.listpack, envelope.ms, envelope.seq, envelope.trimmed)
        why = "a retired node overlaps others"
        self._keep(number, None, live_slots(data, envelope.ms, envelope.seq), why)

    # --- files without a row ------------------------------------------------------------------

    def _adopt(self) -> None:
        """Adopt sound files of this store that no row names."""
        own_uuid = self.out.get_row(META, META_UUID, "meta") or self._uuid
        for path in self._files():
            try:
                segment = open_stored(self.store, path, max_block_bytes=MAX_BLOCK_BYTES)
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
            if segment.index.store_uuid == own_uuid:
                self._adopt_one(path, segment)

    def _files(self) -> Iterator[str]:
        for path in self.store.files_below(ARCHIVE_FOLDER):
            if path.endswith(SUFFIX) and path not in self._named:
                yield path

    def _adopt_one(self, path: str, segment: Segment) -> None:
        trailer, number = segment.trailer, segment.index.stream_number
        erased = any(erasures(self.out, number, trailer.first_id, trailer.last_id))
        if erased or self._overlaps(segment):
            self.report.other.append(f"archive file {path}: another file may have replaced it")
            return
        self._sequence += 1
        self.highest_stream = max(self.highest_stream, number)
        record = record_of(segment, path, ADOPTED)._replace(sequence=self._sequence)
        self.out.put_row(SEGMENTS, record.db_key(), record.encode())
        self.report.rebuild("rows of segments")
        self._copy(path)

    def _overlaps(self, segment: Segment) -> bool:
        trailer = segment.trailer
        return any(
            row.first_id <= trailer.last_id and trailer.first_id <= row.last_id
            for row in segment_rows(self.out, segment.index.stream_number)
        )
