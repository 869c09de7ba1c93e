"""Random workloads under random faults, and processes that are killed at each named place."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import failpoint_names
import streamkeep
from crash.losses import in_child, small_journal, state_of
from crash.power import another_boot, copy_store
from crash.workload.controls import CONTROLS, with_defect
from crash.workload.run import Figures, Run
from crash.workload.worker import fork
from inside import journal_of
from patience import PATIENCE_S
from stopped import die_at
from tiers import slow_but

TESTS = Path(__file__).resolve().parent.parent
LONG_S = 1800
CONTROL_S = 600  # each takes seconds, unless the machine is busy


def run(
    folder: Path, *arguments: str, sources: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program."""
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


@pytest.mark.parametrize("seed", slow_but([1, 2, "a fresh one"], 1, "a fresh one"))
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


# --- processes killed at each named place lose nothing that was acknowledged, in any mode ---------

# Creations are in `test_power_loss.py`.

# What this workload passes; the tests of blocking reads, of archives and of Spark have the others.
PLACES = ("commit", "flush", "journal", "checkpoint", "scrub", "recover")
DAILY = (  # one of each kind
    "commit:journaled",
    "commit:made",
    "flush:ended",
    "journal:new-file",
    "journal:sync",
    "checkpoint:slot-written",
    "scrub:free",
    "recover:meta-written",
    "recover:batch",
)
PASSED = [name for name in failpoint_names.NAMES if name.startswith(PLACES)]


def test_every_failpoint_has_a_name() -> None:
    package = Path(streamkeep.__file__).parent
    folders = ("*", "*/*", "*/*/*")  # a pattern of any depth follows no links
    text = "".join(path.read_text() for one in folders for path in package.glob(f"{one}/*.py"))
    assert set(re.findall(r'failpoints\.hit\("([^"]+)"\)', text)) == set(failpoint_names.NAMES)


@pytest.mark.crash
@pytest.mark.parametrize("name", slow_but(PASSED, *DAILY))
def test_a_process_killed_at_a_failpoint_loses_nothing(tmp_path: Path, name: str) -> None:
    Run(tmp_path, 1, Figures(), []).kill_at(name)


def test_a_record_without_a_commit_at_the_end_of_a_file_hides_nothing(tmp_path: Path) -> None:
    """The next record does not fit after the same position, and so begins the next file."""
    path = tmp_path / "store"

    def write_until_killed() -> None:
        store = streamkeep.open(path, sync="none")
        journal = journal_of(store)
        store.xadd("s", {"pad": ""})
        while journal._room - journal.log.offset > 1000:
            store.xadd("s", {"pad": "x" * 50})
        die_at("commit:journaled", 1)
        store.xadd("s", {"killed": "here"})

    with small_journal(), streamkeep.open(path) as store:
        assert not in_child(write_until_killed)
        before = store.xlen("s")
        store.xadd("s", {"big": "x" * 7000})
        store.xadd("s", {"after": "it"})
        expected = state_of(store)
        assert store.xlen("s") == before + 2
        assert len(list((path / "journal").glob("*.skj"))) == 2
        copy_store(path, tmp_path / "copy")
    with another_boot(), streamkeep.open(tmp_path / "copy") as store:
        assert state_of(store) == expected
