"""Commands that look at streams: streams, info, pending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from streamkeep.format import quoting
from streamkeep.format.core.json_form import consumer_json, pending_json
from streamkeep.format.humanize import count_text, entries_text, size_text, time_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import From, Ms, Natural, StorePath, To
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store

if TYPE_CHECKING:
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
    output.listing("stream", found, stream_json, headings, stream_row, left=(0, 2, 3))
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


def stream_row(stat: StreamStat) -> tuple[output.Cell, ...]:
    return (
        output.cut(quoting.shown(stat.name)),
        stat.length,
        "-" if stat.first_ms is None else time_text(stat.first_ms),
        "-" if stat.last_ms is None else time_text(stat.last_ms),
        stat.nodes,
        size_text(stat.node_bytes),
    )


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
            brief = "-"
            if entry is not None:
                brief = f"{entry.id.decode()}  {quoting.brief_pairs(entry.pairs)}"
            output.line(f"{name:<{width}}  {brief}")
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
        rows = pending_rows(snapshot, key, group, start or b"-", end or b"+", consumer, idle)
        most = LISTED if count is None else count or None
        found = list(islice(rows, most))
        more = next(rows, None) is not None
    output.listing(
        "pending",
        found,
        lambda row: {"key": key, **pending_json(row)},
        ("id", "consumer", "idle", "delivered"),
        pending_cells,
        left=(0, 1),
    )
    further = f"next: --start '({found[-1]['message_id'].decode()}' continues" if more else ""
    output.total(further, key=key, entries=len(found), more=more)


def pending_cells(row: dict[str, Any]) -> tuple[output.Cell, ...]:
    """Return a row of the table; the owner is - for none, which only the idle time shows."""
    idle, owner, since = row["time_since_delivered"], "-", "-"
    if idle >= 0:
        owner, since = output.cut(quoting.shown(row["consumer"])), output.span_text(idle / 1000)
    return row["message_id"].decode(), owner, since, row["times_delivered"]


def pending_rows(
    snapshot: Snapshot,
    key: bytes,
    group: bytes,
    start: bytes,
    end: bytes,
    consumer: bytes | None,
    idle: int | None,
) -> Iterator[dict[str, Any]]:
    """Yield pending entries by ID, as redis-py returns them."""
    while rows := snapshot.xpending_range(key, group, start, end, _BATCH, consumer, idle):
        yield from rows
        if len(rows) < _BATCH:
            return
        start = b"(" + rows[-1]["message_id"]


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
