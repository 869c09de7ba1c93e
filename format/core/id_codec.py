"""Entry IDs between text, numbers and 16 big-endian bytes, to the letter of Redis.

An ID is a pair of unsigned 64-bit numbers. Text is split at the first `-`. Each half is read as
Redis reads it: strictly as the canonical decimal of a signed 64-bit number, which must not be
negative; and where that fails by the rules of C's `strtoull` in base 10, which skips white space,
takes a sign and leading zeros, and negates modulo 2^64. Text ends at the first NUL, and has at
most 127 bytes.

Numbers above 2^63-1 are legal, so the two halves of an ID do not fit a signed 64-bit machine
number. Between modules they are Python integers. Inside the codec they are *bit patterns*: the
signed number with the same 64 bits, which sorts rightly once its sign bit is flipped (`below`)
and is added and subtracted modulo 2^64 (`add`, `subtract`) without ever overflowing, so that the
code means the same compiled by mypyc, where i64 wraps around, and interpreted, where it does not.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError, InvalidIdError

MAX: Final = (1 << 64) - 1
_I64_MAX: Final = (1 << 63) - 1
_MAX_TEXT: Final = 127
_INVALID: Final = "Invalid stream ID specified as stream command argument"
_SPACE: Final = b" \t\n\v\f\r"


def invalid_id(text: bytes) -> InvalidIdError:
    """Return the one error that Redis has for text that is no ID."""
    error = InvalidIdError(_INVALID)
    shown = f"{text[:_MAX_TEXT]!r}{'...' if len(text) > _MAX_TEXT else ''}"
    error.add_note(f"{shown} is no ID here: that is ms-seq, or ms, numbers from 0 to {MAX}")
    return error


def id_text(ms: int, seq: int) -> bytes:
    """Return `ms-seq`."""
    return b"%d-%d" % (ms, seq)


def pack_id(ms: int, seq: int) -> bytes:
    """Return the 16 bytes under which IDs sort: ms, seq, both big-endian."""
    return ms.to_bytes(8, "big") + seq.to_bytes(8, "big")


def unpack_id(data: bytes) -> tuple[int, int]:
    """Return `(ms, seq)` of 16 bytes, or of what begins with them."""
    if len(data) < 16:
        raise CorruptionError("entry ID", f"{len(data)} bytes, 16 expected")
    return unsigned(read_i64_be(data, 0)), unsigned(read_i64_be(data, 8))


def rises(ids: list[tuple[int, int]]) -> bool:
    """Say whether each ID is above the one before it."""
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
    """Return the ID after `ms-seq`; (0, 0) after the last one that exists."""
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
    """Parse `ms-seq`, or `ms` alone with the given `seq`; raise InvalidIdError."""
    size: i64 = len(text)
    ms_end = _digits_end(text, 0, size)
    if ms_end > 0:
        if ms_end == size:
            return _decimal(text, 0, ms_end), default_seq
        if text[ms_end] == 45 and _digits_end(text, ms_end + 1, size) == size:
            return _decimal(text, 0, ms_end), _decimal(text, ms_end + 1, size)
    return _parse_odd(text, default_seq)


def _digits_end(text: bytes, start: i64, size: i64) -> i64:
    """Return where the digits from `start` on end; -1 unless they are 1 to 18 and canonical."""
    at = start
    while at < size:
        digit: i64 = i64(text[at])
        if digit < 48 or digit > 57:
            break
        at += 1
    if at == start or at - start > 18 or (at - start > 1 and text[start] == 48):
        return -1
    return at


def _decimal(text: bytes, start: i64, stop: i64) -> int:
    """Return the number that at most 18 digits say."""
    value: i64 = 0
    at = start
    while at < stop:
        value = value * 10 + (i64(text[at]) - 48)
        at += 1
    return int(value)


def _parse_odd(text: bytes, default_seq: int) -> tuple[int, int]:
    """Parse what only few callers write, by all of Redis's rules."""
    text = clean(text)
    dash = text.find(b"-")
    if dash < 0:
        return parse_number(text, text), default_seq
    return parse_number(text[:dash], text), parse_number(text[dash + 1 :], text)


def clean(text: bytes) -> bytes:
    """Return what is `visible` of an ID; refuse text that is too long for one."""
    if len(text) > _MAX_TEXT:
        raise invalid_id(text)
    return visible(text)


def visible(text: bytes) -> bytes:
    """Return `text` up to its first NUL, where a string ends in C."""
    end = text.find(b"\0")
    return text if end < 0 else text[:end]


def parse_number(text: bytes, whole: bytes) -> int:
    """Parse one half of the ID `whole`; raise InvalidIdError."""
    size = len(text)
    if 0 < size <= 18 and text.isdigit() and (text[0] != 48 or size == 1):
        return int(text)  # the usual case; every other rule agrees with it
    return _strtoull(text, whole)


def _strtoull(text: bytes, whole: bytes) -> int:
    """Parse by Redis's `string2ull`: a canonical signed number, else C's strtoull."""
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
_HALF: Final[i64] = 1 << 60  # of two numbers within it, sum and difference do not overflow
_SIGN: Final[i64] = -(1 << 63)  # compiled code must build these two anew at each use
_TOP: Final[i64] = (1 << 63) - 1


def bits(value: int) -> i64:
    """Return the signed number with the 64 bits of an unsigned one."""
    if value <= _SHORT:
        return i64(value)
    if value == MAX:  # in every range without an end
        return -1
    return i64(value if value <= _I64_MAX else value - _U64)


def unsigned(pattern: i64) -> int:
    """Return the unsigned number of a bit pattern."""
    return int(pattern) if pattern >= 0 else int(pattern) + _U64


def below(ms: i64, seq: i64, other_ms: i64, other_seq: i64) -> bool:
    """Say whether the ID `ms-seq` is below `other_ms-other_seq`; all four are bit patterns."""
    if ms != other_ms:
        return (ms < other_ms) != ((ms ^ other_ms) < 0)  # of two signs, the negative is above
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
