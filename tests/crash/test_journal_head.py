"""What processes share about the journal is whole and in order, whoever is stopped."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamkeep.engine.journal.control_file import HEAD_FILE, JournalHead, Place
from streamkeep.engine.system.safe_files import Folder


@pytest.fixture
def head(tmp_path: Path) -> Iterator[JournalHead]:
    """A new head."""
    one = JournalHead(Folder(tmp_path))
    yield one
    one.close()


def place(commit_number: int) -> Place:
    return Place(3, 100 * commit_number, 77 + commit_number, commit_number)


def newest(commit_number: int) -> tuple[int, int]:
    return place(commit_number).file_number, commit_number


def test_a_new_head_knows_nothing(head: JournalHead) -> None:
    assert head.place_behind(0) is None
    assert head.to_sync(5) is None
    assert head.durable() == head.durable_file() == 0
    assert not head.poisoned()


def test_the_newest_place_stays_while_the_next_commit_is_made(head: JournalHead) -> None:
    for number in range(1, 9):
        head.publish(*place(number))  # from here on the commit may fail, or its author be killed
        assert head.place_behind(number - 1) == (place(number - 1) if number > 1 else None)
        assert head.place_behind(number) == place(number)
        assert head.place_behind(number + 1) is None


def test_a_sync_covers_no_commit_that_is_still_being_made(head: JournalHead) -> None:
    head.set_place(place(4))
    assert head.to_sync(4) == newest(4)
    head.publish(*place(5))
    assert head.to_sync(4) == newest(4)
    assert head.to_sync(5) == newest(5)  # whoever asks knows that it was made
    head.set_made(5)
    assert head.to_sync(4) == newest(5)
    head.set_made(4)  # a process that was stopped in between says so late
    assert head.to_sync(5) == newest(5)
    head.publish(*place(6))
    assert head.to_sync(5) == newest(5)


@pytest.mark.parametrize("torn", range(0, 40, 8))
def test_a_place_that_was_half_written_is_that_of_the_next_commit(
    head: JournalHead, tmp_path: Path, torn: int
) -> None:
    for number in (6, 7):
        head.set_place(place(number))
    with (tmp_path / HEAD_FILE).open("r+b") as file:
        file.seek(torn)
        file.write(b"\xff" * 3)
    assert head.place_behind(6) is None
    assert head.place_behind(8) is None
    assert head.place_behind(7) == place(7)
    assert head.to_sync(7) == newest(7)
    head.publish(*place(8))
    assert head.place_behind(8) == place(8)


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
    tmp_path: Path, head: JournalHead, looks: int
) -> None:
    """It may be in a file that is no more; syncs would then begin there, and leave one out."""
    other = JournalHead(Folder(tmp_path))
    for number in (5, 6):
        head.set_place(place(number))
        head.set_made(number)
    head.publish(4, 64, 1, 7)  # in the next file; its author was killed

    def happens() -> None:
        for number in (7, 8):
            head.publish(*place(number))
            head.set_made(number)

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


def test_a_failed_sync_is_seen_through_every_opening(head: JournalHead, tmp_path: Path) -> None:
    other = JournalHead(Folder(tmp_path))
    head.poison()
    assert other.poisoned()
    other.close()
