"""The only reader of time."""

from __future__ import annotations

import time


class Clock:
    """The wall clock, and one that only ever goes forward, for timeouts. Tests replace either."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return self.now_ns() // 1_000_000


class ManualClock(Clock):
    """A clock that stands still until it is told to move."""

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms
        self.now_ns = self._now_ns

    def _now_ns(self) -> int:
        return self.ms * 1_000_000
