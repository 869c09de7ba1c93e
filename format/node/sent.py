"""Entries of a node as bytes of Redis's protocol: what a range of a server's reply is made of.

    *2 CRLF  $18 CRLF  1718004800000-1234 CRLF
             *4 CRLF  $5 CRLF field CRLF  $5 CRLF value CRLF  ...

Neighbours share much of it: the time of their IDs, the field names of their node. These bytes are
made once. No object is made for an entry, or for a short string of it.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i16_le
from mypy_extensions import i64

from streamkeep.format.core.id_codec import add, below
from streamkeep.format.node.listpack import element_size, integer_at, put_decimal, put_text, step
from streamkeep.format.node.node import SAME_FIELDS, SlotCursor

_SHORT: Final[i64] = 512
_HEADS: Final[list[bytes]] = [b"$%d\r\n" % size for size in range(512)]  # of strings, by length
_CRLF: Final = 0x0A0D  # as two bytes, the lower one first
_MOST_KNOWN: Final[i64] = 32  # fields of a node whose heads are kept


class Sender:
    """Takes the entries of a reply, one after the other."""

    def __init__(self) -> None:
        self._out = BytesWriter()
        self._ms: i64 = -1  # the time of the newest entry
        self._digits: i64 = 0  # of its sequence number
        self._head = b""  # what its ID begins with; empty before a second entry has the same
        self._names: list[bytes] = []  # the fields of the node
        self._before: list[bytes] = []  # for each: what comes between two values, but the length
        self._heads: list[bytes] = []  # the same and the length; 64 for each field, b"" if not made

    def data(self) -> bytes:
        return self._out.getvalue()

    def size(self) -> i64:
        return len(self._out)

    def send(self, cursor: SlotCursor) -> None:
        """Append the entry of a cursor's slot; step to the slot's end."""
        out = self._out
        self._put_id(cursor)
        if cursor.flags & SAME_FIELDS and cursor.same_width > 0:
            if cursor.names is not self._names:
                self._take_names(cursor.names)
            if cursor.same_width <= _MOST_KNOWN:
                cursor.position = self._put_values(cursor.data, cursor.position, cursor.end)
            else:
                for before in self._before:
                    out.write(before)
                    _put_string(out, cursor)
        else:
            count: i64 = 2 * cursor.width
            out.write(b"\r\n*")
            put_decimal(out, count)
            while count > 0:
                write_i16_le(out, _CRLF)
                _put_string(out, cursor)
                count -= 1
        write_i16_le(out, _CRLF)
        cursor.skip()

    def _take_names(self, names: list[bytes]) -> None:
        """Note the fields of another node, which mostly are the same."""
        if names != self._names:
            before = [b"\r\n$%d\r\n%b\r\n" % (len(name), name) for name in names]
            before[0] = b"\r\n*%d%b" % (2 * len(names), before[0])
            self._before = before
            self._heads = [b""] * (64 * min(len(names), int(_MOST_KNOWN)))
        self._names = names

    def send_run(
        self,
        cursor: SlotCursor,
        limit: i64,
        end_ms: i64,
        end_seq: i64,
        ids: list[tuple[int, int]] | None,
    ) -> i64:
        """Append the slots after the newest entry, up to the first one that is not usual.

        Usual are live slots with the fields of the node and rising IDs below 2^63. The cursor is
        then after the last slot that was sent.

        Args:
            limit: the most that are sent.
            end_ms, end_seq: the bit patterns of the highest ID.
            ids: receives their IDs.

        Returns:
            The number of entries.
        """
        if cursor.names is not self._names or cursor.same_width > _MOST_KNOWN:
            return 0
        out = self._out
        data = cursor.data
        end = cursor.end
        base_ms = cursor.base_ms
        base_seq = cursor.base_seq
        position = cursor.position
        last_ms = cursor.ms
        last_seq = cursor.seq
        count: i64 = 0
        while count < limit and position + 2 < end and i64(data[position]) == SAME_FIELDS:
            at: i64 = step(data, position + 2, end)
            ms = add(base_ms, integer_at(data, position + 2))
            seq = add(base_seq, integer_at(data, at))
            if ms < 0 or seq < 0 or (end_ms >= 0 and ms > end_ms):
                break
            if ms == end_ms and end_seq >= 0 and seq > end_seq:
                break
            if not below(last_ms, last_seq, ms, seq):
                break  # a damaged node: the cursor says so when it steps there
            last_ms = ms
            last_seq = seq
            self._put_usual_id(ms, seq)
            if ids is not None:
                ids.append((int(ms), int(seq)))
            position = self._put_values(data, step(data, at, end), end)
            write_i16_le(out, _CRLF)
            position = step(data, position, end)
            count += 1
        cursor.position = position
        cursor.index += count
        cursor.live += count
        cursor.ms = last_ms
        cursor.seq = last_seq
        return count

    def _put_values(self, data: bytes, position: i64, end: i64) -> i64:
        """Append fields and values of an entry that has the fields of its node.

        Returns:
            The offset after its last value.
        """
        out = self._out
        heads = self._heads
        stop: i64 = len(heads)
        at: i64 = 0
        while at < stop:
            after = step(data, position, end)
            first: i64 = i64(data[position])
            size: i64 = first & 63
            value: i64 = 0
            is_text = 0x80 <= first < 0xC0
            if not is_text:
                if 0xE0 <= first <= 0xF0 or first > 0xF3:  # a long string, an integer of 64 bits
                    out.write(self._before[at // 64])
                    _put_long(out, data, position)
                    position = after
                    at += 64
                    continue
                value = integer_at(data, position)
                size = _digits(value) if value >= 0 else _digits(-value) + 1
            head = heads[at + size]
            if not head:
                head = self._before[at // 64] + _HEADS[size]
                heads[at + size] = head
            out.write(head)
            if is_text:
                put_text(out, data, position)
            else:
                put_decimal(out, value)
            position = after
            at += 64
        return position

    def _put_id(self, cursor: SlotCursor) -> None:
        """Append the ID, without its last CRLF."""
        out = self._out
        ms = cursor.ms
        seq = cursor.seq
        if ms < 0 or seq < 0:  # bit patterns of numbers above 2^63-1
            text = cursor.id_text()
            out.write(b"*2\r\n")
            out.write(_HEADS[len(text)])
            out.write(text)
        else:
            self._put_usual_id(ms, seq)

    def _put_usual_id(self, ms: i64, seq: i64) -> None:
        """Append an ID of numbers below 2^63, without its last CRLF."""
        out = self._out
        digits = _digits(seq)
        if ms != self._ms or digits != self._digits:
            self._ms = ms
            self._digits = digits
            self._head = b""
            out.write(b"*2\r\n")
            out.write(_HEADS[_digits(ms) + 1 + digits])
            put_decimal(out, ms)
            out.append(45)
        else:
            if not self._head:
                size = _digits(ms) + 1 + digits
                self._head = b"*2\r\n$%d\r\n%d-" % (int(size), int(ms))
            out.write(self._head)
        put_decimal(out, seq)


def _digits(number: i64) -> i64:
    """Return how many digits a number has that is not negative."""
    count: i64 = 1
    while number >= 1000:
        number //= 1000
        count += 3
    return count + (2 if number >= 100 else 1 if number >= 10 else 0)


def _put_long(out: BytesWriter, data: bytes, position: i64) -> None:
    """Append a long string, or an integer of 64 bits; the caller must have called `step` on it."""
    first: i64 = i64(data[position])
    if first > 0xF3:
        _put_bulk(out, b"%d" % int(integer_at(data, position)))
        return
    start: i64 = position + (2 if first < 0xF0 else 5)
    _put_bulk(out, data[start : position + element_size(data, position, len(data))])


def _put_string(out: BytesWriter, cursor: SlotCursor) -> None:
    """Append the next element as a bulk string without its last CRLF."""
    data = cursor.data
    position = cursor.position
    end = cursor.end
    if position < end:
        first: i64 = i64(data[position])
        if 0x80 <= first < 0xC0:
            cursor.position = step(data, position, end)
            out.write(_HEADS[first & 63])
            put_text(out, data, position)
            return
    _put_bulk(out, cursor.string())


def _put_bulk(out: BytesWriter, text: bytes) -> None:
    """Append a bulk string without its last CRLF."""
    size: i64 = len(text)
    if size < _SHORT:
        out.write(_HEADS[size])
    else:
        out.write(b"$%d\r\n" % int(size))
    out.write(text)
