"""Doors: the file descriptors that blocked readers sleep on, and how a writer rings.

A door is a named pipe in `waiters/`, named by a random number. Its reader sleeps in `poll`, or
has an event loop watch it; a writer opens it, writes the ticket of the wait that it ends, and
closes it: 4 microseconds, and no process needs to know another. Several waits may share a door,
as those of all tasks of an event loop do; the ticket says which of them was meant.

A door has no reader any more when the process that made it died, however it died: opening it for
writing then fails with ENXIO, writing with EPIPE, and whoever finds that removes it. A door that is
full of rings takes no more, and need not: its reader has enough to wake up for. Compiled by mypyc.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamkeep.engine import files

ALARM: Final = 0  # the ticket of nobody: everyone who waits at the door looks around
_TICKET: Final = struct.Struct("=Q")
_MOST: Final = 512  # tickets read at once
_MOST_OPEN: Final = 64  # doors of others that are kept open


class Door:
    """The reading side of a door, which this process made."""

    def __init__(self, folder: Path) -> None:
        self.handle = -1
        self.maker = 0  # the process that has to remove it
        self.number = secrets.randbits(63) | 1
        self.path = door_path(folder, self.number)
        self.maker = os.getpid()
        self.handle = files.create_pipe(self.path)
        self.poller = select.poll()
        self.poller.register(self.handle, select.POLLIN)

    def __del__(self) -> None:
        """Remove it where an interrupt came before anybody held it, or while it was closed."""
        if self.maker == os.getpid():
            self.close()

    def rings(self) -> list[int]:
        """Take and return the tickets that were rung since the last call."""
        try:
            data = os.read(self.handle, _TICKET.size * _MOST)
        except BlockingIOError:
            return []
        return [ticket for (ticket,) in _TICKET.iter_unpack(data)]

    def ring(self, ticket: int) -> None:
        """Ring one's own door."""
        with suppress(BlockingIOError):
            os.write(self.handle, _TICKET.pack(ticket))

    def close(self) -> None:
        """Remove the door."""
        with suppress(OSError):
            os.unlink(self.path)
        self.maker = 0
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor only: in a forked child the door belongs to the parent."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)


def door_path(folder: Path, number: int) -> Path:
    """Return where the door with this number is."""
    return folder / f"{number:016x}"


class Doorbells:
    """The doors that this process has rung, kept open: opening one costs more than the ring."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: dict[int, int] = {}
        self._lock = threading.Lock()  # nobody rings while handles are closed
        self._closed = False

    def ring(self, number: int, ticket: int) -> bool:
        """Ring a door; False when nobody is behind it, which removes it."""
        with self._lock:
            if self._closed:
                return True
            handle = self._handles.get(number, -1)
            if handle < 0:
                path = door_path(self._folder, number)
                try:
                    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError as error:
                    if error.errno not in (errno.ENXIO, errno.ENOENT):
                        return True  # no descriptors left, say: it may well be alive
                    if error.errno == errno.ENXIO:
                        _remove(path)
                    return False
                if len(self._handles) >= _MOST_OPEN:
                    self._close_all()
                self._handles[number] = handle
            try:
                os.write(handle, _TICKET.pack(ticket))
            except BrokenPipeError:
                del self._handles[number]
                os.close(handle)
                _remove(door_path(self._folder, number))
                return False
            except BlockingIOError:
                pass
            return True

    def close(self) -> None:
        """Close all of them, and ring no more."""
        with self._lock:
            self._closed = True
            self._close_all()

    def abandon(self) -> None:
        """As `close`, in a forked child, where the lock may be held for ever."""
        self._lock = threading.Lock()
        self._close_all()

    def _close_all(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()


def _remove(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)


def remove_dead(folder: Path) -> set[int]:
    """Remove the doors of processes that died; return the numbers of all others."""
    alive: set[int] = set()
    for path in folder.iterdir():
        try:
            number = int(path.name, 16)
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except ValueError:
            continue
        except OSError as error:
            if error.errno == errno.ENXIO:
                path.unlink(missing_ok=True)
            elif error.errno != errno.ENOENT:
                alive.add(number)
            continue
        os.close(handle)
        alive.add(number)
    return alive
