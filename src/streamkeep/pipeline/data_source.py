"""The Spark data source `streamkeep`, which loads its readers and writers when needed.

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

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.pipeline.options import (
    LATEST,
    Offsets,
    OptionError,
    ReadOptions,
    is_read,
    parse_read,
    parse_write,
    with_full_paths,
)

if TYPE_CHECKING:
    from streamkeep.pipeline.source.reader import StreamkeepReader
    from streamkeep.pipeline.source.slices import Pin
    from streamkeep.pipeline.store_fleet.reader import FleetReader


_COLUMNS: Final = {
    name: types.StructField(name, kind)
    for name, kind in (
        ("store", types.StringType()),
        ("stream", types.StringType()),
        ("incarnation", types.LongType()),
        ("id", types.StringType()),
        ("ms", types.LongType()),
        ("seq", types.LongType()),
        ("ts", types.TimestampType()),
    )
}
_PAIR: Final = types.StructType(
    [types.StructField("field", types.BinaryType()), types.StructField("value", types.BinaryType())]
)
_FIELDS: Final[dict[str, types.DataType]] = {
    "array": types.ArrayType(_PAIR),
    "map": types.MapType(types.StringType(), types.StringType()),
}


class StreamkeepSource(DataSource):
    """Streams of a store as a table."""

    read_options: ReadOptions | None = None
    pins: tuple[Pin, ...] = ()
    problem: Exception | None = None  # of a batch read; a streaming read may still be possible

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if is_read(options):
            from streamkeep.pipeline.source.losses import DataLossError
            from streamkeep.pipeline.source.plan import pin_now

            self.read_options = with_full_paths(parse_read(options))
            if self.read_options.fleet:
                return  # its stores are found when Spark plans
            try:
                self.pins = pin_now(self.read_options)
            except (NoSuchKeyError, OptionError, DataLossError) as error:
                self.problem = error

    @classmethod
    def name(cls) -> str:
        return "streamkeep"

    def schema(self) -> types.StructType:
        """Return the columns of a read without `.schema(...)`."""
        from streamkeep.pipeline.source.stores import is_folder

        options = self._reading()
        origin = ["stream"]
        if options.fleet or is_folder(options.path):
            origin = ["store", "stream", "incarnation"]  # there may be several of each
        columns = [_COLUMNS[name] for name in (*origin, "id", "ms", "seq", "ts")]
        if options.fields_as != "none":
            columns.append(types.StructField("fields", _FIELDS[options.fields_as]))
        if options.infer:
            from streamkeep.pipeline.source.inference import inferred_columns
            from streamkeep.pipeline.source.plan import pin_now

            everything = replace(options, starting=None, ending=Offsets(LATEST))
            columns += inferred_columns(everything, pin_now(everything))
        return types.StructType(columns)

    def reader(self, schema: types.StructType) -> StreamkeepReader | FleetReader:
        """Return the object that plans and reads a batch."""
        from streamkeep.pipeline.source.reader import StreamkeepReader

        options = self._reading()
        if options.fleet:
            from streamkeep.pipeline.store_fleet.reader import FleetReader

            return FleetReader(options, schema)
        if self.problem is not None:
            raise self.problem
        return StreamkeepReader(options, schema, self.pins)

    def streamReader(self, schema: types.StructType) -> DataSourceStreamReader:
        """Return the object that plans and reads micro-batches."""
        from streamkeep.pipeline.source.stores import is_folder
        from streamkeep.pipeline.source.stream_reader import StreamkeepStreamReader

        options = self._reading()
        if options.fleet:
            raise OptionError(
                f"{options.path}: a fleet cannot be read as a stream; next: `streamkeep spark "
                "to-lake --fleet URI LAKE --follow`, and read the lake"
            )
        if is_folder(options.path):
            raise OptionError(
                f"{options.path}: a folder of segments does not grow, so it cannot be read as a "
                "stream; next: give the path of the store"
            )
        return StreamkeepStreamReader(options, schema)

    def writer(self, schema: types.StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the object that writes a DataFrame."""
        from streamkeep.pipeline.sink.writer import StreamkeepWriter

        return StreamkeepWriter(parse_write(self.options), schema, overwrite)

    def streamWriter(
        self, schema: types.StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from streamkeep.pipeline.sink.writer import StreamkeepStreamWriter

        return StreamkeepStreamWriter(parse_write(self.options), schema, overwrite)

    def _reading(self) -> ReadOptions:
        if self.read_options is None:
            # Raises OptionError, because the options name no streams.
            self.read_options = with_full_paths(parse_read(self.options))
        return self.read_options
