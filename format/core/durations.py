"""Durations as text, such as 250ms, 90s, 12m5s, 1h30m or 30d: in options, jobs and results."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from typing import Final

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given

Duration = float | int | str | timedelta  # as programs write it; a number is in seconds

LONGEST_MS: Final = 100 * 366 * 86_400_000
_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
MEANT: Final = "a duration such as 250ms, 90s, 10m, 1h30m or 30d"


def parse_duration(text: str) -> int:
    """Return a duration in milliseconds; raise ValueError with what is wrong.

    A number needs a unit, except 0: 60000 might be seconds or milliseconds.
    """
    text = text.strip().lower()
    if text == "0":
        return 0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        if re.fullmatch(r"[0-9.]+", text):
            raise ValueError(
                f"{text!r} has no unit: {text}ms, {text}s, {text}m, {text}h or {text}d"
            )
        raise ValueError(f"{text!r} is not {MEANT}")
    total = sum(Fraction(number) * _UNITS[unit] for number, unit in parts)
    if total.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of milliseconds")
    return int(total)


def milliseconds(value: Duration, name: str) -> int:
    """Return a duration in milliseconds; a number is in seconds.

    Raises:
        ArgumentError: it is something else, negative, or above a hundred years.
    """
    if type(value) is int and 0 <= value <= LONGEST_MS // 1000:
        return value * 1000
    found = -1.0
    if isinstance(value, timedelta):
        found = value.total_seconds() * 1000
    elif isinstance(value, str):
        with suppress(ValueError):
            found = parse_duration(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            found = value * 1000.0
    if not 0 <= found <= LONGEST_MS:
        raise ArgumentError(
            f"{name} must be seconds, a timedelta, or a text such as '500ms', '5m' or '1h', "
            f"of 0 to a hundred years, not {as_given(value)}"
        )
    return round(found)


def above_zero(value: Duration, name: str) -> int:
    found = milliseconds(value, name)
    if not found:
        raise ArgumentError(f"{name} must be at least '1ms', not {as_given(value)}")
    return found


def duration_text(ms: float, parts: int = 2) -> str:
    """Return a duration with its largest units.

    Args:
        parts: how many units at most; what is less than the last of them is left out.
    """
    if ms < 1000:
        return f"{ms:.0f}ms"
    if ms < 60_000 and ms % 1000 and parts == 2:
        return f"{int(ms) // 100 / 10:.1f}s"
    rest = round(ms)
    shown: list[str] = []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if shown:
            parts -= 1
        if count and parts > 0:
            shown.append(f"{count}{unit}")
    return "".join(shown)
