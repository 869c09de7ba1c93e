"""Commands as Redis clients send them and append-only files hold them: arrays of strings.

    *2 CR LF  $4 CR LF XLEN CR LF  $6 CR LF orders CR LF

`read_commands` reads them from anything that gives bytes in pieces, and also the plain lines
(`XLEN orders`) that people type. It never believes a length: see `rdb_values.Source`, which it
reads through.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from streamkeep.format.rdb_values import Source

MOST_WORDS: Final = 1 << 20  # Redis's own limits
MOST_BYTES: Final = 512 << 20
_MOST_LINE: Final = 64 << 10


def encode_command(*words: bytes | str | int) -> bytes:
    """Return a command; text is UTF-8."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def read_commands(read: Callable[[int], bytes], where: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (offset, words) of each command; raise CorruptionError naming `where`.

    Args:
        read: returns up to as many bytes as it is asked for, b"" at the end.
    """
    source = Source(read, where)
    while not source.ends():
        offset = source.offset
        line = _line(source)
        if line[:1] == b"*":
            words = [_word(source) for _ in range(_number(source, line, MOST_WORDS))]
        else:
            words = line.split()
        if words:
            yield offset, words


def _line(source: Source) -> bytes:
    """Return the bytes up to the end of a line."""
    return source.line(_MOST_LINE).removesuffix(b"\r")


def _number(source: Source, line: bytes, most: int) -> int:
    digits = line[1:]
    if not digits.isdigit() or len(digits) > 10 or int(digits) > most:
        source.fail(f"{line[:20]!r} is no count up to {most}")
    return int(digits)


def _word(source: Source) -> bytes:
    line = _line(source)
    if line[:1] != b"$":
        source.fail(f"a string is expected, found {line[:20]!r}")
    word = source.take(_number(source, line, MOST_BYTES))
    if source.take(2) != b"\r\n":
        source.fail("a string does not end where it says")
    return word
