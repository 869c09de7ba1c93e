"""Values that programs give, checked before anything is done with them: numbers, times, texts.

Each check returns the value in the type that is used from then on. For any other value it raises an
ArgumentError that names the parameter and shows the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamkeep.format.core.errors import ArgumentError

MOST: Final = (1 << 62) - 1
_MOST_SHOWN: Final = 60  # characters of a value in a message
_NOT_UTF8: Final = "a text of whole characters, which UTF-8 can encode (no lone surrogates)"


def as_given(value: object) -> str:
    """Return an argument as a message shows it."""
    if isinstance(value, (bytes, str)):
        value = value[:_MOST_SHOWN]  # it may be huge
    try:
        text = repr(value)
    except ValueError:  # Python prints no int of more than 4,300 digits
        return f"a huge {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def whole(value: object, name: str, least: int, most: int = MOST) -> int:
    """Return a whole number from `least` to `most`; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        too_high = isinstance(value, int) and value > most
        open_end = most == MOST and not too_high
        bounds = f"of at least {least:,}" if open_end else f"from {least:,} to {most:,}"
        raise ArgumentError(f"{name} must be a whole number {bounds}, not {as_given(value)}")
    return value


def texts(value: Iterable[str], name: str) -> tuple[str, ...]:
    """Return some texts; a single one counts as such, not as its characters."""
    many = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    return tuple(utf8(one, name).decode() for one in (value if many else (value,)))


def utf8(value: object, name: str) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            pass
    raise ArgumentError(f"{name} must be {_NOT_UTF8}, not {as_given(value)}") from None
