"""Commands that look at streams: streams, info, pending, stat."""

from __future__ import annotations

import shutil
import sys
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.format import quoting
from streamkeep.format.core.json_form import consumer_json, pending_json
from streamkeep.format.humanize import calendar, count_text, entries_text, size_text, time_text
from streamkeep.format.node.node import live_ids
from streamkeep.format.time_buckets import Plan, plan_buckets
from streamkeep.supported import install_hint
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import From, Ms, Natural, StorePath, To
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Failure
from streamkeep.tools.base.opening import open_store

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Snapshot
    from streamkeep.engine.commands.xinfo import StreamStat


@command()
def streams(
    store_path: StorePath,
    pattern: bytes = b"*",
    *,
    sort: Literal["key", "entries", "first", "last", "nodes", "size"] = "key",
) -> None:
    """List the streams of STORE whose key matches PATTERN (KEYS).

    PATTERN is a glob as in Redis: * is any text, ? one character, [ab] one of these. Quote it, or
    the shell replaces it with file names. The size is that of the entries as they are stored.

    Examples:
      streamkeep streams orders.store
      streamkeep streams orders.store --sort size
      streamkeep streams orders.store 'order*' --json

    Args:
        sort: The column that orders the list: keys from a to z, the largest figure or the newest
            time first.
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        wanted = set(snapshot.keys(pattern))
        found = [stat for stat in snapshot.stats() if stat.name in wanted]
    if sort != "key":  # they come by key, and those with the same figure stay so
        found.sort(key=_FIGURES[sort], reverse=True)
    entries = sum(stat.length for stat in found)
    size = sum(stat.node_bytes for stat in found)
    headings = ("key", "entries", "first", "last", "nodes", "size")
    output.listing(
        "stream",
        found,
        stream_json,
        headings,
        lambda stat: (
            *(output.cut(quoting.shown(stat.name)), stat.length),
            *("-" if ms is None else time_text(ms) for ms in (stat.first_ms, stat.last_ms)),
            *(stat.nodes, size_text(stat.node_bytes)),
        ),
        left=(0, 2, 3),
    )
    output.total(
        f"{count_text(len(found), 'stream')}, {entries_text(entries)}, {size_text(size)}",
        streams=len(found),
        entries=entries,
        size_bytes=size,
    )


_FIGURES: Final[dict[str, Callable[[StreamStat], int]]] = {
    "entries": lambda stat: stat.length,
    "first": lambda stat: stat.first_ms or 0,
    "last": lambda stat: stat.last_ms or 0,
    "nodes": lambda stat: stat.nodes,
    "size": lambda stat: stat.node_bytes,
}


def stream_json(stat: StreamStat) -> dict[str, Any]:
    return {
        "key": stat.name,
        "length": stat.length,
        "first_time_ms": stat.first_ms,
        "last_time_ms": stat.last_ms,
        "nodes": stat.nodes,
        "tombstones": stat.tombstones,
        "size_bytes": stat.node_bytes,
    }


@command()
def info(store_path: StorePath, key: bytes) -> None:
    """Print counters, both ends, groups and consumers of KEY (XINFO).

    radix-tree-keys is the number of macro nodes, each of which holds many entries. The figures
    with idmp, pids and iids concern `streamkeep add --idmp`. The lease of a consumer says whether
    the process that got its newest entries is alive or dead; unknown if it had none.

    Example:
      streamkeep info orders.store orders
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        counters = snapshot.xinfo_stream(key)
        ends = {"first-entry": next(snapshot.scan(key), None)}
        ends["last-entry"] = next(snapshot.scan(key, reverse=True), None)
        groups = snapshot.xinfo_groups(key)
        consumers = [
            (group["name"], one)
            for group in groups
            for one in snapshot.xinfo_consumers(key, group["name"], leases=True)
        ]
    figures = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in counters.items()
        if name not in ends
    }
    if common.as_json():
        members = {name.replace("-", "_"): value for name, value in figures.items()}
        for name, entry in ends.items():
            shown = None if entry is None else entry.id.decode()
            members[name.replace("-", "_") + "_id"] = shown
        output.json_line("stream", key=key, **members)
    else:
        width = max(map(len, figures))
        for name, value in figures.items():
            text = output.number(value) if isinstance(value, int) else value
            output.line(f"{name:<{width}}  {text}")
        for name, entry in ends.items():
            text = entry and f"{entry.id.decode()}  {quoting.brief_pairs(entry.pairs)}"
            output.line(f"{name:<{width}}  {text or '-'}")
    output.listing(
        "group",
        groups,
        lambda one: {"key": key, **{name.replace("-", "_"): one[name] for name in one}},
        ("group", "last-delivered-id", "entries-read", "lag", "pending", "consumers"),
        lambda one: (
            *(output.cut(quoting.shown(one["name"])), one["last-delivered-id"].decode()),
            *(one["entries-read"], one["lag"], one["pending"], one["consumers"]),
        ),
        left=(0, 1),
    )
    output.listing(
        "consumer",
        consumers,
        lambda row: {
            "key": key,
            "group": row[0],
            **consumer_json(row[1]),
            "lease": row[1]["lease"],
        },
        ("group", "consumer", "pending", "idle", "inactive", "lease"),
        lambda row: (
            *(output.cut(quoting.shown(name)) for name in (row[0], row[1]["name"])),
            row[1]["pending"],
            output.span_text(row[1]["idle"] / 1000),
            "-" if row[1]["inactive"] < 0 else output.span_text(row[1]["inactive"] / 1000),
            row[1]["lease"],
        ),
        left=(0, 1, 5),
    )
    output.done(key=key, groups=len(groups), consumers=len(consumers))


LISTED: Final = 100  # pending entries that are printed unless another count is asked for
_BATCH: Final = 1000


@command()
def pending(
    store_path: StorePath,
    key: bytes,
    group: bytes,
    start: From | None = None,
    end: To | None = None,
    count: Natural | None = None,
    idle: Ms | None = None,
    consumer: bytes | None = None,
) -> None:
    """Print delivered entries that are not acknowledged (XPENDING).

    Without options, a summary: how many entries, the first and the last ID, and the owners. With
    any option, the entries by ID: the owner of each, how long ago it was delivered, and how often.
    The owner is - if a consumer returned the entry with XNACK.

    Examples:
      streamkeep pending orders.store orders mail
      streamkeep pending orders.store orders mail --count 20
      streamkeep pending orders.store orders mail --consumer ann --idle 1m --json

    Args:
        start: From this ID or time on.
        end: Up to this ID or time.
        count (-n N): Print at most N of them; 100 by default, 0 for all.
        idle: Only entries that were delivered at least so long ago, or have no owner.
        consumer (CONSUMER): Only entries of this consumer.
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        if (start, end, count, idle, consumer) == (None,) * 5:
            print_summary(snapshot, key, group)
            return
        most = LISTED if count is None else count or sys.maxsize
        found: list[dict[str, Any]] = []
        low, high, batch = start or b"-", end or b"+", _BATCH
        while len(found) <= most and batch == _BATCH:  # one more, to know whether there is more
            rows = snapshot.xpending_range(key, group, low, high, _BATCH, consumer, idle)
            batch = len(rows)
            found += rows
            low = b"(" + rows[-1]["message_id"] if rows else low
        more = len(found) > most
        del found[most:]

    def cells(row: dict[str, Any]) -> tuple[output.Cell, ...]:
        """Return a row of the table; the owner is - for none, which only the idle time shows."""
        idle, owner, since = row["time_since_delivered"], "-", "-"
        if idle >= 0:
            owner, since = output.cut(quoting.shown(row["consumer"])), output.span_text(idle / 1000)
        return row["message_id"].decode(), owner, since, row["times_delivered"]

    output.listing(
        "pending",
        found,
        lambda row: {"key": key, **pending_json(row)},
        ("id", "consumer", "idle", "delivered"),
        cells,
        left=(0, 1),
    )
    further = f"next: --start '({found[-1]['message_id'].decode()}' continues" if more else ""
    output.total(further, key=key, entries=len(found), more=more)


def print_summary(snapshot: Snapshot, key: bytes, group: bytes) -> None:
    found = snapshot.xpending(key, group)
    owners = [(one["name"], int(one["pending"])) for one in found["consumers"]]
    nobody = found["pending"] - sum(count for _, count in owners)
    lowest, highest = (one and one.decode() for one in (found["min"], found["max"]))
    if common.as_json():
        for name, count in owners:
            output.json_line("consumer", key=key, group=group, name=name, pending=count)
        pending = found["pending"]
        output.summary(key=key, pending=pending, min_id=lowest, max_id=highest, unowned=nobody)
        return
    output.line(f"pending  {output.number(found['pending'])}")
    if lowest is None:
        return
    output.line(f"from     {lowest}")
    output.line(f"to       {highest}")
    output.line("")
    rows = [(output.cut(quoting.shown(name)), count) for name, count in owners]
    if nobody:
        rows.append(("-", nobody))
    output.table(("consumer", "pending"), rows, left=(0,))


# --- stat -----------------------------------------------------------------------------------------


PICTURES: Final = (".png", ".svg")
# Counting reads every entry, a million in about a second. Above this it must be asked for.
COUNTED_UNASKED: Final = 2_000_000


@command()
def stat(
    store_path: StorePath,
    key: bytes | None = None,
    chart: bool | None = None,
    plot: Path | None = None,
) -> None:
    """Print figures of STORE or KEY: entries, sizes, entries over time.

    Entries are packed into macro nodes of about one page. Tombstones are deleted entries that still
    take space in their node. The data file does not shrink: free space is used again.

    Examples:
      streamkeep stat orders.store
      streamkeep stat orders.store orders --plot orders.svg

    Args:
        chart: Count the entries over time, which reads all of them; by default up to 2,000,000
            entries.
        plot (FILE.png|svg): Draw the entries over time into a file; needs the extra `plot`.
    """
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise click.BadParameter(f"{plot}: the name must end in {' or '.join(PICTURES)}")
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        stats = list(snapshot.stats()) if key is None else [snapshot.stat(key)]
        figures = _figures(store, stats)
        if common.as_json():
            for one in stats:
                per_entry = _per_entry(one.node_bytes, one.length)
                output.json_line("stream", **stream_json(one), bytes_per_entry=per_entry)
        else:
            _print_figures(str(store_path) if key is None else quoting.named(key), key, figures)
            sys.stdout.flush()
        if chart is None and plot is None and figures["entries"] > COUNTED_UNASKED:
            chart = False
            if not common.as_json():
                entries = entries_text(figures["entries"])
                output.note(f"next: --chart counts the {entries} over time")
        first = figures["first_time_ms"]
        if first is not None and (chart is not False or plot):
            plan = plan_buckets(first, figures["last_time_ms"])
            with output.progress("counting", "entries") as advance:
                keys = [one.name for one in stats]
                counts = count_entries(snapshot, keys, plan, advance)
            if chart is not False:
                show_chart(plan, counts)
            if plot is not None:
                title = quoting.shown(key) if key else str(store_path)
                plot_entries(plan, counts, title, plot)
                output.note(f"wrote {plot}")
        elif plot is not None:
            output.note(f"no entries: {plot} was not written")
    output.done(path=str(store_path), **figures)


def _figures(store: Store, stats: list[StreamStat]) -> dict[str, Any]:
    firsts = [one.first_ms for one in stats if one.first_ms is not None]
    lasts = [one.last_ms for one in stats if one.last_ms is not None]
    entries = sum(one.length for one in stats)
    size = sum(one.node_bytes for one in stats)
    return {
        "store_uuid": store.uuid,
        "streams": len(stats),
        "entries": entries,
        "first_time_ms": min(firsts, default=None),
        "last_time_ms": max(lasts, default=None),
        "nodes": sum(one.nodes for one in stats),
        "tombstones": sum(one.tombstones for one in stats),
        "size_bytes": size,
        "bytes_per_entry": _per_entry(size, entries),
        "file_size_bytes": (store.path / DATA_FILE).stat().st_size,
        "checkpoint_commit": store.durability().checkpoint_commit,
        **durability(store),
    }


def durability(store: Store) -> dict[str, Any]:
    """Return the figures of durability, and the processes that read an old state."""
    found = store.durability()
    last = found.last_recovery
    return {
        "epoch": found.epoch,
        "last_commit": found.last_commit,
        "commits_since_checkpoint": found.last_commit - (found.checkpoint_commit or 0),
        "journal_bytes": found.journal_bytes,
        "last_recovery": None if last is None else last._asdict(),
        "readers": [
            {"process": one.process, "commits_old": one.behind}
            for one in found.readers
            if one.behind
        ],
        "reusable_bytes": store.reusable_bytes,
        "map_used_bytes": store.used_bytes,
        "map_size_bytes": store.map_size_bytes,
    }


def _per_entry(size: int, entries: int) -> float | None:
    return round(size / entries, 1) if entries else None


def durability_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    commits = count_text(facts["commits_since_checkpoint"], "commit")
    rows = [("journal", f"{size_text(facts['journal_bytes'])}, {commits} to replay")]
    last = facts["last_recovery"]
    if last is not None:
        replayed = count_text(last["replayed"], "commit")
        lost = f", {count_text(last['lost'], 'commit')} lost" if last["lost"] else ""
        rows.append(("recovered", f"{time_text(last['time_ms'])}, {replayed} replayed{lost}"))
    for slot in facts["readers"]:
        old = count_text(slot["commits_old"], "commit")
        rows.append(("reader", f"process {slot['process']} reads a state {old} old"))
    return rows


def _print_figures(title: str, key: bytes | None, figures: dict[str, Any]) -> None:
    entries, nodes = figures["entries"], figures["nodes"]
    rows = [] if key is not None else [("streams", output.number(figures["streams"]))]
    rows.append(("entries", output.number(entries)))
    if entries:
        rows.append(("first", time_text(figures["first_time_ms"])))
        rows.append(("last", time_text(figures["last_time_ms"])))
    per_node = f", {entries / nodes:,.1f} entries each" if nodes else ""
    rows.append(("nodes", f"{output.number(nodes)}{per_node}"))
    rows.append(("tombstones", output.number(figures["tombstones"])))
    per_entry = f", {figures['bytes_per_entry']} bytes per entry" if entries else ""
    rows.append(("entry data", size_text(figures["size_bytes"]) + per_entry))
    if key is None:
        used, size = figures["map_used_bytes"], figures["map_size_bytes"]
        free = size_text(figures["reusable_bytes"])
        rows.append(("data file", f"{size_text(figures['file_size_bytes'])}, {free} reusable"))
        share = f"{100 * used / size:.1f} %" if used * 1000 >= size else "less than 0.1 %"
        rows.append(("map", f"{size_text(used)} of {size_text(size)} address space, {share}"))
        rows += durability_rows(figures)
    output.line(title)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        output.line(f"  {name:<{width}}  {text}")


# --- entries over time: counted in buckets, drawn in the terminal or as a picture --------------

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def count_entries(
    snapshot: Snapshot, keys: Sequence[bytes], plan: Plan, advance: Callable[[int, int], None]
) -> list[int]:
    """Count the entries of streams in each bucket; reads the IDs of all of them."""
    counts = [0] * (len(plan.edges) - 1)
    done, total = 0, sum(map(snapshot.xlen, keys))
    for key in keys:
        walk = NodeWalk(snapshot.txn, existing_stream(snapshot.txn, key))
        more = walk.stream.record.length > 0 and walk.first()
        while more:
            ids = live_ids(walk.load(), walk.ms, walk.seq)
            for ms, _ in ids:  # the nearest bucket, should the stream's counters be wrong
                place = bisect_right(plan.edges, ms) - 1
                counts[min(max(place, 0), len(counts) - 1)] += 1
            done += len(ids)
            advance(done, total)
            more = walk.next()
    return counts


def show_chart(plan: Plan, counts: Sequence[int]) -> None:
    """Print a bar chart, one line per bucket, that fits the terminal; or an object of each."""
    if common.as_json():
        for index, count in enumerate(counts):
            begin, end = plan.edges[index : index + 2]
            output.json_line("bucket", start_time_ms=begin, end_time_ms=end, entries=count)
        return
    output.line("")
    output.line(f"entries per {plan.unit}{', UTC' if plan.style else ''}")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
    labels = [plan.label(index) for index in range(len(counts))]
    numbers = [output.number(count) for count in counts]
    label_width = max(map(len, labels))
    number_width = max(map(len, numbers))
    room = max(10, min(60, width - label_width - number_width - 4))
    highest = max(counts) or 1
    for label, number, count in zip(labels, numbers, counts, strict=True):
        eighths = max(round(8 * room * count / highest), min(count, 1))
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        output.line(f"{label:<{label_width}}  {number:>{number_width}}  {bar}".rstrip())


def plot_entries(plan: Plan, counts: Sequence[int], title: str, path: Path) -> None:
    """Draw the buckets into a PNG or SVG file, by its suffix."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise Failure(
            "--plot needs matplotlib, which is not installed", hint=install_hint("plot")
        ) from None
    with matplotlib.rc_context({"svg.hashsalt": "streamkeep"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters of the key that the font does not have
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.add_subplot()
        # A key may hold what would be mathematics, and what fonts lack.
        axes.set_title(title, parse_math=False)
        axes.set_ylabel(f"entries per {plan.unit}")
        if plan.style:
            starts: Any = [calendar(ms) for ms in plan.edges[:-1]]
            widths: Any = [timedelta(milliseconds=b - a) for a, b in pairwise(plan.edges)]
            axes.set_xlabel("time (UTC)")
        else:
            starts = [float(ms) for ms in plan.edges[:-1]]
            widths = [float(end - start) for start, end in pairwise(plan.edges)]
            axes.set_xlabel("milliseconds of the ID")
        axes.bar(starts, list(counts), width=widths, align="edge", edgecolor="white", linewidth=0.5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        for label in axes.get_xticklabels():
            label.set(rotation=30, horizontalalignment="right")
        kind = path.suffix.lower()[1:]
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(path, format=kind, dpi=150, metadata=metadata)
