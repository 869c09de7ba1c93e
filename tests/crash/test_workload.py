"""Random workloads under random faults: fixed seeds, and a fresh one each time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
LONG_S = 1800


def play(folder: Path, *arguments: str) -> str:
    """Run the program; return what it prints. Its failure names the command that repeats it."""
    paths = [str(TESTS), *filter(None, sys.path)]
    ran = subprocess.run(
        [sys.executable, "-m", "crash.workload", "--folder", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("seed", [1, 2, "a fresh one"])
def test_stores_hold_what_was_acknowledged(tmp_path: Path, seed: int | str) -> None:
    number = seed if isinstance(seed, int) else random.SystemRandom().randrange(1 << 30)
    play(tmp_path, "--seconds", "10", "--seed", str(number))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(2 * LONG_S)
def test_stores_hold_what_was_acknowledged_for_long(
    tmp_path: Path, tell_figures: Callable[[str], None]
) -> None:
    tell_figures(f"random workloads: {play(tmp_path, '--seconds', str(LONG_S))}")
