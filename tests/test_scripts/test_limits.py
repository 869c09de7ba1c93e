"""What keeps a run of the tests from waiting without end: `tests/limits.py`, `scheduling.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

TESTS = """
import os
import time

import pytest

import limits

limits.MORE_S = 0.5


@pytest.mark.timeout(0.5)
def test_a_hang_at_the_end_of_a_test():
    try:
        time.sleep(1000)
    finally:
        time.sleep(1000)


def test_a_child_that_raises():
    child = os.fork()
    if child == 0:
        raise ValueError("in the child")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == limits.ESCAPED


def test_a_child_that_comes_back():
    child = os.fork()
    if child == 0:
        return
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == limits.ESCAPED


def test_a_child_that_hangs():
    limits.PATIENCE_S = 0.5
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["a_hang", "a_child"])
def test_a_run_with_a_test_that_hangs_goes_on_to_its_end(tmp_path: Path, first: str) -> None:
    """The process that hangs is named once, and what it had not run is run elsewhere.

    One process finds itself without work, or with a single test, in turns.
    """
    folder = Path(__file__).resolve().parent.parent
    head, *parts = TESTS.split("\n\n\n")
    hang, *rest = parts
    order = [hang, *rest] if first == "a_hang" else [*rest, hang]
    (tmp_path / "conftest.py").write_text((folder / "conftest.py").read_text())
    (tmp_path / "test_them.py").write_text("\n\n\n".join([head, *order]))
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        [*command, "-o", f"pythonpath={folder}", "--import-mode=importlib", "--rootdir", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running" in done.stdout
    assert "time.sleep" in done.stdout or "in test_a_hang_at_the_end_of_a_test" in done.stderr
