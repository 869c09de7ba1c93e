"""Retention: limits, on append and by maintain; groups that are waited for; ranges."""

from __future__ import annotations

from typing import Any

import pytest

from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core import errors
from streamkeep.format.rows.retention import NO_RETENTION, Retention, decode_retention


def fill(store: Store, count: int, size: int = 20) -> list[bytes]:
    quick = store.using("none")  # the tests are about what goes, not when it is on disk
    return [quick.xadd("s", {"n": number, "x": "y" * size}) for number in range(count)]


@pytest.mark.parametrize(
    "settings",
    [
        NO_RETENTION,
        Retention(0, 1, 2, True, True, True, 3, 4, "trim"),
        Retention(archive=True, keep_max_bytes=(1 << 64) - 2),
    ],
)
def test_settings_survive_the_section(settings: Retention) -> None:
    data = settings.encode()
    assert decode_retention(data, "here") == settings
    with pytest.raises(errors.CorruptionError, match="43 bytes"):
        decode_retention(data[:-1], "here")
    with pytest.raises(errors.CorruptionError, match="flags 0x8"):
        decode_retention(data[:-4] + b"\x80\0\0\0", "here")


def test_a_call_changes_what_it_names(open_store: Open) -> None:
    store = open_store()
    with pytest.raises(errors.NoSuchKeyError):
        store.retention("s")
    assert store.set_retention("s", maxlen=3, archive=True) == Retention(maxlen=3, archive=True)
    assert store.xlen("s") == 0
    assert store.exists("s") == 1
    store.set_retention("s", max_age=1)
    store.set_retention("s", maxlen=-1)
    store.close()
    store = open_store()
    assert store.retention("s") == Retention(max_age_ms=1000, archive=True)
    store.xcfgset("s", idmp_duration=5)  # another section
    store.rename("s", "t")
    assert store.retention("t") == Retention(max_age_ms=1000, archive=True)


@pytest.mark.parametrize(
    "wrong",
    [{"maxlen": -2}, {"max_bytes": 1.5}, {"maxlen": True}, {"archive": 1}, {"when_full": "no"}],
)
def test_wrong_settings_change_nothing(store: Store, wrong: dict[str, object]) -> None:
    with pytest.raises(errors.ArgumentError):
        store.set_retention("s", **wrong)  # type: ignore[arg-type]
    assert store.exists("s") == 0


def test_approximate_limits_remove_whole_nodes(store: Store, clock: ManualClock) -> None:
    store.set_retention("s", maxlen=10, approximate=True)
    fill(store, 800)
    per_node = store.xlen("s")
    assert 10 <= per_node < 300
    store.set_retention("s", maxlen=-1, max_age=5)
    for _ in range(40):
        fill(store, 10)
        clock.ms += 1000
    first = int(store.xrange("s", count=1)[0].id.split(b"-")[0])
    assert clock.ms - first >= 5000
    assert store.xlen("s") < 400
    clock.ms += 100_000
    assert store.maintain().trimmed > 0


def test_bytes_are_limited_by_whole_nodes(store: Store) -> None:
    store.set_retention("s", max_bytes=20_000)
    fill(store, 1500)
    with store.snapshot() as snapshot:
        stat = snapshot.stat("s")
    assert stat.nodes > 1
    assert stat.node_bytes <= 20_000 + 4096
    store.set_retention("s", max_bytes=0)
    store.maintain()
    with store.snapshot() as snapshot:
        assert snapshot.stat("s").nodes == 1


def test_maintain_sees_to_streams_that_nobody_appends_to(
    open_store: Open, clock: ManualClock
) -> None:
    store = open_store(node_max_entries=20)  # so that it takes two steps
    store.xadd_many("s", [{"n": number} for number in range(8000)])
    store.xadd("other", {"a": 1})
    store.set_retention("s", max_age=1)
    assert store.maintain() == (0, 0, 0, 0)
    clock.ms += 2000
    assert store.maintain() == (8000, 1, 0, 0)
    assert store.xlen("s") == 0
    assert store.xlen("other") == 1


def test_a_limit_that_is_no_number_is_refused_with_its_unit(store: Store) -> None:
    wrong: Any = "64MiB"  # from a program without types
    with pytest.raises(errors.ArgumentError, match="max_bytes must be a number of bytes, such as"):
        store.set_retention("s", max_bytes=wrong)
    with pytest.raises(errors.ArgumentError, match="maxlen must be a number from 0 on, or -1"):
        store.set_retention("s", maxlen=wrong)


def test_retention_waits_for_the_slowest_group(store: Store) -> None:
    store.set_retention("s", maxlen=5, keep_unacknowledged=True)
    ids = fill(store, 20)
    assert store.xlen("s") == 5  # there is no group
    store.xgroup_create("s", "fast", "0")
    store.xgroup_create("s", "slow", "0")
    ids = [entry.id for entry in store.xrange("s")] + fill(store, 20)
    assert store.xlen("s") == 25
    store.xreadgroup("fast", "c", {"s": ">"}, noack=True)
    store.xreadgroup("slow", "c", {"s": ">"}, count=15)
    assert store.maintain().trimmed == 0
    store.xack("s", "slow", *ids[:10])
    assert store.maintain().trimmed == 10
    assert store.xrange("s", count=1)[0].id == ids[10]
    store.xack("s", "slow", *ids[10:15])
    fill(store, 1)
    assert store.xrange("s", count=1)[0].id == ids[15]
    store.xtrim("s", maxlen=1, approximate=False)  # a command waits for nobody
    assert store.xlen("s") == 1


def test_a_full_stream_refuses_entries_until_groups_acknowledge(store: Store) -> None:
    store.set_retention("s", maxlen=1, keep_unacknowledged=True, keep_max_bytes=8000)
    store.xgroup_create("s", "g", "0")
    with pytest.raises(errors.StreamFullError, match="keep_max_bytes is 8000"):
        fill(store, 10_000)
    length = store.xlen("s")
    with pytest.raises(errors.StreamFullError):
        store.xadd_many("s", [{"n": 1}])
    assert store.xlen("s") == length
    ((_, entries),) = store.xreadgroup("g", "c", {"s": ">"})
    store.xack("s", "g", *[entry[0] for entry in entries])
    fill(store, 1)
    assert store.xlen("s") < length


@pytest.mark.parametrize("archive", [False, True])
def test_a_full_stream_takes_entries_when_a_node_can_be_rewritten(
    open_store: Open, archive: bool
) -> None:
    """The oldest node holds one entry that a group needs; without the others there is room."""
    store = open_store(node_max_entries=100, node_max_bytes=0)
    ids = fill(store, 250)
    store.xgroup_create("s", "g", "0")
    store.xreadgroup("g", "c", {"s": ">"})
    store.xack("s", "g", *ids[:90], *ids[91:])
    with store.snapshot() as snapshot:
        size = snapshot.stat("s").node_bytes
    store.set_retention(
        "s", maxlen=1, approximate=False, archive=archive, keep_unacknowledged=True,
        keep_max_bytes=size - 500, when_full="refuse",
    )  # fmt: skip
    if archive:  # what was trimmed stays in its node until it is archived
        with pytest.raises(errors.StreamFullError):
            store.xadd("s", {"n": 1})
        return
    store.xadd("s", {"n": 1})
    assert store.xrange("s", count=1)[0].id == ids[90]
    with store.snapshot() as snapshot:
        assert snapshot.stat("s").node_bytes < size - 500


def test_a_full_stream_may_trim_all_the_same(store: Store) -> None:
    store.set_retention(
        "s", max_bytes=4000, keep_unacknowledged=True, keep_max_bytes=16_000, when_full="trim"
    )
    store.xgroup_create("s", "g", "0")
    fill(store, 1200)
    with store.snapshot() as snapshot:
        assert 4000 < snapshot.stat("s").node_bytes <= 20_100


def test_after_ids_went_back_the_oldest_entries_are_trimmed(open_store: Open) -> None:
    store = open_store(node_max_entries=2)
    for first in (100, 96):
        for number in range(first, first + 8):
            store.xadd("s", {"n": number}, id=f"{number}-0")
        store.xtrim("s", maxlen=3, approximate=False)
        assert [one.id for one in store.xrange("s")] == [b"%d-0" % (first + n) for n in (5, 6, 7)]
        store.xtrim("s", maxlen=0, approximate=False)
        store.xsetid("s", "50-0")


@pytest.mark.parametrize("nodes", [2, 100])
def test_ids_of_tombstones_come_again_where_nothing_was_archived(
    open_store: Open, nodes: int
) -> None:
    store = open_store(node_max_entries=nodes)
    for key in ("s", "archived"):
        store.set_retention(key, archive=key == "archived")
        store.xadd_many(key, [{"n": "old"}] * 7, [f"{number}-0" for number in range(1, 8)])
        store.xgroup_create(key, "g", id="0")
        store.xreadgroup("g", "c", {key: ">"})
        store.xack(key, "g", *[f"{number}-0" for number in range(2, 8)])
        assert store.xtrim(key, maxlen=0, approximate=False, ref_policy="ACKED") == 6
    with pytest.raises(errors.CommandError, match="archive"):
        store.xsetid("archived", "2-0")
    store.xsetid("s", "2-0")
    for number in (3, 4):
        store.xadd("s", {"n": "new"}, id=f"{number}-0")
    assert [one.id for one in store.xrange("s")] == [b"1-0", b"3-0", b"4-0"]


def test_a_range_is_trimmed_anywhere(store: Store) -> None:
    ids = fill(store, 1000)
    nodes = store.xinfo_stream("s")["radix-tree-keys"]
    assert store.trim_range("s", ids[100], ids[899]) == 800
    assert [entry.id for entry in store.xrange("s")] == ids[:100] + ids[900:]
    info = store.xinfo_stream("s")
    assert info["radix-tree-keys"] < nodes - 3
    assert info["max-deleted-entry-id"] == ids[899]
    assert info["entries-added"] == 1000
    assert info["last-generated-id"] == ids[-1]
    assert store.trim_range("s", ids[100], ids[899]) == 0
    assert store.trim_range("s", b"(" + ids[0], ids[10]) == 10
    assert store.trim_range("s", "-", "+") == 190
    assert store.xinfo_stream("s")["max-deleted-entry-id"] == ids[899]
    assert store.trim_range("none", "-", "+") == 0


def test_a_trim_in_the_middle_makes_the_lag_unknown_and_not_wrong(store: Store) -> None:
    ids = fill(store, 10)
    store.xgroup_create("s", "g", "0")
    store.xreadgroup("g", "c", {"s": ">"}, count=2)
    assert store.xinfo_groups("s")[0]["lag"] == 8
    store.trim_range("s", ids[0], ids[0])  # as XTRIM does it
    assert store.xinfo_groups("s")[0]["lag"] == 8
    store.trim_range("s", ids[4], ids[5])
    assert store.xinfo_groups("s")[0]["lag"] is None
    store.xreadgroup("g", "c", {"s": ">"})
    assert store.xinfo_groups("s")[0]["lag"] == 0
