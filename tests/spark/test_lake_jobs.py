"""The jobs on a lake, without Spark: compaction, audit, erasure, restore; and two at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark.in_process import LOCAL
from spark.lakes import KEY, STORE, committed, fill, origin, problems_of, rows_in, write
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import restore as restore_engine
from streamkeep.engine.system import failpoints
from streamkeep.format.core.entry import MAX_ID, StreamId
from streamkeep.format.core.errors import IdTooSmallError
from streamkeep.pipeline.distribution.units import Report
from streamkeep.pipeline.jobs import audit as audit_job
from streamkeep.pipeline.jobs import compact as compact_job
from streamkeep.pipeline.jobs import erase as erase_job
from streamkeep.pipeline.jobs import restore as restore_job
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake.files import LakeError, LakeFile, ids_of_path, new_path
from streamkeep.pipeline.lake.lake import Lake


@pytest.fixture
def lake(uri: str) -> Lake:
    return Lake.create(uri)


def test_groups_are_neighbours_of_one_partition() -> None:
    def file(key: bytes, day: str, first: int, last: int, size: int) -> LakeFile:
        path = new_path(origin(key), day, StreamId(first, 0), StreamId(last, 0), "0" * 16)
        return LakeFile(path, origin(key), day, 1, size, StreamId(first, 0), StreamId(last, 0))

    a = [file(b"a", "d1", n, n, 40) for n in range(1, 6)]
    overlapping = file(b"a", "d1", 5, 7, 10)
    other = file(b"a", "d2", 8, 8, 40)
    groups = compact_job.groups([*a, overlapping, other], 100)
    assert groups == [(a[0], a[1]), (a[2], a[3])]
    renamed = file(b"b", "d1", 2, 2, 10)  # for a while: a restore needs each ID in its place
    assert compact_job.groups([a[0], *a[2:4], renamed], 100) == [(a[2], a[3])]
    merged = file(b"a", "d1", 1, 3, 10)  # as another program merges them
    assert audit_job._twice([merged, renamed]) == [
        f"lake file {renamed.path}: begins before {merged.path} ends"
    ]


def test_an_audit_finds_every_kind_of_damage(lake: Lake) -> None:
    (good,) = write(lake, [(n, 0) for n in range(5, 2000)])
    assert problems_of(lake, good) == []
    path = Path(lake.uri) / good.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "which differs from its name" in problems_of(lake, good)[0]
    path.unlink()
    assert "the file is missing" in problems_of(lake, good)[0]
    (fallen,) = write(lake, [(9, 0), (8, 0)])
    assert "IDs do not rise (rows 0 to 2)" in problems_of(lake, fallen)[0]
    (twice,) = write(lake, [(9, 0), (9, 0)])
    assert "IDs do not rise" in problems_of(lake, twice)[0]
    (short,) = write(lake, [(9, 0)])
    wrong = LakeFile(
        short.path, origin(b"mail"), short.date, 7, short.size_bytes, StreamId(8, 0), short.last
    )
    told = problems_of(lake, wrong)
    assert "wrong partition" in told[0]
    assert "1 rows, 7 in the log" in told[1]
    assert "holds 9-0 to 9-0, which differs from its name" in told[2]


def test_a_compaction_tries_until_it_wins(lake: Lake) -> None:
    files = []
    origins = [origin(KEY), origin(b"other", 2)]
    for one in origins:
        for ms in (5, 7, 9):
            files += write(lake, [(ms, 0), (ms, 1)], one.key, one.number)
    lake = committed(lake, files)
    erasures = [(KEY, "7-1"), (b"other", "5-0")]

    def interfere() -> None:
        key, gone = erasures.pop()
        assert erase_job.erase(LOCAL, key, [gone], lake=lake.uri).details["erased_in_lake"] == 1
        if erasures:
            failpoints.arm("lake:commit", interfere)

    failpoints.arm("lake:commit", interfere)
    report = compact_job.compact(LOCAL, lake.uri)
    assert erasures == []
    left = Lake.open(lake.uri).files()
    assert [(file.origin.key, file.entries) for file in left] == [(KEY, 5), (b"other", 5)]
    assert report.files >= 2
    assert audit_job.audit(LOCAL, lake=lake.uri).problems == []


def test_files_of_other_programs_are_read_erased_and_made_ours(lake: Lake) -> None:
    parts = [write(lake, ids) for ids in ([(5, 0), (5, 1)], [(9, 0)], [(7, 3), (8, 0)])]
    lake = committed(lake, [file for part in parts for file in part])
    lake.table.optimize.compact()
    (merged,) = Lake.open(lake.uri).files()
    assert merged.foreign
    assert (merged.origin, merged.entries) == (origin(), 5)
    assert (merged.first, merged.last) == (StreamId(5, 0), StreamId(9, 0))
    read = rows_in(Lake.open(lake.uri), ("seq", "ms"))
    assert [row["ms"] for _, row in read] == [5, 5, 7, 8, 9]
    done = erase_job.erase(LOCAL, KEY, ["7-3"], lake=lake.uri)
    assert (done.problems, done.details["erased_in_lake"]) == ([], 1)
    (ours,) = Lake.open(lake.uri).files()
    assert not ours.foreign
    left = [ids_of_path(path.name) for path in Path(lake.uri).rglob("*.parquet")]
    assert all(ends is not None for ends in left)  # the merged file is gone, and the old one of 7-3
    assert sorted(ends[0].ms for ends in left if ends is not None) == [5, 5, 9]
    assert audit_job.audit(LOCAL, lake=lake.uri).problems == []
    Lake.open(lake.uri).table.optimize.z_order(["seq"])
    assert compact_job.compact(LOCAL, lake.uri).files == 1
    assert [file.foreign for file in Lake.open(lake.uri).files()] == [False]
    assert audit_job.audit(LOCAL, lake=lake.uri).entries == 4


def test_an_entry_of_one_store_is_erased_there_alone(lake: Lake) -> None:
    other = "7d0b9f4e-0c1c-4b58-9d5a-1a0f6f3f8d11"
    files = [*write(lake, [(5, 0), (6, 0)]), *write(lake, [(5, 0), (6, 0)], store=other)]
    lake.commit("test", files)
    with pytest.raises(LakeError, match=r"2 stores have a stream 'orders': .*--store-id"):
        erase_job.erase(LOCAL, KEY, ["5-0"], lake=lake.uri)
    done = erase_job.erase(LOCAL, KEY, ["5-0"], lake=lake.uri, store_id=other)
    assert done.details["erased_in_lake"] == 1
    entries = {file.origin.store: file.entries for file in Lake.open(lake.uri).files()}
    assert entries == {STORE: 2, other: 1}


def test_entries_that_were_trimmed_between_runs_are_named_and_counted(
    orders: Store[bytes], uri: str
) -> None:
    path = str(orders.path)
    fill(orders, 1, 100)
    fill(orders, 1, 5, "mail")
    assert to_lake(LOCAL, path, uri).problems == []
    fill(orders, 101, 1000)
    fill(orders, 6, 5, "mail")
    orders.xtrim("orders", maxlen=10, approximate=False)
    (problem,) = audit_job.audit(LOCAL, path, lake=uri).problems
    assert "990 entries after 6000000-0 were trimmed" in problem
    done = to_lake(LOCAL, path, uri)
    (problem,) = done.problems
    assert "stream 'orders'" in problem
    assert "990 entries after 6000000-0 were trimmed" in problem
    assert done.entries == 5  # of the other stream
    done = to_lake(LOCAL, path, uri, fail_on_data_loss=False)
    assert (done.problems, done.entries, done.details["absent"]) == ([], 10, 990)
    assert audit_job.audit(LOCAL, path, lake=uri).problems == []


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_that_was_deleted_since_it_was_copied_is_named(
    orders: Store[bytes], uri: str, again: bool
) -> None:
    """The store does not know what a deleted stream had, so nobody knows what was not copied."""
    path = str(orders.path)
    for key in ("orders", "mail"):
        fill(orders, 1, 10, key)
    assert to_lake(LOCAL, path, uri).problems == []
    fill(orders, 11, 5)
    orders.delete("orders")
    if again:
        fill(orders, 1, 3)
    fill(orders, 11, 5, "mail")
    how = r"it was deleted and created again" if again else r"it was deleted"
    for _ in range(2):
        (problem,) = to_lake(LOCAL, path, uri).problems
        assert f"not copied: {how} after it was copied up to 600000-0; entries that" in problem
        (problem,) = audit_job.audit(LOCAL, path, lake=uri).problems
        assert f"{how} after it was copied up to 600000-0; entries that" in problem
    assert to_lake(LOCAL, path, uri, pattern="mail").problems == []
    assert to_lake(LOCAL, path, uri, fail_on_data_loss=False).problems == []
    assert to_lake(LOCAL, path, uri).problems == []  # it is noted
    assert audit_job.audit(LOCAL, path, lake=uri).problems == []
    assert sum(file.entries for file in Lake.open(uri).files()) == (28 if again else 25)


@pytest.mark.parametrize("how", ["copy", "xsetid"])
def test_a_stream_that_went_back_in_time_is_not_copied(
    orders: Store[bytes],
    open_store: Callable[..., Store[bytes]],
    uri: str,
    tmp_path: Path,
    how: str,
) -> None:
    path, copy = orders.path, tmp_path / "copy"
    fill(orders, 1, 10)
    if how == "copy":
        orders.close()
        shutil.copytree(path, copy)
        orders = open_store("orders.store")
    fill(orders, 11, 90)
    to_lake(LOCAL, str(path), uri)
    if how == "copy":
        orders.close()
        shutil.rmtree(path)
        copy.rename(path)
        orders = open_store("orders.store")
    else:
        orders.xtrim("orders", maxlen=0, approximate=False)
        orders.xsetid("orders", "600000-0")
    fill(orders, 11, 20)
    copied = to_lake(LOCAL, str(path), uri)
    audited = audit_job.audit(LOCAL, str(path), lake=uri)
    for report in (copied, audited):
        (problem,) = report.problems
        assert "has gone back in time: it had 100 entries added, up to 6000000-0, and" in problem
    fill(orders, 200, 5)
    done = to_lake(LOCAL, str(path), uri, fail_on_data_loss=False)
    assert (done.problems, done.entries) == ([], 5)


@pytest.mark.parametrize("fleet", [False, True])
def test_a_store_that_another_one_has_replaced_is_named(tmp_path: Path, fleet: bool) -> None:
    """Nobody knows what it had that was not copied, 100 entries here: it is not there any more."""
    path, lake = tmp_path / "stores" / "a.store", str(tmp_path / "lake")
    path.parent.mkdir()

    def copy(**options: Any) -> Report:
        if fleet:
            return to_lake(LOCAL, str(path.parent), lake, fleet=True, **options)
        return to_lake(LOCAL, str(path), lake, **options)

    def problems() -> list[str]:
        if fleet:
            return audit_job.audit(LOCAL, lake=lake, fleet=str(path.parent)).problems
        return audit_job.audit(LOCAL, str(path), lake=lake).problems

    with Store(path, sync="none") as store:
        fill(store, 1, 100)
        assert copy().problems == []
        fill(store, 101, 100)
        first = store.uuid
    path.rename(tmp_path / "aside")
    with Store(path, sync="none") as store:
        fill(store, 1, 50)
        second = store.uuid
    said = f"it was at {path} when it was copied, and store {second} is there now; entries that"
    for new in (50, 0):
        report = copy()
        assert report.entries == new
        (problem,) = report.problems
        assert problem.startswith(f"store {first}: not copied: {said}")
        (problem,) = problems()
        assert problem.startswith(f"store {first}: {said}")
    (tmp_path / "aside").rename(path.with_name("b.store"))
    moved = to_lake(LOCAL, str(path.with_name("b.store")), lake)
    assert (moved.problems, moved.entries) == ([], 100)
    assert copy().problems == problems() == []  # it was only moved
    shutil.rmtree(path.with_name("b.store"))
    path.rename(path.with_name("b.store"))
    (problem,) = to_lake(LOCAL, str(path.with_name("b.store")), lake).problems
    assert first in problem
    path = path.with_name("b.store")
    assert copy(fail_on_data_loss=False).problems == []
    assert copy().problems == problems() == []  # it is noted
    assert sum(file.entries for file in Lake.open(lake).files()) == 250


def test_a_file_that_was_taken_out_of_the_log_is_missed(orders: Store[bytes], uri: str) -> None:
    fill(orders, 1, 2000)
    orders.xdel("orders", "60000-0")
    assert to_lake(LOCAL, str(orders.path), uri).details["absent"] == 1
    assert audit_job.audit(LOCAL, lake=uri).problems == []
    table = Lake.open(uri)
    lost = table.files()[0]
    table.commit("an accident", [], removed=[lost])
    (problem,) = audit_job.audit(LOCAL, lake=uri).problems
    assert f"the lake has {1999 - lost.entries:,} entries, expected 1,999" in problem


@pytest.mark.parametrize(
    ("part", "column", "value", "problem"),
    [
        ("minValues", "ms", 360_000, "column 'ms' holds 300000 to 540000, but the log says 360000"),
        ("maxValues", "ms", 360_000, "but the log says 300000 to 360000, so readers may skip"),
        ("minValues", "stream", "p", "column 'stream' holds orders to orders, but the log says p"),
        ("maxValues", "store", "0", "column 'store' holds"),
        ("maxValues", "ts", "1970-01-01T00:06:00.000Z", "column 'ts' holds 1970-01-01 00:05:00"),
        ("nullCount", "ms", 5, "column 'ms' has 0 nulls, 5 in the log"),
    ],
)
def test_statistics_of_the_log_by_which_readers_would_skip_rows(
    orders: Store[bytes], uri: str, part: str, column: str, value: object, problem: str
) -> None:
    fill(orders, 5, 5)
    to_lake(LOCAL, str(orders.path), uri)
    assert audit_job.audit(LOCAL, lake=uri).problems == []
    log = max(Path(uri, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = (one["add"] for one in actions if "add" in one)
    said = json.loads(add["stats"])
    said[part][column] = value
    add["stats"] = json.dumps(said)
    log.write_text("".join(json.dumps(one) + "\n" for one in actions))
    assert problem in " ".join(audit_job.audit(LOCAL, lake=uri).problems)


def test_one_bad_stream_does_not_stop_the_others(orders: Store[bytes], uri: str) -> None:
    orders.set_retention("bad", archive=True)
    fill(orders, 1, 2000, "bad")
    for key in (b"good", b"\xff", b"\\xff", b"x" * 300, b"__HIVE_DEFAULT_PARTITION__"):
        orders.xadd(key, {"n": "1"}, id=MAX_ID)
    orders.xtrim("bad", maxlen=0, approximate=False)
    orders.archive()
    (segment,) = (Path(orders.path) / "archive").rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[200] ^= 0xFF
    segment.write_bytes(data)
    done = to_lake(LOCAL, str(orders.path), uri)
    (problem,) = done.problems
    assert problem.startswith("stream 'bad'")
    assert "not copied" in problem
    assert done.entries == 5
    assert {file.origin.key for file in Lake.open(uri).files()} == {
        b"good",
        b"\xff",
        b"\\xff",
        b"x" * 300,
        b"__HIVE_DEFAULT_PARTITION__",
    }
    data[200] ^= 0xFF
    segment.write_bytes(data)
    assert to_lake(LOCAL, str(orders.path), uri).entries == 2000
    assert audit_job.audit(LOCAL, str(orders.path), lake=uri).problems == []


def test_a_key_that_was_made_again_has_two_incarnations(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store, target, lake = open_store("a"), open_store("b"), str(tmp_path / "lake")
    fill(store, 1, 10)
    to_lake(LOCAL, str(store.path), lake)
    store.delete("orders")
    fill(store, 5, 10)
    assert to_lake(LOCAL, str(store.path), lake, fail_on_data_loss=False).entries == 10
    assert [file.entries for file in Lake.open(lake).files()] == [10, 10]
    assert audit_job.audit(LOCAL, str(store.path), lake=lake).problems == []
    where = (LOCAL, lake, str(target.path), "orders")
    with pytest.raises(LakeError, match=r"overlapping IDs: incarnations \d+, \d+"):
        restore_job.restore(*where)
    newest = max(file.origin.number for file in Lake.open(lake).files())
    assert restore_job.restore(*where, incarnation=newest).entries == 10
    assert target.xrange("orders") == store.xrange("orders")


def test_a_job_that_lost_begins_again(
    open_store: Callable[..., Store[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("orders.store")
    path, lake = str(store.path), str(tmp_path / "lake")
    fill(store, 1, 100)
    plain = Lake.commit
    calls = []

    def commit(self: Lake, *args: Any, **options: Any) -> Lake:
        calls.append(self.version)
        if len(calls) == 1:  # another job is faster
            monkeypatch.setattr(Lake, "commit", plain)
            assert to_lake(LOCAL, path, lake).entries == 100
            monkeypatch.setattr(Lake, "commit", commit)
        return plain(self, *args, **options)

    monkeypatch.setattr(Lake, "commit", commit)
    assert to_lake(LOCAL, path, lake).entries == 0
    assert sum(file.entries for file in Lake.open(lake).files()) == 100
    assert len(list(Path(lake).rglob("*.parquet"))) == len(Lake.open(lake).files())


@pytest.mark.parametrize("step", ["erase._commit", "to_lake.plan", "to_lake._leave_out"])
def test_a_job_begins_again_when_another_removes_what_it_reads(
    orders: Store[bytes], uri: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = str(orders.path)
    fill(orders, 1, 100)
    fill(orders, 1, 5, "mail")
    to_lake(LOCAL, path, uri)
    fill(orders, 101, 1000)
    fill(orders, 6, 5, "mail")
    orders.xtrim("orders", maxlen=10, approximate=False)  # it has lost entries: not to be copied
    where = f"streamkeep.pipeline.jobs.{step}"
    plain = pytest.importorskip(where.rpartition(".")[0]).__dict__[where.rpartition(".")[2]]

    def interfere(*args: Any) -> Any:
        monkeypatch.setattr(where, plain)
        assert to_lake(LOCAL, path, uri, streams=["mail"]).entries == 5
        return plain(*args)

    monkeypatch.setattr(where, interfere)
    if step.startswith("erase"):
        done = erase_job.erase(LOCAL, "orders", ["60000-0"], lake=uri)
        assert (done.problems, done.details["erased_in_lake"]) == ([], 1)
    else:
        done = to_lake(LOCAL, path, uri)
        (problem,) = done.problems
        assert "990 entries after 6000000-0 were trimmed" in problem
        assert done.entries == 0
    files = Lake.open(uri).files()
    assert sum(file.entries for file in files) == 110 - step.startswith("erase")
    assert len(list(Path(uri).rglob("*.parquet"))) == len(files)


def test_an_audit_bears_that_another_job_commits(
    orders: Store[bytes], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(orders.path)
    fill(orders, 1, 100)
    to_lake(LOCAL, path, uri)
    erase_job.erase(LOCAL, "orders", ["60000-0"], lake=uri)
    plain = audit_job.plan

    def interfere(*args: Any) -> Any:
        monkeypatch.setattr(audit_job, "plan", plain)
        fill(orders, 101, 5)
        assert to_lake(LOCAL, path, uri).entries == 5
        return plain(*args)

    monkeypatch.setattr(audit_job, "plan", interfere)
    assert audit_job.audit(LOCAL, lake=uri).problems == []


def test_what_a_lake_has_comes_back_once(
    open_store: Callable[..., Store[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = open_store("orders.store"), open_store("restored.store")
    lake = str(tmp_path / "lake")
    fill(store, 1, 1500)
    to_lake(LOCAL, str(store.path), lake)
    arguments = (LOCAL, lake, str(target.path), "orders")
    part = restore_job.restore(*arguments, into="part", start="60000", end="180000-0")
    assert (part.entries, part.details["first_id"], part.details["last_id"]) == (
        3,
        "60000-0",
        "180000-0",
    )
    assert target.xrange("part") == store.xrange("orders", count=3)

    plain, steps = restore_engine._write_step, []

    def write_step(*args: Any) -> int:
        steps.append(1)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(restore_engine, "_write_step", write_step)
    monkeypatch.setattr(restore_engine, "_STEP_NODES", 4)
    with pytest.raises(KeyboardInterrupt):
        restore_job.restore(*arguments)
    before = target.xlen("orders")
    assert 0 < before < 1500
    done = restore_job.restore(*arguments)
    assert (done.entries, done.details["resumed"]) == (1500 - before, True)
    assert target.xrange("orders") == store.xrange("orders")
    assert not list((Path(target.path) / "staging").glob("*"))
    again = restore_job.restore(*arguments)
    assert (again.entries, again.details["already"]) == (0, 1500)
    target.xdel("orders", "120000-0")
    with pytest.raises(IdTooSmallError, match="entry 120000-0 is missing there; next: delete"):
        restore_job.restore(*arguments)
    assert target.xlen("orders") == 1499
    assert not list((Path(target.path) / "staging").glob("*"))
    with pytest.raises(LakeError, match="no entries of 'mail'"):
        restore_job.restore(LOCAL, lake, str(target.path), "mail")
