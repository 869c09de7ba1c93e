"""What `killed_jobs` takes for granted of Spark: a few kills with the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patience import PATIENCE_S
from streamkeep.engine.api.store import Store

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '.[spark]'")

from streamkeep.pipeline.jobs import compact as compact_job
from streamkeep.pipeline.jobs import erase as erase_job
from streamkeep.pipeline.jobs import restore as restore_job
from streamkeep.pipeline.jobs import to_lake as to_lake_job
from streamkeep.pipeline.jobs.tail import tail
from streamkeep.pipeline.lake.read import read_lake
from streamkeep.pipeline.lake.table import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.crash]


def fill(store: Store[bytes], first: int, last: int) -> None:
    numbers = range(first, last + 1)
    store.xadd_many("orders", [{"n": str(n)} for n in numbers], ids=[f"{n}-0" for n in numbers])


def dying(work: Callable[[Any], list[str]], failpoint: str, mark: str) -> Any:
    """Return a function that does the work, in a process that is killed at the first try.

    Args:
        mark: path of a file that the first try makes.
    """

    def first_dies(task: Any) -> list[str]:
        import os
        import signal
        from pathlib import Path

        from streamkeep.engine.system import failpoints

        if not Path(mark).exists():
            Path(mark).touch()
            failpoints.arm(failpoint, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return work(task)

    return first_dies


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced_and_nothing_comes_twice(
    spark: SparkSession,
    open_store: Callable[..., Store[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, target = open_store("orders.store"), open_store("restored.store")
    lake = str(tmp_path / "lake")
    for module, work, failpoint in (
        (to_lake_job, "write_pieces", "lake:file-named"),
        (compact_job, "rewrite_files", "lake:file-written"),
        (erase_job, "rewrite_files", "lake:file-named"),
        (restore_job, "make_nodes", "stage:written"),
    ):
        mark = tmp_path / f"{module.__name__}.tried"  # two jobs do the same work
        made = dying(getattr(module, work), failpoint, str(mark))
        monkeypatch.setattr(module, work, made)
    fill(store, 1, 500)
    assert to_lake_job.to_lake(spark, str(store.path), lake).entries == 500
    fill(store, 501, 900)
    assert to_lake_job.to_lake(spark, str(store.path), lake).entries == 400
    assert compact_job.compact(spark, lake).entries == 900
    assert erase_job.erase(spark, "orders", ["7-0"], lake=lake).details["erased_in_lake"] == 1
    assert restore_job.restore(spark, lake, str(target.path), "orders").entries == 899
    assert len(list(tmp_path.glob("*.tried"))) == 4
    assert len(Lake.open(lake).files()) == 1
    ids = [row.ms for row in read_lake(spark, lake).select("ms").orderBy("ms").collect()]
    assert ids == [n for n in range(1, 901) if n != 7]
    assert [entry.stream_id.ms for entry in target.scan("orders")] == ids


@pytest.mark.slow
def test_a_tail_whose_driver_is_killed_goes_on(
    spark: SparkSession, open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    store, table = open_store("orders.store"), str(tmp_path / "table")
    fill(store, 1, 900)
    program = f"""
    import os, signal
    from streamkeep.engine.system import failpoints
    from streamkeep.pipeline import session
    from streamkeep.pipeline.jobs.tail import tail

    failpoints.arm("tail:committed", lambda: os.kill(os.getpid(), signal.SIGKILL))
    spark = session("local[2]", fast_start=True)
    tail(spark, {str(store.path)!r}, "delta", {table!r}, from_start=True, available_now=True,
         max_entries=400)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert DeltaTable(table).to_pyarrow_table().num_rows == 400
    fill(store, 901, 1000)
    tail(spark, str(store.path), "delta", table, from_start=True, available_now=True)
    rows = DeltaTable(table).to_pyarrow_table().column("ms").to_pylist()
    assert sorted(rows) == list(range(1, 1001))
