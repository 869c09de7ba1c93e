"""The data pipeline on Spark: reading and writing streams as DataFrames, and the jobs on top.

It needs the extra `streamkeep[spark]`. Names are loaded at first use, because Spark's workers
import single modules of this package, and some of these need neither PySpark nor LMDB.

Rooms, from the bottom up: `storage` (paths and URIs), `distribution` (how work is cut into Spark's
tasks), `source` (streams as DataFrames), `sink` (DataFrames as entries), `lake` (the Delta table),
`store_fleet` (many stores as one source), `jobs` (the commands of `streamkeep spark`),
`spark_session`.

    >>> from streamkeep import pipeline
    >>> spark = pipeline.session()
    >>> spark.read.format("streamkeep").option("subscribe", "orders").load("orders.store").show()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamkeep.pipeline.lake.read import read_lake
    from streamkeep.pipeline.spark_session.java import ensure_java
    from streamkeep.pipeline.spark_session.progress import Lag, ProgressListener
    from streamkeep.pipeline.spark_session.start import register, session

_HOMES = {
    "Lag": "streamkeep.pipeline.spark_session.progress",
    "ProgressListener": "streamkeep.pipeline.spark_session.progress",
    "ensure_java": "streamkeep.pipeline.spark_session.java",
    "read_lake": "streamkeep.pipeline.lake.read",
    "register": "streamkeep.pipeline.spark_session.start",
    "session": "streamkeep.pipeline.spark_session.start",
}

__all__ = ["Lag", "ProgressListener", "ensure_java", "read_lake", "register", "session"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'streamkeep.pipeline' has no attribute {name!r}")
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        from streamkeep.pipeline.spark_session.start import missing

        raise missing(error) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
