"""Processes that stop themselves in the middle of something (SIGSTOP)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from streamkeep.engine.api.store import Store


def stop() -> None:
    """Stop this process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def child_of(work: Callable[[], None]) -> int:
    """Run something in a forked child; return its number."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


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
