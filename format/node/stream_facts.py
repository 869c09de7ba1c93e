"""Facts counted over the macro nodes of one stream, which are added from oldest to newest.

fsck compares the stream record with these facts; repair writes records from them. What runs for
each entry is in `check`.
"""

from __future__ import annotations

from typing import NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id, id_text, unpack_id
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import decode_envelope, trimmed_slots
from streamkeep.format.node.node import peek_counts, tombstone_slots

NO_ID: Id = (0, 0)
_PEEKED = 64  # enough bytes of a node to read both counts


class Problem(NamedTuple):
    """A problem with a node: the code of the finding, and its text."""

    code: str
    text: str


class StreamFacts:
    """Counts over the nodes that were added.

    Attributes:
        length, tombstones: number of live slots and of tombstones.
        sealed_nodes, sealed_bytes: number of nodes in `nodes`, and bytes of their listpacks.
        first, last: IDs of the first and last live entry; `NO_ID` if there is none.
        highest: the highest ID of a slot that was read.
        damaged: whether a node could not be read, which makes the counts incomplete.
    """

    def __init__(self) -> None:
        self.length = 0
        self.tombstones = 0
        self.sealed_nodes = 0
        self.sealed_bytes = 0
        self.first: Id = NO_ID
        self.last: Id = NO_ID
        self.highest: Id = NO_ID
        self.damaged = False
        self._previous: Id | None = None  # the highest known ID of the node before

    def add_sealed(self, db_key: bytes, value: bytes, deep: bool) -> list[Problem]:
        """Add the node in a row of `nodes`; return its problems.

        Args:
            db_key: 24 bytes: stream number, ms, seq.
            deep: check every byte; otherwise only checksum, key and counts.
        """
        number = int.from_bytes(db_key[:8], "big")
        ms, seq = unpack_id(db_key[8:])
        try:
            envelope = decode_envelope(value, "macro node")
        except CorruptionError as error:
            self.damaged = True
            return [Problem("SK110", error.problem)]
        self.sealed_nodes += 1
        self.sealed_bytes += len(envelope.listpack)
        found: list[Problem] = []
        if envelope.number != number or envelope.ms != ms or envelope.seq != seq:
            place = id_text(envelope.ms, envelope.seq).decode()
            problem = f"the envelope is of node {place} of stream {envelope.number}"
            found.append(Problem("SK114", problem))
        if deep or self.sealed_nodes == 1:
            found.extend(self.add_node(ms, seq, envelope.listpack, envelope.trimmed))
            return found
        try:
            live, deleted = peek_counts(envelope.listpack[:_PEEKED])
        except CorruptionError as error:
            self.damaged = True
            found.append(Problem("SK110", error.problem))
            return found
        self._check_rises((ms, seq), found)
        self.length += live
        self.tombstones += deleted
        self._previous = (ms, seq)
        return found

    def add_node(self, ms: int, seq: int, data: bytes, trimmed: bytes) -> list[Problem]:
        """Add a node after checking every byte of it; return its problems."""
        found: list[Problem] = []
        try:
            ids = validate(data, ms, seq)
        except CorruptionError as error:
            self.damaged = True
            found.append(Problem("SK110", f"{error.problem} (byte {error.offset})"))
            return found
        self._check_rises((ms, seq), found)
        if trimmed:
            wrong = sorted(trimmed_slots(trimmed) - tombstone_slots(data, ms, seq))
            if wrong:
                problem = f"slots {wrong[:5]} are marked as trimmed but are not tombstones"
                found.append(Problem("SK113", problem))
        if self.length == 0:
            self.first = ids.first_live
        self.length += ids.live
        self.tombstones += ids.deleted
        self.last = ids.last_live
        self.highest = ids.last_slot
        self._previous = ids.last_slot
        return found

    def end_with(self, ms: int, seq: int, data: bytes) -> list[Problem]:
        """Check every byte of the last node, which was added with `deep` false."""
        try:
            ids = validate(data, ms, seq)
        except CorruptionError as error:
            self.damaged = True
            return [Problem("SK110", f"{error.problem} (byte {error.offset})")]
        self.last = ids.last_live
        self.highest = ids.last_slot
        self._previous = ids.last_slot
        return []

    def _check_rises(self, key: Id, found: list[Problem]) -> None:
        previous = self._previous
        if previous is not None and key <= previous:
            text = id_text(previous[0], previous[1]).decode()
            found.append(Problem("SK111", f"the node before it contains ID {text}"))
