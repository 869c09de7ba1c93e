"""Entry IDs as text, as numbers and as 16 big-endian bytes, parsed exactly as Redis parses them.

An ID is a pair of unsigned 64-bit numbers, `ms-seq`. Between modules both are Python integers.
Inside the codec they are *bit patterns*: the signed i64 with the same 64 bits, because half of
the unsigned range does not fit an i64. `below` compares bit patterns, `add` and `subtract` work
modulo 2^64. None of them overflows, so they give the same result compiled by mypyc, where i64
wraps around, and interpreted, where it does not.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i16, i32, i64

from streamkeep.format.core.errors import CorruptionError, InvalidIdError

Id = tuple[int, int]  # ms, seq

MAX: Final = (1 << 64) - 1
_I64_MAX: Final = (1 << 63) - 1
_MAX_TEXT: Final = 127
_INVALID: Final = "Invalid stream ID specified as stream command argument"
_SPACE: Final = b" \t\n\v\f\r"


def invalid_id(text: bytes) -> InvalidIdError:
    """Return Redis's error for text that is not an ID, with a note that names the text."""
    error = InvalidIdError(_INVALID)
    shown = f"{text[:_MAX_TEXT]!r}{'...' if len(text) > _MAX_TEXT else ''}"
    error.add_note(f"got {shown}, expected ms-seq or ms, numbers from 0 to {MAX}")
    return error


def id_text(ms: int, seq: int) -> bytes:
    return b"%d-%d" % (ms, seq)


def pack_id(ms: int, seq: int) -> bytes:
    """Return 16 bytes that sort in the order of IDs: ms, seq, both big-endian."""
    return ms.to_bytes(8, "big") + seq.to_bytes(8, "big")


def unpack_id(data: bytes) -> tuple[int, int]:
    """Return `(ms, seq)` of the first 16 bytes of `data`."""
    if len(data) < 16:
        raise CorruptionError("entry ID", f"{len(data)} bytes, expected 16")
    return unsigned(read_i64_be(data, 0)), unsigned(read_i64_be(data, 8))


def is_ascending(ids: list[tuple[int, int]]) -> bool:
    """Return whether each ID is above the one before it."""
    total: i64 = len(ids)
    if total == 0:
        return True
    ms = bits(ids[0][0])
    seq = bits(ids[0][1])
    index: i64 = 1
    while index < total:
        next_ms = bits(ids[index][0])
        next_seq = bits(ids[index][1])
        if not below(ms, seq, next_ms, next_seq):
            return False
        ms = next_ms
        seq = next_seq
        index += 1
    return True


def next_id(ms: int, seq: int) -> tuple[int, int]:
    """Return the ID after `ms-seq`; (0, 0) after the highest possible ID."""
    if seq < MAX:
        return ms, seq + 1
    if ms < MAX:
        return ms + 1, 0
    return 0, 0


def previous_id(ms: int, seq: int) -> tuple[int, int]:
    """Return the ID before `ms-seq`, which must not be 0-0."""
    if seq > 0:
        return ms, seq - 1
    return ms - 1, MAX


def parse_id(text: bytes, default_seq: int) -> tuple[int, int]:
    """Parse `ms-seq`, or `ms` alone with `default_seq` as its seq; raise InvalidIdError."""
    size: i64 = len(text)
    ms_end = _digits_end(text, 0, size)
    if ms_end > 0:
        if ms_end == size:
            return _decimal(text, 0, ms_end), default_seq
        if text[ms_end] == 45 and _digits_end(text, ms_end + 1, size) == size:
            return _decimal(text, 0, ms_end), _decimal(text, ms_end + 1, size)
    return _parse_unusual(text, default_seq)


def _digits_end(text: bytes, start: i64, size: i64) -> i64:
    """Return the end of the digits at `start`; -1 unless there are 1 to 18."""
    at = start
    while at < size:
        digit: i64 = i64(text[at])
        if digit < 48 or digit > 57:
            break
        at += 1
    if at == start or at - start > 18:
        return -1
    return at


def _decimal(text: bytes, start: i64, stop: i64) -> int:
    """Return the value of at most 18 digits, which cannot overflow."""
    value: i64 = 0
    at = start
    while at < stop:
        value = value * 10 + (i64(text[at]) - 48)
        at += 1
    return int(value)


def _parse_unusual(text: bytes, default_seq: int) -> tuple[int, int]:
    """Parse text that is not only short numbers, by Redis's rules: split it at the first `-`."""
    text = cut_id(text)
    dash = text.find(b"-")
    if dash < 0:
        return parse_number(text, text), default_seq
    return parse_number(text[:dash], text), parse_number(text[dash + 1 :], text)


def cut_id(text: bytes) -> bytes:
    """Return the text of an ID up to its first NUL; raise InvalidIdError above 127 bytes."""
    if len(text) > _MAX_TEXT:
        raise invalid_id(text)
    return until_nul(text)


def until_nul(text: bytes) -> bytes:
    """Return `text` up to its first NUL, where C ends a string."""
    end = text.find(b"\0")
    return text if end < 0 else text[:end]


def parse_number(text: bytes, whole: bytes) -> int:
    """Parse one half of the ID `whole`; raise InvalidIdError."""
    size = len(text)
    if 0 < size <= 18 and text.isdigit():
        return int(text)  # the usual case, for which strtoull gives the same
    return _strtoull(text, whole)


def _strtoull(text: bytes, whole: bytes) -> int:
    """Parse by Redis's `string2ull`: a canonical signed number, else C's strtoull in base 10.

    A canonical number must not be negative. strtoull skips white space, accepts a sign and leading
    zeros, and negates modulo 2^64.
    """
    digits = text.lstrip(_SPACE)
    negative = digits[:1] == b"-"
    if digits[:1] in (b"-", b"+"):
        digits = digits[1:]
    if not digits.isdigit():
        raise invalid_id(whole)
    number = int(digits)
    if number > MAX:
        raise invalid_id(whole)
    if not negative:
        return number
    canonical = text[:1] == b"-" and digits[0] != 48 and number <= _I64_MAX + 1
    if canonical:
        raise invalid_id(whole)
    return (MAX + 1 - number) % (MAX + 1)


# --- bit patterns -------------------------------------------------------------------------------

_SHORT: Final = (1 << 62) - 1  # compared fast by compiled code
_U64: Final = 1 << 64
_HALF: Final[i64] = 1 << 60  # numbers within this bound can be added without overflow
_SIGN: Final[i64] = -(1 << 63)
_TOP: Final[i64] = (1 << 63) - 1


def bits(value: int) -> i64:
    """Return the bit pattern of an unsigned number: the signed number with the same 64 bits."""
    if value <= _SHORT:
        return i64(value)
    if value == MAX:  # frequent: the end of every open range
        return -1
    return i64(value if value <= _I64_MAX else value - _U64)


def unsigned(pattern: i64) -> int:
    """Return the unsigned number of a bit pattern."""
    return int(pattern) if pattern >= 0 else int(pattern) + _U64


def low16(value: i64) -> i16:
    """Return the bit pattern of an unsigned number of 16 bits."""
    return i16(value if value < 1 << 15 else value - (1 << 16))


def low32(value: i64) -> i32:
    """Return the bit pattern of an unsigned number of 32 bits."""
    return i32(value if value < 1 << 31 else value - (1 << 32))


def u16_at(data: bytes, at: i64) -> i64:
    return i64(read_i16_be(data, at)) & 0xFFFF


def u32_at(data: bytes, at: i64) -> i64:
    return i64(read_i32_be(data, at)) & 0xFFFFFFFF


def below(ms: i64, seq: i64, other_ms: i64, other_seq: i64) -> bool:
    """Return whether the ID `ms-seq` is below `other_ms-other_seq`; all four are bit patterns."""
    if ms != other_ms:
        # Of two patterns with different signs, the negative one is the greater unsigned number.
        return (ms < other_ms) != ((ms ^ other_ms) < 0)
    return (seq < other_seq) != ((seq ^ other_seq) < 0)


def add(base: i64, difference: i64) -> i64:
    """Return `base + difference` modulo 2^64."""
    if -_HALF <= base <= _HALF and -_HALF <= difference <= _HALF:
        return base + difference
    if difference >= 0:
        if base > _TOP - difference:
            return (base + _SIGN) + (difference + _SIGN)
    elif base < _SIGN - difference:
        return (base - _SIGN) + (difference - _SIGN)
    return base + difference


def subtract(value: i64, base: i64) -> i64:
    """Return `value - base` modulo 2^64 as a signed number."""
    if -_HALF <= value <= _HALF and -_HALF <= base <= _HALF:
        return value - base
    if base >= 0:
        if value < _SIGN + base:
            return (value - _SIGN) - (base + _SIGN)
    elif value > _TOP + base:
        return (value + _SIGN) - (base - _SIGN)
    return value - base
