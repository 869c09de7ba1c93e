"""After a power loss at any moment a store opens whole, or its creation begins again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

import streamkeep
from crash.losses import killed_after, small_journal, state_of, watching
from crash.power import another_boot, copy_store, watched
from inside import environment_of, flush_each_commit, journal_of
from stopped import child_of, status_of
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.store.registry import registry
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import RecoveryNeededError
from tiers import slow_but


def test_a_power_loss_after_processes_died_finds_every_unsynced_journal_file(
    tmp_path: Path,
) -> None:
    """Several files after the checkpoint, whose writer is dead: the next sync covers all."""
    path, lost = tmp_path / "store", tmp_path / "lost"
    with small_journal(), watched(path) as disk:
        with streamkeep.open(path, sync="none") as store:
            for number in range(300):
                store.xadd("s", {"n": number, "pad": "x" * 300})
            die(store)
        with streamkeep.open(path, sync="commit") as store:
            store.xadd("s", {"n": "last"})
            disk.lose_power(lost, NothingKept(0))
            die(store)
    with another_boot(), streamkeep.open(lost) as store:
        assert store.xlen("s") == 301


def test_a_power_loss_finds_a_journal_file_that_was_begun_twice(tmp_path: Path) -> None:
    """The first commit of the file failed, while another thread synced the file."""
    path, lost = tmp_path / "store", tmp_path / "lost"
    made = 0
    with small_journal(), watched(path) as disk, streamkeep.open(path, sync="none") as store:
        flush_each_commit(store)
        journal = journal_of(store)
        begun = journal.control.begun()

        def fail_in_a_new_file(name: str) -> None:
            if name == "commit:journaled" and journal.control.begun() > begun:
                journal.syncs.wait_for(journal.log.commit_number)
                raise RuntimeError("halfway")

        with watching(fail_in_a_new_file), pytest.raises(RuntimeError, match="halfway"):
            while True:
                store.xadd("s", {"n": made, "pad": "x" * 300})
                made += 1
        store.using("commit").xadd("s", {"n": made})
        disk.lose_power(lost, NothingKept(0))
        die(store)
    with another_boot(), streamkeep.open(lost) as store:
        found = store.xrange("s")
        assert [int(entry.fields[b"n"]) for entry in found] == list(range(made + 1))
        assert b"pad" not in found[-1].fields  # the one that failed has not come back


@pytest.mark.parametrize("name", ["recover:meta-written", "recover:batch", "recover:epoch-raised"])
def test_who_waits_for_a_recovery_that_is_killed_begins_it_again(tmp_path: Path, name: str) -> None:
    """The lock is free then, and the store is not ready."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    with small_journal(), streamkeep.open(path, sync="none") as store:
        for number in range(100):
            store.xadd("s", {"n": number, "pad": "x" * 300})
        expected = state_of(store)
        copy_store(path, copy)
    for _ in range(3):
        with waiting_behind(copy, name) as opened, another_boot(9), opened() as store:
            assert state_of(store) == expected
            assert store.durability().last_recovery is not None
        shutil.rmtree(copy)
        with streamkeep.open(path) as store:
            store.xadd("s", {"n": 0})
            expected = state_of(store)
            copy_store(path, copy)
    assert [str(finding) for finding in recovery.check(path)] == []


@pytest.mark.parametrize("name", ["create:marked", "create:written", "create:named"])
def test_who_waits_for_a_creation_that_is_killed_begins_it_again(path: Path, name: str) -> None:
    with waiting_behind(path, name) as opened, another_boot(9), opened() as store:
        assert store.xadd("s", {"n": 0}, id="1-1") == b"1-1"


@contextmanager
def waiting_behind(path: Path, name: str) -> Iterator[Callable[[], Store[bytes]]]:
    """Have a process open a store in another boot, stop at a failpoint, and be killed later.

    It is killed while the store is being opened by the function that the block gets.
    """
    told = os.pipe()

    def stop() -> None:
        os.write(told[1], b"here")
        signal.pause()

    def use() -> None:
        failpoints.arm(name, stop)
        with another_boot(9):
            streamkeep.open(path).close()

    child = child_of(use)
    assert os.read(told[0], 9) == b"here"
    killer = threading.Timer(0.1, os.kill, (child, signal.SIGKILL))

    def opened() -> Store[bytes]:
        killer.start()
        return streamkeep.open(path)

    try:
        yield opened
    finally:
        killer.join()
        os.waitpid(child, 0)
        for end in told:
            os.close(end)


def test_the_shared_head_of_another_boot_counts_for_nothing(tmp_path: Path) -> None:
    """It may say that commits are on disk that were never made."""
    path, lost = tmp_path / "store", tmp_path / "lost"
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 0}, id="1-1")
    control = ControlFile(Folder(path / "journal"))
    control.set_durable(1, 0, 1 << 40)  # what is on disk, in a life before
    control.close()
    with (
        another_boot(7),
        a_reader(path),
        watched(path, safe=True) as disk,
        streamkeep.open(path) as store,
    ):
        store.xadd("s", {"n": 1}, id="2-2")
        disk.lose_power(lost, NothingKept(0))
    with another_boot(8), streamkeep.open(lost) as store:
        assert [entry.id for entry in store.xrange("s")] == [b"1-1", b"2-2"]


@contextmanager
def a_reader(path: Path) -> Iterator[None]:
    """Have a process that reads be the first to open the store."""
    mine, childs = os.pipe(), os.pipe()

    def read() -> None:
        os.close(mine[1])
        os.close(childs[0])
        with streamkeep.open(path, readonly=True):
            os.write(childs[1], b"open")
            os.read(mine[0], 1)

    child = child_of(read)
    os.close(childs[1])
    os.close(mine[0])
    assert os.read(childs[0], 9) == b"open"
    try:
        yield
    finally:
        os.close(childs[0])
        os.close(mine[1])
        assert status_of(child) == 0


class NothingKept(random.Random):
    """The disk has kept nothing that was not synced."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]


def die(store: Store[bytes]) -> None:
    """Release everything as a killed process does: no checkpoint, no sync."""
    one = environment_of(store)
    registry.environments.pop(one.identity, None)
    one.close_files()
    store._closed = True


PAGE = 4096


def images(data: bytes) -> Iterator[bytes]:
    """Yield what a power loss may leave of a data file that was never synced."""
    for size in sorted({0, 1, 100, PAGE - 1, PAGE + 152, *range(0, len(data) + 1, PAGE)}):
        if size <= len(data):
            yield data[:size]
            yield bytes(size)
            yield data[:size].ljust(len(data), b"\0")
    for at in range(0, len(data), PAGE):
        yield data[:at] + bytes(PAGE) + data[at + PAGE :]
        yield bytes(at) + data[at : at + PAGE] + bytes(len(data) - at - PAGE)


def unfinished(folder: Path) -> Iterator[Path]:
    """Yield what a process leaves that is killed at each step of a creation, up to its point."""
    for step in range(1, 99):
        path = folder / f"step-{step}"
        assert killed_after(step, lambda path=path: streamkeep.open(path).close())  # type: ignore[misc]
        lock = CheckpointFile(Folder(path), readonly=True)
        slot = lock.newest()
        lock.close()
        if slot is not None:
            return
        yield path


@pytest.mark.parametrize("boot", slow_but([another_boot, nullcontext], another_boot))
def test_a_creation_that_was_cut_off_begins_again(
    tmp_path: Path, boot: Callable[[], AbstractContextManager[None]]
) -> None:
    seen: set[tuple[bool, bytes]] = set()
    for path in unfinished(tmp_path):
        data = path / DATA_FILE
        there = data.read_bytes() if data.exists() else b""
        for image in images(there):
            for locked in (True, False):  # LMDB's lock file is never synced
                if (locked, image) in seen:
                    continue
                seen.add((locked, image))
                assert_begins_again(path, tmp_path / "copy", image, locked, boot)
    assert len(seen) > 30


def assert_begins_again(
    source: Path,
    path: Path,
    image: bytes,
    locked: bool,
    boot: Callable[[], AbstractContextManager[None]],
) -> None:
    shutil.copytree(source, path)
    (path / DATA_FILE).write_bytes(image)
    if not locked:
        (path / "lock.mdb").unlink(missing_ok=True)
    with boot():
        with pytest.raises(RecoveryNeededError, match="creation was cut off"):
            streamkeep.open(path, readonly=True)
        with streamkeep.open(path) as store:
            assert store.xadd("s", {"f": "v"}, id="1-1") == b"1-1"
        with streamkeep.open(path, readonly=True) as store:
            assert store.xlen("s") == 1
        assert [str(one) for one in recovery.check(path)] == []
    shutil.rmtree(path)
