"""The only reader of time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Clock:
    """The wall clock, and a monotonic clock for timeouts. Tests replace either."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return self.now_ns() // 1_000_000


class ManualClock(Clock):
    """A clock that moves only when a test sets `ms`."""

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms
        self.now_ns = self._now_ns

    def _now_ns(self) -> int:
        return self.ms * 1_000_000


_current: ContextVar[Clock] = ContextVar("clock", default=Clock())  # noqa: B039  # it has no state


def current_clock() -> Clock:
    return _current.get()


@contextmanager
def clock_replaced(clock: Clock) -> Iterator[None]:
    """Use `clock` for the stores that are opened in this block; for tests."""
    token = _current.set(clock)
    try:
        yield
    finally:
        _current.reset(token)
