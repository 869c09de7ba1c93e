"""Processes that die: what they had pending goes to one that waits, and nothing else does."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blocked import tickets
from fork_server import Server, forking
from lease_holder import Holder
from patience import PATIENCE_S, line_of, wait_until
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.blocking import waiters
from streamkeep.engine.liveness import lease_file, watch

NEW = {"s": ">"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with forking("lease_holder") as server:
        yield server


class Holders:
    """Processes that hold entries of the stream `s`."""

    def __init__(self, server: Server, store: Store[Any], folder: Path) -> None:
        self._server = server
        self._store = store
        self._folder = folder
        self._alive: list[int] = []
        self._started = 0

    def start(self, consumer: str, count: int, then: str = "wait") -> tuple[int, str]:
        """Return the number of a new process that holds its entries, and what it noted."""
        self._started += 1
        note = self._folder / f"note.{self._started}"
        path = str(self._store.path)
        pid = self._server.fork(Holder(path, consumer, count, then, str(note)))
        self._alive.append(pid)
        errors = Path(f"{note}.errors")
        wait_until(lambda: note.exists() or (errors.exists() and errors.stat().st_size))
        assert note.exists(), errors.read_text()
        return pid, note.read_text()

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._alive.remove(pid)
        self._server.wait(pid)

    def end(self) -> None:
        for pid in list(self._alive):
            self.kill(pid)


@pytest.fixture
def store(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> Store[Any]:
    """A store with entries in `s`. Nothing looks at it by itself: a death has to be reported."""
    monkeypatch.setattr(waiters, "FALLBACK_S", 3600.0)
    monkeypatch.setattr(watch, "LOOK_S", 3600.0)
    store = open_store()
    store.xgroup_create("s", "g", id="0", mkstream=True)
    store.xadd_many("s", [{"n": str(number)} for number in range(6)])
    return store


@pytest.fixture
def holders(server: Server, store: Store[Any], tmp_path: Path) -> Iterator[Holders]:
    holders = Holders(server, store, tmp_path)
    yield holders
    holders.end()


def taken(found: Any) -> list[bytes]:
    return [fields[b"n"] for _, entries in found for _, fields, *_ in entries]


def lease_of(store: Store[Any], consumer: str) -> str:
    states = {one["name"]: one["lease"] for one in store.xinfo_consumers("s", "g", leases=True)}
    return str(states[consumer.encode()])


@contextmanager
def waiting(store: Store[Any]) -> Iterator[Future[Any]]:
    """A call that waits for what dead processes had; its watch sleeps as well."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.xreadgroup, "g", "bob", NEW, block=0, claim_dead=True)
        wait_until(lambda: tickets(store) == 2)
        yield found


def test_what_a_killed_process_held_goes_to_one_that_waits(
    store: Store[Any], holders: Holders
) -> None:
    killed, _ = holders.start("ann", 2)
    store.xreadgroup("g", "all", NEW, noack=True)
    with waiting(store) as found:
        holders.kill(killed)
        [[_, entries]] = found.result(PATIENCE_S)
    assert taken([["s", entries]]) == [b"0", b"1"]
    assert [one[3] for one in entries] == [1, 1]  # delivered once before
    assert (lease_of(store, "ann"), lease_of(store, "bob")) == ("dead", "alive")


def test_a_lease_that_is_taken_while_the_watch_sleeps_is_watched(
    store: Store[Any], holders: Holders
) -> None:
    store.xreadgroup("g", "all", NEW)
    with waiting(store) as found:
        pid, _ = holders.start("ann", 0)
        assert not found.done()
        holders.kill(pid)
        assert len(taken(found.result(PATIENCE_S))) == 6


def test_a_forked_child_does_not_keep_the_lease_of_its_parent(
    store: Store[Any], holders: Holders
) -> None:
    pid, child = holders.start("ann", 2, "fork")
    try:
        assert store.xautoclaim("s", "g", "bob", 0, dead=True)[1] == []
        holders.kill(pid)
        os.kill(int(child), 0)  # it lives
        assert len(store.xautoclaim("s", "g", "bob", 0, dead=True)[1]) == 2
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_stopped_process_keeps_what_it_has(store: Store[Any], holders: Holders) -> None:
    pid, _ = holders.start("ann", 2)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
    assert lease_of(store, "ann") == "alive"
    assert store.xautoclaim("s", "g", "bob", 0, dead=True)[1] == []
    os.kill(pid, signal.SIGCONT)
    holders.kill(pid)
    assert len(store.xautoclaim("s", "g", "bob", 0, dead=True)[1]) == 2


def test_a_name_that_lives_again_does_not_revive_what_it_had(
    store: Store[Any], holders: Holders
) -> None:
    first, _ = holders.start("ann", 2)
    holders.kill(first)
    holders.start("ann", 3)
    assert lease_of(store, "ann") == "alive"
    assert taken([["s", store.xautoclaim("s", "g", "bob", 0, dead=True)[1]]]) == [b"0", b"1"]
    assert store.xautoclaim("s", "g", "bob", 0, dead=True)[1] == []


def test_a_process_that_closes_the_store_ends_its_lease(
    store: Store[Any], holders: Holders
) -> None:
    holders.start("ann", 2, "close")
    assert len(store.xautoclaim("s", "g", "bob", 0, dead=True)[1]) == 2


def test_without_process_descriptors_the_locks_are_asked_again(
    store: Store[Any], holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As across PID namespaces: the lock shows no process number there."""

    def from_elsewhere(*lease: Any) -> lease_file.Holder:
        return lease_file.Holder(holder(*lease).state, 0)

    holder = lease_file.holder_of
    monkeypatch.setattr(watch, "holder_of", from_elsewhere)
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    pid, _ = holders.start("ann", 2)
    store.xreadgroup("g", "all", NEW, noack=True)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.xreadgroup, "g", "bob", NEW, block=0, claim_dead=True)
        holders.kill(pid)
        assert taken(found.result(PATIENCE_S)) == [b"0", b"1"]


def test_a_watch_that_has_no_descriptors_for_a_while_goes_on(
    store: Store[Any], holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.EMFILE, "Too many open files")] * 3)
    failed: list[OSError] = []

    def lease_numbers(folder: Any) -> list[int]:
        for error in failures:
            failed.append(error)
            raise error
        return lease_file.lease_numbers(folder)

    monkeypatch.setattr(watch, "lease_numbers", lease_numbers)
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    pid, _ = holders.start("ann", 2)
    store.xreadgroup("g", "all", NEW, noack=True)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.xreadgroup, "g", "bob", NEW, block=0, claim_dead=True)
        wait_until(lambda: len(failed) == 3)
        holders.kill(pid)
        assert taken(found.result(PATIENCE_S)) == [b"0", b"1"]


def test_a_death_is_told_that_was_found_before_descriptors_ran_out(
    store: Store[Any], holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look finds that the first process is dead, and fails at the second one."""
    looks: list[lease_file.Holder] = []

    def holder_of(*lease: Any) -> lease_file.Holder:
        if looks and looks[-1].state is lease_file.State.DEAD:
            looks.clear()
            raise OSError(errno.EMFILE, "Too many open files")
        looks.append(whole(*lease)._replace(pid=0))  # the kernel reports no end
        return looks[-1]

    whole = lease_file.holder_of
    pid, _ = holders.start("ann", 2)
    holders.start("carl", 1)
    store.xreadgroup("g", "all", NEW, noack=True)
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "holder_of", holder_of)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.xreadgroup, "g", "bob", NEW, block=0, claim_dead=True)
        holders.kill(pid)
        assert taken(found.result(PATIENCE_S)) == [b"0", b"1"]


WAITING = """
import sys
import streamkeep
store = streamkeep.open(sys.argv[1], sync="none")
print("ready", flush=True)
[[_, entries]] = store.xreadgroup("g", "bob", {"s": ">"}, block=0, claim_dead=True)
print(len(entries), flush=True)
"""
APART = ["unshare", "--pid", "--fork", "--kill-child"]


@pytest.mark.slow
def test_a_death_is_seen_from_another_pid_namespace(
    store: Store[Any], holders: Holders, tmp_path: Path
) -> None:
    if shutil.which("unshare") is None or subprocess.run([*APART, "true"]).returncode:
        pytest.skip("this user cannot make a PID namespace")
    pid, _ = holders.start("ann", 2)
    store.xreadgroup("g", "all", NEW, noack=True)
    waiting = subprocess.Popen(
        [*APART, sys.executable, "-c", WAITING, str(store.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert line_of(waiting) == "ready\n"
        holders.kill(pid)
        assert line_of(waiting) == "2\n"
    finally:
        waiting.kill()
        waiting.communicate()
