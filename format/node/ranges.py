"""Which entries of a node a read wants: ranges of IDs, in either direction, and lists of IDs.

`read_range` reads one node; a caller goes on with the next until it returns False. A caller that
reads a node again and again, a little further each time, keeps the cursor: `read_slots` and
`resume_cursor`.

Compiled by mypyc; see `node` for the format and for the shapes of entries.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from streamkeep.format.core.entry import Entry, entry_size
from streamkeep.format.core.id_codec import below, bits, unsigned
from streamkeep.format.node.node import DELETED, RESP, NodeHeader, SlotCursor, read_header
from streamkeep.format.node.sent import Sender
from streamkeep.format.node.where import Where

MOST_SENT: Final[i64] = 64 << 20  # bytes of entries for a client of a server, which may not read


class Range:
    """The entries that a read asks for: IDs from `start` to `end`, both included, at most `limit`.

    `limit` counts down while entries are read. In the shape RESP, a read also ends when it has
    `room` bytes, and is `cut` if there are further entries. The first entry may have any size.
    In the shapes ENTRY and TEXT it ends with the entry with which they have `most_bytes`.
    """

    def __init__(
        self,
        start_ms: int,
        start_seq: int,
        end_ms: int,
        end_seq: int,
        limit: int,
        newest_first: bool,
        shape: int,
    ) -> None:
        self.start_ms = bits(start_ms)
        self.start_seq = bits(start_seq)
        self.end_ms = bits(end_ms)
        self.end_seq = bits(end_seq)
        self.limit: i64 = i64(limit)
        self.newest_first = newest_first
        self.shape: i64 = i64(shape)
        self.ids: list[tuple[int, int]] | None = None  # a list here receives the ID of each entry
        self.where: Where | None = None  # which of them are wanted; None for all
        self.sent = Sender() if self.shape == RESP else None  # receives them instead of a list
        self.room: i64 = MOST_SENT
        self.cut = False
        self.most_bytes: i64 = 0  # counts down as well; 0 for no limit

    def start(self) -> tuple[int, int]:
        return unsigned(self.start_ms), unsigned(self.start_seq)

    def end(self) -> tuple[int, int]:
        return unsigned(self.end_ms), unsigned(self.end_seq)

    def count_bytes(self, entry: object) -> None:
        """Count an entry against `most_bytes`; make it the last one if it reaches them."""
        assert isinstance(entry, Entry)
        self.most_bytes -= i64(entry_size(entry))
        if self.most_bytes <= 0:
            self.limit = 1


def read_range(data: bytes, ms: int, seq: int, wanted: Range, out: list[object]) -> bool:
    """Append to `out` the live entries of one node that are `wanted`, and lower its limit.

    In the shape RESP they go to `wanted.sent`.

    Returns:
        False if later nodes need not be read: the limit is reached, or the node has an ID outside
        of the range.
    """
    cursor = SlotCursor(read_header(data, ms, seq))
    if wanted.newest_first:
        return _read_backwards(cursor, wanted, out)
    return read_slots(cursor, wanted, out)


def read_slots(cursor: SlotCursor, wanted: Range, out: list[object]) -> bool:
    """As `read_range`, oldest first, from a cursor on, which is then after the last slot read."""
    shape = wanted.shape
    sent = wanted.sent
    start_ms = wanted.start_ms
    start_seq = wanted.start_seq
    end_ms = wanted.end_ms
    end_seq = wanted.end_seq
    ids = wanted.ids
    where = wanted.where
    while wanted.limit > 0:
        if sent is not None and ids is not None and sent.size() >= wanted.room:
            return False  # here, since the cursor may be kept: the next entry is not lost to it
        if not cursor.next():
            return True
        if below(end_ms, end_seq, cursor.ms, cursor.seq):
            return False
        if cursor.flags & DELETED or below(cursor.ms, cursor.seq, start_ms, start_seq):
            cursor.skip_fields()
            continue
        if where is not None and not where.examine(cursor):
            cursor.skip_fields()
            if where.left == 0:
                return False
            continue
        if ids is not None:
            ids.append(cursor.id())
        if sent is not None:
            if sent.size() >= wanted.room:
                wanted.cut = True
                return False
            sent.send(cursor)
            if where is None:
                more = sent.send_run(cursor, wanted.limit - 1, end_ms, end_seq, ids)
                wanted.limit -= more
        else:
            out.append(cursor.make(shape))
            if wanted.most_bytes > 0:
                wanted.count_bytes(out[-1])
        wanted.limit -= 1
        if where is not None and where.left == 0:
            return False
    return False


def resume_cursor(cursor: SlotCursor, data: bytes) -> SlotCursor | None:
    """Return a cursor at the same slot of a node to which entries were appended.

    Args:
        cursor: a cursor of the node before the appends.
        data: the node after the appends.

    Returns:
        None if the nodes differ before the cursor.
    """
    former = cursor.node
    if data is former.data or data == former.data:
        return cursor
    node = NodeHeader(data, unsigned(former.ms), unsigned(former.seq))
    position: i64 = cursor.position + node.after_count - former.after_count
    if position > node.end:
        return None
    if data[node.after_count : position] != former.data[former.after_count : cursor.position]:
        return None
    moved = SlotCursor(node)
    moved.position = position
    moved.index = cursor.index
    moved.live = cursor.live
    moved.ms = cursor.ms
    moved.seq = cursor.seq
    return moved


def _read_backwards(cursor: SlotCursor, wanted: Range, out: list[object]) -> bool:
    """As `read_range`, newest first: find the slots from the front, then read them backwards."""
    positions: list[int] = []
    indexes: list[int] = []
    passed_start = False
    where = wanted.where
    while cursor.next():
        if below(wanted.end_ms, wanted.end_seq, cursor.ms, cursor.seq):
            break
        if below(cursor.ms, cursor.seq, wanted.start_ms, wanted.start_seq):
            passed_start = True
        elif not cursor.flags & DELETED:
            positions.append(int(cursor.start))
            indexes.append(int(cursor.index))
        cursor.skip_fields()
    sent = wanted.sent
    while positions and wanted.limit > 0:
        if sent is not None and sent.size() >= wanted.room:
            wanted.cut = True
            return False
        cursor.at(i64(positions.pop()), i64(indexes.pop()))
        if where is None or where.examine(cursor):
            if sent is not None:
                sent.send(cursor)
            else:
                out.append(cursor.make(wanted.shape))
                if wanted.most_bytes > 0:
                    wanted.count_bytes(out[-1])
            wanted.limit -= 1
        if where is not None and where.left == 0:
            return False
    return wanted.limit > 0 and not passed_start


def has_live(data: bytes, ms: int, seq: int, wanted_ms: int, wanted_seq: int) -> bool:
    """Return whether the node contains the entry `wanted_ms-wanted_seq`, live."""
    cursor = SlotCursor(read_header(data, ms, seq))
    target_ms = bits(wanted_ms)
    target_seq = bits(wanted_seq)
    while cursor.next():
        if not below(cursor.ms, cursor.seq, target_ms, target_seq):
            return (
                cursor.ms == target_ms and cursor.seq == target_seq and not cursor.flags & DELETED
            )
        cursor.skip_fields()
    return False


def find_entries(
    data: bytes,
    ms: int,
    seq: int,
    ids: list[tuple[int, int]],
    start: int,
    shape: int,
    found: dict[tuple[int, int], object],
) -> int:
    """Add to `found` the live entries of a node whose IDs are in `ids[start:]`.

    Args:
        ids: ascending, without duplicates.
        shape: shape of the entries; -1 stores True instead of the entry.

    Returns:
        The number of IDs, from `start` on, that cannot be in a later node; at least 1.
    """
    cursor = SlotCursor(read_header(data, ms, seq))
    index: i64 = i64(start)
    total: i64 = len(ids)
    made: i64 = i64(shape)
    while index < total and cursor.next():
        wanted = ids[index]
        wanted_ms = bits(wanted[0])
        wanted_seq = bits(wanted[1])
        while below(wanted_ms, wanted_seq, cursor.ms, cursor.seq):
            index += 1
            if index == total:
                return int(index) - start
            wanted = ids[index]
            wanted_ms = bits(wanted[0])
            wanted_seq = bits(wanted[1])
        if cursor.ms == wanted_ms and cursor.seq == wanted_seq:
            index += 1
            if cursor.flags & DELETED == 0:
                if made >= 0:
                    found[wanted] = cursor.make(made)
                    continue
                found[wanted] = True
        cursor.skip_fields()
    return max(1, int(index) - start)
