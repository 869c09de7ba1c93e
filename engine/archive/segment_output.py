"""Writing a segment file: it is written under a temporary name, synced, renamed, and synced again.

So a file with its final name is always complete. A crash leaves a file ending in `.tmp`, which no
row names, or a complete file that no row names yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreError
from streamkeep.format.segment.segment import Segment

TEMPORARY: Final = ".tmp"
_COPY_BYTES: Final = 1 << 20


class SegmentOutput:
    """A segment file that is being written.

    Attributes:
        name: what it will be called, below its folder.
    """

    def __init__(self, handle: int, name: str) -> None:
        self.name = name
        self._handle = handle
        self._size = 0

    def write(self, data: bytes) -> None:
        files.write_at(self._handle, data, self._size)
        self._size += len(data)


@contextmanager
def segment_output(folder: Folder, name: str) -> Iterator[SegmentOutput]:
    """Write a segment file in a `with` block; it gets its name if the block raises no error.

    Args:
        name: of the file, below the folder. The block may change it in the `SegmentOutput`.

    Raises:
        StoreFullError: the disk is full; nothing of the file remains.
        StoreError: a file of that name exists; names of segments are never used twice.
    """
    temporary = name + TEMPORARY
    handle = -1
    try:
        if "/" in name:
            folder.make_folder(name.rpartition("/")[0])
        handle = folder.replace(temporary)
        failpoints.hit("segment:begun")
        output = SegmentOutput(handle, name)
        yield output
        failpoints.hit("segment:written")
        files.sync_data(handle)
        failpoints.hit("segment:synced")
        if folder.exists(output.name):
            path = folder.path / output.name
            raise StoreError(
                f"{path} exists, and a segment never replaces a file; next: move that file away"
            )
        folder.rename(temporary, output.name)
        failpoints.hit("segment:renamed")
        folder.sync(output.name.rpartition("/")[0])
        failpoints.hit("segment:named")
    except OSError as error:
        raise translate_os(error) from error
    finally:
        if handle >= 0:
            os.close(handle)
            with suppress(OSError):  # the disk fails; the next archiving removes what is left
                folder.remove(temporary)


def copy_segment(segment: Segment, folder: Folder, name: str) -> None:
    """Copy the file of a segment unchanged; see `segment_output`."""
    with segment_output(folder, name) as output:
        for at in range(0, segment.size, _COPY_BYTES):
            output.write(segment.read_at(at, min(_COPY_BYTES, segment.size - at)))
