"""Slots: how far each copy elsewhere, or reader of changes, is, and which journal files it needs.

`streamkeep ship` keeps a file in `journal/` for each target. A checkpoint retires no journal file
that a slot names, so that the copy goes on where it ended, whichever process makes the checkpoint.
What a slot may hold is bounded: then the copy begins anew, and the store does not fill the disk for
a target that is gone. A store that is not copied has no slot, and holds nothing.

A reader of the change feed has a slot, too, while it is at work; its target begins with `FEED`. It
is held by a lock. So that of a process which was killed is found, and removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from streamkeep.engine.journal.reader import NOWHERE
from streamkeep.engine.journal.write_lock import LOCK_FILE
from streamkeep.engine.system import files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.json_form import of_types
from streamkeep.format.journal.position import LogPosition

FEED: Final = "changes:"  # and a random number
_PREFIX: Final = "slot-"
FOLLOWING: Final = "following"  # what a store that follows a Redis server locks
_NEW: Final = ".new"  # while it is written
_UNLOCK: Final = files.FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)  # all of the file
_MOST_BYTES: Final = 1 << 16  # of a file; a longer one is damaged


class Sent(NamedTuple):
    """The last commit of a piece, or of a base, and the checksum of its record."""

    commit_number: int
    chain: int


class Slot(NamedTuple):
    """One slot.

    Attributes:
        target: URI of the copy.
        generation: the one that goes on; empty before the first is whole.
        begun: those that were begun since, of which the target may already name one; or empty.
        epoch: that of the journal file where the position is.
        position: from where on records are needed; `NOWHERE` if the copy does not go on there.
        shipped: the target has all commits up to this one.
        shipped_ms: Unix time at which it had.
        hold_bytes: of journal files before the newest checkpoint, at most.
        erased: the copy may still have what was erased from the store.
        proved_ms: Unix time at which the copy was verified, as it says itself; 0 for never.
        missing: segments of the archive that the store did not have to be copied.
        taken_over: another store has taken over the copy, and this one may not ship there.
        sending: what was begun to be written after those commits. This is noted before, so the
            target has no other commit of this store; an older state of the store, which comes back,
            knows that it is older.
    """

    target: str
    generation: str
    begun: str
    epoch: int
    position: LogPosition
    shipped: int
    shipped_ms: int
    hold_bytes: int
    erased: bool = False
    proved_ms: int = 0
    missing: int = 0
    taken_over: bool = False
    sending: tuple[Sent, ...] = ()

    @property
    def name(self) -> str:
        return slot_name(self.target)

    @property
    def newest(self) -> int:
        """The target has no later commit of this store."""
        return max([self.shipped, *(one.commit_number for one in self.sending)])

    def refused(self) -> Slot:
        """Return the slot of a store that may not ship to the target, and holds nothing for it."""
        return self._replace(epoch=0, position=NOWHERE, taken_over=True)

    def write(self, folder: Folder, *, durable: bool = False) -> None:
        """Replace the file in `journal/`; a power loss may leave the one before, unless durable.

        Raises:
            StoreFullError: there is no room; the file is as it was.
        """
        members = {**self._asdict(), "position": tuple(self.position)}
        try:
            handle = folder.replace(self.name + _NEW)
            try:
                files.write_at(handle, (json.dumps(members) + "\n").encode(), 0)
                if durable:
                    files.sync_data(handle)
            finally:
                os.close(handle)
            folder.rename(self.name + _NEW, self.name)
            if durable:
                folder.sync()
        except OSError as error:
            raise translate_os(error) from error


_LIKE: Final = Slot("", "", "", 0, LogPosition(0, 0, 0, 0), 0, 0, 0)


def slot_name(target: str) -> str:
    return _PREFIX + hashlib.blake2b(target.encode(), digest_size=8).hexdigest()


class SlotLock:
    """A lock that this process has: its descriptor. A forked child closes it, and has none.

    Otherwise the lock would outlive the parent, and hold what a dead process no longer needs.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        _locks.add(self)

    def is_taken(self) -> bool:
        """Return whether this process has the lock."""
        return self._handle >= 0

    def close(self) -> None:
        """Release the lock, unless that was done."""
        if self._handle >= 0:
            # Also for a child of a fork in another thread, which may come before the next lines.
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, _UNLOCK)
        self.leave()

    def leave(self) -> None:
        """Close the descriptor; a parent of this process keeps the lock."""
        handle, self._handle = self._handle, -1
        _locks.discard(self)
        if handle >= 0:
            os.close(handle)


_locks: set[SlotLock] = set()


def _leave_to_parent() -> None:
    for lock in list(_locks):
        lock.leave()


os.register_at_fork(after_in_child=_leave_to_parent)


def hold_slot(folder: Folder, target: str) -> SlotLock | None:
    """Lock what ships the store to a target, or follows that.

    It is a byte of a file that stays: the file of the slot is replaced all the time.

    Returns:
        None if another process or thread has it.
    """
    held = SlotLock(handle := folder.open(LOCK_FILE, os.O_RDWR))
    try:
        lock = files.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _place(target), 1, 0)
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, lock)
    except BaseException as error:
        held.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return held


def is_held(folder: Folder, target: str) -> bool:
    """Return whether a process has what `hold_slot` locks."""
    lock = files.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _place(target), 1, 0)
    try:
        with folder.opened(LOCK_FILE) as handle:
            found = files.FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_OFD_GETLK, lock))
    except FileNotFoundError:  # no process has had the store open for writing
        return False
    return bool(found[0] != fcntl.F_UNLCK)


def _place(target: str) -> int:
    return int(slot_name(target).removeprefix(_PREFIX), 16) >> 2


def is_slot_name(name: str) -> bool:
    """Return whether a name in `journal/` is that of a slot, or of one that is being written."""
    digits = name.removeprefix(_PREFIX).removesuffix(_NEW)
    return name.startswith(_PREFIX) and len(digits) == 16 and digits.isalnum()


def read_slot(folder: Folder, name: str) -> Slot | None:
    """Return a slot; None if there is none.

    Raises:
        CorruptionError: it is damaged.
    """
    try:
        data = folder.read(name, _MOST_BYTES)
    except FileNotFoundError:
        return None
    try:
        slot = Slot(**json.loads(data))
        sending = tuple(of_types(Sent(*one), Sent(0, 0)) for one in slot.sending)
        slot = slot._replace(position=LogPosition(*slot.position), sending=sending)
        of_types(slot.position, _LIKE.position)
        if of_types(slot, _LIKE).name != name:
            raise ValueError("not a slot")
    except (AttributeError, ValueError, TypeError, RecursionError) as error:
        raise CorruptionError(f"{folder.path / name}", f"{error}") from None
    return slot


def read_slots(folder: Folder, *, feeds: bool = False) -> Iterator[Slot]:
    """Yield the slots of copies that can be read: what the others hold is not known.

    Args:
        feeds: also yield those of readers of the change feed that are at work.
    """
    for name in filter(is_slot_name, folder.names()):
        try:
            slot = read_slot(folder, name)
        except CorruptionError:
            continue  # its shipper finds that out, and is refused
        if slot is None:
            continue
        if not slot.target.startswith(FEED):
            yield slot
        elif feeds:
            held = hold_slot(folder, slot.target)
            if held is None:
                yield slot
            else:
                folder.remove(name)
                held.close()


def end_slots_ahead(folder: Folder, newest_commit: Callable[[], int]) -> None:
    """End the copies that were sent commits which the store does not have.

    A store that lacks them is an older state of it, such as a backup in its place: what is sent was
    on disk here before. That shows only until it has made as many commits of its own. So each
    opening for writing looks.
    """
    for slot in list(read_slots(folder)):  # before the newest commit is: a shipper may go on
        if slot.newest > newest_commit() and not slot.taken_over:
            slot.refused().write(folder, durable=True)
