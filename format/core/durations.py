"""Durations as text, such as 250ms, 90s, 12m5s, 1h30m or 30d: in options, jobs and results."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

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
