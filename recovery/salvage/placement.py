"""Putting back stream records and nodes that were found without their tree.

What may be put back follows from the free list. A page that is neither used nor free belonged to a
damaged part of a tree: what it contains is live. A free page contains data that was replaced or
deleted; it is used only for the record of a stream that has no other.

Without a free list, freed pages cannot be told from live ones. Then:

1. Of several copies of a node, the newest (epoch, commit number) is used.
2. Nodes below first_id of their stream were trimmed, and are dropped.
3. Nodes above max_deleted_id cannot have been deleted, and are put back.
4. All other nodes are put back if there are exactly as many as the stream record states.
5. Otherwise they may have been deleted, and go to lost+found.
"""

from __future__ import annotations

from typing import Final

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    KEYS,
    NODES,
    RETIRED,
    STREAMS,
    node_key,
    pack_number,
    unpack_number,
)
from streamkeep.format.node.envelope import Envelope, decode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.rows.records import StreamRecord, decode_stream_record
from streamkeep.format.rows.retired import former_name_key
from streamkeep.recovery.fsck.sorting import SortedPairs
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.node_remains import live_slots
from streamkeep.recovery.salvage.notes import (
    DAMAGED_NODE,
    DAMAGED_RETIRED,
    DAMAGED_STREAM,
    DOUBTFUL_NODE,
    FOUND_NODE,
    FOUND_RECORD,
    Candidate,
    age_of,
    split_candidate,
    without_record,
)

_NUMBER_SIZE: Final = 8


class Placement:
    """Puts back the candidates that are noted in `out`."""

    def __init__(self, out: BulkStore, report: Report, lost: LostAndFound) -> None:
        self.out = out
        self.report = report
        self.lost = lost

    def run(self) -> None:
        """Put back records, then nodes."""
        self._place_records()
        for key, noted in self.out.notes(FOUND_NODE):
            self._place_node(key[1:], *split_candidate(noted))
        self._place_doubtful()

    def _place_records(self) -> None:
        """Put back the newest copies of stream rows that no tree led to.

        A copy from a free page is an older state of the stream. It is used only if the stream is
        known to exist, because it has a name or because its damaged row was found.
        """
        named = SortedPairs()
        for _, value in self.out.rows(KEYS):
            named.add(int.from_bytes(value[:_NUMBER_SIZE], "big"))
        names = named.firsts()
        for key, noted in self.out.notes(FOUND_RECORD):
            db_key = key[1:]
            number = unpack_number(db_key)
            candidate, value = split_candidate(noted)
            present = self.out.get(STREAMS, db_key)
            if present is not None and age_of(present) >= candidate.age():
                continue
            exists = candidate.known_live or names.has(number) or present is not None
            if not exists and self.out.noted(DAMAGED_STREAM + db_key) is None:
                self.report.stale += 1
                continue
            self.out.put(STREAMS, db_key, value)
            if not candidate.known_live:
                loss = self.report.stream(number)
                loss.notes.append(
                    f"its record: the newest copy is of commit {candidate.commit_number} of epoch "
                    f"{candidate.epoch}; entries that later commits appended may be lost"
                )
                loss.entries = None

    def _place_node(self, db_key: bytes, candidate: Candidate, value: bytes) -> None:
        """Put back a node that no tree led to, drop it, or note that it may have been deleted."""
        envelope = decode_envelope(value, "page")
        record, tail_key, age = self._record_of(envelope.number)
        present = self.out.get(NODES, db_key)
        if present is not None and age_of(present) >= candidate.age():
            self.report.stale += 1
            return
        if db_key == tail_key and age >= candidate.age():
            self.report.stale += 1  # the tail node in the stream's row is newer
            return
        try:
            last = end_ids(envelope.listpack, envelope.ms, envelope.seq).last_slot
        except CorruptionError as error:
            if candidate.known_live:
                self.out.note(DAMAGED_NODE + db_key, value)
            else:
                why = f"the node may have been deleted, and is damaged: {error.problem}"
                keep_node(self.lost, self.report, envelope, why)
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
                self.out.put(RETIRED, db_key, value)  # trimmed, but not archived yet
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
        else:
            self.out.note(DOUBTFUL_NODE + db_key, b"")

    def _put_node(self, db_key: bytes, envelope: Envelope) -> None:
        self.out.put(NODES, db_key, without_record(envelope))
        self.report.recovered += 1

    def _place_doubtful(self) -> None:
        """Put back the nodes that may have been deleted, where their number proves the contrary."""
        number = -1
        all_of_them = False
        for key, _ in self.out.notes(DOUBTFUL_NODE):
            db_key = key[1:]
            if unpack_number(db_key[:_NUMBER_SIZE]) != number:
                number = unpack_number(db_key[:_NUMBER_SIZE])
                all_of_them = self._has_all_nodes(number)
            noted = self.out.noted(FOUND_NODE + db_key)
            assert noted is not None
            candidate, value = split_candidate(noted)
            envelope = decode_envelope(value, "page")
            if all_of_them and not candidate.tail:
                self._put_node(db_key, envelope)
            else:
                keep_node(self.lost, self.report, envelope, "the node may have been deleted")

    def _has_all_nodes(self, number: int) -> bool:
        """Return whether a stream has as many nodes as it states, those in doubt included."""
        record, _, _ = self._record_of(number)
        prefix = pack_number(number)
        doubtful = sum(1 for _ in self.out.notes(DOUBTFUL_NODE + prefix))
        present = sum(1 for _ in self.out.rows(NODES, prefix))
        return record is not None and record.sealed_nodes == present + doubtful

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


def keep_node(lost: LostAndFound, report: Report, envelope: Envelope, why: str) -> None:
    """Move the entries of a node to lost+found."""
    count = lost.keep_entries(
        why,
        None,
        envelope.number,
        live_slots(envelope.listpack, envelope.ms, envelope.seq),
        epoch=envelope.epoch,
        commit_number=envelope.commit_number,
    )
    report.stream(envelope.number).moved += count
