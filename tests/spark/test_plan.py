"""Partitions of about equal work; pieces of streams for a lake; columns from a sample."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from model.profile import configured
from spark.in_process import read_all
from streamkeep.arrow.casts import converter
from streamkeep.engine.api.store import Store
from streamkeep.format.core.entry import StreamId
from streamkeep.format.segment.manifest import ADOPTED, ARCHIVED, SegmentRecord
from streamkeep.format.segment.remote import Manifest, RemoteSegment, RemoteStream
from streamkeep.pipeline.data_source import StreamkeepSource
from streamkeep.pipeline.distribution.packing import (
    CORES,
    MAX_PARTITION_BYTES,
    MIN_PARTITION_BYTES,
    ONE_WAVE_BYTES,
    pack,
    partition_bytes,
    spread,
)
from streamkeep.pipeline.options import OptionError, parse_read
from streamkeep.pipeline.source.inference import type_of_texts
from streamkeep.pipeline.source.plan import packed
from streamkeep.pipeline.source.slices import Slice, join
from streamkeep.pipeline.spark_session.start import cores_of
from streamkeep.pipeline.store_fleet.pieces import (
    Member,
    Positions,
    StreamPosition,
    new_pieces,
    pack_groups,
    stream_pieces,
    unpack_group,
    without_erased,
)

size_of = attrgetter("size_bytes")


def slices(sizes: list[int], segment: str | None = None) -> list[Slice]:
    return [
        Slice(
            b"s", 1, StreamId(at, 0), StreamId(at, (1 << 64) - 1), size, size, segment=segment
        )
        for at, size in enumerate(sizes)
    ]  # fmt: skip


def test_partitions_grow_with_the_data_within_bounds() -> None:
    assert partition_bytes(1000, cores=4) == MIN_PARTITION_BYTES
    assert partition_bytes(48 * MIN_PARTITION_BYTES, cores=8) == 3 * MIN_PARTITION_BYTES
    assert partition_bytes(4 * ONE_WAVE_BYTES, cores=4) == ONE_WAVE_BYTES
    assert partition_bytes(4 * ONE_WAVE_BYTES + 4, cores=4) == ONE_WAVE_BYTES // 2
    assert partition_bytes(1 << 50, cores=4) == MAX_PARTITION_BYTES
    assert partition_bytes(1000, min_partitions=10) == 100
    assert partition_bytes(0, min_partitions=10) == 1


def test_three_thousand_small_segments_become_a_handful_of_partitions() -> None:
    many = slices([62_000] * 3000)
    partitions = pack(many, size_of, partition_bytes(3000 * 62_000, cores=2))
    assert 4 <= len(partitions) <= 12


@configured(100)
@given(
    st.lists(st.integers(0, 100), max_size=60),
    st.integers(1, 300),
    st.none() | st.integers(1, 80),
    st.none() | st.integers(1, 200),
)
def test_every_slice_is_in_one_partition_in_order(
    sizes: list[int], target: int, min_partitions: int | None, max_entries: int | None
) -> None:
    options = parse_read(
        {"path": "p", "subscribe": "k"}
        | ({} if min_partitions is None else {"minPartitions": str(min_partitions)})
        | ({} if max_entries is None else {"maxRecordsPerPartition": str(max_entries)})
    )
    apart = [replace(one, number=at) for at, one in enumerate(slices(sizes))]  # none are joined
    partitions = packed(apart, target, options)
    assert [one for part in partitions for one in part] == apart
    assert all(partitions)
    if min_partitions is not None:
        assert len(partitions) >= min(min_partitions, len(sizes))
    total, largest = sum(sizes), max(sizes, default=0)
    for part in partitions:
        size = sum(one.size_bytes for one in part)
        if max_entries is None and min_partitions is None:
            assert size <= total / max(1, round(total / target)) + largest
        if max_entries is not None:
            assert len(part) == 1 or sum(one.entries for one in part) <= max_entries


def test_no_partition_is_left_with_a_rest() -> None:
    many = slices([10] * 81)
    assert [len(part) for part in pack(many, size_of, 200)] == [20, 21, 20, 20]


def test_files_are_spread_evenly_without_a_task_for_a_rest() -> None:
    """Thirty segments and a small one took three tasks, and the third began after the others."""
    sizes = [4 << 20] * 30 + [1 << 18]
    first, second = spread(range(31), sizes.__getitem__, cores=2)
    assert (*first, *second) == tuple(range(31))
    assert len(first) == 15
    assert spread([], len, cores=2) == []
    assert spread("ab", lambda one: 0, cores=2) == [("a", "b")]
    assert spread("ab", {"a": 1, "b": 1 << 40}.__getitem__, cores=2) == [("a",), ("b",)]


def test_neighbours_in_one_place_are_read_as_one() -> None:
    whole = join(slices([1, 2, 3]))
    assert whole == (Slice(b"s", 1, StreamId(0, 0), StreamId(2, (1 << 64) - 1), 6, 6),)
    (one,) = join(slices([1, 2, 3], "a.seg"))
    assert (one.start.ms, one.end.ms, one.size_bytes) == (0, 2, 6)
    apart = [*slices([1], "a.seg"), *slices([1], "b.seg"), *slices([1])]
    assert join(apart) == tuple(apart)


@pytest.mark.parametrize(
    ("master", "conf", "cores"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[4,2]", {}, 4),
        ("local-cluster[2,3,1024]", {}, 6),
        ("spark://host:7077", {}, 0),
        ("spark://host:7077", {"spark.cores.max": "24"}, 24),
        ("yarn", {"spark.executor.cores": "4", "spark.executor.instances": "10"}, 40),
        ("k8s://https://host", {"spark.default.parallelism": "16"}, 16),
    ],
)
def test_the_cores_of_a_cluster_come_from_its_settings(
    master: str, conf: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cores_of(master, conf) == cores
    monkeypatch.setenv(CORES, str(cores))
    assert partition_bytes(64 << 30) == 128 << 20
    gib = 1 << 30
    assert partition_bytes(gib) == partition_bytes(gib, cores=cores or os.cpu_count() or 1)


# --- what of a store is new for a lake: pieces of streams, each entry in one, and positions -------


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
    assert [one for _, packed in pack_groups(pieces) for one in unpack_group(packed)] == pieces


def test_pieces_name_the_erased_ids_of_their_range() -> None:
    pieces = list(stream_pieces(MEMBER, b"k", [segment(1, 4), segment(5, 9), segment(10, 12)]))
    gone = tuple(StreamId(ms, 0) for ms in (0, 4, 5, 9, 13))
    found = list(without_erased(pieces, {1: gone, 2: (StreamId(11, 0),)}))
    assert [[one.ms for one in piece.erased] for piece in found] == [[4], [5, 9], []]
    assert list(without_erased(pieces, {})) == pieces


# --- columns that are inferred from a sample of entries -------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-20", "0"], "bigint"),
        (["1", "2.5"], "double"),
        (["1e3", ".5"], "double"),
        (["007", "1"], "string"),
        (["true", "FALSE"], "boolean"),
        (["2024-06-10"], "date"),
        (["2024-06-10", "2024-06-10T07:33:20Z"], "timestamp"),
        (["", ""], "string"),
        (["1", ""], "bigint"),
        (["1", "x"], "string"),
        ([".", "-"], "string"),
        ([b"\xff", "x"], "binary"),
        (['{"a": 1}', '{"b": [1, 2.5]}'], "struct<a:bigint,b:array<double>>"),
        (['{"a": null}', '{"a": {"b": true}}'], "struct<a:struct<b:boolean>>"),
        (['{"a": null}', "{}"], "string"),
        (['{"a": 1}', '{"a": "x"}'], "struct<a:string>"),
        (["[]", '["x"]'], "array<string>"),
        (["{broken"], "string"),
        (["[" * 100_000], "string"),
        (['{"a": 1}', "1"], "string"),
        (["9223372036854775808", "1"], "string"),
        (['{"a": 9223372036854775808}'], "struct<a:string>"),
        (["E12"], "string"),
        (["-.5E3"], "double"),
        (["2024-99-99"], "string"),
        (["2023-02-29T10:00"], "string"),
        (["2024-02-29T24:00"], "string"),
        (["2024-02-29T10:00:00.5+24"], "string"),
        (["2024-02-29 23:59:59.123456+2359"], "timestamp"),
        (["\u0661"], "string"),  # a digit of Arabic
    ],
)
def test_the_narrowest_type_of_all_values(values: list[str | bytes], expected: str) -> None:
    raw = [one if isinstance(one, bytes) else one.encode() for one in values]
    kind = type_of_texts(raw)
    assert kind.simpleString() == expected
    convert = converter(to_arrow_type(kind, timezone="UTC"))
    assert convert is not None
    texts = [one for one in raw if one]
    assert convert(pa.array(texts, pa.binary())).null_count == 0


def columns_of(source: StreamkeepSource) -> str:
    return source.schema().simpleString()


def test_fields_become_columns(open_store: Callable[..., Store[bytes]]) -> None:
    store = open_store("s.store")
    store.xadd_many(
        "orders",
        [
            {"sku": f"s{n}", "price": str(n / 2), "id": "7", "at": json.dumps({"x": n, "y": "z"})}
            for n in range(100)
        ],
    )
    store.xadd("orders", {"SKU": "twice", b"\xff": "x", "field.sku": "own", "late": "1"})
    options = {"path": str(store.path), "subscribe": "orders", "inferSchema": "true"}
    source = StreamkeepSource(options)
    assert columns_of(source) == (
        "struct<stream:string,id:string,ms:bigint,seq:bigint,ts:timestamp,sku:string,price:double,"
        "field.id:bigint,at:struct<x:bigint,y:string>,field.field.sku:string,late:bigint>"
    )
    names = ("sku", "at", "field.id", "field.field.sku")
    wanted = StructType([one for one in source.schema() if one.name in names])
    rows = read_all(source.reader(wanted))
    first = {"sku": "s99", "field.id": 7, "at": {"x": 99, "y": "z"}, "field.field.sku": None}
    assert rows[99] == first
    assert rows[100] == {**dict.fromkeys(names), "field.field.sku": "own"}
    few = StreamkeepSource({**options, "sampleEntries": "2", "fieldsAs": "map"})
    assert "fields:map<string,string>" in columns_of(few)
    assert "late:bigint" in columns_of(few)


def test_what_cannot_be_inferred_says_so() -> None:
    with pytest.raises(OptionError, match="inferSchema"):
        StreamkeepSource({"path": "x", "subscribe": "s", "sampleEntries": "5"})
    with pytest.raises(OptionError, match=r"\.schema"):
        StreamkeepSource({"fleet": "x", "inferSchema": "true"})
