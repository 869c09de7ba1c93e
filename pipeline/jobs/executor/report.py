"""The part of `report` on executors: counting the entries of slices."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from streamkeep.arrow.batches import BATCH_ENTRIES, decode
from streamkeep.arrow.columns import ColumnWriter
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor.nodes import nodes_of
from streamkeep.pipeline.source.slices import Slice


@dataclass(frozen=True)
class Task:
    """The slices that one worker counts."""

    options: ReadOptions
    slices: tuple[Slice, ...]
    edges: tuple[int, ...]


# --- counting, in a worker ------------------------------------------------------------------------


def count_slice(task: Task) -> list[str]:
    """Count the entries of each slice of a task."""
    import numpy as np

    lines = []
    with nodes_of(task.options) as nodes:
        for one in task.slices:
            entries = 0
            counts = np.zeros(max(0, len(task.edges) - 1), np.int64)
            edges = np.array(task.edges[1:-1], np.uint64)
            gaps: Counter[int] = Counter()
            first: int | None = None
            last = 0
            parts = ((one.start, chunk) for chunk in nodes(one))
            for columns in decode(_id_writer, parts, one.end):
                ms = np.frombuffer(columns.ms, np.uint64)
                counts += np.bincount(np.searchsorted(edges, ms, "right"), minlength=len(counts))
                steps = np.diff(ms)
                if first is None:
                    first = int(ms[0])
                else:
                    gaps[rounded(int(ms[0]) - last)] += 1
                gaps.update(_histogram(steps))
                last = int(ms[-1])
                entries += len(ms)
            if first is not None:
                lines.append(
                    json.dumps(
                        {
                            "key": one.key.hex(),
                            "entries": entries,
                            "counts": counts.tolist(),
                            "gaps": gaps,
                            "first": first,
                            "last": last,
                        }
                    )
                )
    return lines


def _id_writer() -> ColumnWriter:
    return ColumnWriter(pairs=False, max_entries=BATCH_ENTRIES)


def _histogram(steps: Any) -> dict[int, int]:
    """Return the number of occurrences of each step, with long steps rounded to three digits."""
    import numpy as np

    if not len(steps):
        return {}
    digits = np.floor(np.log10(np.maximum(steps, 1))).astype(np.int64)
    unit = (10 ** np.maximum(digits - 2, 0)).astype(np.uint64)
    values, counts = np.unique(steps // unit * unit, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def rounded(step: int) -> int:
    """Return a step rounded as in `_histogram`."""
    unit: int = 10 ** max(len(str(step)) - 3, 0)
    return step // unit * unit
