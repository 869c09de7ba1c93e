"""Full disks, failing disks, folders that vanish: a clear error, and nothing half done."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from crash.disks import mounts
from crash.losses import in_child, small_journal, state_of
from crash.power import another_boot, copy_store
from inside import checkpoint_now, context_of, flush_each_commit, journal_of
from patience import thread_of
from stopped import child_of, die, go_on, killed, status_of, stop, stopped_child
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.begin import release_room
from tiers import pairs_of

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FIELDS = {"pad": "x" * 300}


@contextmanager
def failing(name: str, code: int, *, at: int = 1, times: int = 1 << 30) -> Iterator[list[int]]:
    """Have a function of `files`, or a method of `Folder`, fail from the call number `at` on."""
    calls = [0]
    owner: Any = Folder if name in ("open", "rename") else files
    real: Callable[..., Any] = getattr(owner, name)

    def fail(*args: Any) -> Any:
        calls[0] += 1
        if at <= calls[0] < at + times:
            raise OSError(code, os.strerror(code))
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail)
        yield calls


def assert_sound(path: Path) -> None:
    assert [str(finding) for finding in recovery.check(path)] == []


# --- no room ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"), pairs_of(["reserve", "write_at", "open"], [*FULL, errno.EIO])
)
def test_a_journal_file_that_cannot_be_made_fails_the_call_and_nothing_else(
    path: Path, name: str, code: int
) -> None:
    with small_journal(), Store(path, sync="none") as store:
        before: list[bytes] = []
        expected = streamkeep.StoreFullError if code in FULL else streamkeep.StoreError
        with failing(name, code), pytest.raises(expected):
            for _ in range(300):
                before.append(store.xadd("s", FIELDS))
        assert [entry.id for entry in store.xrange("s")] == before
        kept = sorted(one.name for one in (path / "journal").iterdir())
        with failing(name, code), pytest.raises(expected):
            store.xadd_many("s", [FIELDS] * 20)
        assert sorted(one.name for one in (path / "journal").iterdir()) == kept
        assert store.xlen("s") == len(before)
        store.xadd("s", FIELDS)  # the disk has room again
        after = state_of(store)
    assert_sound(path)
    with another_boot(), Store(path) as store:
        assert state_of(store) == after


def test_a_full_disk_without_room_for_a_name_takes_checkpoints(path: Path) -> None:
    """XFS may need a block to rename a file, and none to remove it."""
    with small_journal(), Store(path) as store, Store(path) as other:
        for number in range(300):
            (store, other)[number % 2].xadd("s", FIELDS)
        with failing("rename", errno.ENOSPC) as calls:
            checkpoint_now(store)
        assert calls[0] > 1
        assert len([*(path / "journal").glob("*.skj")]) == 1
        assert store.xlen("s") == 300
        other.xadd("s", FIELDS)
    assert_sound(path)


def test_a_disk_without_room_to_overwrite_a_file_ends_an_erasure_and_no_write(path: Path) -> None:
    """As btrfs, when it is full."""
    with Store(path, sync="none") as store:
        store.xadd("s", {"f": "the code word"}, id="1-1")
        with failing("write_zeros", errno.ENOSPC), pytest.raises(streamkeep.StoreFullError):
            store.erase("s", "1-1")
        store.xadd("s", FIELDS)
        assert store.erase("s", "1-1") == 0
        assert all(b"the code word" not in one.read_bytes() for one in path.glob("**/*.*"))
    assert_sound(path)


def test_a_nearly_full_disk_gets_small_journal_files(tmp_path: Path) -> None:
    """Where there is no room for a whole file, the record itself may still fit."""
    real = files.reserve

    def little(handle: int, size: int, start: int = 0) -> None:
        if size > 16 << 10 and "journal" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "no room for much")
        real(handle, size, start)

    with small_journal(), Store(tmp_path / "store") as store:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "reserve", little)
            for _ in range(100):
                store.xadd("s", FIELDS)
        expected = state_of(store)
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with another_boot(), Store(tmp_path / "copy") as store:
        assert state_of(store) == expected


def test_a_full_disk_has_journal_files_for_deletions_before_any_was_retired(path: Path) -> None:
    def reserve(handle: int, size: int, start: int = 0) -> None:
        if os.fstat(handle).st_size < size:
            raise OSError(errno.ENOSPC, "no room")

    with small_journal(), Store(path, sync="none") as store:
        ids = store.xadd_many("s", [FIELDS] * 300)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "reserve", reserve)
            failpoints.arm("journal:new-file", Mock(side_effect=OSError("begun in vain")))
            with pytest.raises(OSError, match="in vain"):
                for entry_id in ids[::2]:
                    store.xdel("s", entry_id)
            for entry_id in ids[::2]:
                store.xdel("s", entry_id)
        assert [entry.id for entry in store.xrange("s")] == ids[1::2]
    assert_sound(path)


def test_deleting_works_on_a_full_disk(tmp_path: Path) -> None:
    """A file system of 24 MiB, really full."""
    with small_disk(tmp_path / "disk", 24) as disk:
        path = disk / "store"
        with Store(path, sync="commit") as store:
            added = fill(store)
            assert store.xlen("s") == added
            with pytest.raises(streamkeep.StoreFullError):
                store.xadd("s", {"big": "x" * 40_000_000})
            assert len(store.xrange("s", count=100)) == 100
            first = store.xrange("s", count=1)[0].id
            assert store.xdel("s", first) == 1
            assert store.xtrim("s", maxlen=added // 4, approximate=False) > 0
            checkpoint_now(store)
            for _ in range(20):
                store.xadd("s", FIELDS)
            assert store.delete("s") == 1
        assert_sound(path)
        with Store(path, sync="commit") as store:
            added = fill(store)
        with another_boot(), Store(path) as store:
            assert len(store.xrange("s")) == added


def fill(store: Store[bytes]) -> int:
    """Add entries until the disk is full; return how many there are."""
    added = 0
    with pytest.raises(streamkeep.StoreFullError):
        while True:
            store.xadd_many("s", [{"pad": "x" * 3000}] * 20)
            added += 20
    return added


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own, where root may mount one."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_sync_writes_no_more_than_the_pages_that_changed(tmp_path: Path) -> None:
    """Of a large folio it would write all, and what is read ahead makes large ones.

    Nor does each 20th sync write the map of the file's blocks, also if another process reads it.
    """
    if reason := mounts.why_not("ext4"):
        pytest.skip(f"no ext4 can be mounted here: {reason}")
    mounts.make_image(tmp_path / "image", "ext4")
    with mounts.mounted(tmp_path / "image", "ext4", tmp_path / "disk") as disk:
        device = os.stat(disk).st_dev
        figures = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")

        def written() -> tuple[int, int]:
            found = figures.read_text().split()
            return 512 * int(found[6]), int(found[15])  # bytes; how often the disk was flushed

        with Store(disk / "store", sync="commit") as store:
            for _ in range(4000):  # until the kernel reads ahead of them
                store.xadd("s", {"f": bytes(200)})
            before = written()
            for number in range(1000):
                if number % 100 == 0:
                    for name in (disk / "store" / "journal").glob("*.skj"):
                        with name.open("rb") as file:
                            files.read_nothing_ahead(file.fileno())
                            file.read()
                store.xadd("s", {"f": bytes(200)})
            size, flushes = (now - then for now, then in zip(written(), before, strict=True))
            assert size / 1000 < 20_000
            assert flushes / 1000 < 1.04


def test_room_for_a_flush_is_reserved_before_a_commit_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "IDLE_S", 600.0)  # an idle process gives it back, too
    data = tmp_path / "store" / "data.mdb"
    with Store(tmp_path / "store", sync="none") as store:
        before = data.stat().st_size
        store.xadd("s", FIELDS)
        assert data.stat().st_size >= before + (1 << 20)
        store.xadd_many("s", [FIELDS] * 2000)
        assert data.stat().st_size >= store.used_bytes + (16 << 20)
    assert data.stat().st_size < 2 << 20


def test_without_room_for_a_flush_only_what_makes_room_is_committed(tmp_path: Path) -> None:
    with Store(tmp_path / "store", sync="none") as store:
        store.xgroup_create("s", "g", id="0", mkstream=True)
        store.xadd_many("s", [FIELDS] * 100)
        release_room(context_of(store))
        with failing("reserve", errno.ENOSPC):
            for _ in range(2):
                with pytest.raises(streamkeep.StoreFullError, match="the disk is full"):
                    store.xadd_many("s", [FIELDS] * 3000)
            ((_, got),) = store.xreadgroup("g", "c", {"s": ">"}, count=1)
            assert store.xack("s", "g", got[0].id) == 1
            assert store.xtrim("s", maxlen=10, approximate=False) == 90
            assert store.xlen("s") == 10
        store.xadd_many("s", [FIELDS] * 3000)
        expected = state_of(store)
        copy_store(store.path, tmp_path / "copy")
    with another_boot(), Store(tmp_path / "copy") as store:
        assert state_of(store) == expected


def test_a_store_at_its_size_limit_can_be_recovered(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with Store(path, sync="none", max_store_bytes=1 << 20) as store:
        with pytest.raises(streamkeep.StoreFullError):
            while True:
                store.xadd("s", FIELDS)
        for _ in range(40):
            store.xtrim("s", maxlen=store.xlen("s") - 5, approximate=False)
        expected = state_of(store)
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("lock.mdb"))
    with another_boot(), Store(copy, max_store_bytes=1 << 20) as store:
        assert state_of(store) == expected


# --- failing syncs ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sync_data", "sync_folder"])
def test_a_failed_sync_stops_all_writing_until_recovery(path: Path, name: str) -> None:
    with small_journal():
        store, relaxed = Store(path, sync="commit"), Store(path, sync="none")
        acknowledged = []
        with failing(name, errno.EIO, at=4, times=1), pytest.raises(streamkeep.RecoveryNeededError):
            for _ in range(300):
                acknowledged.append(store.xadd("s", FIELDS))
        newest = [entry.id for entry in store.xrange("s")]  # reading goes on
        assert newest[: len(acknowledged)] == acknowledged
        for one in (store, relaxed):
            with pytest.raises(streamkeep.RecoveryNeededError):
                one.xadd("s", FIELDS)
            with pytest.raises(streamkeep.RecoveryNeededError), one.transaction():
                pass
        with pytest.raises(streamkeep.RecoveryNeededError):
            store.sync()
        assert [entry.id for entry in store.xrange("s")] == newest
        relaxed.close()
        with pytest.raises(streamkeep.RecoveryNeededError):
            store.close()
        with pytest.raises(streamkeep.RecoveryNeededError):
            Store(path, readonly=True)
        with Store(path) as store:
            assert [entry.id for entry in store.xrange("s")][: len(acknowledged)] == acknowledged
            assert store.durability().last_recovery is not None
            store.xadd("s", FIELDS)
    assert_sound(path)


def halfway(path: Path) -> Store[bytes]:
    """Return an open store whose next commit fails when its record is written."""
    store = Store(path, sync="none")
    flush_each_commit(store)
    store.xadd("s", FIELDS)
    file = journal_of(store)._file
    assert file is not None
    file._writes = True  # as where overwritten blocks move
    failpoints.arm("commit:journaled", Mock(side_effect=RuntimeError("halfway")))
    return store


def test_a_record_that_cannot_be_cut_stops_all_writing_until_recovery(path: Path) -> None:
    """A recovery would make its commit, whose caller got an error: nothing may follow it."""
    store = halfway(path)
    refused = pytest.raises(streamkeep.RecoveryNeededError, match="writing to the disk has failed")
    with failing("write_at", errno.ENOSPC, at=2), refused:
        store.xadd("s", FIELDS)
    assert store.xlen("s") == 1
    for call in (lambda: store.xadd("s", FIELDS), store.close):
        with refused:
            call()
    with Store(path) as store:
        store.xadd("s", FIELDS)
    assert_sound(path)


def test_a_record_is_cut_when_the_disk_takes_it_a_moment_later(path: Path) -> None:
    """As btrfs does: it can use what was freed only when it has committed that."""
    store = halfway(path)
    with failing("write_at", errno.ENOSPC, at=2, times=2), pytest.raises(RuntimeError):
        store.xadd("s", FIELDS)
    assert store.xlen("s") == 1
    store.xadd("s", FIELDS)
    store.close()
    with Store(path) as store:
        assert store.xlen("s") == 2
    assert_sound(path)


def test_a_failed_sync_stops_other_processes_too(path: Path) -> None:
    Store(path).close()
    ready, go = os.pipe(), os.pipe()

    def work() -> None:
        with pytest.raises(streamkeep.RecoveryNeededError), Store(path, sync="none") as store:
            store.xadd("s", {"from": "child"})
            os.write(ready[1], b"r")
            os.read(go[0], 1)
            with pytest.raises(streamkeep.RecoveryNeededError):
                store.xadd("s", {"from": "child"})

    child = child_of(work)
    os.read(ready[0], 1)
    store = Store(path)
    with failing("sync_data", errno.EIO), pytest.raises(streamkeep.RecoveryNeededError):
        store.xadd("s", {"from": "parent"})
    os.write(go[1], b"g")
    assert status_of(child) == 0
    with pytest.raises(streamkeep.RecoveryNeededError):
        store.close()
    with Store(path) as store:
        assert {entry.fields[b"from"] for entry in store.xrange("s")} >= {b"child"}


@pytest.mark.parametrize("at", range(1, 4))
def test_a_failed_sync_of_a_checkpoint_stops_all_writing(path: Path, at: int) -> None:
    store = Store(path)
    ids = [store.xadd("s", FIELDS) for _ in range(10)]
    expected = pytest.raises(streamkeep.RecoveryNeededError)
    with failing("sync_data", errno.EIO, at=at), expected:
        checkpoint_now(store)
    with pytest.raises(streamkeep.RecoveryNeededError):
        store.xadd("s", FIELDS)
    with pytest.raises(streamkeep.RecoveryNeededError):
        store.close()
    with Store(path) as store:
        assert [entry.id for entry in store.xrange("s")] == ids
        assert store.durability().last_recovery is not None
    assert_sound(path)


@pytest.mark.parametrize("boot", [nullcontext, another_boot])
def test_a_store_whose_process_was_killed_on_a_full_disk_opens(
    tmp_path: Path, boot: Callable[[], AbstractContextManager[None]]
) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:

        def work() -> None:
            store = Store(disk / "store")
            for _ in range(30):
                store.xadd("s", FIELDS)
            with open(disk / "ballast", "wb", buffering=0) as out, suppress(OSError):
                while True:
                    out.write(bytes(1 << 12))

        killed(work)
        assert shutil.disk_usage(disk).free == 0
        with boot(), Store(disk / "store") as store:
            assert store.xlen("s") == 30
            assert store.delete("s") == 1


def test_a_recovery_that_meets_a_full_disk_can_be_tried_again(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with Store(path) as store:
        for _ in range(30):
            store.xadd("s", FIELDS)
        expected = state_of(store)
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("lock.mdb"))
    with another_boot():
        for name in ("write_at", "reserve", "sync_data", "sync_folder"):
            for at in range(1, 4):
                with failing(name, errno.ENOSPC, at=at) as calls:
                    try:
                        Store(copy).close()
                    except streamkeep.StoreError:
                        assert calls[0] >= at
                    else:
                        assert calls[0] < at
    with another_boot(2), Store(copy) as store:
        assert state_of(store) == expected
    assert_sound(copy)


# --- folders ------------------------------------------------------------------------------------


def test_a_store_that_was_deleted_says_so_and_leaves_its_successor_alone(
    path: Path, tmp_path: Path
) -> None:
    with small_journal():
        for sync in ("commit", "none"):
            old = Store(path, sync=sync)
            old.xadd("s", FIELDS)
            shutil.rmtree(path)
            with Store(path) as new:
                ids = [new.xadd("s", FIELDS) for _ in range(60)]
                names = {one.name: one.stat().st_ino for one in (path / "journal").iterdir()}
                with pytest.raises(streamkeep.StoreError, match="deleted"):
                    for _ in range(300):
                        old.xadd("s", FIELDS)
                with pytest.raises(streamkeep.StoreError, match="deleted"):
                    old.sync()
                with pytest.raises(streamkeep.StoreError, match="deleted"):
                    old.close()
                now = {one.name: one.stat().st_ino for one in (path / "journal").iterdir()}
                assert now == names
                assert [entry.id for entry in new.xrange("s")] == ids
                expected = state_of(new)
                copy = tmp_path / f"copy-{sync}"
                shutil.copytree(path, copy, ignore=shutil.ignore_patterns("lock.mdb"))
            with another_boot(), Store(copy) as store:
                assert state_of(store) == expected
            shutil.rmtree(path)


def test_a_store_on_read_only_media_opens_for_reading(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        with Store(disk / "store") as store:
            store.xadd("s", {"f": "v"}, id="1-1")
        remount = ["mount", "-o", "remount,ro", str(disk)]
        subprocess.run(remount, check=True, capture_output=True)
        with Store(disk / "store", readonly=True) as store:
            assert store.xlen("s") == 1
            assert store.durability().last_commit > 0
        with pytest.raises(streamkeep.StoreError, match="is read-only, by its mount"):
            Store(disk / "store")
        with another_boot(), Store(disk / "store", readonly=True) as store:
            assert [entry.id for entry in store.xrange("s")] == [b"1-1"]


def test_a_store_on_a_file_system_that_became_read_only_opens_as_a_copy(tmp_path: Path) -> None:
    """An error of the disk did that, and the pages of the last commits were lost: advice works."""
    with small_disk(tmp_path / "disk", 24) as disk:
        path = disk / "store"

        def write_and_die() -> None:
            store = streamkeep.open(path)
            store.xadd("s", {"n": 0})
            checkpoint_now(store)
            shutil.copyfile(path / "data.mdb", tmp_path / "old.mdb")
            for number in range(1, 9):
                store.xadd("s", {"n": number})
            os.kill(os.getpid(), signal.SIGKILL)

        assert not in_child(write_and_die)
        shutil.copyfile(tmp_path / "old.mdb", path / "data.mdb")
        remount = ["mount", "-o", "remount,ro", str(disk)]
        subprocess.run(remount, check=True, capture_output=True)
        advice = "copy the folder to another file system and open the copy"
        with pytest.raises(streamkeep.StoreError, match=advice):
            streamkeep.open(path)
        with pytest.raises(streamkeep.RecoveryNeededError, match=f"8 commits.*{advice}"):
            streamkeep.open(path, readonly=True)
        shutil.copytree(path, tmp_path / "copy")
    with streamkeep.open(tmp_path / "copy") as store:
        assert store.xlen("s") == 9
    assert_sound(tmp_path / "copy")


# --- no room for a segment ----------------------------------------------------------------------


@contextmanager
def segments_failing(name: str, code: int, at: int) -> Iterator[list[int]]:
    """Have the call number `at` of a function of `files` fail that is about a segment."""
    calls = [0]
    real: Callable[..., Any] = getattr(files, name)

    def fail(where: int, *args: Any) -> Any:
        place = Path(os.readlink(f"/proc/self/fd/{where}"))
        if "archive" in place.parts and place.name != "archive":
            calls[0] += 1
            if calls[0] == at:
                raise OSError(code, os.strerror(code))
        return real(where, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, name, fail)
        yield calls


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", ["write_at", "sync_data", "sync_folder"])
def test_a_disk_that_fails_anywhere_in_a_segment_loses_nothing(
    tmp_path: Path, name: str, code: int
) -> None:
    expected = streamkeep.StoreFullError if code in FULL else streamkeep.StoreError
    with Store(tmp_path / "store", sync="none") as store:
        store.set_retention("s", archive=True)
        for number in range(120):
            store.xadd("s", {"n": number, "pad": os.urandom(400).hex()})
        store.xtrim("s", maxlen=10, approximate=False)
        before = state_of(store)
        failed = 0
        while True:
            with segments_failing(name, code, failed + 1):
                try:
                    store.archive(options=ArchiveOptions(block_bytes=6_000))
                    break
                except expected:
                    failed += 1
            assert state_of(store) == before
            assert store.archived_segments() == []
        assert failed >= (5 if name == "write_at" else 1)
        assert len(store.archived_segments()) == 1
        assert list(store.path.glob("archive/*/*")) == [
            store.segment_path(record) for record in store.archived_segments()
        ]
        assert state_of(store) == before
    assert_sound(tmp_path / "store")


@pytest.mark.parametrize("name", ["sync_folder", "open"])
def test_the_lock_of_an_archive_that_cannot_be_made_is_an_error_of_the_store(
    tmp_path: Path, name: str
) -> None:
    with streamkeep.open(tmp_path / "store") as store:
        with failing(name, errno.EIO), pytest.raises(streamkeep.StoreError, match="the system"):
            store.archive()
        store.archive()


# --- an error that only a killed process was told -----------------------------------------------


@contextmanager
def failing_disk(path: Path) -> Iterator[tuple[Path, Callable[[], Path]]]:
    """A disk in a file that has no room for it: its folder, and what makes it fail.

    That takes what room there is, in a file, and returns that. From then on the disk refuses to
    overwrite zeros with something else.
    """
    if reason := mounts.why_not("ext4"):
        pytest.skip(f"no ext4 can be mounted here: {reason}")
    with small_disk(path, 48) as room:
        image = room / "image"
        mounts.make_image(image, "ext4", 200 << 20)
        # No metadata of it may need room, or it refuses everything.
        mounts.run("mkfs.ext4", "-q", "-F", "-b", 4096, "-O", "^has_journal", image)
        with mounts.mounted(image, "ext4", path.parent / "mounted") as folder:

            def fail() -> Path:
                mounts.run("sync", "-f", folder)
                mounts.run("fallocate", "--dig-holes", image)
                with open(room / "ballast", "wb", buffering=0) as out, suppress(OSError):
                    while True:
                        out.write(bytes(1 << 20))
                return room / "ballast"

            yield folder, fail


def test_pages_that_the_disk_refused_are_found_although_syncs_succeed(tmp_path: Path) -> None:
    """Linux tells an error once for each time that a file is open."""
    with failing_disk(tmp_path / "room") as (path, fail):
        folder = Folder(path, outside=True)
        with open(path / "file", "w+b", buffering=0) as told:
            told.write(bytes(8 << 20))
            ballast = fail()
            told.seek(1 << 20)
            told.write(os.urandom(4 << 20))
            with pytest.raises(OSError, match=r"No space left|Input/output error"):
                os.fdatasync(told.fileno())
            with open(path / "file", "r+b", buffering=0) as other:
                os.fdatasync(other.fileno())
                for first in 0, 1 << 20:
                    with pytest.raises(OSError, match="file: the disk has refused a page before"):
                        folder.check_on_disk("file", other.fileno(), first)
                folder.check_on_disk("file", other.fileno(), 5 << 20)
                ballast.unlink()
                kept = other.read()
                other.seek(0)
                other.write(kept)
                os.fdatasync(other.fileno())
                folder.check_on_disk("file", other.fileno())
        folder.close()


def test_a_file_that_grows_meanwhile_is_not_taken_for_refused(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+b", buffering=0) as file:
        file.write(bytes(1 << 20))
        ended = threading.Event()

        def write() -> None:
            for offset in range(0, 1 << 20, 200):
                os.pwrite(file.fileno(), b"x" * 200, offset)
            ended.set()

        writer = thread_of(write)
        folder = Folder(tmp_path, outside=True)
        while not ended.is_set():
            folder.check_on_disk("file", file.fileno())
        writer.join()
        folder.check_on_disk("file", file.fileno())
        folder.check_on_disk("nothing", file.fileno())
        (tmp_path / "begun again").write_bytes(bytes(1 << 20))
        (tmp_path / "begun again").replace(tmp_path / "file")
        folder.check_on_disk("file", file.fileno())


def test_only_pages_that_differ_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write all the time: to read each page of a piece again would take 0.2 s."""
    read: list[tuple[int, int]] = []
    direct = os.preadv

    def preadv(handle: int, buffers: list[mmap.mmap], offset: int) -> int:
        got = direct(handle, buffers, offset)
        if not read:
            buffers[0][5 * 4096] ^= 1  # as if another process had written since
        read.append((offset, len(buffers[0])))
        return got

    (tmp_path / "file").write_bytes(bytes(1 << 20))
    folder = Folder(tmp_path, outside=True)
    monkeypatch.setattr(os, "preadv", preadv)
    with open(tmp_path / "file", "rb", buffering=0) as file:
        folder.check_on_disk("file", file.fileno())
    assert read == [(0, 1 << 20), (5 * 4096, 4096)]


def killed_in_sync(path: Path, failpoint: str, sync: Callable[[Store[bytes]], object]) -> None:
    """Have a process append an entry and be killed in the middle of a sync."""

    def work() -> None:
        store = Store(path, sync="none")
        store.xadd("s", {"n": "second"})
        failpoints.arm(failpoint, die)
        sync(store)

    assert status_of(child_of(work)) == -signal.SIGKILL


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("what", ["journal", "checkpoint"])
def test_who_joins_after_a_kill_in_the_middle_of_a_sync_looks_at_the_disk(
    path: Path, what: str, refused: bool
) -> None:
    """Only there, until nothing is left that it had begun; who had the file open is told."""
    stays = Store(path, sync="commit")
    stays.xadd("s", {"n": "first"})

    sync = Store.sync if what == "journal" else checkpoint_now
    file = "000000000001.skj" if what == "journal" else "data.mdb"

    def join() -> None:
        looked: list[str] = []

        def look(
            folder: Folder, name: str, handle: int, first: int = 0, end: int | None = None
        ) -> None:
            looked.append(name)
            # Only what was not on disk before: all of a file takes 50 ms.
            assert what != "journal" or 0 < first < (end or 0) < first + 500
            if refused:
                raise OSError(errno.EIO, "refused")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Folder, "check_on_disk", look)
            store = Store(path, sync="none")
            if refused:
                with pytest.raises(streamkeep.RecoveryNeededError):
                    store.xadd("s", {"n": "third"})  # may make a checkpoint
                    sync(store)
            else:
                for name in ("third", "fourth", "fifth"):
                    store.xadd("s", {"n": name})
                    sync(store)
            assert looked == [file] * (2 if what == "journal" and not refused else 1)

    killed_in_sync(path, "journal:sync" if what == "journal" else "checkpoint:synced", sync)
    assert status_of(child_of(join)) == 0
    if refused:
        with pytest.raises(streamkeep.RecoveryNeededError):
            stays.xadd("s", {"n": "last"})
        with pytest.raises(streamkeep.RecoveryNeededError):
            stays.close()
    else:
        stays.xadd("s", {"n": "last"})
        stays.close()
    with Store(path) as store:
        assert store.xlen("s") >= 2 if refused else store.xlen("s") == 6
    assert_sound(path)


def test_an_interrupted_look_at_the_disk_is_made_again(path: Path) -> None:
    looked: list[str] = []

    def look(folder: Folder, name: str, handle: int, first: int, end: int | None) -> None:
        looked.append(name)
        if len(looked) == 1:
            raise KeyboardInterrupt

    with Store(path, sync="none") as store:
        store.xadd("s", {"n": "first"})
        killed_in_sync(path, "journal:sync", Store.sync)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Folder, "check_on_disk", look)
            with pytest.raises(KeyboardInterrupt):
                store.sync()
            store.sync()
            store.sync()
        assert looked == ["000000000001.skj"] * 2


def test_a_record_that_was_begun_before_a_file_was_opened_is_looked_at_when_it_counts(
    path: Path,
) -> None:
    def work() -> None:
        store = Store(path, sync="none")
        store.xadd("s", {"n": "first"})
        failpoints.arm("commit:journaled", stop)
        store.xadd("s", {"n": "begun"})

    looked: list[tuple[int, int | None]] = []

    def look(folder: Folder, name: str, handle: int, first: int, end: int | None) -> None:
        looked.append((first, end))

    Store(path).close()
    child = stopped_child(work)
    with pytest.MonkeyPatch.context() as patch, Store(path, sync="none") as store:
        patch.setattr(Folder, "check_on_disk", look)
        store.sync()
        go_on(child)
        store.sync()
        for _ in range(2):
            store.xadd("s", {"n": "later"})
            store.sync()
    (_, begun), (first, end) = looked
    assert first == begun
    assert end is not None
    assert end > first


@pytest.mark.parametrize("alone", [False, True])
def test_a_slot_of_a_checkpoint_whose_sync_was_cut_off_is_written_again(
    path: Path, alone: bool
) -> None:
    """Before anything overwrites a page of the checkpoint before."""
    stays = Store(path, sync="none")
    stays.xadd("s", {"n": "first"})
    if alone:
        stays.close()

    def join() -> None:
        written: list[int] = []
        rewrite = CheckpointFile.rewrite

        def noted(file: CheckpointFile) -> None:
            written.append(1)
            rewrite(file)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CheckpointFile, "rewrite", noted)
            store = Store(path, sync="none")
            assert bool(written) == alone
            store.xadd("s", {"n": "third"})
            assert written
            checkpoint_now(store)
            store.close()

    killed_in_sync(path, "checkpoint:slot-written", checkpoint_now)
    assert status_of(child_of(join)) == 0
    if not alone:
        stays.close()
    with Store(path) as store:
        assert store.xlen("s") == 3
    assert_sound(path)
