"""Spark, as far as jobs without a query need it, in this process: tasks one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from pyspark.sql.pandas.types import from_arrow_schema

from streamkeep.arrow.batches import DEFAULT_SCHEMA
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.data_source import StreamkeepSource
from streamkeep.pipeline.source.reader import StreamkeepReader


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


def reader_of(store: Store[bytes], **options: str) -> StreamkeepReader:
    given = {"path": str(store.path), "subscribePattern": ".*", "minPartitions": "4", **options}
    made = StreamkeepSource(given).reader(from_arrow_schema(DEFAULT_SCHEMA))
    assert isinstance(made, StreamkeepReader)
    return made


def read_all(reader: Any, parts: Any = None) -> list[Any]:
    """Return the rows of all partitions of a reader, or of some."""
    chosen = reader.partitions() if parts is None else parts
    return [row for part in chosen for batch in reader.read(part) for row in batch.to_pylist()]


def no_store(*arguments: Any) -> Any:
    """Take the place of what opens a store, where there is none to open."""
    raise AssertionError("an executor opened the store")
