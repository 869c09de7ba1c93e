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
import logging
import os
import secrets
import select
import struct
from contextlib import suppress
from typing import Final

from streamkeep.engine.system.lock_order import make_lock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import UntrustedFileError

ALARM: Final = 0  # the ticket of nobody: everyone who waits at the door looks around
_TICKET: Final = struct.Struct("=Q")
_MOST: Final = 512  # tickets read at once
_MOST_OPEN: Final = 64  # doors of others that are kept open
_NAME_SIZE: Final = 16
_DIGITS: Final = frozenset("0123456789abcdef")

log = logging.getLogger("streamkeep")


class Bell:
    """The reading side of a door, which this process made."""

    def __init__(self, folder: Folder) -> None:
        self.handle = -1
        self.maker = 0  # the process that has to remove it
        self.number = secrets.randbits(63) | 1
        self.folder = folder
        self.name = door_name(self.number)
        self.maker = os.getpid()
        self.handle = folder.make_pipe(self.name)
        self.poller = select.poll()
        self.poller.register(self.handle, select.POLLIN)

    def __del__(self) -> None:
        """Remove it where an interrupt came before anybody held it, or while it was closed."""
        if self.maker == os.getpid():
            self.close()

    def notifications(self) -> list[int]:
        """Take and return the tickets that were rung since the last call."""
        try:
            data = os.read(self.handle, _TICKET.size * _MOST)
        except BlockingIOError:
            return []
        return [ticket for (ticket,) in _TICKET.iter_unpack(data)]

    def notify(self, ticket: int) -> None:
        """Ring one's own door."""
        with suppress(BlockingIOError):
            os.write(self.handle, _TICKET.pack(ticket))

    def close(self) -> None:
        """Remove the door."""
        _remove(self.folder, self.name)
        self.maker = 0
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor only: in a forked child the door belongs to the parent."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)


def door_name(number: int) -> str:
    """Return the name of the door with this number."""
    return f"{number:016x}"


class Notifier:
    """The doors that this process has rung, kept open: opening one costs more than the ring."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._handles: dict[int, int] = {}
        self._lock = make_lock("notifier")  # nobody rings while handles are closed
        self._closed = False

    def notify(self, number: int, ticket: int) -> bool:
        """Ring a door; False when nobody is behind it, which removes it."""
        with self._lock:
            if self._closed:
                return True
            handle = self._handles.get(number, -1)
            if handle < 0:
                name = door_name(number)
                try:
                    handle = self._folder.open_pipe(name)
                except UntrustedFileError as error:
                    log.warning("not rung, and left alone: %s", error)
                    return False
                except OSError as error:
                    if error.errno not in (errno.ENXIO, errno.ENOENT):
                        return True  # no descriptors left, say: it may well be alive
                    if error.errno == errno.ENXIO:
                        _remove(self._folder, name)
                    return False
                if len(self._handles) >= _MOST_OPEN:
                    self._close_all()
                self._handles[number] = handle
            try:
                os.write(handle, _TICKET.pack(ticket))
            except BrokenPipeError:
                del self._handles[number]
                os.close(handle)
                _remove(self._folder, door_name(number))
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
        self._lock = make_lock("notifier")
        self._close_all()

    def _close_all(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()


def _remove(folder: Folder, name: str) -> None:
    with suppress(OSError):
        folder.remove(name)


def is_door_name(name: str) -> bool:
    """Say whether a name in `waiters/` is that of a door."""
    return len(name) == _NAME_SIZE and set(name) <= _DIGITS


def remove_dead(folder: Folder) -> set[int]:
    """Remove the doors of processes that died; return the numbers of all others."""
    alive: set[int] = set()
    for name in filter(is_door_name, folder.names()):
        number = int(name, 16)
        try:
            handle = folder.open_pipe(name)
        except OSError as error:
            if error.errno == errno.ENXIO:
                _remove(folder, name)
            elif error.errno != errno.ENOENT:
                alive.add(number)
            continue
        os.close(handle)
        alive.add(number)
    return alive
