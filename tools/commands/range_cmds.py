"""Commands that read one stream: len, range, tail.

All of them open the store without write access and read one snapshot, entry by entry, so that a
stream of any length takes little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamkeep.format.core.json_form import json_bytes
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import (
    Id,
    condition_of,
    count_option,
    key_argument,
    store_argument,
    where_option,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.entry_output import check_exists, no_stream, print_entry, shape_options
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.waiting import entries_from_now, last_id

if TYPE_CHECKING:
    from streamkeep.engine.api.read_commands import ScanEntry
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Snapshot

history_option = click.option(
    "--history",
    is_flag=True,
    help="Also entries that were trimmed and archived, in one ordered view.",
)


def print_stream(
    snapshot: Snapshot,
    key: bytes,
    entries: Iterable[ScanEntry],
    *,
    show_time: bool,
    summary: bool = True,
) -> None:
    """Print entries of one stream, and the summary; a missing stream has a status of its own.

    Args:
        summary: False for a command that goes on, and so does not end with a summary.
    """
    printed = 0
    for entry in entries:
        print_entry(entry, show_time=show_time)
        printed += 1
    if common.as_json() and summary:
        output.summary(key=json_bytes(key), entries=printed)
    if printed or snapshot.exists(key):
        return
    missing = no_stream(click.get_current_context().params["store_path"], key)
    if summary:
        raise missing
    output.note(str(missing))  # it may be created while the command waits


@command("len")
@store_argument
@key_argument
def len_(store_path: Path, key: bytes) -> None:
    """Print how many entries the stream KEY has (XLEN).

    A stream that does not exist has 0.

    \b
    Example:
      streamkeep len orders.store orders
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        length = snapshot.xlen(key)
        output.result(str(length), key=json_bytes(key), length=length)
        if not length:
            check_exists(snapshot, key)


@command("range")
@store_argument
@key_argument
@click.argument("start", metavar="[START]", type=Id("from"), default="-")
@click.argument("end", metavar="[END]", type=Id("to"), default="+")
@count_option("Print at most N entries.")
@click.option("--reverse", is_flag=True, help="Newest first (XREVRANGE).")
@history_option
@where_option
@shape_options
def range_(
    store_path: Path,
    key: bytes,
    start: bytes,
    end: bytes,
    count: int | None,
    reverse: bool,
    history: bool,
    where: tuple[bytes, ...],
    show_time: bool,
) -> None:
    """Print entries of the stream KEY, oldest first (XRANGE).

    START and END are entry IDs, both included: 1718004800000-0, or 1718004800000 for all of that
    millisecond; - and + are the ends of the stream, and '(ID' leaves the ID itself out. A time such
    as 2024-06-10T07:33:20Z, 2024-06-10T07:33 or 2024-06-10 is its first millisecond, and
    '(2024-06-11' leaves that millisecond out. An age such as -2h is so long before now.

    A line has the ID and the fields. What is not plain text is quoted with redis-cli's escapes.
    --json loses nothing, and `streamkeep load` reads it back.

    \b
    Examples:
      streamkeep range orders.store orders
      streamkeep range orders.store orders 2024-06-10 '(2024-06-11' --count 10
      streamkeep range orders.store orders --json > page.jsonl
      streamkeep range orders.store orders --reverse --count 1
      streamkeep range orders.store orders --history --count 10
      streamkeep range orders.store orders -2h --where user=42 --where kind=sale
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        reader = store if history else snapshot  # the store renews its snapshot from time to time
        condition = condition_of(where)
        found = reader.scan(key, start, end, reverse=reverse, history=history, where=condition)
        entries = islice(found, count)
        print_stream(snapshot, key, entries, show_time=show_time)


@command()
@store_argument
@key_argument
@count_option("How many entries; with 0 and --follow only new ones.", least=0, default=10)
@click.option(
    "-f", "--follow", is_flag=True, help="Continue with new entries as they come, until Ctrl-C."
)
@history_option
@shape_options
def tail(
    store_path: Path,
    key: bytes,
    count: int,
    follow: bool,
    history: bool,
    show_time: bool,
) -> None:
    """Print the last entries of the stream KEY, oldest first.

    With --follow it goes on until Ctrl-C. It sleeps between entries; a process that adds one wakes
    it. The stream may be created later. --json then prints no summary, because there is no end.

    \b
    Example:
      streamkeep tail orders.store orders -n 3
    """
    with open_store(store_path, readonly=True) as store:
        with store.snapshot() as snapshot:
            after = last_id(snapshot, key)
            reader = store if history else snapshot
            entries = last_entries(reader, key, count, history=history)
            print_stream(snapshot, key, entries, show_time=show_time, summary=not follow)
        if follow:
            for entry in entries_from_now(store, key, after):
                print_entry(entry, show_time=show_time)


def last_entries(
    reader: Store | Snapshot, key: bytes, count: int, *, history: bool = False
) -> Iterator[ScanEntry]:
    """Yield the last `count` entries, oldest first; reads them twice, to save memory."""
    if not count:
        return
    newest = reader.scan(key, reverse=True, history=history)
    back = next(islice(newest, count - 1, None), None)
    yield from reader.scan(key, "-" if back is None else back.id, history=history)
