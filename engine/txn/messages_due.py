"""When the next message of idempotent XADD expires, by stream: notes in memory, for the sweep.

A write transaction notes the messages that it tracks before it commits, under the write lock. The
sweep drops a note under the same lock, so that no note of a remaining message is lost. `due` is
called without the write lock, so the notes have a lock of their own.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.system.locks import make_lock

NEVER: Final = 1 << 64


class MessagesDue:
    """The earliest time, in Unix milliseconds, at which a stream may have something to forget."""

    def __init__(self) -> None:
        self._lock = make_lock("messages due")
        self._at: dict[bytes, int] = {}
        self.next_ms: int = NEVER  # not above the earliest of all

    def note(self, name: bytes, due_ms: int) -> None:
        """Note that a message of a stream expires at a time."""
        with self._lock:
            known = self._at.get(name)
            if known is None or due_ms < known:
                self._at[name] = due_ms
                self.next_ms = min(self.next_ms, due_ms)

    def drop(self, name: bytes) -> None:
        """Forget the note of a stream, which the sweep is looking at."""
        with self._lock:
            self._at.pop(name, None)

    def rename(self, name: bytes, target: bytes) -> None:
        """Move the note of a stream to its new name."""
        with self._lock:
            due_ms = self._at.pop(name, None)
        if due_ms is not None:
            self.note(target, due_ms)

    def due(self, now_ms: int) -> list[bytes]:
        """Return the streams with messages that have expired."""
        if now_ms < self.next_ms:
            return []
        with self._lock:
            self.next_ms = min(self._at.values(), default=NEVER)
            return [name for name, at in self._at.items() if at <= now_ms]
