"""Erasing the contents of slots from a macro node.

A tombstone keeps the bytes of its entry. An erased slot becomes an *empty tombstone*: its ID, and
one field and one value of zero bytes. The slot keeps its place, so code that counts slots and
compares IDs (node limits, `~` trimming, the position of the next slot) treats an erased entry as
one that XDEL deleted.

The master entry contains the field names of the node's first entry. They are kept only if a slot
that keeps its contents uses them. Otherwise the master gets the names of the newest live slot, for
later entries, or one empty name. Erasing never makes a node larger.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from librt.strings import BytesWriter

from streamkeep.format.core.id_codec import subtract
from streamkeep.format.node.listpack import put_header, put_integer, put_string
from streamkeep.format.node.node import DELETED, SAME_FIELDS, NodeHeader, SlotCursor, read_header

_HEADER: Final = 6
_EMPTY_STRING: Final = b"\x80\x01"  # as an element, with its backlen
_EMPTY: Final = 1  # fields of an empty tombstone
_EMPTY_COUNT: Final = 6  # its elements before lp-count: flags, two differences, number, name, value


class Erased:
    """A node after the contents of some of its slots were erased.

    Attributes:
        data: the new listpack; the old one if nothing had to change.
        live, deleted: its counts.
        live_ids: IDs of the erased slots that were live before, ascending.
        slots: numbers of all erased slots, tombstones included.
        last: ID of the last slot: higher IDs are not in this node.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.live = 0
        self.deleted = 0
        self.live_ids: list[tuple[int, int]] = []
        self.slots: list[int] = []
        self.last = (0, 0)


class _Slot:
    """One slot of the node, and where its bytes are."""

    def __init__(self, cursor: SlotCursor) -> None:
        self.index = int(cursor.index)
        self.flags = int(cursor.flags)
        self.id = cursor.id()
        self.ms = cursor.ms
        self.seq = cursor.seq
        self.start = int(cursor.start)
        width = int(cursor.width)
        cursor.skip_fields()
        self.end = int(cursor.position)
        self.elements = 4 + width if self.flags & SAME_FIELDS else 5 + 2 * width


def erase_slots(
    data: bytes, ms: int, seq: int, ids: Container[tuple[int, int]], trimmed: Container[int]
) -> Erased:
    """Erase the contents of slots from the node `data` with the key `ms-seq`.

    Args:
        ids: IDs of the entries to erase; IDs that are not in the node are ignored. The field names
            in the master entry are checked in any case: they may come from an entry that is gone.
        trimmed: slots whose entries history still shows, unless they are erased now.

    Raises:
        CorruptionError: the node is damaged.
    """
    node = read_header(data, ms, seq)
    cursor = SlotCursor(node)
    slots: list[_Slot] = []
    names_used = False
    names: list[bytes] | None = None
    erased = Erased(data)
    emptied: set[int] = set()
    while cursor.next():
        to_erase = cursor.id() in ids
        if to_erase or (_is_empty_tombstone(cursor) and int(cursor.index) not in trimmed):
            emptied.add(int(cursor.index))
        else:
            names_used = names_used or bool(cursor.flags & SAME_FIELDS)
            if not cursor.flags & (DELETED | SAME_FIELDS):
                names = _peek_names(cursor)
        slot = _Slot(cursor)
        slots.append(slot)
        erased.last = slot.id
        if to_erase:
            erased.slots.append(slot.index)
            if not slot.flags & DELETED:
                erased.live_ids.append(slot.id)
    erased.live = int(node.count) - len(erased.live_ids)
    erased.deleted = int(node.deleted) + len(erased.live_ids)
    fields = node.fields if names_used else names if names is not None else [b""]
    if not erased.slots and (names_used or fields == node.fields or not node.fields):
        return erased
    rewritten = _assemble(node, slots, emptied, fields, erased)
    if len(rewritten) > len(data) and not names_used:
        rewritten = _assemble(node, slots, emptied, [b""], erased)
    if rewritten != data:
        erased.data = rewritten
    return erased


def emptied_ids(data: bytes, ms: int, seq: int, trimmed: Container[int]) -> set[tuple[int, int]]:
    """Return the IDs of the slots of a node that have no contents.

    Args:
        trimmed: slots whose entries history still shows. Their values may be empty.

    Returns:
        no IDs if the field names in the master entry may be all that is left of such a slot.
    """
    cursor = SlotCursor(read_header(data, ms, seq))
    found: set[tuple[int, int]] = set()
    while cursor.next():
        if _is_empty_tombstone(cursor) and int(cursor.index) not in trimmed:
            found.add(cursor.id())
        cursor.skip_fields()
    if found and erase_slots(data, ms, seq, (), trimmed).data is not data:
        return set()
    return found


def _is_empty_tombstone(cursor: SlotCursor) -> bool:
    """Return whether a slot is an empty tombstone, in one of the two forms."""
    if not cursor.flags & DELETED:
        return False
    start = cursor.position
    if cursor.flags & SAME_FIELDS:
        values = _EMPTY_STRING * int(cursor.width)
    elif int(cursor.width) == _EMPTY:
        values = _EMPTY_STRING * 2
    else:
        return False
    return bytes(cursor.data[start : start + len(values)]) == values


def _peek_names(cursor: SlotCursor) -> list[bytes]:
    """Return the field names that a slot contains, without moving the cursor."""
    position = cursor.position
    names = cursor.pairs()[0::2]
    cursor.position = position
    return names


def _assemble(
    node: NodeHeader, slots: list[_Slot], emptied: set[int], fields: list[bytes], erased: Erased
) -> bytes:
    """Return the node with these field names in the master and the slots in `emptied` empty."""
    body = BytesWriter()
    put_integer(body, erased.live)
    put_integer(body, erased.deleted)
    put_integer(body, len(fields))
    for name in fields:
        put_string(body, name)
    body.append(0)  # the integer that ends the master entry, and its backlen
    body.append(1)
    elements = 4 + len(fields)
    for slot in slots:
        if slot.index not in emptied:
            body.write(node.data[slot.start : slot.end])
            elements += slot.elements
            continue
        elements += _put_empty(body, node, slot, len(fields))
    writer = BytesWriter()
    content = body.getvalue()
    put_header(writer, _HEADER + len(content) + 1, elements)
    writer.write(content)
    writer.append(0xFF)
    return writer.getvalue()


def _put_empty(body: BytesWriter, node: NodeHeader, slot: _Slot, width: int) -> int:
    """Write an empty tombstone; return how many elements it has."""
    same = slot.flags & SAME_FIELDS and width <= 3  # up to 3 fields this form is not longer
    body.append(DELETED | SAME_FIELDS if same else DELETED)
    body.append(1)
    put_integer(body, subtract(slot.ms, node.ms))
    put_integer(body, subtract(slot.seq, node.seq))
    if same:
        for _ in range(width):
            put_string(body, b"")
        put_integer(body, 3 + width)
        return 4 + width
    put_integer(body, _EMPTY)
    put_string(body, b"")
    put_string(body, b"")
    put_integer(body, _EMPTY_COUNT)
    return _EMPTY_COUNT + 1
