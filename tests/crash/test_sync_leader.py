"""One caller syncs at a time, for all callers that wait, whichever process is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from patience import PATIENCE_S, locks_awaited, wait_until
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.syncs import SyncLeader
from streamkeep.engine.system.safe_files import Folder


class Process:
    """What another process has: a control file and a lock of its own."""

    def __init__(self, folder: Path) -> None:
        self.control = ControlFile(Folder(folder))
        self.sync_leader = SyncLeader(Folder(folder), self.control)

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
        before = locks_awaited(folder)
        self.thread.start()
        wait_until(lambda: locks_awaited(folder) > before or not self.thread.is_alive())

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


@pytest.mark.parametrize("leads", [False, True], ids=["waiting", "syncing"])
def test_a_process_that_is_killed_leaves_the_lead_to_the_next(
    tmp_path: Path, process: Process, leads: bool
) -> None:
    if not leads:
        assert process.sync_leader.lead(5)
    before = locks_awaited(tmp_path)
    ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Process(tmp_path).sync_leader.lead(6)
            os.write(ready[1], b"r")
            signal.pause()
        finally:
            os._exit(1)
    if leads:
        os.read(ready[0], 1)
    else:
        wait_until(lambda: locks_awaited(tmp_path) > before)
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
