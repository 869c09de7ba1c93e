"""top, metrics: the figures of a store, as a live table and for Prometheus."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from streamkeep.format import quoting
from streamkeep.format.humanize import count_text, size_text
from streamkeep.metrics import figures_of, write_textfile
from streamkeep.metrics.figures import Figures, GroupFigures, StreamFigures
from streamkeep.metrics.prometheus import metrics_of, text_of
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Ms, StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.terminal import binary_output, unguarded, visible
from streamkeep.tools.commands.queue_cmds import STATES


@command()
def top(store_path: StorePath, interval: Ms = 1_000, once: bool = False) -> None:
    """Show streams, queues, rates and workers, live.

    Rates are those of the last interval. `oldest` is the age of the oldest delivery that is
    pending, or of the oldest job that waits. Streams with the oldest pending entries come first,
    then those with the most to read. Ends with Ctrl-C, or SIGTERM. Without a terminal, it prints
    one table, as with --once.

    Examples:
      streamkeep top jobs.store
      streamkeep top jobs.store --interval 5s
      streamkeep top jobs.store --once --json

    Args:
        interval: Time between two looks.
        once: Print one table, with rates over one interval.
    """
    seconds = max(interval, 50) / 1000
    with open_store(store_path, readonly=True) as store:
        before = figures_of(store)
        if once or common.as_json() or not sys.stdout.isatty():
            time.sleep(seconds)
            now = figures_of(store)
            if common.as_json():
                _print_json(before, now)
            else:
                for line in lines_of(before, now):
                    output.line(line)
            return
        from rich.console import Console
        from rich.text import Text

        screen = Console(file=unguarded(sys.stdout), force_terminal=True, highlight=False)
        # Otherwise it would leave its screen, and no cursor.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt), screen.screen():
            while True:
                time.sleep(seconds)
                now = figures_of(store)
                shown = fitting(lines_of(before, now), *screen.size)
                screen.update_screen(Text("\n".join(shown), no_wrap=True))
                before = now


def fitting(lines: list[str], columns: int, height: int) -> list[str]:
    """Return what fits into a screen: longer lines are cut, and the last line counts the rest."""
    from rich.cells import set_cell_size

    if len(lines) > height:
        left_out = len(lines) - height + 1
        lines = [*lines[: height - 1], f"… {left_out:,} lines more"]
    return [set_cell_size(visible(line), columns).rstrip() for line in lines]


def _print_json(before: Figures, now: Figures) -> None:
    rates = _rates(before, now)
    for stream in now.streams:
        output.json_line(
            "stream",
            key=stream.key,
            length=stream.length,
            added_per_s=rates[stream.key],
            groups=[one._asdict() for one in stream.groups],
        )
    for queue in now.queues:
        done_per_s = rates[queue.name]
        output.json_line("queue", name=queue.name, done_per_s=done_per_s, **queue.stats._asdict())
    output.summary(**now.store._asdict())


def _rates(before: Figures, now: Figures) -> dict[bytes | str, float]:
    """Return the entries added per second by stream, and the jobs done by queue."""
    seconds = max(1, now.time_ms - before.time_ms) / 1000
    former, found = _counts(before), _counts(now)
    return {one: max(0, count - former.get(one, count)) / seconds for one, count in found.items()}


def _counts(figures: Figures) -> dict[bytes | str, int]:
    found: dict[bytes | str, int] = {one.key: one.entries_added for one in figures.streams}
    found.update((one.name, one.stats.done) for one in figures.queues)
    return found


def lines_of(before: Figures, now: Figures) -> list[str]:
    store = now.store
    seconds = max(1, now.time_ms - before.time_ms) / 1000
    commits = max(0, store.last_commit - before.store.last_commit) / seconds
    head = [
        f"{store.path}  {commits:,.0f} commits/s  data {size_text(store.data_bytes)}  "
        f"journal {size_text(store.journal_bytes)}  "
        f"disk {size_text(store.disk_free_bytes)} free  {count_text(store.snapshots, 'snapshot')}",
        "",
    ]
    rows: list[tuple[str, ...]] = []
    rates = _rates(before, now)
    for queue in now.queues:
        stats = queue.stats
        counts = (f"{getattr(stats, state):,}" for state in STATES)
        oldest = output.span_text(stats.oldest_ms / 1000) if stats.oldest_ms else "-"
        done = f"{rates[queue.name]:,.0f}/s"
        rows.append((queue.name, *counts, done, oldest, f"{stats.workers:,}"))
    if rows:
        headings: tuple[str, ...] = ("QUEUE", *STATES, "done", "oldest", "workers")
        head += [*output.table_lines(headings, rows, left=(0,), width=None), ""]
    rows = []

    def urgency(stream: StreamFigures) -> tuple[int, int]:
        """Return what puts a stream first: minutes that an entry is pending, entries to read."""
        pending = max((one.oldest_pending_ms for one in stream.groups), default=0)
        return pending // 60_000, max((one.lag or 0 for one in stream.groups), default=0)

    for stream in sorted(now.streams, key=urgency, reverse=True):
        name, rate = output.cut(quoting.shown(stream.key)), f"{rates[stream.key]:,.0f}/s"
        for cells in map(_group_cells, stream.groups) if stream.groups else [("-",) * 5]:
            rows.append((name, f"{stream.length:,}", rate, *cells))
    headings = ("STREAM", "entries", "added", "group", "lag", "pending", "oldest", "alive")
    return head + output.table_lines(headings, rows, left=(0,), width=None)


def _group_cells(group: GroupFigures) -> tuple[str, ...]:
    oldest = group.oldest_pending_ms
    return (
        output.cut(quoting.shown(group.name)),
        "-" if group.lag is None else f"{group.lag:,}",
        f"{group.pending:,}",
        output.span_text(oldest / 1000) if oldest else "-",
        f"{group.alive}/{group.consumers}",
    )


# --- metrics ------------------------------------------------------------------------------------


@command()
def metrics(store_path: StorePath, textfile: Path | None = None) -> None:
    """Print the figures of STORE as Prometheus text.

    Streams, groups, queues of jobs, workers, disk, archive. The FILE of --textfile is replaced at
    once, so that the node exporter never reads a half of it. In an application,
    `streamkeep.metrics.prometheus_text(store)` returns the same text.

    Examples:
      streamkeep metrics orders.store
      streamkeep metrics orders.store --textfile orders.prom

    Args:
        textfile (FILE): Write to FILE, for the textfile collector of the node exporter.
    """
    with open_store(store_path, readonly=True) as store:
        if textfile is not None:
            write_textfile(store, textfile)
            output.done(path=str(textfile))
            return
        found = metrics_of(figures_of(store))
    if common.as_json():
        count = 0
        for metric in found:
            for labels, value in metric.samples:
                if value is not None:
                    output.json_line("metric", name=metric.name, labels=labels, value=value)
                    count += 1
        output.summary(metrics=count)
        return
    out = binary_output()  # labels are UTF-8, with the format's own escapes
    out.write(text_of(found).encode())
    out.flush()
