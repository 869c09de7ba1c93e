"""The file `steady`: the two slots for checkpoints, and the lock of the store.

Each process that has the store open holds a shared lock on the file. Recovery needs the exclusive
lock, which a process gets only if no other one has the store open.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamkeep.engine.system import boot_id, failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.long_wait import WRITE_LOCK, LongWait, holders_of
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import keep_in_place
from streamkeep.format.core.errors import CorruptionError, StoreLockedError
from streamkeep.format.journal import checkpoint

CHECKPOINT_FILE: Final = "steady"
UNFINISHED: Final = b"SKP: being created"  # in the first slot until there is a checkpoint
_SIZE: Final = checkpoint.SLOTS * checkpoint.SLOT_SIZE
_PATIENCE_S: Final = 60.0
_SHORT_PATIENCE_S: Final = 2.0
_POLL_S: Final = 0.02


class CheckpointFile:
    """The open checkpoint file."""

    def __init__(self, folder: Folder, *, readonly: bool) -> None:
        """Open the file, or create it; a read-only open raises FileNotFoundError instead."""
        self.folder = folder
        self.path = folder.path / CHECKPOINT_FILE
        self._unlisted = -1
        flags = os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT
        self.handle = folder.open(CHECKPOINT_FILE, flags)

    def close(self) -> None:
        """Close the file, which releases the lock."""
        handles = self.handle, self._unlisted
        self.handle = self._unlisted = -1
        for handle in handles:
            if handle >= 0:
                os.close(handle)

    def is_removed(self) -> bool:
        """Return whether the file, or its folder, was removed since it was opened."""
        return os.fstat(self.handle).st_nlink == 0 or os.fstat(self.folder.handle).st_nlink == 0

    # --- the lock ---------------------------------------------------------------------------

    def try_exclusive(self) -> bool:
        """Take the exclusive lock if no process has the store open; return whether it did."""
        return _try_lock(self.handle, fcntl.LOCK_EX)

    def share(self) -> None:
        """Take the shared lock, in exchange for the exclusive lock if that is held.

        Raises:
            StoreLockedError: another process has been recovering the store for too long.
        """
        self._wait(self.handle, lambda: _try_lock(self.handle, fcntl.LOCK_SH))

    def share_when_ready(self, prepare: Callable[[bool], bool]) -> None:
        """Take the shared lock on a store that is ready to be used.

        A process that gets the exclusive lock makes the store ready and then exchanges the lock.
        A shared lock alone does not show that the store is ready: the process that held the
        exclusive one may have been killed.

        Args:
            prepare: with True it makes the store ready, under the exclusive lock. With False,
                other processes have the store open: it returns whether one of them made it ready.

        Raises:
            StoreLockedError: another process has been recovering the store for too long.
        """

        def try_it() -> bool:
            if self.try_exclusive():
                prepare(True)
                return _try_lock(self.handle, fcntl.LOCK_SH)
            if _try_lock(self.handle, fcntl.LOCK_SH):
                if prepare(False):
                    return True
                fcntl.flock(self.handle, fcntl.LOCK_UN)
            return False

        self._wait(self.handle, try_it)

    def read_unlisted(self, data: str, prepare: Callable[[bool], bool]) -> None:
        """Take the lock of a reader that cannot enter itself into LMDB's table of readers.

        Such a reader holds a shared lock on the data file, which keeps every writer out until the
        reader ends. To take it, no other process may have the store open.

        Args:
            prepare: raises if the store is not ready.

        Raises:
            StoreLockedError: another process has the store open.
        """
        self._wait(
            self.handle,
            self.try_exclusive,
            "open in another process, and this one may not write lock.mdb, which readers need; "
            "next: get permission to write lock.mdb, or read a backup",
        )
        prepare(True)
        self._unlisted = self.folder.open(data)
        fcntl.flock(self._unlisted, fcntl.LOCK_SH)
        fcntl.flock(self.handle, fcntl.LOCK_UN)

    def check_no_unlisted(self, data: str) -> None:
        """Raise StoreLockedError while a reader as in `read_unlisted` is at work."""
        if not self.folder.exists(data):
            return
        with self.folder.opened(data) as handle:
            self._wait(
                handle,
                lambda: _try_lock(handle, fcntl.LOCK_EX),  # another process may look as well
                "a process that may not write lock.mdb is reading the store, which keeps writers "
                "out; next: end that process, or give it permission to write lock.mdb",
            )

    def _wait(self, handle: int, done: Callable[[], bool], problem: str = "") -> None:
        """Return when something is done; raise StoreLockedError if it takes too long.

        Args:
            handle: the file whose lock is in the way; a process that has it may be stopped.
        """
        seconds = _SHORT_PATIENCE_S if problem else _PATIENCE_S
        recovers = "another process has been recovering, repairing or compacting the store for "
        recovers += f"{seconds:.0f} seconds; next: try again when it has finished"
        wait = LongWait(WRITE_LOCK, lambda: holders_of([handle]))
        wait.limit_s = min(wait.limit_s, seconds)
        deadline = time.monotonic() + seconds
        with wait:
            while not done():
                wait.check()
                wait.report()
                if time.monotonic() > deadline:
                    raise StoreLockedError(f"{self.path.parent}: {problem or recovers}")
                time.sleep(_POLL_S)

    # --- the slots --------------------------------------------------------------------------

    def newest(self) -> checkpoint.CheckpointSlot | None:
        """Return the newest checkpoint; None if there has never been one.

        Raises:
            CorruptionError: there has been one, but no slot is valid.
        """
        data = self._read()  # read only once: another process may be writing
        found = valid_slots(data)
        if found:
            return max(found.values(), key=age)
        if any(data) and not data.startswith(UNFINISHED):
            raise CorruptionError(
                str(self.path), "neither checkpoint is valid; next: run `streamkeep repair`"
            )
        return None

    def newest_on_disk(self) -> checkpoint.CheckpointSlot | None:
        """As `newest`; the checkpoint is on disk on return.

        The process that wrote it may have been killed before its sync. Until it is on disk, no
        process may rely on it or overwrite the older one.
        """
        slot = self.newest()
        if slot is not None:
            files.sync_data(self.handle)
        return slot

    def rewrite(self) -> None:
        """Write the newest checkpoint again, since after a failed sync it may not be on disk.

        The kernel then counts its page as clean and would not write it with the next sync.
        """
        with suppress(OSError):  # the error of an earlier sync
            files.sync_data(self.handle)
        found = valid_slots(self._read())
        position = max(found, key=lambda one: age(found[one]))
        files.write_at(self.handle, found[position].encode(), position * checkpoint.SLOT_SIZE)
        files.sync_data(self.handle)

    def take_over(self, slots: bytes) -> None:
        """Overwrite the slots with those of another such file; they are on disk on return."""
        files.write_at(self.handle, slots[:_SIZE], 0)
        files.sync_data(self.handle)

    def is_unfinished(self) -> bool:
        """Return whether the creation of the store was begun and not finished."""
        data = self._read()
        return data.startswith(UNFINISHED) and not valid_slots(data)

    def mark_unfinished(self) -> None:
        keep_in_place(self.handle)
        files.reserve(self.handle, _SIZE)  # later checkpoints need no more disk space
        files.write_at(self.handle, UNFINISHED, 0)
        files.sync_data(self.handle)
        self.folder.sync()  # the mark must be on disk before any file that it covers
        failpoints.hit("create:marked")

    def write(self, slot: checkpoint.CheckpointSlot) -> None:
        """Overwrite the older checkpoint; the new one is on disk on return.

        Raises:
            StoreError: the write failed; the newest checkpoint is unchanged.
            OSError: the sync failed; it is unknown which checkpoint is on disk.
        """
        found = valid_slots(self._read())
        free = [position for position in range(checkpoint.SLOTS) if position not in found]
        position = free[-1] if free else min(found, key=lambda one: age(found[one]))
        try:
            data = slot.encode().ljust(checkpoint.SLOT_SIZE, b"\0")
            files.overwrite(self.handle, data, position * checkpoint.SLOT_SIZE)
        except OSError as error:
            raise translate_os(error) from error
        failpoints.hit("checkpoint:slot-written")
        files.sync_data(self.handle)

    def _read(self) -> bytes:
        return os.pread(self.handle, _SIZE, 0)


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def valid_slots(data: bytes) -> dict[int, checkpoint.CheckpointSlot]:
    """Return the checkpoints in the bytes of the file, by their places."""
    found = {}
    for position in range(checkpoint.SLOTS):
        start = position * checkpoint.SLOT_SIZE
        slot = checkpoint.decode_slot(data[start : start + checkpoint.SLOT.size])
        if slot is not None:
            found[position] = slot
    return found


def age(slot: checkpoint.CheckpointSlot) -> tuple[int, int, int, int]:
    """Return the sort key of slots; a slot that was written again in another boot is newer."""
    again = 2 if slot.boot_id == checkpoint.NO_BOOT else int(slot.boot_id == boot_id.boot_id())
    return slot.epoch, slot.commit_number, slot.journal_file, again
