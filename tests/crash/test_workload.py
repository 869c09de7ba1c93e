"""Random workloads under random faults: fixed seeds, and a fresh one each time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.workload.controls import CONTROLS, with_defect
from crash.workload.worker import fork
from patience import PATIENCE_S

TESTS = Path(__file__).resolve().parent.parent
LONG_S = 1800
CONTROL_S = 600  # each takes seconds, unless the machine is busy


def run(
    folder: Path, *arguments: str, sources: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program.

    Args:
        sources: where it imports the package from.
    """
    paths = [*filter(None, [sources]), TESTS, *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, "-m", "crash.workload", "--folder", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def play(folder: Path, *arguments: str) -> str:
    """Run the program; return what it prints. Its failure names the command that repeats it."""
    ran = run(folder, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("seed", [1, 2, "a fresh one"])
def test_stores_hold_what_was_acknowledged(tmp_path: Path, seed: int | str) -> None:
    """So many rounds, and not so many seconds: an idle machine shall be through sooner."""
    number = seed if isinstance(seed, int) else random.SystemRandom().randrange(1 << 30)
    play(tmp_path, "--seconds", str(PATIENCE_S), "--stores", "1", "--seed", str(number))


def test_an_interrupt_that_comes_before_its_handler_ends_no_process(tmp_path: Path) -> None:
    child = fork(lambda: os.kill(os.getpid(), signal.SIGINT), tmp_path / "errors")
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(2 * LONG_S)
def test_stores_hold_what_was_acknowledged_for_long(
    tmp_path: Path, tell_figures: Callable[[str], None]
) -> None:
    tell_figures(f"random workloads: {play(tmp_path, '--seconds', str(LONG_S))}")


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(2 * CONTROL_S)
@pytest.mark.parametrize("name", CONTROLS)
def test_a_known_defect_is_found(tmp_path: Path, name: str) -> None:
    sources = with_defect(name, tmp_path / "src")
    rounds = [word for kind in CONTROLS[name].rounds for word in ("--only", kind)]
    ran = run(tmp_path / "work", "--seconds", str(CONTROL_S), *rounds, sources=sources)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "FAILED" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", CONTROLS)
def test_a_known_defect_can_be_brought_back(tmp_path: Path, name: str) -> None:
    """What the slow test above needs: the place has not changed."""
    changed = with_defect(name, tmp_path / "src") / "streamkeep" / CONTROLS[name].file
    compile(changed.read_text(), str(changed), "exec")
