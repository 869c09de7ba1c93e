"""Syncs come in waves: one at a time, shared by all callers that wait, whichever is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamkeep
from inside import journal_of
from patience import PATIENCE_S, locks_awaited, wait_until
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.sync_leader import LONE, SyncLeader
from streamkeep.engine.system.safe_files import Folder


class Process:
    """What another process has: a head and turns of its own."""

    def __init__(self, folder: Path) -> None:
        self.control = ControlFile(Folder(folder))
        self.sync_leader = SyncLeader(Folder(folder), self.control)

    def close(self) -> None:
        self.sync_leader.close()
        self.control.close()

    def sync(self, commit_number: int) -> None:
        """Lead a wave that makes everything up to a commit durable."""
        wave = self.sync_leader.lead(commit_number)
        assert wave
        self.control.set_durable(1, commit_number)
        self.sync_leader.end(wave)


class Waiting:
    """A process that waits for its turn, and what came of it."""

    def __init__(self, folder: Path, commit_number: int) -> None:
        self.process = Process(folder)
        self.waves: list[int] = []
        self.thread = threading.Thread(target=self._take, args=(commit_number,))
        before = locks_awaited(folder)
        self.thread.start()
        wait_until(lambda: locks_awaited(folder) > before or not self.thread.is_alive())

    def _take(self, commit_number: int) -> None:
        self.waves.append(self.process.sync_leader.lead(commit_number))

    def outcome(self) -> int:
        """Return the wave that it leads; 0 when it was served."""
        self.thread.join(PATIENCE_S)
        assert len(self.waves) == 1
        return self.waves[0]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """A process that uses a new journal, which another has open, too."""
    one, other = Process(tmp_path), Process(tmp_path)
    yield one
    one.close()
    other.close()


def test_who_has_the_store_alone_takes_no_turns(tmp_path: Path) -> None:
    one = Process(tmp_path)
    assert one.sync_leader.lead(1) == LONE
    other = Process(tmp_path)
    assert other.sync_leader.lead(1) == 1  # no other process waits for one that is alone
    one.control.set_durable(1, 1)
    one.sync_leader.end(LONE)
    late = Waiting(tmp_path, 2)
    assert not late.waves
    other.control.set_durable(1, 2)
    other.sync_leader.end(1)
    assert late.outcome() == 0
    late.process.close()
    other.close()
    assert one.sync_leader.lead(2) == 0
    assert one.sync_leader.lead(3) == LONE
    one.close()


def test_a_process_that_was_killed_counts_on(tmp_path: Path) -> None:
    one = Process(tmp_path)
    child = os.fork()
    if child == 0:
        Process(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert one.sync_leader.lead(1) == 1
    one.sync_leader.end(1)
    one.close()


def test_who_needs_no_sync_gets_no_turn(process: Process) -> None:
    process.sync(7)
    assert process.sync_leader.lead(7) == 0
    assert process.sync_leader.lead(8) == 2
    process.sync_leader.end(2)


def test_the_next_wave_begins_when_the_running_one_is_over(
    tmp_path: Path, process: Process
) -> None:
    wave = process.sync_leader.lead(5)
    leader = Waiting(tmp_path, 6)
    served = Waiting(tmp_path, 6)
    assert not leader.waves
    assert not served.waves
    process.control.set_durable(1, 5)
    process.sync_leader.end(wave)
    assert leader.outcome() == wave + 1
    wait_until(lambda: locks_awaited(tmp_path) == 1)  # `served` waits for the wave of `leader`
    assert not served.waves
    leader.process.control.set_durable(1, 6)
    leader.process.sync_leader.end(wave + 1)
    assert served.outcome() == 0
    leader.process.close()
    served.process.close()


def test_who_came_too_late_for_a_wave_leads_the_next(tmp_path: Path, process: Process) -> None:
    wave = process.sync_leader.lead(5)
    leader = Waiting(tmp_path, 6)
    late = Waiting(tmp_path, 7)
    process.control.set_durable(1, 5)
    process.sync_leader.end(wave)
    assert leader.outcome() == wave + 1
    leader.process.control.set_durable(1, 6)
    leader.process.sync_leader.end(wave + 1)
    assert late.outcome() == wave + 2
    late.process.sync_leader.end(wave + 2)
    leader.process.close()
    late.process.close()


def test_a_leader_that_a_sync_has_served_does_not_begin(tmp_path: Path, process: Process) -> None:
    wave = process.sync_leader.lead(5)
    leader = Waiting(tmp_path, 6)
    process.control.set_durable(1, 6)
    process.sync_leader.end(wave)
    assert leader.outcome() == 0
    assert process.sync_leader.lead(7) == wave + 1
    process.sync_leader.end(wave + 1)
    leader.process.close()


@pytest.mark.parametrize("begins", [False, True], ids=["waiting", "syncing"])
def test_a_leader_that_is_killed_leaves_its_turn_to_the_next(
    tmp_path: Path, process: Process, begins: bool
) -> None:
    wave = 0 if begins else process.sync_leader.lead(5)
    ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            other = Process(tmp_path)
            if not begins:
                os.write(ready[1], b"r")
            other.sync_leader.lead(6)
            os.write(ready[1], b"r")
            signal.pause()
        finally:
            os._exit(1)
    os.read(ready[0], 1)
    follower = Waiting(tmp_path, 6)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not begins:
        follower.thread.join(0.1)
        assert not follower.waves
        process.sync_leader.end(wave)
    assert follower.outcome() == 2
    follower.process.sync_leader.end(2)
    follower.process.close()
    for number in ready:
        os.close(number)


def test_a_forked_child_does_not_keep_the_turn_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    streamkeep.open(path).close()
    ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = streamkeep.open(path)
            journal = journal_of(store)
            journal.sync_leader.lead()
            grandchild = os.fork()
            if grandchild:
                os.write(ready[1], str(grandchild).encode())
            signal.pause()
        finally:
            os._exit(1)
    grandchild = int(os.read(ready[0], 20))
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with streamkeep.open(path, sync="commit") as store:
            store.xadd("s", {"f": "v"})
            assert store.durability().durable_commit == store.durability().last_commit
    finally:
        os.kill(grandchild, signal.SIGKILL)
        for number in ready:
            os.close(number)


def test_many_processes_are_all_served(tmp_path: Path, process: Process) -> None:
    """Each makes commits and has them synced, as fast as it can."""
    children = []
    for first in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                other = Process(tmp_path)
                for commit_number in range(first + 1, 2000, 4):
                    wave = other.sync_leader.lead(commit_number)
                    if wave:
                        before = other.control.durable()
                        other.control.set_durable(1, max(before, commit_number))
                        assert other.control.begun() == wave
                        assert other.control.durable() == max(before, commit_number)
                        other.sync_leader.end(wave)
                    assert other.control.durable() >= commit_number
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert process.control.durable() == 1999
    assert process.control.ended() == process.control.begun()
