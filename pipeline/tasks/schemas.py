"""The Arrow form of Spark's schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
