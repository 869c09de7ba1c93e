"""Commands that give pending entries to another consumer: claim, autoclaim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.core.times import parse_iso
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import (
    Duration,
    Id,
    consumer_argument,
    count_option,
    group_argument,
    key_argument,
    store_argument,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.entry_ids import given_ids, ids_argument
from streamkeep.tools.base.entry_output import print_delivered, print_id
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.commands.pending_cmds import force_option, retry_count_option

justid_option = click.option(
    "--justid", is_flag=True, help="Print IDs only, and do not count this as a delivery."
)


def min_idle_option(**settings: Any) -> Callable[[Any], Any]:
    """Return the option --min-idle."""
    return click.option(
        "--min-idle",
        type=Duration(),
        help="Claim only entries that were delivered at least this long ago, such as 10m.",
        **settings,
    )


def parse_moment(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Read Unix milliseconds, or a time in ISO 8601."""
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else parse_iso(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@command()
@store_argument
@key_argument
@group_argument
@consumer_argument
@ids_argument
@min_idle_option(default=0)
@click.option(
    "--idle", type=Duration(), help="Set the delivery time to this long ago, instead of now."
)
@click.option(
    "--time",
    "delivery_ms",
    callback=parse_moment,
    metavar="TIME",
    help="Set the delivery time: Unix milliseconds, or 2024-06-10T07:33:20Z.",
)
@retry_count_option
@force_option
@justid_option
@click.option("--last-id", type=Id(), help="Set the last delivered ID of the group, if higher.")
def claim(
    store_path: Path,
    key: bytes,
    group: bytes,
    consumer: bytes,
    ids: tuple[bytes, ...],
    min_idle: int,
    idle: int | None,
    delivery_ms: int | None,
    retry_count: int | None,
    force: bool,
    justid: bool,
    last_id: bytes | None,
) -> None:
    """Give pending entries to CONSUMER, and print them (XCLAIM).

    For entries whose consumer died. --min-idle protects a consumer that is only slow, and entries
    that another consumer has just claimed. IDs that are not pending are skipped. Entries that were
    deleted from the stream stop being pending. The ID - reads IDs from standard input, as in `ack`.

    \b
    Examples:
      streamkeep claim orders.store orders mail bob 1718004800000-0 --min-idle 1m
      streamkeep claim orders.store orders mail bob 1718004800000-0 --justid
      streamkeep claim orders.store orders mail bob 1718004800000-0 --force --retry-count 3
    """
    if idle is not None and delivery_ms is not None:
        raise click.UsageError("--idle and --time cannot be used together")
    wanted = given_ids(ids, key)
    claimed: list[Any] = []
    if wanted:
        with open_store(store_path) as store:
            claimed = store.xclaim(
                key,
                group,
                consumer,
                min_idle,
                wanted,
                idle=idle,
                time=delivery_ms,
                retrycount=retry_count,
                force=force,
                justid=justid,
                last_id=last_id,
            )
    print_claimed(claimed, justid=justid)
    output.done(key=json_bytes(key), entries=len(claimed))


@command()
@store_argument
@key_argument
@group_argument
@consumer_argument
@min_idle_option()
@click.option("--dead", is_flag=True, help="Claim only what processes that have died had.")
@click.option(
    "--start",
    type=Id("from"),
    default="0-0",
    show_default=True,
    help="Look at pending entries from this ID or time on.",
)
@count_option("Claim at most N entries, and look at ten times as many.", default=100)
@justid_option
def autoclaim(
    store_path: Path,
    key: bytes,
    group: bytes,
    consumer: bytes,
    min_idle: int | None,
    dead: bool,
    start: bytes,
    count: int,
    justid: bool,
) -> None:
    """Claim entries pending too long, and print them (XAUTOCLAIM).

    CONSUMER takes over the entries of consumers that died: those that have been pending for
    --min-idle, or with --dead those whose process has died, however short that was ago. One call
    looks at some of the pending entries, and reports the --start with which the next call
    continues. Entries that were deleted from the stream are listed, and stop being pending.

    \b
    Examples:
      streamkeep autoclaim orders.store orders mail bob --min-idle 1m
      streamkeep autoclaim orders.store orders mail bob --min-idle 1m --justid
      streamkeep autoclaim orders.store orders mail bob --dead
    """
    if min_idle is None and not dead:
        raise click.UsageError("--min-idle or --dead is required")
    with open_store(store_path) as store:
        found: Any = store.xautoclaim(
            key, group, consumer, min_idle or 0, start, count, justid, whole=True, dead=dead
        )
    cursor, claimed, gone = found
    print_claimed(claimed, justid=justid)
    if common.as_json():
        for one in gone:
            print_id("deleted", StreamId.parse(one))
        output.summary(
            key=json_bytes(key),
            entries=len(claimed),
            deleted=len(gone),
            cursor=cursor.decode(),
        )
        return
    if gone:
        ids = " ".join(one.decode() for one in gone)
        output.note(f"deleted from the stream, no longer pending: {ids}")
    if cursor != b"0-0":
        output.note(f"next: --start {cursor.decode()} continues")


def print_claimed(claimed: list[Any], *, justid: bool) -> None:
    """Print what was claimed, one entry or ID a line."""
    for one in claimed:
        if justid:
            print_id("id", StreamId.parse(one))
        else:
            print_delivered(one)
