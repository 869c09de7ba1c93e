"""Blocking reads across processes: waking, order, and what those leave that are killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from blocked import Callers, tickets
from inside import wait_table_of
from patience import PATIENCE_S, thread_of, wait_until
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.blocking import waiters

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come

NEW = {"s": ">"}

# What every child begins with. It never looks by itself: each wake-up must come from a ring.
PREAMBLE = f"""
import os, signal, sys, threading
sys.path.append({str(Path(__file__).parent.parent)!r})
import streamkeep
from streamkeep.engine.blocking import waiters
from streamkeep.engine.system import failpoints
from inside import tickets_in, wait_table_of
waiters.FALLBACK_S = 3600.0
path = sys.argv[1]
store = streamkeep.open(path, sync="none", decode_responses=True)
"""


@pytest.fixture
def store(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with the stream `s` and its group `g`, whose waits never look by themselves."""
    monkeypatch.setattr(waiters, "FALLBACK_S", 3600.0)
    store = open_store()
    store.xgroup_create("s", "g", mkstream=True)
    return store


@contextmanager
def child(store: Store, code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run code in another process until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + code, str(store.path), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def output(process: subprocess.Popen[str]) -> list[str]:
    """Return what a child printed until its good end."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return out.split()


def bells(store: Store) -> list[Path]:
    return [path for path in (store.path / "waiters").iterdir() if path.name != "board"]


def pending_is(store: Store, number: int) -> bool:
    return bool(store.xpending("s", "g")["pending"] == number)


CONSUME_ONE = """
((_, entries),) = store.xreadgroup("g", sys.argv[2], {"s": ">"}, block=0)
print(*(entry.id for entry in entries))
"""


def test_consumers_of_several_processes_are_served_in_the_order_they_came(store: Store) -> None:
    with child(store, CONSUME_ONE, "a") as first:
        wait_until(lambda: tickets(store) == 1)
        here = thread_of(store.xreadgroup, "g", "here", NEW, None, 0)
        wait_until(lambda: tickets(store) == 2)
        with child(store, CONSUME_ONE, "b") as last:
            wait_until(lambda: tickets(store) == 3)
            for number, left in ((1, 2), (2, 1), (3, 0)):
                store.xadd("s", {"f": "v"}, id=f"{number}-0")
                assert tickets(store) == left
                wait_until(partial(pending_is, store, number))
            assert output(first) == ["1-0"]
            assert output(last) == ["3-0"]
            here.join(PATIENCE_S)


def test_a_killed_waiter_is_passed_over(store: Store) -> None:
    with child(store, CONSUME_ONE, "a") as first:
        wait_until(lambda: tickets(store) == 1)
        callers = Callers(store, others=1)
        callers.start(partial(store.xreadgroup, "g", "c", NEW, block=0))
        callers.others = 0
        first.kill()
        first.wait()
        assert tickets(store) == 2
        store.xadd("s", {"f": "v"}, id="1-0")
        wait_until(lambda: len(callers.finished) == 1)
    assert tickets(store) == 0
    assert len(bells(store)) == 1  # ours, kept for the next wait
    (result,) = callers.results()
    assert result[0][1][0].id == b"1-0"


def test_what_killed_waiters_left_goes_when_the_store_is_opened(
    store: Store, open_store: Open
) -> None:
    with child(store, 'store.xread({"s": "$", "t": "$"}, block=0)') as reader:
        wait_until(lambda: tickets(store) == 1)
        store.close()
        reader.kill()
        reader.wait()
    (bell,) = bells(store)
    assert stat.S_ISFIFO(bell.stat().st_mode)
    mode = stat.S_IMODE((store.path / "data.mdb").stat().st_mode)
    assert stat.S_IMODE(bell.stat().st_mode) == mode
    again = open_store()
    assert bells(again) == []
    assert tickets(again) == 0
    assert not wait_table_of(again).words[0]


def test_a_writer_that_died_before_it_rang_costs_a_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "FALLBACK_S", 0.2)
    callers = Callers(store)
    callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0))
    code = """
failpoints.arm("notify:before", lambda: os.kill(os.getpid(), signal.SIGKILL))
store.xadd("s", {"f": "v"})
"""
    with child(store, code) as writer:
        writer.wait(PATIENCE_S)
        assert writer.returncode == -signal.SIGKILL
    wait_until(lambda: len(callers.finished) == 1)


def test_a_stopped_waiter_does_not_hold_up_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was rung and does not run: the entry is found by the next one that looks."""
    monkeypatch.setattr(waiters, "FALLBACK_S", 0.2)
    with child(store, CONSUME_ONE, "a") as first:
        wait_until(lambda: tickets(store) == 1)
        first.send_signal(signal.SIGSTOP)
        callers = Callers(store, others=1)
        callers.start(lambda: store.xreadgroup("g", "c", NEW, block=0))
        store.xadd("s", {"f": "v"})
        wait_until(lambda: len(callers.finished) == 1)
        first.send_signal(signal.SIGCONT)


def test_an_interrupted_process_ends_cleanly(store: Store) -> None:
    code = """
try:
    store.xread({"s": "$"}, block=0)
except KeyboardInterrupt:
    store.xadd("t", {"f": "v"})
    store.close()
    print("interrupted")
"""
    with child(store, code) as reader:
        wait_until(lambda: tickets(store) == 1)
        reader.send_signal(signal.SIGINT)
        assert output(reader) == ["interrupted"]
    assert tickets(store) == 0
    assert bells(store) == []
    assert store.xlen("t") == 1


def test_a_fork_disturbs_no_waiter(store: Store) -> None:
    code = """
found = []
thread = threading.Thread(target=lambda: found.append(store.xread({"s": "$"}, block=0)))
thread.start()
while not tickets_in(wait_table_of(store)):
    pass
child = os.fork()
if child == 0:
    try:
        store.xread({"s": "$"}, block=0)
    except streamkeep.StoreClosedError:
        pass
    with streamkeep.open(path, sync="none") as own:
        own.xadd("s", {"f": "v"}, id="1-0")
        assert own.xread({"s": "$"}, block=10) == []
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
print(status, found[0][0][1][0].id)
store.close()
"""
    with child(store, code) as process:
        assert output(process) == ["0", "1-0"]
    assert bells(store) == []


def test_no_wake_up_is_lost_between_processes(store: Store) -> None:
    code = """
count = 0
for entry in store.consume("s", "g", sys.argv[2], count=1):
    store.xack("s", "g", entry.id)
    if entry.fields["n"] == "end":
        break
    count += 1
print(count)
store.close()
"""
    total = 1500
    with child(store, code, "a") as first, child(store, code, "b") as second:
        wait_until(lambda: tickets(store) == 2)
        for number in range(total):
            store.xadd("s", {"n": number})
        wait_until(lambda: store.xinfo_groups("s")[0]["lag"] == 0 and tickets(store) == 2)
        store.xadd("s", {"n": "end"})
        wait_until(lambda: tickets(store) == 1)
        store.xadd("s", {"n": "end"})
        counts = [int(output(one)[0]) for one in (first, second)]
    assert sum(counts) == total
    assert store.xpending("s", "g")["pending"] == 0
    assert tickets(store) == 0


def test_a_closed_store_is_copied_with_its_folder(store: Store, open_store: Open) -> None:
    callers = Callers(store)
    callers.start(lambda: store.xread({"s": "$"}, block=0))
    callers.end()
    subprocess.run(["cp", "-r", store.path, store.path.with_name("copy")], check=True)
    copy = open_store("copy")
    assert copy.xlen("s") == 0
    assert copy.xread({"s": "$"}, block=10) == []
    assert os.listdir(copy.path / "waiters") == ["board"]
