"""Notes of a repair in the new store's scratch table: damaged bytes, and envelopes without a tree.

The key of a note is one of the prefixes below and the key of a row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.envelope import Envelope, decode_envelope, encode_envelope
from streamkeep.recovery.salvage.new_store import BulkStore

DAMAGED_NAME: Final = b"M"  # value: the damaged bytes of a row of `keys`
DAMAGED_NODE: Final = b"D"  # value: the damaged bytes of a node
DAMAGED_RETIRED: Final = b"T"  # value: the damaged bytes of a retired node
DAMAGED_STREAM: Final = b"S"  # value: the damaged bytes of a stream's row
PARTIAL_STREAM: Final = b"P"  # a stream's row that the journal makes in part; see `pack_partial`
FOUND_NODE: Final = b"N"  # a node that was found without its tree; value: candidate and envelope
FOUND_RECORD: Final = b"R"  # a stream's row that was found so; value: the same
DOUBTFUL_NODE: Final = b"U"  # a found node that may have been deleted; value: empty
OLD_NODE: Final = b"O"  # an older copy of a node, from a free page; value: the same
MAYBE_RETIRED: Final = b"W"  # a node that may have been in `retired`; value: the same

_SIZE: Final = struct.Struct(">I")
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
    """Return the facts and the envelope of a note."""
    return Candidate(*_CANDIDATE.unpack_from(noted)), noted[_CANDIDATE.size :]


def pack_partial(before: bytes, value: bytes) -> bytes:
    """Return the note of a row that lacks something after what it had `before`."""
    return _SIZE.pack(len(before)) + before + value


def split_partial(noted: bytes) -> tuple[bytes, bytes]:
    """Return what a row had before, and its value."""
    (size,) = _SIZE.unpack_from(noted)
    return noted[_SIZE.size : _SIZE.size + size], noted[_SIZE.size + size :]


def note_newest(out: BulkStore, key: bytes, candidate: Candidate, value: bytes) -> None:
    """Note an envelope, unless a newer copy of it is noted."""
    known = out.noted(key)
    # LMDB copies a leaf with all its rows, so copies can have the same age: prefer the live page.
    if known is None or split_candidate(known)[0][:3] < candidate[:3]:
        out.note(key, candidate.with_value(value))


def damaged_nodes(out: BulkStore, kind: bytes = DAMAGED_NODE) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, damaged bytes) of the nodes that could not be copied."""
    for key, value in out.notes(kind):
        yield key[1:], value


def readable_envelope(value: bytes) -> Envelope | None:
    """Return a decoded envelope; None if it is damaged."""
    try:
        return decode_envelope(value, "row")
    except CorruptionError:
        return None


def age_of(value: bytes) -> tuple[int, int]:
    """Return epoch and commit number of a sound envelope."""
    envelope = decode_envelope(value, "row")
    return envelope.epoch, envelope.commit_number


def without_record(envelope: Envelope) -> bytes:
    """Return the envelope as a row of `nodes`: without a stream record."""
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
