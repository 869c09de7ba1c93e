"""Writing a segment file: under a temporary name, synced, named, and the name synced.

So a file with its final name is whole, whatever happens. What a crash leaves is a file ending in
`.tmp`, which no row ever names, or a whole file that no row names yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreError

TEMPORARY: Final = ".tmp"


class SegmentOutput:
    """A segment file that is being written; `finish` names it, `abandon` removes it."""

    def __init__(self, folder: Folder, name: str) -> None:
        """Begin a file below a folder; the folders on the way to it are made when missing."""
        self._handle = -1
        self.folder = folder
        self.name = name
        self.size = 0
        self._temporary = name + TEMPORARY
        if "/" in name:
            folder.make_folder(name.rpartition("/")[0])
        self._handle = folder.replace(self._temporary)
        failpoints.hit("segment:begun")

    def write(self, data: bytes) -> None:
        """Go on with `data`."""
        files.write_at(self._handle, data, self.size)
        self.size += len(data)

    def finish(self) -> None:
        """Have the file on disk under its name, which must be new.

        Raises:
            StoreError: there is a file of that name; names of segments are never used twice.
        """
        failpoints.hit("segment:written")
        files.sync_data(self._handle)
        self._close()
        failpoints.hit("segment:synced")
        if self.folder.exists(self.name):
            path = self.folder.path / self.name
            raise StoreError(f"{path} exists; no segment may take its place")
        self.folder.rename(self._temporary, self.name)
        failpoints.hit("segment:renamed")
        self.folder.sync(self.name.rpartition("/")[0])
        failpoints.hit("segment:named")

    def abandon(self) -> None:
        """Remove what was written, unless it has its name."""
        self._close()
        self.folder.remove(self._temporary)

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@contextmanager
def segment_output(folder: Folder, name: str) -> Iterator[SegmentOutput]:
    """Write a segment file in a `with` block; it is named when the block ends without an error.

    Args:
        name: of the file, below the folder; a block may change it before it ends.

    Raises:
        StoreFullError: the disk is full; nothing of the file is left.
    """
    output: SegmentOutput | None = None
    try:
        output = SegmentOutput(folder, name)
        yield output
        output.finish()
    except OSError as error:
        raise translate_os(error) from error
    finally:
        if output is not None:
            output.abandon()
