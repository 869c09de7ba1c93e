"""Interrupts, forks, clocks, readers that died, and process numbers that clash."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import random
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from crash.losses import in_child
from inside import checkpoint_now, environment_of, flush_each_commit, tickets_in, wait_table_of
from patience import PATIENCE_S
from stopped import child_of, ended, killed, status_of
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn import begin as transactions
from tiers import daily_or_all, pairs_of, slow_but

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

TRIALS = 400
DELAYS_S = (20e-6, 100e-6, 200e-6, 400e-6, 1e-3, 2e-3)


compiled = pytest.mark.skipif(
    isinstance(transactions.run_write, FunctionType),
    reason="between two steps of interpreted code an interrupt may take a lock away",
)


@compiled
@pytest.mark.parametrize("sync", ["commit", "none"])
@pytest.mark.parametrize("seed", slow_but(range(2), 0))
def test_an_interrupt_leaves_no_lock_and_no_half_transaction(
    path: Path, sync: Any, seed: int
) -> None:
    """Ctrl-C at random moments, in a child with a timer of its own, beside a thread that writes."""
    assert in_child(lambda: interrupt(path, sync, seed)), f"seed {seed}"
    assert [str(finding) for finding in recovery.check(path)] == []


def interrupt(path: Path, sync: Any, seed: int) -> None:
    random_ = random.Random(seed)
    sys.setswitchinterval(0.0005)
    signal.signal(signal.SIGALRM, raise_interrupt)
    store = streamkeep.open(path, sync=sync)
    store.xadd("a", {"n": 0})
    store.xadd("b", {"n": 0})
    beside = Beside(store)
    for number in range(TRIALS):
        before = store.xlen("a")
        work = random_.choice(
            [one_entry, many_entries, in_transaction, checkpoint_file, a_snapshot]
        )
        try:
            signal.setitimer(signal.ITIMER_REAL, random_.choice(DELAYS_S))
            work(store, number)
            for _ in range(100):
                time.sleep(0.0002)  # the interrupt comes in any case, maybe only now
        except KeyboardInterrupt:
            pass
        assert store.xlen("a") - before in (0, 1, 50)
        assert store.xlen("a") == store.xlen("b"), "a half"
    beside.stop()
    store.xadd("a", {"n": "end"})
    tokens = [entry.fields[b"n"] for entry in store.xrange("a")]
    assert len(tokens) == len(set(tokens)), "a command ran twice"
    store.close()


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("sync", ["commit", "none"])
def test_interrupts_lose_nothing_that_other_threads_have_appended(path: Path, sync: Any) -> None:
    """Each undoes commands that were halfway; the next one comes while that is being done."""
    assert in_child(lambda: interrupts(path, sync))
    assert [str(finding) for finding in recovery.check(path)] == []


def interrupts(path: Path, sync: Any) -> None:
    store = streamkeep.open(path, sync=sync)
    stopping = threading.Event()
    returned: list[set[bytes]] = [set() for _ in range(8)]

    def append(mine: set[bytes]) -> None:
        while not stopping.is_set():
            mine.add(store.xadd("s", {"f": "v"}))

    threads = [threading.Thread(target=append, args=(mine,)) for mine in returned]
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGALRM, raise_in_call)
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
    mine: set[bytes] = set()
    interrupted = 0
    while interrupted < 5 * TRIALS:
        try:
            mine.add(store.xadd("s", {"f": "v"}))
        except KeyboardInterrupt:
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    stopping.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    lost = mine.union(*returned) - {entry.id for entry in store.xrange("s")}
    assert not lost, f"{len(lost)} entries are gone"
    store.close()


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
        for _ in range(5):
            self.add()
        failpoints.arm(place, self.interrupt)
        try:
            if place == "commit:failed":
                failpoints.arm("commit:journaled", Mock(side_effect=RuntimeError("halfway")))
            self.add()
        except KeyboardInterrupt:
            self.interrupts += 1
        finally:
            failpoints.disarm()


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
    with ended(child_of(disturb)) if contended else nullcontext():
        assert not in_child(work)
        acknowledged = [int(one) for one in told.read_text().split()]
    with streamkeep.open(path) as store:
        found = [int(entry.fields[b"n"]) for entry in store.xrange("s")]
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found)
    assert list(recovery.check(path)) == []


@pytest.mark.skipif(
    isinstance(ArchiveLock.__enter__, FunctionType),
    reason="between two steps of interpreted code an interrupt may take a lock away",
)
def test_an_interrupt_leaves_no_lock_of_the_archive(path: Path) -> None:
    assert in_child(lambda: interrupt_archiving(path))
    assert [str(finding) for finding in recovery.check(path)] == []


def interrupt_archiving(path: Path) -> None:
    random_ = random.Random(0)
    signal.signal(signal.SIGALRM, raise_interrupt)
    store = streamkeep.open(path, sync="none")
    store.set_retention("a", maxlen=0, archive=True)
    for number in range(daily_or_all(2, 5) * TRIALS):
        if number % 50 == 0:
            store.xadd("a", {"n": number})
        try:
            signal.setitimer(signal.ITIMER_REAL, random_.uniform(20e-6, 400e-6))
            store.archive()
            for _ in range(100):
                time.sleep(0.0002)  # the interrupt comes in any case, maybe only now
        except KeyboardInterrupt:
            pass
        store.archive(wait=False)  # raises StoreLockedError if the lock is still taken
    store.close()


def raise_in_call(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_name == "xadd":
            raise KeyboardInterrupt
        frame = frame.f_back


def raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def one_entry(store: Store[bytes], number: int) -> None:
    with store.transaction() as txn:
        txn.xadd("a", {"n": f"one-{number}"})
        txn.xadd("b", {"n": f"one-{number}"})


def many_entries(store: Store[bytes], number: int) -> None:
    with store.pipeline() as pipe:
        for key in ("a", "b"):
            for part in range(50):
                pipe.xadd(key, {"n": f"many-{number}-{part}"})
        pipe.execute()


def in_transaction(store: Store[bytes], number: int) -> None:
    with store.transaction() as txn:
        txn.xadd("b", {"n": f"txn-{number}"})
        txn.xadd("a", {"n": f"txn-{number}"})


def checkpoint_file(store: Store[bytes], number: int) -> None:
    checkpoint_now(store)


def a_snapshot(store: Store[bytes], number: int) -> None:
    with store.snapshot() as snapshot:
        assert snapshot.xlen("a") == snapshot.xlen("b")
    store.xadd("c", {"n": number})


class Beside:
    """A thread that writes all the while, and must never be stuck."""

    def __init__(self, store: Store[bytes]) -> None:
        self.store = store
        self.added: list[bytes] = []
        self.going = True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while self.going:
            self.added.append(self.store.xadd("beside", {"n": len(self.added)}))

    def stop(self) -> None:
        self.going = False
        self.thread.join(PATIENCE_S)
        if self.thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)
        assert not self.thread.is_alive(), "the other thread waits without end"
        assert [entry.id for entry in self.store.xrange("beside")] == self.added


def test_a_forked_child_holds_no_lock_of_its_parent(path: Path) -> None:
    """Killed while it syncs, a parent must not leave the lock of the sync with its child."""
    streamkeep.open(path).close()
    told = os.pipe()

    def be_parent() -> None:
        store = streamkeep.open(path)
        store.xadd("s", {"f": "v"})
        environment = environment_of(store)
        assert environment.context.journal is not None
        assert environment.checkpoints is not None
        for handle in (environment.context.journal.control.handle, environment.checkpoints._folder):
            fcntl.flock(handle, fcntl.LOCK_EX)

        def be_child() -> None:
            os.write(told[1], b"%d" % os.getpid())
            signal.pause()

        child_of(be_child)
        signal.pause()

    parent = child_of(be_parent)
    os.close(told[1])
    child = int(os.read(told[0], 99))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        for name in ("journal/head", "journal"):
            handle = os.open(path / name, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(handle)
        with streamkeep.open(path) as store:
            assert store.xlen("s") == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_too_many_readers_are_named_by_writes_too(tmp_path: Path) -> None:
    """A write needs a slot of its own, once the store was idle."""
    with streamkeep.open(tmp_path / "store", max_readers=8, sync="none") as store:
        store.xadd("s", {"n": 0})
        environment = environment_of(store)
        environment.make_checkpoint()
        assert environment.checkpoints is not None
        environment.checkpoints.unpin()
        snapshots = []
        with pytest.raises(streamkeep.StoreError, match="too many readers"):
            while True:
                snapshots.append(store.snapshot())
        with pytest.raises(streamkeep.StoreError, match="too many readers"):
            store.xadd("s", {"n": 1})
        for snapshot in snapshots:
            snapshot.close()
        store.xadd("s", {"n": 1})
        assert store.xlen("s") == 2


def test_readers_that_died_are_cleared_by_a_checkpoint(path: Path) -> None:
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 0})

        def read() -> None:
            own = streamkeep.open(path, readonly=True)
            held = own.snapshot()
            assert held.xlen("s") == 1
            os.kill(os.getpid(), signal.SIGKILL)

        child = child_of(read)
        assert status_of(child) == -signal.SIGKILL
        assert child in [slot.process for slot in store.durability().readers]
        store.xadd("s", {"n": 1})
        checkpoint_now(store)
        assert child not in [slot.process for slot in store.durability().readers]


def test_a_board_whose_maker_was_killed_is_used(path: Path) -> None:
    """It has its size, and no mark yet."""
    streamkeep.open(path).close()
    (path / "waiters" / "board").write_bytes(bytes((path / "waiters" / "board").stat().st_size))
    with streamkeep.open(path) as store:
        assert wait_table_of(store).is_open()


def test_an_interrupt_leaves_the_mark_of_another_process_on_the_board(tmp_path: Path) -> None:
    """A process that changes the wait table may be killed; the next one repairs the table."""
    with streamkeep.open(tmp_path / "store") as store:
        wait_table = wait_table_of(store)
        other = os.open(tmp_path / "store" / "waiters" / "board", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        wait_table.words[2] = 1
        limit = signal.getitimer(signal.ITIMER_REAL)  # of pytest-timeout

        def interrupt_once(number: int, frame: object) -> None:
            signal.setitimer(signal.ITIMER_REAL, *limit)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt_once)
        with pytest.raises(KeyboardInterrupt):
            # Again and again: a signal that comes just before the system call does not end it.
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            tickets_in(wait_table)
        signal.signal(signal.SIGALRM, before)
        assert wait_table.words[2] == 1
        os.close(other)
        assert tickets_in(wait_table) == 0
        assert wait_table.words[2] == 0


def test_process_numbers_that_clash_are_named(path: Path) -> None:
    """Two containers, each with process numbers of its own, share a folder."""
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 0})
    go, told = os.pipe(), os.pipe()

    def use() -> None:
        os.read(go[0], 1)
        with pytest.raises(streamkeep.StoreError) as caught:
            streamkeep.open(path)
        os.write(told[1], str(caught.value).encode())

    child = child_of(use)
    lock = os.open(path / "lock.mdb", os.O_RDWR)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, child)
    os.write(go[1], b"g")
    os.close(told[1])
    text = os.read(told[0], 9999).decode()
    os.waitpid(child, 0)
    os.close(lock)
    assert f"process number {child}" in text
    assert "containers" in text


def test_the_last_process_covers_what_killed_ones_have_left(path: Path) -> None:
    """It has not written, and closes the store as if it had."""

    def append() -> None:
        store = streamkeep.open(path, sync="none")
        for number in range(50):
            store.xadd("s", {"n": number})

    streamkeep.open(path).close()
    with streamkeep.open(path):
        killed(append)
    assert list(recovery.check(path)) == []
    with streamkeep.open(path) as store:
        assert store.xlen("s") == 50
        assert store.durability().last_recovery is None
