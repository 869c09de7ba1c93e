"""`release/set_up.py`: what pip and the compiler do appears in short lines, all the time."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import set_up

ROOT = Path(__file__).resolve().parents[2]
PIP = """\
Processing /home/ann/streamkeep
  Preparing metadata (pyproject.toml): started
Collecting pyspark<4.4,>=4.3.0
  Downloading pyspark-4.3.0.tar.gz.metadata (12 kB)
  Downloading pyspark-4.3.0.tar.gz (434.2 MB)
Collecting click
  Using cached click-8.5.1-py3-none-any.whl (100 kB)
Building wheels for collected packages: pyspark
  Building wheel for pyspark (setup.py): started
Installing collected packages: click, pyspark
ERROR: no room
"""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_downloads_are_announced_with_their_sizes_and_summed_up() -> None:
    out, clock = io.StringIO(), Clock()
    downloads = set_up.Downloads(set_up.Teller(out, clock))
    for line in PIP.splitlines(keepends=True):
        clock.now += 1
        downloads.read(line)
    assert out.getvalue().splitlines() == [
        "   5 s  downloading pyspark-4.3.0.tar.gz (434.2 MB)",
        "   9 s  Building wheel for pyspark",
        "  10 s  unpacking packages",
        "  11 s  ERROR: no room",
    ]
    assert downloads.summary() == "2 packages, 434 MB"


def test_a_network_that_does_not_answer_is_said_once() -> None:
    out, clock = io.StringIO(), Clock()
    teller = set_up.Teller(out, clock)
    downloads = set_up.Downloads(teller)
    for left in (4, 3):
        clock.now += 5
        downloads.read(f"WARNING: Retrying (Retry(total={left}, connect=None)) after connection\n")
        teller.say_if_quiet(lambda: f"still: {downloads.now}")
    downloads.read("Collecting click\n")
    clock.now += 5
    teller.say_if_quiet(lambda: f"still: {downloads.now}")
    assert out.getvalue().splitlines() == [
        "   5 s  the network does not answer, and pip tries again",
        "  10 s  still: the network does not answer, and pip tries again",
        "  15 s  still: pip looks for the newest versions that fit together",
    ]


def test_nothing_is_silent_for_long() -> None:
    out, clock = io.StringIO(), Clock()
    teller = set_up.Teller(out, clock)
    teller.say("begun")
    for _ in range(9):
        clock.now += 1
        teller.say_if_quiet(lambda: "still at it")
    assert out.getvalue().splitlines() == [
        "   0 s  begun",
        "   4 s  still at it",
        "   8 s  still at it",
    ]


@pytest.mark.slow
def test_a_failed_installation_shows_what_pip_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "release" / "set_up.py", "--", "--no-index", "no-such-package"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package" in done.stderr
    assert "pip failed: see above; next: check the network" in done.stdout
