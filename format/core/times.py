"""Parsing times as people and files write them into Unix milliseconds.

This is the only parser of times that bound a range of IDs: for the methods of a store, for the
command line, for HTTP, and for dumps and loads. A text without a zone is UTC, a date is its first
millisecond, and an age such as `-2h` is the present minus a duration. A datetime needs a zone:
programs make those without one of local time and of UTC alike, and a guess would silently choose
the wrong entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, Literal

from streamkeep.format.core.durations import parse_duration

TimeUnit = Literal["auto", "s", "ms", "us", "iso"]
Bound = Literal["from", "to", "after"]
TIME_UNITS: Final = ("auto", "s", "ms", "us", "iso")

_PER_MS: Final = {"s": Fraction(1000), "ms": Fraction(1), "us": Fraction(1, 1000)}
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DATE: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_AGE: Final = re.compile(rb"-[0-9.]+[a-zA-Z]")
EXPECTED: Final = "a time such as 2025-10-21 or 2025-10-21T07:33:20Z, or an age such as -2h"
_MAX_MS: Final = (1 << 64) - 1

# Ranges of `auto`: each unit begins at the number for 1973-03-03 and ends where the next begins.
_SMALLEST_SECONDS: Final = 10**8
_SMALLEST_MS: Final = 10**11
_SMALLEST_US: Final = 10**14
_TOO_LARGE: Final = 10**17


def parse_time(text: str, unit: TimeUnit = "auto") -> int:
    """Return a time in Unix milliseconds, rounded down.

    Args:
        unit: unit of a number. "auto" guesses the unit from the size of the number and also accepts
            ISO 8601; "iso" accepts only ISO 8601.

    Raises:
        ValueError: the text is not a time, is ambiguous, or is out of the range of IDs.
    """
    text = text.strip()
    if not text:
        raise ValueError("no time")
    if unit == "auto" and len(text) == 13 and text.isascii() and text.isdigit():
        return int(text)  # current milliseconds: a shortcut with the result of the rules below
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
        raise ValueError(f"{text} may be several times; its unit must be given")
    if value < _SMALLEST_MS:
        return "s"
    return "ms" if value < _SMALLEST_US else "us"


def parse_iso(text: str) -> int:
    """Return an ISO 8601 date or time in Unix milliseconds; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2024-06-10T07:33:20Z") from None
    return _unix_ms(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment, text)


def _unix_ms(moment: datetime, shown: str) -> int:
    ms = (moment - _EPOCH) // _MILLISECOND
    if ms < 0:
        raise ValueError(f"{shown} is before 1970, which an entry ID cannot hold")
    return ms


def id_bound(text: bytes, bound: Bound, now_ms: Callable[[], int]) -> bytes:
    """Return the ID for a date or a time in ISO 8601, or for an age; other text unchanged.

    A date means its first millisecond; `(` excludes that whole millisecond.

    Args:
        bound: "from" and "to": the first or the last ID of a range, both included; "after": the ID
            before the first ID of a range.
        now_ms: the present, for ages.

    Raises:
        ValueError: the text looks like a time but is not one, or is out of the range of IDs.
    """
    moment = text.removeprefix(b"(")
    if _DATE.match(moment):
        ms = parse_iso(moment.decode("utf-8", "replace"))
    elif _AGE.match(moment):
        ms = max(0, now_ms() - parse_duration(moment[1:].decode("utf-8", "replace")))
    else:
        return text
    return _id_of(ms, bound, without=text != moment)


def time_bound(value: object, bound: Bound, now_ms: Callable[[], int]) -> bytes | None:
    """Return the ID for a datetime, a date, or a text as in `id_bound`; None for anything else.

    Raises:
        ValueError: it is a time, but no bound of IDs.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                "the time has no zone; next: datetime.now(UTC), tzinfo=UTC, or .astimezone() for "
                "local time"
            )
        return _id_of(_unix_ms(value, str(value)), bound)
    if isinstance(value, date):
        return _id_of(parse_iso(value.isoformat()), bound)
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")
    if not isinstance(value, bytes):
        return None
    found = id_bound(value, bound, now_ms)
    return None if found is value else found


def _id_of(ms: int, bound: Bound, without: bool = False) -> bytes:
    """Return the ID of the first millisecond of a time.

    Args:
        without: that millisecond is not part of the range.
    """
    if without:
        # A store reads `(ms` as a single ID and would exclude only that one.
        return b"(%d-%d" % (ms, 0 if bound == "to" else _MAX_MS)
    if bound == "after":
        return b"%d-%d" % ((ms - 1, _MAX_MS) if ms else (0, 0))
    return b"%d" % ms
