"""The command line of the workload: see `--help`."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

if __package__ != "crash.workload":  # `python -m tests.crash.workload`, from the repository
    sys.path.insert(0, str(Path(__file__).parents[2]))

from crash.workload.run import ROUNDS, Failure, Figures, Run


def main() -> int:
    """Play rounds until the time is over or something is wrong; return the exit status."""
    parser = argparse.ArgumentParser(description="Random workloads under random faults.")
    parser.add_argument("--seconds", type=float, default=60, help="how long; 60 by default")
    parser.add_argument("--seed", type=int, help="of the first store; a random one by default")
    parser.add_argument("--stores", type=int, default=1 << 30, help="how many stores at most")
    parser.add_argument("--rounds", type=int, default=5, help="rounds on each store")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=sorted(ROUNDS),
        help="a kind of rounds; may be given several times",
    )
    parser.add_argument("--disk", default="tmpfs", help="the file system that is full; ext4")
    parser.add_argument("--folder", type=Path, help="where to work; kept after a failure")
    options = parser.parse_args()
    os.environ.setdefault("STREAMKEEP_PURE", "1")  # no warning of an interpreted install
    seed = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="workload-"))
    deadline = time.monotonic() + options.seconds
    figures = Figures()
    for number in range(options.stores):
        if time.monotonic() > deadline:
            break
        place = folder / f"run-{seed + number}"
        place.mkdir(parents=True)
        played = 0
        try:
            run = Run(place, seed + number, figures, options.only, options.disk)
            while played < options.rounds and time.monotonic() < deadline:
                played += 1
                run.play()
        except Failure as failure:
            only = "".join(f" --only {kind}" for kind in options.only)
            print(f"FAILED in round {played} of seed {seed + number}, in {place}:\n{failure}")
            again = f"--seed {seed + number} --stores 1{only} --disk {options.disk}"
            print(f"again: python -m tests.crash.workload {again}")
            print(f"before: {figures}")
            return 1
        shutil.rmtree(place)
    print(figures)
    if options.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
