"""Commands about whole streams: streams, rename, remove, config, set-id, remember."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.format import quoting
from streamkeep.format.core import durations, json_form
from streamkeep.format.humanize import count_text, entries_text, size_text, time_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import (
    Bytes,
    Duration,
    Id,
    Number,
    key_argument,
    store_argument,
    yes_option,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.entry_output import check_exists
from streamkeep.tools.base.opening import confirm_loss, open_store

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.commands.xinfo import StreamStat

SETTINGS: Final = ("idmp-duration", "idmp-maxsize")


@command()
@store_argument
@click.argument("pattern", metavar="[PATTERN]", type=Bytes(), default="*")
def streams(store_path: Path, pattern: bytes) -> None:
    """List the streams of STORE whose key matches PATTERN (KEYS).

    PATTERN is a glob as in Redis: * is any text, ? one character, [ab] one of these. Quote it, or
    the shell replaces it with file names. The size is that of the entries as they are stored.

    \b
    Examples:
      streamkeep streams orders.store
      streamkeep streams orders.store 'order*' --json
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        wanted = set(snapshot.keys(pattern))
        found = [stat for stat in snapshot.stats() if stat.name in wanted]
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


def stream_row(stat: StreamStat) -> tuple[output.Cell, ...]:
    """Return what the table shows of one stream."""
    return (
        output.cut(quoting.shown(stat.name)),
        stat.length,
        "-" if stat.first_ms is None else time_text(stat.first_ms),
        "-" if stat.last_ms is None else time_text(stat.last_ms),
        stat.nodes,
        size_text(stat.node_bytes),
    )


def stream_json(stat: StreamStat) -> dict[str, Any]:
    """Return what JSON says of one stream."""
    return {
        "key": json_form.json_bytes(stat.name),
        "length": stat.length,
        "first_time_ms": stat.first_ms,
        "last_time_ms": stat.last_ms,
        "nodes": stat.nodes,
        "tombstones": stat.tombstones,
        "size_bytes": stat.node_bytes,
    }


@command()
@store_argument
@key_argument
@click.argument("new_key", metavar="NEWKEY", type=Bytes())
@yes_option
def rename(store_path: Path, key: bytes, new_key: bytes, yes: bool) -> None:
    """Rename the stream KEY to NEWKEY (RENAME).

    If a stream NEWKEY exists, it is removed with all entries: the command names it and asks first.

    \b
    Example:
      streamkeep rename orders.store orders orders-2024
    """
    with open_store(store_path) as store:
        if not store.renamenx(key, new_key) and key != new_key:
            confirm_loss(
                [loss_text(store, new_key)],
                f"Remove it, and give its name to {quoting.named(key)}?",
                yes=yes,
            )
            store.rename(key, new_key)
    output.done(key=json_form.json_bytes(key), new_key=json_form.json_bytes(new_key))


@command()
@store_argument
@click.argument("keys", metavar="KEY...", type=Bytes(), nargs=-1, required=True)
@yes_option
@click.pass_context
def remove(ctx: click.Context, store_path: Path, keys: tuple[bytes, ...], yes: bool) -> None:
    """Remove whole streams; print how many there were (DEL).

    The command names the loss and asks first; --yes answers. A missing stream is reported if others
    are removed.

    \b
    Example:
      streamkeep remove orders.store orders payments --yes
    """
    with open_store(store_path) as store:
        there = [key for key in dict.fromkeys(keys) if store.exists(key)]
        for key in dict.fromkeys(keys):
            if there and key not in there:
                output.note(f"{ctx.command_path}: no stream {quoting.named(key)} in {store_path}")
        if there:
            losses = [loss_text(store, key) for key in there]
            what = "this stream" if len(there) == 1 else f"these {len(there)} streams"
            confirm_loss(losses, f"Remove {what} with all entries?", yes=yes)
        count = store.delete(*there) if there else 0
        output.result(str(count), count=count)
        with store.snapshot() as snapshot:
            if not there:
                check_exists(snapshot, *keys)


def loss_text(store: Store, key: bytes) -> str:
    """Say what goes with a stream."""
    with store.snapshot() as snapshot:
        counters = snapshot.xinfo_stream(key)
    text = f"{quoting.named(key)}: {entries_text(counters['length'])}"
    first, last = counters["first-entry"], counters["last-entry"]
    if first is None or last is None:
        return text
    times = [time_text(int(entry.id.partition(b"-")[0])) for entry in (first, last)]
    return f"{text}, {times[0]} to {times[1]}"


@command()
@store_argument
@key_argument
@click.option(
    "--idmp-duration",
    type=Duration(),
    help="How long a message of a producer is remembered: whole seconds, at most 1d.",
)
@click.option(
    "--idmp-maxsize",
    type=Number(1, 10_000),
    help="How many messages of each producer are remembered.",
)
@yes_option
def config(
    store_path: Path, key: bytes, idmp_duration: int | None, idmp_maxsize: int | None, yes: bool
) -> None:
    """Print or set how long KEY remembers sent messages (XCFGSET).

    `streamkeep add --idmp` uses these settings. A new value makes the stream forget all messages:
    one that is sent again is added again. If there are any, the command asks first.

    \b
    Examples:
      streamkeep config orders.store orders
      streamkeep config orders.store orders --idmp-duration 1h --idmp-maxsize 1000
    """
    seconds = None if idmp_duration is None else idmp_duration // 1000
    if idmp_duration is not None and (
        idmp_duration % 1000 or not 1 <= idmp_duration // 1000 <= 86_400
    ):
        raise click.BadParameter("1s to 1d, in whole seconds", param_hint="--idmp-duration")
    wanted = {"idmp-duration": seconds, "idmp-maxsize": idmp_maxsize}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    with open_store(store_path, readonly=not wanted) as store:
        counters = store.xinfo_stream(key)
        if any(counters[name] != value for name, value in wanted.items()):
            if counters["iids-tracked"]:
                messages = count_text(counters["iids-tracked"], "message")
                producers = count_text(counters["pids-tracked"], "producer")
                loss = f"{quoting.named(key)}: {messages} of {producers} remembered"
                confirm_loss([loss], "Change the settings, and forget them?", yes=yes)
            store.xcfgset(key, seconds, idmp_maxsize)
        settings = {name: wanted.get(name, counters[name]) for name in SETTINGS}
    if common.as_json():
        members = {name.replace("-", "_"): value for name, value in settings.items()}
        output.summary(key=json_form.json_bytes(key), **members)
        return
    kept_s, kept = (int(settings[name] or 0) for name in SETTINGS)
    output.line(f"idmp-duration  {durations.duration_text(1000 * kept_s, parts=5)}")
    output.line(f"idmp-maxsize   {output.number(kept)}")


@command("set-id")
@store_argument
@key_argument
@click.argument("last_id", metavar="ID", type=Id())
@click.option(
    "--entries-added", type=Number(0, (1 << 63) - 1), help="How many entries were ever added."
)
@click.option("--max-deleted-id", type=Id(), help="The highest ID ever deleted.")
def set_id(
    store_path: Path,
    key: bytes,
    last_id: bytes,
    entries_added: int | None,
    max_deleted_id: bytes | None,
) -> None:
    """Set the last ID that KEY has generated, and its counters (XSETID).

    The next entry gets a higher ID. This lets a copy of a stream continue where the original
    stopped, even if the last entries of the original were deleted. An ID below that of a present or
    deleted entry is refused. IDs of trimmed entries may then be given a second time.

    \b
    Examples:
      streamkeep set-id orders.store orders 1718004800000-7
      streamkeep set-id orders.store orders 1718004800000-7 --entries-added 1200
    """
    with open_store(store_path) as store:
        store.xsetid(key, last_id, entries_added, max_deleted_id)
    output.done(key=json_form.json_bytes(key), last_id=last_id.decode())


@command()
@store_argument
@key_argument
@click.argument("producer", type=Bytes())
@click.argument("message", type=Bytes())
@click.argument("entry_id", metavar="ID", type=Id())
def remember(
    store_path: Path, key: bytes, producer: bytes, message: bytes, entry_id: bytes
) -> None:
    """Record which entry of KEY a message became (XIDMPRECORD).

    `streamkeep add --idmp PRODUCER MESSAGE` then prints ID and adds nothing, as if it had added
    that entry itself. This is for entries that came another way, such as from a copy of a stream. A
    message that is known with another ID is refused.

    \b
    Example:
      streamkeep remember orders.store orders till-3 receipt-4711 1717977600000-0
    """
    with open_store(store_path) as store:
        store.xidmprecord(key, producer, message, entry_id)
    output.done(key=json_form.json_bytes(key), id=entry_id.decode())
