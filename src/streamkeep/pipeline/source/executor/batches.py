"""The entries of slices as record batches, decoded on an executor."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from functools import cache
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from streamkeep.arrow.batches import RowShape, Terms, record_batches
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor.nodes import nodes_of
from streamkeep.pipeline.source.slices import Slice

_log = logging.getLogger(__name__)


def _name_of_type(kind: pa.DataType) -> str:
    names = {"int64": "bigint", "int32": "int", "int16": "smallint", "int8": "tinyint"}
    text = str(kind).replace("decimal128", "decimal")
    return "timestamp" if text.startswith("timestamp") else names.get(text, text)


SPARK_TERMS: Final = Terms(
    _name_of_type,
    "mode=PERMISSIVE makes it null",
    "with .schema(...)",
    "array<struct<field:binary,value:binary>>",
)


def read_slices(
    options: ReadOptions, schema: StructType, slices: tuple[Slice, ...], notes: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of slices as record batches.

    Args:
        notes: a folder for the numbers of lost entries; "" for none.
    """
    if TaskContext.get() is not None:
        freeze_imports()
    target = to_arrow_schema(schema, timezone="UTC")
    with nodes_of(options, notes) as nodes:
        for one in slices:
            shape = RowShape(
                target,
                one.key,
                options.mode,
                store=one.store,
                number=one.number,
                terms=SPARK_TERMS,
            )
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
