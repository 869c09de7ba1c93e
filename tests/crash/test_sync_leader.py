"""One caller syncs at a time, for all callers that wait, whichever process is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamkeep
from inside import journal_of
from patience import PATIENCE_S, wait_until
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.syncs import SyncLeader
from streamkeep.engine.system.safe_files import Folder


class Process:
    """What another process has: a control file and a lock of its own."""

    def __init__(self, folder: Path) -> None:
        self.control = ControlFile(Folder(folder))
        self.sync_leader = SyncLeader(Folder(folder), self.control)
        self.sync_leader.patience_s = PATIENCE_S

    def close(self) -> None:
        self.sync_leader.close()
        self.control.close()

    def end(self, commit_number: int) -> None:
        """End a sync that this process leads, with which everything up to a commit is durable."""
        self.control.set_durable(1, commit_number)
        self.sync_leader.end()


class Waiting:
    """A process that waits for a sync, and whether it led one then."""

    def __init__(self, folder: Path, commit_number: int) -> None:
        self.process = Process(folder)
        self.led: list[bool] = []
        self.thread = threading.Thread(target=self._lead, args=(commit_number,))
        self.thread.start()
        control = self.process.control
        wait_until(lambda: control._sleepers is not None or not self.thread.is_alive())

    def _lead(self, commit_number: int) -> None:
        self.led.append(self.process.sync_leader.lead(commit_number))

    def leads(self) -> bool:
        """Return whether it leads, when it knows."""
        self.thread.join(PATIENCE_S)
        assert len(self.led) == 1
        return self.led[0]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """A process that uses a new journal."""
    one = Process(tmp_path)
    yield one
    one.close()


def test_a_caller_whose_commit_is_on_disk_does_not_lead(process: Process) -> None:
    assert process.sync_leader.lead(7)
    process.end(7)
    assert not process.sync_leader.lead(7)
    assert process.sync_leader.lead(8)
    process.end(8)


def test_one_sync_serves_all_that_wait(tmp_path: Path, process: Process) -> None:
    assert process.sync_leader.lead(5)
    waiting = [Waiting(tmp_path, 6) for _ in range(3)]
    assert not any(one.led for one in waiting)
    process.end(6)
    for one in waiting:
        assert not one.leads()
        one.process.close()
    assert process.sync_leader.lead(7)  # none of them has kept the lock
    process.end(7)


def test_the_next_sync_begins_when_the_running_one_is_over(
    tmp_path: Path, process: Process
) -> None:
    """Of the callers that came too late for a sync, one leads the next for all."""
    assert process.sync_leader.lead(5)
    waiting = [Waiting(tmp_path, 6) for _ in range(3)]
    process.end(5)
    wait_until(lambda: any(one.led for one in waiting))
    (leader,) = (one for one in waiting if one.led)
    assert leader.leads()
    assert sum(one.thread.is_alive() for one in waiting) == 2
    leader.process.end(6)
    for one in waiting:
        assert one.leads() == (one is leader)
        one.process.close()


def test_a_caller_that_came_too_late_for_a_sync_leads_the_next(
    tmp_path: Path, process: Process
) -> None:
    assert process.sync_leader.lead(5)
    served, late = Waiting(tmp_path, 6), Waiting(tmp_path, 7)
    process.end(6)
    assert late.leads()
    late.process.end(7)
    assert not served.leads()
    served.process.close()
    late.process.close()


@pytest.mark.parametrize("leads", [False, True], ids=["waiting", "syncing"])
def test_a_process_that_is_killed_leaves_the_lead_to_the_next(
    tmp_path: Path, process: Process, leads: bool
) -> None:
    if not leads:
        assert process.sync_leader.lead(5)
    ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if leads:
                Process(tmp_path).sync_leader.lead(6)
                os.write(ready[1], b"r")
                signal.pause()
            waiting = Waiting(tmp_path, 6)
            os.write(ready[1], b"r")
            waiting.leads()
        finally:
            os._exit(1)
    os.read(ready[0], 1)
    follower = Waiting(tmp_path, 6)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not leads:
        assert not follower.led
        process.end(5)
    assert follower.leads()
    follower.process.end(6)
    follower.process.close()
    for number in ready:
        os.close(number)


def test_nobody_waits_for_long_for_a_leader_that_is_stopped(
    tmp_path: Path, process: Process
) -> None:
    """Nor a second time, until the leader has gone on."""
    other = Process(tmp_path)
    assert process.sync_leader.lead(5)
    other.sync_leader.patience_s = 0.01
    assert other.sync_leader.lead(6)
    other.end(6)
    assert not other.sync_leader.lead(6)
    other.sync_leader.patience_s = PATIENCE_S
    assert other.sync_leader.lead(7)
    other.end(7)
    assert not other.sync_leader.try_lead()
    process.end(5)
    assert process.control.durable() == 7
    assert other.sync_leader.lead(8)
    assert not process.sync_leader.try_lead()
    other.end(8)
    other.close()


def test_a_forked_child_does_not_keep_the_lead_of_a_parent_that_was_killed(path: Path) -> None:
    streamkeep.open(path).close()
    ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = streamkeep.open(path)
            journal = journal_of(store)
            journal.syncs.leader.lead()
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
                    if other.sync_leader.lead(commit_number):
                        before = other.control.durable()
                        assert before < commit_number
                        other.control.set_durable(1, commit_number)
                        assert other.control.durable() == commit_number  # none leads beside it
                        other.sync_leader.end()
                    assert other.control.durable() >= commit_number
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert process.control.durable() == 1999
