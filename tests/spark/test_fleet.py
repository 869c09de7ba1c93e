"""Many stores in one lake: equal keys and IDs, told apart, each entry once; what is erased."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import streamkeep
from other_users import ANN, EVE, Failed, as_root, as_user, common_folder
from spark.fleets import IDS, LAST, copy, expected, make, problems, published, rows_of
from spark.in_process import LOCAL, read_all
from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.format.segment.remote import HEAD
from streamkeep.pipeline.data_source import StreamkeepSource
from streamkeep.pipeline.jobs import to_lake as to_lake_job
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.jobs.erase import erase
from streamkeep.pipeline.jobs.executor.to_lake import write_pieces
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.options import OptionError
from streamkeep.pipeline.store_fleet.members import find_members
from streamkeep.pipeline.store_fleet.pieces import FleetError


def test_two_copies_of_a_store_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "one", "a").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(FleetError, match="copies of one store"):
        find_members(str(tmp_path))
    with pytest.raises(FleetError, match="no archives"):
        find_members(str(tmp_path / "nothing"))


@as_root
def test_a_store_of_another_user_is_named() -> None:
    """As one that cannot be read: from Python 3.14 on, `Path.is_file` takes it for missing."""
    with common_folder() as folder:
        as_user(ANN, [], lambda: make(folder / "hers", "a").close())
        with pytest.raises(Failed, match=f"hers: .*Permission denied; next: work as {ANN}"):
            as_user(EVE, [], lambda: find_members(str(folder)))


def test_the_archive_of_one_store_is_audited_where_it_is(tmp_path: Path) -> None:
    fleet, path = tmp_path / "fleet", str(tmp_path / "a.store")
    a = published(tmp_path / "a.store", "a", str(fleet))
    report = audit(LOCAL, path)
    assert (report.problems, report.details["segments"]) == ([], 1)
    segment = break_segment(fleet, a)
    (problem,) = audit(LOCAL, path).problems
    assert "block 0 of segment" in problem
    segment.unlink()
    (problem,) = audit(LOCAL, path).problems
    assert "not" in problem


def test_new_entries_and_new_stores_come_and_gone_ones_stay(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    a = published(tmp_path / "a.store", "a", str(fleet))
    assert copy(fleet, lake).entries == 500
    b = published(tmp_path / "b.store", "b", str(fleet))
    with streamkeep.open(tmp_path / "a.store") as store:
        store.xtrim("orders", maxlen=10, approximate=False)
        store.archive()
    report = copy(fleet, lake)
    assert (report.entries, report.details["changed"]) == (500, 2)
    shutil.rmtree(fleet / a)
    assert copy(fleet, lake).entries == 0
    assert rows_of(lake) == expected((a, "a"), (b, "b"))


def test_a_head_that_was_removed_is_a_problem(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    a = published(tmp_path / "a.store", "a", str(fleet))
    published(tmp_path / "b.store", "b", str(fleet))
    copy(fleet, lake)
    (fleet / "7d0b9f4e-0c1c-4b58-9d5a-1a0f6f3f8d11").mkdir()  # that will be published soon
    assert copy(fleet, lake).problems == []
    (fleet / a / HEAD).unlink()
    said = f"store {a}: its archive in {fleet} has no head"
    (problem,) = copy(fleet, lake).problems
    assert problem.startswith(said)
    (fleet / "7d0b9f4e-0c1c-4b58-9d5a-1a0f6f3f8d11").rmdir()
    for report in (audit(LOCAL, fleet=str(fleet)), audit(LOCAL, lake=lake, fleet=str(fleet))):
        (problem,) = report.problems
        assert problem.startswith(said)


def test_archived_streams_that_were_deleted_or_went_back_are_named(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    with make(tmp_path / "a.store", "a") as store:
        for key in ("gone", "back"):
            store.set_retention(key, archive=True)
            store.xadd_many(key, [{"of": "a", "n": "0"}] * 2, ids=IDS[:2])
        store.archive(to=str(fleet), seal=True)
        assert copy(fleet, lake).problems == []
        store.delete("gone")
        store.xtrim("back", maxlen=0, approximate=False)
        store.xsetid("back", IDS[1], entries_added=1)
        store.archive(to=str(fleet), seal=True)
    for _ in range(2):
        back, gone = copy(fleet, lake).problems
        assert "not copied: it was deleted after it was copied up to" in gone
        assert "not copied: it has gone back in time: it was copied up to" in back
        back, gone = sorted(problems(fleet, lake))
        assert "it was deleted after it was copied" in gone
        assert "it has gone back in time" in back
    assert to_lake(LOCAL, str(fleet), lake, fleet=True, fail_on_data_loss=False).problems == []
    assert problems(fleet, lake) == []


def break_segment(fleet: Path, store: str) -> Path:
    """Damage the only archived segment of a store; return its path."""
    (path,) = (fleet / store / "segments").rglob("*.seg")
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_bad_store_is_listed_and_stops_nothing_else(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    a, b, c = (published(tmp_path / f"{tag}.store", tag, str(fleet)) for tag in "abc")
    d = make(fleet / "d.store", "d")
    d.close()
    (fleet / a / "store.json").write_text("{}")
    (manifest,) = (fleet / b / "manifests").iterdir()
    manifest.write_bytes(b"x" + manifest.read_bytes()[1:])
    (fleet / "d.store" / "data.mdb").write_bytes(b"\0" * 8192)
    make(fleet / "e.store", "e").close()
    (fleet / "e.store" / "data.mdb").unlink()
    report = copy(fleet, lake)
    assert rows_of(lake) == expected((c, "c"))
    assert len(report.problems) == 4
    for store in (a, b, "d.store", "e.store"):
        assert any(store in one for one in report.problems)
    found = problems(fleet, lake)
    assert len(found) == 4


def test_entries_trimmed_after_the_plan_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    with make(fleet / "a.store", "a") as store:
        store.set_retention("orders", archive=False)
        store.xadd("other", {"of": "a", "n": "0"}, id=IDS[0])
        write = write_pieces

        def trimmed_before(task: Any) -> list[Any]:
            store.xtrim("orders", maxlen=10, approximate=False)
            return write(task)

        with monkeypatch.context() as patched:
            patched.setattr(to_lake_job, "write_pieces", trimmed_before)
            report = copy(fleet, lake)
    (problem,) = report.problems
    assert "490 of the 500 entries" in problem
    assert "trimmed after the read was planned" in problem
    assert report.entries == 1
    report = to_lake(LOCAL, str(fleet), lake, fleet=True, fail_on_data_loss=False)
    assert (report.entries, report.details["absent"]) == (10, 490)
    assert problems(fleet, lake) == []


def test_only_some_streams_of_a_fleet(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    stores = []
    for tag, place in (("a", fleet / "a.store"), ("b", tmp_path / "b.store")):
        with make(place, tag) as store:
            store.xadd("other", {"of": tag, "n": "0"}, id=IDS[0])
            if tag == "b":
                store.archive(to=str(fleet), seal=True)
            stores.append((store.uuid, tag))
    with pytest.raises(NoSuchKeyError, match="'nothing'"):
        to_lake(LOCAL, str(fleet), lake, fleet=True, streams=["nothing"])
    assert to_lake(LOCAL, str(fleet), lake, fleet=True, streams=["other"]).entries == 2
    version = Lake.open(lake).version
    assert to_lake(LOCAL, str(fleet), lake, fleet=True, pattern="oth.*").entries == 0
    assert Lake.open(lake).version == version
    assert copy(fleet, lake).entries == 1000
    others = [(uuid, tag, IDS[0]) for uuid, tag in stores]
    assert rows_of(lake) == sorted([*expected(*stores), *others])
    assert problems(fleet, lake) == []


@pytest.mark.slow
def test_simultaneous_runs_all_win_in_the_end(tmp_path: Path) -> None:
    fleet, lake = str(tmp_path / "fleet"), str(tmp_path / "lake")
    stores = [
        (published(tmp_path / f"{tag}.store", tag, fleet), tag) for tag in ("a", "b", "c", "d")
    ]
    Lake.create(lake)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(3):
                to_lake(LOCAL, fleet, lake, fleet=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for tag in ("a", "b"):
        with streamkeep.open(tmp_path / f"{tag}.store") as store:
            store.xadd("orders", {"of": tag, "n": "last"}, id=LAST)
            store.archive(seal=True)
    for thread in threads:
        thread.join()
    assert failures == []
    copy(fleet, lake)
    last = [(uuid, tag, LAST) for uuid, tag in stores if tag in "ab"]
    assert rows_of(lake) == sorted([*expected(*stores), *last])
    assert problems(fleet, lake) == []


def test_what_was_erased_from_a_lake_does_not_come_back_with_an_adopted_segment(
    tmp_path: Path,
) -> None:
    fleet, lake = str(tmp_path / "fleet"), str(tmp_path / "lake")
    with make(tmp_path / "a.store", "a") as store:
        a = store.uuid
        store.xtrim("orders", maxlen=100)
        store.archive()
        saved = [str(path) for path in store.export_segments(tmp_path / "saved")]
        store.archive(to=fleet, seal=True)
        assert copy(fleet, lake).entries == 500
        assert erase(LOCAL, "orders", IDS[:2], lake=lake).details["erased_in_lake"] == 2
        store.drop_segments("orders")
        list(store.adopt_segments(*saved))
        store.archive()
        copy(fleet, lake)
        assert rows_of(lake) == expected((a, "a"))[2:]
        assert problems(fleet, lake) == []
        erase(LOCAL, "orders", [LAST], lake=lake)  # before it comes
        store.xadd("orders", {"of": "a"}, id=LAST)
        store.xadd("orders", {"of": "a"}, id="1817200000001-0")
        store.archive(seal=True)
    assert copy(fleet, lake).entries == 1
    assert problems(fleet, lake) == []


def test_what_was_erased_from_the_lake_of_one_store_does_not_come_with_the_fleet(
    tmp_path: Path,
) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    with make(tmp_path / "b.store", "a") as store:
        store.xtrim("orders", maxlen=100)
        store.archive()
        saved = [str(path) for path in store.export_segments(tmp_path / "saved")]
    fleet.mkdir()
    with streamkeep.open(fleet / "a.store") as store:
        list(store.adopt_segments(*saved))
        store.xadd("orders", {"of": "a"}, id=LAST)
    path = str(fleet / "a.store")
    copied = to_lake(LOCAL, path, lake).entries
    erase(LOCAL, "orders", [*IDS[:2], "1817200000001-0"], lake=lake)
    with streamkeep.open(path) as store:
        store.xadd("orders", {"of": "a"}, id="1817200000001-0")
    assert to_lake(LOCAL, path, lake).entries == 0
    assert audit(LOCAL, path, lake=lake).problems == []
    copy(fleet, lake)
    assert len(rows_of(lake)) == copied - 2
    assert {row[2] for row in rows_of(lake)}.isdisjoint(IDS[:2])
    assert problems(fleet, lake) == []


def test_a_fleet_is_a_dataframe(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    a = published(tmp_path / "a.store", "a", str(fleet))
    with make(fleet / "c.store", "c") as store:
        c = store.uuid
    options = {"fleet": str(fleet), "startingOffsets": IDS[100], "endingOffsets": IDS[399]}
    names = [StructField(name, StringType()) for name in ("store", "id", "n")]
    reader = StreamkeepSource(options).reader(StructType(names))
    shown = sorted((row["store"], row["id"], row["n"]) for row in read_all(reader))
    assert shown == sorted((uuid, IDS[n], str(n)) for uuid in (a, c) for n in range(100, 400))
    few = StreamkeepSource({**options, "maxRecordsPerPartition": "1"}).reader(StructType(names))
    assert len(few.partitions()) > len(reader.partitions())
    segments = StreamkeepSource({**options, "source": "archive"}).reader(StructType(names))
    assert {row["store"] for row in read_all(segments)} == {a}  # the other has none
    wrong = StreamkeepSource({**options, "subscribe": "orders,ordres"}).reader(StructType(names))
    with pytest.raises(NoSuchKeyError, match="no store has a stream 'ordres'"):
        wrong.partitions()


def test_a_fleet_is_read_in_batches_only(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="leave out the path"):
        StreamkeepSource({"fleet": str(tmp_path), "path": "x"})
    source = StreamkeepSource({"fleet": str(tmp_path)})
    with pytest.raises(OptionError, match="--follow"):
        source.streamReader(cast(Any, None))
