"""Columns: flat buffers of one type, filled with listpack elements by `columns`.

    buffer    content
    --------  ------------------------------------------------------------------------------------
    offsets   i32 little-endian, entries + 1 of them: where each text begins in `values`
    values    the bytes of all texts
    numbers   i64 little-endian, one per entry
    marks     a byte per entry, 1 for an exception; empty if there is no exception

A column takes the elements of a whole node in one call. The caller passes their *places*: offsets
in the listpack that one walk through the node found, or ABSENT for an entry without the element.
So only the elements of requested columns are decoded, each column is filled in one loop over
machine numbers, and no value becomes a Python object.

A number column takes integer elements directly. Other elements (text, or absent) go to a text
column beside the numbers, and their entries are marked.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from librt.vecs import vec
from mypy_extensions import i32, i64

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.listpack import integer_at, is_integer_at, put_text

ABSENT: Final[i64] = -1
MAX_BUFFER: Final[i64] = (1 << 31) - 1


class Marks:
    """A byte per entry, 1 for an exception; empty until the first exception."""

    def __init__(self) -> None:
        self.writer = BytesWriter()

    def put(self, entry: i64) -> None:
        """Mark an entry, whose number must be above those marked before."""
        self._fill(entry)
        self.writer.append(1)

    def _fill(self, entries: i64) -> None:
        writer = self.writer
        count: i64 = len(writer)
        while count < entries:
            writer.append(0)
            count += 1

    def buffer(self, entries: i64) -> bytes:
        """Return the marks of `entries` entries; empty if none is marked."""
        if len(self.writer):
            self._fill(entries)
        return self.writer.getvalue()


class TextColumn:
    """Elements as text: strings as they are, integers in decimal."""

    def __init__(self) -> None:
        self.entries: i64 = 0
        self.offsets = BytesWriter()
        self.values = BytesWriter()
        self.missing = Marks()
        write_i32_le(self.offsets, 0)

    def take(self, data: bytes, places: vec[i64], first: i64, step: i64, count: i64) -> None:
        """Append `count` elements of the listpack `data` from `places[first::step]`."""
        offsets = self.offsets
        values = self.values
        size: i64 = len(values)
        entry: i64 = self.entries
        at: i64 = first
        stop: i64 = first + step * count
        while at < stop:
            place = places[at]
            if place >= 0:
                put_text(values, data, place)
                size = len(values)
                if size > MAX_BUFFER:
                    problem = f"an entry makes it {int(size)} bytes long, more than 2 GiB"
                    raise CorruptionError("column", problem)
            else:
                self.missing.put(entry)
            write_i32_le(offsets, i32(size))
            entry += 1
            at += step
        self.entries = entry

    def buffers(self) -> tuple[bytes, bytes, bytes]:
        """Return offsets, values, and the marks of entries without the element."""
        return (self.offsets.getvalue(), self.values.getvalue(), self.missing.buffer(self.entries))


class NumberColumn:
    """Elements as signed 64-bit numbers; those that are not integers as text."""

    def __init__(self) -> None:
        self.entries: i64 = 0
        self.numbers = BytesWriter()
        self.others = Marks()
        self.texts = TextColumn()  # of the marked entries only
        self.other_places: vec[i64] = vec[i64]([])

    def take(self, data: bytes, places: vec[i64], first: i64, step: i64, count: i64) -> None:
        """Append `count` elements of the listpack `data` from `places[first::step]`."""
        numbers = self.numbers
        if count > len(self.other_places):
            self.other_places = with_room(self.other_places, count)
        other_places = self.other_places
        others: i64 = 0
        entry: i64 = self.entries
        at: i64 = first
        stop: i64 = first + step * count
        while at < stop:
            place = places[at]
            if place >= 0 and is_integer_at(data, place):
                write_i64_le(numbers, integer_at(data, place))
            else:
                write_i64_le(numbers, 0)
                self.others.put(entry)
                other_places[others] = place
                others += 1
            entry += 1
            at += step
        self.entries = entry
        if others:
            self.texts.take(data, other_places, 0, 1, others)

    def buffers(self) -> tuple[bytes, bytes]:
        """Return the numbers, and the marks of entries whose value is in `texts` instead."""
        return self.numbers.getvalue(), self.others.buffer(self.entries)


def with_room(places: vec[i64], needed: i64) -> vec[i64]:
    """Return `places`, or a copy that is long enough for `needed` places."""
    count: i64 = len(places)
    if count >= needed:
        return places
    longer = vec[i64]([ABSENT] * int(2 * needed))
    at: i64 = 0
    while at < count:
        longer[at] = places[at]
        at += 1
    return longer
