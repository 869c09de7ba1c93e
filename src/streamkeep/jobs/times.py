"""Durations, times and backoffs, as programs write them: "5m", 90, timedelta, "2s..10m"."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Final, NamedTuple

from streamkeep.format.core.durations import LONGEST_MS, Duration, milliseconds
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given

_FACTOR: Final = 2.0


def unix_ms(value: datetime, name: str) -> int:
    """Return an aware datetime in Unix milliseconds; raise ArgumentError for any other value."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ArgumentError(f"{name} must be a datetime with a time zone, not {as_given(value)}")
    found = round(value.timestamp() * 1000)
    if not 0 <= found <= 2 * LONGEST_MS:
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
