"""Processes that stop themselves in the middle of something (SIGSTOP)."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from streamkeep.engine.api.store import Store


def stop() -> None:
    """Stop this process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def child_of(work: Callable[[], None]) -> int:
    """Run something in a forked child; return its number. It ends with 1 if that raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    """Wait for the end of a child; return its exit status, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stopped_child(work: Callable[[], None]) -> int:
    """Run something in a forked child, which stops itself; return its number when it has."""
    child = child_of(work)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    return child


def killed(work: Callable[[], object]) -> None:
    """Run something in a forked child, which is killed at its end, or before."""

    def run() -> None:
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitpid(child_of(run), 0)[1] == signal.SIGKILL


def copy_of_killed(store: Store[bytes], path: Path) -> Path:
    """Copy an open store as it would be if its process were killed now."""
    shutil.copytree(store.path, path, ignore=shutil.ignore_patterns("lock.mdb"))
    return path
