"""The file `steady`: the two slots of checkpoints, and the lock of the store.

Whoever has the store open holds a shared lock on the file; recovery happens under an exclusive
one, which only the first process to open the store can get.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamkeep.engine.journal.control_file import LogPosition
from streamkeep.engine.system import boot_id, failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError, StoreLockedError
from streamkeep.format.log.checkpoint import (
    NO_BOOT,
    SLOT,
    SLOT_SIZE,
    SLOTS,
    CheckpointSlot,
    decode_slot,
)

CHECKPOINT_FILE: Final = "steady"
UNFINISHED: Final = b"SKP: being created"  # in the first slot, until there is a checkpoint
_PATIENCE_S: Final = 60.0
_SHORT_PATIENCE_S: Final = 2.0
_POLL_S: Final = 0.02


class CheckpointFile:
    """The open file."""

    def __init__(self, folder: Folder, *, readonly: bool) -> None:
        """Open the file, or create it; raise FileNotFoundError where it may not be created."""
        self.folder = folder
        self.path = folder.path / CHECKPOINT_FILE
        self._unlisted = -1
        flags = os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT
        self.handle = folder.open(CHECKPOINT_FILE, flags)

    def close(self) -> None:
        """Close the file, which gives up the lock."""
        for handle in (self.handle, self._unlisted):
            if handle >= 0:
                os.close(handle)
        self.handle = self._unlisted = -1

    # --- the lock ---------------------------------------------------------------------------

    def try_exclusive(self) -> bool:
        """Get the exclusive lock if nobody has the store open; say whether."""
        return self._lock(fcntl.LOCK_EX)

    def share(self) -> None:
        """Get the shared lock, in exchange for the exclusive one if that is held.

        Raises:
            StoreLockedError: another process has been recovering the store for a long time.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while not self._lock(fcntl.LOCK_SH):
            self._wait(deadline)

    def share_when_ready(self, prepare: Callable[[bool], bool]) -> None:
        """Get the shared lock, on a store that is ready.

        Who gets the exclusive lock makes the store ready, and takes the shared one in exchange.
        The shared one alone says nothing: whoever had the exclusive one may have been killed.

        Args:
            prepare: makes the store ready when it is given True, under the exclusive lock. When it
                is given False, others have the store open: says whether one of them did.

        Raises:
            StoreLockedError: another process has been recovering the store for a long time.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            if self.try_exclusive():
                prepare(True)
                if self._lock(fcntl.LOCK_SH):
                    return
            elif self._lock(fcntl.LOCK_SH):
                if prepare(False):
                    return
                fcntl.flock(self.handle, fcntl.LOCK_UN)
            self._wait(deadline)

    def read_unlisted(self, data: str, prepare: Callable[[bool], bool]) -> None:
        """Get the lock of a reader that cannot put itself into LMDB's table of readers.

        It holds a shared lock on the data file, and this one only to get it: nobody may have the
        store open then, and nobody may write before the reader ends.

        Args:
            prepare: raises when the store is not ready.

        Raises:
            StoreLockedError: others have the store open.
        """
        deadline = time.monotonic() + _SHORT_PATIENCE_S
        while not self.try_exclusive():
            if time.monotonic() > deadline:
                raise StoreLockedError(
                    f"{self.path.parent}: open in another process; to read beside it takes "
                    "permission to write lock.mdb; get that, or read a backup"
                )
            time.sleep(_POLL_S)
        prepare(True)
        self._unlisted = self.folder.open(data)
        fcntl.flock(self._unlisted, fcntl.LOCK_SH)
        fcntl.flock(self.handle, fcntl.LOCK_UN)

    def check_no_unlisted(self, data: str) -> None:
        """Raise StoreLockedError while there is a reader as in `read_unlisted`; with this lock."""
        if not self.folder.exists(data):
            return
        handle = self.folder.open(data)
        try:
            deadline = time.monotonic() + _SHORT_PATIENCE_S
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                if time.monotonic() > deadline:
                    raise StoreLockedError(
                        f"{self.path.parent}: read by a process without permission to write "
                        "lock.mdb, beside which nobody may write; end it, or give it that"
                    )
                time.sleep(_POLL_S)  # another may be looking, too
        finally:
            os.close(handle)

    def _wait(self, deadline: float) -> None:
        """Wait a little; raise when it has been long."""
        if time.monotonic() > deadline:
            raise StoreLockedError(
                f"{self.path.parent}: another process is recovering or repairing the store; "
                "wait for it"
            )
        time.sleep(_POLL_S)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self.handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    # --- the slots --------------------------------------------------------------------------

    def newest(self) -> CheckpointSlot | None:
        """Return the newest checkpoint; None when there has never been one.

        Raises:
            CorruptionError: there has been one, but no slot is whole.
        """
        data = self._read()  # once: another process may be writing
        found = _whole(data)
        if found:
            return max(found.values(), key=age)
        if any(data) and not data.startswith(UNFINISHED):
            raise CorruptionError(str(self.path), "neither checkpoint is whole")
        return None

    def newest_on_disk(self) -> CheckpointSlot | None:
        """As `newest`; it is on disk on return.

        The process that wrote it may have been killed before its sync. Nobody may rely on it, or
        write over the older one, until it is there.
        """
        slot = self.newest()
        if slot is not None:
            files.sync_data(self.handle)
        return slot

    def rewrite(self) -> None:
        """Write the newest checkpoint once more: after a failed sync it may not be on disk.

        The system took its page for written then, and would not write it again.
        """
        found = _whole(self._read())
        position = max(found, key=lambda one: age(found[one]))
        files.write_at(self.handle, found[position].encode(), position * SLOT_SIZE)
        files.sync_data(self.handle)

    def take_over(self, slots: bytes) -> None:
        """Write the slots of another such file over these; they are on disk on return."""
        files.write_at(self.handle, slots[: SLOTS * SLOT_SIZE], 0)
        files.sync_data(self.handle)

    def is_unfinished(self) -> bool:
        """Say whether the store's creation was begun, and never finished."""
        data = self._read()
        return data.startswith(UNFINISHED) and not _whole(data)

    def mark_unfinished(self) -> None:
        """Note that a store is being created."""
        files.reserve(self.handle, SLOTS * SLOT_SIZE)  # later points need no room on the disk
        files.write_at(self.handle, UNFINISHED, 0)
        files.sync_data(self.handle)
        self.folder.sync()  # before there is anything that it speaks of
        failpoints.hit("create:marked")

    def write(self, slot: CheckpointSlot) -> None:
        """Write a checkpoint over the older one; it is on disk on return.

        Raises:
            StoreError: it could not be written; the newest is still the one before.
            OSError: the sync failed, and nobody knows which is on disk.
        """
        found = _whole(self._read())
        free = [position for position in range(SLOTS) if position not in found]
        position = free[-1] if free else min(found, key=lambda one: age(found[one]))
        try:
            files.write_at(self.handle, slot.encode().ljust(SLOT_SIZE, b"\0"), position * SLOT_SIZE)
        except OSError as error:
            raise translate_os(error) from error
        failpoints.hit("checkpoint:slot-written")
        files.sync_data(self.handle)

    def _read(self) -> bytes:
        return os.pread(self.handle, SLOTS * SLOT_SIZE, 0)


def position_of(slot: CheckpointSlot) -> LogPosition:
    """Return where the journal goes on behind a checkpoint."""
    return LogPosition(
        slot.journal_file, slot.journal_offset, slot.journal_chain, slot.commit_number
    )


def _whole(data: bytes) -> dict[int, CheckpointSlot]:
    """Return the slots that are whole, by place."""
    found = {}
    for position in range(SLOTS):
        slot = decode_slot(data[position * SLOT_SIZE : position * SLOT_SIZE + SLOT.size])
        if slot is not None:
            found[position] = slot
    return found


def age(slot: CheckpointSlot) -> tuple[int, int, int, int]:
    """Return what slots are ordered by; one that was made again later has another boot."""
    again = 2 if slot.boot_id == NO_BOOT else int(slot.boot_id == boot_id.boot_id())
    return slot.epoch, slot.commit_number, slot.journal_file, again
