"""The state of the journal that processes share stays right, whichever of them is stopped."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamkeep
from crash.losses import in_child
from crash.power import another_boot, another_mount
from inside import checkpoint_now, journal_of
from patience import wait_until
from stopped import child_of, die_at, ended, status_of
from streamkeep.engine.journal.control_file import (
    CONTROL_FILE,
    ControlFile,
    ControlState,
    read_control_file,
)
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, file_name
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StoreLockedError
from streamkeep.format.journal.position import LogPosition
from tiers import daily_or_all


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlFile]:
    one = ControlFile(Folder(tmp_path))
    yield one
    one.close()


def test_the_place_that_is_on_disk_is_that_of_the_newest_sync(
    control: ControlFile, tmp_path: Path
) -> None:
    control.reset(LogPosition(3, 400, 81, 4), 4)
    assert control.durable_place() == (3, 400)
    control.set_durable(4, 100, 5)
    control.set_durable(3, 500, 4)  # an older sync, which ends later
    assert control.durable_place() == (4, 100)
    control.set_durable(1 << 30, 1 << 40, 6)  # an offset that does not fit is a lower one
    assert control.durable_place() == (1 << 30, (1 << 32) - 1)
    control.publish(9)
    state = read_control_file(Folder(tmp_path))
    assert state is not None
    assert (state.made, state.durable) == (9, 6)


def test_a_process_that_was_killed_does_not_slow_the_others_down_for_ever(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "store") as store:

        def work() -> None:
            streamkeep.open(tmp_path / "store")
            os.kill(os.getpid(), signal.SIGKILL)

        control = journal_of(store).control
        assert not in_child(work)
        assert control.is_shared()
        store.xadd("s", {"n": 1})  # wakes the checkpointer
        wait_until(lambda: not control.is_shared())


@pytest.mark.parametrize("step", ["look", "open"])
def test_a_process_that_is_stopped_with_the_file_keeps_no_other_from_opening(
    path: Path, step: str
) -> None:
    """Neither while it looks for others, as each does once in a second, nor while it opens it."""
    reader, writer = os.pipe()

    def work() -> None:
        with streamkeep.open(path) as own:
            control = journal_of(own).control
            os.write(writer, b".")
            while True:
                if step == "look":
                    control.look_for_others()
                else:
                    ControlFile(Folder(path / JOURNAL_FOLDER)).close()

    with streamkeep.open(path) as store:
        for _ in range(daily_or_all(10, 200)):
            child = child_of(work)
            with ended(child):
                os.read(reader, 1)
                os.kill(child, signal.SIGSTOP)
                assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
                store.xadd("s", {"n": 1})
                assert _opened_twice(path) == b"11"


def test_two_processes_that_open_at_once_both_see_each_other(path: Path) -> None:
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 1})
        control = journal_of(store).control
        for _ in range(daily_or_all(20, 500)):
            assert _opened_twice(path) == b"11"
            control.look_for_others()
            assert not control.is_shared()


def _opened_twice(path: Path) -> bytes:
    """Return what two processes that open a store say: 1 if they see that it is shared."""
    reader, writer = os.pipe()
    opened, opens = os.pipe()

    def work() -> None:
        os.close(writer)
        with streamkeep.open(path) as own:
            control = journal_of(own).control
            control.look_for_others()
            os.write(opens, b"1" if control.is_shared() else b"0")
            os.read(reader, 1)  # until the parent closes its end

    children = [child_of(work) for _ in range(2)]
    seen = os.read(opened, 1) + os.read(opened, 1)
    for handle in (reader, writer, opened, opens):
        os.close(handle)
    assert [status_of(child) for child in children] == [0, 0]
    return seen


def test_a_store_that_a_reader_opens_first_notes_the_mount(path: Path) -> None:
    """Else a loss of commits after a kill would look like one with the mount: no error."""
    with another_mount(), streamkeep.open(path) as store:
        store.xadd("s", {"n": 1})

    def state() -> ControlState:
        found = read_control_file(Folder(path / "journal"))
        assert found is not None
        return found

    def write() -> None:
        with streamkeep.open(path) as store:
            store.xadd("s", {"n": 2})

    with streamkeep.open(path, readonly=True) as reader:
        assert state().same_mount
        with another_mount():  # as from a container that sees the same files
            assert in_child(write)
        assert state().same_mount
        assert reader.xlen("s") == 2


def test_a_store_in_use_is_refused_to_a_process_of_another_boot(path: Path) -> None:
    with streamkeep.open(path) as store:
        store.xadd("s", {"f": "v"})

        def work() -> None:
            with another_boot(), pytest.raises(StoreLockedError, match="another machine"):
                streamkeep.open(path)

        assert in_child(work)
        store.xadd("s", {"f": "v"})
    with another_boot(), streamkeep.open(path) as store:
        assert store.xlen("s") == 2


def test_a_store_whose_processes_were_killed_one_by_one_opens_for_reading(path: Path) -> None:
    """Each is killed when its commit is published, and no process has applied it."""

    def append_and_die() -> None:
        store = streamkeep.open(path, sync="none")
        die_at("commit:published", 1)
        store.xadd("s", {"f": "v"})

    def work() -> None:
        store = streamkeep.open(path, sync="none")
        store.xadd("s", {"f": "v"})
        for _ in range(3):
            assert status_of(child_of(append_and_die)) == -signal.SIGKILL
        os.kill(os.getpid(), signal.SIGKILL)

    assert not in_child(work)
    with streamkeep.open(path, readonly=True) as store:
        assert store.xlen("s") == 4


def test_a_first_file_that_a_killed_process_has_begun_is_begun_again(path: Path) -> None:
    """A lower number would be below the files that syncs begin with."""

    def work() -> None:
        store = streamkeep.open(path)
        checkpoint_now(store)  # which removes such files
        (path / JOURNAL_FOLDER / file_name(9)).write_bytes(b"of another store")
        die_at("commit:journaled", 1)
        store.xadd("s", {"f": "v"})

    with streamkeep.open(path) as store:
        checkpoint_now(store)
        assert not in_child(work)
        store.xadd("s", {"f": "v"})
        journal = journal_of(store)
        assert journal.log.number == journal.control.durable_place()[0] == 10
        assert store.xlen("s") == 1


def test_a_copy_gets_a_head_whose_blocks_stay_in_place(tmp_path: Path) -> None:
    """A copied one may have blocks that move, as on btrfs, and then fails on a full disk."""
    with streamkeep.open(tmp_path / "store") as store:
        store.xadd("s", {"a": "1"})
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    head = tmp_path / "copy" / "journal" / "head"
    with head.open("rb") as copied, streamkeep.open(tmp_path / "copy") as copy:
        copy.xadd("s", {"a": "1"})
        assert head.stat().st_ino != os.fstat(copied.fileno()).st_ino


def test_a_head_with_numbers_that_none_has_is_as_good_as_none(path: Path, tmp_path: Path) -> None:
    def work() -> None:
        streamkeep.open(path).xadd("s", {"n": 1})
        os.kill(os.getpid(), signal.SIGKILL)

    assert not in_child(work)
    for name in ("newest", "durable", "both"):
        copy = shutil.copytree(path, tmp_path / name, ignore=shutil.ignore_patterns("waiters"))
        head = bytearray((copy / "journal" / "head").read_bytes())
        head[40:48] = b"\1" * 8  # a failed sync
        for word, number in ((1, "newest"), (3, "durable")):
            if name in (number, "both"):
                head[8 * word : 8 * word + 8] = b"\xff" * 8
        (copy / "journal" / "head").write_bytes(head)
        with streamkeep.open(copy) as store:
            assert store.xlen("s") == 1


def test_an_interrupt_leaves_the_lock_of_lmdb_to_others(
    control: ControlFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def lock_and_interrupt(handle: int, how: int) -> None:
        flock(handle, how)
        if how & fcntl.LOCK_EX:
            raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", lock_and_interrupt)
    with pytest.raises(KeyboardInterrupt), control.lmdb_lock():
        pass
    with (tmp_path / CONTROL_FILE).open() as file:
        flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
