"""Writing a segment file: it is written under a temporary name, synced, renamed, and synced again.

So a file with its final name is always complete. A crash leaves a file ending in `.tmp`, which no
row names, or a complete file that no row names yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Final

from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os, translated
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.segment_files import open_stored, stored_name
from streamkeep.format.core.errors import StoreError
from streamkeep.format.node.dictionary import SAMPLE_BYTES, choose_dictionary
from streamkeep.format.segment.index import Index
from streamkeep.format.segment.segment import Segment, segment_path
from streamkeep.format.segment.writer import DEFAULT_BLOCK_BYTES, DEFAULT_LEVEL, SegmentWriter

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


class _Empty(Exception):
    """The nodes have no entries that history shows."""


def write_segment(
    environment: Environment,
    number: int,
    key: bytes,
    file_number: int,
    index: Index,
    nodes: Iterator[bytes],
    where: str,
    *,
    raw_bytes: int = 0,
    level: int = DEFAULT_LEVEL,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> tuple[str, Segment] | None:
    """Write nodes as a new segment file; return its path and the segment.

    Args:
        number, key: of the stream in whose folder it is to be.
        nodes: envelopes, ascending.
        where: names the nodes in errors.
        raw_bytes: of nodes to expect, if a dictionary is to be used where it saves space.

    Returns:
        None if the nodes have no entries that history shows; then there is no file.
    """
    sample: list[bytes] = []  # the first nodes
    size = 0
    dictionary = None
    if raw_bytes:
        for node in nodes:
            sample.append(node)
            size += len(node)
            if size >= SAMPLE_BYTES:
                break
        else:
            raw_bytes = size
        dictionary = choose_dictionary(sample, raw_bytes, level=level, block_bytes=block_bytes)
    epoch = environment.context.epoch
    writer = SegmentWriter(
        index,
        created_ms=environment.context.clock.now_ms(),
        epoch=epoch,
        file_number=file_number,
        level=level,
        block_bytes=block_bytes,
        dictionary=dictionary,
    )
    place = segment_path(number, key, (0, 0), (0, 0), epoch, file_number)
    try:
        with segment_output(environment.folder, stored_name(place)) as output:
            for node in chain(sample, nodes):
                output.write(writer.add(node, where))
            if writer.first_id is None or writer.last_id is None:
                raise _Empty
            output.write(writer.finish())
            path = segment_path(number, key, writer.first_id, writer.last_id, epoch, file_number)
            output.name = stored_name(path)
    except _Empty:
        return None
    return path, open_stored(environment.folder, path)


def copy_segment(segment: Segment, folder: Folder, name: str) -> None:
    """Copy the file of a segment unchanged, unless a copy is there; see `segment_output`."""
    with translated(system=True):
        if folder.size(name) == segment.size:
            with os.fdopen(folder.open(name), "rb") as there:
                if all(there.read(len(piece)) == piece for piece in _pieces(segment)):
                    files.sync_data(there.fileno())  # another program may have written it
                    folder.sync(name.rpartition("/")[0])
                    return
    with segment_output(folder, name) as output:
        for piece in _pieces(segment):
            output.write(piece)


def _pieces(segment: Segment) -> Iterator[bytes]:
    for at in range(0, segment.size, _COPY_BYTES):
        yield segment.read_at(at, min(_COPY_BYTES, segment.size - at))
