"""Programs that end without closing their store, and interrupts at any step of that."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

import streamkeep
from patience import PATIENCE_S, run_threads
from streamkeep import recovery
from streamkeep.engine.api import store
from streamkeep.engine.store import environment, opening, registry

ADDS = """
import multiprocessing, sys, threading
import streamkeep

def add(path):
    global store
    store = streamkeep.open(path, sync="none")
    for number in range(20):
        store.xadd("s", {"n": number})
"""
PROGRAMS = {
    "its end": "add(sys.argv[1])",
    "an error": "add(sys.argv[1]); raise SystemExit(3)",
    "an open snapshot": "add(sys.argv[1]); snapshot = store.snapshot().__enter__()",
    "a daemon thread that waits": """
add(sys.argv[1])
ready = threading.Event()
def wait():
    ready.set()
    store.xread({"s": "$"}, block=0)
threading.Thread(target=wait, daemon=True).start()
ready.wait()
""",
    "a child of multiprocessing": """
child = multiprocessing.get_context("fork").Process(target=add, args=(sys.argv[1],))
child.start()
child.join()
assert child.exitcode == 0
""",
    "a forked child": """
import os
add(sys.argv[1])
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
store.xadd("s", {"n": "after the child"})
""",
}
_daily = ("its end",)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, id=name, marks=() if name in _daily else pytest.mark.slow)
        for name in PROGRAMS
    ],
)
def test_a_program_that_does_not_close_its_store_leaves_it_closed(
    tmp_path: Path, program: str
) -> None:
    path = tmp_path / "store"
    code = ADDS + PROGRAMS[program]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3 if "SystemExit" in code else 0, "")
    with streamkeep.open(path, readonly=True) as store:  # it would refuse what lacks commits
        count = store.xlen("s")
    with streamkeep.open(path) as store:
        assert store.durability().last_recovery is None
        assert store.xlen("s") == count >= 20
    assert list(recovery.check(path)) == []


@pytest.mark.slow
def test_a_program_that_has_removed_its_store_ends_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "store"
    code = ADDS + "import shutil\nadd(sys.argv[1])\nshutil.rmtree(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- an interrupt at any step of opening and closing leaves the store to the other threads --------

# Functions whose every step is tried.
_STEPS: Final = {
    (store.__file__, "__init__"),
    (opening.__file__, "open_environment"),
    (environment.__file__, "release"),
    (environment.__file__, "_last_steps"),
    (environment.__file__, "_take"),
}
_FILES: Final = {registry.__file__, threading.__file__}


class Interrupt:
    """Raises KeyboardInterrupt in this thread at a step, counted from the first.

    Python looks for signals where a function begins and after each call, and so does this. One
    between the return of `Store.__init__` and the caller's own statement is not tried: a store that
    nobody can name stays open until the process ends.
    """

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if (
            event != "c_call"
            and (event, code.co_name) != ("return", "__init__")
            and (code.co_filename in _FILES or (code.co_filename, code.co_name) in _STEPS)
        ):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def is_open(path: Path) -> bool:
    """Return whether this process has a store open; other tests may have left theirs."""
    return registry.identity_of(path) in registry.registry.environments


def opened_and_closed(path: Path, interrupt: Interrupt) -> bool:
    """Open and close a store, closing it again after an interrupt; say whether there was one."""
    one: store.Store[bytes] | None = None
    sys.setprofile(interrupt)
    try:
        one = streamkeep.open(path, sync="none")
        one.close()
    except KeyboardInterrupt:
        if one is not None:
            one.close()
    finally:
        sys.setprofile(None)
    return interrupt.left <= 0  # what it ended may have dealt with it


@pytest.mark.usefixtures("plain_locks")
def test_an_interrupt_at_any_step_leaves_the_store_to_others(tmp_path: Path) -> None:
    path = tmp_path / "store"
    lengths: list[int] = []

    def use() -> None:
        with streamkeep.open(path, sync="none") as one:
            one.xadd("s", {"f": "v"})
            lengths.append(one.xlen("s"))

    use()
    step = 1
    while opened_and_closed(path, Interrupt(step)):
        other = threading.Thread(target=use, daemon=True)
        other.start()
        other.join(PATIENCE_S)
        assert lengths == list(range(1, step + 2)), step
        assert not is_open(path), f"step {step} left the store open"
        step += 1
    assert step > 20


@pytest.mark.usefixtures("plain_locks")
def test_an_interrupt_while_an_open_store_is_opened_again_counts_no_user(tmp_path: Path) -> None:
    path = tmp_path / "store"
    step = 0
    interrupted = True
    while interrupted:
        step += 1
        with streamkeep.open(path, sync="none"):
            interrupted = opened_and_closed(path, Interrupt(step))
        assert not is_open(path), f"step {step} left the store open"
    assert step > 10


@pytest.mark.parametrize("archives", [False, True])
def test_two_threads_that_close_a_store_leave_the_other_ones_open(
    tmp_path: Path, archives: bool
) -> None:
    path = tmp_path / "store"
    with streamkeep.open(path, sync="none") as other:
        for number in range(20):
            one = streamkeep.open(path, sync="none", archive_every=60 if archives else None)
            ready = threading.Barrier(2)

            def close(one: store.Store[bytes] = one, ready: threading.Barrier = ready) -> None:
                ready.wait(PATIENCE_S)
                one.close()

            threads = [threading.Thread(target=close) for _ in range(2)]
            run_threads(threads)
            other.xadd("s", {"f": "v"})
            assert other.xlen("s") == number + 1
    assert not is_open(path)
