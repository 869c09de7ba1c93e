"""Spark, as far as `run_units` needs it, in this process: tasks one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa


class InProcess:
    """Runs the tasks of `run_units` here."""

    def range(self, start: int, stop: int, step: int, partitions: int) -> InProcess:
        self.numbers = range(start, stop)
        return self

    def mapInArrow(self, function: Any, schema: str) -> InProcess:
        self.function = function
        return self

    def collect(self) -> list[Any]:
        batches = [pa.RecordBatch.from_pydict({"id": [number]}) for number in self.numbers]
        lines = [line for part in self.function(iter(batches)) for line in part[0].to_pylist()]
        return [SimpleNamespace(result=line) for line in lines]
