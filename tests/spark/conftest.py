"""One SparkSession for all tests that need one; without Spark or Java they are skipped."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
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


# Spark puts its archive of PySpark first on the path of its Python processes, each of which then
# compiles its modules again. A process takes three times as long to start as with the installed
# package, and Spark waits 10 s for one that reads a stream, which a busy machine may need. So root,
# who may, has them go before the other tests.
_QUICK = """\
#!/bin/sh
set -f
IFS=:
path=
for one in $PYTHONPATH; do
    case $one in */pyspark/*) ;; *) path=$path:$one ;; esac
done
PYTHONPATH=${path#:} exec %s%s "$@"
"""


def quick_python(folder: Path) -> str:
    """Return the program that runs the Python processes of Spark."""
    program = folder / "python"
    first = "nice -n -10 " if os.geteuid() == 0 and shutil.which("nice") else ""
    program.write_text(_QUICK % (first, shlex.quote(sys.executable)))
    program.chmod(0o755)
    try:
        subprocess.run([program, "-c", ""], check=True)
    except PermissionError:  # the file system runs no programs
        return sys.executable
    return str(program)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, with retries; it lives as long as the tests run."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
    from streamkeep import pipeline
    from streamkeep.pipeline.spark_session.java import JavaMissingError

    kept = dict(os.environ)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = quick_python(folder)
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
