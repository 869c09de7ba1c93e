"""info: what a store knows of one stream (XINFO STREAM)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkeep.format import quoting
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import count_text, time_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import (
    count_option,
    key_argument,
    refuse_options,
    store_argument,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.entry_output import print_entry
from streamkeep.tools.base.opening import open_store

if TYPE_CHECKING:
    from streamkeep.engine.api.views import Snapshot


@command()
@store_argument
@key_argument
@click.option("--full", is_flag=True, help="Print entries and groups, too.")
@count_option(
    "How many entries, and pending entries of each group, --full prints; 0 for all.",
    least=0,
    default=10,
)
def info(store_path: Path, key: bytes, full: bool, count: int) -> None:
    """Print counters, first and last entry of KEY (XINFO STREAM).

    radix-tree-keys is the number of macro nodes, each of which holds many entries. The figures
    with idmp, pids and iids concern `streamkeep add --idmp`.

    \b
    Examples:
      streamkeep info orders.store orders
      streamkeep info orders.store orders --full --count 3
    """
    if not full:
        refuse_options("needs --full", "count")
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        counters = snapshot.xinfo_stream(key)
        ends = {"first-entry": next(snapshot.scan(key), None)}
        ends["last-entry"] = next(snapshot.scan(key, reverse=True), None)
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
            output.json_line("stream", key=json_bytes(key), **members)
        else:
            width = max(map(len, figures))
            for name, value in figures.items():
                text = output.number(value) if isinstance(value, int) else value
                output.line(f"{name:<{width}}  {text}")
            for name, entry in ends.items():
                brief = "-"
                if entry is not None:
                    brief = f"{entry.id.decode()}  {output.brief_pairs(entry.pairs)}"
                output.line(f"{name:<{width}}  {brief}")
        printed = print_entries(snapshot, key, count) if full else 0
        if full:
            for one in full_groups(snapshot, key, count):
                print_full_group(key, one)
    output.done(key=json_bytes(key), entries=printed)


def print_entries(snapshot: Snapshot, key: bytes, count: int) -> int:
    """Print the first `count` entries, 0 for all; return how many there were."""
    printed = 0
    if not common.as_json():
        output.line("entries")
    for entry in islice(snapshot.scan(key), count or None):
        if common.as_json():
            print_entry(entry, show_time=False)
        else:
            output.line(f"  {entry.id.decode()}  {quoting.pairs_text(entry.pairs)}")
        printed += 1
    if not common.as_json():
        print_rest(snapshot.xlen(key) - printed, "  ")
    return printed


def print_rest(left: int, indent: str) -> None:
    """Say how many lines were left out."""
    if left:
        output.line(f"{indent}{output.ellipsis()} {left:,} more")


def full_groups(snapshot: Snapshot, key: bytes, count: int) -> list[dict[str, Any]]:
    """Return the groups as XINFO STREAM FULL has them; `count` 0 for all pending entries."""
    pending = [int(one["pending"]) for one in snapshot.xinfo_groups(key)]
    # 0 would also collect all entries of the stream, which may be many, and are printed already.
    most = count or max([1, *pending])
    found: list[dict[str, Any]] = snapshot.xinfo_stream(key, True, most)["groups"]
    return found


def print_full_group(key: bytes, group: dict[str, Any]) -> None:
    """Print one group of XINFO STREAM FULL with its consumers and what is pending."""
    if common.as_json():
        _print_json_group(key, group)
        return
    last_id = group["last-delivered-id"].decode()
    output.line(
        f"group {quoting.named(group['name'])}: last-delivered-id {last_id}, "
        f"entries-read {output.number(group['entries-read'])}, lag {output.number(group['lag'])}, "
        f"{group['pel-count']:,} pending, {group['nacked-count']:,} of them nacked"
    )
    for consumer in group["consumers"]:
        output.line(
            f"  consumer {quoting.named(consumer['name'])}: {consumer['pel-count']:,} pending, "
            f"seen {_moment_text(consumer['seen-time'])}, "
            f"active {_moment_text(consumer['active-time'])}"
        )
        _print_pending(consumer["pending"], consumer["pel-count"])
    if group["nacked-count"]:
        output.line("  without owner, for any consumer to claim:")
        rows = [(one, 0, count) for one, *owned, count in group["pending"] if unowned(*owned)]
        _print_pending(rows, group["nacked-count"])


def _print_pending(pending: Sequence[Sequence[Any]], total: int) -> None:
    for entry_id, delivery_time, delivery_count in pending:
        times = count_text(delivery_count, "time")
        last = f", last {time_text(delivery_time)}" if delivery_time else ""
        output.line(f"    {entry_id.decode()}  delivered {times}{last}")
    print_rest(total - len(pending), "    ")


def unowned(consumer: bytes, delivery_time: int) -> bool:
    """Say whether a pending entry has no owner: a consumer returned it with XNACK."""
    return not consumer and not delivery_time


def _print_json_group(key: bytes, group: dict[str, Any]) -> None:
    output.json_line(
        "group",
        key=json_bytes(key),
        name=json_bytes(group["name"]),
        last_delivered_id=group["last-delivered-id"].decode(),
        entries_read=group["entries-read"],
        lag=group["lag"],
        pel_count=group["pel-count"],
        nacked_count=group["nacked-count"],
        pending=[
            {
                **_json_pending(entry_id, delivery_time, delivery_count),
                "consumer": (None if unowned(owner, delivery_time) else json_bytes(owner)),
            }
            for entry_id, owner, delivery_time, delivery_count in group["pending"]
        ],
        consumers=[
            {
                "name": json_bytes(consumer["name"]),
                "seen_time_ms": known_ms(consumer["seen-time"]),
                "active_time_ms": known_ms(consumer["active-time"]),
                "pel_count": consumer["pel-count"],
                "pending": [_json_pending(*row) for row in consumer["pending"]],
            }
            for consumer in group["consumers"]
        ],
    )


def _json_pending(entry_id: bytes, delivery_time: int, delivery_count: int) -> dict[str, Any]:
    return {
        "id": entry_id.decode(),
        "delivery_time_ms": delivery_time or None,  # 0: an entry without owner
        "times_delivered": delivery_count,
    }


def known_ms(ms: int) -> int | None:
    """Return a time in Unix milliseconds; None for one that never was."""
    return None if ms < 0 else ms


def _moment_text(ms: int) -> str:
    """Return a time as text; `never` for one that never was."""
    return "never" if ms < 0 else time_text(ms)
