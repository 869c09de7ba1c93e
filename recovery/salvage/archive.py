"""Take the archive of a damaged store along: every segment that the manifest names is verified.

A whole file is copied as it is. Of a damaged one, the nodes that can be read go back into
`retired`, from where the archiver writes them into a new segment; the row is dropped, and what
cannot be read is lost. The nodes are found by their own checksums, even without the file's index.
Where rows of the manifest itself were lost, files that nothing names are taken in by what they say
of themselves: store, stream and IDs. That is not done where entries in their range were erased:
such a file may be one that an erasure has replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from streamkeep.engine.model.manifest import NEXT_SEQUENCE
from streamkeep.engine.model.segment_files import (
    ARCHIVE_FOLDER,
    SegmentFile,
    check_means,
    open_stored,
    stored_name,
)
from streamkeep.engine.store.meta import META_UUID
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder, copy_file
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError, StoreError, UntrustedFileError
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
from streamkeep.format.node.check import Slot, validate
from streamkeep.format.node.envelope import Envelope, decode_envelope, encode_envelope
from streamkeep.format.node.node import has_live
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.records import decode_stream_record, encode_number
from streamkeep.format.rows.retention import retention_of
from streamkeep.format.rows.retired import (
    encode_former_name,
    former_name_key,
    is_former_name,
    retired_key,
)
from streamkeep.format.segment.manifest import (
    ADOPTED,
    SegmentRecord,
    decode_erasure,
    decode_segment_record,
    encode_erasure,
    erasure_key,
    record_of,
)
from streamkeep.format.segment.remains import remains
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, SUFFIX, Segment
from streamkeep.recovery.salvage.losses import Report, StreamLoss
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import (
    behind,
    live_slots,
    next_key,
    slots_of,
    store_slots,
)
from streamkeep.recovery.salvage.overlaps import overlapping, streams_with_archive
from streamkeep.recovery.salvage.tables import (
    DAMAGED_RETIRED,
    NODE_KEY_SIZE,
    WAITED,
    damaged_nodes,
    split_candidate,
)

Id = tuple[int, int]


class ArchiveSalvage:
    """Takes the archive of the store in `store` into `out`.

    Args:
        uuid: of the store, by its checkpoint; None when that does not tell.
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

    def run(self, *, rows_lost: bool) -> None:
        """Take everything in.

        Args:
            rows_lost: rows of the manifest may be missing.
        """
        for db_key, value in self.out.rows(SEGMENTS):
            try:
                body = open_row(SEGMENTS, db_key, value, "segment")
                record = decode_segment_record(db_key, body, "segment")
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
            except CorruptionError:  # that the entry was erased is what counts
                self.report.rebuild("times of erasures")
                self.out.put_row(ERASURES, db_key, encode_erasure(0))
        for db_key, value in self.out.rows(SEGMENTS):
            body = open_row(SEGMENTS, db_key, value, "segment")
            record = decode_segment_record(db_key, body, "segment")
            self._named.add(record.path)
            self._take(record)
        if rows_lost:
            self._adopt()
            for db_key, value in self.out.rows(SEGMENTS):
                body = open_row(SEGMENTS, db_key, value, "segment")
                self._drop_archived(decode_segment_record(db_key, body, "segment"))
        self._retired()
        for number in streams_with_archive(self.out):
            self._settle_places(number)
        self._look_for_retired()
        following = self.out.get_row(META, NEXT_SEQUENCE, "meta")
        used = self._sequence
        if used and (following is None or int.from_bytes(following, "big") <= used):
            self.report.rebuild("counters of `meta`")
            self.out.put_row(META, NEXT_SEQUENCE, encode_number(self._sequence + 1))

    def _take(self, record: SegmentRecord) -> None:
        """Copy the file of a row, or what is readable of it."""
        if record == self._previous:
            return  # it was put here a moment ago
        try:
            segment = open_stored(self.store, record.path, record.where)
            check_means(record, segment)
        except UntrustedFileError:
            raise  # no damage: the caller has to say whom to trust
        except (CorruptionError, StoreError) as error:
            self.out.delete(SEGMENTS, record.db_key())
            self._search(record, str(error))
            return
        stored, record = record, _said_by(segment, record)  # what counts is what the file holds
        before = self._previous
        if (
            before is not None
            and before.stream_number == record.stream_number
            and record.first_id <= before.last_id
        ):
            self.out.delete(SEGMENTS, stored.db_key())
            self._set_aside(record, segment, "its segment overlaps another one")
            return
        if self._holds_erased(record, segment):
            self.out.delete(SEGMENTS, stored.db_key())
            self._set_aside(record, segment, "its segment holds what was erased")
            return
        if any(True for _ in segment.check()):
            self.out.delete(SEGMENTS, stored.db_key())
            self._unpack(record, segment)
            return
        self._copy(record.path)
        self._keep_row(stored, record)
        self._previous = record

    def _keep_row(self, stored: SegmentRecord, right: SegmentRecord) -> None:
        """Let a row say what its file says, under a number of its own."""
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
        """Put the nodes into `retired` that are found in a file without its index."""
        found = 0
        with contextlib.suppress(OSError):  # it is missing: `why` says so
            file = SegmentFile(self.store.open(stored_name(record.path)), record.where)
            found = self._place(
                record, remains(file.read_at, file.size), record.first_id, record.last_id
            )
        self._lose(record, record.first_id, record.last_id, record.entries - found, why)

    def _unpack(self, record: SegmentRecord, segment: Segment) -> None:
        """Put the nodes of a segment into `retired`; of damaged blocks those that are whole."""
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
        """Put nodes of a segment into `retired`; return how many entries they have."""
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
            erased = set(self._erasures(number, key, ids.last_slot))
            db_key = retired_key(number, *key)
            if erased or self.out.get(RETIRED, db_key) is not None:
                why = "a node that was to be archived has the same place"
                slots = [
                    slot
                    for slot in live_slots(one.listpack, *key)
                    if (slot.ms, slot.seq) not in erased
                ]
                self._keep(number, record.key, slots, "others were erased" if erased else why)
                continue
            value = encode_envelope(
                number, *key, one.epoch, one.commit_number, b"", one.listpack, one.trimmed
            )
            self.out.put(RETIRED, db_key, value)
        if count and self.out.get(STREAMS, pack_number(number)) is None:
            self.out.put(RETIRED, former_name_key(number), encode_former_name(number, record.key))
        return count

    def _loss(self, record: SegmentRecord) -> StreamLoss:
        """Return what a stream has lost; it may be deleted, and then only its segments name it."""
        loss = self.report.stream(record.stream_number)
        loss.name = loss.name or record.key
        return loss

    def _lose(self, record: SegmentRecord, first: Id, last: Id, count: int, why: str) -> None:
        if count <= 0:
            self.report.rebuild("damaged segments, of which all nodes were found")
            return
        loss = self._loss(record)
        what = "1 archived entry" if count == 1 else f"{count:,} archived entries"
        loss.notes.append(f"{what}, from {StreamId(*first)} to {StreamId(*last)}: {why}")

    def _holds_erased(self, record: SegmentRecord, segment: Segment) -> bool:
        """Say whether a segment still has an entry that was erased."""
        for ms, seq in self._erasures(record.stream_number, record.first_id, record.last_id):
            try:
                nodes = segment.block(segment.seek(ms, seq))
            except CorruptionError:
                continue
            if any(has_live(node.listpack, node.ms, node.seq, ms, seq) for node in nodes):
                return True
        return False

    def _erasures(self, number: int, first: Id, last: Id) -> Iterator[Id]:
        prefix, start = pack_number(number), erasure_key(number, *first)
        for db_key, _ in self.out.rows(ERASURES, prefix, start):
            _, ms, seq = unpack_node_key(db_key)
            if (ms, seq) > last:
                return
            yield ms, seq

    def _set_aside(self, record: SegmentRecord, segment: Segment, why: str) -> None:
        """Put the entries of a segment into lost+found, without what was erased."""
        erased = set(self._erasures(record.stream_number, record.first_id, record.last_id))
        for place in range(len(segment.index.blocks)):
            try:
                nodes = segment.block(place)
            except CorruptionError:
                continue
            for node in nodes:
                slots = [
                    slot
                    for slot in live_slots(node.listpack, node.ms, node.seq)
                    if (slot.ms, slot.seq) not in erased
                ]
                self._keep(record.stream_number, record.key, slots, why)
        loss = self._loss(record)
        loss.notes.append(f"archived entries, from {record.first_id} on, are in lost+found: {why}")

    def _keep(self, number: int, key: bytes | None, slots: list[Slot], why: str) -> None:
        self.report.stream(number).moved += self.lost.keep_entries(why, key, number, slots)

    # --- what is retired, and in no segment yet -------------------------------------------------

    def _retired(self) -> None:
        """Retired nodes follow each other, and something of each was trimmed."""
        for db_key, value in damaged_nodes(self.out, DAMAGED_RETIRED):
            self._rescue(db_key, value)
        previous: tuple[int, tuple[int, int]] | None = None
        for db_key, value in self.out.rows(RETIRED):
            number, ms, seq = unpack_node_key(db_key)
            self.highest_stream = max(self.highest_stream, number)
            if is_former_name(ms, seq):
                continue
            try:
                envelope = decode_envelope(value, "retired node")
                shown = history_form(envelope.listpack, ms, seq, envelope.trimmed)
                last = validate(shown, ms, seq).last_slot if shown else (ms, seq)
                if envelope.record:
                    raise CorruptionError("retired node", "a stream record stands in it")
            except CorruptionError as error:
                self.out.delete(RETIRED, db_key)
                slots = slots_of(value, number, (ms, seq), None)
                self._keep(number, None, slots, f"a retired node is damaged: {error.problem}")
                loss = self.report.stream(number)
                loss.notes.append(f"retired entries from {ms}-{seq} on: {error.problem}")
                continue
            if not shown:
                self.out.delete(RETIRED, db_key)
                self.report.rebuild("retired nodes of which nothing was trimmed")
            elif previous is not None and previous[0] == number and (ms, seq) <= previous[1]:
                self.out.delete(RETIRED, db_key)
                why = "a retired node overlaps another one"
                self._keep(number, None, live_slots(shown, ms, seq), why)
            else:
                previous = number, last

    def _look_for_retired(self) -> None:
        """Put nodes that may have been retired into lost+found: nothing tells whether they were.

        They were found without their tree, while neither it nor the free list tells.
        """
        for key, noted in self.out.notes(WAITED):
            number, ms, seq = unpack_node_key(key[len(WAITED) :])
            db_key = node_key(number, ms, seq)
            if any(self.out.get(table, db_key) is not None for table in (NODES, RETIRED)):
                continue
            envelope = decode_envelope(split_candidate(noted)[1], "page")
            try:
                shown = history_form(envelope.listpack, ms, seq, envelope.trimmed)
                last = validate(shown, ms, seq).last_slot if shown else None
            except CorruptionError:
                continue
            if last is None or not self._may_be_retired(number, (ms, seq), last):
                continue
            erased = set(self._erasures(number, (ms, seq), last))
            slots = [one for one in live_slots(shown, ms, seq) if (one.ms, one.seq) not in erased]
            self._keep(number, None, slots, "it may have been trimmed, and not archived yet")

    def _may_be_retired(self, number: int, first: Id, last: Id) -> bool:
        """Say whether entries in a range are below the live ones of an archived stream, and in no
        segment.
        """
        segments = list(self._rows_of(number))
        if any(one.first_id <= last and first <= one.last_id for one in segments):
            return False
        value = self.out.get(STREAMS, pack_number(number))
        if value is None:
            return bool(segments)
        try:
            record = decode_stream_record(decode_envelope(value, "stream").record, "stream")
            retention = retention_of(record.extension, f"stream {number}")
        except CorruptionError:
            return bool(segments)
        archives = bool(segments) or (retention is not None and retention.archive)
        return archives and last < (record.first_ms, record.first_seq)

    def _rows_of(self, number: int) -> Iterator[SegmentRecord]:
        """Yield the rows of a stream in the manifest."""
        for db_key, value in self.out.rows(SEGMENTS, pack_number(number)):
            body = open_row(SEGMENTS, db_key, value, "segment")
            yield decode_segment_record(db_key, body, "segment")

    def _rescue(self, db_key: bytes, value: bytes) -> None:
        """Keep what is readable of a damaged retired node."""
        if len(db_key) != NODE_KEY_SIZE or self.out.get(RETIRED, db_key) is not None:
            return  # a sound copy was found
        number, ms, seq = unpack_node_key(db_key)
        ends = [next_key(self.out, number, (ms, seq), table) for table in (RETIRED, NODES)]
        following = min((end for end in ends if end is not None), default=None)
        slots = slots_of(value, number, (ms, seq), following)
        loss = self.report.stream(number)
        loss.unverified += store_slots(self.out, number, 1, slots, RETIRED)
        until = "" if following is None else f" to before {StreamId(*following)}"
        start = behind(slots, (ms, seq))
        loss.notes.append(f"entries that waited for the archive, from {start}{until}")

    def _drop_archived(self, record: SegmentRecord) -> None:
        """Drop live nodes that were found without their tree, and were archived since.

        What is in a segment was trimmed before: the node is older than that.
        """
        number = record.stream_number
        segment = None
        start = node_key(number, *record.first_id)
        for db_key, value in self.out.rows(NODES, pack_number(number), start):
            if db_key > node_key(number, *record.last_id):
                return
            segment = segment or open_stored(self.store, record.path, record.where)
            envelope = decode_envelope(value, "node")
            live = live_slots(envelope.listpack, envelope.ms, envelope.seq)
            if all(_has(segment, slot.ms, slot.seq) for slot in live):
                self.out.delete(NODES, db_key)
                self.report.stale += 1

    def _settle_places(self, number: int) -> None:
        """Let no entry be in two places; what a segment alone has waits for the archive again."""
        settled = False
        while not settled:
            settled = True
            for place in list(overlapping(self.out, number)):
                if place.segment is not None:
                    self._give_up(place.segment)
                    settled = False  # its nodes may overlap others
                else:
                    self._put_aside(number, place.db_key)

    def _give_up(self, record: SegmentRecord) -> None:
        """Unpack a sound segment that was copied already."""
        self.report.rebuild("segments that overlapped nodes, which were unpacked")
        self.out.delete(SEGMENTS, record.db_key())
        self._unpack(record, open_stored(self.store, record.path, record.where))
        self.out.folder.remove(stored_name(record.path))

    def _put_aside(self, number: int, db_key: bytes) -> None:
        """Put a retired node that is not needed, or contradicts others, into lost+found."""
        value = self.out.get(RETIRED, db_key)
        assert value is not None
        self.out.delete(RETIRED, db_key)
        envelope = decode_envelope(value, "retired node")
        data = history_form(envelope.listpack, envelope.ms, envelope.seq, envelope.trimmed)
        why = "a node that was to be archived overlaps others"
        self._keep(number, None, live_slots(data, envelope.ms, envelope.seq), why)

    # --- files without a row ------------------------------------------------------------------

    def _adopt(self) -> None:
        own_uuid = self.out.get_row(META, META_UUID, "meta") or self._uuid
        for path in self._files():
            try:
                segment = open_stored(self.store, path, max_block_bytes=MAX_BLOCK_BYTES)
            except (CorruptionError, StoreError):
                continue
            try:
                problem = next(segment.check(), None)
            except StoreError as error:  # it may be hostile: no row names it
                self.report.other.append(f"archive file {path}: not adopted: {error}")
                continue
            if problem is not None:
                self.report.other.append(f"archive file {path}: it is damaged, and no row names it")
                continue
            if segment.index.store_uuid == own_uuid:
                self._adopt_one(path, segment)

    def _files(self) -> Iterator[str]:
        for path in self.store.files_below(ARCHIVE_FOLDER):
            if path.endswith(SUFFIX) and path not in self._named:
                yield path

    def _adopt_one(self, path: str, segment: Segment) -> None:
        trailer, number = segment.trailer, segment.index.stream_number
        if any(self._erasures(number, trailer.first_id, trailer.last_id)) or self._overlaps(
            segment
        ):
            self.report.other.append(f"archive file {path}: another one may have replaced it")
            return
        self._sequence += 1
        self.highest_stream = max(self.highest_stream, number)
        record = record_of(
            segment,
            stream_number=number,
            path=path,
            key=segment.index.key,
            sequence=self._sequence,
            created_ms=trailer.created_ms,
            epoch=trailer.epoch,
            origin=ADOPTED,
        )
        self.out.put_row(SEGMENTS, record.db_key(), record.encode())
        self.report.rebuild("rows of segments")
        self._copy(path)

    def _overlaps(self, segment: Segment) -> bool:
        trailer = segment.trailer
        return any(
            row.first_id <= trailer.last_id and trailer.first_id <= row.last_id
            for row in self._rows_of(segment.index.stream_number)
        )


def _said_by(segment: Segment, record: SegmentRecord) -> SegmentRecord:
    """Return the row of a segment as its file says it, and else as it was."""
    return record_of(
        segment,
        stream_number=record.stream_number,
        path=record.path,
        key=record.key,
        sequence=record.sequence,
        created_ms=record.created_ms,
        epoch=record.epoch,
        origin=record.origin,
        erased=record.erased,
    )


def _has(segment: Segment, ms: int, seq: int) -> bool:
    """Say whether a segment, which was checked, has an entry."""
    if not segment.trailer.first_id <= (ms, seq) <= segment.trailer.last_id:
        return False
    nodes = segment.block(segment.seek(ms, seq))
    return any(has_live(node.listpack, node.ms, node.seq, ms, seq) for node in nodes)
