"""The batch reader of the source: planned on the driver, pickled, and read on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from streamkeep.arrow.batches import RowShape
from streamkeep.pipeline.distribution.quick_ack import QuickAck
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor import SPARK_TERMS, read_slices
from streamkeep.pipeline.source.plan import plan_pins
from streamkeep.pipeline.source.slices import Pin, Slice


@dataclass
class SlicePartition(InputPartition):
    """The slices that one task reads.

    Attributes:
        notes: a folder for the numbers of lost entries; "" for none.
    """

    slices: tuple[Slice, ...]
    notes: str = ""


class SliceReader(QuickAck):
    """Reads partitions in tasks.

    Raises:
        SchemaError: entries cannot fill one of the columns.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        RowShape(to_arrow_schema(schema, timezone="UTC"), b"", options.mode, terms=SPARK_TERMS)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, SlicePartition):  # Spark's substitute for an empty list
            return iter(())
        return read_slices(self.schema, partition.slices, self.options.mode, partition.notes)


class StreamkeepReader(SliceReader, DataSourceReader):
    """Plans a batch read on the driver."""

    def __init__(self, options: ReadOptions, schema: StructType, pins: tuple[Pin, ...]) -> None:
        super().__init__(options, schema)
        self.pins = pins

    def partitions(self) -> list[SlicePartition]:
        """Return the partitions: neighbouring slices of about equal size."""
        return [SlicePartition(part) for part in plan_pins(self.options, self.pins)]
