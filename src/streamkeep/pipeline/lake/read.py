"""Reading a lake as a DataFrame.

On disks and HDFS, Spark's own Parquet reader reads the files that the log names; it selects columns
and row groups by the query. For object stores, Spark needs jars that are not part of PySpark. So
from those, Python workers read through `pyarrow.fs`, as the jobs do. The filters of a query do not
reach these workers, but the arguments for columns and ranges do. A user who has Spark's jars for S3
names the lake as `s3a://`, which selects Spark's reader.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.engine.commands.arguments import range_end, range_start
from streamkeep.format.core.id_codec import Id
from streamkeep.pipeline.distribution.packing import spread
from streamkeep.pipeline.distribution.quick_ack import QuickAckCall
from streamkeep.pipeline.distribution.units import cores_of
from streamkeep.pipeline.lake.executor import TableFile, table_batches
from streamkeep.pipeline.lake.files import ORIGIN, LakeError, ids_of_path, signed
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.storage.places import by_python_only, file_system, is_local

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_TOP: Final = (1 << 63) - 1
_ID: Final = ("ms", "seq")


def read_lake(
    spark: SparkSession,
    path: str,
    version: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    streams: Sequence[str] | None = None,
    stores: Sequence[str] | None = None,
    start: str = "-",
    end: str = "+",
) -> DataFrame:
    """Return a lake as a DataFrame: `store`, `stream`, `incarnation`, `date`, `id`, `ms`, ...

    On a disk, filters on `date` select partitions, filters on `stream` and `ms` select row groups,
    and unused columns are not read. The arguments also select files, on disks and in object stores.

    Args:
        version: of the table; None for the newest.
        columns: the columns to read, in this order; None for all.
        streams: keys; None for all.
        stores: UUIDs; None for all.
        start, end: IDs, both included, as in `xrange`.

    Raises:
        LakeError: there is no lake, or no such version or column.
        StorageError: the storage cannot be reached.
        InvalidIdError: `start` or `end` is not an ID.
    """
    from pyspark.sql import functions as f

    lake = Lake.open(path, version)
    every = [*ORIGIN, "date", "id", *lake.entry_schema.names]
    names = every if columns is None else _known(columns, every, lake.uri)
    low, high = range_start(start), range_end(end)
    bounded = (start, end) != ("-", "+")
    files = [
        file
        for file in _files(lake)
        if (streams is None or file.stream is None or file.stream in streams)
        and (stores is None or file.store is None or file.store in stores)
        and ((ids := ids_of_path(file.path)) is None or (ids[0] <= high and ids[1] >= low))
    ]
    needed = {*names, *(("ms", "seq") if bounded or "id" in names else ())}
    chosen = {"stream": streams, "store": stores}
    needed |= {name for name, values in chosen.items() if values is not None}
    from_files = [name for name in lake.file_schema.names if name in needed] or ["ms"]
    columns_read = [lake.file_schema.field(name) for name in from_files]
    schema = pa.schema([*columns_read, pa.field("date", pa.date32())])
    rows = _rows(spark, lake, files, schema)
    for name, values in chosen.items():
        if values is not None:
            rows = rows.where(f.col(name).isin(list(values)))
    if bounded:
        rows = rows.where(_between(f.col("ms"), f.col("seq"), low, high))
    if "id" in names:
        rows = rows.withColumn("id", f.concat_ws("-", _unsigned("ms"), _unsigned("seq")))
    return rows.select(*(f.col("`" + name.replace("`", "``") + "`") for name in names))


def _known(columns: Sequence[str], every: Sequence[str], uri: str) -> list[str]:
    for name in columns:
        if name not in every:
            near = difflib.get_close_matches(name, every, n=3) or every
            raise LakeError(f"{uri}: there is no column {name!r}; next: use {', '.join(near)}")
    return list(columns)


def _files(lake: Lake) -> list[TableFile]:
    """Return the files of a lake, including those of other programs, whose streams are unknown."""
    found = []
    for row in sorted(lake.logged(), key=lambda row: str(row["path"])):
        own = row if ids_of_path(row["path"]) is not None else {}
        stream, store = own.get("min.stream"), own.get("min.store")
        size, date = row["size_bytes"], row["partition.date"]
        found.append(TableFile(row["path"], stream, date, size, store))
    return found


def _unsigned(name: str) -> Column:
    """Return one half of an ID as text."""
    from pyspark.sql import functions as f

    number = f.col(name)
    wrapped = number.cast("decimal(20,0)") + f.lit(str(1 << 64)).cast("decimal(20,0)")
    return f.when(number < 0, wrapped.cast("string")).otherwise(number.cast("string"))


def _between(ms: Column, seq: Column, low: Id, high: Id) -> Column:
    """Return the condition that an ID is in the range.

    With its highest bit turned, an unsigned number has its order as a signed one.
    """
    from pyspark.sql import functions as f

    def pair(halves: Sequence[Column]) -> Column:
        return f.struct(*(one.alias(name) for one, name in zip(halves, _ID, strict=True)))

    found = pair([half.bitwiseXOR(f.lit(-1 << 63)) for half in (ms, seq)])
    ends = [pair([f.lit(signed(half ^ 1 << 63)) for half in end]) for end in (low, high)]
    if high[0] <= _TOP:  # selects row groups
        return ms.between(min(low[0], _TOP), high[0]) & found.between(*ends)
    return found.between(*ends)


def _rows(
    spark: SparkSession, lake: Lake, files: Sequence[TableFile], schema: pa.Schema
) -> DataFrame:
    """Return the rows of files, read by Spark or by Python workers."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    uri, table_schema = lake.uri, from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], table_schema)
    if not by_python_only(uri):
        prefix = file_system(uri)[1] if is_local(uri) else uri
        reader = spark.read.schema(table_schema.add("bucket", "string")).option("basePath", prefix)
        reader = reader.option("__globPaths__", "false")  # brackets in a path are brackets
        return reader.parquet(*(f"{prefix}/{file.path}" for file in files))
    arrow = to_arrow_schema(table_schema, timezone="UTC")
    tasks = spread(files, lambda file: file.size_bytes, cores_of(spark))

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in tasks[number]:
                    yield from table_batches(uri, file, arrow)

    count = len(tasks)
    return spark.range(0, count, 1, count).mapInArrow(QuickAckCall(each), table_schema)
