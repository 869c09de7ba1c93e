"""The file `steady`: the two slots of steady points, and the lock of the store.

Whoever has the store open holds a shared lock on the file; recovery happens under an exclusive
one, which only the first process to open the store can get.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from streamkeep.engine import failpoints, files
from streamkeep.engine.journal_head import Place
from streamkeep.engine.lmdb_errors import translate_os
from streamkeep.format.errors import CorruptionError, StoreLockedError
from streamkeep.format.steady import NO_BOOT, SLOT, SLOT_SIZE, SLOTS, SteadySlot, decode_slot

STEADY_FILE: Final = "steady"
UNFINISHED: Final = b"SKP: being created"  # in the first slot, until there is a steady point
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.02


class SteadyFile:
    """The open file."""

    def __init__(self, folder: Path, *, readonly: bool) -> None:
        """Open the file, or create it; raise FileNotFoundError where it may not be created."""
        self.path = folder / STEADY_FILE
        flags = os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT
        self.handle = files.open_file(self.path, flags)

    def close(self) -> None:
        """Close the file, which gives up the lock."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    # --- the lock ---------------------------------------------------------------------------

    def try_exclusive(self) -> bool:
        """Get the exclusive lock if nobody has the store open; say whether."""
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """Get the shared lock, in exchange for the exclusive one if that is held.

        Raises:
            StoreLockedError: another process has been recovering the store for a long time.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self.handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreLockedError(
                        f"{self.path.parent}: another process is recovering or repairing the "
                        "store; wait for it"
                    ) from None
            time.sleep(_POLL_S)

    # --- the slots --------------------------------------------------------------------------

    def newest(self) -> SteadySlot | None:
        """Return the newest steady point; None when there has never been one.

        Raises:
            CorruptionError: there has been one, but no slot is whole.
        """
        found = self._slots()
        if not found:
            if not self.is_unfinished() and any(os.pread(self.handle, SLOTS * SLOT_SIZE, 0)):
                raise CorruptionError(str(self.path), "neither steady point is whole")
            return None
        return max(found.values(), key=_age)

    def newest_on_disk(self) -> SteadySlot | None:
        """As `newest`; it is on disk on return.

        The process that wrote it may have been killed before its sync. Nobody may rely on it, or
        write over the older one, until it is there.
        """
        slot = self.newest()
        if slot is not None:
            files.sync_data(self.handle)
        return slot

    def rewrite(self) -> None:
        """Write the newest steady point once more: after a failed sync it may not be on disk.

        The system took its page for written then, and would not write it again.
        """
        found = self._slots()
        place = max(found, key=lambda one: _age(found[one]))
        files.write_at(self.handle, found[place].encode(), place * SLOT_SIZE)
        files.sync_data(self.handle)

    def is_unfinished(self) -> bool:
        """Say whether the store's creation was begun, and never finished."""
        return not self._slots() and os.pread(self.handle, len(UNFINISHED), 0) == UNFINISHED

    def mark_unfinished(self) -> None:
        """Note that a store is being created."""
        files.reserve(self.handle, SLOTS * SLOT_SIZE)  # later points need no room on the disk
        files.write_at(self.handle, UNFINISHED, 0)
        files.sync_data(self.handle)
        files.sync_folder(self.path.parent)  # before there is anything that it speaks of
        failpoints.hit("create:marked")

    def write(self, slot: SteadySlot) -> None:
        """Write a steady point over the older one; it is on disk on return.

        Raises:
            StoreError: it could not be written; the newest is still the one before.
            OSError: the sync failed, and nobody knows which is on disk.
        """
        found = self._slots()
        free = [place for place in range(SLOTS) if place not in found]
        place = free[-1] if free else min(found, key=lambda one: _age(found[one]))
        try:
            files.write_at(self.handle, slot.encode().ljust(SLOT_SIZE, b"\0"), place * SLOT_SIZE)
        except OSError as error:
            raise translate_os(error) from error
        failpoints.hit("steady:slot-written")
        files.sync_data(self.handle)

    def _slots(self) -> dict[int, SteadySlot]:
        """Return the slots that are whole, by place."""
        found = {}
        for place in range(SLOTS):
            slot = decode_slot(os.pread(self.handle, SLOT.size, place * SLOT_SIZE))
            if slot is not None:
                found[place] = slot
        return found


def place_of(slot: SteadySlot) -> Place:
    """Return where the journal goes on behind a steady point."""
    return Place(slot.journal_file, slot.journal_offset, slot.journal_chain, slot.commit_number)


def _age(slot: SteadySlot) -> tuple[int, int, int, bool]:
    return slot.epoch, slot.commit_number, slot.journal_file, slot.boot_id == NO_BOOT
