"""Reading the entries of a damaged macro node.

A node with a wrong checksum is read from its front, with all checks, up to the first damage. The
entries before it are kept and counted as unverified, because a changed byte inside a value cannot
be detected.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import Id, next_id
from streamkeep.format.node import envelope
from streamkeep.format.node.check import Slot, read_until_damage
from streamkeep.format.rows.records import STREAM_RECORD

_MAX_RECORD: Final = 4096
_LISTPACK_HEADER: Final = 6
_MAX_BITMAP: Final = 64
_FEW_BYTES: Final = 4  # a header with at most as many wrong bytes is that of the node
_IDENTITY: Final = struct.Struct(">3sBIQQQ")  # the first fields of an envelope


def live_slots(data: bytes, ms: int, seq: int, but: Collection[Id] = ()) -> list[Slot]:
    """Return the live entries of a node, as far as they can be read, except those with some IDs."""
    return [
        slot
        for slot in read_until_damage(data, ms, seq)[0]
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
    slots, _ = read_until_damage(listpack, *key)
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


def record_only(value: bytes) -> bytes:
    """Return the row of a stream without its node, of one whose header and record are sound."""
    _, _, _, number, _, _, epoch, commit, size, _, _ = envelope.ENVELOPE.struct.unpack_from(value)
    record = value[envelope.HEADER_SIZE : envelope.HEADER_SIZE + size]
    return envelope.encode_envelope(number, 0, 0, epoch, commit, record, b"", b"")


def key_of(value: bytes) -> Id:
    """Return the node key that a damaged envelope states."""
    at = envelope.ENVELOPE.offset("ms")
    return int.from_bytes(value[at : at + 8], "big"), int.from_bytes(value[at + 8 : at + 16], "big")


def first_unread(slots: list[Slot], key: Id) -> StreamId:
    """Return the first ID that was not read: after the last slot, or the key of the node."""
    if not slots:
        return StreamId(*key)
    return StreamId(*next_id(slots[-1].ms, slots[-1].seq))
