"""What crash tests share: a small journal, stops at failpoints, and what a store holds."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from patience import PATIENCE_S
from stopped import child_of, status_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.store import environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.safe_files import Folder

State = dict[bytes, dict[str, Any]]


class Killed(BaseException):
    """The process ends here."""


def state_of(store: Store[bytes]) -> State:
    """Return all there is: entries, groups, consumers, what is pending, what was archived."""
    with store.snapshot() as snapshot:
        state = {}
        for name in sorted(snapshot.keys()):
            state[name] = snapshot.xinfo_stream(name, full=True, count=0)
            if snapshot.retention(name).archive:
                ids = [entry.id for entry in snapshot.xrange(name, history=True)]
                state[name]["history"] = ids
        return state


@contextmanager
def small_journal(*, threads: bool = False) -> Iterator[None]:
    """Have journal files so small that many are filled, and no thread that acts on its own."""

    def small(folder: Folder, control: ControlFile, store_uuid: bytes, epoch: int) -> Journal:
        journal = Journal(folder, control, store_uuid, epoch)
        journal.file_size = 32 << 10
        journal.first_size = 8 << 10
        return journal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "Journal", small)
        if not threads:
            patch.setattr(checkpointer.Checkpointer, "notice", lambda self: None)
        yield


def killed_after(steps: int, action: Callable[[], object]) -> bool:
    """Run `action`, and stop it at the failpoint that is the given number of steps ahead."""
    left = steps

    def hit(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed(name)

    with watching(hit):
        try:
            action()
        except Killed:
            return True
    return False


@contextmanager
def watching(hit: Callable[[str], None]) -> Iterator[None]:
    """Call `hit` at every failpoint that the block passes."""
    failpoints.watch(hit)
    try:
        yield
    finally:
        failpoints.unwatch(hit)


def in_child(action: Callable[[], object]) -> bool:
    """Run something that may crash the interpreter; say whether it came to its end."""

    def act() -> None:
        faulthandler.disable()
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        action()

    return status_of(child_of(act)) == 0
