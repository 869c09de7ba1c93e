"""Reading macro nodes: many entries in one Redis listpack, the value of a stream's radix tree.

    master entry :  count  deleted  num-fields  field_1 .. field_N  0
    entry (same) :  flags  ms-diff  seq-diff  value_1 .. value_N  lp-count
    entry (other):  flags  ms-diff  seq-diff  num-fields  f_1 v_1 .. f_M v_M  lp-count

The node's key is the ID of the first entry that was ever in it. Entry IDs are stored as signed
64-bit differences from the key, modulo 2^64. `count` is the number of live entries, `deleted` of
tombstones. The master entry names the fields of the first entry; an entry with exactly these names
in this order omits them (flag 2). Flag 1 marks a tombstone, whose bytes remain. lp-count is the
number of elements of its entry; for the master entry it is 0.

Always true: IDs ascend from slot to slot; no ID is below the key; count + deleted slots follow the
master entry; count is at least 1. A *slot* is the place of an entry in the node, live or not; slots
are numbered from 0.

`builder` writes nodes, `tombstones` and `erase` change slots, `check` checks every byte. The
functions here check the bytes that they read and raise `CorruptionError`.

Compiled by mypyc. Functions take and return IDs as Python integers; inside they are bit patterns,
see `id_codec`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mypy_extensions import i64

from streamkeep.format.core.entry import Entry, fields_of
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import add, below, bits, id_text, unsigned
from streamkeep.format.node import listpack

DELETED: Final[i64] = 1
SAME_FIELDS: Final[i64] = 2

# Shapes in which `read_range` returns an entry.
PAIRS: Final[i64] = 0  # (ms, seq, [field, value, ...]), without loss
ENTRY: Final[i64] = 1  # Entry(b"ms-seq", {field: value}), as redis-py without decode_responses
TEXT: Final[i64] = 2  # the same in str
RESP: Final[i64] = 3  # bytes of Redis's protocol, all entries together: see `sent`

_NEGATIVE: Final = "a count of the master entry is negative"

# Final, so that a compiled module need not look them up by name for each entry.
_new_tuple: Final[Any] = tuple.__new__
_Entry: Final[Any] = Entry

Pairs = tuple[int, int, list[bytes]]


class NodeHeader:
    """The master entry of a node, and the offsets of its parts."""

    def __init__(self, data: bytes, ms: int, seq: int) -> None:
        """Parse the master entry of the listpack `data` under the key `ms-seq`."""
        reader = listpack.open_elements(data)
        self.data = data
        self.ms = bits(ms)
        self.seq = bits(seq)
        self.end: i64 = reader.end
        self.count: i64 = reader.integer()
        self.after_count: i64 = reader.position
        self.deleted: i64 = reader.integer()
        self.after_deleted: i64 = reader.position
        width = reader.integer()
        if self.count < 0 or self.deleted < 0 or width < 0:
            raise listpack.corrupt(_NEGATIVE, listpack.HEADER_SIZE)
        fields: list[bytes] = []
        index: i64 = 0
        while index < width:
            fields.append(reader.string())
            index += 1
        self.fields = fields
        if reader.integer() != 0:
            raise listpack.corrupt("the master entry does not end with 0", reader.position)
        self.first_slot: i64 = reader.position


def read_header(data: bytes, ms: int, seq: int) -> NodeHeader:
    """Parse the master entry of the node `data` under the key `ms-seq`."""
    return NodeHeader(data, ms, seq)


def peek_counts(start: bytes) -> tuple[int, int]:
    """Return (live, tombstones) from the first bytes of a node; 26 bytes are always enough."""
    reader = listpack.Reader(start, listpack.HEADER_SIZE, len(start))
    count = reader.integer()
    deleted = reader.integer()
    if count < 0 or deleted < 0:
        raise listpack.corrupt(_NEGATIVE, listpack.HEADER_SIZE)
    return int(count), int(deleted)


def _wrong_counts(node: NodeHeader, live: i64, slots: i64) -> CorruptionError:
    """Return the error for a master entry whose counts differ from the slots found."""
    where = id_text(unsigned(node.ms), unsigned(node.seq)).decode()
    stated = f"{int(node.count)} live and {int(node.deleted)} deleted slots"
    found = f"found {int(live)} and {int(slots - live)}"
    problem = f"the master entry counts {stated}, {found}"
    return CorruptionError(f"macro node {where}", problem, offset=int(listpack.HEADER_SIZE))


class SlotCursor(listpack.Reader):
    """Steps through the slots of a node: `next`, then exactly one of `pairs`, `mapping`, `skip`.

    IDs that do not ascend are damage: a range that trusted them would end early or be out of order.
    So are slots that are not as many as the master entry counts, when all of them have been read.
    """

    def __init__(self, node: NodeHeader) -> None:
        super().__init__(node.data, node.first_slot, node.end)
        self.node = node
        self.base_ms = node.ms
        self.base_seq = node.seq
        self.names = node.fields
        self.same_width: i64 = len(node.fields)
        self.index: i64 = -1  # number of the slot
        self.live: i64 = 0  # how many of the slots up to this one are live
        self.start: i64 = 0  # offset of its flags
        self.flags: i64 = 0
        self.ms = node.ms  # its ID, as bit patterns; before the first slot, the key of the node
        self.seq = node.seq
        self.width: i64 = 0  # how many fields it has
        self.seconds: i64 = -1  # of the ID whose text was made last
        self.seconds_text = b""

    def next(self) -> bool:
        """Read flags and ID of the next slot; False at the end of the node."""
        start = self.position
        data = self.data
        end = self.end
        if start >= end:
            node = self.node
            if self.live != node.count or self.index + 1 - self.live != node.deleted:
                raise _wrong_counts(node, self.live, self.index + 1)
            return False
        self.start = start
        self.index += 1
        flags: i64 = i64(data[start])
        if flags > 3 or start + 1 >= end:  # one byte, in which `tombstones.mark` can set a bit
            raise listpack.corrupt(f"entry flags are {int(flags)}, expected 0 to 3", start)
        self.flags = flags
        self.live += 1 - (flags & DELETED)
        position: i64 = listpack.step(data, start + 2, end)
        ms = add(self.base_ms, listpack.integer_at(data, start + 2))
        self.position = listpack.step(data, position, end)
        seq = add(self.base_seq, listpack.integer_at(data, position))
        if not below(self.ms, self.seq, ms, seq) and not (
            self.index == 0 and ms == self.ms and seq == self.seq
        ):
            where = id_text(unsigned(ms), unsigned(seq)).decode()
            raise listpack.corrupt(f"ID {where} is out of order", start)
        self.ms = ms
        self.seq = seq
        if flags & SAME_FIELDS:
            self.width = self.same_width
        else:
            self.width = self.integer()
            if not 0 <= self.width < end:  # twice of a larger one may be no i64
                raise listpack.corrupt(f"the number of fields is {int(self.width)}", self.start)
        return True

    def at(self, position: i64, index: i64) -> None:
        """Go to the slot `index`, which starts at `position`, and read its flags and ID.

        `live` is wrong from then on, so the cursor must not step to the end of the node.
        """
        self.position = position
        self.index = index - 1
        self.ms = self.base_ms
        self.seq = self.base_seq
        self.next()

    def skip_fields(self) -> None:
        """Step over the fields and the lp-count of this slot."""
        count: i64 = self.width if self.flags & SAME_FIELDS else 2 * self.width
        data = self.data
        end = self.end
        position = self.position
        while count >= 0:
            position = listpack.step(data, position, end)
            count -= 1
        self.position = position

    def pairs(self) -> list[bytes]:
        """Return field, value, field, value, ... and step to the end of the slot."""
        flat: list[bytes] = []
        if self.flags & SAME_FIELDS:
            for name in self.names:
                flat.append(name)
                flat.append(self.string())
        else:
            count: i64 = 2 * self.width
            while count > 0:
                flat.append(self.string())
                count -= 1
        self.skip()
        return flat

    def mapping(self) -> dict[bytes, bytes]:
        """Return {field: value}, the last value of repeated fields; step to the slot's end."""
        fields: dict[bytes, bytes] = {}
        if self.flags & SAME_FIELDS:
            for name in self.names:
                fields[name] = self.string()
        else:
            count: i64 = self.width
            while count > 0:
                name = self.string()
                fields[name] = self.string()
                count -= 1
        self.skip()
        return fields

    def id_text(self) -> bytes:
        if self.ms < 0 or self.seq < 0:  # bit patterns of numbers above 2^63-1
            return id_text(unsigned(self.ms), unsigned(self.seq))
        scratch = self.scratch
        seconds = self.ms // 1000
        if seconds != self.seconds:  # often the same for a whole node
            scratch.truncate(0)
            listpack.put_decimal(scratch, seconds)
            self.seconds = seconds
            self.seconds_text = scratch.getvalue()
        scratch.truncate(0)
        if seconds > 0:
            scratch.write(self.seconds_text)
            listpack.put_digits(scratch, self.ms % 1000, 1000)
        else:
            listpack.put_decimal(scratch, self.ms)
        scratch.append(45)
        listpack.put_decimal(scratch, self.seq)
        return scratch.getvalue()

    def id(self) -> tuple[int, int]:
        return unsigned(self.ms), unsigned(self.seq)

    def make(self, shape: i64) -> object:
        """Return the entry of this slot in one of the shapes; step to the slot's end."""
        if shape == PAIRS:
            return (unsigned(self.ms), unsigned(self.seq), self.pairs())
        place = self.position
        fields = self.mapping()
        if i64(len(fields)) != self.width:  # a field is repeated
            self.position = place
            return self._make_repeated(shape)
        if shape == ENTRY:
            return _new_tuple(_Entry, (self.id_text(), fields))
        text: dict[str, str] = {}
        for name, value in fields.items():
            text[name.decode()] = value.decode()
        return _new_tuple(_Entry, (self.id_text().decode(), text))

    def _make_repeated(self, shape: i64) -> object:
        """As `make`, for an entry in which a field is repeated."""
        flat = self.pairs()
        if shape == ENTRY:
            return _new_tuple(_Entry, (self.id_text(), fields_of(flat)))
        text = [one.decode() for one in flat]
        return _new_tuple(_Entry, (self.id_text().decode(), fields_of(text)))


class NodeIds:
    """Counts of a node, and its first live, last live and last ID (live or not)."""

    def __init__(self) -> None:
        self.live: i64 = 0
        self.deleted: i64 = 0
        self.first_live = (0, 0)
        self.last_live = (0, 0)
        self.last_slot = (0, 0)


def end_ids(data: bytes, ms: int, seq: int) -> NodeIds:
    """Return the counts of a node and its first and last IDs."""
    ids = NodeIds()
    cursor = SlotCursor(read_header(data, ms, seq))
    while cursor.next():
        ids.last_slot = cursor.id()
        if cursor.flags & DELETED:
            ids.deleted += 1
        else:
            if ids.live == 0:
                ids.first_live = ids.last_slot
            ids.last_live = ids.last_slot
            ids.live += 1
        cursor.skip_fields()
    return ids


def live_ids(data: bytes, ms: int, seq: int) -> list[tuple[int, int]]:
    """Return the IDs of the live entries of a node."""
    cursor = SlotCursor(read_header(data, ms, seq))
    ids: list[tuple[int, int]] = []
    while cursor.next():
        if not cursor.flags & DELETED:
            ids.append(cursor.id())
        cursor.skip_fields()
    return ids


def tombstone_slots(data: bytes, ms: int, seq: int) -> set[int]:
    """Return the numbers of the slots that are tombstones."""
    cursor = SlotCursor(read_header(data, ms, seq))
    slots: set[int] = set()
    while cursor.next():
        if cursor.flags & DELETED:
            slots.add(int(cursor.index))
        cursor.skip_fields()
    return slots


def slots(data: bytes, ms: int, seq: int) -> Iterator[tuple[int, int, int, list[bytes]]]:
    """Yield every slot of a node, tombstones included: ms, seq, flags, [field, value, ...]."""
    cursor = SlotCursor(read_header(data, ms, seq))
    while cursor.next():
        slot_ms, slot_seq = cursor.id()
        yield slot_ms, slot_seq, int(cursor.flags), cursor.pairs()
