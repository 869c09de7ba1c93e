"""Commands that read entries: len, range, revrange, read, tail.

All of them open the store without write access and read one snapshot, entry by entry, so that a
stream of any length takes little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamkeep.tools import output
from streamkeep.tools.command import (
    Bytes,
    Id,
    StoreCommand,
    json_option,
    key_argument,
    open_store,
    quoted_option,
    store_argument,
)

if TYPE_CHECKING:
    from streamkeep.engine.api import Snapshot
    from streamkeep.engine.commands import ScanEntry

Function = TypeVar("Function", bound=Callable[..., Any])

count_option = click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="Print at most N entries."
)


def shape_options(function: Function) -> Function:
    """Add what decides how entries are printed."""
    times = click.option(
        "--show-time", is_flag=True, help="Print the time of each ID behind it (text only)."
    )
    return times(json_option(function))


def print_entry(
    entry: ScanEntry, *, as_json: bool, show_time: bool, key: bytes | None = None
) -> None:
    """Print one entry on one line; with `key`, the stream that it is from."""
    if as_json:
        of_stream = {} if key is None else {"key": output.json_bytes(key)}
        output.json_line(
            "entry",
            **of_stream,
            id=str(entry.id),
            time_ms=entry.id.ms,
            fields=output.json_pairs(entry.pairs),
        )
        return
    start = "" if key is None else f"{output.shown(key, ' ')}  "
    clock = f"  {output.time_text(entry.id.ms)}" if show_time else ""
    output.line(f"{start}{entry.id}{clock}  {output.pairs_text(entry.pairs)}")


def print_stream(
    ctx: click.Context,
    snapshot: Snapshot,
    key: bytes,
    entries: Iterable[ScanEntry],
    *,
    as_json: bool,
    show_time: bool,
) -> None:
    """Print entries of one stream, and the summary; say so when the stream is missing."""
    printed = 0
    for entry in entries:
        print_entry(entry, as_json=as_json, show_time=show_time)
        printed += 1
    if as_json:
        output.json_summary(str(ctx.info_name), key=output.json_bytes(key), entries=printed)
    if not printed:
        note_missing(ctx, snapshot, key)


def note_missing(ctx: click.Context, snapshot: Snapshot, key: bytes) -> None:
    """Say that a stream does not exist: a missing one answers like an empty one."""
    if not snapshot.exists(key):
        path = ctx.params["store_path"]
        output.note(f"{ctx.command_path}: no stream {output.named(key)} in {path}")


@click.command("len", cls=StoreCommand)
@store_argument
@key_argument
@quoted_option
@click.pass_context
def len_(ctx: click.Context, store_path: Path, key: bytes) -> None:
    """Print how many entries the stream KEY has (XLEN).

    A stream that does not exist has 0.

    \b
    Example:
      streamkeep len orders.store orders
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        length = snapshot.xlen(key)
        output.line(str(length))
        if not length:
            note_missing(ctx, snapshot, key)


@click.command("range", cls=StoreCommand)
@store_argument
@key_argument
@click.argument("start", metavar="[START]", type=Id(times=True), default="-")
@click.argument("end", metavar="[END]", type=Id(times=True), default="+")
@count_option
@shape_options
@quoted_option
@click.pass_context
def range_(
    ctx: click.Context,
    store_path: Path,
    key: bytes,
    start: bytes,
    end: bytes,
    count: int | None,
    as_json: bool,
    show_time: bool,
) -> None:
    """Print entries of the stream KEY, oldest first (XRANGE).

    START and END are entry IDs, both included: 1718004800000-0, or 1718004800000 for all of that
    millisecond; - and + stand for the ends of the stream, and '(ID' leaves the ID itself out. A
    time such as 2024-06-10T07:33:20Z stands for its first millisecond.

    A line holds the ID and the fields; what is not plain text is quoted with redis-cli's escapes.
    --json loses nothing, and `streamkeep load` reads it back.

    \b
    Examples:
      streamkeep range orders.store orders
      streamkeep range orders.store orders 2024-06-10 2024-06-11 --count 10
      streamkeep range orders.store orders --json > orders.jsonl
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        entries = islice(snapshot.scan(key, start, end), count)
        print_stream(ctx, snapshot, key, entries, as_json=as_json, show_time=show_time)


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@click.argument("end", metavar="[END]", type=Id(times=True), default="+")
@click.argument("start", metavar="[START]", type=Id(times=True), default="-")
@count_option
@shape_options
@quoted_option
@click.pass_context
def revrange(
    ctx: click.Context,
    store_path: Path,
    key: bytes,
    end: bytes,
    start: bytes,
    count: int | None,
    as_json: bool,
    show_time: bool,
) -> None:
    """Print entries of the stream KEY, newest first (XREVRANGE).

    As `streamkeep range`, but END comes before START.

    \b
    Example, the newest entry:
      streamkeep revrange orders.store orders --count 1
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        entries = islice(snapshot.scan(key, start, end, reverse=True), count)
        print_stream(ctx, snapshot, key, entries, as_json=as_json, show_time=show_time)


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many entries.",
)
@shape_options
@quoted_option
@click.pass_context
def tail(
    ctx: click.Context, store_path: Path, key: bytes, count: int, as_json: bool, show_time: bool
) -> None:
    """Print the last entries of the stream KEY, oldest first.

    \b
    Example:
      streamkeep tail orders.store orders -n 3
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        entries = last_entries(snapshot, key, count)
        print_stream(ctx, snapshot, key, entries, as_json=as_json, show_time=show_time)


def last_entries(snapshot: Snapshot, key: bytes, count: int) -> Iterator[ScanEntry]:
    """Yield the last `count` entries, oldest first; walks back and forth rather than keep them."""
    back = next(islice(snapshot.scan(key, reverse=True), count - 1, None), None)
    yield from snapshot.scan(key, "-" if back is None else back.id)


@click.command(cls=StoreCommand)
@store_argument
@click.argument("keys", metavar="KEY...", type=Bytes(), nargs=-1, required=True)
@click.option(
    "--id",
    "ids",
    type=Id(),
    multiple=True,
    help="The last ID seen, once for all streams or once for each; by default 0.",
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="Print at most N entries per stream."
)
@shape_options
@quoted_option
@click.pass_context
def read(
    ctx: click.Context,
    store_path: Path,
    keys: tuple[bytes, ...],
    ids: tuple[bytes, ...],
    count: int | None,
    as_json: bool,
    show_time: bool,
) -> None:
    """Print what came after an ID, of one or several streams (XREAD).

    Entries with IDs above --id are printed, stream by stream. Remember the last ID you saw and pass
    it next time. `+` stands for the ID before a stream's last entry. With several streams each line
    begins with the key. Does not wait for entries.

    \b
    Examples:
      streamkeep read orders.store orders --id 1718004800000-0
      streamkeep read orders.store orders payments --id 1718004800000-0 --id 0
    """
    if len(ids) not in (0, 1, len(keys)):
        given = output.count_text(len(ids), "--id")
        raise click.UsageError(f"{given} for {len(keys)} streams: give one for all, or one each")
    each = ids if len(ids) == len(keys) else (ids or (b"0",)) * len(keys)
    printed = streams = 0
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        for key, after in zip(keys, each, strict=True):
            entries = islice(entries_after(snapshot, key, after), count)
            before = printed
            for entry in entries:
                of_stream = key if as_json or len(keys) > 1 else None
                print_entry(entry, as_json=as_json, show_time=show_time, key=of_stream)
                printed += 1
            streams += printed > before
            if printed == before:
                note_missing(ctx, snapshot, key)
    if as_json:
        output.json_summary("read", streams=streams, entries=printed)


def entries_after(snapshot: Snapshot, key: bytes, after: bytes) -> Iterator[ScanEntry]:
    """Yield what XREAD returns above an ID, with duplicate fields, and without a list of all."""
    first = snapshot.xread({key: after}, count=1)
    if first:
        [[_, [entry]]] = first
        yield from snapshot.scan(key, entry.id)
