"""What processes work on, in the files of their leases."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from streamkeep.engine.liveness import lease_file
from streamkeep.engine.liveness.marks import FREE, MOST, SIZE, mark_of, marks_in
from streamkeep.engine.system.safe_files import Folder

ONE, TWO, THREE = (mark_of(name) for name in (b"1", b"2", b"3"))


def dead_with(folder: Folder, *marks: bytes) -> int:
    """Make the file of a process that died while it worked on something; return its lease."""
    lease = lease_file.Lease(folder, lease_file.new_number())
    written = lease.marks()
    assert written
    for mark in marks:
        written.add(mark)
    written.close()
    os.close(lease._handle)
    lease._handle = -1
    return lease.number


def test_marks_are_in_the_file_until_the_work_has_ended(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    lease = lease_file.Lease(folder, lease_file.new_number())
    marks = lease.marks()
    assert marks
    path = tmp_path / lease_file.lease_name(lease.number)
    places = [marks.add(one) for one in (ONE, TWO, THREE)]
    assert path.read_bytes() == (ONE + TWO + THREE).ljust(MOST * SIZE, b"\0")
    marks.remove(places[0])
    marks.remove(places[1])
    assert [one for one in marks_in(path.read_bytes()) if one != FREE] == [THREE]
    place = marks.add(ONE)
    assert place in places[:2]
    marks.remove(place)
    marks.remove(places[2])
    assert not marks.are_there()
    lease.close()
    assert not path.exists()


def test_what_has_no_room_is_missed(tmp_path: Path) -> None:
    lease = lease_file.Lease(Folder(tmp_path), lease_file.new_number())
    marks = lease.marks()
    assert marks
    places = [marks.add(ONE) for _ in range(MOST + 1)]
    assert places[-2:] == [MOST - 1, -1]
    assert (tmp_path / lease_file.lease_name(lease.number)).stat().st_size == MOST * SIZE
    for place in places:
        marks.remove(place)
    lease.close()
    marks.add(TWO)  # of another thread, after the store was closed
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_while_it_works_leaves_its_marks(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    lease = lease_file.Lease(folder, lease_file.new_number())
    marks = lease.marks()
    assert marks
    marks.add(ONE)
    lease.close()
    assert lease_file.work_of(folder, lease.number) == [ONE]


def test_the_file_of_a_dead_process_goes_with_its_last_mark(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    number, idle = dead_with(folder, ONE, TWO, THREE), dead_with(folder)
    lease_file.remove_dead(folder, 0)
    assert [path.name for path in tmp_path.iterdir()] == [lease_file.lease_name(number)]
    assert idle != number
    lease_file.forget_work(folder, number, [TWO, mark_of(b"another")])
    assert lease_file.work_of(folder, number) == [ONE, THREE]
    lease_file.forget_work(folder, number, [ONE, THREE])
    assert (list(tmp_path.iterdir()), lease_file.work_of(folder, number)) == ([], [])
    lease_file.forget_work(folder, number, [ONE])  # another process was first


def test_marks_that_no_process_takes_over_go_after_thirty_days(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    number = dead_with(folder, ONE)
    os.utime(tmp_path / lease_file.lease_name(number), (0, 0))
    lease_file.remove_dead(folder, 0)
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_marks_a_lease_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lease_file.Lease(Folder(tmp_path), lease_file.new_number())
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(28, "No space left on device")))
    assert (lease.marks(), lease.marks()) == (None, None)
    lease.close()
    assert list(tmp_path.iterdir()) == []
