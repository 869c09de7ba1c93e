"""Commands in RESP, as Redis clients send them and append-only files contain them.

    *2 CR LF  $4 CR LF XLEN CR LF  $6 CR LF orders CR LF

`read_commands` reads such arrays of strings, and also plain lines as people type them
(`XADD orders * note "two words"`), with Redis's rules for quotes. It reads through
`rdb_values.Source`, which does not trust lengths.

Compiled by mypyc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.rdb_values import Source

MAX_WORDS: Final = 1 << 20  # this and the next are Redis's own limits
MAX_BYTES: Final = 512 << 20
MAX_COMMAND: Final = (1 << 30) + (64 << 20)  # an entry of 1 GiB and its field names
_MAX_LINE: Final = 64 << 10

_DOUBLE: Final = 0x22
_SINGLE: Final = 0x27
_BACKSLASH: Final = 0x5C
_HEX: Final = re.compile(rb"x([0-9a-fA-F]{2})")
_ESCAPES: Final = {0x6E: 0x0A, 0x72: 0x0D, 0x74: 0x09, 0x62: 0x08, 0x61: 0x07}


def encode_command(*words: bytes | str | int) -> bytes:
    """Return a command as an array of strings; str is encoded as UTF-8."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def read_commands(read: Callable[[int], bytes], where: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (offset, words) of each command; raise CorruptionError with `where`.

    Args:
        read: returns up to the requested number of bytes; b"" at the end.
    """
    source = Source(read, where)
    while not source.ends():
        offset = source.offset
        words = read_command(source)
        if words:
            yield offset, words


def read_command(source: Source) -> list[bytes]:
    """Return the words of the next command; none of an empty line. Raise CorruptionError."""
    offset = source.offset
    line = _line(source)
    if line[:1] != b"*":
        return split_line(line, source.where, offset)
    words: list[bytes] = []
    size = 0
    for _ in range(_number(source, line, MAX_WORDS)):
        head = _line(source)
        if head[:1] != b"$":
            source.fail(f"found {head[:20]!r}, expected a string ($ and its length)")
        words.append(source.take(_number(source, head, MAX_BYTES)))
        if source.take(2) != b"\r\n":
            source.fail("a string is longer or shorter than its length says")
        size += len(words[len(words) - 1])
        if size > MAX_COMMAND:
            source.fail(f"a command of more than {MAX_COMMAND} bytes")
    return words


def _line(source: Source) -> bytes:
    """Return the bytes up to the end of a line."""
    return source.line(_MAX_LINE).removesuffix(b"\r")


def _number(source: Source, line: bytes, most: int) -> int:
    digits = line[1:]
    if not digits.isdigit() or len(digits) > 10 or int(digits) > most:
        source.fail(f"found {line[:20]!r}, expected a number up to {most}")
    return int(digits)


def split_line(line: bytes, where: str, offset: int) -> list[bytes]:
    """Return the words of a plain line; raise CorruptionError if a quote is not closed.

    Double quotes allow escapes (\\n \\r \\t \\b \\a \\xff, and \\ before any other byte), single
    quotes only \\'. A space must follow the closing quote.
    """
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    at = 0
    while at < len(line):
        if line[at : at + 1].isspace():
            at += 1
            continue
        word = bytearray()
        while at < len(line) and not line[at : at + 1].isspace():
            byte = line[at]
            if byte in (_DOUBLE, _SINGLE):
                at = _quoted(line, at, word)
                if at < 0 or not (at == len(line) or line[at : at + 1].isspace()):
                    problem = "a quote is not closed, or no space follows it"
                    raise CorruptionError(where, problem, offset=offset)
            else:
                word.append(byte)
                at += 1
        words.append(bytes(word))
    return words


def _quoted(line: bytes, at: int, word: bytearray) -> int:
    """Append the text of the quotes that open at `at` to `word`; return the offset after them.

    Returns -1 if the quotes are not closed.
    """
    quote = line[at]
    at += 1
    while at < len(line):
        byte = line[at]
        if byte == quote:
            return at + 1
        if byte == _BACKSLASH and at + 1 < len(line):
            if quote == _SINGLE:
                if line[at + 1] == _SINGLE:
                    at += 1
                    byte = _SINGLE
            elif found := _HEX.match(line, at + 1):
                byte = int(found[1], 16)
                at += 3
            else:
                byte = _ESCAPES.get(line[at + 1], line[at + 1])
                at += 1
        word.append(byte)
        at += 1
    return -1
