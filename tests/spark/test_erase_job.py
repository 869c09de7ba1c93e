"""The job `erase`: what it takes away is nowhere, and does not come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
from pyarrow import parquet

from patience import PATIENCE_S
from spark.in_process import InProcess
from streamkeep import Store
from streamkeep.engine.system import failpoints
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.jobs.compact import compact
from streamkeep.pipeline.jobs.erase import erase
from streamkeep.pipeline.jobs.restore import restore
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake.files import LakeConflictError, LakeError
from streamkeep.pipeline.lake.read import read_lake
from streamkeep.pipeline.lake.table import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEY = "visits"
SECRET = "mrs-" + "jones" * 3
DOOMED = "60000-0"  # in the archive
ALSO = "1200000-0"  # live


@pytest.fixture
def path(open_store: Callable[..., Store[bytes]]) -> str:
    """A store with the secret in its archive and among its live entries."""
    store = open_store("visits.store")
    store.set_retention(KEY, archive=True)
    for number in range(1, 31):
        name = SECRET if number in (1, 20) else f"visitor {number}"
        store.xadd(KEY, {"name": name, "door": "3"}, id=f"{number * 60_000}-0")
    store.xtrim(KEY, maxlen=15, approximate=False)
    store.archive()
    store.close()
    return str(store.path)


def files_with(folder: str, secret: str) -> list[Path]:
    """Return the files below a folder that hold the secret, Parquet files decoded."""
    import pyarrow.parquet as pq

    found = []
    for file in Path(folder).rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            if file.suffix == ".parquet":
                data += repr(pq.read_table(file).to_pylist()).encode()
            if secret.encode() in data:
                found.append(file)
    return found


@pytest.mark.slow
def test_an_entry_is_erased_from_store_archive_and_every_version_of_a_lake(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    to_lake(spark, path, lake)
    compact(spark, lake)  # old versions name files of their own
    assert files_with(lake, SECRET)
    done = erase(spark, KEY, [DOOMED], store=path, lake=lake, where=f"ms = {ALSO.split('-')[0]}")
    assert done.problems == []
    assert (done.entries, done.details["erased_in_store"], done.details["erased_in_lake"]) == (
        2,
        2,
        2,
    )
    assert files_with(lake, SECRET) == []
    assert files_with(path, SECRET) == []
    assert read_lake(spark, lake).count() == 28
    with Store(path) as store:
        assert len(store.xrange(KEY, history=True)) == 28
    again = erase(spark, KEY, [DOOMED, ALSO], store=path, lake=lake)
    assert (again.problems, again.details["erased_in_lake"], again.files) == ([], 0, 0)
    assert to_lake(spark, path, lake).entries == 0
    assert audit(spark, path, lake=lake).problems == []


@pytest.mark.slow
def test_a_lake_that_still_has_what_a_store_erased_is_named_and_not_restored_from(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    to_lake(spark, path, lake)
    with Store(path) as store:
        store.erase(KEY, DOOMED)
    (problem,) = audit(spark, path, lake=lake).problems
    assert "holds 1 of the entries that were erased from the store" in problem
    done = restore(spark, lake, path, KEY, into="again")
    assert done.entries == 29
    with Store(path) as store:
        assert DOOMED not in [str(entry.id) for entry in store.xrange("again")]
        assert len(store.xrange("again")) == 29
    assert erase(spark, KEY, [DOOMED], lake=lake).problems == []
    assert audit(spark, path, lake=lake).problems == []


@pytest.mark.slow
def test_an_erasure_that_loses_to_another_job_tries_again(
    spark: SparkSession, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    to_lake(spark, path, lake)
    plain, losses = Lake.commit, [2]

    def commit(self: Lake, *args: Any, **options: Any) -> Lake:
        if losses[0]:
            losses[0] -= 1
            raise LakeConflictError("another job committed first")
        return plain(self, *args, **options)

    monkeypatch.setattr(Lake, "commit", commit)
    done = erase(spark, KEY, [DOOMED], store=path, lake=lake)
    assert (done.problems, done.details["erased_in_lake"]) == ([], 1)
    assert len(list(Path(lake).rglob("*.parquet"))) == len(Lake.open(lake).files())
    losses[0] = 100
    monkeypatch.setattr("streamkeep.pipeline.lake.files.MOST_CONFLICTS", 3)
    with pytest.raises(LakeConflictError):
        erase(spark, KEY, [ALSO], store=path, lake=lake)
    losses[0] = 0
    assert erase(spark, KEY, [ALSO], store=path, lake=lake).details["erased_in_lake"] == 1
    assert files_with(lake, SECRET) == []


def test_files_that_another_job_commits_after_an_erasure_stay(path: str, tmp_path: Path) -> None:
    """The merged file has the range of the erased entry, not the entry, and is not named yet."""
    lake = str(tmp_path / "lake")
    spark: Any = InProcess()
    to_lake(spark, path, lake)
    with Store(path) as store:
        store.xadd(KEY, {"name": "late", "door": "3"}, id="1860000-0")
    to_lake(spark, path, lake)
    written, cleaned = threading.Event(), threading.Event()
    other: Any = InProcess()
    merging = threading.Thread(target=compact, args=(other, lake))

    def wait_for_cleaning() -> None:
        written.set()
        assert cleaned.wait(PATIENCE_S)

    def merge() -> None:
        failpoints.arm("lake:commit", wait_for_cleaning)
        merging.start()
        assert written.wait(PATIENCE_S)

    failpoints.arm("lake:committed", merge)
    assert erase(spark, KEY, [DOOMED], store=path, lake=lake).problems == []
    cleaned.set()
    merging.join()
    assert len(Lake.open(lake).files()) == 1
    assert audit(spark, path, lake=lake).problems == []


@pytest.mark.slow
def test_unfinished_files_of_other_jobs_are_told_of(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    to_lake(spark, path, lake)
    (first, *_) = (Path(lake) / file.path for file in Lake.open(lake).files())
    (first.parent / "1.draft").write_bytes(b"half of a file")
    (problem,) = erase(spark, KEY, [DOOMED], lake=lake).problems
    assert "1 unfinished files of other jobs" in problem


def test_a_file_that_cannot_be_read_stops_no_erasure(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    to_lake(spark, path, lake)
    (first, *_) = (Path(lake) / file.path for file in Lake.open(lake).files())
    foreign = first.parent / "a.parquet"
    parquet.write_table(pa.table({"other": [1]}), foreign)
    (problem,) = erase(spark, KEY, [DOOMED], store=path, lake=lake).problems
    assert "a.parquet cannot be read (KeyError" in problem
    assert (foreign.exists(), first.exists()) == (True, False)
    foreign.unlink()
    assert erase(spark, KEY, [DOOMED], lake=lake).problems == []


_ROW = {"ms": [60_000], "seq": [0]}  # the ID of DOOMED


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"ms": ["60000"], "seq": ["0"]}, "cannot be read (ArrowInvalid"),
        ({"ms": [60_000, None], "seq": [0, 0]}, "cannot be read (TypeError"),
        (_ROW, "holds 1 of the entries, and is a file of another program"),
        (None, "cannot be read (ArrowInvalid"),
    ],
    ids=["texts", "null", "the ID", "half"],
)
def test_a_file_that_the_lake_did_not_write_is_named_and_stays(
    path: str, tmp_path: Path, rows: dict[str, list[Any]] | None, problem: str
) -> None:
    lake = str(tmp_path / "lake")
    spark: Any = InProcess()
    to_lake(spark, path, lake)
    (first, *_) = (Path(lake) / file.path for file in Lake.open(lake).files())
    foreign = first.parent / "a.parquet"
    parquet.write_table(pa.table(rows or _ROW), foreign)
    if rows is None:
        foreign.write_bytes(foreign.read_bytes()[:100])
    done = erase(spark, KEY, [DOOMED], store=path, lake=lake)
    assert [problem in one and "a.parquet" in one for one in done.problems] == [True]
    assert (foreign.exists(), first.exists()) == (True, False)
    assert (done.details["erased_in_lake"], done.details["found_in_lake_again"]) == (1, 0)
    foreign.unlink()
    assert erase(spark, KEY, [DOOMED], lake=lake).problems == []


def test_what_to_erase_from_has_to_be_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="name a store, a lake, or both"):
        erase(spark, KEY, [DOOMED])
    with pytest.raises(LakeError, match="needs a lake to search in"):
        erase(spark, KEY, store=str(tmp_path / "none"), where="ms = 1")
    with pytest.raises(LakeError, match="no such lake"):
        erase(spark, KEY, [DOOMED], lake=str(tmp_path / "none"))
