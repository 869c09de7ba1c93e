"""Map growth, size limits, many readers, threads, and big values."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkeep
from inside import checkpoint_now
from patience import wait_until
from stopped import child_of, die, status_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.store import environment, opening
from test_engine_store.test_life import run

pytestmark = pytest.mark.both_modes

Open = Callable[..., Store]
SMALL_MAP = 1 << 20


@pytest.fixture
def small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve one megabyte, as a system with little address space would."""
    monkeypatch.setattr(opening, "_MAPS", (SMALL_MAP,))


def test_the_map_grows_unnoticed(
    small_map: None, open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    assert store.map_size_bytes == SMALL_MAP
    for number in range(40):
        fields: dict[str, int | str] = {"n": number, "data": "x" * 1000}
        store.xadd_many("s", [fields] * 50)
    assert store.xlen("s") == 2000
    wait_until(lambda: store.map_size_bytes > SMALL_MAP)
    assert not caplog.records
    assert sum(1 for _ in store.scan("s")) == 2000


def test_the_map_grows_while_threads_scan_in_turns(small_map: None, open_store: Open) -> None:
    """There is a snapshot at each moment, unless none may begin for longer than one lasts."""
    store = open_store()
    store.xadd("s", {"n": 0})
    turns = [threading.Event(), threading.Event()]
    stop = threading.Event()

    def read(mine: threading.Event, other: threading.Event) -> None:
        while not stop.is_set():
            with store.snapshot():
                mine.set()
                other.wait(0.3)  # until the other thread has a snapshot, too
                other.clear()

    readers = [threading.Thread(target=read, args=(turns[n], turns[1 - n])) for n in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(30):
            store.xadd_many("s", [{"data": "x" * 1000}] * 100)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert store.map_size_bytes > SMALL_MAP


def test_a_snapshot_that_stays_open_prevents_growth_and_is_named(
    small_map: None, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "READERS_WAIT_S", 0.05)
    store = open_store()
    store.xadd("s", {"n": 0})
    with store.snapshot() as snapshot:
        store.xadd("s", {"data": b"x" * 3_000_000})  # it stays in memory
        assert store.xlen("s") == 2
        for call in lambda: store.xadd("s", {"n": 3}), lambda: checkpoint_now(store):
            with pytest.raises(streamkeep.StoreError, match="open snapshots and iterators"):
                call()
        assert snapshot.xlen("s") == 1
    store.xadd("s", {"n": 3})
    assert store.xlen("s") == 3
    assert store.map_size_bytes > SMALL_MAP


def test_another_process_takes_over_the_grown_map(
    small_map: None, open_store: Open, tmp_path: Path
) -> None:
    store = open_store()
    store.xadd("s", {"n": 0}, id="1-1")
    code = """
import sys
from streamkeep.engine.api.store import Store
with Store(sys.argv[1], sync="none") as store:
    store.xadd("s", {"data": b"x" * 5_000_000})
"""
    run(code, tmp_path / "store")
    assert store.xlen("s") == 2  # a read that meets the grown file
    run(code, tmp_path / "store")
    store.xadd("s", {"n": 1})  # and a write
    assert store.xlen("s") == 4


def test_a_full_store_still_reads_deletes_and_trims(open_store: Open) -> None:
    store = open_store(max_store_bytes=2 << 20)
    with pytest.raises(streamkeep.StoreFullError, match="max_store_bytes=2097152"):
        while True:
            store.xadd_many("s", [{"data": "x" * 1000}] * 20)
    full = store.xlen("s")
    assert full > 1000
    with pytest.raises(streamkeep.StoreFullError):
        store.xadd("big", {"data": b"x" * 3_000_000})
    assert len(store.xrange("s")) == full
    assert store.xdel("s", store.xrange("s", count=1)[0].id) == 1
    assert store.xtrim("s", maxlen=full // 2, approximate=False) == full - 1 - full // 2
    for _ in range(10):
        store.xadd("s", {"data": "y"})
    assert store.used_bytes <= (2 << 20) + (1 << 20)
    assert store.delete("s") == 1
    store.xadd_many("s", [{"data": "x" * 1000}] * 500)


def test_a_snapshot_does_not_keep_a_full_store_from_making_room(
    open_store: Open,
) -> None:
    store = open_store(max_store_bytes=2 << 20)
    with pytest.raises(streamkeep.StoreFullError):
        while True:
            store.xadd("s", {"data": "x" * 3000})
    full = store.xlen("s")
    with store.snapshot() as snapshot:
        assert store.xtrim("s", maxlen=full // 2, approximate=False) == full - full // 2
        store.xadd("s", {"data": "y"})
        assert store.delete("s") == 1
        assert len(snapshot.xrange("s")) == full
        with pytest.raises(streamkeep.StoreFullError, match="close old snapshots"):
            while True:  # the snapshot keeps what was removed
                store.xadd("s", {"data": "x" * 3000})
        assert store.delete("s") == 1  # which waits in memory for room
        assert len(snapshot.xrange("s")) == full
    store.xadd("s", {"data": "y"})
    assert store.used_bytes <= 3 << 20


def test_a_transaction_may_use_the_room_that_it_makes(open_store: Open) -> None:
    store = open_store(max_store_bytes=2 << 20)
    store.xadd_many("s", [{"data": "x" * 1000}] * 500)
    with store.transaction() as txn:
        txn.xtrim("s", maxlen=100, approximate=False)
        txn.xadd_many("s", [{"data": "x" * 1000}] * 500)
    assert store.xlen("s") == 600


def test_a_full_store_reopens(open_store: Open) -> None:
    with open_store(max_store_bytes=1 << 20) as store, pytest.raises(streamkeep.StoreFullError):
        while True:
            store.xadd("s", {"data": "x" * 3000})
    with open_store(max_store_bytes=1 << 20) as store:
        assert store.xtrim("s", maxlen=10) > 0
        store.xadd("s", {"data": "x"})


def test_readers_beyond_the_slots_get_a_clear_error(open_store: Open) -> None:
    store = open_store(max_readers=8)
    store.xadd("s", {"n": 0})
    with pytest.raises(streamkeep.StoreError, match="too many readers"):
        snapshots = []
        while True:
            snapshots.append(store.snapshot())
    assert 4 <= len(snapshots) <= 8
    for snapshot in snapshots:
        snapshot.close()
    assert store.xlen("s") == 1


def test_slots_of_dead_readers_are_taken_back(open_store: Open, tmp_path: Path) -> None:
    store = open_store(max_readers=8)
    store.xadd("s", {"n": 0})

    def hold() -> None:
        own = Store(tmp_path / "store", sync="none")
        held = [own.snapshot() for _ in range(6)]
        assert len(held) == 6
        die()

    assert status_of(child_of(hold)) == -signal.SIGKILL
    snapshots = [store.snapshot() for _ in range(7)]
    assert [snapshot.xlen("s") for snapshot in snapshots] == [1] * 7
    for snapshot in snapshots:
        snapshot.close()


def test_a_big_entry_sits_alone_and_costs_the_next_ones_nothing(open_store: Open) -> None:
    store = open_store()
    for number in range(5):
        store.xadd("s", {"n": number}, id=f"1-{number + 1}")
    store.xadd("s", {"data": b"x" * 20_000_000}, id="2-0")
    for number in range(5):
        store.xadd("s", {"n": number}, id=f"3-{number}")
    assert store.xinfo_stream("s")["radix-tree-keys"] == 3
    lengths = [len(entry.fields.get(b"data", b"")) for entry in store.xrange("s")]
    assert lengths == [0] * 5 + [20_000_000] + [0] * 5
    assert store.xdel("s", "2-0") == 1
    assert store.xinfo_stream("s")["radix-tree-keys"] == 2


@pytest.mark.slow
def test_entries_up_to_a_gibibyte(open_store: Open) -> None:
    store = open_store()
    big = bytes(1 << 30)
    with pytest.raises(streamkeep.CommandError, match="too large to be stored"):
        store.xadd("s", {"f": big})
    assert store.keys() == []
    assert store.xadd("s", {"f": big[:-1]}, id="1-1") == b"1-1"
    assert len(store.xrange("s")[0].fields[b"f"]) == (1 << 30) - 1
    store.xadd("s", {"f": "v"}, id="1-2")
    assert store.xdel("s", "1-1") == 1
