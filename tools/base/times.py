"""Times that people and files write, as Unix milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, Literal

from streamkeep.tools.base.output import EPOCH

TimeUnit = Literal["auto", "s", "ms", "us", "iso"]
TIME_UNITS: Final = ("auto", "s", "ms", "us", "iso")

_PER_MS: Final = {"s": Fraction(1000), "ms": Fraction(1), "us": Fraction(1, 1000)}
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
_MILLISECOND: Final = timedelta(milliseconds=1)
_MAX_MS: Final = (1 << 64) - 1

# What `auto` takes a number for: each unit begins at 1973-03-03 and ends before the next begins.
_SMALLEST_SECONDS: Final = 10**8
_SMALLEST_MS: Final = 10**11
_SMALLEST_US: Final = 10**14
_TOO_LARGE: Final = 10**17


def parse_time(text: str, unit: TimeUnit) -> int:
    """Return a time in Unix milliseconds, rounded down; raise ValueError with what is wrong."""
    text = text.strip()
    if not text:
        raise ValueError("no time")
    if unit == "auto" and len(text) == 13 and text.isascii() and text.isdigit():
        return int(text)  # milliseconds of today: the rules below agree, and take longer
    number = _NUMBER.fullmatch(text) if unit != "iso" else None
    if number is None:
        if unit in ("auto", "iso"):
            return parse_iso(text)
        raise ValueError(f"{text!r} is not a number of {unit}")
    try:
        value = Fraction(Decimal(text))
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    ms = value * _PER_MS[_guess(value, text) if unit == "auto" else unit]
    if ms < 0:
        raise ValueError(f"{text} is before 1970, which an entry ID cannot hold")
    if ms > _MAX_MS:
        raise ValueError(f"{text} is beyond the highest entry ID")
    return int(ms)


def _guess(value: Fraction, text: str) -> str:
    if value < 0:
        return "s"
    if value < _SMALLEST_SECONDS or value >= _TOO_LARGE:
        raise ValueError(f"{text} may be several times; say which with --time-unit")
    if value < _SMALLEST_MS:
        return "s"
    return "ms" if value < _SMALLEST_US else "us"


def parse_iso(text: str) -> int:
    """Return an ISO 8601 date or time in Unix milliseconds; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2024-06-10T07:33:20Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    ms = (moment - EPOCH) // _MILLISECOND
    if ms < 0:
        raise ValueError(f"{text} is before 1970, which an entry ID cannot hold")
    return ms
