"""Checking every byte of a node, and reading a damaged node up to the damage.

Commands check only the bytes that they read. `validate` checks all bytes, also those that no
command needs: element counts, backlens and lp-counts. Compiled by mypyc.
"""

from __future__ import annotations

from typing import NamedTuple

from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import unsigned
from streamkeep.format.node import listpack
from streamkeep.format.node.listpack_check import checked_step
from streamkeep.format.node.node import DELETED, SAME_FIELDS, NodeIds, SlotCursor, read_header


def validate(data: bytes, ms: int, seq: int, may_be_dead: bool = False) -> NodeIds:
    """Check every byte of a node; return its first and last IDs, or raise CorruptionError.

    Checks the listpack, both counts, flags, lp-counts, that IDs ascend from the key on, and that
    no bytes follow the last slot, as Redis does for the payload of RESTORE. All in one pass: fsck
    spends most of its time here.

    Args:
        may_be_dead: accept a node without live entries. We never write one; Redis 7.0 does.
    """
    node = read_header(data, ms, seq)
    elements: i64 = 0
    position: i64 = listpack.HEADER_SIZE
    end: i64 = node.end
    while position < node.first_slot:
        position = checked_step(data, position, end)
        elements += 1
    cursor = SlotCursor(node)
    ids = NodeIds()
    first_ms: i64 = 0
    first_seq: i64 = 0
    last_ms: i64 = 0
    last_seq: i64 = 0
    while cursor.next():
        elements += _check_slot(cursor)
        cursor.position = checked_step(data, cursor.position, end)
        if not cursor.flags & DELETED:
            if cursor.live == 1:
                first_ms = cursor.ms
                first_seq = cursor.seq
            last_ms = cursor.ms
            last_seq = cursor.seq
    if node.count == 0 and not may_be_dead:
        raise listpack.corrupt("the node has no live entries", listpack.HEADER_SIZE)
    stated = listpack.stated_count(data)
    if stated != listpack.UNKNOWN_COUNT and stated != elements:
        raise listpack.corrupt(f"num-elements is {int(stated)}, counted {int(elements)}", 4)
    ids.live = cursor.live
    ids.deleted = node.deleted
    ids.first_live = (unsigned(first_ms), unsigned(first_seq))
    ids.last_live = (unsigned(last_ms), unsigned(last_seq))
    ids.last_slot = cursor.id()
    return ids


def _check_slot(cursor: SlotCursor) -> i64:
    """Check the elements of a slot, go to its lp-count, and return how many it has with that."""
    data = cursor.data
    end: i64 = cursor.end
    start: i64 = cursor.start
    if cursor.width == 0:
        raise listpack.corrupt("an entry has no fields", start)
    elements: i64 = 1
    position: i64 = start
    while position < cursor.position:
        position = checked_step(data, position, end)
        elements += 1
    plain = cursor.flags & SAME_FIELDS == 0
    count: i64 = 2 * cursor.width if plain else cursor.width
    elements += count
    expected: i64 = 4 + count if plain else 3 + count
    while count > 0:
        position = checked_step(data, position, end)
        count -= 1
    cursor.position = position
    lp_count: i64 = cursor.integer()
    if lp_count != expected:
        raise listpack.corrupt(f"lp-count is {int(lp_count)}, expected {int(expected)}", start)
    cursor.position = position
    return elements


class Slot(NamedTuple):
    """A slot that was read from a damaged node."""

    ms: int
    seq: int
    deleted: bool
    pairs: list[bytes]


def read_until_damage(data: bytes, ms: int, seq: int) -> list[Slot]:
    """Return the slots of a damaged node up to the damage.

    Checks sizes, backlens, lp-counts and the order of IDs. Damage inside a value cannot be seen,
    because the only checksum covers the whole envelope.
    """
    slots: list[Slot] = []
    size: i64 = len(data)
    if size < listpack.HEADER_SIZE + 1:
        return slots
    whole = int(size).to_bytes(4, "little") + data[4 : size - 1] + b"\xff"
    try:
        node = read_header(whole, ms, seq)
        position: i64 = listpack.HEADER_SIZE
        while position < node.first_slot:
            position = checked_step(whole, position, node.end)
        cursor = SlotCursor(node)
        while cursor.next():
            fields: i64 = cursor.position
            _check_slot(cursor)
            cursor.position = fields
            found_ms, found_seq = cursor.id()
            dead = cursor.flags & DELETED != 0
            slots.append(Slot(found_ms, found_seq, dead, cursor.pairs()))
    except CorruptionError:
        pass
    return slots
