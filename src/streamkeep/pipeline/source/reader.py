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
from streamkeep.pipeline.source.executor.batches import SPARK_TERMS, read_slices
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


class StreamkeepReader(QuickAck, DataSourceReader):
    """Plans a batch read on the driver, and reads its partitions in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType, pins: tuple[Pin, ...]) -> None:
        self.options = options
        self.schema = schema
        self.pins = pins
        check_schema(schema, options)

    def partitions(self) -> list[SlicePartition]:
        """Return the partitions: neighbouring slices of about equal size."""
        return [SlicePartition(part) for part in plan_pins(self.options, self.pins)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the entries of a partition as record batches."""
        return read_partition(self.options, self.schema, partition)


def read_partition(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[Any]:
    """Yield the entries of a partition as record batches."""
    if not isinstance(partition, SlicePartition):  # Spark's substitute for an empty list
        return iter(())
    return read_slices(options, schema, partition.slices, partition.notes)


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise SchemaError if entries cannot fill one of the columns."""
    RowShape(to_arrow_schema(schema, timezone="UTC"), b"", options.mode, terms=SPARK_TERMS)
