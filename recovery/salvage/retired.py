"""Salvaging retired nodes: trimmed nodes that are in no segment yet.

Sound nodes are kept if they do not overlap and contain a trimmed entry. Damaged nodes are read up
to the damage. Nodes that were found without their tree and may have been retired go to lost+found.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import (
    ERASURES,
    NODES,
    RETIRED,
    SEGMENTS,
    STREAMS,
    node_key,
    pack_number,
    unpack_node_key,
)
from streamkeep.format.node.check import Slot, validate
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.records import decode_stream_record
from streamkeep.format.rows.retention import retention_of
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment.manifest import SegmentRecord, decode_segment_record, erasure_key
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import (
    first_unread,
    live_slots,
    next_key,
    slots_of,
    store_slots,
)
from streamkeep.recovery.salvage.notes import (
    DAMAGED_RETIRED,
    MAYBE_RETIRED,
    damaged_nodes,
    split_candidate,
)


class RetiredSalvage:
    """Checks and salvages the rows of `retired` in `out`.

    Attributes:
        highest_stream: the highest stream number of a row.
    """

    def __init__(self, out: BulkStore, report: Report, lost: LostAndFound) -> None:
        self.out = out
        self.report = report
        self.lost = lost
        self.highest_stream = 0

    def keep_sound(self) -> None:
        """Keep the nodes that can be read, do not overlap and contain a trimmed entry."""
        for db_key, value in damaged_nodes(self.out, DAMAGED_RETIRED):
            self._read_damaged(db_key, value)
        previous: tuple[int, tuple[int, int]] | None = None
        for db_key, value in self.out.rows(RETIRED):
            number, ms, seq = unpack_node_key(db_key)
            self.highest_stream = max(self.highest_stream, number)
            if is_former_name(ms, seq):
                continue
            try:
                envelope = decode_envelope(value, "retired node")
                history = history_form(envelope.listpack, ms, seq, envelope.trimmed)
                last = validate(history, ms, seq).last_slot if history else (ms, seq)
                if envelope.record:
                    raise CorruptionError("retired node", "the envelope contains a stream record")
            except CorruptionError as error:
                self.out.delete(RETIRED, db_key)
                slots = slots_of(value, number, (ms, seq), None)
                self._keep(number, slots, f"a retired node is damaged: {error.problem}")
                loss = self.report.stream(number)
                loss.notes.append(f"retired entries from {ms}-{seq} on: {error.problem}")
                continue
            if not history:
                self.out.delete(RETIRED, db_key)
                self.report.rebuild("retired nodes without a trimmed entry")
            elif previous is not None and previous[0] == number and (ms, seq) <= previous[1]:
                self.out.delete(RETIRED, db_key)
                why = "a retired node overlaps another one"
                self._keep(number, live_slots(history, ms, seq), why)
            else:
                previous = number, last

    def keep_candidates(self) -> None:
        """Move nodes that may have been retired to lost+found."""
        for key, noted in self.out.notes(MAYBE_RETIRED):
            number, ms, seq = unpack_node_key(key[len(MAYBE_RETIRED) :])
            db_key = node_key(number, ms, seq)
            if any(self.out.get(table, db_key) is not None for table in (NODES, RETIRED)):
                continue
            envelope = decode_envelope(split_candidate(noted)[1], "page")
            try:
                history = history_form(envelope.listpack, ms, seq, envelope.trimmed)
                last = validate(history, ms, seq).last_slot if history else None
            except CorruptionError:
                continue
            if last is None or not self._may_be_retired(number, (ms, seq), last):
                continue
            erased = set(erasures(self.out, number, (ms, seq), last))
            slots = live_slots(history, ms, seq, erased)
            self._keep(number, slots, "the node may have been trimmed but not archived yet")

    def _may_be_retired(self, number: int, first: Id, last: Id) -> bool:
        """Return whether entries below the live ones of an archived stream are in no segment."""
        segments = list(segment_rows(self.out, number))
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

    def _read_damaged(self, db_key: bytes, value: bytes) -> None:
        """Store the entries of a damaged node up to the damage."""
        if self.out.get(RETIRED, db_key) is not None:
            return  # a sound copy was found
        number, ms, seq = unpack_node_key(db_key)
        ends = [next_key(self.out, number, (ms, seq), table) for table in (RETIRED, NODES)]
        following = min((end for end in ends if end is not None), default=None)
        slots = slots_of(value, number, (ms, seq), following)
        loss = self.report.stream(number)
        loss.unverified += store_slots(self.out, number, 1, slots, RETIRED)
        until = "" if following is None else f" up to but not including {StreamId(*following)}"
        start = first_unread(slots, (ms, seq))
        loss.notes.append(f"entries that were not archived yet, from {start}{until}")

    def _keep(self, number: int, slots: list[Slot], why: str) -> None:
        self.report.stream(number).moved += self.lost.keep_entries(why, None, number, slots)


def segment_rows(out: BulkStore, number: int) -> Iterator[SegmentRecord]:
    """Yield the rows of a stream in the manifest."""
    for db_key, value in out.rows(SEGMENTS, pack_number(number)):
        yield read_segment_row(db_key, value)


def read_segment_row(db_key: bytes, value: bytes) -> SegmentRecord:
    """Return a row of the manifest; raise CorruptionError."""
    return decode_segment_record(db_key, open_row(SEGMENTS, db_key, value, "segment"), "segment")


def erasures(out: BulkStore, number: int, first: Id, last: Id) -> Iterator[Id]:
    """Yield the IDs of a stream's erased entries from `first` to `last`, both included."""
    for db_key, _ in out.rows(ERASURES, pack_number(number), erasure_key(number, *first)):
        _, ms, seq = unpack_node_key(db_key)
        if (ms, seq) > last:
            return
        yield ms, seq
