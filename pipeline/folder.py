"""An archive without its store: a folder of segments, on a disk or anywhere that pyarrow reaches.

Each segment says itself whose entries it holds, so a folder can be read without a manifest: copied,
exported (`streamkeep archive export`), or in an object store that executors on other hosts see.
What only the manifest knows is which of two files that overlap is the right one: an erasure writes
a segment anew and removes the old file later. The newer one is taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.fs

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import MissingSegmentError, NotAStoreError, StreamkeepError
from streamkeep.format.node.columns import CopiedNode
from streamkeep.format.segment.segment import SUFFIX, Segment
from streamkeep.pipeline.options import LIVE, ReadOptions
from streamkeep.pipeline.places import file_system, is_local, is_uri, reaching
from streamkeep.pipeline.plan import Slice
from streamkeep.pipeline.reading import Pin, chosen_keys, pin_between

_DATA_FILE: Final = "data.mdb"
_AT_ONCE: Final = 16  # files of an object store, each of which takes a few round trips to open


def is_folder(path: str) -> bool:
    """Say whether a path leads to segments, not to a store; a URI always does."""
    return is_uri(path) or (os.path.isdir(path) and not os.path.exists(f"{path}/{_DATA_FILE}"))


@dataclass(frozen=True, slots=True)
class FolderSegment:
    """One segment of a folder; its path is relative to that."""

    path: str
    segment: Segment

    @property
    def age(self) -> tuple[int, int]:
        """What rises from an older file to a newer one of the same entries."""
        return self.segment.trailer.epoch, self.segment.trailer.created_ms


def list_segments(root: str) -> dict[int, list[FolderSegment]]:
    """Return the segments of a folder by stream number, ascending, without any that overlap.

    Raises:
        NotAStoreError: there is no such folder, or none is in it.
        CorruptionError: one is damaged.
    """
    system, base = file_system(root)
    selector = pyarrow.fs.FileSelector(base, recursive=True, allow_not_found=True)
    with reaching(root):
        paths = [
            info.path.removeprefix(base.rstrip("/")).lstrip("/")
            for info in system.get_file_info(selector)
            if info.is_file and info.path.endswith(SUFFIX)
        ]
    found: dict[int, list[FolderSegment]] = {}
    with ThreadPoolExecutor(1 if is_local(root) else _AT_ONCE) as threads:
        for one in threads.map(lambda path: _open(root, path), paths):
            found.setdefault(one.segment.index.stream_number, []).append(one)
    if not found:
        raise NotAStoreError(f"{root}: neither a store nor a folder with segments (*{SUFFIX})")
    return {number: _newest(files) for number, files in sorted(found.items())}


def _open(root: str, path: str) -> FolderSegment:
    with open_segment(root, path) as segment:
        return FolderSegment(path, segment)


def _newest(files: list[FolderSegment]) -> list[FolderSegment]:
    """Return the files that count: of those that overlap the newest."""
    kept: list[FolderSegment] = []
    for one in sorted(files, key=lambda one: one.age, reverse=True):
        first, last = one.segment.trailer.first_id, one.segment.trailer.last_id
        if all(
            last < other.segment.trailer.first_id or first > other.segment.trailer.last_id
            for other in kept
        ):
            kept.append(one)
    return sorted(kept, key=lambda one: one.segment.trailer.first_id)


@contextmanager
def open_segment(root: str, path: str) -> Iterator[Segment]:
    """Open a segment of a folder; what was read of it by then stays after the block.

    Args:
        path: in the folder; with root "", in full.
    """
    if not root:
        root, _, path = path.rpartition("/")
    system, base = file_system(root)
    where = f"segment {path}"
    try:
        with reaching(root):
            file: Any = system.open_input_file(f"{base.rstrip('/')}/{path}")
    except FileNotFoundError:
        raise MissingSegmentError(
            where, f"it is no longer in {root}: load() again what was planned before it went"
        ) from None
    with file:
        yield Segment.open(lambda offset, size: file.read_at(size, offset), file.size(), where)


def pin_folder(options: ReadOptions) -> tuple[Pin, ...]:
    """Return what a batch read covers, as of now."""
    if options.source == LIVE:
        raise StreamkeepError(f"{options.path}: an archive has no live entries")
    streams = list_segments(options.path)
    numbers = {files[-1].segment.index.key: number for number, files in streams.items()}
    return tuple(
        pin_between(
            options,
            key,
            numbers[key],
            StreamId(*streams[numbers[key]][-1].segment.trailer.last_id),
        )
        for key in chosen_keys(options, list(numbers), all_there=True)
    )


def cut_folder(
    streams: dict[int, list[FolderSegment]], pins: tuple[Pin, ...], slice_bytes: int | None
) -> list[Slice]:
    """Return slices of about `slice_bytes`, cut between blocks; a slice per file without it.

    Args:
        streams: what `list_segments` found.
    """
    slices = []
    for pin in pins:
        for one in streams.get(pin.number, []):
            slices += cut_segment(one.segment, one.path, pin, slice_bytes)
    return slices


def cut_segment(segment: Segment, path: str, pin: Pin, slice_bytes: int | None) -> list[Slice]:
    """Return what a segment has of a pin, as slices cut between blocks."""
    slices = []
    blocks = segment.index.blocks
    at = segment.seek(*pin.start)
    last = segment.seek_last(*pin.end) + 1
    while at < last:
        stop, size, entries = at, 0, 0
        while stop < last and (slice_bytes is None or size < slice_bytes or stop == at):
            size += blocks[stop].raw_size
            entries += blocks[stop].entries
            stop += 1
        low = max(pin.start, StreamId(*blocks[at].first_id))
        high = min(pin.end, StreamId(*blocks[stop - 1].last_id))
        slices.append(Slice(pin.key, pin.number, low, high, size, entries, path, (at, stop)))
        at = stop
    return slices


def read_file(root: str, one: Slice) -> Iterator[list[CopiedNode]]:
    """Yield the nodes of a slice that names its file, a block at a time."""
    assert one.segment is not None
    assert one.blocks is not None
    with open_segment(root, one.segment) as segment:
        for number in range(*one.blocks):
            yield [(node.ms, node.seq, node.listpack, b"") for node in segment.block(number)]
