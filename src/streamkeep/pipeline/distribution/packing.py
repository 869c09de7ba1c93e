"""How work is divided into tasks: by bytes, not one task per file.

A task takes Spark 30 to 60 ms, so 3,000 small segments in 3,000 partitions took 68 times as long as
in two. Items keep their order.

Spark plans a DataFrame in a process that knows nothing of the cluster. So `session` puts the number
of cores into the environment of the JVM, from which that process has its own.

Runs on the driver. This module needs neither Spark nor LMDB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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


def pack(
    items: Sequence[Item],
    size_of: Callable[[Item], int],
    target_bytes: int,
    *,
    least: int = 1,
    is_full: Callable[[list[Item], Item], bool] = lambda group, following: False,
) -> list[tuple[Item, ...]]:
    """Return neighbouring items in groups of about equal size, as even as the items allow.

    An item is in the group that contains its middle. So there is no task for a small rest, which
    would cost more than the rest itself, and for which all cores but one would wait.

    Args:
        target_bytes: about how many bytes a group should have.
        least: the least number of groups, if there are as many items.
        is_full: whether a group takes no further item, whatever its size.
    """
    total = sum(map(size_of, items))
    count = max(1, round(total / target_bytes), min(least, len(items)))
    groups: list[tuple[Item, ...]] = []
    group: list[Item] = []
    passed = 0
    for at, item in enumerate(items):
        size = size_of(item)
        beyond = (passed + size / 2) * count > (len(groups) + 1) * total
        must = len(items) - at <= least - len(groups) - 1
        if group and (beyond or must or is_full(group, item)):
            groups.append(tuple(group))
            group = []
        group.append(item)
        passed += size
    return [*groups, tuple(group)] if group else groups


def spread(
    items: Sequence[Item], size_of: Callable[[Item], int], cores: int = 0
) -> list[tuple[Item, ...]]:
    """Return neighbouring items in groups, one group per task.

    Args:
        cores: the number of cores that share the work; 0 for those of this machine.
    """
    return pack(items, size_of, partition_bytes(sum(map(size_of, items)), cores=cores))
