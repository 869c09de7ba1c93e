"""Stores on ext4, XFS and btrfs: power losses, disks that fail, disks that are full.

Each test runs programs of `crash.disks` in a mount namespace of their own. They use a store as any
program does, through `streamkeep.open`, and see the disk as it is after a loss. A failure names the
seed, which makes the same processes and the same losses, though not the same moments.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from crash.disks import mounts
from crash.disks.outsider import Plan, Report
from crash.test_workload import play
from patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(3000)]

KINDS: Final = mounts.KINDS
IMAGES: Final = 120  # of each file system
SEEDS: Final = 4
CONTROLS: Final = ("every sync", "the sync of checkpoints", "flushes")
_TESTS: Final = Path(__file__).resolve().parents[1]


def outside(plan: Plan) -> Report:
    reason = mounts.why_not(plan.kind)
    if not reason and importlib.util.find_spec("mfusepy") is None:
        reason = "mfusepy is not installed"
    if reason:
        pytest.skip(f"no {plan.kind} can be mounted here: {reason}")
    paths = [str(_TESTS), *filter(None, sys.path)]
    done = subprocess.run(
        [
            *("unshare", "--mount", sys.executable, "-m", "crash.disks.outsider"),
            json.dumps(asdict(plan)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, f"{plan}: {done.stderr[-3000:]}"
    return Report(**json.loads(done.stdout))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_with_the_power(
    kind: str, tell_figures: Callable[[str], None]
) -> None:
    plans = [Plan(kind, seed, images=IMAGES // SEEDS, commits=400) for seed in range(SEEDS)]
    reports = [outside(plan) for plan in plans]
    failures = [
        f"seed {plan.seed}: {failure}"
        for plan, report in zip(plans, reports, strict=True)
        for failure in report.failures
    ]
    assert failures == []
    assert sum(report.recovered for report in reports) > IMAGES // 4
    tell(tell_figures, f"{kind}, power lost", reports)


@pytest.mark.parametrize("kind", KINDS)
def test_a_creation_that_the_power_cut_off_begins_again(
    kind: str, tell_figures: Callable[[str], None]
) -> None:
    """So few commits that most of what the disk was told is the creation."""
    reports = [outside(Plan(kind, 50, images=60, commits=4, kills=0, workers=1))]
    assert reports[0].failures == []
    tell(tell_figures, f"{kind}, power lost during creation", reports)


@pytest.mark.parametrize("broken", ["disk", "data", "early"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_failed_is_recovered_from(
    kind: str, broken: str, tell_figures: Callable[[str], None]
) -> None:
    """After all processes died; and "early", while they work: each ends with an error."""
    plans = (Plan(kind, seed, commits=150, broken=broken) for seed in range(30))
    seen_through = (report for report in map(outside, plans) if not report.unreadable)
    reports = list(islice(seen_through, 3))  # btrfs gives up most disks that fail in use
    assert len(reports) == 3
    assert [failure for report in reports for failure in report.failures] == []
    assert sum(report.unsafe for report in reports) > 0, "the disk has kept every page"
    what = {"disk": "all writes", "data": "writes of the data file", "early": "a disk in use"}
    tell(tell_figures, f"{kind}, {what[broken]} failed", reports)


@pytest.mark.parametrize("without", CONTROLS)
def test_the_harness_notices_what_is_left_out(
    without: str, tell_figures: Callable[[str], None]
) -> None:
    reports = [outside(Plan("ext4", seed, images=20, without=without)) for seed in range(3)]
    assert all(report.failures for report in reports)
    failures = sum(len(report.failures) for report in reports)
    images = sum(report.images for report in reports)
    tell_figures(f"control without {without}: {failures} of {images} images fail, as they must")


def tell(tell_figures: Callable[[str], None], what: str, reports: list[Report]) -> None:
    def total(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    tell_figures(
        f"{what}: {total('images')} images, {total('commits')} commits, {total('events')} writes "
        f"and flushes, {total('unsafe')} sectors or pages not safe, {total('recovered')} "
        "recoveries; 0 failures"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_loses_nothing_and_ends_no_process(tmp_path: Path, kind: str) -> None:
    """A mapped page that a full disk has no block for would end the process that writes it."""
    if reason := mounts.why_not(kind):
        pytest.skip(f"no {kind} can be mounted here: {reason}")
    play(tmp_path, "--only", "full_disk", "--stores", "3", "--seconds", "600", "--disk", kind)
