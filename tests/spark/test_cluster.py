"""A standalone cluster of Spark on loopback, whose executors do not have the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

import streamkeep
from addresses import free_ports
from patience import PATIENCE_S
from spark.drivers import run_driver
from spark.s3_server import serving
from streamkeep.engine.api.store import Store

pytestmark = pytest.mark.spark

_ENTRIES = 3000


@contextmanager
def running(environment: dict[str, str], log: Path, *arguments: str) -> Iterator[None]:
    """Run one of Spark's daemons for the block."""
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with log.open("wb") as out:
        process = subprocess.Popen([program, *arguments], env=environment, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with two workers, of one core each; nobody there knows our code."""
    from streamkeep.pipeline.spark_session.java import JavaMissingError, ensure_java

    kept = dict(os.environ)
    try:
        java = ensure_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    finally:
        os.environ.clear()
        os.environ.update(kept)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "JAVA_HOME": str(java.parent.parent),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
    with ExitStack() as stack:
        port, web, *others = stack.enter_context(free_ports(4))
        url = f"spark://127.0.0.1:{port}"
        ports = ("--port", str(port), "--webui-port", str(web))
        stack.enter_context(running(environment, tmp_path / "master.log", *master, *ports))
        for number, other in enumerate(others):
            worker = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1")
            size = ("--cores", "1", "--memory", "1g", "--webui-port", str(other))
            folder = ("--work-dir", str(tmp_path / f"work-{number}"))
            log = tmp_path / f"worker-{number}.log"
            stack.enter_context(running(environment, log, *worker, *size, *folder, url))
        wait_for_workers(web, tmp_path)
        yield url


def wait_for_workers(web: int, logs: Path) -> None:
    """Wait until the master knows two workers."""
    deadline = time.monotonic() + PATIENCE_S
    alive: list[Any] = []
    while len(alive) < 2:
        if time.monotonic() > deadline:
            told = "\n".join(log.read_text()[-1500:] for log in logs.glob("*.log"))
            pytest.fail(f"the cluster does not start:\n{told}")
        time.sleep(0.2)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=60) as page:
                alive = [one for one in json.load(page)["workers"] if one["state"] == "ALIVE"]
        except OSError:
            continue


@pytest.fixture
def filled(orders: Store[bytes]) -> Store[bytes]:
    """A store of one stream, archived for a part, that no process has open."""
    orders.set_retention("orders", archive=True)
    ids = [f"{1_718_004_800_000 + number * 100_000}-0" for number in range(_ENTRIES)]
    orders.xadd_many("orders", [{"n": str(number)} for number in range(_ENTRIES)], ids=ids)
    orders.xtrim("orders", maxlen=1000)
    orders.archive()
    orders.close()
    return orders


_WITHOUT_THE_PACKAGE = """
import sys
from streamkeep import pipeline
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.jobs.to_lake import to_lake

def where_from(batches):
    import os
    import pyarrow as pa
    import streamkeep
    from streamkeep.format.node import listpack

    for batch in batches:
        files = f"{os.getcwd()} {streamkeep.__file__} {listpack.__file__}"
        yield pa.RecordBatch.from_pydict({"files": [files]})

master, store, lake, copy, staging = sys.argv[1:]
conf = {"spark.executor.memory": "512m", "spark.log.level": "ERROR"}
spark = pipeline.session(master, ship_code=True, **conf)
print("lake", to_lake(spark, store, lake).entries)
print("audit", len(audit(spark, store, lake=lake).problems))
frame = spark.range(0, 4, 1, 4).mapInArrow(where_from, "files string")
for row in frame.distinct().collect():
    print("code", row.files)
reader = spark.read.format("streamkeep").options(subscribe="orders", minPartitions=4)
frame = reader.schema("n int").load("orders.store")
print("read", frame.count())
writer = frame.write.format("streamkeep").option("stream", "s").mode("append")
writer.option("stagingPath", staging).save(copy)
spark.stop()
"""


@pytest.mark.slow
def test_jobs_on_a_cluster_that_has_not_the_package(
    cluster: str, filled: Store[bytes], tmp_path: Path
) -> None:
    places = [tmp_path / name for name in ("lake", "copy", "staging")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    arguments = (cluster, filled.path, *places)
    printed = run_driver(_WITHOUT_THE_PACKAGE, *arguments, environment=environment, folder=tmp_path)
    assert {f"lake {_ENTRIES}", "audit 0", f"read {_ENTRIES}"} <= set(printed)
    shipped = [line.split()[1:] for line in printed if line.startswith("code ")]
    assert shipped
    for folder, package, module in shipped:
        assert Path(folder).is_relative_to(tmp_path)
        assert Path(package).is_relative_to(Path(folder).resolve())
        assert Path(module).is_relative_to(Path(folder).resolve())
    with Store(places[1], readonly=True) as copy:
        assert copy.xlen("s") == _ENTRIES
    assert list(places[2].glob("*")) == []


_IN_A_BUCKET = """
import sys
from streamkeep import pipeline
from streamkeep.pipeline.jobs.to_lake import to_lake

master, store = sys.argv[1:]
conf = {"spark.executor.memory": "512m", "spark.log.level": "ERROR"}
spark = pipeline.session(master, spark_archives="env.tar.gz#env", **conf)

def where_from(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"place": [os.environ["PACKED_ENVIRONMENT"]]})

print("lake", to_lake(spark, store, "s3://bucket/lake", tail_export="s3://bucket/tail").entries)
print("read", pipeline.read_lake(spark, "s3://bucket/lake", columns=["ms"]).count())
for row in spark.range(0, 4, 1, 4).mapInArrow(where_from, "place string").distinct().collect():
    print("python", row.place)
spark.stop()
"""


def pack_environment(folder: Path) -> None:
    """Leave what packs of environments have: `env/bin/python`, and `env.tar.gz` of it."""
    program = folder / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    source = Path(streamkeep.__file__).parent.parent
    program.write_text(
        f"""#!/bin/sh
export PACKED_ENVIRONMENT="$PWD/$0" PYTHONPATH="{source}:$PYTHONPATH"
exec {sys.executable} "$@"
"""
    )
    program.chmod(0o755)
    with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
        archive.add(folder / "env" / "bin", "bin")


@pytest.mark.slow
def test_a_packed_environment_and_a_bucket(
    cluster: str, filled: Store[bytes], tmp_path: Path
) -> None:
    """Workers know S3 only from the settings of the session."""
    pytest.importorskip("moto", reason="moto and flask are not installed: pip install '.[dev]'")
    pack_environment(tmp_path)
    with serving() as server:
        environment = {**os.environ, **server.environment, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYSPARK_PYTHON"] = "./env/bin/python"
        arguments = (cluster, filled.path)
        lines = run_driver(_IN_A_BUCKET, *arguments, environment=environment, folder=tmp_path)
    assert lines[:2] == [f"lake {_ENTRIES}", f"read {_ENTRIES}"]
    assert len(lines) > 2
    for line in lines[2:]:  # where executors have unpacked it, not where the driver has
        assert line.startswith(f"python {tmp_path}/work-")
