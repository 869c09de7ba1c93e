"""Writing a segment file: under a temporary name, synced, named, and the name synced.

So a file with its final name is whole, whatever happens. What a crash leaves is a file ending in
`.tmp`, which no row ever names, or a whole file that no row names yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamkeep.engine import failpoints, files
from streamkeep.engine.lmdb_errors import translate_os
from streamkeep.format.errors import StoreError

TEMPORARY: Final = ".tmp"


class SegmentOutput:
    """A segment file that is being written; `finish` names it, `abandon` removes it."""

    def __init__(self, path: Path) -> None:
        """Begin a file; its folder is made when it is missing."""
        files.create_folder(path.parent)
        self.path = path
        self.size = 0
        self._temporary = path.with_name(path.name + TEMPORARY)
        self._handle = files.open_file(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
        if self.path.exists():
            raise StoreError(f"{self.path} exists; no segment may take its place")
        os.rename(self._temporary, self.path)
        failpoints.hit("segment:renamed")
        files.sync_folder(self.path.parent)
        failpoints.hit("segment:named")

    def abandon(self) -> None:
        """Remove what was written, unless it has its name."""
        self._close()
        self._temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@contextmanager
def segment_output(path: Path) -> Iterator[SegmentOutput]:
    """Write a segment file in a `with` block; it is named when the block ends without an error.

    Raises:
        StoreFullError: the disk is full; nothing of the file is left.
    """
    output: SegmentOutput | None = None
    try:
        output = SegmentOutput(path)
        yield output
        output.finish()
    except OSError as error:
        raise translate_os(error) from error
    finally:
        if output is not None:
            output.abandon()
