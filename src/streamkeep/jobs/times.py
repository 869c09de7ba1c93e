"""Durations, times and backoffs, as programs write them: "5m", 90, timedelta, "2s..10m"."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from streamkeep.format.core.durations import parse_duration
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given

Duration = float | int | str | timedelta

_LONGEST_MS: Final = 100 * 366 * 86_400_000
_FACTOR: Final = 2.0


def milliseconds(value: Duration, name: str) -> int:
    """Return a duration in milliseconds; a number is in seconds.

    Raises:
        ArgumentError: it is something else, negative, or above a hundred years.
    """
    found = -1.0
    if isinstance(value, timedelta):
        found = value.total_seconds() * 1000
    elif isinstance(value, str):
        with suppress(ValueError):
            found = parse_duration(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            found = value * 1000.0
    if not 0 <= found <= _LONGEST_MS:
        raise ArgumentError(
            f"{name} must be seconds, a timedelta, or a text such as '500ms', '5m' or '1h', "
            f"not {as_given(value)}"
        )
    return round(found)


def unix_ms(value: datetime, name: str) -> int:
    """Return an aware datetime in Unix milliseconds; raise ArgumentError for any other value."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ArgumentError(f"{name} must be a datetime with a time zone, not {as_given(value)}")
    found = round(value.timestamp() * 1000)
    if not 0 <= found <= 2 * _LONGEST_MS:
        raise ArgumentError(f"{name} must be between 1970 and 2170, not {value!r}")
    return found


class Backoff(NamedTuple):
    """How long a job waits before its next attempt: twice as long each time, with jitter."""

    first_ms: int
    most_ms: int

    def delay_ms(self, failures: int) -> int:
        """Return the wait after this many failed attempts, at random between half of it and all."""
        whole = min(self.first_ms * _FACTOR ** min(max(failures - 1, 0), 60), self.most_ms)
        return round(whole * random.uniform(0.5, 1.0))

    def __str__(self) -> str:
        return f"{self.first_ms}ms..{self.most_ms}ms"


DEFAULT_BACKOFF: Final = Backoff(1000, 600_000)


def backoff_of(value: str | Duration | Backoff) -> Backoff:
    """Return a backoff: "2s..10m" from two seconds up to ten minutes; one duration for a fixed one.

    Raises:
        ArgumentError: it is something else.
    """
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str) and ".." in value:
        first, _, most = value.partition("..")
        found = Backoff(milliseconds(first, "backoff"), milliseconds(most, "backoff"))
        if found.first_ms > found.most_ms:
            raise ArgumentError(f"backoff must begin with its shorter wait, not {value!r}")
        return found
    fixed = milliseconds(value, "backoff")
    return Backoff(fixed, fixed)
