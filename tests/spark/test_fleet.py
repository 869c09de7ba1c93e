"""Many stores in one lake: equal keys and IDs, told apart, each entry once; what is erased."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")
pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install '.[spark]'")

from pyspark.sql.types import StringType, StructField, StructType  # noqa: E402

import streamkeep  # noqa: E402
from spark.fleets import (  # noqa: E402
    IDS,
    LAST,
    LOCAL,
    copy,
    expected,
    make,
    problems,
    published,
    rows_of,
)
from spark.in_process import InProcess  # noqa: E402
from spark.s3_server import (  # noqa: E402
    BUCKET,
    DOWN,
    FAILING,
    GOOD,
    LOSING,
    SLOW,
    STALE,
    S3Server,
    serving,
)
from streamkeep.engine.system import failpoints  # noqa: E402
from streamkeep.format.core.entry import StreamId  # noqa: E402
from streamkeep.format.core.errors import NoSuchKeyError, StreamkeepError  # noqa: E402
from streamkeep.format.segment.manifest import ADOPTED, ARCHIVED, SegmentRecord  # noqa: E402
from streamkeep.format.segment.remote import (  # noqa: E402
    Manifest,
    RemoteSegment,
    RemoteStream,
)
from streamkeep.pipeline.data_source import StreamkeepSource  # noqa: E402
from streamkeep.pipeline.fleet.members import FleetError, find_members  # noqa: E402
from streamkeep.pipeline.fleet.pieces import (  # noqa: E402
    Member,
    Positions,
    StreamPosition,
    new_pieces,
    pack_groups,
    stream_pieces,
    unpack_group,
)
from streamkeep.pipeline.jobs.audit import audit  # noqa: E402
from streamkeep.pipeline.jobs.erase import erase  # noqa: E402
from streamkeep.pipeline.jobs.fleet_to_lake import fleet_to_lake  # noqa: E402
from streamkeep.pipeline.jobs.restore import restore  # noqa: E402
from streamkeep.pipeline.jobs.to_lake import to_lake  # noqa: E402
from streamkeep.pipeline.lake.files import LakeError  # noqa: E402
from streamkeep.pipeline.lake.read import read_lake  # noqa: E402
from streamkeep.pipeline.lake.table import Lake  # noqa: E402
from streamkeep.pipeline.options import OptionError  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    running.behave(GOOD)
    yield running
    running.behave(GOOD)


# --- pieces ---------------------------------------------------------------------------------------


def segment(
    first: int, last: int, *, sealed: bool = False, origin: int = ARCHIVED, sequence: int = 1
) -> RemoteSegment:
    record = SegmentRecord(
        1, first, 0, last, 0, last - first + 1, 1, 9, 90, 7, sequence, 0, 0, 1, origin, "p", b"k"
    )
    return RemoteSegment(record, sealed)


MEMBER = Member("u", "n", {}, uri="file:///x", version=3)


def ranges(segments: list[RemoteSegment]) -> list[tuple[int, int, bool]]:
    return [
        (piece.start.ms, piece.end.ms, piece.sealed)
        for piece in stream_pieces(MEMBER, b"k", segments)
    ]


def test_archived_segments_come_before_sealed_ones() -> None:
    found = list(
        stream_pieces(MEMBER, b"k", [segment(1, 9, sealed=True), segment(4, 6), segment(8, 20)])
    )
    assert [(piece.start, piece.end, piece.sealed) for piece in found] == [
        (StreamId(1, 0), StreamId(4, 0).previous(), True),
        (StreamId(4, 0), StreamId(6, 0), False),
        (StreamId(6, 1), StreamId(8, 0).previous(), True),
        (StreamId(8, 0), StreamId(20, 0), False),
    ]


def test_of_overlapping_sealed_segments_each_entry_comes_once() -> None:
    found = list(
        stream_pieces(MEMBER, b"k", [segment(1, 5, sealed=True), segment(1, 9, sealed=True)])
    )
    assert [(piece.start.ms, piece.end.ms) for piece in found] == [(1, 9)]
    assert ranges([segment(1, 5, sealed=True), segment(3, 9, sealed=True)])[-1][1] == 9


def manifest(complete: int, *segments: RemoteSegment) -> Manifest:
    stream = RemoteStream(1, b"k", True, StreamId(99, 0), 9, 9, StreamId(complete, 0))
    return Manifest({1: stream}, segments)


def test_entries_above_a_gap_wait_until_the_gap_is_filled() -> None:
    pieces, positions = new_pieces(MEMBER, manifest(5, segment(1, 5), segment(8, 9)), Positions())
    assert [(piece.start.ms, piece.end.ms) for piece in pieces] == [(1, 5)]
    assert positions.end_of(1) == StreamId(5, 0)
    pieces, _ = new_pieces(MEMBER, manifest(9, segment(1, 5), segment(6, 9)), positions)
    assert [(piece.start, piece.end.ms) for piece in pieces] == [(StreamId(6, 0), 9)]


def test_a_segment_that_was_adopted_below_the_position_is_not_missed() -> None:
    _, positions = new_pieces(MEMBER, manifest(9, segment(5, 9)), Positions())
    late = segment(1, 3, origin=ADOPTED, sequence=2)
    pieces, after = new_pieces(MEMBER, manifest(9, late, segment(5, 9)), positions)
    assert [(piece.start.ms, piece.end.ms, piece.late) for piece in pieces] == [(1, 3, True)]
    assert new_pieces(MEMBER, manifest(9, late, segment(5, 9)), after)[0] == []


def test_positions_and_groups_survive_their_transport() -> None:
    streams = {7: StreamPosition(b"\xff", StreamId((1 << 64) - 1, 5), 3, 1, 6, 9)}
    positions = Positions(streams, "n", {"a": "b"}, 5)
    assert positions.absent == 2
    assert Positions.from_json(json.loads(json.dumps(positions.as_json()))) == positions
    pieces = list(stream_pieces(MEMBER, b"k", [segment(1, 2), segment(3, 4)]))
    assert [one for _, text in pack_groups(pieces) for one in unpack_group(text)] == pieces


def test_positions_of_the_first_fleets_can_be_read() -> None:
    text = (
        b'{"streams": [[7, "k", "5-0", 3, 1]], "sequence": 9, "name": "n", "labels": {}, '
        b'"sealed_ms": null}'
    )
    position = StreamPosition(b"k", StreamId(5, 0), 3, 1, None, 9)
    assert Positions.from_json(json.loads(text)) == Positions({7: position}, "n")


def test_two_copies_of_a_store_are_refused(tmp_path: Path) -> None:
    import shutil

    make(tmp_path / "one", "a").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(FleetError, match="copies of one store"):
        find_members(str(tmp_path))
    with pytest.raises(FleetError, match="no archives"):
        find_members(str(tmp_path / "nothing"))


# --- jobs -----------------------------------------------------------------------------------------


def test_three_stores_with_equal_keys_and_ids_are_one_lake(
    tmp_path: Path, server: S3Server
) -> None:
    fleet, lake = f"s3://{BUCKET}/{tmp_path.name}", str(tmp_path / "lake")
    a = published(tmp_path / "a.store", "a", fleet)
    b = published(tmp_path / "b.store", "b", fleet)
    folder = tmp_path / "folder"
    with make(folder / "c.store", "c") as store:
        c = store.uuid
    server.behave(FAILING)
    assert copy(fleet, lake).entries == 1000
    server.behave(GOOD)
    assert copy(folder, lake).entries == 500
    assert rows_of(lake) == expected((a, "a"), (b, "b"), (c, "c"))
    assert copy(fleet, lake).details["changed"] == 0
    assert copy(folder, lake).entries == 0
    for place in (fleet, str(folder)):
        assert problems(place, lake) == []

    with pytest.raises(LakeError, match="store_id"):
        erase(LOCAL, "orders", IDS[:1], lake=lake)
    done = erase(LOCAL, "orders", [IDS[3], IDS[400]], store=str(tmp_path / "a.store"), lake=lake)
    assert done.details["erased_in_store"] == done.details["erased_in_lake"] == 2
    erased = {(a, "a", IDS[3]), (a, "a", IDS[400])}
    everything = expected((a, "a"), (b, "b"), (c, "c"))
    assert rows_of(lake) == [row for row in everything if row not in erased]
    assert copy(fleet, lake).entries == 0
    for place in (fleet, str(folder)):
        assert problems(place, lake) == []

    restored = str(tmp_path / "r.store")
    with pytest.raises(LakeError, match="3 stores have a stream 'orders'"):
        restore(LOCAL, lake, restored, "orders")
    assert restore(LOCAL, lake, restored, "orders", store_id=a).entries == 498
    with streamkeep.open(restored) as store:
        assert {entry.fields[b"of"] for entry in store.xrange("orders")} == {b"a"}


def test_new_entries_and_new_stores_come_and_gone_ones_stay(tmp_path: Path) -> None:
    import shutil

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


def test_a_file_that_was_taken_out_of_the_log_is_found(tmp_path: Path) -> None:
    fleet, lake = str(tmp_path / "fleet"), str(tmp_path / "lake")
    published(tmp_path / "a.store", "a", fleet)
    copy(fleet, lake)
    table = Lake.open(lake)
    table.commit("foreign", [], removed=table.files())
    found = problems(fleet, lake)
    assert any("500 entries were copied" in one and "names 0" in one for one in found)
    assert any("the store has" in one for one in found)


def test_the_lake_of_one_store_becomes_that_of_a_fleet(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    with make(fleet / "a.store", "a") as store:
        a = store.uuid
    to_lake(LOCAL, str(fleet / "a.store"), lake)
    b = published(tmp_path / "b.store", "b", str(fleet))
    assert copy(fleet, lake).entries == 500
    assert rows_of(lake) == expected((a, "a"), (b, "b"))
    assert problems(fleet, lake) == []
    with pytest.raises(LakeError, match="--fleet"):
        to_lake(LOCAL, str(fleet / "a.store"), lake)


def break_segment(fleet: Path, store: str) -> Path:
    """Damage the only archived segment of a store; return its path."""
    (path,) = (fleet / store / "segments").rglob("*.seg")
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_bad_stream_is_listed_and_stops_nothing_else(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    with make(tmp_path / "a.store", "a") as store:
        store.xtrim("orders", maxlen=0, approximate=False)
        store.xadd("other", {"of": "a", "n": "0"}, id=IDS[0])
        store.archive(to=str(fleet), seal=True)
        a = store.uuid
    b = published(tmp_path / "b.store", "b", str(fleet))
    path = break_segment(fleet, a)
    report = copy(fleet, lake)
    (problem,) = report.problems
    assert problem.startswith(f"stream 'orders' (number 1 of store {a}): not copied: ")
    assert report.entries == 501
    assert copy(fleet, lake).problems == [problem]
    version = Lake.open(lake).version
    assert copy(fleet, lake).entries == 0
    assert Lake.open(lake).version == version

    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)
    report = copy(fleet, lake)
    assert (report.entries, report.problems) == (500, [])
    assert rows_of(lake) == sorted([*expected((a, "a"), (b, "b")), (a, "a", IDS[0])])
    assert problems(fleet, lake) == []


def test_a_bad_store_is_listed_and_stops_nothing_else(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    a, b, c = (published(tmp_path / f"{tag}.store", tag, str(fleet)) for tag in "abc")
    d = make(fleet / "d.store", "d")
    d.close()
    (fleet / a / "store.json").write_text("{}")
    (manifest,) = (fleet / b / "manifests").iterdir()
    manifest.write_bytes(b"x" + manifest.read_bytes()[1:])
    (fleet / "d.store" / "data.mdb").write_bytes(b"\0" * 8192)
    report = copy(fleet, lake)
    assert rows_of(lake) == expected((c, "c"))
    assert len(report.problems) == 3
    for store in (a, b, "d.store"):
        assert any(store in one for one in report.problems)
    found = problems(fleet, lake)
    assert len(found) == 3


def test_entries_trimmed_between_two_runs_are_a_problem(tmp_path: Path) -> None:
    fleet, lake = tmp_path / "fleet", str(tmp_path / "lake")
    with make(fleet / "a.store", "a") as store:
        store.set_retention("orders", archive=False)
        store.xadd("other", {"of": "a", "n": "0"}, id=IDS[0])
        assert copy(fleet, lake).entries == 501
        store.xadd_many("orders", [{"of": "a", "n": "x"}] * 1000)
        store.xadd("other", {"of": "a", "n": "1"})
        store.xtrim("orders", maxlen=10, approximate=False)
        lost = "990 entries after"
        assert any(lost in one for one in problems(fleet, lake))
        report = copy(fleet, lake)
        assert report.entries == 1
        assert [lost in one for one in report.problems] == [True]
        report = fleet_to_lake(LOCAL, str(fleet), lake, fail_on_data_loss=False)
        assert (report.entries, report.details["absent"], report.problems) == (10, 990, [])
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
        fleet_to_lake(LOCAL, str(fleet), lake, streams=["nothing"])
    assert fleet_to_lake(LOCAL, str(fleet), lake, streams=["other"]).entries == 2
    version = Lake.open(lake).version
    assert fleet_to_lake(LOCAL, str(fleet), lake, pattern="oth.*").entries == 0
    assert Lake.open(lake).version == version
    assert copy(fleet, lake).entries == 1000
    others = [(uuid, tag, IDS[0]) for uuid, tag in stores]
    assert rows_of(lake) == sorted([*expected(*stores), *others])
    assert problems(fleet, lake) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "step"),
    [
        (LOSING, "lake:file-written"),
        (LOSING, "lake:file-named"),
        (LOSING, "fleet:positions"),
        (LOSING, "lake:commit"),
        (LOSING, "lake:committed"),
        (LOSING, "fleet:committed"),
        (DOWN, "lake:file-written"),  # clients repeat a request for half a minute: only two
        (DOWN, "lake:commit"),
    ],
)
def test_a_run_on_s3_that_loses_what_it_wrote(
    tmp_path: Path, server: S3Server, mode: str, step: str
) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}"
    fleet, lake = f"{place}/fleet", f"{place}/lake"
    a = published(tmp_path / "a.store", "a", fleet)
    copy(fleet, lake)
    b = published(tmp_path / "b.store", "b", fleet)
    with streamkeep.open(tmp_path / "a.store") as store:
        store.xadd("orders", {"of": "a", "n": "last"}, id=LAST)
        store.archive(seal=True)
    failpoints.arm(step, lambda: server.behave(mode))
    with suppress(StreamkeepError, OSError):
        copy(fleet, lake)
    server.behave(GOOD)
    copy(fleet, lake)
    last = (a, "a", LAST)
    assert rows_of(lake) == sorted([*expected((a, "a"), (b, "b")), last])
    assert problems(fleet, lake) == []


@pytest.mark.slow
def test_simultaneous_runs_all_win_in_the_end(tmp_path: Path) -> None:
    fleet, lake = str(tmp_path / "fleet"), str(tmp_path / "lake")
    stores = [
        (published(tmp_path / f"{tag}.store", tag, fleet), tag) for tag in ("a", "b", "c", "d")
    ]
    Lake.create(lake, fleet=True)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(3):
                fleet_to_lake(cast(Any, InProcess()), fleet, lake)
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


@pytest.mark.slow
def test_segments_adopted_late_come_once(tmp_path: Path) -> None:
    fleet, lake = str(tmp_path / "fleet"), str(tmp_path / "lake")
    with make(tmp_path / "a.store", "a") as store:
        store.xtrim("orders", maxlen=100)
        store.archive()
        saved = [str(path) for path in store.export_segments(tmp_path / "saved")]
        store.drop_segments("orders")
        store.archive(to=fleet, seal=True)
        few = copy(fleet, lake).entries
        assert few < 500
        list(store.adopt_segments(*saved))
        store.archive()
        assert copy(fleet, lake).entries == 500 - few
        store.drop_segments("orders")
        store.archive()
        list(store.adopt_segments(*saved))
        store.archive()
        assert copy(fleet, lake).entries == 0
        assert rows_of(lake) == expected((store.uuid, "a"))


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


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FAILING, STALE, SLOW])
def test_a_lake_in_s3_of_archives_in_s3(tmp_path: Path, server: S3Server, mode: str) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}"
    fleet, lake = f"{place}/fleet", f"{place}/lake"
    server.behave(mode)
    a = published(tmp_path / "a.store", "a", fleet)
    server.behave(GOOD)
    b = published(tmp_path / "b.store", "b", fleet)
    assert copy(fleet, lake).entries == 1000
    assert rows_of(lake) == expected((a, "a"), (b, "b"))
    done: Any = erase(LOCAL, "orders", IDS[:1], store=str(tmp_path / "a.store"), lake=lake)
    assert done.problems == []
    assert problems(fleet, lake) == []


@pytest.mark.spark
@pytest.mark.slow
def test_a_fleet_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    fleet, lake = str(tmp_path / "fleet"), str(tmp_path / "lake")
    a = published(tmp_path / "a.store", "a", fleet)
    with make(tmp_path / "fleet" / "c.store", "c") as store:
        c = store.uuid
    assert fleet_to_lake(spark, fleet, lake).entries == 1000
    rows = read_lake(spark, lake, stores=[a])
    assert rows.columns[0] == "store"
    assert {row.store for row in rows.select("store").distinct().collect()} == {a}
    assert rows.count() == 500
    assert rows_of(lake) == expected((a, "a"), (c, "c"))
    assert audit(spark, lake=lake, fleet=fleet).problems == []
    frame = spark.read.format("streamkeep").option("fleet", fleet).load()
    assert frame.columns[:3] == ["store", "stream", "incarnation"]
    shown = [(row.store, row.id) for row in frame.select("store", "id").collect()]
    assert sorted(shown) == sorted((uuid, one) for uuid in (a, c) for one in IDS)
    part = (
        spark.read.format("streamkeep")
        .option("fleet", fleet)
        .option("subscribe", "orders")
        .option("startingOffsets", IDS[100])
        .option("endingOffsets", IDS[399])
        .schema("store string, id string, n int")
        .load()
    )
    assert part.count() == 600
    assert part.where("n = 100").count() == 2


def test_a_fleet_is_a_dataframe(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    a = published(tmp_path / "a.store", "a", str(fleet))
    with make(fleet / "c.store", "c") as store:
        c = store.uuid
    options = {"fleet": str(fleet), "startingOffsets": IDS[100], "endingOffsets": IDS[399]}
    names = [StructField(name, StringType()) for name in ("store", "id", "n")]
    reader = StreamkeepSource(options).reader(StructType(names))
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    shown = sorted((row["store"], row["id"], row["n"]) for row in rows)
    assert shown == sorted((uuid, IDS[n], str(n)) for uuid in (a, c) for n in range(100, 400))


def test_a_fleet_is_read_in_batches_only(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="leave out the path"):
        StreamkeepSource({"fleet": str(tmp_path), "path": "x"})
    source = StreamkeepSource({"fleet": str(tmp_path)})
    with pytest.raises(OptionError, match="--follow"):
        source.streamReader(cast(Any, None))


@pytest.mark.slow
def test_many_writers_of_one_stream_all_win(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    store = make(tmp_path / "a.store", "a")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(4):
                store.xadd("orders", {"of": "a"})
                to_lake(cast(Any, InProcess()), str(tmp_path / "a.store"), lake)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert failures == []
    assert len(rows_of(lake)) == 500 + 24
    assert audit(LOCAL, str(tmp_path / "a.store"), lake=lake).problems == []
