"""A program with every public method of a store, as users write it, for type checkers.

It is never run. `make type` checks it with mypy and pyright, both in strict mode, and
`test_engine_api/test_user_types.py` says whether a method is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamkeep
from streamkeep import (
    ClaimedEntry,
    Commit,
    DeliveredEntry,
    Effect,
    Entry,
    ScanEntry,
    Store,
    StreamId,
    recovery,
)
from streamkeep.replication import Follower, FollowingRow, detach, following

if TYPE_CHECKING:
    from typing import assert_type
else:

    def assert_type(value: object, kind: object) -> None:
        """Do nothing."""


def of_bytes(path: Path) -> None:
    with streamkeep.open(path) as store:
        assert_type(store, Store[bytes])
        assert_type(store.xadd("s", {"a": "1", "n": 2, "f": 1.5, b"raw": b"\xff"}), bytes)
        assert_type(store.xadd("s", {"a": 1}, nomkstream=True), bytes | None)
        assert_type(store.xadd("s", [("a", 1), ("a", b"2")]), bytes)
        assert_type(store.xadd_many("s", [{"a": 1, "b": "x"}, {"a": 2}]), list[bytes])
        assert_type(store.xadd_many("s", [[("a", 1), ("b", "x")]], ids=["5-0"]), list[bytes])
        assert_type(store.xrange("s", "-", "+", 10), list[Entry[bytes]])
        assert_type(store.xrevrange("s", date(2025, 10, 21), "-2h"), list[Entry[bytes]])
        for entry_id, fields in store.xrange("s", datetime.now(UTC), history=True):
            assert_type(entry_id, bytes)
            assert_type(fields, dict[bytes, bytes])
        for name, entries in store.xread({"s": "0", "t": "$"}, count=5, block=10):
            assert_type(name, bytes)
            assert_type(entries, list[Entry[bytes]])
            assert_type(entries[0].pairs, list[tuple[bytes, bytes]])
            assert_type(entries[0].stream_id, StreamId)
        for scanned in store.scan("s", "-1d", reverse=True):
            assert_type(scanned.id, bytes)
            assert_type(scanned.fields, dict[bytes, bytes])
            assert_type(scanned.delete(), bool)
        assert_type(store.xlen("s"), int)
        assert_type(store.xdel("s", "1-0", 5, StreamId(5, 6)), int)
        assert_type(store.xtrim("s", minid="-30d"), int)
        assert_type(store.trim_range("s", "2025-10-21", "(2025-10-22"), int)
        assert_type("s" in store, bool)
        assert_type(len(store), int)
        for key in store:
            assert_type(key, bytes)
        assert_type(store.keys("a*"), list[bytes])
        assert_type(store.delete("s"), int)


def groups(store: Store) -> None:
    assert_type(store.xgroup_create("s", "g", "2025-10-21", mkstream=True), bool)
    for name, entries in store.xreadgroup("g", "c", {"s": ">"}, block=0):
        assert_type(name, bytes)
        assert_type(entries, list[Entry[bytes]])
    for _, claimed in store.xreadgroup("g", "c", {"s": ">"}, claim_min_idle_time=60_000):
        assert_type(claimed, list[ClaimedEntry[bytes]])
        assert_type(claimed[0].former_delivery_count, int)
    for _, claimed in store.xreadgroup("g", "c", {"s": ">"}, claim_dead=True):
        entry_id, fields, idle, count = claimed[0]
        assert_type((entry_id, fields, idle, count), tuple[bytes, dict[bytes, bytes], int, int])
    cursor, taken, gone = store.xautoclaim("s", "g", "c", 60_000)
    assert_type(cursor, bytes)
    assert_type(taken, list[Entry[bytes]])
    assert_type(gone, list[bytes])
    assert_type(store.xautoclaim("s", "g", "c", 60_000, justid=True), list[bytes])
    assert_type(store.xclaim("s", "g", "c", 60_000, [cursor]), list[Entry[bytes]])
    assert_type(store.xclaim("s", "g", "c", 60_000, ["5-0"], justid=True), list[bytes])
    assert_type(store.xack("s", "g", *gone), int)
    assert_type(store.xpending("s", "g"), dict[str, Any])
    assert_type(store.xpending_range("s", "g", "-", "+", 10), list[dict[str, Any]])
    assert_type(store.xinfo_groups("s")[0]["name"], Any)
    for delivered in store.consume("s", "g", "c", claim="dead"):
        assert_type(delivered.id, bytes)
        assert_type(delivered.delivery_count, int)
        if delivered.delivery_count > 5:
            store.xackdel("s", "g", delivered.id)


def of_text(path: str) -> None:
    with streamkeep.open(path, decode_responses=True, sync="interval", readonly=False) as store:
        assert_type(store, Store[str])
        assert_type(store.xadd("s", {"a": "1"}), str)
        assert_type(store.xread({"s": 0})[0][1][0].fields["a"], str)
        with store.transaction(sync="none") as txn:
            assert_type(txn.xadd("s", {"a": "1"}), str)
            assert_type(txn.xrange("s")[0].id, str)
        with store.snapshot() as snapshot:
            assert_type(snapshot.xrange("s")[0].pairs, list[tuple[str, str]])
            assert_type("s" in snapshot, bool)
        assert_type(store.using(sync="none").xadd("s", {"a": 1}), str)
        assert_type(store.apply(lambda txn: txn.xlen("s")), int)
        with store.pipeline() as pipe:
            pipe.xadd("s", {"a": 1}).xlen("s").xgroup_create("s", "g")
            results = pipe.execute()
            assert_type(results, list[Any])
        assert_type(last_ids(store), list[str])


def last_ids(store: Store[str]) -> list[str]:
    return [entry.id for entry in store.follow("s", "-1h", block=None)]


def changes(store: Store[str], target: str) -> None:
    for commit in store.changes("$", block=0, stop=lambda: True):
        assert_type(commit, Commit[str])
        for effect in commit.effects:
            assert_type(effect, Effect[str])
            assert_type(effect.pairs, list[tuple[str, str]])
    for of_copy in recovery.changes(target, 5, follow=True, every="1s"):
        assert_type(of_copy, Commit[bytes])
    with store.snapshot() as snapshot:
        assert_type(snapshot.commit_number, int)


async def async_changes(store: streamkeep.aio.AsyncStore[bytes]) -> None:
    async for commit in store.changes("$"):
        assert_type(commit, Commit[bytes])


def of_either(path: str, decode: bool) -> int:
    with streamkeep.open(path, decode_responses=decode) as store:
        new_id = store.xadd("s", {"a": 1})
        assert_type(new_id, bytes | str)
        total = 0
        for entry in store.xrange("s"):
            assert_type(entry.id, bytes | str)
            total += len(entry.fields)
        for _, entries in store.xread({"s": 0}):
            total += len(entries)
        for scanned in store.scan("s"):
            total += len(scanned.pairs)
        with store.transaction() as txn:
            txn.xadd("s", {"a": 1}, maxlen=10)
        with store.snapshot() as snapshot:
            total += snapshot.xlen("s")
        return total


def archive(store: Store) -> Iterator[Path]:
    store.set_retention("s", maxlen=1000, archive=True, archive_deleted=True)
    report = store.archive()
    assert_type(report.entries, int)
    for record in store.archived_segments("s", start="2025-10-21"):
        yield store.segment_path(record)
    assert_type(store.erase("s", "5-0", timeout=1.5), int)
    store.sync()
    assert_type(store.wait_shipped("5s"), bool)
    assert_type(store.ship_now(), bool)
    assert_type(store.using("shipped").xadd("s", {"a": "1"}), bytes)
    with store.transaction(sync="shipped") as txn:
        txn.xadd("s", {"a": "1"})


def keys(store: Store[str], other: Store[bytes]) -> None:
    assert_type(store.exists("s", "t"), int)
    assert_type(store.type("s"), str)
    assert_type(list(store.scan_iter("a*")), list[str])
    assert_type(store.rename("s", "t"), bool)
    assert_type(store.renamenx("s", "t"), bool)
    assert_type(store.unlink("s"), int)
    data = store.dump("s")
    assert_type(data, bytes | None)
    if data is not None:
        assert_type(other.restore("s", 0, data, replace=True), bool)
    assert_type(store.retention("s").maxlen, int | None)
    assert_type(store.xsetid("s", "9-9", entries_added=5), bool)
    assert_type(store.xcfgset("s", idmp_duration=300), str)
    assert_type(store.xidmprecord("s", "producer", "message", "5-0"), str)
    assert_type(store.xinfo_stream("s", full=True), dict[str, Any])
    assert_type(store.xinfo_consumers("s", "g"), list[dict[str, Any]])
    assert_type(store.xinfo_help() + store.xgroup_help(), list[str])
    assert_type(store.xgroup_exists("s", "g"), bool)
    assert_type(store.xgroup_setid("s", "g", "-1h"), bool)
    assert_type(store.xgroup_createconsumer("s", "g", "c"), int)
    assert_type(store.xgroup_delconsumer("s", "g", "c"), int)
    assert_type(store.xgroup_destroy("s", "g"), bool)
    assert_type(store.xdelex("s", "5-0", ref_policy="ACKED"), list[int])
    assert_type(store.xnack("s", "g", "FAIL", "5-0"), int)


def rows(store: Store[str]) -> None:
    store.row_put("space", b"key", b"value")
    assert_type(store.row_get("space", b"key"), bytes | None)
    assert_type(store.row_range("space", b"a", b"z", reverse=True), list[tuple[bytes, bytes]])
    assert_type(store.row_delete("space", b"key"), bool)

    def look(snapshot: streamkeep.Snapshot[Any]) -> int:
        return 0 if snapshot.xlen("s") else -1

    when = streamkeep.When(look, wake_on=[("s", None)])
    assert_type(store.apply_when(lambda txn: [txn.xlen("s")], when, block=0), list[int])
    found = store.read_when(lambda snapshot: [snapshot.xlen("s")], [("s", None)], block=5)
    assert_type(found, list[int])
    store.ask_stops()
    print(store.open_transaction())


def care(store: Store[str], folder: Path) -> Iterator[object]:
    yield store.maintain()
    yield store.remote_archive()
    for stream in store.archived_streams():
        assert_type(stream.entries, int)
    yield from store.verify_archive("s")
    for record in store.drop_segments("s", before="-1y"):
        yield store.open_segment(record)
    assert_type(list(store.export_segments(folder, "s", start="2025-10-21")), list[Path])
    yield from store.adopt_segments(folder)
    yield store.restore_archive("old", "s", end="-30d")
    assert_type(store.find_remains("s", {"user": "ann"}), list[StreamId])
    assert_type(store.durability().last_commit, int)
    assert_type(
        (store.map_size_bytes, store.used_bytes, store.reusable_bytes), tuple[int, int, int]
    )
    assert_type(store.uuid, str)


def errors(store: Store) -> None:
    try:
        store.xadd("s", {"a": 1}, id="0-1")
    except streamkeep.IdTooSmallError as error:
        print(error)
    except (streamkeep.StoreFullError, streamkeep.StreamFullError):
        raise


async def of_tasks(path: str, decode: bool) -> None:
    async with await streamkeep.aio.open(path, decode_responses=True) as store:
        assert_type(await store.xadd("s", {"a": 1}), str)
        for name, entries in await store.xread({"s": "-1h"}, block=100):
            assert_type(name, str)
            assert_type(entries, list[Entry[str]])
        async for entry in store.scan("s"):
            assert_type(entry.id, str)
            await entry.delete()
        async for delivered in store.consume("s", "g", "c"):
            assert_type(delivered.delivery_count, int)
        async for key in store:
            assert_type(key, str)
        found = await store.xautoclaim("s", "g", "c", 0)
        assert_type(found[1], list[Entry[str]])
        async with store.pipeline() as pipe:
            pipe.xadd("s", {"a": 1}).xlen("s")
            assert_type(await pipe.execute(), list[Any])
        assert_type(await store.run(lambda txn: txn.xlen("s")), int)
    either = await streamkeep.aio.open(path, decode_responses=decode)
    await either.xadd("s", {"a": 1})
    await either.close()


def follow(path: Path) -> int:
    follower = Follower("redis://localhost", path, match=["orders:*"], deletions="keep")
    assert_type(follower.run(once=True), FollowingRow)
    with streamkeep.open(path) as store:
        row = following(store)
        assert_type(detach(store), int)
        return 0 if row is None else row.offset


def frames(store: Store[str]) -> None:
    rows = store.from_arrow("t", object(), id_column="id")
    assert_type(rows, int)
    # pyarrow has no types of its own.
    store.to_arrow("s", types={"a": int})  # pyright: ignore[reportUnknownMemberType]
    store.to_pandas("s", history=True)
    store.to_polars("s", columns=["a"], repeated="last")
    store.to_duckdb("s", "-1d")
    for batch in store.to_arrow_batches("s", rows=1000):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        print(batch)  # pyright: ignore[reportUnknownArgumentType]


def kinds(one: ScanEntry[str], other: DeliveredEntry[str]) -> list[Entry[str]]:
    return [one, other]


if __name__ == "__main__":
    asyncio.run(of_tasks("store", True))
