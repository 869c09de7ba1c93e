"""The locks of those that hold journal files."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from streamkeep.engine.api.store import Store
from streamkeep.engine.journal import slots
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.system.safe_files import Folder


def test_a_lock_ends_with_its_close_whenever_another_thread_forks(tmp_path: Path) -> None:
    with Store(tmp_path / "store"):
        folder = Folder(tmp_path / "store" / JOURNAL_FOLDER)
        lock = slots.hold_slot(folder, "target")
        assert lock is not None
        slots._locks.discard(lock)  # as it is in the middle of `close`
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        try:
            assert slots.is_held(folder, "target")
            lock.close()
            assert not slots.is_held(folder, "target")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            folder.close()
