"""One SparkSession for all tests that need one; without Spark or Java they are skipped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a developer has set for other work must not decide what these tests do.
_FOREIGN = (
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, with retries; it lives as long as the tests run."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
    from streamkeep import pipeline
    from streamkeep.pipeline.spark_session.java import JavaMissingError

    kept = dict(os.environ)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    try:
        conf: dict[str, Any] = {
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.adaptive.enabled": False,
            "spark.sql.warehouse.dir": folder / "warehouse",
            "spark.local.dir": folder / "local",
            "spark.log.level": "ERROR",
        }
        session = pipeline.session("local[2,3]", fast_start=True, **conf)
    except JavaMissingError as error:
        pytest.skip(str(error))
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(kept)
