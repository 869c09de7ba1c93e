"""The state of the journal that processes share stays whole, whichever of them is stopped."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamkeep.engine.journal.control_file import CONTROL_FILE, ControlFile, LogPosition
from streamkeep.engine.system.safe_files import Folder


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlFile]:
    """A new head."""
    one = ControlFile(Folder(tmp_path))
    yield one
    one.close()


def place(commit_number: int) -> LogPosition:
    return LogPosition(3, 100 * commit_number, 77 + commit_number, commit_number)


def newest(commit_number: int) -> tuple[int, int]:
    return place(commit_number).file_number, commit_number


def test_a_new_head_knows_nothing(control: ControlFile) -> None:
    assert control.position_after(0) is None
    assert control.to_sync(5) is None
    assert control.durable() == control.durable_file() == 0
    assert not control.poisoned()


def test_the_newest_place_stays_while_the_next_commit_is_made(control: ControlFile) -> None:
    for number in range(1, 9):
        control.publish(*place(number))  # from here on the commit may fail, or its author be killed
        assert control.position_after(number - 1) == (place(number - 1) if number > 1 else None)
        assert control.position_after(number) == place(number)
        assert control.position_after(number + 1) is None


def test_a_sync_covers_no_commit_that_is_still_being_made(control: ControlFile) -> None:
    control.set_position(place(4))
    assert control.to_sync(4) == newest(4)
    control.publish(*place(5))
    assert control.to_sync(4) == newest(4)
    assert control.to_sync(5) == newest(5)  # the process that asks knows that it was made
    control.set_made(5)
    assert control.to_sync(4) == newest(5)
    control.set_made(4)  # a process that was stopped in between says so late
    assert control.to_sync(5) == newest(5)
    control.publish(*place(6))
    assert control.to_sync(5) == newest(5)


@pytest.mark.parametrize("torn", range(0, 40, 8))
def test_a_place_that_was_half_written_is_that_of_the_next_commit(
    control: ControlFile, tmp_path: Path, torn: int
) -> None:
    for number in (6, 7):
        control.set_position(place(number))
    with (tmp_path / CONTROL_FILE).open("r+b") as file:
        file.seek(torn)
        file.write(b"\xff" * 3)
    assert control.position_after(6) is None
    assert control.position_after(8) is None
    assert control.position_after(7) == place(7)
    assert control.to_sync(7) == newest(7)
    control.publish(*place(8))
    assert control.position_after(8) == place(8)


class Meanwhile(mmap.mmap):
    """The mapped file, to which something happens before a reader looks for the nth time."""

    happens: Callable[[], None]
    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks -= 1
        if self.looks == 0:
            self.happens()
        return super().__getitem__(at)


@pytest.mark.parametrize("looks", [1, 2])
def test_a_sync_never_takes_the_place_of_a_commit_that_failed(
    tmp_path: Path, control: ControlFile, looks: int
) -> None:
    """It may be in a file that is no more; syncs would then begin there, and leave one out."""
    other = ControlFile(Folder(tmp_path))
    for number in (5, 6):
        control.set_position(place(number))
        control.set_made(number)
    control.publish(4, 64, 1, 7)  # in the next file; its author was killed

    def happens() -> None:
        for number in (7, 8):
            control.publish(*place(number))
            control.set_made(number)

    mapped = Meanwhile(other.handle, 0)
    mapped.happens, mapped.looks = happens, looks
    unused, other._map = other._map, mapped
    for least in (6, 7):
        found = other.to_sync(least)
        assert found is not None
        number, commit = found
        assert commit >= least
        assert number == place(commit).file_number
    other.close()
    unused.close()


def test_a_failed_sync_is_seen_through_every_opening(control: ControlFile, tmp_path: Path) -> None:
    other = ControlFile(Folder(tmp_path))
    control.poison()
    assert other.poisoned()
    other.close()
