"""A disk that forgets: `python forgetful_disk.py DISK MOUNTPOINT`; kill it to cut its power.

A file system over the folder DISK. What is written stays in the memory of this program until the
file is synced. So when the program is killed, DISK has what a sync had reached, and nothing else.
Names and sizes reach it at once. Needs the package `mfusepy` and fuse3.
"""

import errno
import os
import sys
from typing import Any

import mfusepy


class ForgetfulDisk(mfusepy.Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self, disk: str) -> None:
        self.disk = disk
        self.memory: dict[str, bytearray] = {}  # whole files, by name, since they were written

    def at(self, path: str) -> str:
        return self.disk + path

    def content(self, path: str) -> bytearray:
        if path not in self.memory:
            with open(self.at(path), "rb") as file:
                self.memory[path] = bytearray(file.read())
        return self.memory[path]

    # --- content: forgotten, unless it is synced ---------------------------------------------

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        return bytes(self.content(path)[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        content = self.content(path)
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data
        return len(data)

    def fsync(self, path: str, datasync: int, handle: int) -> int:
        with open(self.at(path), "r+b") as file:
            file.write(self.content(path))
        return 0

    # --- names and sizes ---------------------------------------------------------------------

    def truncate(self, path: str, length: int, handle: int | None = None) -> int:
        content = self.content(path)
        del content[length:]
        content.extend(bytes(length - len(content)))
        os.truncate(self.at(path), length)
        return 0

    def fallocate(self, path: str, mode: int, offset: int, length: int, handle: int) -> int:
        if mode:
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
        if offset + length > len(self.content(path)):
            self.truncate(path, offset + length)
        return 0

    def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
        try:
            state = os.lstat(self.at(path))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from None
        found = {name: getattr(state, name) for name in ("st_mode", "st_nlink", "st_uid", "st_gid")}
        size = len(self.memory[path]) if path in self.memory else state.st_size
        return {**found, "st_size": size, "st_mtime": state.st_mtime_ns}

    def readdir(self, path: str, handle: int) -> list[str]:
        return [".", "..", *os.listdir(self.at(path))]

    def create(self, path: str, mode: int, info: Any = None) -> int:
        os.close(os.open(self.at(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        return 0

    def mknod(self, path: str, mode: int, device: int) -> int:
        os.mknod(self.at(path), mode, device)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self.at(path), mode)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self.at(path), mode)
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self.at(old), self.at(new))
        self.memory.pop(new, None)
        if old in self.memory:
            self.memory[new] = self.memory.pop(old)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self.at(path))
        self.memory.pop(path, None)
        return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    mfusepy.FUSE(ForgetfulDisk(os.path.abspath(sys.argv[1])), sys.argv[2], foreground=True)
