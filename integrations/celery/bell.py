"""How the threads of a transport wake the loop that delivers messages: a descriptor to watch."""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque
from typing import Any, NamedTuple

from streamkeep.jobs import Job


class Arrived(NamedTuple):
    """A message that was taken from a queue and is to be delivered.

    Attributes:
        channel: the channel that consumes the queue.
        message: as Kombu's virtual transports have it.
        job: what is to be acknowledged; None for a message of a passing queue.
    """

    channel: Any
    queue: str
    message: dict[str, Any]
    job: Job | None


class Bell:
    """Messages that have arrived, and a descriptor that is readable while there may be some."""

    def __init__(self) -> None:
        self.arrived: deque[Arrived] = deque()
        self.handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Wake the loop."""
        if self.handle >= 0:
            os.eventfd_write(self.handle, 1)

    def silence(self) -> None:
        """Make the descriptor unreadable; before the messages are looked at."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.handle)

    def wait(self, seconds: float | None) -> None:
        """Sleep until it rings, or the time is over; None for no limit."""
        watched = select.poll()
        watched.register(self.handle, select.POLLIN)
        watched.poll(None if seconds is None else max(0.0, seconds) * 1000)

    def close(self) -> None:
        """Close the descriptor."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)
