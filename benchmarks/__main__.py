"""Run the benchmarks: `python -m benchmarks [--quick] [--entries MILLIONS] [NAME ...]`."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import (
    archive,
    codec,
    commits,
    dump,
    durable,
    fsck,
    groups,
    lake,
    latency,
    queue_wakes,
    queues,
    server,
    spark,
    store,
    wake,
)
from benchmarks.common import Report, interpreted


def run_codec(report: Report, _: argparse.Namespace) -> None:
    """The codec, compiled against interpreted."""
    ours = codec.measure()
    plain = json.loads(interpreted("benchmarks.codec"))
    least = {"encode": 5e6, "decode to columns": 4e6, "decode to entries": 2.5e6}
    for name, rate in ours.items():
        if name == "bytes per entry":
            report.figure(name, rate, "bytes")
            continue
        report.figure(name, rate, "entries/s", least=least.get(name, 0))
        faster = rate / plain[name]
        wanted = 20 if name == "encode" else 0
        report.figure("  against interpreted", faster, "times", least=wanted)


def run_append(report: Report, _: argparse.Namespace) -> None:
    """Appends without sync."""
    store.appends(report)


def run_read(report: Report, options: argparse.Namespace) -> None:
    """Reads, disk and memory."""
    millions = options.entries or (0.1 if options.quick else 10)
    store.reads(report, round(millions * 1_000_000))


def run_group(report: Report, options: argparse.Namespace) -> None:
    """Consumer groups without sync."""
    size = groups.QUICK if options.quick else groups.FULL
    groups.cycles(report, size)
    groups.pending(report, size)


def run_wake(report: Report, _: argparse.Namespace) -> None:
    """Blocked readers: waking them, and what waiting costs."""
    wake.wakes(report)
    wake.idle(report)


def run_commits(report: Report, options: argparse.Namespace) -> None:
    """Commits that do not wait for the disk: singles, processes, minutes; opening and recovery."""
    commits.run(report, quick=options.quick)


def run_durable(report: Report, options: argparse.Namespace) -> None:
    """Appends that wait for the disk, and what the other modes cost."""
    durable.commits(report, quick=options.quick)
    durable.relaxed(report, quick=options.quick)
    durable.idle(report, quick=options.quick)


def run_latency(report: Report, options: argparse.Namespace) -> None:
    """The latency test of Redis's documentation: 10,000 entries/s, ten consumers of a group."""
    known = {variant.name for variant in latency.VARIANTS}
    if unknown := set(options.variants) - known:
        raise SystemExit(f"unknown variant: {', '.join(sorted(unknown))}; {', '.join(known)}")
    latency.run(
        report,
        latency.Options(
            seconds=options.seconds or (1 if options.quick else latency.SECONDS),
            rate=options.rate,
            consumers=options.consumers,
            pending=10_000 if options.quick else options.pending,
            variants=tuple(options.variants),
        ),
    )


def run_queue(report: Report, options: argparse.Namespace) -> None:
    """The queue beside huey, persist-queue, litequeue and taskiq; needs the extra `bench`."""
    queues.run(report, quick=options.quick)
    queue_wakes.run(report, quick=options.quick)


def run_lake(report: Report, options: argparse.Namespace) -> None:
    """The jobs on a lake; needs the extra `spark`."""
    lake.run(report, quick=options.quick)


def run_spark(report: Report, options: argparse.Namespace) -> None:
    """The data source for Spark, on two cores, beside Spark reading Parquet."""
    spark.run(report, quick=options.quick)


def run_dump(report: Report, options: argparse.Namespace) -> None:
    """Whole stores in every format, out and in."""
    dump.formats(report, dump.QUICK if options.quick else dump.FULL)


def run_archive(report: Report, options: argparse.Namespace) -> None:
    """Trimming into the archive, archiving, reading history."""
    archive.archive(report, quick=options.quick)


def run_fsck(report: Report, options: argparse.Namespace) -> None:
    """Checking a store, its memory, and how fast pages are looked through for nodes."""
    millions = options.entries or (0.1 if options.quick else 10)
    fsck.measure(report, round(millions * 1_000_000))


def run_server(report: Report, options: argparse.Namespace) -> None:
    """`streamkeep serve` beside redis-server."""
    server.measure(report, quick=options.quick)


BENCHMARKS = {
    "codec": run_codec,
    "append": run_append,
    "read": run_read,
    "group": run_group,
    "wake": run_wake,
    "commits": run_commits,
    "durable": run_durable,
    "latency": run_latency,
    "queue": run_queue,
    "server": run_server,
    "lake": run_lake,
    "spark": run_spark,
    "dump": run_dump,
    "archive": run_archive,
    "fsck": run_fsck,
}


def main() -> int:
    """Run what was asked for; 1 when a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: whether all runs, not how fast it is"
    )
    parser.add_argument("--entries", type=float, help="millions of entries to read [default: 10]")
    only = parser.add_argument_group("latency")
    names = ", ".join(variant.name for variant in latency.VARIANTS)
    only.add_argument(
        "--variant",
        action="append",
        default=[],
        dest="variants",
        metavar="NAME",
        help=f"run only this one; may be repeated: {names}",
    )
    only.add_argument(
        "--seconds", type=float, help=f"how long each runs [default: {latency.SECONDS:g}]"
    )
    only.add_argument(
        "--rate", type=int, default=latency.RATE, help="entries per second [default: %(default)s]"
    )
    only.add_argument(
        "--consumers",
        type=int,
        default=latency.CONSUMERS,
        help="processes that read [default: %(default)s]",
    )
    only.add_argument(
        "--pending",
        type=int,
        default=latency.PENDING,
        help="entries that are pending where there are many [default: %(default)s]",
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark: {', '.join(sorted(unknown))}")
    report = Report()
    report.header()
    for name in options.names or BENCHMARKS:
        report.section(f"{name}: {BENCHMARKS[name].__doc__}")
        BENCHMARKS[name](report, options)
    if report.missed:
        print(f"\nmissed: {', '.join(report.missed)}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
