"""What can be read out of a damaged macro node, and how it is stored again.

A node whose checksum does not hold is read from its front, with every check that there is, up to
the first thing that cannot be. Entries before that are kept, and counted as unverified: a byte
that changed inside a value is not seen.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import next_id
from streamkeep.format.core.keys import NODES, node_key, pack_number
from streamkeep.format.node.check import Slot, read_until_damage
from streamkeep.format.node.envelope import (
    ENVELOPE,
    FORMAT,
    HEADER_SIZE,
    MAGIC,
    OVERHEAD,
    PAGE_LISTPACK,
    encode_envelope,
)
from streamkeep.format.node.node import encode_nodes
from streamkeep.format.rows.records import STREAM_RECORD
from streamkeep.recovery.salvage.new_store import BulkStore

Id = tuple[int, int]
_MOST_RECORD: Final = 4096
_HEAD: Final = 6
_MOST_BITMAP: Final = 64
_FEW_BYTES: Final = 4
_IDENTITY: Final = struct.Struct(">3sBIQQQ")  # how an envelope begins


def live_slots(data: bytes, ms: int, seq: int) -> list[Slot]:
    """Return the live entries of a node, as far as they can be read."""
    return [slot for slot in read_until_damage(data, ms, seq)[0] if not slot.deleted]


def slots_of(
    value: bytes, number: int, key: Id, before: Id | None, *, record: bool = False
) -> list[Slot]:
    """Return the slots at the front of a damaged envelope; none where it is not that of the node.

    Args:
        number: of the stream.
        key: of the node.
        before: the key of the next node, which no slot can reach.
        record: it is a row of `streams`, with a record in front of the listpack.
    """
    if not _is_of(value, number, key):
        return []
    start = HEADER_SIZE
    if record:
        at = ENVELOPE.offset("record_size")
        size = int.from_bytes(value[at : at + 2], "big")
        start += size if STREAM_RECORD.size <= size <= _MOST_RECORD else STREAM_RECORD.size
    listpack = value[start:]
    stated = int.from_bytes(listpack[:4], "little")
    if _HEAD < stated <= len(listpack):
        listpack = listpack[:stated]
    slots, _ = read_until_damage(listpack, *key)
    return [slot for slot in slots if before is None or (slot.ms, slot.seq) < before]


def _is_of(value: bytes, number: int, key: Id) -> bool:
    """Say whether the bytes of a damaged envelope can be those of a node.

    Other pages may stand in the place of its own. Its header says which node it is; where that is
    damaged, too, the size of the listpack must be right for the size of the value.
    """
    own = _IDENTITY.pack(MAGIC, FORMAT, len(value), number, *key)
    stated = value[: len(own)]
    if sum(a != b for a, b in zip(own, stated, strict=False)) <= _FEW_BYTES:
        return len(value) > OVERHEAD
    if stated.startswith(MAGIC):
        return False  # of another node
    room = len(value) - OVERHEAD
    size = int.from_bytes(value[HEADER_SIZE : HEADER_SIZE + 4], "little")
    return _HEAD < size <= room <= size + _MOST_BITMAP


def key_of(value: bytes) -> Id:
    """Return the node key that a damaged envelope states."""
    at = ENVELOPE.offset("ms")
    return int.from_bytes(value[at : at + 8], "big"), int.from_bytes(value[at + 8 : at + 16], "big")


def next_key(out: BulkStore, number: int, key: Id, table: int = NODES) -> Id | None:
    """Return the key of the node behind a place; None when there is none."""
    prefix = pack_number(number)
    start = node_key(number, *key) + b"\0"
    for db_key, _ in out.rows(table, prefix, start):
        return int.from_bytes(db_key[8:16], "big"), int.from_bytes(db_key[16:], "big")
    return None


def store_slots(
    out: BulkStore, number: int, epoch: int, slots: Iterable[Slot], table: int = NODES
) -> int:
    """Store the live entries among slots as new nodes; return how many there are."""
    live = [(slot.ms, slot.seq, slot.pairs) for slot in slots if not slot.deleted]
    for ms, seq, data in encode_nodes(live, PAGE_LISTPACK):
        value = encode_envelope(number, ms, seq, epoch, 1, b"", data, b"")
        out.put(table, node_key(number, ms, seq), value)
    return len(live)


def behind(slots: list[Slot], key: Id) -> StreamId:
    """Return the first ID that was not read: behind the last slot, or the key of the node."""
    if not slots:
        return StreamId(*key)
    return StreamId(*next_id(slots[-1].ms, slots[-1].seq))
