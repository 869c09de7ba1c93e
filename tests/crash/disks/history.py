"""What a disk may hold after a power loss: each sector in one of its versions since the last flush.

A disk keeps what was written before a flush. Of what was written later it keeps anything: of each
sector any version, from the one of the last flush to the newest. No order between sectors holds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crash.disks.recorder import Event

SECTOR: Final = 512
# File systems write their superblock in place, and rely on it that the disk does so at once. All
# else they protect by checksums or a journal.
_WHOLE: Final = {
    "ext4": [(1024, 2048)],
    "xfs": [],
    "btrfs": [(at, at + 4096) for at in (64 << 10, 64 << 20)],
}
_PIECE: Final = 8 << 20
_SHARES: Final = (0.0, 0.05, 0.5, 0.95, 1.0)  # of the sectors that have their newest version


class History:
    """A disk at one moment of its record: what is safe, and what may be there.

    Args:
        image: a file that holds what is safe; it is changed as the record is followed.
        flushes: False for a disk that lies: it confirms flushes and keeps nothing.
    """

    def __init__(self, image: Path, kind: str, *, flushes: bool = True) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._whole = _WHOLE[kind]
        self._flushes = flushes
        self.unsafe: dict[int, list[bytes]] = {}  # versions of a sector by its offset

    def close(self) -> None:
        os.close(self._image)

    def follow(self, event: Event) -> None:
        """Take in what the disk was told next."""
        if event.data is not None:
            for offset, data in self._sectors(event.offset, event.data):
                self.unsafe.setdefault(offset, []).append(data)
        elif self._flushes:
            for offset, versions in self.unsafe.items():
                for data in versions:
                    os.pwrite(self._image, data, offset)
            self.unsafe.clear()

    def _sectors(self, offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at < len(data):
            ends = [end for start, end in self._whole if start == offset + at]
            size = ends[0] - offset - at if ends else SECTOR
            yield offset + at, data[at : at + size]
            at += size

    def lose_power(self, random_: random.Random, target: Path) -> int:
        """Write an image that the disk may hold now; return the number of unsafe sectors."""
        share = random_.choice(_SHARES)
        copy_sparse(self._image, target)
        with target.open("r+b") as file:
            for offset, versions in self.unsafe.items():
                newest = random_.random() < share
                kept = len(versions) if newest else random_.randrange(len(versions))
                for data in versions[:kept]:
                    file.seek(offset)
                    file.write(data)
        return len(self.unsafe)


def copy_sparse(source: int, target: Path) -> None:
    size = os.fstat(source).st_size
    with target.open("wb") as file:
        file.truncate(size)
        at = 0
        while at < size:
            try:
                start = os.lseek(source, at, os.SEEK_DATA)
            except OSError:  # only a hole is left
                break
            at = os.lseek(source, start, os.SEEK_HOLE)
            for done in range(start, at, _PIECE):
                os.pwrite(file.fileno(), os.pread(source, min(_PIECE, at - done), done), done)
