"""A standalone cluster of Spark on loopback, whose executors do not have the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

import streamkeep
from addresses import free_ports
from patience import PATIENCE_S
from spark.drivers import run_driver
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.lake.lake import Lake

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


@pytest.mark.slow
def test_jobs_on_a_cluster_that_has_not_the_package(
    cluster: str, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("orders.store")
    store.set_retention("orders", archive=True)
    numbers = range(_ENTRIES)
    ids = [f"{1_718_004_800_000 + number * 100_000}-0" for number in numbers]
    store.xadd_many("orders", [{"n": str(number)} for number in numbers], ids=ids)
    store.xtrim("orders", maxlen=1000)
    archived = store.archive().entries
    assert archived
    store.close()
    lake = str(tmp_path / "lake")
    program = f"""
    from streamkeep import pipeline
    from streamkeep.pipeline.jobs.audit import audit
    from streamkeep.pipeline.jobs.to_lake import to_lake

    def where_from(batches):
        import os
        import pyarrow as pa
        import streamkeep
        from streamkeep.format.node import listpack

        for batch in batches:
            files = f"{{os.getcwd()}} {{streamkeep.__file__}} {{listpack.__file__}}"
            yield pa.RecordBatch.from_pydict({{"files": [files]}})

    conf = {{"spark.executor.memory": "512m", "spark.log.level": "ERROR"}}
    spark = pipeline.session({cluster!r}, ship_code=True, **conf)
    print("lake", to_lake(spark, {str(store.path)!r}, {lake!r}).entries)
    report = audit(spark, {str(store.path)!r}, lake={lake!r})
    print("audit", report.entries, len(report.problems))
    frame = spark.range(0, 4, 1, 4).mapInArrow(where_from, "files string")
    for row in frame.distinct().collect():
        print("code", row.files)
    reader = spark.read.format("streamkeep").options(subscribe="orders", minPartitions=4)
    print("read", reader.schema("n int").load("orders.store").count())
    spark.stop()
    """
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    printed = run_driver(program, environment=environment, folder=tmp_path)
    assert sum(file.entries for file in Lake.open(lake).files()) == _ENTRIES
    lines = [line.split() for line in printed]
    assert ["lake", str(_ENTRIES)] in lines
    assert ["audit", str(_ENTRIES + archived), "0"] in lines
    assert ["read", str(_ENTRIES)] in lines
    shipped = [line[1:] for line in lines if line[0] == "code"]
    assert shipped
    for folder, package, module in shipped:
        assert Path(folder).is_relative_to(tmp_path)
        assert Path(package).is_relative_to(Path(folder).resolve())
        assert Path(module).is_relative_to(Path(folder).resolve())


_IN_A_BUCKET = """
import sys
from streamkeep import pipeline
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.jobs.report import report
from streamkeep.pipeline.jobs.restore import restore
from streamkeep.pipeline.jobs.to_lake import to_lake

master, store, copy = sys.argv[1:]
lake, tail = "s3://bucket/lake", "s3://bucket/tail"
conf = {"spark.executor.memory": "512m", "spark.log.level": "ERROR"}
spark = pipeline.session(master, spark_archives="env.tar.gz#env", **conf)

def where_from(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"place": [os.environ["PACKED_ENVIRONMENT"]]})

print("lake", to_lake(spark, store, lake, tail_export=tail).entries)
print("audit", len(audit(spark, store, lake=lake).problems))
print("read", pipeline.read_lake(spark, lake, columns=["ms"]).count())
print("report", report(spark, store, "report", measures=["n"], tail_export=tail).entries)
print("restore", restore(spark, lake, copy, "orders", staging="s3://bucket/staging").entries)
print("again", restore(spark, lake, copy, "orders", staging="s3://bucket/staging").entries)
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
    cluster: str, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    """Workers know S3 only from the settings of the session."""
    pytest.importorskip("moto", reason="moto and flask are not installed: pip install '.[dev]'")
    from spark.s3_server import serving

    store = open_store("orders.store")
    ids = [f"{1_718_004_800_000 + number * 100_000}-0" for number in range(_ENTRIES)]
    store.xadd_many("orders", [{"n": str(number)} for number in range(_ENTRIES)], ids=ids)
    expected = store.xrange("orders")
    store.close()
    pack_environment(tmp_path)
    copy = open_store("copy.store")
    copy.close()
    with serving() as server:
        environment = {**os.environ, **server.environment, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYSPARK_PYTHON"] = "./env/bin/python"
        lines = run_driver(
            _IN_A_BUCKET,
            cluster,
            store.path,
            copy.path,
            environment=environment,
            folder=tmp_path,
        )
    assert lines[:6] == [
        f"lake {_ENTRIES}",
        "audit 0",
        f"read {_ENTRIES}",
        f"report {_ENTRIES}",
        f"restore {_ENTRIES}",
        "again 0",
    ]
    assert len(lines) > 6
    for line in lines[6:]:  # where executors have unpacked it, not where the driver has
        assert line.startswith(f"python {tmp_path}/work-")
    with Store(copy.path, readonly=True) as restored:
        assert restored.xrange("orders") == expected
