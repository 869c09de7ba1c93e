"""Power losses, simulated: what a disk may hold when the machine stops.

A disk keeps what was synced. Of what was written and not synced, it keeps any part: here, any of
the 512-byte sectors of each file, old or new, and either size. Of names that were made, changed or
removed since their folder was synced, it keeps any: a file may be missing, be there though it was
removed, or have its old name and its new contents.

`Disk` watches the folder of a store while a workload runs: at each sync of a file it takes an
image of it, at each sync of a folder it notes the names. `lose_power` puts a folder together from
those and a random part of what was written since. Syncs are seen through hooks in `files`.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from streamkeep.engine.checkpoint import checkpoint
from streamkeep.engine.crash_recovery import recover, state
from streamkeep.engine.system import boot_id, files

SECTOR: Final = 512
_SHARES: Final = (0.0, 0.05, 0.5, 0.5, 0.95, 1.0)  # of the unsynced sectors that are kept


class Disk:
    """What is safe of a folder, and what it holds now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handles: dict[int, int] = {}  # by inode; held, so that no number is used again
        self._safe: dict[int, bytes] = {}  # contents that were synced
        self._safe_names: dict[str, int] = {}  # names that were synced

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)

    def all_synced(self) -> None:
        """Note that everything is on disk as it is now."""
        self._safe_names = self._names()
        for inode in self._safe_names.values():
            self._safe[inode] = self._content(inode)

    def file_synced(self, handle: int) -> None:
        """Note that a file is on disk as it is now."""
        self._names()
        inode = os.fstat(handle).st_ino
        if inode in self._handles:
            self._safe[inode] = self._content(inode)

    def folder_synced(self, folder: Path) -> None:
        """Note that the names in a folder are on disk."""
        where = os.path.relpath(folder, self.folder)
        here = {name: at for name, at in self._names().items() if _folder_of(name) == where}
        others = {name: at for name, at in self._safe_names.items() if _folder_of(name) != where}
        self._safe_names = others | here

    def lose_power(self, target: Path, random_: random.Random) -> None:
        """Write a folder that the disk might hold now."""
        now = self._names()
        old_names = {inode: name for name, inode in self._safe_names.items()}
        new_names = {inode: name for name, inode in now.items()}
        chosen: dict[str, int] = {}
        for inode in sorted(old_names.keys() | new_names.keys()):
            name = random_.choice([old_names.get(inode), new_names.get(inode)])
            if name is not None and (name not in chosen or now.get(name) == inode):
                chosen[name] = inode
        target.mkdir(parents=True)
        for name, inode in sorted(chosen.items()):
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(mixed(self._safe.get(inode, b""), self._content(inode), random_))

    def _names(self) -> dict[str, int]:
        """Return the files of the folder as they are now, and hold each of them."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.name != "lock.mdb":
                inode = path.stat().st_ino
                found[str(path.relative_to(self.folder))] = inode
                if inode not in self._handles:
                    self._handles[inode] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return found

    def _content(self, inode: int) -> bytes:
        handle = self._handles[inode]
        return os.pread(handle, os.fstat(handle).st_size, 0)


def _folder_of(name: str) -> str:
    return os.path.dirname(name) or "."


def mixed(old: bytes, new: bytes, random_: random.Random) -> bytes:
    """Return a file of which each changed sector is the old or the new one."""
    size = len(new)
    if len(old) != len(new) and random_.random() < 0.3:
        size = len(old)  # the new size was lost
    share = random_.choice(_SHARES)
    out = bytearray(new.ljust(size, b"\0")[:size])
    old = old.ljust(size, b"\0")[:size]
    for start in range(0, size, SECTOR):
        end = start + SECTOR
        if out[start:end] != old[start:end] and random_.random() >= share:
            out[start:end] = old[start:end]
    return bytes(out)


@contextmanager
def watched(folder: Path, *, safe: bool = False) -> Iterator[Disk]:
    """Watch what the store in `folder` syncs, while the block runs."""
    disk = Disk(folder)
    if safe:
        disk.all_synced()
    sync_data, sync_folder = files.sync_data, files.sync_folder

    def data_synced(handle: int) -> None:
        sync_data(handle)
        disk.file_synced(handle)

    def folder_synced(handle: int) -> None:
        sync_folder(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path == folder or folder in path.parents:
            disk.folder_synced(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "sync_data", data_synced)
        patch.setattr(files, "sync_folder", folder_synced)
        try:
            yield disk
        finally:
            disk.close()


@contextmanager
def another_boot(number: int = 1) -> Iterator[None]:
    """Have the machine look booted since; each number is a boot of its own."""
    here = number.to_bytes(16, "big")
    with pytest.MonkeyPatch.context() as patch:
        for module in (boot_id, recover, state, checkpoint):
            patch.setattr(module, "boot_id", lambda: here)
        yield


@contextmanager
def another_mount(number: int = 1) -> Iterator[None]:
    """Have the file system look mounted again, in the same boot; each number is another mount."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boot_id, "mount_id", lambda path: (1 << 40) + number)
        yield


@contextmanager
def after_a_loss(number: int) -> Iterator[None]:
    """Have what was not on disk look lost: with the machine, or with the mount alone, in turns."""
    with another_boot(number) if number % 2 else another_mount(number):
        yield


def copy_store(source: Path, target: Path) -> None:
    """Copy what the disk holds of a store that no process has open, without its locks."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock.mdb"))
