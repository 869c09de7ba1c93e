"""What happens to one process while it works: it dies or stops at a failpoint, calls fail halfway,
the disk refuses to write or to sync.

Kills, stops and interrupts from outside, full disks and power losses are in `run.py`.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

from crash.losses import small_journal
from crash.power import Disk, watched
from stopped import die_at
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreError

_LOSS_AT_FAILPOINT: Final = 0.003
_NEED_ROOM: Final = ("write_at", "reserve", "rename")


class Injected(Exception):
    """A command fails halfway."""


@dataclass
class Faults:
    """What happens to one process. Probabilities are those of each passage of a failpoint.

    Attributes:
        seed: of the choices here.
        dies: it kills itself, at failpoints whose names begin with `at`.
        passages: it kills itself at its so-many-th passage of the failpoint `at`; 0 for never.
        waits: it sleeps for some milliseconds, as if another process had its processor.
        raises: a command fails after its record was written.
        flush_fails: LMDB cannot take what the memtable has.
        writes_fail: of each write to a file.
        syncs_fail: of each sync of a file; from then on all processes need a recovery.
        file_limit: LMDB's file cannot grow during a part of the time.
        small: the journal has small files, and checkpoints are frequent.
        full: the disk is full now and then.
        others_fail: another process of the round may have all processes need a recovery.
        served: it has clients of a server in which calls may fail.
        losses: a folder for what a disk may hold of `store` if the power is lost at some moments,
            half of them at failpoints.
    """

    seed: int = 0
    dies: float = 0.0
    at: str = ""
    passages: int = 0
    waits: float = 0.0
    raises: float = 0.0
    flush_fails: float = 0.0
    writes_fail: float = 0.0
    syncs_fail: float = 0.0
    file_limit: bool = False
    small: bool = True
    full: bool = False
    others_fail: bool = False
    served: bool = False
    losses: Path | None = None
    store: Path | None = None

    def quiet(self) -> bool:
        """Return whether no call may fail."""
        return not (
            self.raises
            or self.flush_fails
            or self.writes_fail
            or self.syncs_fail
            or self.file_limit
            or self.full
            or self.others_fail
        )


_now: list[Faults] = []
_calls: list[bool] = []  # a call of the main thread that an interrupt may end
_happened: set[str] = set()


def trouble() -> bool:
    """Return whether a call of this process may fail."""
    return bool(_now) and not _now[0].quiet()


def poisoned() -> bool:
    """Return whether a failed write or sync may have stopped all writing."""
    one = _now[0] if _now else Faults()
    return bool(one.syncs_fail or one.writes_fail or one.file_limit or one.others_fail)


def server_fails() -> bool:
    """Return whether calls may fail in the server of this process."""
    return bool(_now) and _now[0].served


def explains(error: BaseException) -> bool:
    """Return whether a fault explains that a call was refused."""
    if isinstance(error, Injected):
        return True
    return trouble() and isinstance(error, (StoreError, MemoryError))


@contextmanager
def inside(one: Faults) -> Iterator[None]:
    """Have the faults of a process happen during the block."""
    _now.append(one)
    signal.signal(signal.SIGINT, _interrupt)
    random_ = random.Random(one.seed)
    lock = threading.Lock()

    def happens(share: float) -> bool:
        if not share:
            return False
        with lock:
            return random_.random() < share

    def passed(name: str) -> None:
        if lose is not None and happens(_LOSS_AT_FAILPOINT):
            lose()
        if name.startswith(one.at) and happens(one.dies):
            os.kill(os.getpid(), signal.SIGKILL)
        if happens(one.waits * (20 if name == "commit:failed" else 1)):  # that one is rare
            time.sleep(0.003)
        if name == "commit:journaled" and happens(one.raises):
            raise Injected("halfway")
        if name == "flush:ending" and happens(one.flush_fails):
            raise lmdb.DiskError("simulated: the disk refuses")

    lose: Callable[[], None] | None = None
    if one.passages:
        die_at(one.at, one.passages)
    with ExitStack() as stack:
        if one.small:
            stack.enter_context(small_journal(threads=True))
            for name in ("CHECKPOINT_EVERY_S", "IDLE_S", "_TICK_S"):
                setattr(checkpointer, name, 0.05)
        if one.dies or one.waits or one.raises or one.flush_fails or one.losses:
            failpoints.watch(passed)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, share in (
            ("write_at", one.writes_fail),
            ("reserve", one.writes_fail),
            ("sync_data", one.syncs_fail),
            ("sync_folder", one.syncs_fail),
        ):
            if share:
                patch.setattr(files, name, _failing(getattr(files, name), share, happens))
        if one.writes_fail:  # a full disk may have no block for a new name
            patch.setattr(Folder, "rename", _failing(Folder.rename, one.writes_fail, happens))
        if one.losses and one.store:
            disk = stack.enter_context(watched(one.store, safe=True))
            gate = threading.Lock()
            for name in ("file_synced", "folder_synced"):
                setattr(disk, name, _one_by_one(getattr(disk, name), gate))
            lose = partial(_lose_power, disk, gate, one.losses, random_)
            threading.Thread(target=_lose_power_often, args=(lose, random_), daemon=True).start()
        if one.file_limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            threading.Thread(target=_limit_files, args=(random_,), daemon=True).start()
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT end the block, if it is in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _calls.append(True)
    try:
        yield
    finally:
        _calls.clear()


def _interrupt(number: int, frame: object) -> None:
    if _calls:
        _calls.clear()
        raise KeyboardInterrupt


def _failing(
    call: Callable[..., Any], share: float, happens: Callable[[float], bool]
) -> Callable[..., Any]:
    def fail(*args: Any) -> Any:
        if happens(share):
            code = errno.ENOSPC if call.__name__ in _NEED_ROOM else errno.EIO
            raise OSError(code, os.strerror(code))
        return call(*args)

    return fail


def _one_by_one(call: Callable[..., None], gate: threading.Lock) -> Callable[..., None]:
    """Return a note of a sync that no loss of power overlaps: what is promised is on disk then."""

    def note(*args: Any) -> None:
        while True:
            with gate, suppress(FileNotFoundError):  # a file was renamed while names were read
                return call(*args)

    return note


def _lose_power(disk: Disk, gate: threading.Lock, folder: Path, random_: random.Random) -> None:
    """Write what the disk may hold; the name of the folder is the time."""
    with gate:
        target = folder / "unfinished"
        at = time.monotonic()
        try:
            disk.lose_power(target, random_)
        except FileNotFoundError:
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.rename(folder / f"{at}")


def _lose_power_often(lose: Callable[[], None], random_: random.Random) -> None:
    while True:
        time.sleep(random_.choice([0.01, 0.1, 0.3]))
        lose()


def _limit_files(random_: random.Random) -> None:
    """Let no file grow beyond a small size, for a moment, again and again."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    while True:
        time.sleep(random_.random() * 0.1)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (random_.choice([256 << 10, 512 << 10, 1 << 20]), hard)
        )
        time.sleep(random_.random() * 0.03)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
