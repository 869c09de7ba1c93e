"""DUMP and RESTORE: streams out of a store and into one, whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import streamkeep
from conftest import NOW_MS, assert_sound
from model.profile import configured
from patience import peak_of
from redis_parts import comparable, stream_parts
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.dump import stream_parts as export_parts
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.format.core import errors
from streamkeep.format.redis.rdb_values import crc64
from streamkeep.format.redis.stream_dump import (
    NEWEST,
    TARGETS,
    Losses,
    read_payload,
    write_payload,
    write_value,
)
from streamkeep.format.redis.stream_parts import GroupPart, Messages, Node, Part


def parts_of(store: Store, name: bytes) -> list[Part]:
    with store.snapshot() as snapshot:
        return [
            part._replace(pending=list(part.pending)) if isinstance(part, GroupPart) else part
            for part in export_parts(snapshot.txn, existing_stream(snapshot.txn, name))
        ]


def payload(parts: list[Part]) -> bytes:
    """Return the payload that loses nothing."""
    nodes = sum(isinstance(part, Node) for part in parts)
    return write_payload(parts, nodes, TARGETS[NEWEST], Losses())


@given(stream_parts())
@configured(60)
def test_a_store_takes_every_stream_and_gives_it_back(parts: list[Part]) -> None:
    with tempfile.TemporaryDirectory(prefix="streamkeep-") as folder:
        path = Path(folder, "store")
        with Store(path, sync="none", clock=ManualClock(NOW_MS)) as store:
            store.restore("k", 0, payload(parts))
            if not isinstance(parts[-1], Messages):
                parts = [*parts, Messages(100, 100, [], 0, 0)]
            assert comparable(parts_of(store, b"k")) == comparable(parts)
            store.restore("copy", 0, store.dump("k", NEWEST) or b"")
            assert comparable(parts_of(store, b"copy")) == comparable(parts)
        assert_sound(path)


@pytest.mark.slow
def test_pending_entries_are_written_as_they_are_read(store: Store) -> None:
    count = 40_000
    store.xadd_many("k", [{"a": "b"}] * count)
    store.xgroup_create("k", "g", 0)
    store.xreadgroup("g", "c", {"k": ">"}, count=count)
    with store.snapshot() as snapshot:
        stream = existing_stream(snapshot.txn, b"k")
        for server in ("7.2", NEWEST):
            target = TARGETS[server]

            def write(target: Any = target) -> None:
                parts = export_parts(snapshot.txn, stream)
                size = sum(map(len, write_value(parts, stream.nodes(), target, Losses())))
                assert size > count * 41

            limit = count * 16 + (2 << 20)
            assert peak_of(write, limit=limit) <= limit


def fill(store: Store) -> None:
    """Make a stream with groups, pending entries, tombstones and messages."""
    for number in range(1, 500):
        store.xadd("k", {"n": number, "pad": "x" * (number % 60)}, id=f"{number}-0")
    store.xdel("k", "7-0", "8-0", "499-0")
    store.xgroup_create("k", "g", 0)
    store.xreadgroup("g", "c1", {"k": ">"}, count=60)
    store.xreadgroup("g", "c2", {"k": ">"}, count=5)
    store.xnack("k", "g", "FAIL", "3-0", "2-0")
    store.xgroup_create("k", "idle", "$")
    store.xadd("k", {"m": 1}, idmp=("p", "m1"))


def test_what_was_restored_is_read_and_appended_to_like_any_stream(store: Store) -> None:
    fill(store)
    assert store.restore("copy", 0, store.dump("k", NEWEST) or b"") is True
    assert store.xrange("copy") == store.xrange("k")
    assert store.xrevrange("copy", count=3) == store.xrevrange("k", count=3)
    assert store.xinfo_stream("copy", full=True, count=0) == store.xinfo_stream(
        "k", full=True, count=0
    )
    for key in ("k", "copy"):
        store.xadd(key, {"after": 1}, id="9999999999999-0")
        assert store.xreadgroup("g", "c3", {key: ">"}, count=1)[0][1][0].id == b"68-0"
        assert store.xtrim(key, maxlen=100, approximate=False) == 398
    assert store.xrange("copy") == store.xrange("k")


def test_the_newest_node_goes_on_after_a_restore(store: Store) -> None:
    store.xadd("k", {"a": 1}, id="1-0")
    store.restore("copy", 0, store.dump("k") or b"")
    store.xadd("copy", {"a": 2}, id="2-0")
    assert store.xinfo_stream("copy")["radix-tree-keys"] == 1


@pytest.mark.parametrize("damage", ["checksum", "value", "type"])
def test_a_damaged_payload_changes_nothing(store: Store, damage: str) -> None:
    fill(store)
    data = store.dump("k")
    assert data is not None
    if damage == "checksum":
        bad, error = data[:-1] + bytes([data[-1] ^ 1]), "DUMP payload version or checksum are wrong"
    elif damage == "type":
        body = b"\x00" + data[1:-8]
        bad, error = body + crc64(body).to_bytes(8, "little"), "Bad data format"
    else:
        body = data[:1] + b"\x05" + data[2:-8]
        bad, error = body + crc64(body).to_bytes(8, "little"), "Bad data format"
    with pytest.raises(errors.CommandError, match=error) as caught:
        store.restore("k", 0, bad, replace=True)
    assert isinstance(caught.value.__cause__, errors.CorruptionError)
    assert store.dump("k") == data


def test_arguments(store: Store) -> None:
    with pytest.raises(errors.ArgumentError, match="ttl must be 0"):
        store.restore("k", 1000, b"")
    with pytest.raises(errors.ArgumentError, match="server must be one of"):
        store.dump("k", server="6")


def test_in_a_transaction_a_snapshot_and_a_pipeline(store: Store) -> None:
    fill(store)
    with store.snapshot() as snapshot:
        data = snapshot.dump("k")
        assert data is not None
        with pytest.raises(errors.StoreError):
            snapshot.restore("x", 0, data)
    with store.transaction() as txn:
        txn.restore("a", 0, data)
        assert txn.dump("a") == data
    pipeline = store.pipeline()
    pipeline.restore("b", 0, data)
    pipeline.dump("b")
    assert pipeline.execute() == [True, data]
    with pytest.raises(RuntimeError), store.transaction() as txn:
        txn.restore("a", 0, data, replace=True)
        txn.restore("c", 0, data)
        raise RuntimeError
    assert store.exists("a", "b", "c") == 2
    assert streamkeep.KeyExistsError is errors.KeyExistsError


def test_types_that_have_no_place_for_nobodys_entries(store: Store) -> None:
    fill(store)
    parts = list(read_payload(store.dump("k", "7.2") or b"", "test"))
    assert not any(isinstance(part, Messages) for part in parts)
    store.restore("old", 0, store.dump("k", "5.0") or b"")
    groups = {one["name"]: one for one in store.xinfo_stream("old", full=True, count=0)["groups"]}
    assert [one["name"] for one in groups[b"g"]["consumers"]] == [b"c1", b"c2", b"nobody"]
    assert store.xautoclaim("old", "g", "c3", min_idle_time=NOW_MS // 2)[1][0].id == b"2-0"
    assert groups[b"idle"]["entries-read"] is None or groups[b"idle"]["lag"] == 1
