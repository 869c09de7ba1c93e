"""Bells: the pipes that blocked readers sleep on, and how a writer wakes them.

A bell is a named pipe in `waiters/`; its name is a random number. Its reader sleeps in `poll`, or
an event loop watches it. A writer opens it and writes the ticket of the wait that it ends: 4
microseconds, and no process needs to know another one. Several waits may share a bell, as those of
all tasks of an event loop do; the ticket says which of them is meant.

When the process that made a bell dies, the bell has no reader. Opening it for writing then fails
with ENXIO, writing with EPIPE, and the writer removes it. A full pipe accepts no more tickets, and
needs none: its reader wakes up anyway.
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

from streamkeep.engine.system.locks import make_reentrant_lock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import UntrustedFileError

ALARM: Final = 0  # the ticket of no wait: all waits at the bell look at the store
_TICKET: Final = struct.Struct("=Q")
_MOST: Final = 512  # tickets read at once
_MOST_OPEN: Final = 64  # bells of other processes that are kept open
_NAME_SIZE: Final = 16
_DIGITS: Final = frozenset("0123456789abcdef")

log = logging.getLogger("streamkeep")


class Bell:
    """The reading side of a bell, which this process made."""

    # What `__del__` reads, also if an interrupt has come before anything was set.
    handle = -1
    maker = 0  # the process that has to remove it

    def __init__(self, folder: Folder) -> None:
        self.number = secrets.randbits(63) | 1
        self.folder = folder
        self.name = bell_name(self.number)
        self.maker = os.getpid()
        self.handle = folder.make_pipe(self.name)
        self.poller = select.poll()
        self.poller.register(self.handle, select.POLLIN)

    def __del__(self) -> None:
        """Remove the bell if an interrupt came before a caller had it, or while it was closed."""
        if self.maker == os.getpid():
            self.close()

    def notifications(self) -> list[int]:
        """Take and return the tickets that were written since the last call."""
        try:
            data = os.read(self.handle, _TICKET.size * _MOST)
        except BlockingIOError:
            return []
        return [ticket for (ticket,) in _TICKET.iter_unpack(data)]

    def notify(self, ticket: int) -> None:
        with suppress(BlockingIOError):
            os.write(self.handle, _TICKET.pack(ticket))

    def remove(self) -> None:
        """Remove its name, before the folder is closed; its reader may still read it."""
        _remove(self.folder, self.name)

    def close(self) -> None:
        self.remove()
        self.maker = 0
        self.abandon()

    def abandon(self) -> None:
        """Close only the descriptor: in a forked child the bell belongs to the parent."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)


def bell_name(number: int) -> str:
    return f"{number:016x}"


class Notifier:
    """Writes tickets to bells, and keeps them open: opening one costs more than a ticket."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._handles: dict[int, int] = {}
        # Reentrant, so that it knows its thread: see `Ending.check_may_close`.
        self.lock = make_reentrant_lock("notifier")
        self._closed = False

    def notify(self, number: int, ticket: int) -> bool:
        """Write a ticket to a bell; return False if it has no reader, which removes it."""
        with self.lock:
            if self._closed:
                return True
            handle = self._handles.get(number, -1)
            if handle < 0:
                name = bell_name(number)
                try:
                    handle = self._folder.open_pipe(name)
                except UntrustedFileError as error:
                    log.warning("a waiting reader was not woken; it polls every second: %s", error)
                    return False
                except OSError as error:
                    if error.errno not in (errno.ENXIO, errno.ENOENT):
                        return True  # such as no descriptors left: the reader may be alive
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
                _remove(self._folder, bell_name(number))
                return False
            except BlockingIOError:
                pass
            return True

    def close(self) -> None:
        """Close all bells, and wake no more readers."""
        with self.lock:
            self._closed = True
            self._close_all()

    def abandon(self) -> None:
        """As `close`, in a forked child, where the lock may never be released."""
        self.lock = make_reentrant_lock("notifier")
        self._close_all()

    def _close_all(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])


def _remove(folder: Folder, name: str) -> None:
    with suppress(OSError):
        folder.remove(name)


def is_bell_name(name: str) -> bool:
    return len(name) == _NAME_SIZE and set(name) <= _DIGITS


def remove_dead(folder: Folder) -> set[int]:
    """Remove the bells of processes that died; return the numbers of the others."""
    alive: set[int] = set()
    for name in filter(is_bell_name, folder.names()):
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
