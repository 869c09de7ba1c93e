"""From what is to be read to partitions of about equal work.

A *slice* is a range of IDs of one stream, with the bytes that it takes. Whoever knows the data
(the live store by its nodes, the archive by its manifest and by the blocks of big segments) gives
slices in order of ID, small enough; `pack` puts them together.

By bytes, never one partition per file: a task costs Spark 30 to 60 ms, so 3,000 small segments in
3,000 partitions took 68 times as long as in two. And in order: a partition holds neighbouring
slices, so that its entries ascend, and a stream read with one partition is in order as a whole.

Pure Python: no Spark, no LMDB.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from streamkeep.format.core.entry import StreamId

MIN_PARTITION_BYTES: Final = 32 << 20  # a fourth of a second; starting a task takes a sixth of it
MAX_PARTITION_BYTES: Final = 128 << 20  # above, a failed task loses much, and cores idle at the end
ONE_WAVE_BYTES: Final = 80 << 20  # up to here one task per core: more would even out too little
_PARTITIONS_PER_CORE: Final = 2

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Slice:
    """The entries of one stream from `start` to `end`, both included.

    Attributes:
        number: of the stream in its store: a stream that was deleted and made again has another.
        size_bytes: how much there is to read, about.
        entries: how many there are, about; 0 where nobody knows.
        segment: file that holds all of them, below the folder of the archive; None: the store
            knows where they are.
        blocks: which blocks of that file, first and behind the last; None for all.
    """

    key: bytes
    number: int
    start: StreamId
    end: StreamId
    size_bytes: int
    entries: int = 0
    segment: str | None = None
    blocks: tuple[int, int] | None = None


def partition_bytes(total: int, *, min_partitions: int | None = None, cores: int = 0) -> int:
    """Return how many bytes a partition should have, of `total`.

    Args:
        min_partitions: how many there must be at least, where the data allow it.
        cores: that will share the work; 0 for those of this machine.
    """
    if min_partitions is not None:
        return max(1, min(MAX_PARTITION_BYTES, -(-total // min_partitions)))
    share = total // (cores or os.cpu_count() or 1)
    if share > ONE_WAVE_BYTES:
        share //= _PARTITIONS_PER_CORE
    return max(MIN_PARTITION_BYTES, min(MAX_PARTITION_BYTES, share))


def pack(
    slices: Sequence[Slice],
    target_bytes: int,
    *,
    min_partitions: int | None = None,
    max_entries: int | None = None,
) -> list[tuple[Slice, ...]]:
    """Return partitions: neighbouring slices together, as even as the slices allow.

    Args:
        target_bytes: about how many a partition should have.
        min_partitions: make at least as many, while there are as many slices.
        max_entries: begin a new partition rather than go beyond.
    """
    total = sum(one.size_bytes for one in slices)
    count = max(1, round(total / target_bytes), min(min_partitions or 1, len(slices)))
    partitions: list[tuple[Slice, ...]] = []
    group: list[Slice] = []
    passed = entries = 0
    for at, one in enumerate(slices):
        # The slice belongs to the partition that holds its middle; a task for a small rest would
        # cost more than it does.
        full = (passed + one.size_bytes / 2) * count > (len(partitions) + 1) * total
        many = max_entries is not None and entries + one.entries > max_entries
        must = len(slices) - at <= (min_partitions or 0) - len(partitions) - 1
        if group and (full or many or must):
            partitions.append(tuple(group))
            group, entries = [], 0
        group.append(one)
        passed += one.size_bytes
        entries += one.entries
    if group:
        partitions.append(tuple(group))
    return partitions


def spread(items: Sequence[Item], sizes: Sequence[int], cores: int = 0) -> list[tuple[Item, ...]]:
    """Return items in groups of about equal size, neighbours together: a group for each task.

    Args:
        sizes: of the items, in bytes.
        cores: that will share the work; 0 for those of this machine.
    """
    target = partition_bytes(sum(sizes), cores=cores)
    groups: list[tuple[Item, ...]] = []
    group: list[Item] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and total + size // 2 > target:
            groups.append(tuple(group))
            group, total = [], 0
        group.append(item)
        total += size
    return [*groups, tuple(group)] if group else groups


def join(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Return the slices of a partition with neighbours of one place made one."""
    joined: list[Slice] = []
    for one in slices:
        last = joined[-1] if joined else None
        if last is not None and _continues(last, one):
            joined[-1] = replace(
                last,
                end=one.end,
                size_bytes=last.size_bytes + one.size_bytes,
                entries=last.entries + one.entries,
                blocks=None if last.blocks is None else (last.blocks[0], (one.blocks or (0, 0))[1]),
            )
        else:
            joined.append(one)
    return tuple(joined)


def _continues(last: Slice, one: Slice) -> bool:
    """Say whether `one` goes on where `last` ends, in the same place."""
    if (last.number, last.key, last.segment) != (one.number, one.key, one.segment):
        return False
    if last.segment is None:
        return last.end.next() == one.start
    return last.blocks is not None and one.blocks is not None and last.blocks[1] == one.blocks[0]
