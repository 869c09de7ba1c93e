"""A standalone cluster of Spark on loopback, whose executors do not have the package."""

from __future__ import annotations

import json
import os
import shutil
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
def running(environment: dict[str, str], log: Path, *command: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
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
    with clustered(tmp_path) as url:
        yield url


@contextmanager
def clustered(tmp_path: Path, *on_worker: str) -> Iterator[str]:
    """Run a master and two workers for the block, which gets the URL."""
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
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    master = (program, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
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
            command = (program, *worker, *size, *folder, url)
            stack.enter_context(running(environment, log, *on_worker, *command))
        wait_for_workers(web, tmp_path)
        yield url


def wait_for_workers(web: int, logs: Path) -> None:
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
            _IN_A_BUCKET, cluster, store.path, copy.path, environment=environment, folder=tmp_path
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


_APART = """
import sys
from streamkeep import pipeline
from streamkeep.pipeline.jobs.to_lake import to_lake

master, host, shared = sys.argv[1:]
conf = {"spark.executor.memory": "512m", "spark.log.level": "ERROR"}
spark = pipeline.session(master, ship_code=True, **conf)

def files_of(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"files": [len(os.listdir(host))]})

rows = spark.range(0, 2, 1, 2).mapInArrow(files_of, "files bigint").collect()
print("seen", *{row.files for row in rows})
options = {"subscribe": "orders", "minPartitions": "2", "tailExport": f"{shared}/tail"}
reader = spark.read.format("streamkeep").options(**options).schema("n int")
frame = reader.load(f"{host}/orders.store")
print("read", frame.selectExpr("sum(n)").collect()[0][0])
lake = to_lake(spark, f"{host}/orders.store", f"{shared}/lake", tail_export=f"{shared}/tail")
print("lake", lake.entries)

writer = frame.write.format("streamkeep").option("stream", "copy").mode("append")
try:
    writer.save(f"{host}/copy.store")
except Exception as error:
    print("refused", "set the option 'stagingPath'" in str(error))
writer.option("stagingPath", f"{shared}/staging").save(f"{host}/copy.store")
stream = spark.readStream.format("streamkeep").options(startingOffsets="earliest", **options)
query = stream.schema("n int").load(f"{host}/orders.store").writeStream.format("streamkeep")
query = query.options(stream="streamed", stagingPath=f"{shared}/staging")
query = query.option("checkpointLocation", f"{host}/checkpoint").trigger(availableNow=True)
query.start(f"{host}/copy.store").awaitTermination()
spark.stop()
"""


@pytest.mark.slow
def test_executors_with_files_of_their_own(tmp_path: Path) -> None:
    """They find nothing where the host of the driver has its stores: only one folder is shared."""
    host, shared = tmp_path / "host", tmp_path / "shared"
    host.mkdir()
    shared.mkdir()
    apart = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(host))
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("a namespace of its own for each worker needs root, and unshare")
    with streamkeep.open(host / "orders.store") as store:
        store.xadd_many("orders", [{"n": str(number)} for number in range(_ENTRIES)])
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with clustered(tmp_path, *apart) as url:
        lines = run_driver(_APART, url, host, shared, environment=environment, folder=tmp_path)
    total = sum(range(_ENTRIES))
    assert lines == ["seen 0", f"read {total}", f"lake {_ENTRIES}", "refused True"]
    with Store(host / "copy.store", readonly=True) as copy:
        for key in ("copy", "streamed"):
            found = sorted(int(entry.fields[b"n"]) for entry in copy.xrange(key))
            assert found == [*range(_ENTRIES)]
    assert list((shared / "staging").iterdir()) == []
    assert len(list((shared / "tail").iterdir())) == 2  # of the frame, and of the last micro-batch
