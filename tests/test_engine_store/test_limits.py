"""Map growth, size limits, many readers, threads, and big values."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import streamkeep
from conftest import assert_sound
from inside import checkpoint_now
from patience import PATIENCE_S, beside, wait_until
from stopped import child_of, die, status_of
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.checkpoint import checkpointer, old_readers
from streamkeep.engine.store import ending, opening
from test_engine_store.test_life import run
from tiers import daily_or_all, slow_but

pytestmark = pytest.mark.both_modes

SMALL_MAP = 1 << 20


@pytest.fixture
def small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve one megabyte, as a system with little address space would."""
    monkeypatch.setattr(opening, "MAPS", (SMALL_MAP,))


def test_the_map_grows_unnoticed(
    small_map: None, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.map_size_bytes == SMALL_MAP
    for number in range(40):
        fields: dict[str, int | str] = {"n": number, "data": "x" * 1000}
        store.xadd_many("s", [fields] * 50)
    assert store.xlen("s") == 2000
    wait_until(lambda: store.map_size_bytes > SMALL_MAP)
    assert not caplog.records
    assert sum(1 for _ in store.scan("s")) == 2000


def test_the_map_grows_while_threads_scan_in_turns(small_map: None, store: Store) -> None:
    """There is a snapshot at each moment, unless none may begin for longer than one lasts."""
    store.xadd("s", {"n": 0})
    turns = [threading.Event(), threading.Event()]
    stop = threading.Event()

    def read(mine: threading.Event, other: threading.Event) -> None:
        while not stop.is_set():
            with store.snapshot():
                mine.set()
                other.wait(0.3)  # until the other thread has a snapshot, too
                other.clear()

    with beside(partial(read, *turns), partial(read, *turns[::-1]), stop=stop.set):
        for _ in range(30):
            store.xadd_many("s", [{"data": "x" * 1000}] * 100)
    assert store.map_size_bytes > SMALL_MAP


def test_a_snapshot_that_stays_open_prevents_growth_and_is_named(
    small_map: None, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "READERS_WAIT_S", 0.05)
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
    small_map: None, store: Store, tmp_path: Path
) -> None:
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


def test_a_snapshot_does_not_keep_a_full_store_from_making_room(open_store: Open) -> None:
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
        assert store.delete("s") == 1
        assert len(snapshot.xrange("s")) == full
    store.xadd("s", {"data": "y"})
    assert store.used_bytes < 3.25 * (1 << 20)


def test_a_transaction_may_use_the_room_that_it_makes(open_store: Open) -> None:
    store = open_store(max_store_bytes=2 << 20)
    store.xadd_many("s", [{"data": "x" * 1000}] * 500)
    with store.transaction() as txn:
        txn.xtrim("s", maxlen=100, approximate=False)
        txn.xadd_many("s", [{"data": "x" * 1000}] * 500)
    assert store.xlen("s") == 600


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


def test_a_big_entry_sits_alone_and_costs_the_next_ones_nothing(store: Store) -> None:
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
def test_entries_up_to_a_gibibyte(store: Store) -> None:
    big = bytes(1 << 30)
    with pytest.raises(streamkeep.CommandError, match="too large to be stored"):
        store.xadd("s", {"f": big})
    assert store.keys() == []
    assert store.xadd("s", {"f": big[:-1]}, id="1-1") == b"1-1"
    assert len(store.xrange("s")[0].fields[b"f"]) == (1 << 30) - 1
    store.xadd("s", {"f": "v"}, id="1-2")
    assert store.xdel("s", "1-1") == 1


# --- A process that may open no further file: each call succeeds, or raises StoreError ------------

PROGRAM = """
import os, resource, sys
import streamkeep

path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
calls = {
    "open another": lambda store: streamkeep.open(path + "-new").close(),
    "append": lambda store: store.xadd("s", {"n": "1"}),
    "fill journal files": lambda store: [store.xadd("s", {"n": "z" * 900_000}) for _ in range(20)],
    "block": lambda store: store.xread({"s": "$"}, block=5),
    "trim": lambda store: store.xtrim("s", maxlen=store.xlen("s") - 3, approximate=False),
    "archive": lambda store: store.archive(),
    "history": lambda store: list(store.xrange("s", count=20, history=True)),
    "snapshot": lambda store: store.snapshot().close(),
    "durability": lambda store: store.durability(),
    "dead workers": lambda store: store._environment.leases.work_of_the_dead(),
}
with streamkeep.open(path) as store:
    store.xgroup_create("q", "g", mkstream=True)
    store.xreadgroup("g", "c", {"q": ">"})
    store.set_retention("s", archive=True)
    store.xadd_many("s", [{"n": str(n)} for n in range(2000)])
    store.xtrim("s", maxlen=1000)
    store.archive()
for name, call in calls.items():
    for left in range(0, 8, int(sys.argv[2])):
        with streamkeep.open(path) as store:
            store.using(sync="none").xadd("s", {"n": "0"})  # with the file of the next record
            held = []
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for handle in held[:left]:
                os.close(handle)
            there = store.xlen("s")
            try:
                call(store)
            except streamkeep.StoreError as error:
                print(f"{name}: {error}")
                made = store.xlen("s") > there
                assert made == ("is committed" in str(error)) or name != "append", error
            finally:
                for handle in held[left:]:
                    os.close(handle)
"""


def test_without_descriptors_each_call_succeeds_or_raises_a_store_error(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "store")]
    command.append(str(daily_or_all(2, 1)))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("archive", "durability"):
        assert f"{name}: this process or the system has as many files open as it may" in done.stdout
    assert "append: the change is committed and cannot be synced" in done.stdout


# --- A snapshot that keeps pages from being used again is named in the log ------------------------

TEXT = "the file has grown by"


@pytest.mark.parametrize("sync", slow_but(["commit", "none"], "commit"))
def test_a_snapshot_that_has_the_file_grow_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sync: Sync
) -> None:
    monkeypatch.setattr(old_readers, "GROWN_BYTES", 1 << 20)
    monkeypatch.setattr(checkpointer, "CHORES_EVERY_S", 0.02)
    monkeypatch.setattr(checkpointer, "CHECKPOINT_EVERY_S", 0.1)
    with streamkeep.open(tmp_path / "store", sync=sync) as store:

        def write() -> None:
            store.xadd("s", {"n": b"x" * 50_000})
            store.xtrim("s", maxlen=1, approximate=False)

        write()
        with store.snapshot():
            deadline = time.monotonic() + PATIENCE_S
            while TEXT not in caplog.text:
                assert time.monotonic() < deadline, "it does not warn"
                write()
            for _ in range(100):
                write()
        assert caplog.text.count(TEXT) == 1
        assert f"process {os.getpid()}, this one, (thread " in caplog.text
        monkeypatch.setattr(old_readers, "WARN_EVERY_S", 0.0)
        caplog.clear()
        before = store.used_bytes
        for _ in range(200):
            write()
            time.sleep(0.002)
        assert TEXT not in caplog.text or store.used_bytes > before + (1 << 20)
    assert_sound(tmp_path / "store")
