"""Damaged bytes: correcting one of a value, and reading the front of a macro node.

A single damaged byte is corrected by trying all changes until the checksum matches. A macro node
has about a million possible changes of one byte. A wrong change passes its 64-bit checksum with a
probability of 1 in 10^13. Small rows have 32-bit checksums, so only single bits are tried: the
probability stays below 1 in 100,000, and the result must also be a valid row. A value without a
match is left as it is. Trying takes up to a second for a node, so the total time is limited.

A node with a wrong checksum is read from its front, with all checks, up to the first damage. The
entries before it are kept and counted as unverified, because a changed byte inside a value cannot
be detected.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import Id, next_id
from streamkeep.format.node import envelope
from streamkeep.format.node.check import Slot, read_until_damage
from streamkeep.format.rows.records import STREAM_RECORD

_BITS_UP_TO: Final = 16_384  # maximum size of a value for trying all bits
_BYTES_UP_TO: Final = 4_096  # maximum size of a value for trying all bytes
_LIMIT_S: Final = 60.0
_BITS: Final = [1 << bit for bit in range(8)]
_OTHERS: Final = [mask for mask in range(1, 256) if mask not in _BITS]
_MAX_RECORD: Final = 4096
_LISTPACK_HEADER: Final = 6
_MAX_BITMAP: Final = 64
_FEW_BYTES: Final = 4  # a header with at most as many wrong bytes is that of the node
_IDENTITY: Final = struct.Struct(">3sBIQQQ")  # the first fields of an envelope


class ByteGuesser:
    """Corrects values until its time is used up.

    Attributes:
        corrected: number of values corrected so far.
    """

    def __init__(self) -> None:
        self.corrected = 0
        self._left_s = _LIMIT_S

    def node(self, value: bytes) -> bytes | None:
        """Return an envelope with one byte changed so that its checksum matches; None if none."""
        if not envelope.OVERHEAD <= len(value) <= _BITS_UP_TO:
            return None
        masks = _BITS + _OTHERS if len(value) <= _BYTES_UP_TO else _BITS
        return self._try(value, envelope.CHECKSUM_SIZE, digest64, masks, range(1, 256))

    def row(self, table: int, db_key: bytes, value: bytes) -> bytes | None:
        """Return a row with one bit changed so that its checksum matches; None if none does."""
        if not ROW_CHECKSUM_SIZE < len(value) <= _BYTES_UP_TO:
            return None

        def checksum(body: bytearray) -> bytes:
            return row_checksum(table, db_key, bytes(body))

        return self._try(value, ROW_CHECKSUM_SIZE, checksum, _BITS, _BITS)

    def _try(
        self,
        value: bytes,
        size: int,
        checksum: Callable[[bytearray], bytes],
        masks: list[int],
        of_checksum: Iterable[int],
    ) -> bytes | None:
        """Change a byte of the checksum, or of the bytes before it, by each of some masks."""
        body, stored = bytearray(value[:-size]), value[-size:]
        right = checksum(body)
        differences = [a ^ b for a, b in zip(right, stored, strict=True) if a != b]
        if len(differences) == 1 and differences[0] in of_checksum:
            self.corrected += 1
            return bytes(body) + right
        if self._left_s <= 0:
            return None
        began = time.perf_counter()
        try:
            for mask in masks:
                for at in range(len(body)):
                    body[at] ^= mask
                    if checksum(body) == stored:
                        self.corrected += 1
                        return bytes(body) + stored
                    body[at] ^= mask
            return None
        finally:
            self._left_s -= time.perf_counter() - began


# --- the front of a node ------------------------------------------------------------------------


def live_slots(data: bytes, ms: int, seq: int, but: Collection[Id] = ()) -> list[Slot]:
    """Return the live entries of a node, as far as they can be read, except those with some IDs."""
    return [
        slot
        for slot in read_until_damage(data, ms, seq)
        if not slot.deleted and (slot.ms, slot.seq) not in but
    ]


def slots_of(
    value: bytes, number: int, key: Id, before: Id | None, *, record: bool = False
) -> list[Slot]:
    """Return the slots at the front of a damaged envelope; none if it is of another node.

    Args:
        number: number of the stream.
        key: key of the node.
        before: key of the next node: the ID of every slot is below it.
        record: whether it is a row of `streams`, with a record before the listpack.
    """
    if not _is_of(value, number, key):
        return []
    start = envelope.HEADER_SIZE
    if record:
        at = envelope.ENVELOPE.offset("record_size")
        size = int.from_bytes(value[at : at + 2], "big")
        start += size if STREAM_RECORD.size <= size <= _MAX_RECORD else STREAM_RECORD.size
    listpack = value[start:]
    stated = int.from_bytes(listpack[:4], "little")
    if _LISTPACK_HEADER < stated <= len(listpack):
        listpack = listpack[:stated]
    slots = read_until_damage(listpack, *key)
    return [slot for slot in slots if before is None or (slot.ms, slot.seq) < before]


def _is_of(value: bytes, number: int, key: Id) -> bool:
    """Return whether a damaged envelope can be that of a node.

    The value may come from a page that was overwritten with another one. The header names the
    node; if the header is damaged as well, the size of the listpack must fit the size of the value.
    """
    own = _IDENTITY.pack(envelope.MAGIC, envelope.FORMAT, len(value), number, *key)
    stated = value[: len(own)]
    if sum(a != b for a, b in zip(own, stated, strict=False)) <= _FEW_BYTES:
        return len(value) > envelope.OVERHEAD
    if stated.startswith(envelope.MAGIC):
        return False  # another node
    room = len(value) - envelope.OVERHEAD
    size = int.from_bytes(value[envelope.HEADER_SIZE : envelope.HEADER_SIZE + 4], "little")
    return _LISTPACK_HEADER < size <= room <= size + _MAX_BITMAP


def first_unread(slots: list[Slot], key: Id) -> StreamId:
    """Return the first ID that was not read: after the last slot, or the key of the node."""
    if not slots:
        return StreamId(*key)
    return StreamId(*next_id(slots[-1].ms, slots[-1].seq))
