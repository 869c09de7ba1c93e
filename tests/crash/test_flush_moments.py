"""Commits and flushes at bad moments: interrupts and kills in the middle, and what others see."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkeep
from crash.losses import in_child
from inside import flush_each_commit, journal_of
from patience import wait_until
from stopped import child_of, die_at
from streamkeep import recovery
from streamkeep.engine.system import failpoints
from tiers import pairs_of, slow_but

pytestmark = pytest.mark.crash

COUNT = 50


def openings(store: streamkeep.Store[bytes]) -> int:
    """Return how often the processes that have a store open have opened it."""
    return journal_of(store).control.openings()


def killed(path: Path, told: Path, work: Callable[[streamkeep.Store[bytes]], int]) -> int:
    """Run `work` on the store in a child that is then killed; return how many it acknowledged."""

    def run() -> None:
        store = streamkeep.open(path)
        told.write_text(str(work(store)))
        os.kill(os.getpid(), signal.SIGKILL)

    assert not in_child(run)
    return int(told.read_text())


def leave_killed(path: Path) -> None:
    """Add entries in a process that is then killed."""

    def append() -> None:
        store = streamkeep.open(path, sync="none")
        for number in range(COUNT):
            store.xadd("s", {"n": number})
        os.kill(os.getpid(), signal.SIGKILL)

    assert not in_child(append)


def entries_after_recovery(path: Path) -> int:
    """Open the store again; return the number of entries in all streams."""
    with streamkeep.open(path) as store:
        assert store.durability().last_recovery is not None
        return sum(store.xlen(name) for name in store.scan_iter())


def numbers(store: streamkeep.Store[bytes]) -> list[int]:
    """Return what the entries of `s` count."""
    return [int(entry.fields[b"n"]) for entry in store.xrange("s")]


def fail() -> None:
    """Fail halfway."""
    raise RuntimeError("halfway")


# --- commits that fail ----------------------------------------------------------------------------


def test_no_process_writes_before_the_record_of_a_commit_that_failed_is_cut(
    tmp_path: Path,
) -> None:
    """It would write its record at the same place, and lose it."""
    path = tmp_path / "store"
    streamkeep.open(path).close()
    go, done = os.pipe(), os.pipe()

    def let_other_write() -> None:
        os.write(go[1], b"y")
        time.sleep(0.1)  # for a process that would not wait for the lock

    def other() -> None:
        store = streamkeep.open(path)
        os.read(go[0], 1)
        for number in range(5):
            store.xadd("other", {"n": number})
        os.write(done[1], b"y")
        os.kill(os.getpid(), signal.SIGKILL)

    def fails(store: streamkeep.Store[bytes]) -> int:
        quick = store.using("none")
        for number in range(20):
            quick.xadd("s", {"n": number})
        failpoints.arm("commit:journaled", fail)
        failpoints.arm("commit:failed", let_other_write)
        with pytest.raises(RuntimeError, match="halfway"):
            quick.xadd("s", {"big": bytes(200_000)})
        os.read(done[0], 1)
        quick.xadd("s", {"n": 20})
        return 21 + 5

    child = child_of(other)
    acknowledged = killed(path, tmp_path / "told", fails)
    os.waitpid(child, 0)
    assert entries_after_recovery(path) == acknowledged


# --- interrupts -----------------------------------------------------------------------------------


class Interrupted:
    """A program that gets interrupts at a failpoint, and is then killed."""

    def __init__(self, path: Path) -> None:
        self.store = streamkeep.open(path, sync="none")
        flush_each_commit(self.store)
        self.acknowledged: list[int] = []
        self.tried = 0
        self.interrupts = 0

    def interrupt(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # so that it comes while the caller waits

    def add(self) -> None:
        """Add one entry, which is big now and then; note it if that was acknowledged."""
        self.tried += 1
        pad = bytes(200_000 if self.tried % 7 == 0 else 20)
        self.store.xadd("s", {"n": self.tried, "pad": pad})
        self.acknowledged.append(self.tried)

    def round(self, place: str) -> None:
        """Get one interrupt at a place."""
        for _ in range(5):
            self.add()
        failpoints.arm(place, self.interrupt)
        try:
            if place == "commit:failed":
                failpoints.arm("commit:journaled", fail)
            self.add()
        except KeyboardInterrupt:
            self.interrupts += 1
        finally:
            failpoints.disarm()


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.parametrize(
    ("place", "contended"),
    pairs_of(
        (
            "commit:journaled",
            "commit:failed",
            "commit:published",
            "commit:made",
            "flush:ending",
            "flush:ended",
        ),
        (False, True),
    ),
)
def test_an_interrupt_in_a_commit_or_a_flush_loses_and_doubles_nothing(
    tmp_path: Path, place: str, contended: bool
) -> None:
    """Also while another process has the lock, or waits for it."""
    path, told = tmp_path / "store", tmp_path / "told"

    def disturb() -> None:
        store = streamkeep.open(path, sync="none")
        while True:
            with store.transaction() as txn:
                txn.xadd("other", {"f": "v"})
                time.sleep(0.002)
            time.sleep(0.002)

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program = Interrupted(path)
        for _ in range(6):
            program.round(place)
        assert program.interrupts == 6
        for _ in range(100):
            program.add()
        told.write_text(" ".join(map(str, program.acknowledged)))
        os.kill(os.getpid(), signal.SIGKILL)

    streamkeep.open(path).close()
    other = child_of(disturb) if contended else 0
    try:
        assert not in_child(work)
        acknowledged = [int(one) for one in told.read_text().split()]
    finally:
        if contended:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
    with streamkeep.open(path) as store:
        found = numbers(store)
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found)
    assert list(recovery.check(path)) == []


# --- kills among processes that have the store open -----------------------------------------------


@pytest.mark.parametrize("place", ["flush:ending", "flush:ended"])
def test_a_process_killed_while_it_flushes_what_a_killed_one_left_loses_nothing(
    tmp_path: Path, place: str
) -> None:
    """All three have the store open, so that no opening recovers it."""
    path = tmp_path / "store"
    go = os.pipe()

    def flush() -> None:
        store = streamkeep.open(path, sync="none")
        flush_each_commit(store)
        os.read(go[0], 1)
        die_at(place, 1)
        store.xadd("s", {"n": "of the process that flushes before"})

    streamkeep.open(path).close()
    with streamkeep.open(path, sync="none") as store:  # which writes nothing before
        second = threading.Thread(target=lambda: in_child(flush))
        second.start()
        wait_until(lambda: openings(store) == 2)
        leave_killed(path)
        assert numbers(store) == list(range(COUNT))
        os.write(go[1], b"y")
        second.join()
        assert numbers(store) == list(range(COUNT))
        assert store.durability().last_recovery is None
        store.xadd("s", {"n": COUNT})
        assert numbers(store) == list(range(COUNT + 1))
    assert list(recovery.check(path)) == []


@pytest.mark.parametrize("place", ["commit:journaled", "commit:published"])
def test_a_process_killed_in_a_commit_leaves_it_made_or_not_for_all(
    tmp_path: Path, place: str
) -> None:
    """Also if the other processes begin no transaction of LMDB in between."""
    path = tmp_path / "store"

    def append() -> None:
        store = streamkeep.open(path, sync="none")
        for number in range(1, COUNT):
            store.xadd("s", {"n": number})
        die_at(place, 1)
        store.xadd("s", {"n": COUNT})

    with streamkeep.open(path, sync="none") as store:
        journal_of(store).first_size = 1 << 16
        store.xadd("s", {"n": 0})
        assert not in_child(append)
        made = place != "commit:journaled"
        assert numbers(store) == list(range(COUNT + made))
        store.xadd("s", {"n": "1000", "pad": bytes(1 << 16)})  # in the next file of the journal
        assert numbers(store) == [*range(COUNT + made), 1000]

        def follow() -> None:
            assert numbers(streamkeep.open(path, readonly=True)) == [*range(COUNT + made), 1000]

        assert in_child(follow)
    with streamkeep.open(path) as store:
        assert numbers(store) == [*range(COUNT + made), 1000]
    assert list(recovery.check(path)) == []


def test_the_last_process_covers_what_killed_ones_have_left(tmp_path: Path) -> None:
    """It has not written, and closes the store as if it had."""
    path = tmp_path / "store"

    streamkeep.open(path).close()
    with streamkeep.open(path):
        leave_killed(path)
    assert list(recovery.check(path)) == []
    with streamkeep.open(path) as store:
        assert numbers(store) == list(range(COUNT))
        assert store.durability().last_recovery is None


# --- kills during a recovery ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then"),
    slow_but(
        [
            ("recover:meta-restored", "recover:batch"),
            ("recover:batch", "recover:epoch-raised"),
            ("recover:epoch-raised", "recover:meta-written"),
            ("recover:replayed", "recover:point-safe"),
        ],
        ("recover:batch", "recover:epoch-raised"),
    ),
)
def test_two_kills_in_a_row_while_a_store_is_recovered_lose_nothing(
    tmp_path: Path, first: str, then: str
) -> None:
    path = tmp_path / "store"

    leave_killed(path)
    for place in (first, then):

        def recover(place: str = place) -> None:
            die_at(place, 1)
            streamkeep.open(path)

        assert not in_child(recover)
    with streamkeep.open(path) as store:
        assert store.durability().last_recovery is not None
        assert store.xlen("s") == COUNT
    assert list(recovery.check(path)) == []
