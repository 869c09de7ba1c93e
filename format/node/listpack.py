"""Reading and writing listpacks, Redis's serialization of small lists (Redis: `listpack.c`).

    offset  size  field         value
    ------  ----  ------------  ---------------------------------------------------------
         0     4  total-bytes   u32 little-endian; the whole listpack, header and end included
         4     2  num-elements  u16 little-endian; 65535 means "unknown, count them"
         6     .  elements      each: encoding byte, data, backlen
         .     1  end           FF

    first byte         data                    value
    -----------------  ----------------------  -------------------------------------------
    0xxxxxxx           none                    integer 0..127
    10llllll           l bytes                 string of 0..63 bytes
    110xxxxx           1 byte                  integer of 13 bits, two's complement
    1110llll           1 byte, then l bytes    string of 64..4095 bytes (12-bit length)
    F0                 u32 LE, then l bytes    string of 4096 bytes and more
    F1 F2 F3 F4        2, 3, 4, 8 bytes LE     signed integer of 16, 24, 32, 64 bits

A string that is the canonical decimal text of a signed 64-bit integer is stored as that integer, in
the shortest encoding; reading returns the text.

The backlen repeats the size of encoding and data, so that a reader can walk backwards: 7-bit
groups, most significant first, with bit 80 set on every byte but the first. At the sizes 16383,
2097151 and 268435455, Redis up to 8.6 writes one byte more than Redis 8.10 and Valkey 9.1. We read
both forms and write the older one; elements of other sizes are the same in both.

Compiled by mypyc, and must do the same interpreted: no arithmetic relies on wrap-around, and every
index is checked before it is used. Damage raises `CorruptionError`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_le,
    read_i32_le,
    read_i64_le,
    write_i16_le,
    write_i32_le,
    write_i64_le,
)
from mypy_extensions import i16, i32, i64, u8

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import low16, low32

HEADER_SIZE: Final[i64] = 6
END: Final[i64] = 0xFF
UNKNOWN_COUNT: Final[i64] = 65535
TRUNCATED: Final = "an element is truncated"

_SMALL_MIN: Final[i64] = -4096
_SMALL_TEXT: Final[list[bytes]] = [b"%d" % value for value in range(-4096, 4096)]
_I64_MIN: Final = -(1 << 63)
_I64_MAX: Final = (1 << 63) - 1


def corrupt(problem: str, offset: i64) -> CorruptionError:
    """Return the error for damage at `offset` of a listpack."""
    return CorruptionError("listpack", problem, offset=int(offset))


# --- writing ------------------------------------------------------------------------------------


def put_backlen(writer: BytesWriter, size: i64) -> None:
    """Append the backlen of an element whose encoding and data take `size` bytes."""
    if size <= 127:
        writer.append(u8(size))
        return
    if size >= 268435455:
        writer.append(u8(size >> 28))
        writer.append(u8(((size >> 21) & 127) | 128))
        writer.append(u8(((size >> 14) & 127) | 128))
    elif size >= 2097151:
        writer.append(u8(size >> 21))
        writer.append(u8(((size >> 14) & 127) | 128))
    elif size >= 16383:
        writer.append(u8(size >> 14))
    else:
        writer.append(u8(size >> 7))
        writer.append(u8((size & 127) | 128))
        return
    writer.append(u8(((size >> 7) & 127) | 128))
    writer.append(u8((size & 127) | 128))


def put_integer(writer: BytesWriter, value: i64) -> None:
    """Append an integer element in its shortest encoding."""
    if 0 <= value <= 127:
        writer.append(u8(value))
        writer.append(1)
    elif -4096 <= value <= 4095:
        low: i64 = value & 0x1FFF
        writer.append(u8((low >> 8) | 0xC0))
        writer.append(u8(low & 255))
        writer.append(2)
    elif -32768 <= value <= 32767:
        writer.append(0xF1)
        write_i16_le(writer, i16(value))
        writer.append(3)
    elif -8388608 <= value <= 8388607:
        write_i32_le(writer, i32((value << 8) | 0xF2))
        writer.append(4)
    elif -2147483648 <= value <= 2147483647:
        writer.append(0xF3)
        write_i32_le(writer, i32(value))
        writer.append(5)
    else:
        writer.append(0xF4)
        write_i64_le(writer, value)
        writer.append(9)


def put_string(writer: BytesWriter, text: bytes) -> None:
    """Append a string element; as an integer if it is the canonical text of one."""
    size: i64 = len(text)
    if 0 < size <= 20:
        first: i64 = i64(text[0])
        if (48 <= first <= 57 or first == 45) and _put_if_integer(writer, text, size, first):
            return
    if size < 64:
        writer.append(u8(size | 0x80))
        writer.write(text)
        writer.append(u8(size + 1))
    elif size < 4096:
        writer.append(u8((size >> 8) | 0xE0))
        writer.append(u8(size & 255))
        writer.write(text)
        put_backlen(writer, size + 2)
    else:
        writer.append(0xF0)
        write_i32_le(writer, low32(size))
        writer.write(text)
        put_backlen(writer, size + 5)


def _put_if_integer(writer: BytesWriter, text: bytes, size: i64, first: i64) -> bool:
    """Append `text` as an integer if it is the canonical text of one; return whether it was."""
    start: i64 = 1 if first == 45 else 0
    if start == size:
        return False
    digit: i64 = i64(text[start])
    if digit == 48:
        if size == 1:
            writer.append(0)
            writer.append(1)
            return True
        return False  # "-0", or a leading zero
    value: i64 = 0
    index: i64 = start
    stop: i64 = size if size - start <= 18 else start + 18  # 18 digits cannot overflow
    while index < stop:
        digit = i64(text[index])
        if digit < 48 or digit > 57:
            return False
        value = value * 10 + (digit - 48)
        index += 1
    if stop < size:
        while index < size:
            digit = i64(text[index])
            if digit < 48 or digit > 57:
                return False
            index += 1
        exact = int(text)
        if exact < _I64_MIN or exact > _I64_MAX:
            return False
        value = i64(exact)
    elif start == 1:
        value = -value
    put_integer(writer, value)
    return True


def put_header(writer: BytesWriter, total: i64, count: i64) -> None:
    """Append the six header bytes of a listpack of `total` bytes and `count` elements."""
    write_i32_le(writer, low32(total))
    write_i16_le(writer, low16(count if count < UNKNOWN_COUNT else UNKNOWN_COUNT))


# --- reading ------------------------------------------------------------------------------------


def put_decimal(writer: BytesWriter, value: i64) -> None:
    """Append the decimal text of `value`, not as an element."""
    if _SMALL_MIN <= value < -_SMALL_MIN:
        writer.write(_SMALL_TEXT[value - _SMALL_MIN])
        return
    if value < 0:
        if value == i64(_I64_MIN):
            writer.write(b"-9223372036854775808")
            return
        writer.append(45)
        value = -value
    if value >= 100_000_000:
        put_decimal(writer, value // 100_000_000)
        value %= 100_000_000
        put_digits(writer, value, 100_000_000)
    else:
        put_digits(writer, value, 0)


def put_digits(writer: BytesWriter, value: i64, at_least: i64) -> None:
    """Append up to eight digits of `value`, as one i64 whose lowest byte is the first digit.

    Args:
        at_least: a power of ten, such as 1000 for at least three digits with leading zeros.
    """
    digits: i64 = 0
    size: i64 = len(writer)
    while True:
        digits = (digits << 8) | (48 + value % 10)
        value //= 10
        at_least //= 10
        size += 1
        if value == 0 and at_least <= 1:
            break
    write_i64_le(writer, digits)
    writer.truncate(size)


def put_text(writer: BytesWriter, data: bytes, position: i64) -> None:
    """Append the text of the element at `position`; the caller must have called `step` on it.

    Short strings, which are most, are copied eight bytes at a time and the surplus is cut off
    again. This is faster than creating a bytes object for each.
    """
    first: i64 = i64(data[position])
    start: i64 = position + 1
    size: i64 = first & 63
    if 0x80 <= first < 0xC0 and start + size + 8 <= len(data):
        total: i64 = size + len(writer)
        while size > 0:
            write_i64_le(writer, read_i64_le(data, start))
            start += 8
            size -= 8
        if size < 0:
            writer.truncate(total)
    elif is_integer_at(data, position):
        put_decimal(writer, integer_at(data, position))
    else:
        start = position + (1 if first < 0xC0 else 2 if first < 0xF0 else 5)
        writer.write(data[start : position + element_size(data, position, len(data))])


def integer_at(data: bytes, position: i64) -> i64:
    """Return the integer element at `position`; the caller must have called `step` on it."""
    first: i64 = i64(data[position])
    if first < 0x80:
        return first
    if first < 0xC0:
        raise corrupt("found a string, expected an integer", position)
    if first < 0xE0:
        value: i64 = ((first & 31) << 8) | i64(data[position + 1])
        return value if value < 4096 else value - 8192
    if first == 0xF1:
        return i64(read_i16_le(data, position + 1))
    if first == 0xF2:
        return i64(read_i32_le(data, position)) >> 8  # drops the encoding byte
    if first == 0xF3:
        return i64(read_i32_le(data, position + 1))
    if first == 0xF4:
        return read_i64_le(data, position + 1)
    raise corrupt("found a string, expected an integer", position)


def is_integer_at(data: bytes, position: i64) -> bool:
    """Return whether the element at `position` is an integer; `step` must have been called."""
    first: i64 = i64(data[position])
    return first < 0x80 or first > 0xF0 or 0xC0 <= first < 0xE0


def step(data: bytes, position: i64, end: i64) -> i64:
    """Return the offset after the element at `position`; raise unless it ends before `end`.

    The value of the backlen is not checked; `listpack_check.checked_step` checks it.
    """
    if position + 1 >= end:  # the shortest element and its backlen take two bytes
        raise corrupt("found the end of the listpack, expected an element", position)
    first: i64 = i64(data[position])
    after: i64 = position + 2
    if first >= 0x80:
        if first < 0xC0:
            after += first & 63
        elif first < 0xE0:
            after += 1
        elif 0xF1 <= first <= 0xF3:
            after += first - 0xEF
        else:
            after = position + element_size(data, position, end)
            after += backlen_size(data, after, after - position, end)
    if after > end:
        raise corrupt(TRUNCATED, position)
    return after


def backlen_size(data: bytes, position: i64, size: i64, end: i64) -> i64:
    """Return the size in bytes of the backlen at `position`, after an element of `size` bytes."""
    if size <= 127:
        return 1
    if size == 16383 or size == 2097151 or size == 268435455:
        shorter: i64 = 2 if size == 16383 else 3 if size == 2097151 else 4
        if position < end and i64(data[position]) == 0:
            return shorter + 1  # written by Redis up to 8.6
        return shorter
    if size < 16383:
        return 2
    if size < 2097151:
        return 3
    if size < 268435455:
        return 4
    return 5


def element_size(data: bytes, position: i64, end: i64) -> i64:
    """Return the size of encoding and data of the element at `position`; raise CorruptionError.

    Checks that they end before `end`, but not that the backlen does.
    """
    if position >= end:
        raise corrupt("found the end of the listpack, expected an element", position)
    first: i64 = i64(data[position])
    size: i64
    if first < 0x80:
        size = 1
    elif first < 0xC0:
        size = 1 + (first & 63)
    elif first < 0xE0:
        size = 2
    elif first < 0xF0:
        if position + 2 > end:
            raise corrupt("a string length is truncated", position)
        size = 2 + (((first & 15) << 8) | i64(data[position + 1]))
    elif first == 0xF0:
        if position + 5 > end:
            raise corrupt("a string length is truncated", position)
        size = 5 + (i64(read_i32_le(data, position + 1)) & 0xFFFFFFFF)
    elif first == 0xF1:
        size = 3
    elif first == 0xF2:
        size = 4
    elif first == 0xF3:
        size = 5
    elif first == 0xF4:
        size = 9
    else:
        raise corrupt(f"unknown encoding byte 0x{int(first):02x}", position)
    if position + size > end:
        raise corrupt(TRUNCATED, position)
    return size


class Reader:
    """A position in a listpack; every read checks its bounds.

    Attributes:
        position: offset of the next element.
        end: offset of the closing FF.
    """

    def __init__(self, data: bytes, position: i64, end: i64) -> None:
        self.data = data
        self.position: i64 = position
        self.end: i64 = end
        self.scratch = BytesWriter()  # one per reader, because threads may read at the same time

    def integer(self) -> i64:
        position = self.position
        after = step(self.data, position, self.end)
        value = integer_at(self.data, position)
        self.position = after
        return value

    def string(self) -> bytes:
        """Return the next element as a string; an integer as its decimal text."""
        data = self.data
        position = self.position
        end = self.end
        if position + 1 >= end:
            raise corrupt("found the end of the listpack, expected a string", position)
        first: i64 = i64(data[position])
        if first < 0x80:
            self.position = position + 2
            return _SMALL_TEXT[first - _SMALL_MIN]
        stop: i64
        if first < 0xC0:
            stop = position + 1 + (first & 63)
            if stop >= end:
                raise corrupt(TRUNCATED, position)
            self.position = stop + 1
            return data[position + 1 : stop]
        if first < 0xE0 or first > 0xF0:
            return self.decimal(self.integer())
        size: i64 = element_size(data, position, end)
        stop = position + size
        after: i64 = stop + backlen_size(data, stop, size, end)
        if after > end:
            raise corrupt("a backlen is truncated", position)
        self.position = after
        return data[position + (2 if first < 0xF0 else 5) : stop]

    def decimal(self, value: i64) -> bytes:
        """Return the decimal text of `value`; for small values from a table."""
        if -4096 <= value <= 4095:
            return _SMALL_TEXT[value - _SMALL_MIN]
        self.scratch.truncate(0)
        put_decimal(self.scratch, value)
        return self.scratch.getvalue()

    def skip(self) -> None:
        self.position = step(self.data, self.position, self.end)


def open_elements(data: bytes) -> Reader:
    """Check the header and the last byte of a listpack; return a reader at its first element."""
    size: i64 = len(data)
    if size < HEADER_SIZE + 1:
        raise corrupt(f"{int(size)} bytes, less than an empty listpack", 0)
    stated: i64 = i64(read_i32_le(data, 0)) & 0xFFFFFFFF
    if stated != size:
        raise corrupt(f"total-bytes is {int(stated)}, the value has {int(size)} bytes", 0)
    if i64(data[size - 1]) != END:
        raise corrupt(f"the last byte is 0x{data[size - 1]:02x}, expected 0xff", size - 1)
    return Reader(data, HEADER_SIZE, size - 1)


def stated_count(data: bytes) -> i64:
    """Return num-elements of the header; `UNKNOWN_COUNT` if the elements must be counted."""
    if len(data) < HEADER_SIZE:
        raise corrupt(f"{len(data)} bytes, less than an empty listpack", 0)
    return i64(data[4]) | (i64(data[5]) << 8)
