"""The job `erase`: what it takes away is nowhere, and does not come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import AnalysisException

from patience import PATIENCE_S
from spark.in_process import LOCAL
from streamkeep import Store
from streamkeep.engine.system import failpoints
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.jobs.compact import compact
from streamkeep.pipeline.jobs.erase import erase
from streamkeep.pipeline.jobs.restore import restore
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake.files import LakeConflictError, LakeError
from streamkeep.pipeline.lake.lake import Lake

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


@pytest.fixture
def lake(path: str, tmp_path: Path) -> str:
    uri = str(tmp_path / "lake")
    to_lake(LOCAL, path, uri)
    return uri


def first_file(lake: str) -> Path:
    return Path(lake) / Lake.open(lake).files()[0].path


def files_with(folder: str, secret: str) -> list[Path]:
    """Return the files below a folder that hold the secret, Parquet files decoded."""
    found = []
    for file in Path(folder).rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            if file.suffix == ".parquet":
                data += repr(parquet.read_table(file).to_pylist()).encode()
            if secret.encode() in data:
                found.append(file)
    return found


def test_an_entry_is_erased_from_store_archive_and_every_version_of_a_lake(
    path: str, lake: str
) -> None:
    compact(LOCAL, lake)  # old versions name files of their own
    assert files_with(lake, SECRET)
    done = erase(LOCAL, KEY, [DOOMED, ALSO], store=path, lake=lake)
    counts = (done.entries, done.details["erased_in_store"], done.details["erased_in_lake"])
    assert (done.problems, counts) == ([], (2, 2, 2))
    assert files_with(lake, SECRET) == files_with(path, SECRET) == []
    assert sum(file.entries for file in Lake.open(lake).files()) == 28
    with Store(path) as store:
        assert len(store.xrange(KEY, history=True)) == 28
    again = erase(LOCAL, KEY, [DOOMED, ALSO], store=path, lake=lake)
    assert (again.problems, again.details["erased_in_lake"], again.files) == ([], 0, 0)
    assert to_lake(LOCAL, path, lake).entries == 0
    assert audit(LOCAL, path, lake=lake).problems == []


def test_a_lake_that_still_has_what_a_store_erased_is_named_and_not_restored_from(
    path: str, lake: str
) -> None:
    with Store(path) as store:
        store.erase(KEY, DOOMED)
    (problem,) = audit(LOCAL, path, lake=lake).problems
    assert "holds 1 of the entries that were erased from the store" in problem
    assert restore(LOCAL, lake, path, KEY, into="again").entries == 29
    with Store(path) as store:
        restored = [entry.id.decode() for entry in store.xrange("again")]
    assert len(restored) == 29
    assert DOOMED not in restored
    assert erase(LOCAL, KEY, [DOOMED], lake=lake).problems == []
    assert audit(LOCAL, path, lake=lake).problems == []


def test_an_erasure_that_loses_to_another_job_tries_again(
    path: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, losses = Lake.commit, [2]

    def commit(self: Lake, *args: Any, **options: Any) -> Lake:
        if losses[0]:
            losses[0] -= 1
            raise LakeConflictError("another job committed first")
        return plain(self, *args, **options)

    monkeypatch.setattr(Lake, "commit", commit)
    done = erase(LOCAL, KEY, [DOOMED], store=path, lake=lake)
    assert (done.problems, done.details["erased_in_lake"]) == ([], 1)
    assert len(list(Path(lake).rglob("*.parquet"))) == len(Lake.open(lake).files())
    losses[0] = 100
    monkeypatch.setattr("streamkeep.pipeline.lake.files.MOST_CONFLICTS", 3)
    with pytest.raises(LakeConflictError):
        erase(LOCAL, KEY, [ALSO], store=path, lake=lake)
    losses[0] = 0
    assert erase(LOCAL, KEY, [ALSO], store=path, lake=lake).details["erased_in_lake"] == 1
    assert files_with(lake, SECRET) == []


def test_files_that_another_job_commits_after_an_erasure_stay(path: str, lake: str) -> None:
    """The merged file has the range of the erased entry, not the entry, and is not named yet."""
    with Store(path) as store:
        store.xadd(KEY, {"name": "late", "door": "3"}, id="1860000-0")
    to_lake(LOCAL, path, lake)
    written, cleaned = threading.Event(), threading.Event()
    merging = threading.Thread(target=compact, args=(LOCAL, lake))

    def wait_for_cleaning() -> None:
        written.set()
        assert cleaned.wait(PATIENCE_S)

    def merge() -> None:
        failpoints.arm("lake:commit", wait_for_cleaning)
        merging.start()
        assert written.wait(PATIENCE_S)

    failpoints.arm("lake:committed", merge)
    assert erase(LOCAL, KEY, [DOOMED], store=path, lake=lake).problems == []
    cleaned.set()
    merging.join()
    assert len(Lake.open(lake).files()) == 1
    assert audit(LOCAL, path, lake=lake).problems == []


def test_unfinished_files_of_other_jobs_are_told_of(lake: str) -> None:
    first_file(lake).with_name("1.draft").write_bytes(b"half of a file")
    (problem,) = erase(LOCAL, KEY, [DOOMED], lake=lake).problems
    assert "1 unfinished files of other jobs" in problem


_ROW = {"ms": [60_000], "seq": [0]}  # the ID of DOOMED


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"other": [1]}, "cannot be read (KeyError"),
        ({"ms": ["60000"], "seq": ["0"]}, "cannot be read (ArrowInvalid"),
        ({"ms": [60_000, None], "seq": [0, 0]}, "cannot be read (TypeError"),
        (_ROW, "holds 1 of the entries, and is a file of another program"),
        (None, "cannot be read (ArrowInvalid"),
    ],
    ids=["no IDs", "texts", "null", "the ID", "half"],
)
def test_a_file_that_the_lake_did_not_write_is_named_and_stays(
    path: str, lake: str, rows: dict[str, list[Any]] | None, problem: str
) -> None:
    first = first_file(lake)
    foreign = first.with_name("a.parquet")
    parquet.write_table(pa.table(rows or _ROW), foreign)
    if rows is None:
        foreign.write_bytes(foreign.read_bytes()[:100])
    done = erase(LOCAL, KEY, [DOOMED], store=path, lake=lake)
    assert [problem in one and "a.parquet" in one for one in done.problems] == [True]
    assert (foreign.exists(), first.exists()) == (True, False)
    assert (done.details["erased_in_lake"], done.details["found_in_lake_again"]) == (1, 0)
    foreign.unlink()
    assert erase(LOCAL, KEY, [DOOMED], lake=lake).problems == []


NEW = "visitors"
LATE = "1860000-0"  # copied under the new key


@pytest.fixture
def renamed(path: str, lake: str) -> str:
    """The lake, with the secret under both keys of the stream, which was renamed."""
    with Store(path) as store:
        store.rename(KEY, NEW)
        store.xadd(NEW, {"name": SECRET}, id=LATE)
    assert to_lake(LOCAL, path, lake).entries == 1
    assert len({file.origin.key for file in Lake.open(lake).files()}) == 2
    return lake


@pytest.mark.parametrize("key", [KEY, NEW])
def test_a_stream_that_was_renamed_is_erased_under_each_of_its_keys(
    path: str, renamed: str, key: str
) -> None:
    done = erase(LOCAL, key, [DOOMED, ALSO, LATE], store=path, lake=renamed)
    assert (done.details["erased_in_lake"], files_with(renamed, SECRET)) == (3, [])
    if key == KEY:  # the store has nothing under this key
        assert done.problems == [
            f"3 of the entries are still in the store, in {NEW!r}; next: erase there"
        ]
        assert done.details["found_in_store_again"] == 3
        done = erase(LOCAL, NEW, [DOOMED, ALSO, LATE], store=path, lake=renamed)
    assert (done.problems, files_with(path, SECRET)) == ([], [])
    assert audit(LOCAL, path, lake=renamed).problems == []


def test_a_condition_looks_under_each_key_of_a_stream(
    path: str, renamed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Rows:
        def where(self, condition: str) -> Rows:
            asked.append(condition)
            return self

        def select(self, *names: str) -> Rows:
            return self

        def toLocalIterator(self) -> Any:
            return iter([SimpleNamespace(ms=60_000, seq=0)])

    def read_lake(spark: Any, lake: str, **chosen: Any) -> Rows:
        asked.append(chosen["streams"])
        return Rows()

    monkeypatch.setattr("streamkeep.pipeline.jobs.erase.read_lake", read_lake)
    done = erase(LOCAL, NEW, store=path, lake=renamed, where="name = 'x'")
    (number,) = {file.origin.number for file in Lake.open(renamed).files()}
    assert asked == [[NEW, KEY], f"incarnation in ({number})", "name = 'x'"]
    assert (done.problems, done.details["erased_in_lake"]) == ([], 1)


def test_a_condition_that_spark_refuses_is_an_error_that_names_it(
    path: str, renamed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rows:
        def where(self, condition: str) -> Rows:
            if condition == "name=x":
                raise AnalysisException("`x` cannot be resolved.;\nFilter (name = 'x)")
            return self

    monkeypatch.setattr("streamkeep.pipeline.jobs.erase.read_lake", lambda *_, **__: Rows())
    with pytest.raises(LakeError, match=r"'name=x' cannot be used: `x` .* resolved\.; next: it"):
        erase(LOCAL, NEW, store=path, lake=renamed, where="name=x")


def test_a_stream_that_was_renamed_is_restored_whole(path: str, renamed: str) -> None:
    assert restore(LOCAL, renamed, path, NEW, into="again").entries == 31
    with Store(path) as store:
        assert store.xrange("again") == store.xrange(NEW, history=True)


@pytest.mark.parametrize(
    ("ids", "options", "problem"),
    [
        ([DOOMED], {}, "name a store, a lake, or both"),
        ([], {"store": "none", "where": "ms = 1"}, "needs a lake to search in"),
        ([DOOMED], {"lake": "none"}, "no such lake"),
    ],
)
def test_what_to_erase_from_has_to_be_named(ids: list[str], options: Any, problem: str) -> None:
    with pytest.raises(LakeError, match=problem):
        erase(LOCAL, KEY, ids, **options)
