"""How many jobs a worker takes at once: as many as it has lately begun within a moment.

One transaction for each job costs a fast worker time. A slow worker must not hold jobs that others
could run. So the number follows the pace of the worker: it doubles as long as jobs are begun faster
than they are taken, and it is one where a job takes long.
"""

from __future__ import annotations

import time
from typing import Final

MOMENT_S: Final = 0.05
HELD_S: Final = 1.0  # a job that was taken but not started within this time is returned
MOST: Final = 100


class Pace:
    """The pace at which one worker begins jobs."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._taken = 0
        self._taken_at = 0.0

    def wanted(self) -> int:
        """Return how many jobs to take now; all that were taken before have begun."""
        if not self._taken:
            return 1
        seconds = max(time.monotonic() - self._taken_at, 1e-6)
        within_moment = int(self._taken * MOMENT_S / seconds)
        return max(1, min(within_moment, 2 * self._taken, self._most))

    def took(self, count: int) -> None:
        """Note how many were taken, now."""
        self._taken = count
        self._taken_at = time.monotonic()

    def until_late(self) -> float:
        """Return in how many seconds those that were taken and have not begun are to go back."""
        return max(0.0, self._taken_at + HELD_S - time.monotonic())
