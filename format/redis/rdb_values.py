"""The values in RDB files and DUMP payloads: lengths and strings (Redis: `rdb.c`).

    length   00xxxxxx                       6 bits
             01xxxxxx yyyyyyyy              14 bits
             80, u32 BE    81, u64 BE
    string   length, bytes
             C0 i8    C1 i16 LE    C2 i32 LE          the decimal text of the number
             C3, length, length of the text, LZF      see `lzf`

`Source` reads them from a function that returns bytes in pieces. It does not trust lengths: it
reads pieces of limited size until it has enough bytes or the input ends, so a wrong length needs no
more memory than the input has bytes.

Compiled by mypyc.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NoReturn

from anycrc import Model

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.lzf import decompress

MAX_STRING: Final = 1 << 31  # above Redis's own limits of 512 MiB, and 1 GiB for a listpack
_PIECE: Final = 1 << 20

_INTEGERS: Final = {0xC0: struct.Struct("<b"), 0xC1: struct.Struct("<h"), 0xC2: struct.Struct("<i")}
_LZF: Final = 0xC3
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class Source:
    """Reads bytes and values from the front of an input; failures raise CorruptionError."""

    def __init__(self, read: Callable[[int], bytes], where: str, start: bytes = b"") -> None:
        """Read the bytes `start`, then those of `read(size)`, which returns b"" at the end."""
        self.where = where
        self._read = read
        self._buffer = start
        self._at = 0
        self._before = 0  # number of bytes before the buffer
        self._crc = 0  # their checksum

    @classmethod
    def of(cls, data: bytes, where: str) -> Source:
        return cls(lambda size: b"", where, data)

    @property
    def offset(self) -> int:
        return self._before + self._at

    def left(self) -> int:
        return len(self._buffer) - self._at

    def rest(self) -> bytes:
        """Return what was read and not taken."""
        return self._buffer[self._at :]

    def checksum(self) -> int:
        """Return the CRC-64 of all bytes taken so far."""
        return crc64(self._buffer[: self._at], self._crc)

    def fail(self, problem: str) -> NoReturn:
        """Raise CorruptionError at the current offset."""
        raise CorruptionError(self.where, problem, offset=self.offset)

    def take(self, size: int) -> bytes:
        at = self._at
        end = at + size
        if end <= len(self._buffer):
            self._at = end
            return self._buffer[at:end]
        return self._gather(size)

    def ends(self) -> bool:
        if self._at == len(self._buffer):
            self._refill(self._read(_PIECE))
        return self._at == len(self._buffer)

    def byte(self) -> int:
        if self._at == len(self._buffer):
            self._refill(self._read(_PIECE))
            if not self._buffer:
                self.fail("truncated: expected another byte")
        value = self._buffer[self._at]
        self._at += 1
        return value

    def line(self, most: int) -> bytes:
        """Return the bytes up to a newline, without it; fail if there are more than `most`."""
        end = self._buffer.find(b"\n", self._at, self._at + most + 1)
        if end >= 0:
            line = self._buffer[self._at : end]
            self._at = end + 1
            return line
        slow = bytearray()
        while (byte := self.byte()) != 10:
            slow.append(byte)
            if len(slow) > most:
                self.fail(f"a line of more than {most} bytes")
        return bytes(slow)

    def skip(self, size: int) -> None:
        while size > _PIECE:
            self.take(_PIECE)
            size -= _PIECE
        self.take(size)

    def _gather(self, size: int) -> bytes:
        """Return the next `size` bytes, of which some are not in the buffer."""
        pieces = [self._buffer[self._at :]]
        missing = size - len(pieces[0])
        self._at = len(self._buffer)
        while missing > 0:
            piece = self._read(_PIECE)
            self._refill(piece)
            if not piece:
                self.fail(f"truncated: expected {size} bytes, found {size - missing}")
            self._at = min(missing, len(piece))
            pieces.append(piece[: self._at])
            missing -= self._at
        return b"".join(pieces)

    def _refill(self, piece: bytes) -> None:
        """Replace the buffer, all bytes of which have been taken, by `piece`."""
        self._crc = crc64(self._buffer, self._crc)
        self._before += len(self._buffer)
        self._buffer = piece
        self._at = 0

    # --- values -----------------------------------------------------------------------------

    def length(self) -> int:
        first = self.byte()
        if first < 0x40:
            return first
        if first < 0x80:
            return (first & 0x3F) << 8 | self.byte()
        if first == 0x81:
            wide: int = _U64.unpack(self.take(8))[0]
            return wide
        if first == 0x80:
            number: int = _U32.unpack(self.take(4))[0]
            return number
        self.fail(f"0x{first:02x} is not the first byte of a length")

    def string(self) -> bytes:
        """Return a string in any of its encodings."""
        first = self.byte()
        if first < 0xC0:
            self._at -= 1
            return self.take(self._bounded(self.length()))
        integer = _INTEGERS.get(first)
        if integer is not None:
            number: int = integer.unpack(self.take(integer.size))[0]
            return b"%d" % number
        if first != _LZF:
            self.fail(f"0x{first:02x} is not the first byte of a string")
        packed = self._bounded(self.length())
        size = self._bounded(self.length())
        return decompress(self.take(packed), size, self.where)

    def skip_string(self) -> None:
        """Skip a string without reading it into memory."""
        first = self.byte()
        if first < 0xC0:
            self._at -= 1
            self.skip(self._bounded(self.length()))
        elif first in _INTEGERS:
            self.skip(_INTEGERS[first].size)
        elif first == _LZF:
            packed = self._bounded(self.length())
            self._bounded(self.length())
            self.skip(packed)
        else:
            self.fail(f"0x{first:02x} is not the first byte of a string")

    def _bounded(self, size: int) -> int:
        if size > MAX_STRING:
            self.fail(f"a string of {size} bytes, expected at most {MAX_STRING}")
        return size


# --- writing ------------------------------------------------------------------------------------


def put_length(out: bytearray, number: int) -> None:
    """Append a length in its shortest encoding."""
    if number < 1 << 6:
        out.append(number)
    elif number < 1 << 14:
        out += (number | 1 << 14).to_bytes(2, "big")
    elif number < 1 << 32:
        out.append(0x80)
        out += _U32.pack(number)
    else:
        out.append(0x81)
        out += _U64.pack(number)


def put_string(out: bytearray, text: bytes) -> None:
    """Append a string uncompressed, which every version reads."""
    put_length(out, len(text))
    out += text


_MODEL: Final = Model("CRC64-REDIS")


def crc64(data: bytes, start: int = 0) -> int:
    """Return the checksum of `data`; `start` is the checksum of the bytes before it."""
    value: int = _MODEL.calc(data, start)
    return value
