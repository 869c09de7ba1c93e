"""The Spark data source `streamkeep`: batch reads.

    >>> spark.read.format("streamkeep").option("subscribe", "orders").load("orders.store")

When `load` is called, Spark makes the source in a separate process, and sends it pickled to the
process that plans and to those that read. So it holds only plain values, and all errors in options
are reported at `load`.

**The range of a read is fixed at `load`**: the newest entry at that moment is the last one for
every query on the DataFrame, so that `count()` and a later `write` agree. With `.schema(...)`,
Spark makes the source at the first query instead. Call `load` again to see newer entries.

**There is intentionally no filter push-down.** In Spark 4.1 to 4.3, a filter that one query pushes
into a Python source remains there for other queries on the same DataFrame, which then silently lack
rows; a test in `tests/spark` fails once Spark has fixed that. Ranges are options, and columns that
`.schema(...)` leaves out are not decoded.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.pipeline.options import OptionError, ReadOptions, is_read, parse_read, parse_write
from streamkeep.pipeline.quick_ack import QuickAck

if TYPE_CHECKING:
    import pyarrow as pa

    from streamkeep.format.node.columns import CopiedNode
    from streamkeep.pipeline.plan import Slice
    from streamkeep.pipeline.reading import Pin

_log = logging.getLogger(__name__)

_FIELDS: Final = {
    "array": ", fields array<struct<field:binary,value:binary>>",
    "map": ", fields map<string,string>",
    "none": "",
}


@dataclass
class SlicePartition(InputPartition):
    """The slices that one task reads."""

    slices: tuple[Slice, ...]


class StreamkeepSource(DataSource):
    """Streams of a store as a table."""

    read_options: ReadOptions | None = None
    pins: tuple[Pin, ...] = ()
    problem: Exception | None = None  # of a batch read; a streaming read may still be possible

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if is_read(options):
            self.read_options = with_full_paths(parse_read(options))
            try:
                self.pins = pin_now(self.read_options)
            except (NoSuchKeyError, OptionError) as error:
                self.problem = error

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "streamkeep"

    def schema(self) -> str:
        """Return the columns of a read without `.schema(...)`."""
        fields = _FIELDS[self._reading().fields_as]
        return f"stream string, id string, ms bigint, seq bigint, ts timestamp{fields}"

    def reader(self, schema: StructType) -> StreamkeepReader:
        """Return the object that plans and reads a batch."""
        options = self._reading()
        if self.problem is not None:
            raise self.problem
        return StreamkeepReader(options, schema, self.pins)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the object that plans and reads micro-batches."""
        from streamkeep.pipeline.stream_source import StreamkeepStreamReader

        options = self._reading()
        if _is_folder(options):
            raise OptionError(
                f"{options.path}: a folder of segments does not grow, so it cannot be read as a "
                "stream; next: give the path of the store"
            )
        return StreamkeepStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the object that writes a DataFrame."""
        from streamkeep.pipeline.sink import StreamkeepWriter

        return StreamkeepWriter(parse_write(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the object that writes the batches of a streaming query."""
        from streamkeep.pipeline.sink import StreamkeepStreamWriter

        return StreamkeepStreamWriter(parse_write(self.options), schema, overwrite)

    def _reading(self) -> ReadOptions:
        if self.read_options is None:
            # Raises OptionError, because the options name no streams.
            self.read_options = with_full_paths(parse_read(self.options))
        return self.read_options


class StreamkeepReader(QuickAck, DataSourceReader):
    """Plans a batch read on the driver, and reads its partitions in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType, pins: tuple[Pin, ...]) -> None:
        self.options = options
        self.schema = schema
        self.pins = pins
        check_schema(schema, options)

    def partitions(self) -> list[SlicePartition]:
        """Return the partitions: neighbouring slices of about equal size."""
        return plan_pins(self.options, self.pins)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the entries of a partition as record batches."""
        if not isinstance(partition, SlicePartition):  # Spark's substitute for an empty list
            return iter(())
        return read_slices(self.options, self.schema, partition.slices)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise SchemaError if entries cannot fill one of the columns."""
    from streamkeep.pipeline.arrow import RowShape

    RowShape(arrow_schema(schema), b"", options.mode)


def pin_now(options: ReadOptions) -> tuple[Pin, ...]:
    """Return the ranges of a batch read, fixed at this moment."""
    from streamkeep.pipeline.reading import pin_streams, reading

    if _is_folder(options):
        from streamkeep.pipeline.segment_folder import pin_folder

        return pin_folder(options)
    with reading(options.path) as store, store.snapshot() as snapshot:
        return pin_streams(snapshot.txn, options)


def plan_pins(
    options: ReadOptions, pins: tuple[Pin, ...], folder: str | None = None
) -> list[SlicePartition]:
    """Return the partitions of the pinned ranges.

    Args:
        folder: with `tailExport`, the folder for nodes that executors cannot reach; by default a
            new one.
    """
    from streamkeep.pipeline.plan import join, pack, partition_bytes

    def target_of(total: int) -> int:
        return partition_bytes(total, min_partitions=options.min_partitions)

    # Slices are much smaller than partitions, so that partitions have about the same size.
    if _is_folder(options):
        from streamkeep.pipeline.segment_folder import cut_folder, list_segments

        segments = list_segments(options.path)
        target = target_of(sum(one.size_bytes for one in cut_folder(segments, pins, None)))
        slices = cut_folder(segments, pins, max(1, target // 8))
    else:
        from streamkeep.pipeline.reading import cut_stream, pinned_bytes, reading

        with reading(options.path) as store, store.snapshot() as snapshot:
            txn, source = snapshot.txn, options.source
            target = target_of(sum(pinned_bytes(txn, pin, source) for pin in pins))
            size = max(1, target // 8)
            if options.tail_export is None:
                slices = [one for pin in pins for one in cut_stream(txn, pin, source, size)]
        if options.tail_export is not None:
            from streamkeep.pipeline.staging import new_folder, sweep
            from streamkeep.pipeline.tail_export import cut_exported

            sweep(options.tail_export)
            folder = folder or new_folder(options.tail_export)
            slices = cut_exported(options, pins, size, folder)
            _log.info("entries outside of segments of %s: exported to %s", options.path, folder)
    partitions = pack(
        slices,
        target,
        min_partitions=options.min_partitions,
        max_entries=options.max_records,
    )
    return [SlicePartition(join(part)) for part in partitions]


def read_slices(
    options: ReadOptions, schema: StructType, slices: tuple[Slice, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of slices as record batches."""
    from streamkeep.pipeline.arrow import RowShape, record_batches

    if TaskContext.get() is not None:
        freeze_imports()
    target = arrow_schema(schema)
    with nodes_of(options) as nodes:
        for one in slices:
            shape = RowShape(target, one.key, options.mode)
            yield from record_batches(shape, nodes(one), one.start, one.end)
            for column, count in shape.mismatched.items():
                _log.warning(
                    "stream %r: %d values of column %r are not of its type and became null",
                    one.key,
                    count,
                    column,
                )


@cache
def freeze_imports() -> None:
    """Exclude all present objects from Python's cyclic collector; once per process.

    Spark keeps its workers, and makes each of them collect garbage after every task. Visiting all
    imported modules would take 30 ms, during which the next task waits.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def nodes_of(options: ReadOptions) -> Iterator[Callable[[Slice], Iterator[list[CopiedNode]]]]:
    """Provide, in a `with` block, a function that yields the nodes of a slice in chunks."""
    if options.tail_export is not None:
        from streamkeep.pipeline.tail_export import read_exported

        yield read_exported
        return
    if _is_folder(options):
        from streamkeep.pipeline.segment_folder import read_file

        yield lambda one: read_file(options.path, one)
        return
    from streamkeep.pipeline.reading import read_nodes, reading

    with reading(options.path) as store:
        yield lambda one: read_nodes(store, one, options.source)


def with_full_paths(options: ReadOptions) -> ReadOptions:
    """Return options with absolute paths, because executors have another working directory."""
    from streamkeep.pipeline.storage import located, plain

    export = None if options.tail_export is None else plain(options.tail_export)
    return replace(options, path=located(options.path), tail_export=export)


def _is_folder(options: ReadOptions) -> bool:
    from streamkeep.pipeline.segment_folder import is_folder

    return is_folder(options.path)
