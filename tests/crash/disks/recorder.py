"""A file system (FUSE) of one file, the image of a disk, which records each write and each flush.

    python -m crash.disks.recorder MOUNTPOINT IMAGE EVENTS

What is written goes to the file IMAGE, and as an event to the file EVENTS; a flush is an event as
well. Each event holds the time when it arrived, by the clock by which processes note what they were
promised.

While a file `IMAGE.fail` exists, the disk is broken: flushes and writes return EIO. If the file
holds checksums of pages (`page_sums`), only writes of these pages do.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

EVENT: Final = struct.Struct("<dQQ")  # time, offset, size; then the data
FLUSH: Final = (1 << 64) - 1  # in place of the offset


PAGE: Final = 4096
SUM: Final = 16


class Event(NamedTuple):
    """A write, or a flush if the data is None."""

    at: float
    offset: int
    data: bytes | None


def read_events(path: Path) -> Iterator[Event]:
    with path.open("rb") as file:
        while len(head := file.read(EVENT.size)) == EVENT.size:
            at, offset, size = EVENT.unpack(head)
            yield Event(at, offset, None if offset == FLUSH else file.read(size))


def page_sums(data: bytes) -> bytes:
    """Return the checksums of all pages that are not empty, SUM bytes for each."""
    pages = (page for page in pieces(data, PAGE) if any(page))
    return b"".join(hashlib.md5(page, usedforsecurity=False).digest() for page in pages)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def main(mountpoint: str, image: str, events: str) -> None:
    """Be the file system, in the foreground."""
    import mfusepy  # optional: see `mounts.why_not`

    class Disk(mfusepy.Operations):  # type: ignore[misc]  # untyped
        use_ns = True

        def __init__(self) -> None:
            self.image = os.open(image, os.O_RDWR)
            self.events = Path(events).open("wb", buffering=1 << 20)  # noqa: SIM115  # until destroy
            self.size = os.fstat(self.image).st_size

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path == "/image":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": self.size}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", "image"]

        def open(self, path: str, flags: int) -> int:
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(self.image, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            at = time.monotonic()
            if fails(data):
                raise mfusepy.FuseOSError(errno.EIO)
            self.events.write(EVENT.pack(at, offset, len(data)) + data)
            os.pwrite(self.image, data, offset)
            return len(data)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            at = time.monotonic()
            if fails(None):
                raise mfusepy.FuseOSError(errno.EIO)
            self.events.write(EVENT.pack(at, FLUSH, 0))
            return 0

        def destroy(self, path: str) -> None:
            self.events.close()

    failing = Path(f"{image}.fail")

    def fails(data: bytes | None) -> bool:
        if not failing.exists():
            return False
        sums = failing.read_bytes()
        if not sums or data is None:
            return not sums
        return not {*pieces(sums, SUM)}.isdisjoint(pieces(page_sums(data), SUM))

    mfusepy.FUSE(Disk(), mountpoint, foreground=True, nothreads=True, fsname="recorder")


if __name__ == "__main__":
    main(*sys.argv[1:])
