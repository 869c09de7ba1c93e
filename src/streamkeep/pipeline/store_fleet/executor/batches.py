"""The entries of a fleet's pieces as record batches, decoded on an executor."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from streamkeep.arrow.batches import RowShape, record_batches
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor.batches import SPARK_TERMS, freeze_imports
from streamkeep.pipeline.store_fleet.executor.nodes import nodes_of_pieces
from streamkeep.pipeline.store_fleet.pieces import Piece

_log = logging.getLogger(__name__)


def read_pieces(
    options: ReadOptions, schema: StructType, pieces: tuple[Piece, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of pieces as record batches."""
    if TaskContext.get() is not None:
        freeze_imports()
    target = to_arrow_schema(schema, timezone="UTC")
    with nodes_of_pieces() as nodes:
        for piece in pieces:
            shape = RowShape(
                target,
                piece.key,
                options.mode,
                store=piece.store,
                number=piece.number,
                terms=SPARK_TERMS,
            )
            yield from record_batches(shape, nodes(piece), piece.start, piece.end)
            for column, count in shape.mismatched.items():
                _log.warning(
                    "store %s stream %r: %d values of column %r are not of its type and became "
                    "null",
                    piece.store,
                    piece.key,
                    count,
                    column,
                )
