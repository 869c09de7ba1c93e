"""Tombstones of a node: marking slots, removing tombstones, and the node's history form.

A deletion or an exact trim sets a flag and changes two counts. The bytes of the entry remain until
the node is rewritten or removed. The envelope records which tombstones were trimmed, not deleted.
Compiled by mypyc.
"""

from __future__ import annotations

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from streamkeep.format.core.id_codec import below, bits
from streamkeep.format.node import listpack
from streamkeep.format.node.builder import assemble
from streamkeep.format.node.node import DELETED, SAME_FIELDS, NodeHeader, SlotCursor, read_header


class Marked:
    """A node after some of its slots became tombstones.

    Attributes:
        data: the new listpack.
        live, deleted: its counts.
        ids: IDs of the marked slots, ascending.
        slots: numbers of the marked slots.
        consumed: how many of the requested IDs need not be looked for in later nodes (`mark` only).
    """

    def __init__(
        self, data: bytes, live: int, deleted: int, ids: list[tuple[int, int]], slots: list[int]
    ) -> None:
        self.consumed = 0
        self.data = data
        self.live = live
        self.deleted = deleted
        self.ids = ids
        self.slots = slots


def mark(data: bytes, ms: int, seq: int, ids: list[tuple[int, int]], start: int) -> Marked:
    """Mark as tombstones the live entries of a node whose IDs are in `ids[start:]`.

    Args:
        ids: ascending, without duplicates. `consumed` of the result is the number of them, from
            `start` on, that cannot be in a later node; it is at least 1.
    """
    node = read_header(data, ms, seq)
    cursor = SlotCursor(node)
    found: list[tuple[int, int]] = []
    slots: list[int] = []
    positions: list[int] = []
    index: i64 = i64(start)
    total: i64 = len(ids)
    wanted = ids[start]
    wanted_ms = bits(wanted[0])
    wanted_seq = bits(wanted[1])
    while index < total and cursor.next():
        while index < total and below(wanted_ms, wanted_seq, cursor.ms, cursor.seq):
            index += 1
            if index < total:
                wanted = ids[index]
                wanted_ms = bits(wanted[0])
                wanted_seq = bits(wanted[1])
        same = cursor.ms == wanted_ms and cursor.seq == wanted_seq
        if index < total and same and not cursor.flags & DELETED:
            found.append(wanted)
            slots.append(int(cursor.index))
            positions.append(int(cursor.start))
        cursor.skip_fields()
    # `consumed` may leave out an ID that equals the last slot: the caller looks for it once more in
    # the next node and does not find it.
    marked = _marked(node, found, slots, positions)
    marked.consumed = max(1, int(index) - start)
    return marked


def mark_oldest(
    data: bytes,
    ms: int,
    seq: int,
    budget: int,
    last_ms: int,
    last_seq: int,
    kept: set[tuple[int, int]],
) -> Marked:
    """Mark the oldest live entries of a node as tombstones, for exact trimming.

    Args:
        budget: maximum number of entries to mark.
        last_ms, last_seq: the highest ID to mark.
        kept: IDs that are skipped and stay live.
    """
    node = read_header(data, ms, seq)
    cursor = SlotCursor(node)
    found: list[tuple[int, int]] = []
    slots: list[int] = []
    positions: list[int] = []
    left: i64 = i64(budget)
    stop_ms = bits(last_ms)
    stop_seq = bits(last_seq)
    while left > 0 and cursor.next():
        if below(stop_ms, stop_seq, cursor.ms, cursor.seq):
            break
        if not cursor.flags & DELETED and (not kept or cursor.id() not in kept):
            found.append(cursor.id())
            slots.append(int(cursor.index))
            positions.append(int(cursor.start))
            left -= 1
        cursor.skip_fields()
    return _marked(node, found, slots, positions)


def _marked(
    node: NodeHeader, ids: list[tuple[int, int]], slots: list[int], positions: list[int]
) -> Marked:
    """Set the tombstone flag of the slots at `positions` and both counts."""
    number: i64 = len(positions)
    live: i64 = node.count - number
    deleted: i64 = node.deleted + number
    if live < 0:
        problem = f"count is {int(node.count)}, found at least {int(number)} live slots"
        raise listpack.corrupt(problem, listpack.HEADER_SIZE)
    if number == 0:
        return Marked(node.data, int(live), int(deleted), ids, slots)
    body = BytesWriter()
    listpack.put_integer(body, deleted)
    shift: i64 = len(body) - node.after_deleted
    body.write(node.data[node.after_deleted : node.end])
    for position in positions:  # flags 0 to 3 always take one byte, so the size does not change
        at: i64 = i64(position) + shift
        body[at] = body[at] | u8(1)
    data = assemble(live, body.getvalue(), listpack.stated_count(node.data))
    return Marked(data, int(live), int(deleted), ids, slots)


class Rewritten:
    """A node after tombstones were removed; `kept` has the old numbers of the remaining slots."""

    def __init__(self, data: bytes, kept: list[int]) -> None:
        self.data = data
        self.kept = kept


def rewrite(data: bytes, ms: int, seq: int, keep: set[int]) -> Rewritten:
    """Remove the tombstones from a node, except the slot numbers in `keep`.

    The key and the master entry do not change.
    """
    node = read_header(data, ms, seq)
    cursor = SlotCursor(node)
    body = BytesWriter()
    elements: i64 = 4 + len(node.fields)
    live: i64 = 0
    deleted: i64 = 0
    kept: list[int] = []
    while cursor.next():
        start: i64 = cursor.start
        cursor.skip_fields()
        dead = cursor.flags & DELETED != 0
        if dead and int(cursor.index) not in keep:
            continue
        body.write(data[start : cursor.position])
        kept.append(int(cursor.index))
        elements += 4 + cursor.width if cursor.flags & SAME_FIELDS else 5 + 2 * cursor.width
        if dead:
            deleted += 1
        else:
            live += 1
    head = BytesWriter()
    listpack.put_integer(head, deleted)
    head.write(data[node.after_deleted : node.first_slot])
    head.write(body.getvalue())
    return Rewritten(assemble(live, head.getvalue(), elements), kept)


def history_form(data: bytes, ms: int, seq: int, trimmed: bytes) -> bytes:
    """Return a node as history shows it: its live and its trimmed slots, all marked as live.

    History includes trimmed entries and excludes deleted ones. The key of the node does not
    change. Most nodes have no tombstones and are returned unchanged.

    Args:
        trimmed: the bitmap of trimmed slots in the node's envelope.

    Returns:
        The listpack; b"" if all slots were deleted.
    """
    master = listpack.open_elements(data)
    master.skip()
    if master.integer() == 0:
        return data
    node = read_header(data, ms, seq)
    cursor = SlotCursor(node)
    body = BytesWriter()
    elements: i64 = 4 + len(node.fields)
    count: i64 = 0
    bits_known: i64 = 8 * i64(len(trimmed))
    while cursor.next():
        start: i64 = cursor.start
        index: i64 = cursor.index
        cursor.skip_fields()
        if cursor.flags & DELETED and (
            index >= bits_known or not i64(trimmed[index // 8]) >> (index % 8) & 1
        ):
            continue
        body.append(u8(cursor.flags & SAME_FIELDS))
        body.write(data[start + 1 : cursor.position])
        elements += 4 + cursor.width if cursor.flags & SAME_FIELDS else 5 + 2 * cursor.width
        count += 1
    if count == 0:
        return b""
    head = BytesWriter()
    listpack.put_integer(head, 0)
    head.write(data[node.after_deleted : node.first_slot])
    head.write(body.getvalue())
    return assemble(count, head.getvalue(), elements)
