"""One lease: a file whose lock shows that its process lives.

The lock is a POSIX record lock, because only that kind ends exactly when it should. The kernel
releases it when the process dies, however it dies. A forked child does not inherit it; an inherited
`flock` would keep the lease of a killed parent alive for as long as the child lives.

A file gets its final name after it was locked. So a file under a final name that is not locked
belongs to a dead process. It stays dead: numbers are random and never used again. A missing file
means the same. After a reboot no file is locked.

While the process works on something, the file also says on what (`marks`). A file with marks stays
for the process that takes the work over, for thirty days: a file of long work is not written.

A POSIX lock has one weakness: it ends when the process closes *any* descriptor of the file. Nothing
in this package opens the file of its own process. If another part of the process does (a copy of
the whole folder, say), `Lease.hold` takes the lock again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from streamkeep.engine.liveness.marks import FREE, MOST, SIZE, Marks, marks_in
from streamkeep.engine.system import files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import UntrustedFileError

_NEW: Final = ".new"  # after the name of a file that is not locked yet
_NEW_FOR_S: Final = 60.0  # after this time, the process that made such a file is dead
_WORK_FOR_S: Final = 30 * 86_400.0  # after this time, what a dead process worked on is forgotten
_MOST_BYTES: Final = MOST * SIZE
_NAME_SIZE: Final = 16
_DIGITS: Final = frozenset("0123456789abcdef")


class State(Enum):
    """Whether the process of a lease lives."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"  # there is no lease, or its file cannot be examined


class Holder(NamedTuple):
    """What the lock on the file of a lease says.

    Attributes:
        pid: the process, as this process may name it; 0 if it is in another PID namespace.
    """

    state: State
    pid: int


def lease_name(number: int) -> str:
    return f"{number:016x}"


def lease_numbers(folder: Folder) -> list[int]:
    """Return the numbers of all leases that have a file, alive or dead."""
    return [int(name, 16) for name in folder.names() if _is_lease_name(name)]


def _is_lease_name(name: str) -> bool:
    return len(name) == _NAME_SIZE and set(name) <= _DIGITS


def new_number() -> int:
    return secrets.randbits(62) | 1


class Lease:
    """The lease of this process on one store."""

    def __init__(self, folder: Folder, number: int) -> None:
        """Make the file and lock it; raise OSError if that fails."""
        self._folder = folder
        self.number = number
        name = lease_name(self.number)
        self._handle = folder.open(name + _NEW, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._marks: Marks | None = None
        self._may_mark = True
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder.rename(name + _NEW, name)
        except BaseException:
            self.close()
            raise

    def hold(self) -> None:
        """Take the lock again, in case this process has lost it; see the module."""
        fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def marks(self) -> Marks | None:
        """Return where the process writes what it works on; None if the disk has no room for it.

        One thread at a time may call it, since the first call makes it.
        """
        if self._marks is None and self._may_mark:
            try:
                self._marks = Marks(self._handle)
            except OSError:
                self._may_mark = False
                with suppress(OSError):
                    self.hold()  # the descriptor of a map that could not be made was closed
        return self._marks

    def close(self) -> None:
        """End the lease. What the process still works on counts as that of a dead one."""
        handle, self._handle = self._handle, -1
        marks, self._marks = self._marks, None
        if handle >= 0:
            try:
                for name in (lease_name(self.number), lease_name(self.number) + _NEW):
                    if marks is None or not marks.are_there():
                        with suppress(OSError):
                            self._folder.remove(name)
                if marks is not None:
                    marks.close()
            finally:  # also after an interrupt: until then the process counts as alive
                os.close(handle)

    def abandon(self) -> None:
        """Close the descriptor in a forked child. The lock belongs to the parent and stays."""
        handle, self._handle = self._handle, -1
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.leave_to_parent()
        if handle >= 0:
            os.close(handle)


def work_of(folder: Folder, number: int) -> list[bytes]:
    """Return the marks of what a dead process was working on."""
    try:
        return [
            mark for mark in marks_in(folder.read(lease_name(number), _MOST_BYTES)) if mark != FREE
        ]
    except (OSError, UntrustedFileError):
        return []


def forget_work(folder: Folder, number: int, marks: Collection[bytes]) -> None:
    """Remove marks from the file of a dead process, and the file with the last of them."""
    with suppress(OSError, UntrustedFileError):
        found = marks_in(folder.read(lease_name(number), _MOST_BYTES))
        left = [mark for mark in found if mark != FREE and mark not in marks]
        if not left:
            folder.remove(lease_name(number))
            return
        with folder.opened(lease_name(number), os.O_RDWR) as handle:
            for place, mark in enumerate(found):
                if mark in marks:
                    os.pwrite(handle, FREE, place * SIZE)


def holder_of(folder: Folder, number: int) -> Holder:
    """Return who holds a lease of another process."""
    try:
        handle = folder.open(lease_name(number))
    except FileNotFoundError:
        return Holder(State.DEAD, 0)
    except (OSError, UntrustedFileError):  # such as no permission, or no descriptors left
        return Holder(State.UNKNOWN, 0)
    wanted = files.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = files.FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, wanted))
    except OSError:
        return Holder(State.UNKNOWN, 0)
    finally:
        os.close(handle)
    if kind == fcntl.F_UNLCK:
        return Holder(State.DEAD, 0)
    return Holder(State.ALIVE, max(0, pid))


def remove_dead(folder: Folder, mine: int) -> None:
    """Remove the files of dead leases, and those that a process left before it had locked them.

    A file that says what its process was working on stays for thirty days.

    Args:
        mine: the lease of this process, whose file is not opened.
    """
    for name in folder.names():
        with suppress(OSError):
            if _is_lease_name(name):
                number = int(name, 16)
                if number == mine or holder_of(folder, number).state is not State.DEAD:
                    continue
                if _age_s(folder, name) > _WORK_FOR_S or not work_of(folder, number):
                    folder.remove(name)
            elif name.endswith(_NEW) and _age_s(folder, name) > _NEW_FOR_S:
                folder.remove(name)


def _age_s(folder: Folder, name: str) -> float:
    """Return for how long a file was not written; 0 if it is gone."""
    status = folder.status(name)
    return 0.0 if status is None else time.time() - status.st_mtime
