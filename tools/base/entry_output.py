"""How entries are printed: what `range`, `read`, `claim` and `info stream --full` share.

A line of text begins with the ID, and a JSON object has it as `id`: `ack -` reads either.

A delivery changes the store and is committed before anything is printed: an entry on the screen is
pending.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from streamkeep.format import quoting
from streamkeep.format.core.entry import ClaimedEntry, Entry, StreamId
from streamkeep.format.core.json_form import json_bytes, json_pairs
from streamkeep.format.humanize import count_text, time_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.statuses import Exit, Failure

if TYPE_CHECKING:
    from streamkeep.engine.api.views import Snapshot

Function = TypeVar("Function", bound=Callable[..., object])


class Printable(Protocol):
    """An entry: what `scan` yields, or what a group delivers."""

    @property
    def id(self) -> StreamId | bytes:
        """The entry's ID."""

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Fields and values in their order, duplicate fields included."""


def shape_options(function: Function) -> Function:
    """Add what decides how entries are printed."""
    times = click.option(
        "--show-time", is_flag=True, help="Print the time of each ID after it (text only)."
    )
    return times(function)


def print_entry(
    entry: Printable, *, show_time: bool, key: bytes | None = None, ending: str = "", **members: int
) -> None:
    """Print one entry on one line.

    Args:
        key: the stream that it is from, to be printed, too.
        ending, members: what else to say of it, as text and in JSON.
    """
    entry_id = entry.id if isinstance(entry.id, StreamId) else StreamId.parse(entry.id)
    if common.as_json():
        output.json_line(
            "entry",
            **id_members(key, entry_id),
            fields=json_pairs(entry.pairs),
            **members,
        )
        return
    output.line(
        f"{id_text(key, entry_id, show_time=show_time)}  {quoting.pairs_text(entry.pairs)}{ending}"
    )


def print_id(
    kind: str,
    entry_id: StreamId,
    *,
    show_time: bool = False,
    key: bytes | None = None,
    ending: str = "",
) -> None:
    """Print an entry of which only the ID is known, or asked for; `kind` is its JSON type."""
    if common.as_json():
        output.json_line(kind, **id_members(key, entry_id))
    else:
        output.line(f"{id_text(key, entry_id, show_time=show_time)}{ending}")


def print_delivered(
    entry: Entry | ClaimedEntry, *, show_time: bool = False, key: bytes | None = None
) -> None:
    """Print one entry on one line; with `key`, the stream that it is from."""
    if not entry.fields:  # every entry has fields: this one was deleted, and is still pending
        print_id("deleted", entry.stream_id, show_time=show_time, key=key, ending="  (deleted)")
        return
    members: dict[str, int] = {}
    ending = ""
    if isinstance(entry, ClaimedEntry):
        idle_ms, count = entry.former_idle_ms, entry.former_delivery_count
        members = {"idle_ms": idle_ms, "times_delivered": count}
        if count:
            idle, times = output.span_text(idle_ms / 1000), count_text(count, "time")
            ending = f"  (idle {idle}, delivered {times})"
    print_entry(entry, show_time=show_time, key=key, ending=ending, **members)


def id_members(key: bytes | None, entry_id: StreamId) -> dict[str, object]:
    """Return the first members of the JSON object of an entry."""
    of_stream = {} if key is None else {"key": json_bytes(key)}
    return {**of_stream, "id": str(entry_id), "time_ms": entry_id.ms}


def id_text(key: bytes | None, entry_id: StreamId, *, show_time: bool) -> str:
    """Return what the line of an entry begins with."""
    start = "" if key is None else f"{quoting.shown(key, ' ')}  "
    clock = f"  {time_text(entry_id.ms)}" if show_time else ""
    return f"{start}{entry_id}{clock}"


def check_exists(snapshot: Snapshot, *keys: bytes) -> None:
    """End the command with the status for what is missing, where none of the streams exists.

    A missing stream answers like an empty one, so the answer is printed before.
    """
    if not any(map(snapshot.exists, keys)):
        raise no_stream(click.get_current_context().params["store_path"], *keys)


def no_stream(path: Path, *keys: bytes) -> Failure:
    """Return the error for streams that do not exist."""
    names = ", ".join(map(quoting.named, dict.fromkeys(keys)))
    return Failure(
        f"no stream {names} in {path}",
        hint=f"streamkeep streams {shlex.quote(str(path))}",
        status=Exit.MISSING,
        code="NoSuchKeyError",
    )
