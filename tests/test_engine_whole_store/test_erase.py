"""Erasing entries: to readers an XDEL, and afterwards the bytes are in no file of the store."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from cli_runner import objects, run
from conftest import NOW_MS, assert_sound
from erased import SECRET, entry, grep, harmless
from inside import checkpoint_now, environment_of, journal_of
from patience import PATIENCE_S, beside, line_of
from stopped import child_of, killed
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint.checkpoint import Hold
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.tables.manifest import iter_erasures
from streamkeep.engine.whole_store import scrub
from streamkeep.format.core.errors import CorruptionError, ErasureBlockedError, StoreError
from streamkeep.format.core.keys import NODES
from streamkeep.recovery import ship
from streamkeep.recovery.fsck.source import open_source
from tiers import slow_but


@pytest.fixture(params=slow_but(["small nodes", "pages"], "small nodes"))
def filled(request: pytest.FixtureRequest, open_store: Open) -> Store:
    """A store with 3,000 entries and some rows in every table, its journal in use."""
    options = {"node_max_entries": 7} if request.param == "small nodes" else {}
    store = open_store(sync="commit", **options)
    store.xadd_many("k", [harmless(n) for n in range(3000)], [f"{n}-0" for n in range(1, 3001)])
    store.xgroup_create("k", "g", "0")
    store.xreadgroup("g", "c", {"k": ">"}, count=200)
    return store


# --- what readers see ---------------------------------------------------------------------------


def test_an_erased_entry_is_to_readers_one_that_xdel_deleted(open_store: Open) -> None:
    erased, deleted = open_store("erased"), open_store("deleted")
    for store in (erased, deleted):
        ids = [f"{n}-{n % 3}" for n in range(1, 500)]
        store.xadd_many("k", [harmless(n) for n in range(1, 500)], ids)
        store.xgroup_create("k", "g", "0")
        store.xreadgroup("g", "c", {"k": ">"}, count=50)
    chance = random.Random(5)
    for _ in range(30):
        some = [f"{n}-{n % 3}" for n in chance.sample(range(1, 500), 12)]
        assert erased.erase("k", *some) == deleted.xdel("k", *some)
        assert erased.xrange("k") == deleted.xrange("k")
        assert erased.xinfo_stream("k") == deleted.xinfo_stream("k")
        assert erased.xinfo_groups("k") == deleted.xinfo_groups("k")
        assert erased.xpending_range("k", "g", "-", "+", 99) == deleted.xpending_range(
            "k", "g", "-", "+", 99
        )
    rest = [one.id for one in erased.xrange("k")]
    assert erased.erase("k", *rest) == deleted.xdel("k", *rest)
    assert erased.xinfo_stream("k") == deleted.xinfo_stream("k")


def test_what_is_not_there_is_no_error(store: Store) -> None:
    assert store.erase("missing", "1-0") == 0
    store.xadd("k", harmless(1), "5-0")
    assert store.erase("k", "4-0", "6-0", "5-1") == 0
    assert store.erase("k", "5-0", "5-0", "5") == 1
    assert store.xlen("k") == 0
    assert store.xadd("k", harmless(2), "5-1") == b"5-1"


def test_that_an_entry_was_erased_is_kept_and_when(store: Store, clock: ManualClock) -> None:
    store.xadd_many("k", [harmless(n) for n in range(5)], [f"{n}-0" for n in range(1, 6)])
    store.erase("k", "2-0", "4-0", "9-0")
    clock.ms += 1000
    store.erase("k", "2-0", "5-0")
    with store.snapshot() as snapshot:
        rows = list(iter_erasures(snapshot.txn, 1, (0, 0), (9, 9)))
    assert rows == [((2, 0), NOW_MS), ((4, 0), NOW_MS), ((5, 0), NOW_MS + 1000)]


def test_appending_goes_on_in_a_tail_whose_entries_were_erased(store: Store) -> None:
    for n in range(1, 8):
        store.xadd("k", entry(n), f"{n}-0")
    store.erase("k", "1-0", "7-0")
    store.xadd("k", harmless(8), "8-0")
    assert [one.id for one in store.xrange("k")] == [b"%d-0" % n for n in (2, 3, 4, 5, 6, 8)]
    assert store.xrange("k", "8", "8")[0].fields == harmless(8)


# --- what is in the files -----------------------------------------------------------------------


def test_nothing_is_left_of_entries_big_and_small_in_nodes_tails_and_groups(filled: Store) -> None:
    ids = [filled.xadd("k", entry(n, size=n)) for n in range(1, 60)]
    ids += [filled.xadd("k", entry(n, size=20_000)) for n in range(3)]
    filled.xadd_many("k", [harmless(n) for n in range(300)])
    ids += [filled.xadd("k", entry(n)) for n in range(20)]  # some in the tail
    ids += [filled.xadd("small", entry(1))]
    filled.xreadgroup("g", "c", {"k": ">"})
    assert grep(filled.path) != []
    assert filled.erase("k", *ids) == len(ids) - 1
    assert filled.erase("small", ids[-1]) == 1
    assert grep(filled.path) == []
    filled.xadd_many("k", [harmless(n) for n in range(3000)])
    assert grep(filled.path) == []
    filled.close()
    assert grep(filled.path) == []


def test_nothing_is_left_of_entries_that_were_deleted_or_trimmed_before(filled: Store) -> None:
    ids = []
    for n in range(1, 400):
        fields = entry(n, size=1 + n % 9) if n % 3 else harmless(n)
        ids.append((filled.xadd("t", fields), bool(n % 3)))
    secret = [one for one, is_secret in ids if is_secret]
    filled.xdel("t", *secret[::2])
    filled.xtrim("t", maxlen=150, approximate=False)
    assert grep(filled.path) != []
    expected = [one for one in filled.xrange("t") if one.id not in secret]
    filled.erase("t", *secret)
    assert grep(filled.path) == []
    assert filled.xrange("t") == expected


def test_field_names_are_erased_with_the_entry_that_gave_them_to_its_node(filled: Store) -> None:
    first = filled.xadd("k2", {SECRET: b"1", b"b": b"2"}, "1-0")
    filled.xadd("k2", {SECRET: b"3", b"b": b"4"}, "2-0")
    filled.xadd("k2", {b"other": b"5", b"c": b"6"}, "3-0")
    filled.erase("k2", first)
    assert filled.xrange("k2", "2", "2")[0].fields == {SECRET: b"3", b"b": b"4"}
    filled.erase("k2", "2-0")
    assert grep(filled.path) == []
    filled.xadd("k2", {b"other": b"7", b"c": b"8"}, "4-0")
    assert [one.fields for one in filled.xrange("k2")] == [
        {b"other": b"5", b"c": b"6"},
        {b"other": b"7", b"c": b"8"},
    ]


def test_field_names_are_erased_when_the_slot_itself_is_gone(filled: Store) -> None:
    """XDEL of most of a node rewrites it without tombstones; its master keeps the names."""
    filled.xadd("k2", {SECRET: b"1"}, "1-0")
    for n in range(2, 100):
        filled.xadd("k2", {b"n": b"%d" % n}, f"{n}-0")
    filled.xadd_many("k2", [harmless(n) for n in range(1000)])
    filled.xdel("k2", *[f"{n}-0" for n in range(1, 90)])
    assert grep(filled.path) != []
    assert filled.erase("k2", "1-0") == 0
    assert grep(filled.path) == []


def test_messages_of_idempotent_xadd_are_forgotten_with_their_entries(filled: Store) -> None:
    one = filled.xadd("k2", harmless(1), idmp=("till", SECRET))
    two = filled.xadd("k2", harmless(2), idmp=("till", "m2"))
    filled.xadd("k2", entry(3), idmpauto="auto")
    assert filled.erase("k2", one, filled.xrevrange("k2", count=1)[0].id) == 2
    assert grep(filled.path) == []
    assert filled.xadd("k2", harmless(2), idmp=("till", "m2")) == two
    assert filled.xadd("k2", harmless(1), idmp=("till", "m1")) != one


def test_a_stream_that_is_renamed_meanwhile_is_erased_to_the_end(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(sync="commit")
    environment = environment_of(store)
    ids = store.xadd_many("k", [entry(n) for n in range(1100)])
    ids.append(store.xadd("k", entry(1100), idmp=("p", SECRET)))
    settle = environment.settle

    def rename_once() -> None:
        settle()
        if store.exists("k"):
            store.rename("k", "other")

    monkeypatch.setattr(environment, "settle", rename_once)
    assert store.erase("k", *ids) == 1101
    assert store.xlen("other") == 0
    assert grep(store.path) == []


def test_what_a_deleted_stream_and_aborted_transactions_left_is_overwritten(filled: Store) -> None:
    filled.xadd_many("gone", [entry(n, size=30) for n in range(500)])
    filled.delete("gone")
    with pytest.raises(KeyError), filled.transaction() as txn:
        txn.xadd_many("gone", [entry(n, size=30) for n in range(500)])
        raise KeyError
    assert grep(filled.path) != []
    filled.erase("gone", "1-0")
    assert grep(filled.path) == []


def test_the_file_of_a_store_full_of_free_pages_is_clean(open_store: Open) -> None:
    store = open_store(sync="none")
    ids = store.xadd_many("k", [entry(n, size=400) for n in range(3000)])
    store.xadd("k", harmless(1))
    assert store.erase("k", *ids) == 3000
    assert grep(store.path) == []
    assert store.reusable_bytes > 3_000_000


def test_a_value_without_all_the_pages_that_it_needs_is_damage(store: Store) -> None:
    store.xadd("k", {"n": "x" * 20_000}, id="1-0")
    store.xadd("k", {"n": "y" * 20_000}, id="2-0")
    checkpoint_now(store)
    with open_source(store.path) as source:
        assert source.tables is not None
        row = next(source.tables.walk(NODES))
        assert row.leaf is not None
        number, size = row.leaf.places[row.at], source.tables.pages.page_size
        named = row.leaf.number * size + row.leaf.data.index(number.to_bytes(8, "little"))
    with (store.path / "data.mdb").open("r+b") as file:
        for at, damage, problem in (
            (number * size + 12, b"\1\0\0\0", "not the overflow value of page"),
            (named + 7, b"\x10", "the page is after the end of the file"),
        ):
            sound = os.pread(file.fileno(), len(damage), at)
            os.pwrite(file.fileno(), damage, at)
            with pytest.raises(CorruptionError, match=problem):
                store.erase("k")
            os.pwrite(file.fileno(), sound, at)


# --- other processes ----------------------------------------------------------------------------

WRITER = """
import sys, streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
for n in range(200):
    store.xadd("other", {"name": f"SeCrEt{n}," * 40})
ids = [one.id for one in store.xrange("other")]
store.xdel("other", *ids)
print(b" ".join(ids).decode(), flush=True)
for line in sys.stdin:
    for n in range(300):
        store.xadd("other", {"n": str(n)})
        if n % 50 == 0:
            store.xtrim("other", maxlen=10)
    print("done", flush=True)
"""


@pytest.fixture
def writer(filled: Store) -> Iterator[subprocess.Popen[str]]:
    """Another process that wrote the secret, deleted it, and goes on writing when told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(filled.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_the_memory_of_another_writer_brings_nothing_back(
    filled: Store, writer: subprocess.Popen[str]
) -> None:
    assert writer.stdin is not None
    ids = line_of(writer).split()
    filled.erase("other", *ids)
    assert grep(filled.path) == []
    for _ in range(3):
        writer.stdin.write("go\n")
        writer.stdin.flush()
        assert line_of(writer) == "done\n"
        assert grep(filled.path) == []


def test_writers_go_on_while_entries_are_erased(filled: Store) -> None:
    stop = threading.Event()
    added: list[bytes] = []

    def write() -> None:
        while not stop.is_set():
            added.append(filled.xadd("busy", harmless(len(added))))

    with beside(write, stop=stop.set):
        for n in range(5):
            secret = filled.xadd("k", entry(n, size=50))
            assert filled.erase("k", secret) == 1
    assert grep(filled.path) == []
    assert [one.id for one in filled.xrange("busy")] == added


def test_a_reader_of_an_older_state_is_waited_for_and_named(filled: Store) -> None:
    secret = filled.xadd("k", entry(1))
    checkpoint_now(filled)  # the snapshot shows it in the data file
    with filled.snapshot() as snapshot:
        with pytest.raises(ErasureBlockedError, match=f"process {os.getpid()}") as caught:
            filled.erase("k", secret, timeout=0.2)
        assert caught.value.processes == (os.getpid(),)
        assert snapshot.xrange("k", secret)[0].fields == entry(1)
        assert filled.xrange("k", secret) == []
    assert grep(filled.path) != []
    assert filled.erase("k") == 0  # finishes it
    assert grep(filled.path) == []
    secret = filled.xadd("k", entry(2))
    snapshot = filled.snapshot()
    closed: list[bool] = []

    def close() -> None:
        closed.append(True)
        snapshot.close()

    threading.Timer(0.3, close).start()
    assert filled.erase("k", secret, timeout=PATIENCE_S) == 1
    assert closed  # it has waited
    assert grep(filled.path) == []


def test_snapshots_and_commits_meanwhile_are_not_disturbed(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are visited, and free ones overwritten, while others read and use them."""
    monkeypatch.setattr(scrub, "_LOCK_S", 0)
    monkeypatch.setattr(scrub, "_RUN", 3)
    before = filled.xrange("k")
    secrets = [filled.xadd("big", entry(n, size=1000)) for n in range(50)]
    filled.xdel("big", *secrets)
    snapshots: list[Any] = []

    def look(done: int, total: int) -> None:
        if len(snapshots) < 300:
            snapshots.append(filled.snapshot())
            filled.xadd("more", harmless(len(snapshots)))
            filled.xtrim("more", maxlen=300)  # pages are freed, too

    filled.erase("big", *secrets, progress=look)
    assert grep(filled.path) == []
    assert len(snapshots) > 50
    for n, snapshot in enumerate(snapshots):
        assert snapshot.xrange("k") == before
        assert snapshot.xlen("more") == n
        snapshot.close()


@pytest.mark.slow
@pytest.mark.parametrize("sync", slow_but(["commit", "none"], "commit"))
def test_under_the_lock_no_more_of_the_free_list_is_read_than_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Any
) -> None:
    """However long the list is, a writer waits no longer than for a piece of it."""
    monkeypatch.setattr(scrub, "_LOCK_S", 0)
    monkeypatch.setattr(scrub, "_CHUNK", 64, raising=False)
    locked: list[int] = []  # bytes of the free list read in each round under the lock
    under_lock = listing = False
    newest, read = scrub._DataFile._newest, scrub._DataFile._read
    chunks = scrub._DataFile._chunks

    @contextmanager
    def counted_newest(self: Any) -> Iterator[Any]:
        nonlocal under_lock
        with newest(self) as page:
            locked.append(0)
            under_lock = True
            try:
                yield page
            finally:
                under_lock = False

    def counted_read(self: Any, number: int, size: int, skip: int = 0) -> bytes:
        if under_lock and listing:
            locked[-1] += size
        return read(self, number, size, skip)

    def counted_chunks(self: Any, meta: Any, start: Any) -> Iterator[Any]:
        nonlocal listing
        found = chunks(self, meta, start)
        while True:
            listing = True
            one = next(found, None)
            listing = False
            if one is None:
                return
            yield one

    monkeypatch.setattr(scrub._DataFile, "_newest", counted_newest)
    monkeypatch.setattr(scrub._DataFile, "_read", counted_read)
    monkeypatch.setattr(scrub._DataFile, "_chunks", counted_chunks)
    with streamkeep.open(tmp_path / "store", sync=sync) as store:
        ids = [store.xadd("k", {"SeCrEt": b"SeCrEt" * 20_000}) for _ in range(100)]
        store.xadd("k", harmless(1))
        assert store.erase("k", *ids) == 100
        assert store.reusable_bytes > 8_000_000  # 2,000 free pages: 16 KB of list
    assert len(locked) > 5
    # A page of the list's tree or two, a count, and two pieces of a record.
    assert max(locked) <= 3 * 4096 + 8 + 2 * 8 * 64
    assert grep(tmp_path / "store") == []
    assert_sound(tmp_path / "store")


def test_erasing_inside_a_transaction_or_without_write_access_is_refused(filled: Store) -> None:
    secret = filled.xadd("k", entry(1))
    with filled.transaction(), pytest.raises(StoreError, match="transaction"):
        filled.erase("k", secret)
    filled.close()
    with (
        streamkeep.open(filled.path, readonly=True) as reader,
        pytest.raises(StoreError, match="readonly"),
    ):
        reader.erase("k", secret)


# --- crashes ------------------------------------------------------------------------------------


def test_messages_that_a_killed_erasure_left_are_forgotten_by_the_next(path: Path) -> None:
    with streamkeep.open(path) as store:
        erased = store.xadd("k", harmless(1), idmp=("till", SECRET))
        store.xadd("other", harmless(2), idmp=("till", "m"))

    def work() -> None:
        failpoints.arm("commit:made", lambda: os.kill(os.getpid(), signal.SIGKILL))
        streamkeep.open(path).erase("k", erased)

    killed(work)
    with streamkeep.open(path) as store:
        assert store.xlen("k") == 0
        assert grep(path) != []
        store.erase("other", "1-0")
        assert grep(path) == []
        store.xadd("other", harmless(2), idmp=("till", "m"))
        assert store.xlen("other") == 1
    assert_sound(path)


def test_a_scrub_goes_on_where_another_process_died_with_commits_in_its_memtable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamkeep.open(path).close()
    ready, go = os.pipe(), os.pipe()

    def work() -> None:
        store = streamkeep.open(path, sync="none")
        store.xadd("s", {"f": "v"})
        os.write(ready[1], b"y")
        os.read(go[0], 1)
        for _ in range(9):
            store.xadd("s", {"f": "v"})
        os.kill(os.getpid(), signal.SIGKILL)

    child = child_of(work)
    os.read(ready[0], 1)
    with streamkeep.open(path) as store:
        secret = store.xadd("k", entry(1))
        checkpoints = environment_of(store).checkpoints
        assert checkpoints is not None
        make_clean = checkpoints.make_clean

        def later() -> Hold:
            os.write(go[1], b"y")
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
            control = journal_of(store).control
            assert control.newest() > journal_of(store).log.commit_number
            return make_clean()

        monkeypatch.setattr(checkpoints, "make_clean", later)
        assert store.erase("k", secret) == 1
        assert grep(path) == []
        assert store.xlen("s") == 10
    assert_sound(path)


def test_opening_says_that_an_erasure_is_not_finished(
    filled: Store, caplog: pytest.LogCaptureFixture
) -> None:
    secret = filled.xadd("k", entry(1))
    failpoints.arm("scrub:pages-clear", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        filled.erase("k", secret)
    filled.close()
    with streamkeep.open(filled.path):
        assert "streamkeep erase" in caplog.text
        run("erase", filled.path, "--finish")
    caplog.clear()
    assert grep(filled.path) == []
    streamkeep.open(filled.path).close()
    assert caplog.text == ""


# --- the command --------------------------------------------------------------------------------


def test_the_command_asks_names_the_loss_and_prints_how_many_there_were(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with streamkeep.open(path) as store:
        store.xadd("k", entry(1), "1-0")
        store.xadd("k", entry(2), "2-0")
        store.xadd("k", harmless(3), "3-0")
    refused = run("erase", path, "k", "1-0", input="n\n", status=1)
    assert "nothing was changed" in refused.stderr
    assert "1 ID" in refused.stderr
    assert grep(path) != []
    [summary] = objects("erase", path, "k", "1-0", "2-0", "9-0", "--yes")
    assert summary["count"] == 2
    assert grep(path) == []
    run("erase", path, "k", status=2)
    run("erase", path, "k", "1-0", "--finish", status=2)
    assert run("erase", path, "k", "-", "--yes", input="3-0\n").stdout == "1\n"
    assert_sound(path)


# --- searching all nodes for what an erasure has to erase -----------------------------------------


def test_retired_nodes_of_a_deleted_stream_are_searched_and_erased(open_store: Open) -> None:
    store = open_store(node_max_entries=5)
    store.set_retention("k", archive=True)
    ids = [f"{n}-0" for n in range(1, 31)]
    store.xadd_many("k", [{"user": n % 3} for n in range(30)], ids)
    store.xtrim("k", maxlen=10, approximate=False)
    store.delete("k")
    found = store.find_remains("k", {"user": 1})
    assert [str(one) for one in found] == ids[1:20:3]
    assert store.erase("k", *found) == len(found)
    assert store.find_remains("k", {"user": 1}) == []
    assert len(store.find_remains("k", {"user": 2})) == 6


def test_an_erased_entry_is_not_found_by_the_empty_values_that_are_left_of_it(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store(node_max_entries=50)
    store.set_retention("k", archive=True)
    ids = [f"{n}-0" for n in range(1, 9)]
    store.xadd_many("k", [{"user": n, "note": ""} for n in range(1, 9)], ids)
    ids.append(str(store.xadd("k", {"note": ""}, "9-0"), "ascii"))
    found = store.find_remains("k", {"note": ""})
    assert [str(one) for one in found] == ids
    store.erase("k", *ids[:3], ids[8])
    store.xtrim("k", maxlen=4, approximate=False)  # the oldest that is left waits for the archive
    assert [str(one) for one in store.find_remains("k", {"note": ""})] == ids[3:8]
    path, target = str(store.path), tmp_path / "copy"
    ship(store, target)
    erase = ("erase", path, "k", "--where", "note=", "--yes", "--verify", str(target))
    assert "still in the copy" in run(*erase, "--timeout", "10ms", status=1).stderr
    ship(store, target)
    assert run(*erase).stdout == "0\n"
    assert store.find_remains("k") == []


@pytest.mark.parametrize("retired", [False, True])
def test_a_trimmed_entry_with_empty_values_is_erased(open_store: Open, retired: bool) -> None:
    store = open_store(node_max_entries=3)
    store.set_retention("k", archive=True)
    store.xadd_many("k", [{"note": ""}] * 5, [f"{n}-0" for n in range(1, 6)])
    store.xtrim("k", maxlen=3, approximate=False)
    if retired:
        store.trim_range("k", "3", "3")
    assert store.erase("k", "1-0") == 1
    assert [one for one, _ in store.xrange("k", max="3", history=True)] == [b"2-0", b"3-0"]
    assert [str(one) for one in store.find_remains("k", {"note": ""})][:2] == ["2-0", "3-0"]
    store.archive()
    assert [one for one, _ in store.xrange("k", max="3", history=True)] == [b"2-0", b"3-0"]


@pytest.mark.parametrize("case", range(4, 8))
def test_no_later_commit_writes_what_the_flush_of_an_erasure_has_read(
    open_store: Open, case: int
) -> None:
    """LMDB reads a page into its memory to change it, and uses that again for other pages."""
    store = open_store(node_max_entries=1 + case % 3)
    ids = [store.xadd("k" * 21, entry(n)) for n in range(7)]
    if case > 5:
        store.xtrim("k" * 21, maxlen=3, approximate=False)
    checkpoint_now(store)
    store.erase("k" * 21, *ids)
    for n in range(5):
        store.xadd(f"other{n}", harmless(n))
        checkpoint_now(store)
        assert grep(store.path) == []


OTHER = """
import sys
sys.path[:] = path
import streamkeep
from inside import checkpoint_now
with streamkeep.open(sys.argv[1]) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        store.xadd(line, {"a": "b"})
        checkpoint_now(store)
        print("done", flush=True)
"""


@pytest.mark.parametrize("between", [False, True])
def test_no_later_commit_of_another_process_writes_it_either(
    open_store: Open, between: bool
) -> None:
    """It flushes before the erasure clears the memories, or only afterwards."""
    store = open_store(node_max_entries=1)
    ids = [store.xadd("k" * 21, entry(n)) for n in range(7)]
    checkpoint_now(store)
    words = [sys.executable, "-c", f"path = {sys.path}\n{OTHER}", str(store.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as other:
        told, said = other.stdin, other.stdout
        assert told is not None
        assert said is not None
        assert said.readline() == "ready\n"

        def write(key: str) -> None:
            print(key, file=told, flush=True)
            assert said.readline() == "done\n"

        if between:
            failpoints.arm("erase:stored", lambda: write("between"))
        store.erase("k" * 21, *ids)
        for n in range(5):
            write(f"theirs{n}")
            store.xadd(f"ours{n}", harmless(n))
            checkpoint_now(store)
            assert grep(store.path) == []
        told.close()
