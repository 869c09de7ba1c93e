"""What was slow: SLOWLOG, LATENCY, and how long waits for the disk take.

The time of a command is that of its work in the turn. The commit, which it shares with the other
commands of the turn, is not part of it; waits for the disk are an event of LATENCY, and a
histogram. All of it is kept in memory only.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

from streamkeep.server.commands.words import text_of

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection
    from streamkeep.server.resp.turns import Turns

_MOST_WORDS: Final = 32
_MOST_BYTES: Final = 128  # of a word that is kept
_MOST_SAMPLES: Final = 160  # of an event, as in Redis
_NEVER: Final = 1 << 62

COMMAND: Final = "command"
DISK: Final = "aof-fsync-always"  # Redis's name for a wait for the disk
SYNC_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class SlowLog:
    """The commands, and other events, that took long.

    Attributes:
        slower_than_us: what is an entry of SLOWLOG; below zero nothing is.
        most: entries that are kept.
        threshold_ms: what is an event of LATENCY; 0 for nothing.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.slower_than_us = 10_000
        self.most = 128
        self.threshold_ms = 0
        self.entries: deque[list[object]] = deque()  # rows of SLOWLOG GET
        self.events: dict[str, deque[tuple[int, int]]] = {}
        self.longest: dict[str, int] = {}
        self._next = 0
        self.renew()

    def renew(self) -> None:
        """Take changed settings over."""
        least = [_NEVER if self.slower_than_us < 0 else self.slower_than_us * 1000]
        least += [self.threshold_ms * 1_000_000] if self.threshold_ms else []
        self._turns.slow_ns = min(least)
        while len(self.entries) > self.most:
            self.entries.pop()

    def note(self, client: Connection, words: list[bytes], nanos: int) -> None:
        """Note a command that took long."""
        micros = nanos // 1000
        if 0 <= self.slower_than_us <= micros and self.most:
            row = [self._next, int(time.time()), micros, _shortened(words)]
            self.entries.appendleft([*row, client.address.encode(), client.name])
            self._next += 1
            while len(self.entries) > self.most:
                self.entries.pop()
        self.note_event(COMMAND, nanos / 1e9)

    def note_event(self, event: str, seconds: float) -> None:
        """Note something that may have delayed clients."""
        millis = int(seconds * 1000)
        if not self.threshold_ms or millis < self.threshold_ms:
            return
        samples = self.events.setdefault(event, deque(maxlen=_MOST_SAMPLES))
        now = int(time.time())
        if samples and samples[-1][0] == now:
            millis = max(millis, samples.pop()[1])
        samples.append((now, millis))
        self.longest[event] = max(self.longest.get(event, 0), millis)

    def latest(self) -> list[object]:
        """Return the rows of LATENCY LATEST."""
        return [
            [event.encode(), *samples[-1], self.longest[event]]
            for event, samples in self.events.items()
        ]

    def history(self, event: bytes) -> list[object]:
        """Return the rows of LATENCY HISTORY."""
        return [list(sample) for sample in self.events.get(text_of(event), ())]

    def forget(self, events: list[bytes]) -> int:
        """Forget events, all of them where none is named; return how many there were."""
        chosen = list(map(text_of, events)) or list(self.events)
        named = [event for event in chosen if event in self.events]
        for event in named:
            del self.events[event]
            self.longest.pop(event, None)
        return len(named)


class SyncTimes:
    """A histogram of the waits for the disk: how many took at most each number of seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SYNC_BOUNDS_S) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Count a wait."""
        self.counts[bisect_left(SYNC_BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        """The number of waits."""
        return sum(self.counts)

    def at_most_us(self, share: float) -> int:
        """Return a time in microseconds that this share of the waits did not exceed."""
        left = share * self.count
        for bound, count in zip(SYNC_BOUNDS_S, self.counts, strict=False):
            left -= count
            if left <= 0:
                return round(bound * 1e6)
        return round(SYNC_BOUNDS_S[-1] * 1e6)


def _shortened(words: list[bytes]) -> list[bytes]:
    """Return words as SLOWLOG keeps them, in Redis's manner."""
    kept = words[:_MOST_WORDS] if len(words) <= _MOST_WORDS else words[: _MOST_WORDS - 1]
    found = [
        word
        if len(word) <= _MOST_BYTES
        else word[:_MOST_BYTES] + b"... (%d more bytes)" % (len(word) - _MOST_BYTES)
        for word in kept
    ]
    if len(kept) < len(words):
        found.append(b"... (%d more arguments)" % (len(words) - len(kept)))
    return found
