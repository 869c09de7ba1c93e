"""A folder of segments without a store, on a disk or in any storage that pyarrow reaches.

Each segment names its stream, so such a folder can be read without a manifest: a copy, an export
(`streamkeep archive export`), or an object store that executors on other hosts reach. Only a
manifest could say which of two overlapping files is valid, since an erasure rewrites a segment and
removes the old file later. Without one, the newer file is used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import pyarrow.fs

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import NotAStoreError, StreamkeepError
from streamkeep.format.segment.remote import SEALED
from streamkeep.format.segment.segment import SUFFIX, Segment
from streamkeep.pipeline.options import LIVE, ReadOptions
from streamkeep.pipeline.source.pins import chosen_keys, pin_between
from streamkeep.pipeline.source.slices import Pin, Slice
from streamkeep.pipeline.source.stores import open_segment
from streamkeep.pipeline.storage.places import file_system, is_local, reaching

_AT_ONCE: Final = 16  # files of an object store to open in parallel; each takes some round trips


@dataclass(frozen=True, slots=True)
class FolderSegment:
    """One segment of a folder; its path is relative to the folder."""

    path: str
    segment: Segment


Stream = tuple[str, int]  # UUID of the store, and number of the stream in it


def list_segments(root: str) -> dict[Stream, list[FolderSegment]]:
    """Return the segments of a folder by stream, ascending, without overlaps.

    The folder may have segments of several stores, and of several streams of one key: a stream that
    was deleted and made again has another number.

    Raises:
        NotAStoreError: there is no such folder, or it has no segments, or is published.
        CorruptionError: a segment is damaged.
    """
    system, base = file_system(root)
    selector = pyarrow.fs.FileSelector(base, recursive=True, allow_not_found=True)
    with reaching(root):
        paths = [
            info.path.removeprefix(base.rstrip("/")).lstrip("/")
            for info in system.get_file_info(selector)
            if info.is_file and info.path.endswith(SUFFIX)
        ]
    if any(SEALED in path.split("/") for path in paths):  # these may overlap newer ones in part
        raise NotAStoreError(
            f"{root}: a published archive; next: .option('fleet', URI).load() reads its manifest"
        )
    found: dict[Stream, list[FolderSegment]] = {}
    with ThreadPoolExecutor(1 if is_local(root) else _AT_ONCE) as threads:
        for one in threads.map(lambda path: _open(root, path), paths):
            index = one.segment.index
            stream = str(UUID(bytes=index.store_uuid)), index.stream_number
            found.setdefault(stream, []).append(one)
    if not found:
        raise NotAStoreError(f"{root}: neither a store nor a folder with segments (*{SUFFIX})")
    return {stream: _newest(files) for stream, files in sorted(found.items())}


def _open(root: str, path: str) -> FolderSegment:
    with open_segment(root, path) as segment:
        return FolderSegment(path, segment)


def _newest(files: list[FolderSegment]) -> list[FolderSegment]:
    """Return the valid files: of overlapping ones, the newest."""

    def age(one: FolderSegment) -> tuple[int, int]:
        return one.segment.trailer.epoch, one.segment.trailer.created_ms

    kept: list[FolderSegment] = []
    for one in sorted(files, key=age, reverse=True):
        first, last = one.segment.trailer.first_id, one.segment.trailer.last_id
        if all(
            last < other.segment.trailer.first_id or first > other.segment.trailer.last_id
            for other in kept
        ):
            kept.append(one)
    return sorted(kept, key=lambda one: one.segment.trailer.first_id)


def pin_folder(options: ReadOptions) -> tuple[Pin, ...]:
    """Return the ranges of a batch read, fixed at this moment."""
    if options.source == LIVE:
        raise StreamkeepError(
            f"{options.path}: an archive has no live entries; next: leave out source=live"
        )
    streams = list_segments(options.path)
    keys: dict[bytes, list[Stream]] = {}
    for stream, files in streams.items():
        keys.setdefault(files[-1].segment.index.key, []).append(stream)
    pins = []
    for key in chosen_keys(options, list(keys), all_there=True):
        for store, number in keys[key]:
            last = StreamId(*streams[store, number][-1].segment.trailer.last_id)
            pins.append(replace(pin_between(options, key, number, last), store=store))
    return tuple(pins)


def cut_folder(
    root: str,
    streams: dict[Stream, list[FolderSegment]],
    pins: tuple[Pin, ...],
    slice_bytes: int | None,
) -> list[Slice]:
    """Return slices of about `slice_bytes`, cut between blocks; a slice per file without it.

    Args:
        streams: the result of `list_segments`.
    """
    return [
        replace(part, path=root, segment=one.path)
        for pin in pins
        for one in streams.get((pin.store, pin.number), [])
        for part in cut_segment(one.segment, pin, slice_bytes)
    ]


def cut_segment(segment: Segment, pin: Pin, slice_bytes: int | None) -> list[Slice]:
    """Return the part of a segment in a pinned range, as slices cut between blocks."""
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
        slices.append(Slice(pin.key, pin.number, low, high, size, entries, pin.store))
        at = stop
    return slices
