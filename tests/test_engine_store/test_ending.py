"""Programs that end without closing their store: the next opening recovers nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import streamkeep
from patience import PATIENCE_S
from streamkeep import recovery

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
