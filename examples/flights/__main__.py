"""The demo: a year of flights through a store, from loading to a picture. Run it with `make demo`.

`make demo-small` takes two months of it, and no Spark.

The flights become one stream whose entry IDs are the scheduled departures. Each step prints what
it did and how long it took, and compares the store's answer with the list of flights.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import archive_steps
import group_steps
import streamkeep
from flight_data import WINTER, YEAR, Flight, Part, day_ms, read_flights
from reporting import expect, step
from streamkeep import recovery
from streamkeep.format.core.durations import duration_text
from streamkeep.format.humanize import time_text

KEY: Final = "flights"
BATCH: Final = 1000
DAY_MS: Final = 86_400_000

INTRODUCTION: Final = """\
Streamkeep keeps Redis streams in a folder. This demo puts {count:,} flights that left New York
in 2013 into one, checks every answer against the list of flights, and stops at the first wrong one.
All that it makes is in {folder}. Each line is one step, with its time and what came out.
"""


def run(folder: Path, part: Part, *, with_spark: bool) -> None:
    """Run every step; leave the store and the pictures in `folder`."""
    path = folder / "flights.store"
    print(INTRODUCTION.format(count=part.flights, folder=folder), flush=True)
    for old in (path, folder / "month.store"):
        if old.exists():
            shutil.rmtree(old)
    with step("read the flights") as facts:
        flights = read_flights(part)
        facts.append(f"{len(flights):,} flights, {_day(flights[0].ms)} to {_day(flights[-1].ms)}")
    expect("the number of flights", len(flights), part.flights)
    with streamkeep.open(path, decode_responses=True) as store:
        load(store, flights)
        query(store, flights, part)
        left = cap(store, flights, part.cap)
        left = delete_cancelled(store, left)
        share(store)
        archive_steps.run(store, flights, folder, BATCH, part)
    with streamkeep.open(path, decode_responses=True) as store:
        with step("reopen and check") as facts:
            expect("the length after reopening", store.xlen(KEY), len(left))
            findings = [str(finding) for finding in recovery.check(store)]
            expect("what the check found", findings, [])
            expect("the last entry", store.xrevrange(KEY, count=1)[0].fields, left[-1].fields)
            facts.append(f"{len(left):,} entries, nothing wrong")
        report(store, left, folder)
    print(f"\nlook at  {folder / 'flights.png'}")
    if with_spark:
        import lake_steps

        print("\nThe same flights on Spark, in a lake of Parquet files:\n", flush=True)
        page = lake_steps.run(folder, len(flights) - archive_steps.ERASED)
        print(f"\nlook at  {page}")
    command = Path(sys.executable).with_name("streamkeep")
    print(f"or try   {command} stat {path}")
    print(f"         {command} exec {path} XINFO GROUPS flights")
    print(f"         {command} archive list {path} --plot {folder / 'archive.png'}")
    if with_spark:
        print(f"         {command} spark audit {path} --lake {folder / 'flights.lake'}")


def load(store: streamkeep.Store[str], flights: list[Flight]) -> None:
    """Append all flights in durable batches."""
    with step("append, 1,000 per transaction") as facts:
        start = time.perf_counter()
        for at in range(0, len(flights), BATCH):
            batch = flights[at : at + BATCH]
            ids = [f"{flight.ms}-*" for flight in batch]
            store.xadd_many(KEY, [flight.fields for flight in batch], ids=ids)
        rate = len(flights) / (time.perf_counter() - start)
        expect("the length", store.xlen(KEY), len(flights))
        facts.append(f"{rate:,.0f} entries/s, each batch on disk before the next")
        with store.snapshot() as snapshot:
            stat = snapshot.stat(KEY)
        per_entry = stat.node_bytes / stat.length
        facts.append(f"{stat.nodes:,} macro nodes, {per_entry:.1f} bytes per entry")


def query(store: streamkeep.Store[str], flights: list[Flight], part: Part) -> None:
    """Read time ranges forwards and backwards."""
    first = day_ms(part.holiday)
    last = first + DAY_MS - 1
    with step(f"one day, {part.holiday}, both ways") as facts:
        wanted = [flight.fields for flight in flights if first <= flight.ms <= last]
        forwards = store.xrange(KEY, first, last)
        backwards = store.xrevrange(KEY, last, first)
        expect("the day forwards", [entry.fields for entry in forwards], wanted)
        expect("the day backwards", backwards, forwards[::-1])
        facts.append(f"{len(forwards)} flights from {forwards[0].id} to {forwards[-1].id}")
    with step("all of it in steps") as facts:
        count, position = 0, "-"
        while page := store.xrange(KEY, position, "+", count=BATCH):
            count += len(page)
            position = f"({page[-1].id}"
        expect("the entries read in steps", count, len(flights))
        facts.append(f"{count:,} entries, {BATCH:,} at a time")


def cap(store: streamkeep.Store[str], flights: list[Flight], most: int) -> list[Flight]:
    """Keep about the newest `most` entries; the trim removes whole macro nodes."""
    with step(f"cap at about {most:,} (MAXLEN ~)") as facts:
        removed = store.xtrim(KEY, maxlen=most, limit=0)
        left = store.xlen(KEY)
        expect("what is left", removed + left, len(flights))
        expect("whether at least the cap is left", most <= left < most + 500, True)
        expect("the oldest entry", store.xrange(KEY, count=1)[0].fields, flights[removed].fields)
        facts.append(f"{removed:,} entries removed, {left:,} are left")
    return flights[removed:]


def delete_cancelled(store: streamkeep.Store[str], flights: list[Flight]) -> list[Flight]:
    """Delete the cancelled flights while iterating over the stream."""
    with step("delete cancelled flights (XDEL)") as facts:
        with store.transaction() as txn:
            for entry in txn.scan(KEY):
                if "dep_delay" not in entry.fields:
                    entry.delete()
        left = [flight for flight in flights if not flight.cancelled]
        expect("the length", store.xlen(KEY), len(left))
        facts.append(f"{len(flights) - len(left):,} deleted in one transaction")
    return left


def share(store: streamkeep.Store[str]) -> None:
    """Let two processes of a group compute the speed of every flight, and kill one of them."""
    with step("two workers, one is killed") as facts:
        start = time.perf_counter()
        outcome = group_steps.share_work(store, KEY)
        rate = store.xlen(KEY) / (time.perf_counter() - start)
        expect("the flights with a result", outcome.flights, Counter(_ids(store)))
        expect("what is pending", (outcome.pending, outcome.lag), (0, 0))
        expect("whether the killed worker left entries pending", outcome.left_pending > 0, True)
        shares = ", ".join(f"{name} {count:,}" for name, count in outcome.workers.items())
        facts.append(f"{rate:,.0f} entries/s; {shares}")
        facts.append(f"{outcome.left_pending:,} left pending and claimed")
        facts.append("every flight once")


def _ids(store: streamkeep.Store[str]) -> Iterator[str]:
    return (entry.id for entry in store.scan(KEY))


def report(store: streamkeep.Store[str], flights: list[Flight], folder: Path) -> None:
    """Print and draw figures from the stream."""
    carriers: Counter[str] = Counter()
    delays: dict[int, list[int]] = {hour: [] for hour in range(24)}
    days: Counter[int] = Counter()
    for entry in store.scan(KEY):
        carrier, delay = entry.fields["carrier"], int(entry.fields["dep_delay"])
        carriers[carrier] += 1
        days[entry.stream_id.ms // DAY_MS] += 1
        local_hour = (entry.stream_id.ms // 3_600_000 - 5) % 24  # Eastern Standard Time
        delays[local_hour].append(delay)
    expect("flights by carrier", carriers, Counter(f.fields["carrier"] for f in flights))
    print("\ncarrier  flights")
    for carrier, count in carriers.most_common(5):
        print(f"{carrier:<7}  {count:>7,}")
    means = {hour: sum(some) / len(some) for hour, some in delays.items() if len(some) >= 100}
    worst = max(means, key=lambda hour: means[hour])
    print(f"departures are latest at {worst}:00: {means[worst]:.1f} minutes on average")
    _draw(days, means, folder / "flights.png")


def _draw(days: Counter[int], means: dict[int, float], path: Path) -> None:
    """Draw flights per day and the mean delay per hour."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.dates import ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(
            "matplotlib is not installed; next: make demo, which installs it"
        ) from None
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1)
    ordered = sorted(days)[1:-1]  # the first and the last one are not whole
    top.fill_between(
        [datetime.fromtimestamp(day * 86_400, UTC) for day in ordered],
        [days[day] for day in ordered],
        step="mid",
        color="#4878a8",
    )
    fewest = min(ordered, key=lambda day: days[day])
    typical = sorted(days[day] for day in ordered)[len(ordered) // 2]
    lowest = datetime.fromtimestamp(fewest * 86_400, UTC)
    day = f"{lowest.day} {lowest:%B}"
    top.set_title(
        f"{typical:,} flights on a typical day; on {day} only {days[fewest]:,} left", loc="left"
    )
    top.annotate(
        f"{lowest.day} {lowest:%b}",
        (cast(Any, lowest), days[fewest]),
        xytext=(0, -14),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )
    locator: Any = top.xaxis.get_major_locator()
    formatter: Any = ConciseDateFormatter
    top.xaxis.set_major_formatter(formatter(locator))
    top.set_ylim(bottom=0)
    worst = max(means, key=lambda hour: means[hour])
    best = min(means, key=lambda hour: means[hour])
    colors = ["#c86432" if hour == worst else "#e0b090" for hour in means]
    bars = bottom.bar(list(means), list(means.values()), color=colors)
    bottom.bar_label(bars, fmt="%.0f", fontsize=8)
    bottom.set_title(
        f"Leave before {best + 1}:00, not at {worst}:00: delays grow over the day "
        f"({means[best]:.0f} to {means[worst]:.0f} minutes on average)",
        loc="left",
    )
    bottom.set_xticks(sorted(means), [f"{hour}:00" for hour in sorted(means)])
    bottom.set_xlabel("scheduled departure, Eastern Standard Time", loc="left")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)


def _day(ms: int) -> str:
    return time_text(ms)[:10]


def main(arguments: list[str]) -> None:
    """Run the demo in the given folder, or in `demo-output`; with --small, a part of it."""
    small = "--small" in arguments
    folders = [one for one in arguments if one != "--small"]
    folder = Path(folders[0] if folders else "demo-output")
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    run(folder, WINTER if small else YEAR, with_spark=not small)
    print(f"done in {duration_text(1000 * (time.perf_counter() - start))}")


if __name__ == "__main__":
    main(sys.argv[1:])
