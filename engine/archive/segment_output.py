"""Writing a segment file: it is written under a temporary name, synced, renamed, and synced again.

So a file with its final name is always complete. A crash leaves a file ending in `.tmp`, which no
row names, or a complete file that no row names yet.
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
        """Begin a file below a folder; missing folders on the way to it are made."""
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
        """Append `data` to the file."""
        files.write_at(self._handle, data, self.size)
        self.size += len(data)

    def finish(self) -> None:
        """Sync the file and give it its name, which must be new.

        Raises:
            StoreError: a file of that name exists; names of segments are never used twice.
        """
        failpoints.hit("segment:written")
        files.sync_data(self._handle)
        self._close()
        failpoints.hit("segment:synced")
        if self.folder.exists(self.name):
            path = self.folder.path / self.name
            raise StoreError(
                f"{path} exists, and a segment never replaces a file; next: move that file away"
            )
        self.folder.rename(self._temporary, self.name)
        failpoints.hit("segment:renamed")
        self.folder.sync(self.name.rpartition("/")[0])
        failpoints.hit("segment:named")

    def abandon(self) -> None:
        """Remove the file, unless it has its name."""
        self._close()
        self.folder.remove(self._temporary)

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@contextmanager
def segment_output(folder: Folder, name: str) -> Iterator[SegmentOutput]:
    """Write a segment file in a `with` block; it gets its name if the block raises no error.

    Args:
        name: of the file, below the folder. The block may change it in the `SegmentOutput`.

    Raises:
        StoreFullError: the disk is full; nothing of the file remains.
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
