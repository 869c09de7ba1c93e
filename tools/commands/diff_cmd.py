"""diff: the differences between two stores."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import click

from streamkeep.format import quoting
from streamkeep.format.humanize import count_text, entries_text, time_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Positive, StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.commands.entry_cmds import no_stream
from streamkeep.transfer.differences import BOTH, FIRST, Difference
from streamkeep.transfer.differences import diff as differences


@command()
def diff(
    store_path: StorePath, other_path: Path, key: bytes | None = None, count: Positive | None = None
) -> None:
    """Compare the stores STORE and OTHER, or the stream KEY in both.

    Compares all that commands can show: entries, counters, retention, deadlines, groups, consumers,
    pending entries and the messages that idempotent XADD remembers; without KEY also the rows of
    queues and programs. What history shows beyond live entries, and how entries are packed, does
    not count.

    A line begins with - if only STORE has something, + if only OTHER has it, and ! if it differs.

    Exit status: 0  the same
                 3  one of them cannot be read
                 4  one of them is damaged
                 6  one of them does not exist, or neither has a stream KEY
                 7  different

    Example:
      streamkeep diff orders.store orders.backup

    Args:
        count (-n N): Stop after N differences.
    """
    found = 0
    with ExitStack() as stack:
        first = stack.enter_context(open_store(store_path, readonly=True))
        second = stack.enter_context(open_store(other_path, readonly=True))
        if key is not None and not (first.exists(key) or second.exists(key)):
            where = f", neither in {store_path} nor in {other_path}"
            raise no_stream(store_path, key, where=where)
        tell = print_json if common.as_json() else print_text
        for one in islice(differences(first, second, key), count):
            found += 1
            tell(one)
    text = count_text(found, "difference") if found else ""
    output.total(text, differences=found, same=not found)
    click.get_current_context().exit(Exit.DIFFERENT if found else Exit.OK)


def print_text(one: Difference) -> None:
    mark = {BOTH: "!", FIRST: "-"}.get(one.only, "+")
    text = f"stream {quoting.named(one.key)}"
    if one.kind == "stream":
        output.line(f"{mark} {text}: {entries_text(one.number)}")
        return
    if one.kind == "rows":
        output.line(f"{mark} rows of {quoting.named(one.key)} ({one.number:,})")
        return
    if one.group is not None:
        text += f" group {quoting.named(one.group)}"
    kind = {"counter": "", "group": "", "entry": "entry ", "messages": ""}.get(
        one.kind, f"{one.kind} "
    )
    what = quoting.shown(one.what.encode()) if one.what else ""
    if one.number > 1:
        kind = {"entry": "entries ", "pending": "pending "}.get(one.kind, kind)
        text += f" {kind}{what} ({one.number:,})"
    elif what:
        text += f" {kind}{what}"
    if one.only == BOTH:
        values: list[Any] = [one.first, one.second]
        if (one.kind, one.what) == ("counter", "deadline"):
            values = [at and time_text(at) for at in values]
        text += f": {_told(values[0])} against {_told(values[1])}"
    output.line(f"{mark} {text}")


def _told(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return quoting.brief_pairs(value)
    if isinstance(value, dict):
        owner = value["consumer"]
        name = "nobody" if owner is None else quoting.named(owner)
        times = count_text(value["delivery_count"], "time")
        return f"{name}, {times}, {time_text(value['delivery_time'])}"
    if isinstance(value, tuple):
        seen, active = value
        return f"seen {time_text(seen)}, active " + ("never" if active < 0 else time_text(active))
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def print_json(one: Difference) -> None:
    members: dict[str, Any] = {"key": one.key}
    if one.group is not None:
        members["group"] = one.group
    if one.what:
        members["what"] = one.what
    members["only"] = one.only
    if one.only == BOTH and one.kind != "rows":
        members |= {"first": one.first, "second": one.second}
    if one.kind == "rows" or (one.kind in ("stream", "entry", "pending") and one.only != BOTH):
        members["count"] = one.number
    output.json_line(one.kind, **members)
