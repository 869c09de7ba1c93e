"""Partitions of about equal work, in order, nothing left out."""

from __future__ import annotations

import os
from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.profile import configured
from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.distribution.packing import (
    CORES,
    MAX_PARTITION_BYTES,
    MIN_PARTITION_BYTES,
    ONE_WAVE_BYTES,
    pack,
    partition_bytes,
    spread,
)
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source.plan import packed
from streamkeep.pipeline.source.slices import Slice, join
from streamkeep.pipeline.spark_session.start import cores_of

size_of = attrgetter("size_bytes")


def slices(sizes: list[int], segment: str | None = None) -> list[Slice]:
    """Return slices of one stream, one after the other."""
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
