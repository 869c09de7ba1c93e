"""How work is divided into tasks: by bytes, not one task per file.

A task takes Spark 30 to 60 ms, so 3,000 small segments in 3,000 partitions took 68 times as long as
in two. Items keep their order.

Spark plans a DataFrame in a process that knows nothing of the cluster. So `session` puts the number
of cores into the environment of the JVM, from which that process has its own.

Runs on the driver. This module needs neither Spark nor LMDB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

MIN_PARTITION_BYTES: Final = 32 << 20  # a quarter of a second, six times the start of a task
MAX_PARTITION_BYTES: Final = 128 << 20  # limits repeated work, and idle cores at the end
ONE_WAVE_BYTES: Final = 80 << 20  # below, one task per core; more tasks would gain too little
CORES: Final = "STREAMKEEP_SPARK_CORES"  # variable of the environment
_PARTITIONS_PER_CORE: Final = 2

Item = TypeVar("Item")


def partition_bytes(total: int, *, min_partitions: int | None = None, cores: int = 0) -> int:
    """Return how many bytes of `total` a partition should have.

    Args:
        min_partitions: the least number of partitions, if there is enough data.
        cores: the number of cores that share the work; 0 for those that `session` has found, or
            those of this machine.
    """
    if min_partitions is not None:
        return max(1, min(MAX_PARTITION_BYTES, -(-total // min_partitions)))
    share = total // (cores or int(os.environ.get(CORES) or 0) or os.cpu_count() or 1)
    if share > ONE_WAVE_BYTES:
        share //= _PARTITIONS_PER_CORE
    return max(MIN_PARTITION_BYTES, min(MAX_PARTITION_BYTES, share))


def spread(items: Sequence[Item], sizes: Sequence[int], cores: int = 0) -> list[tuple[Item, ...]]:
    """Return neighbouring items in groups of about equal size, one group per task.

    An item is in the group that contains its middle. So there is no task for a small rest, for
    which all cores but one would wait.

    Args:
        sizes: of the items, in bytes.
        cores: the number of cores that share the work; 0 for those of this machine.
    """
    total = sum(sizes)
    count = max(1, round(total / partition_bytes(total, cores=cores)))
    groups: list[list[Item]] = [[] for _ in range(count)]
    passed = 0
    for item, size in zip(items, sizes, strict=True):
        middle = passed + size / 2
        groups[min(count - 1, int(middle * count / total)) if total else 0].append(item)
        passed += size
    return [tuple(group) for group in groups if group]


def filled(
    items: Iterable[Item], size_of: Callable[[Item], int], target: int
) -> Iterator[tuple[Item, ...]]:
    """Yield neighbouring items in groups of about `target`; an item of that size is alone."""
    group: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and total + size // 2 > target:
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield tuple(group)
