"""Spark, as far as `run_units` needs it, in this process: tasks one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class InProcess:
    """Runs the tasks of `run_units` here."""

    def createDataFrame(self, rows: Any) -> InProcess:
        self.batches = rows.to_batches(max_chunksize=1)
        return self

    def repartition(self, partitions: int) -> InProcess:
        return self

    def mapInArrow(self, function: Any, schema: str) -> InProcess:
        self.function = function
        return self

    def collect(self) -> list[Any]:
        return [
            SimpleNamespace(**row)
            for part in self.function(iter(self.batches))
            for row in part.to_pylist()
        ]
