r"""Keys as text in columns, and back: injective, and equal to the key wherever that is possible.

A key that is UTF-8 is its own text. In any other key, bytes that are not UTF-8 become `\xff`, and
backslashes are doubled. A key that is UTF-8 but looks like such a text, because it has two
backslashes in a row or `\x` and two hexadecimal digits, is written in that way as well. So no two
keys have the same text: b"\xff" is `\xff`, and b"\\xff" is `\\xff`.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPED: Final = re.compile(r"\\\\|\\x[0-9a-f]{2}")
_BACKSLASH: Final = re.compile(rb"\\")


def key_text(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        pass
    else:
        if not _ESCAPED.search(text):
            return text
    return _BACKSLASH.sub(rb"\\\\", key).decode("utf-8", "backslashreplace")


def key_of_text(text: str) -> bytes:
    """Return the key from the text of `key_text`.

    Raises:
        ValueError: it is not the text of a key.
    """
    key = text.encode()
    if _ESCAPED.search(text):
        key = b"".join(_parts(text))
    if key_text(key) != text:
        raise ValueError(
            f"{text!r} is no key: a backslash has to be doubled in a key with \\\\ or \\xff"
        )
    return key


def _parts(text: str) -> list[bytes]:
    parts, at = [], 0
    for found in _ESCAPED.finditer(text):
        parts.append(text[at : found.start()].encode())
        parts.append(b"\\" if found[0] == "\\\\" else bytes.fromhex(found[0][2:]))
        at = found.end()
    return [*parts, text[at:].encode()]
