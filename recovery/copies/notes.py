"""What a store notes of its copy: the slot, which says how far that is.

What is sent is noted before the target can have it, and is on disk then. So the slot alone says
whether a generation has only what this store has sent: the journal may be gone, and the store may
be an older state of the one that has shipped since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from streamkeep.engine.journal.reader import NOWHERE
from streamkeep.engine.journal.slots import Sent, Slot, SlotLock, hold_slot, read_slot, slot_name
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.copies.head import Generation
from streamkeep.format.core.errors import StoreLockedError
from streamkeep.format.humanize import time_text
from streamkeep.format.journal.position import LogPosition
from streamkeep.recovery.copies.generations import End

_MOST: Final = 100  # bases and pieces that are known while nobody was told that one is whole


class Notes:
    """The slot of a store for one target.

    Attributes:
        slot: as it was written last.
        blank: that of a copy of which nothing was noted.
    """

    def __init__(self, folder: Folder, target: str, hold_bytes: int) -> None:
        self._folder = folder
        self.blank = Slot(target, "", "", 0, NOWHERE, 0, 0, hold_bytes)
        self.slot = self.blank

    def hold(self, store: Path, next_step: str) -> SlotLock:
        """Take the lock of who ships the store there; raise StoreLockedError if that is taken."""
        target = self.blank.target
        lock = hold_slot(self._folder, target)
        if lock is None:
            slot = self.read()
            done = "nothing yet"
            if slot is not None and slot.shipped:
                done = f"up to commit {slot.shipped}, at {time_text(slot.shipped_ms)}"
            raise StoreLockedError(
                f"{store}: another process ships it to {target} (last: {done}); next: {next_step}"
            )
        return lock

    def read(self) -> Slot | None:
        """Return what was noted before; None if nothing was. CorruptionError: it is damaged."""
        return read_slot(self._folder, slot_name(self.blank.target))

    def write(self, slot: Slot) -> None:
        """Write what is so now. A power loss must not take that back: the target goes on."""
        slot.write(self._folder, durable=True)
        self.slot = slot

    def sending(self, position: LogPosition) -> None:
        """Note what is sent next: from now on, the target may have it.

        What was noted before stays: the request of a killed process may still come.
        """
        slot, end = self.slot, Sent(position.commit_number, position.chain)
        if end.commit_number > slot.shipped and end not in slot.sending:
            self.write(slot._replace(sending=(*slot.sending, end)[-_MOST:]))

    def with_begun(self, name: str) -> Slot:
        """Return the slot when a generation is begun, before the head can name it.

        Those before stay: the request of a killed process may still come, and name one of them.
        """
        begun = [*self.slot.begun.split(), name]
        return self.slot._replace(begun=" ".join(begun[-_MOST:]))


def is_named(slot: Slot, generation: Generation) -> bool:
    """Return whether a store has shipped to a generation, has begun it, or was restored from it."""
    # Once refused, a store stays so, although its journal may no longer show why.
    return not slot.taken_over and generation.name in (slot.generation, *slot.begun.split())


def replaces(slot: Slot, generation: Generation) -> bool:
    """Return whether a store takes the place of the one that has shipped to a generation.

    It was restored or promoted, or takes over, and has shipped nothing yet. So it may have other
    commits than the copy, which it follows by another generation, whatever is in this one.
    """
    return is_named(slot, generation) and generation.name == slot.generation and not slot.shipped


def knows(slot: Slot, generation: Generation, end: End) -> bool:
    """Return whether a generation has nothing but what the store has shipped, by its slot.

    The journal may be gone that shows it. The last piece is one of those that were noted, or one
    that a killed process was sending.
    """
    if not is_named(slot, generation):
        return False
    if replaces(slot, generation):
        return True
    most = slot.newest if end.problem else slot.shipped
    return end.commit <= most or (end.commit, end.chain) in slot.sending
