"""Run the benchmarks: `python -m benchmarks [--quick] [NAME ...]`.

Each figure is appended to build/figures.jsonl, so that several runs can be compared.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import (
    attach,
    bulk,
    commits,
    copies,
    durable,
    embedded,
    growth,
    latency,
    queues,
    rates,
    rulers,
    snapshot,
    takeover,
)
from benchmarks.common import Report

BENCHMARKS = {
    "commits": commits,
    "durable": durable,
    "embedded": embedded,
    "queue": queues,  # needs the extra `bench`
    "takeover": takeover,  # likewise; half an hour
    "rulers": rulers,
    "latency": latency,
    "openmessaging": rates,  # an hour
    "snapshot": snapshot,  # two hours
    "growth": growth,
    "copies": copies,
    "attach": attach,
    "bulk": bulk,  # needs the extra `spark`
}


def main() -> int:
    """Run what was asked for; 1 when a target was missed, of which small sizes say nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: whether all runs, not how fast it is"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"unknown benchmark: {', '.join(sorted(unknown))}")
    report = Report()
    report.header()
    for name in options.names or BENCHMARKS:
        title = (BENCHMARKS[name].__doc__ or "").partition("\n")[0]
        report.section(f"{name}: {title}")
        BENCHMARKS[name].run(report, quick=options.quick)
    if report.missed:
        print(f"\nmissed: {', '.join(report.missed)}")
    return 1 if report.missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
