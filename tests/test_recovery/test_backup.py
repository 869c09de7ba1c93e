"""Backups of stores in use, and compaction: whole or not there, after every crash."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lmdb
import pytest

import failpoint_names
import streamkeep
from cli_runner import objects, run
from conftest import NOW_MS, assert_sound
from inside import checkpoint_now
from patience import beside, line_of
from stopped import ended, killed_at, stop, stopped_child
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint import checkpoint_file
from streamkeep.engine.store import opening
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.whole_store.copying import made_beside
from streamkeep.format.core import errors
from streamkeep.format.core.keys import NODES
from streamkeep.recovery import backup, compact, restore, restore_copy, ship
from streamkeep.recovery.salvage.repair import repair
from tiers import slow_but

HOLDER = """
import sys, streamkeep
with streamkeep.open(sys.argv[1], readonly="readonly" in sys.argv):
    print("open", flush=True)
    input()
"""

WRITER = """
import sys, streamkeep
with streamkeep.open(sys.argv[1]) as store:
    for line in sys.stdin:
        print(store.xadd("k", {"n": "7"}).decode(), flush=True)
"""


def fill(store: Store, count: int = 2000) -> None:
    """Give a store a stream, a group with pending entries, and free pages."""
    store.xadd_many("k", [{"n": str(n), "pad": "x" * 100} for n in range(count)])
    store.xadd_many("gone", [{"n": str(n), "pad": "y" * 300} for n in range(count)])
    checkpoint_now(store)  # so that the file has pages for what is deleted now
    store.delete("gone")
    if not store.xinfo_groups("k"):
        store.xgroup_create("k", "g", "0")
    store.xreadgroup("g", "c", {"k": ">"}, count=100)


def contents(store: Store[Any]) -> list[Any]:
    return [
        [
            name,
            store.xrange(name, history=True),
            store.xinfo_groups(name),
            [
                store.xpending_range(name, group["name"], "-", "+", 1 << 20)
                for group in store.xinfo_groups(name)
            ],
        ]
        for name in sorted(store.keys())
    ]


def shown(path: Path) -> list[Any]:
    with Store(path, create=False, clock=ManualClock(NOW_MS)) as store:
        return contents(store)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a test makes its backup; nothing is there yet."""
    return tmp_path / "backup"


@contextmanager
def held(path: Path, *how: str) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *how], stdin=-1, stdout=-1, text=True
    ) as child:
        assert line_of(child) == "open\n"
        yield
        child.communicate("\n")


@pytest.fixture
def store(open_store: Open) -> Store:
    store = open_store()
    fill(store)
    return store


@pytest.fixture
def archived(open_store: Open) -> Store:
    """A store with three segments, and retired entries."""
    store = open_store()
    store.set_retention("k", archive=True)
    for part in range(4):
        store.xadd_many("k", [{"n": str(n)} for n in range(part * 1000, part * 1000 + 1000)])
        store.xtrim("k", maxlen=10, approximate=False)
        if part < 3:
            store.archive()
    return store


def test_a_full_disk_of_the_backup_leaves_the_earlier_one(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store, 100)
    before = backup(store, tmp_path / "copy")
    store.xadd("k", {"n": "1"})
    ship(store, tmp_path / "shipped")
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    for name in (
        "backups.backup.copy_data",
        "copies.restore.open_new",
        "salvage.new_store.open_new",
    ):
        monkeypatch.setattr(f"streamkeep.recovery.{name}", full)
    with pytest.raises(errors.StoreFullError, match="copy: its disk is full"):
        backup(store, tmp_path / "copy")
    for make, source in ((restore, "copy"), (restore_copy, "shipped"), (repair, "copy")):
        with pytest.raises(errors.StoreFullError, match="new: its disk is full"):
            make(tmp_path / source, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with streamkeep.open(before.path, readonly=True) as copy:
        assert copy.xlen("k") == 100


def test_a_backup_is_a_store_of_its_own_equal_to_the_one_in_use(
    store: Store, target: Path, tmp_path: Path
) -> None:
    target.mkdir()  # an empty folder is taken
    before = contents(store)
    [summary] = objects("backup", store.path, target)
    assert summary["data_bytes"] == (target / "data.mdb").stat().st_size
    assert summary["verified"] is True
    assert "not checked" in run("backup", store.path, target, "--no-verify").stderr
    run("backup", store.path, tmp_path, status=3)
    report = backup(store, str(target))
    store.xadd("k", {"later": "1"})
    assert report.path == target
    assert report.epoch == store.durability().epoch + 1
    assert report.data_bytes < store.used_bytes / 2
    assert_sound(target)
    assert shown(target) == before
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]
    with streamkeep.open(target) as copy:
        assert copy.uuid == store.uuid
        copy.xadd("k", {"own": "life"})


def test_a_backup_shows_one_moment_while_writers_go_on(store: Store, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            with store.transaction() as txn:
                txn.xadd("a", {"n": str(number)}, id=f"{number + 1}-0")
                txn.xadd("b", {"n": str(number)}, id=f"{number + 1}-0")
                txn.xtrim("a", maxlen=50)
            number += 1

    with beside(write, stop=stop.set):
        for number in range(6):
            target = tmp_path / f"backup{number % 2}"
            backup(store, target)
            assert_sound(target)
            with streamkeep.open(target, readonly=True) as copy:
                last_a = copy.xrevrange("a", count=1)
                last_b = copy.xrevrange("b", count=1)
                assert last_a == last_b
                assert copy.xlen("b") == sum(int(one.id.split(b"-")[0]) for one in last_b)


def test_a_backup_and_a_repair_have_what_other_processes_have_just_committed(
    tmp_path: Path, target: Path
) -> None:
    """Their commits may be in the journal only; both once had what `data.mdb` had."""
    path = tmp_path / "store"
    words = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as writer:
        assert writer.stdin is not None
        for count in (1, 2, 3):
            writer.stdin.write("\n")
            writer.stdin.flush()
            last = line_of(writer).strip()
            if count == 1:
                with Store(path, readonly=True):  # without it, a repair read the journal
                    repair(path, repaired := tmp_path / "repaired")
                with Store(repaired, readonly=True) as copy:
                    assert copy.xlen("k") == 1
            with Store(path, readonly=True) as present:
                *_, newest = present.changes()
            backup(path, target)
            with Store(target, readonly=True) as copy:
                assert copy.xlen("k") == count
                assert [*copy.changes(newest.position)] == []  # it goes on after a restore
                assert copy.xinfo_stream("k")["last-generated-id"].decode() == last
            assert_sound(target)
        writer.stdin.close()


def test_a_backup_on_a_read_only_disk_counts_on_the_commits(
    store: Store, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = backup(store, target)
    monkeypatch.setattr(opening, "is_listed", lambda path: False)
    assert restore(target, tmp_path / "new").commit_number == made.commit_number


def test_a_backup_is_made_with_little_address_space(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lmdb.open

    def limited(path: Any, **options: Any) -> Any:
        if options.get("map_size", 0) > 1 << 29:
            raise lmdb.MemoryError("no room")
        return real(path, **options)

    monkeypatch.setattr(lmdb, "open", limited)
    backup(store, target)


def test_what_is_no_mere_backup_of_this_store_is_not_touched(
    store: Store, open_store: Open, target: Path, tmp_path: Path
) -> None:
    backup(store, target)
    with streamkeep.open(target) as copy:
        copy.xadd("k", {"own": "life"})
    with pytest.raises(errors.StoreError, match="was changed since"):
        backup(store, target)
    assert shown(target)[0][1][-1].fields == {b"own": b"life"}
    other = open_store("other")
    with pytest.raises(errors.StoreError, match="another store"):
        backup(store, other.path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter").write_text("dear")
    with pytest.raises(errors.NotAStoreError):
        backup(store, tmp_path / "folder")
    assert os.listdir(tmp_path / "folder") == ["letter"]
    for inside in (store.path, store.path / "archive" / "backup", tmp_path):
        with pytest.raises(errors.StoreError):
            backup(store, inside)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(errors.StoreError, match="Too many levels of symbolic links"):
        backup(store, tmp_path / "loop")
    with pytest.raises(errors.StoreError, match="no such folder"):
        backup(store, tmp_path / "missing" / "backup")


def test_a_backup_that_somebody_has_open_is_not_replaced(store: Store, target: Path) -> None:
    backup(store, target)
    with held(target, "readonly"), pytest.raises(errors.StoreLockedError, match="open"):
        backup(store, target)
    backup(store, target)


def test_two_backups_to_one_target_at_once_are_refused(store: Store, target: Path) -> None:
    caught: list[BaseException] = []

    def again() -> None:
        try:
            backup(store, target)
        except errors.StoreError as error:
            caught.append(error)

    failpoints.arm("backup:copied", again)
    backup(store, target)
    assert isinstance(caught[0], errors.StoreLockedError)
    assert_sound(target)


def test_a_copy_that_was_finished_before_its_folder_was_locked_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the folder and locking it, another process may give it its name."""
    parent = Folder(tmp_path, outside=True)

    def finish_first(handle: int, operation: int) -> None:
        (tmp_path / ".copy.backup").rename(tmp_path / "copy")

    monkeypatch.setattr("fcntl.flock", finish_first)
    with (
        pytest.raises(errors.StoreLockedError, match="has just made it"),
        made_beside(parent, "copy", "backup"),
    ):
        pytest.fail("the folder of the finished copy was given out")


def test_a_folder_that_another_process_makes_after_the_copy_got_its_name_stays(
    tmp_path: Path,
) -> None:
    parent = Folder(tmp_path, outside=True)
    with made_beside(parent, "copy", "restore"):
        parent.rename(".copy.restore", "copy")
        parent.make_folder(".copy.restore")
    assert sorted(os.listdir(tmp_path)) == [".copy.restore", "copy"]


def test_a_damaged_store_gives_no_backup_and_keeps_the_earlier_one(
    store: Store, target: Path, tmp_path: Path
) -> None:
    backup(store, target)
    expected = shown(target)
    with store.transaction() as txn:
        cursor = txn._txn.cursor(NODES)
        assert cursor.first()
        txn._txn.put(NODES, cursor.key(), cursor.value()[:-1] + b"?")
    with pytest.raises(errors.CorruptionError, match="the backup was not made"):
        backup(store, target)
    assert shown(target) == expected
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]
    store.close()
    shutil.rmtree(store.path)  # the fixture would find the damage, too
    streamkeep.open(store.path).close()


@pytest.mark.parametrize("atomic", [True, False])
def test_names_change_in_one_step_or_two(
    store: Store, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    if not atomic:
        monkeypatch.setattr("streamkeep.recovery.backups.backup._exchange", lambda *names: False)
    for number in range(3):
        fill(store, 20 + number)
        backup(store, target)
        assert shown(target) == contents(store)
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]


@pytest.mark.crash
@pytest.mark.parametrize(
    "step",
    slow_but(
        [
            "backup:segment",
            "copy:written",
            "backup:data",
            "backup:copied",
            "backup:checked",
            "backup:exchanged",
            "backup:aside",
            "backup:named",
        ],
        "backup:segment",
        "backup:copied",
        "backup:aside",
    ),
)
def test_a_backup_that_is_killed_leaves_a_whole_one(
    archived: Store, target: Path, tmp_path: Path, step: str
) -> None:
    """What it has copied is not in the way of the next one."""
    store = archived
    earlier = contents(store)
    backup(store, target)
    fill(store, 50)
    store.archive()
    later = contents(store)
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        if step == "backup:aside":  # the system cannot exchange names
            patch.setattr("streamkeep.recovery.backups.backup._exchange", lambda *names: False)
        killed_at(step, lambda: backup(store.path, target))
    if target.exists():
        assert shown(target) in (earlier, later)
        assert_sound(target)
    backup(store.path, target)
    assert shown(target) == later
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]


def test_compaction_gives_room_back_and_changes_nothing_else(store: Store) -> None:
    before = contents(store)
    epoch = store.durability().epoch
    store.close()
    size = (store.path / "data.mdb").stat().st_size
    done = compact(store.path)
    assert done.before_bytes == size
    assert done.after_bytes == (store.path / "data.mdb").stat().st_size < size / 2
    assert done.epoch == epoch + 1
    assert_sound(store.path)
    assert shown(store.path) == before
    with streamkeep.open(store.path) as again:
        assert again.durability().epoch == epoch + 1
        fill(again, 100)
    assert_sound(store.path)
    assert not [name for name in os.listdir(store.path) if name.startswith("compact")]
    assert "before" in run("compact", store.path).stdout
    [summary] = objects("compact", store.path)
    assert summary["after_bytes"] <= summary["before_bytes"]
    run("compact", store.path / "missing", status=6)
    assert not (store.path / "missing").exists()


def test_a_store_that_is_open_is_not_compacted(store: Store) -> None:
    with pytest.raises(errors.StoreLockedError, match="this process"):
        compact(store.path)
    store.close()
    with held(store.path), pytest.raises(errors.StoreLockedError, match="another process"):
        compact(store.path)
    compact(store.path)


STEPS = ["copy:written", *(name for name in failpoint_names.NAMES if name.startswith("compact:"))]


@pytest.mark.crash
@pytest.mark.parametrize("step", slow_but(STEPS, "compact:ready", "compact:data-moved"))
def test_a_compaction_that_is_killed_leaves_the_old_store_or_the_new(
    store: Store, step: str
) -> None:
    expected = contents(store)
    store.close()
    killed_at(step, lambda: compact(store.path))
    assert shown(store.path) == expected
    assert_sound(store.path)
    assert not [name for name in os.listdir(store.path) if name.startswith("compact")]
    compact(store.path)
    assert shown(store.path) == expected


def test_readers_of_a_compaction_that_was_cut_off_are_told_what_to_do(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_file, "_PATIENCE_S", 0.1)
    store.close()

    def compact_and_stop() -> None:
        failpoints.arm("compact:journal-gone", stop)
        compact(store.path)

    child = stopped_child(compact_and_stop)
    with ended(child), pytest.raises(errors.StoreLockedError, match=f"process {child}, .*stopped"):
        assert_sound(store.path)
    with pytest.raises(errors.RecoveryNeededError, match="compaction"):
        streamkeep.open(store.path, readonly=True)
    with pytest.raises(errors.RecoveryNeededError, match="compaction"):
        assert_sound(store.path)
    streamkeep.open(store.path).close()
    assert_sound(store.path)


def test_segments_are_copied_once_and_kept_in_later_backups(archived: Store, target: Path) -> None:
    first = backup(archived, target)
    assert (first.copied_segments, first.kept_segments) == (3, 0)
    history = archived.xrange("k", history=True)
    archived.archive()
    second = backup(archived, target)
    assert (second.copied_segments, second.kept_segments) == (1, 3)
    assert second.kept_bytes == first.copied_bytes
    [victim, *_] = sorted((target / "archive").rglob("*.seg"))
    victim.write_bytes(victim.read_bytes()[:-20])
    again = backup(archived, target)  # a damaged one is copied again
    assert (again.copied_segments, again.kept_segments) == (1, 3)
    assert_sound(target)
    dropped = archived.drop_segments("k")
    archived.erase("k", history[-1].id)
    third = backup(archived, target)
    assert dropped
    assert (third.copied_segments, third.kept_segments) == (0, 0)
    assert not list((target / "archive").rglob("*.seg"))
    assert_sound(target)
    with streamkeep.open(target) as copy:
        assert copy.xrange("k", history=True) == archived.xrange("k", history=True)


def test_archiving_and_erasing_go_on_during_a_backup(archived: Store, tmp_path: Path) -> None:
    expected = archived.xrange("k", history=True)
    ids = [expected[5].id]

    def change(name: str) -> None:
        if name == "backup:segment" and ids:
            archived.erase("k", ids.pop())
            archived.archive()

    failpoints.watch(change)
    backup(archived, tmp_path / "backup")
    failpoints.disarm()
    assert not ids
    assert_sound(tmp_path / "backup")
    with streamkeep.open(tmp_path / "backup") as copy:
        assert copy.xrange("k", history=True) == archived.xrange("k", history=True)


def test_a_backup_is_restored_where_no_store_is(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with streamkeep.open(path) as store:
        store.xadd("k", {"a": "b"}, "1-1")
        store.set_retention("k", archive=True)
        store.xtrim("k", 0, approximate=False)
        store.archive()
        backup(store, copy)
        store.xadd("k", {"a": "c"}, "2-1")
    result = run("restore", copy, path, status=3)
    assert "there is something already; next: move it away" in result.stderr
    shutil.move(path, tmp_path / "damaged")
    assert (
        "not a backup, but a store" in run("restore", tmp_path / "damaged", path, status=3).stderr
    )
    assert "; checked, in" in run("restore", copy, path).stderr
    assert objects("range", path, "k", "--history")[0]["id"] == "1-1"
    assert_sound(path)
    with streamkeep.open(path) as store:
        store.xadd("k", {"a": "d"}, "3-1")
        backup(store, copy)  # the one that was restored takes later ones
    shutil.rmtree(path)
    with (copy / "data.mdb").open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 8192)
    with pytest.raises(errors.CorruptionError):
        restore(copy, path)
    assert {one.name for one in tmp_path.iterdir()} == {"copy", "damaged"}


def test_an_earlier_state_is_restored_though_the_archive_elsewhere_has_gone_on(
    tmp_path: Path,
) -> None:
    path, copy, shipped = tmp_path / "store", tmp_path / "copy", tmp_path / "shipped"
    with streamkeep.open(path) as store:
        store.set_retention("k", archive=True)

        def publish(first: int) -> None:
            store.xadd("k", {"a": "b"}, f"{first}-1")
            store.xtrim("k", 0, approximate=False)
            store.archive(to=tmp_path / "fleet")

        def also_publish(step: str, done: int, total: int) -> None:
            if step == "check" and store.archived_segments("k")[-1].last_id.ms == 1:
                publish(2)

        publish(1)
        with store.snapshot() as snapshot:
            commit = snapshot.txn.newest_commit()
        ship(store, shipped)
        report = backup(store, copy, progress=also_publish)
        assert [one.code for one in report.archive_findings] == ["SK316"]
        ship(store, shipped)
        result = run("restore", copy, tmp_path / "one")
        assert "note SK316" in result.stdout
        assert "note SK316" in run("fsck", copy).stdout  # with status 0: the backup is sound
        assert objects("range", tmp_path / "one", "k", "--history")[0]["id"] == "1-1"
        result = run("ship", "restore", shipped, tmp_path / "two", "--commit", str(commit))
        assert "SK316" in result.stdout
        store.erase("k", "1-1")  # the segment of the backup is gone
    result = run("restore", copy, tmp_path / "three", status=5)
    assert "error SK301: segment 1-k/1-1_1-1.1-1.seg: the file is neither" in result.stdout
    assert "restored, but its archive has 1 problem\nnext: `streamkeep archive" in result.stderr


def test_a_backup_of_a_later_state_is_not_replaced(tmp_path: Path) -> None:
    path, old, new = tmp_path / "store", tmp_path / "old", tmp_path / "new"
    with streamkeep.open(path) as store:
        store.xadd("k", {"a": "b"}, "1-1")
        backup(store, old)
        store.xadd("k", {"a": "b"}, "2-1")
        backup(store, new)
    shutil.rmtree(path)
    restore(old, path)
    result = run("backup", path, new, status=3)
    assert "a state that this store does not have: it has commit 4, and the store," in result.stderr
    with streamkeep.open(path) as store:
        for n in range(9):  # more commits than the backup has, and not the same ones
            store.xadd("k", {"a": "c"}, f"{n + 3}-1")
        with pytest.raises(errors.StoreError, match=r"may have made, those up to 2; .* away"):
            backup(store, new)
        for _ in range(2):
            backup(store, old)
    shutil.rmtree(path)
    restore(new, path)
    with streamkeep.open(path) as store:
        backup(store, new)
    assert [one["id"] for one in objects("range", new, "k") if "id" in one] == ["1-1", "2-1"]
