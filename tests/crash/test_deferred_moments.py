"""Deferred commits at bad moments: interrupts and kills while they end or are replayed, polling."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lmdb
import pytest

import streamkeep
from crash.kill_worker import die_at
from crash.losses import in_child
from inside import context_of, defer_again, defer_for_long, journal_of
from patience import wait_until
from stopped import child_of
from streamkeep import recovery
from streamkeep.engine.system import failpoints
from tiers import pairs_of, slow_but

pytestmark = pytest.mark.crash


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


def entries_after_recovery(path: Path) -> int:
    """Open the store again; return the number of entries in all streams."""
    with streamkeep.open(path) as store:
        assert store.durability().last_recovery is not None
        return sum(store.xlen(name) for name in store.scan_iter())


@pytest.mark.usefixtures("plain_locks")
def test_an_interrupt_at_the_end_of_a_big_commit_leaves_no_hole_in_the_journal(
    tmp_path: Path,
) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)  # so that it comes while the caller waits

    def work(store: streamkeep.Store[bytes]) -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts = 0
        for _ in range(50):
            for _ in range(20):
                store.xadd("s", {"f": "v"})
            failpoints.arm("image:ended", interrupt)
            try:
                store.xadd("s", {"big": bytes(200_000)})
            except KeyboardInterrupt:
                interrupts += 1
                break
            finally:
                failpoints.disarm()
        assert interrupts, "no commit was deferred"
        for _ in range(50):
            store.xadd("s", {"f": "after"})
        return store.xlen("s")

    path = tmp_path / "store"
    acknowledged = killed(path, tmp_path / "told", work)
    assert entries_after_recovery(path) == acknowledged


def test_a_big_commit_that_fails_leaves_what_another_process_has_committed_since(
    tmp_path: Path,
) -> None:
    """LMDB has released its lock before the record of the failed commit is cut."""
    path = tmp_path / "store"
    streamkeep.open(path).close()
    go, done = os.pipe(), os.pipe()

    def disk_error() -> None:
        raise lmdb.DiskError("simulated")

    def let_other_write() -> None:
        os.write(go[1], b"y")
        os.read(done[0], 1)

    def other() -> None:
        os.read(go[0], 1)
        store = streamkeep.open(path)
        for number in range(5):
            store.xadd("s", {"of the other one": number})
        os.write(done[1], b"y")
        os.kill(os.getpid(), signal.SIGKILL)

    def fails(store: streamkeep.Store[bytes]) -> int:
        defer_for_long(store)
        quick = store.using("none")
        for number in range(20):
            quick.xadd("s", {"n": number})
        assert context_of(store).deferral.raw is not None
        failpoints.arm("image:ending", disk_error)
        failpoints.arm("commit:failed", let_other_write)
        quick.xadd("s", {"big": bytes(200_000)})  # LMDB can make it the second time
        return 20 + 1 + 5

    child = child_of(other)
    acknowledged = killed(path, tmp_path / "told", fails)
    os.waitpid(child, 0)
    assert entries_after_recovery(path) == acknowledged


@pytest.mark.parametrize("place", ["commit:unpublished", "commit:made"])
@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("end", ["killed", "closed"])
def test_an_interrupt_after_a_deferred_commit_leaves_it_made_once(
    tmp_path: Path, place: str, before: int, end: str
) -> None:
    """The next commit took its place in the journal, or it was replayed onto itself."""

    def work(store: streamkeep.Store[bytes]) -> int:
        defer_for_long(store)
        quick = store.using("none")
        deferral = context_of(store).deferral
        added = 0
        while deferral.raw is None:
            quick.xadd("s", {"n": added})
            added += 1
        with store.snapshot():  # ends it: the next one has no commits
            assert deferral.raw is None
        defer_again(store)
        for _ in range(before):
            quick.xadd("s", {"n": added})
            added += 1

        def interrupt() -> None:
            assert deferral.raw is not None
            raise KeyboardInterrupt

        failpoints.arm(place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            quick.xadd("s", {"n": added})
        added += 1
        if end == "closed":
            return added
        for _ in range(3):
            quick.xadd("s", {"n": added})
            added += 1
        assert quick.xlen("s") == added
        return added

    path = tmp_path / "store"
    if end == "killed":
        added = killed(path, tmp_path / "told", work)
        assert entries_after_recovery(path) == added
    else:
        with streamkeep.open(path) as store:
            added = work(store)
        with streamkeep.open(path) as store:
            assert store.durability().last_recovery is None
            assert store.xlen("s") == added
    assert list(recovery.check(path)) == []


@pytest.mark.slow
def test_polling_that_changes_nothing_keeps_the_checkpoint(tmp_path: Path) -> None:
    def work(store: streamkeep.Store[bytes]) -> int:
        quick = store.using(sync="none")
        quick.xgroup_create("k0", "g", id="0", mkstream=True)
        for number in range(3000):
            quick.xadd(f"k{number % 30}", {"f": "v" * 50})
        end = time.monotonic() + 16
        while time.monotonic() < end:
            quick.xack("k0", "g", "5-5")
            quick.xlen("k0")
        for number in range(100):
            quick.xadd(f"k{number % 30}", {"f": "v" * 50})
        return 3100

    path = tmp_path / "store"
    acknowledged = killed(path, tmp_path / "told", work)
    assert entries_after_recovery(path) == acknowledged


class Interrupted:
    """A program that gets interrupts while its commits are deferred, and is then killed."""

    def __init__(self, path: Path) -> None:
        self.store = streamkeep.open(path, sync="none")
        self.acknowledged: list[int] = []
        self.tried = 0
        self.interrupts = 0
        defer_for_long(self.store)

    def interrupt(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # so that it comes while the caller waits

    def fail(self) -> None:
        raise RuntimeError("halfway")

    def add(self) -> None:
        """Add one entry; note it if that was acknowledged."""
        self.tried += 1
        self.store.xadd("s", {"n": self.tried})
        self.acknowledged.append(self.tried)

    def round(self, place: str) -> None:
        """Get one interrupt at a place."""
        for _ in range(20):
            self.add()
        failpoints.arm(place, self.interrupt)
        try:
            if place == "image:replayed":
                failpoints.arm("commit:journaled", self.fail)
                with suppress(RuntimeError):
                    self.add()
            with self.store.snapshot():
                pass
        except KeyboardInterrupt:
            self.interrupts += 1
        finally:
            failpoints.disarm()


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.parametrize(
    ("place", "contended"),
    pairs_of(("image:ended", "image:replayed", "image:ending"), (False, True)),
)
def test_an_interrupt_at_the_image_loses_and_doubles_nothing(
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
        assert program.interrupts, "no interrupt came"
        for _ in range(100):
            program.add()
        told.write_text(" ".join(map(str, program.acknowledged)))
        os.kill(os.getpid(), signal.SIGKILL)

    streamkeep.open(path).close()
    other = os.fork() if contended else 0
    if contended and other == 0:
        try:
            disturb()
        finally:
            os._exit(1)
    try:
        assert not in_child(work)
        acknowledged = [int(one) for one in told.read_text().split()]
    finally:
        if contended:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
    with streamkeep.open(path) as store:
        found = [int(entry.fields[b"n"]) for entry in store.xrange("s")]
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found)
    assert list(recovery.check(path)) == []


def test_a_process_killed_while_it_replays_for_a_killed_one_loses_nothing(tmp_path: Path) -> None:
    """All three have the store open, so that no opening recovers it."""
    path = tmp_path / "store"
    go = os.pipe()

    def replay() -> None:
        store = streamkeep.open(path, sync="none")
        os.read(go[0], 1)
        die_at("image:replayed", 1)
        store.xadd("s", {"n": "killed"})

    def defer() -> None:
        store = streamkeep.open(path, sync="none")
        defer_for_long(store)
        for number in range(50):
            store.xadd("s", {"n": number})
        assert context_of(store).deferral.raw is not None
        os.kill(os.getpid(), signal.SIGKILL)

    streamkeep.open(path).close()
    with streamkeep.open(path, sync="none") as store:  # which writes nothing before
        second = threading.Thread(target=lambda: in_child(replay))
        second.start()
        wait_until(lambda: openings(store) == 2)
        assert not in_child(defer)
        os.write(go[1], b"y")
        second.join()
        found = [entry.fields[b"n"] for entry in store.xrange("s")]
        assert found == [b"%d" % number for number in range(50)]
        assert store.durability().last_recovery is None
        store.xadd("s", {"n": 50})
    assert list(recovery.check(path)) == []


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

    def defer() -> None:
        store = streamkeep.open(path, sync="none")
        defer_for_long(store)
        for number in range(50):
            store.xadd("s", {"n": number})
        os.kill(os.getpid(), signal.SIGKILL)

    assert not in_child(defer)
    for place in (first, then):

        def recover(place: str = place) -> None:
            die_at(place, 1)
            streamkeep.open(path)

        assert not in_child(recover)
    with streamkeep.open(path) as store:
        assert store.durability().last_recovery is not None
        assert store.xlen("s") == 50
    assert list(recovery.check(path)) == []


@pytest.mark.slow
def test_an_idle_writer_replays_for_a_process_that_only_reads(tmp_path: Path) -> None:
    """The reader cannot do so itself, and the process that deferred the commits has died."""
    path = tmp_path / "store"
    go = os.pipe()

    def read() -> None:
        store = streamkeep.open(path, readonly=True)
        os.read(go[0], 1)
        assert store.xlen("s") == 50

    def defer() -> None:
        store = streamkeep.open(path, sync="none")
        defer_for_long(store)
        for number in range(50):
            store.xadd("s", {"n": number})
        assert context_of(store).deferral.raw is not None
        os.kill(os.getpid(), signal.SIGKILL)

    with streamkeep.open(path, sync="none") as store:
        store.xadd("first", {"f": "v"})
        ended: list[bool] = []
        reader = threading.Thread(target=lambda: ended.append(in_child(read)))
        reader.start()
        wait_until(lambda: openings(store) == 2)
        wait_until(lambda: context_of(store).pin is None)
        assert not in_child(defer)
        os.write(go[1], b"y")
        reader.join()
        assert ended == [True]
