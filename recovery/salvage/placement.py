"""Putting back stream records and nodes that were found without their tree, from notes of them.

What may be put back follows from the free list. A page that is neither used nor free belonged to a
damaged part of a tree: what it contains is live. A free page contains data that was replaced or
deleted; it is used only for the record of a stream that has no other.

Without a free list, freed pages cannot be told from live ones. Then:

1. Of several copies of a node, the newest (epoch, commit number) is used.
2. Nodes below first_id of their stream were trimmed, and are dropped.
3. Nodes above max_deleted_id cannot have been deleted, and are put back.
4. All other nodes are put back if there are, with those that are present and those whose row is
   damaged, exactly as many as the stream record states.
5. Otherwise they may have been deleted, and go to lost+found.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from streamkeep.format.core import keys
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.envelope import Envelope, decode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.rows.records import StreamRecord
from streamkeep.format.rows.retired import former_name_key
from streamkeep.recovery.pages.raw_pages import without_record
from streamkeep.recovery.salvage.damaged_bytes import live_slots
from streamkeep.recovery.salvage.found import NAMED, Found

# Notes: one of these, and the key of a row.
DAMAGED: Final = {keys.NODES: b"D", keys.RETIRED: b"T", keys.STREAMS: b"S"}  # value: damaged bytes
FOUND_NODE: Final = b"N"  # a node that was found without its tree; value: candidate and envelope
FOUND_RECORD: Final = b"R"  # a stream's row that was found so; value: the same
OLD_NODE: Final = b"O"  # an older copy of a node, from a free page; value: the same
MAYBE_RETIRED: Final = b"W"  # a node that may have been in `retired`; value: the same

OTHER_NODE: Final = b"other"  # in place of damaged bytes: the row has the node of another key

_CANDIDATE: Final = struct.Struct(">IQ??")


class Candidate(NamedTuple):
    """Facts about an envelope that was found without its tree."""

    epoch: int  # epoch and number of the commit that wrote it
    commit_number: int
    known_live: bool  # its page is neither free nor used elsewhere
    tail: bool  # it is the tail in a stream's row

    def age(self) -> tuple[int, int]:
        """Return epoch and commit number, which are higher in newer copies."""
        return self.epoch, self.commit_number

    def with_value(self, value: bytes) -> bytes:
        """Return the note of an envelope with these facts."""
        return _CANDIDATE.pack(*self) + value


def split_candidate(noted: bytes) -> tuple[Candidate, bytes]:
    return Candidate(*_CANDIDATE.unpack_from(noted)), noted[_CANDIDATE.size :]


def note_newest(
    found: Found, kind: bytes, envelope: Envelope, value: bytes, *, known_live: bool = False
) -> None:
    """Note an envelope that was found without its tree, unless a newer copy of it is noted."""
    key = kind + keys.pack_number(envelope.number)
    if kind != FOUND_RECORD:
        key = kind + keys.node_key(envelope.number, envelope.ms, envelope.seq)
    candidate = Candidate(*age_of(envelope), known_live, bool(envelope.record))
    known = found.noted(key)
    # LMDB copies a leaf with all its rows, so copies can have the same age: prefer the live page.
    if known is None or split_candidate(known)[0][:3] < candidate[:3]:
        found.note(key, candidate.with_value(value))


def age_of(envelope: Envelope) -> tuple[int, int]:
    return envelope.epoch, envelope.commit_number


def place(found: Found, nodes_until: tuple[int, int] = (0, 0)) -> None:
    """Put back the candidates that are noted.

    Args:
        nodes_until: up to this age, all nodes that are live are known to be in `found`.
    """
    _place_records(found)
    doubtful: list[bytes] = []  # nodes of one stream that may have been deleted
    for db_key, noted in found.notes(FOUND_NODE):
        if doubtful and doubtful[0][:8] != db_key[:8]:
            _place_doubtful(found, doubtful)
            doubtful = []
        if not _place_node(found, nodes_until, db_key, *split_candidate(noted)):
            doubtful.append(db_key)
    if doubtful:
        _place_doubtful(found, doubtful)


def _place_records(found: Found) -> None:
    """Put back the newest copies of stream rows that no tree led to.

    A copy from a free page is an older state of the stream. It is used only if the stream is
    known to exist, because it has a name or because its damaged row was found.
    """
    for db_key, noted in found.notes(FOUND_RECORD):
        number = keys.unpack_number(db_key)
        candidate, value = split_candidate(noted)
        present = found.get(keys.STREAMS, db_key)
        if present is not None and age_of(decode_envelope(present, "row")) >= candidate.age():
            continue
        exists = candidate.known_live or present is not None
        for note in (NAMED + db_key, DAMAGED[keys.STREAMS] + db_key):
            exists = exists or found.noted(note) is not None
        if not exists:
            found.report.stale += 1
            continue
        found.put(keys.STREAMS, db_key, value)
        if not candidate.known_live:
            loss = found.report.stream(number)
            loss.notes.append(
                f"its record: the newest copy is of commit {candidate.commit_number} of epoch "
                f"{candidate.epoch}; entries that later commits appended may be lost"
            )
            loss.entries = None


def _place_node(
    found: Found, nodes_until: tuple[int, int], db_key: bytes, candidate: Candidate, value: bytes
) -> bool:
    """Put back a node that no tree led to, or drop it; return False if that is in doubt."""
    envelope = decode_envelope(value, "page")
    record, tail_key, age = _record_of(found, envelope.number)
    present = found.get(keys.NODES, db_key)
    newer = present is not None and age_of(decode_envelope(present, "row")) >= candidate.age()
    if newer or (db_key == tail_key and age >= candidate.age()):
        found.report.stale += 1
        return True
    try:
        last = end_ids(envelope.listpack, envelope.ms, envelope.seq).last_slot
    except CorruptionError as error:
        if candidate.known_live:
            found.note(DAMAGED[keys.NODES] + db_key, value)
        else:
            why = f"the node may have been deleted, and is damaged: {error.problem}"
            keep_node(found, envelope, why)
        return True
    was_retired = found.noted(DAMAGED[keys.RETIRED] + db_key) is not None or (
        # No ID says so of one that was deleted, and of an empty stream.
        candidate.age() <= nodes_until
        and candidate.known_live
        and not candidate.tail
        and found.noted(DAMAGED[keys.NODES] + db_key) is None
    )
    gone = record is not None and last < (record.first_ms, record.first_seq)
    deleted_stream = found.get(keys.RETIRED, former_name_key(envelope.number)) is not None
    if was_retired or (
        candidate.known_live and (gone or (record is None and deleted_stream))
    ):  # trimmed, but not archived yet
        if candidate.known_live and found.get(keys.RETIRED, db_key) is None:
            found.put(keys.RETIRED, db_key, value)
            found.report.recovered += 1
        return True
    if gone:
        found.report.stale += 1
        return True
    deleted = (0, 0) if record is None else record.max_deleted_id()
    above = record is not None and (envelope.ms, envelope.seq) > deleted
    if candidate.known_live or (above and not candidate.tail):
        _put_node(found, db_key, envelope)
        return True
    return False


def _put_node(found: Found, db_key: bytes, envelope: Envelope) -> None:
    found.put(keys.NODES, db_key, without_record(envelope))
    found.report.recovered += 1


def _place_doubtful(found: Found, db_keys: list[bytes]) -> None:
    """Put back nodes that may have been deleted, where their number proves the contrary."""
    number = keys.unpack_node_key(db_keys[0])[0]
    record, _, _ = _record_of(found, number)
    prefix = keys.pack_number(number)
    others = sum(1 for _ in found.rows(keys.NODES, prefix))
    # A row that cannot be read is there, too; one with another node may be that of a key here.
    for rest, value in found.notes(DAMAGED[keys.NODES] + prefix):
        db_key = prefix + rest
        is_one = value != OTHER_NODE and db_key not in db_keys
        others += is_one and found.get(keys.NODES, db_key) is None
    all_of_them = record is not None and record.sealed_nodes == others + len(db_keys)
    for db_key in db_keys:
        candidate, value = split_candidate(found.noted(FOUND_NODE + db_key) or b"")
        envelope = decode_envelope(value, "page")
        if all_of_them and not candidate.tail:
            _put_node(found, db_key, envelope)
        else:
            keep_node(found, envelope, "the node may have been deleted")


def _record_of(found: Found, number: int) -> tuple[StreamRecord | None, bytes, tuple[int, int]]:
    """Return the record of a stream as known so far, the key of its tail, and its age."""
    value = found.get(keys.STREAMS, keys.pack_number(number))
    if value is None:
        return None, b"", (0, 0)
    envelope = decode_envelope(value, "stream")
    key = keys.node_key(number, envelope.ms, envelope.seq) if envelope.listpack else b""
    return found.record(number), key, age_of(envelope)


def keep_node(found: Found, envelope: Envelope, why: str) -> None:
    found.keep(
        envelope.number,
        why,
        live_slots(envelope.listpack, envelope.ms, envelope.seq),
        epoch=envelope.epoch,
        commit_number=envelope.commit_number,
    )
