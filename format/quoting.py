"""Keys, fields and values as text for people, quoted unless they are plain.

Plain printable text is shown unchanged. Empty bytes, bytes that are not UTF-8, and control
characters are shown in double quotes with the escapes of redis-cli, so no value can move the cursor
of a terminal or forge a line. `unquoted` reads this form back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from streamkeep.format.humanize import size_text

Pairs = Sequence[tuple[bytes, bytes]]

_SUMMARY_VALUE: Final = 200

_ESCAPES: Final = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\a": "\\a",
    "\b": "\\b",
}
_UNESCAPES: Final = {text[1]: char.encode() for char, text in _ESCAPES.items()}
_plain_pairs: Final = re.compile(rb"(?:(?:^| )[!#-<>-~][!-<>-~]*=[!#-<>-~][!-<>-~]*)+").fullmatch
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([\\\"nrtab]))|([^\\\"]+)")


def shown(data: bytes, stops: str = "") -> str:
    """Return bytes as text that is safe to print, quoted unless it is plain.

    Args:
        stops: more characters that need quotes, because of the text around them.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text and text[0] != '"' and not any(stop in text for stop in stops):
        return text
    return quoted(data)


def quoted(data: bytes) -> str:
    """Return bytes in double quotes, with escapes for everything that is not printable text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return quoted_bytes(data)
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{text.translate(_Characters())}"'


def quoted_bytes(data: bytes) -> str:
    """Return bytes in double quotes as redis-cli shows them: all but ASCII is escaped."""
    return f'"{data.decode("latin-1").translate(_BYTES)}"'


def _escaped(char: str, data: bytes) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and (len(data) > 1 or data[0] < 0x80):
        return char
    return "".join(f"\\x{byte:02x}" for byte in data)


class _Characters(dict[int, str]):
    """The text that shows each character, computed at its first use."""

    def __missing__(self, number: int) -> str:
        shown = self[number] = _escaped(chr(number), chr(number).encode())
        return shown


_BYTES: Final = {byte: _escaped(chr(byte), bytes([byte])) for byte in range(256)}


def unquoted(text: str) -> bytes:
    """Return the bytes that `quoted` shows as `text`; raise ValueError for any other text."""
    out: list[bytes] = []
    at, end = 1, len(text) - 1
    if end < 1 or text[0] != '"' or text[end] != '"':
        raise ValueError("the closing double quote is missing")
    while at < end:
        found = _ESCAPE.match(text, at, end)
        if found is None:
            raise ValueError(f"{text[at : at + 2]!r} is not a known escape")
        digits, letter, plain = found.groups()
        if digits:
            out.append(bytes.fromhex(digits))
        elif letter:
            out.append(_UNESCAPES[letter])
        else:
            out.append(plain.encode("utf-8", "surrogateescape"))
        at = found.end()
    return b"".join(out)


def named(key: bytes) -> str:
    """Return a key as messages name it: 'orders', or "\\xff" if it is not plain."""
    text = shown(key)
    return text if text.startswith('"') else f"'{text}'"


def pairs_text(pairs: Pairs) -> str:
    """Return fields and values as `sku=7 note="two words"`."""
    # The usual case, in which nothing needs quotes: there are as many `=` as pairs.
    joined = b" ".join(map(b"=".join, pairs))
    if joined.count(b"=") == len(pairs) and _plain_pairs(joined):
        return joined.decode()
    return " ".join(f"{shown(field, ' =')}={shown(value, ' ')}" for field, value in pairs)


def brief_pairs(pairs: Pairs) -> str:
    """Return fields and values as `pairs_text` does; long values are cut."""
    short = [
        (
            shown(field[:_SUMMARY_VALUE], " ="),
            shown(value, " ")
            if len(value) <= _SUMMARY_VALUE
            else f"{shown(value[:_SUMMARY_VALUE], ' ')}… ({size_text(len(value))})",
        )
        for field, value in pairs
    ]
    return " ".join(f"{field}={value}" for field, value in short)
