"""Spark, as far as jobs without a query need it, in this process: tasks one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from pyspark.sql.pandas.types import from_arrow_schema


class InProcess:
    """A session, and the frames that it makes."""

    def __init__(self, rows: Any = None) -> None:
        self._rows = rows

    def createDataFrame(self, rows: Any) -> InProcess:
        return InProcess(rows)

    @property
    def schema(self) -> Any:
        return from_arrow_schema(self._rows.schema)

    def repartition(self, partitions: int) -> InProcess:
        return self

    def mapInArrow(self, function: Any, schema: str) -> InProcess:
        self._function = function
        return self

    def collect(self) -> list[Any]:
        parts = self._function(iter(self._rows.to_batches()))
        return [SimpleNamespace(**row) for part in parts for row in part.to_pylist()]


LOCAL: Final[Any] = InProcess()
