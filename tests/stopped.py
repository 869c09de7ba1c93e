"""Processes that stop or kill themselves in the middle of something."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inside import environment_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def child_of(work: Callable[[], object]) -> int:
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


def stopped_child(work: Callable[[], object]) -> int:
    """Run something in a forked child, which stops itself; return its number when it has."""
    child = child_of(work)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    return child


def stopped_with(path: Path) -> int:
    """Have a forked child take the lock of a file or folder, as flock(2), and stop itself."""

    def take() -> None:
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
        stop()

    return stopped_child(take)


@contextmanager
def ended(child: int) -> Iterator[None]:
    """Kill a child at the end, if it has not ended by itself."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def go_on(child: int) -> None:
    """Let a stopped child go on to its end."""
    os.kill(child, signal.SIGCONT)
    assert status_of(child) == 0


def killed(work: Callable[[], object]) -> None:
    """Run something in a forked child, which is killed at its end, or before."""

    def run() -> None:
        work()
        die()

    assert status_of(child_of(run)) == -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(name: str, passages: int) -> None:
    """Kill this process when it passes a failpoint for so-many-th time."""
    left = passages

    def passed() -> None:
        nonlocal left
        left -= 1
        if left:
            failpoints.arm(name, passed)
        else:
            die()

    failpoints.arm(name, passed)


def killed_at(name: str, work: Callable[[], object]) -> None:
    """Run something in a forked child, which is killed at its first passage of a failpoint."""

    def run() -> None:
        die_at(name, 1)
        work()

    assert status_of(child_of(run)) == -signal.SIGKILL, name


def copy_of_killed(store: Store[bytes], path: Path) -> Path:
    """Copy an open store as it would be if its process were killed now.

    A flush waits: half of a page file that it writes is nothing that a kill can leave.
    """
    environment = environment_of(store)
    assert environment.checkpoints is not None
    with environment.checkpoints.exclusive(), environment.context.thread_lock:
        shutil.copytree(store.path, path, ignore=shutil.ignore_patterns("lock.mdb"))
    return path
