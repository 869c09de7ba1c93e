"""How tests wait: for a condition, and as long as the busiest machine may need.

A limit of time is there for what hangs only. No test may fail because a machine is slow, so no
limit is near to what a test takes, and there is one for all.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr, Final

PATIENCE_S: Final = 600.0


def wait_until(condition: Callable[[], object], what: str = "it did not come") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def thread_of(work: Callable[..., object], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args)
    thread.start()
    return thread


def run_threads(threads: Iterable[threading.Thread]) -> None:
    threads = list(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@contextmanager
def beside(
    *works: Callable[[], object], stop: Callable[[], object] = bool
) -> Iterator[threading.Thread]:
    """Run something in threads while the block runs; `stop` is what has them end after it."""
    threads = [thread_of(work) for work in works]
    try:
        yield threads[0]
    finally:
        stop()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def line_of(process: subprocess.Popen[AnyStr], pipe: IO[AnyStr] | None = None) -> AnyStr:
    """Return the next line that a process prints; an empty one if it has ended.

    It is killed if none comes.

    Args:
        pipe: its standard error; its standard output if left out.
    """
    pipe = pipe or process.stdout
    assert pipe is not None
    killer = threading.Timer(PATIENCE_S, process.kill)
    killer.start()
    try:
        return pipe.readline()
    finally:
        killer.cancel()


def handles_below(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open, each as often as it is.

    Files elsewhere do not count: libraries and earlier tests open and close them at any time.
    """
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the handle of the listing itself, or of another thread
            continue
        if target.startswith(f"{folder}/"):
            found.append(target)
    return sorted(found)


def peak_of(call: Callable[[], object], *, limit: int) -> int:
    """Return how many bytes a call allocates at its peak; above `limit`, the least of three times.

    Allocations of other threads during that time count as well, so a single time may be too high.
    """
    least = sys.maxsize
    for _ in range(3):
        gc.collect()
        tracemalloc.start()
        try:
            call()
            least = min(least, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        if least <= limit:
            break
    return least
