"""Deferred commits: an interrupt at the end of one, and polling that changes nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkeep
from crash.losses import in_child
from streamkeep.engine.system import failpoints

pytestmark = pytest.mark.crash


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
        for _ in range(500):
            store.xadd("s", {"f": "after"})
        return store.xlen("s")

    path = tmp_path / "store"
    acknowledged = killed(path, tmp_path / "told", work)
    assert entries_after_recovery(path) == acknowledged


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
