"""Power losses, simulated: what a disk may hold when the machine stops.

A disk keeps what was synced. Of what was written and not synced, it keeps any part: here, any of the
512-byte sectors of the files, each old or new. `Disk` watches a store while a workload runs: it
takes an image of every file whenever the store syncs one of them (those sectors are safe now), and
puts directories together from the safe image and a random part of what was written since. Lost
names: a file that was created or renamed may be missing until its folder was synced.

Images are taken by hooks in `files`, through which everything that syncs passes; LMDB's own sync
of the data file is hooked in `Environment.raw`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from streamkeep.engine import boot, files, recover, steady
from streamkeep.engine.boot import boot_id

SECTOR: Final = 512

OTHER_BOOT: Final = bytes(range(16))


class Disk:
    """What is safe of a folder, and what it holds now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.safe: dict[str, bytes] = {}  # contents by name of what was synced
        self.names: set[str] = set()  # names that were synced

    def content(self) -> dict[str, bytes]:
        """Return all files as they are now."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.name not in ("lock.mdb", "head"):
                found[str(path.relative_to(self.folder))] = path.read_bytes()
        return found

    def file_synced(self, name: str) -> None:
        """Note that a file is on disk as it is now."""
        path = self.folder / name
        if path.exists():
            self.safe[name] = path.read_bytes()

    def folder_synced(self, folder: str) -> None:
        """Note that the names in a folder are on disk."""
        here = {name for name in self.content() if (os.path.dirname(name) or ".") == folder}
        self.names = {
            name for name in self.names if (os.path.dirname(name) or ".") != folder
        } | here

    def lose_power(self, target: Path, random_: random.Random) -> None:
        """Write a folder that the disk might hold now."""
        now = self.content()
        for name in sorted(now.keys() | (self.names & self.safe.keys())):
            if name not in self.names and random_.random() < 0.5:
                continue  # the new name was lost
            old = self.safe.get(name, b"")
            new = now.get(name, old)
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(mixed(old, new, random_))


def mixed(old: bytes, new: bytes, random_: random.Random) -> bytes:
    """Return a file of which each changed sector is the old or the new one."""
    size = max(len(old), len(new))
    if len(old) != len(new) and random_.random() < 0.3:
        size = min(len(old), len(new))  # the new size was lost
    share = random_.choice([0.0, 0.05, 0.5, 0.5, 0.95, 1.0])
    out = bytearray(new.ljust(size, b"\0")[:size])
    whole_old = old.ljust(size, b"\0")
    for start in range(0, size, SECTOR):
        end = start + SECTOR
        if out[start:end] != whole_old[start:end] and random_.random() >= share:
            out[start:end] = whole_old[start:end]
    return bytes(out)


@contextmanager
def watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Watch what the store in `folder` syncs, while the block runs."""
    disk = Disk(folder)
    sync_data, sync_folder = files.sync_data, files.sync_folder

    def name_of(handle: int) -> str | None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        return os.path.relpath(path, folder) if path.startswith(str(folder)) else None

    def data_synced(handle: int) -> None:
        sync_data(handle)
        name = name_of(handle)
        if name is not None:
            disk.file_synced(name)

    def folder_synced(path: Path) -> None:
        sync_folder(path)
        if path == folder or folder in path.parents:
            disk.folder_synced(os.path.relpath(path, folder))

    def lmdb_synced(raw: object) -> None:
        steady_sync(raw)
        disk.file_synced(steady.DATA_FILE)

    steady_sync = steady.sync_lmdb
    monkeypatch.setattr(files, "sync_data", data_synced)
    monkeypatch.setattr(files, "sync_folder", folder_synced)
    monkeypatch.setattr(steady, "sync_lmdb", lmdb_synced)
    try:
        yield disk
    finally:
        monkeypatch.undo()


@contextmanager
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the machine look booted since."""
    assert boot_id() != OTHER_BOOT
    for module in (boot, recover, steady):
        monkeypatch.setattr(module, "boot_id", lambda: OTHER_BOOT)
    try:
        yield
    finally:
        monkeypatch.undo()
