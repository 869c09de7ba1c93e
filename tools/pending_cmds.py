"""Commands about pending entries: ack, nack, pending, claim, autoclaim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.format.entry import StreamId
from streamkeep.tools import output
from streamkeep.tools.command import (
    Bytes,
    Id,
    StoreCommand,
    consumer_argument,
    group_argument,
    json_option,
    key_argument,
    open_store,
    policy_options,
    quoted_option,
    store_argument,
    sync_option,
)
from streamkeep.tools.delivery import Delivered, look_up, print_delivered
from streamkeep.tools.entry_ids import Outcomes, given_ids, ids_argument
from streamkeep.tools.entry_output import print_id
from streamkeep.tools.group_cmds import idle_text, note_no_group
from streamkeep.tools.times import parse_iso

if TYPE_CHECKING:
    from streamkeep.engine.api import Snapshot, Sync
    from streamkeep.engine.command_base import RefPolicy
    from streamkeep.engine.group_commands import NackMode

LISTED: Final = 100  # pending entries that are printed unless another count is asked for
_BATCH: Final = 1000

justid_option = click.option(
    "--justid", is_flag=True, help="Print IDs only, and do not count this as a delivery."
)
retry_count_option = click.option(
    "--retry-count",
    type=click.IntRange(min=0),
    metavar="N",
    help="Say that the entries were delivered N times.",
)
force_option = click.option(
    "--force", is_flag=True, help="Make entries of the stream pending that are not."
)


def min_idle_option(**settings: Any) -> Callable[[Any], Any]:
    """Return the option --min-idle."""
    return click.option(
        "--min-idle",
        type=click.IntRange(min=0),
        metavar="MS",
        help="Claim only what was delivered at least MS milliseconds ago.",
        **settings,
    )


# --- finish -------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@group_argument
@ids_argument
@click.option("--delete", is_flag=True, help="Delete the entries from the stream, too (XACKDEL).")
@policy_options
@json_option
@sync_option
@quoted_option
@click.pass_context
def ack(
    ctx: click.Context,
    store_path: Path,
    key: bytes,
    group: bytes,
    ids: tuple[bytes, ...],
    delete: bool,
    policy: RefPolicy | None,
    as_json: bool,
    sync: Sync,
) -> None:
    """Acknowledge entries: done, pending no more; print how many (XACK).

    IDs that are not pending do not count. The ID - reads IDs from standard input, one at the start
    of each line or in each JSON object: that is what `read` and `claim` print, and any command with
    --json. All of them are acknowledged in one transaction, or none when a line is not right.

    --delete also deletes the entries, and the policy says what that means to other groups: --acked
    keeps an entry until the last group is done with it, which makes a stream a queue that empties
    itself.

    \b
    Examples:
      streamkeep ack orders.store orders mail 1718004800000-0 1718004800000-1
      streamkeep ack orders.store orders mail 1718004800000-0 --delete --acked
      streamkeep range orders.store orders | streamkeep ack orders.store orders mail -
    """
    if policy is not None and not delete:
        raise click.UsageError(f"--{policy.lower()} needs --delete")
    wanted = given_ids(ids, key)
    results: list[int] = []
    acknowledged = 0
    with open_store(store_path, sync=sync) as store:
        if wanted and delete:
            results = store.xackdel(key, group, *wanted, ref_policy=policy or "KEEPREF")
            acknowledged = sum(result > 0 for result in results)
        elif wanted:
            acknowledged = store.xack(key, group, *wanted)
        outcomes = Outcomes(wanted if delete else [], results, absent="not pending")
        outcomes.print("ack", acknowledged, as_json=as_json)
        if not acknowledged:
            note_no_group(ctx, store, key, group)


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@group_argument
@ids_argument
@click.option(
    "--silent", "mode", flag_value="SILENT", help="Take the delivery back: it does not count."
)
@click.option("--fail", "mode", flag_value="FAIL", help="Let it count (the default).")
@click.option(
    "--fatal",
    "mode",
    flag_value="FATAL",
    help="Count as many deliveries as there can be: nobody can process it.",
)
@retry_count_option
@force_option
@sync_option
@quoted_option
def nack(
    store_path: Path,
    key: bytes,
    group: bytes,
    ids: tuple[bytes, ...],
    mode: NackMode | None,
    retry_count: int | None,
    force: bool,
    sync: Sync,
) -> None:
    """Give pending entries back to the group; print how many (XNACK).

    They belong to nobody then, and the next claim gets them first, however short they have been
    idle. --silent is for a consumer that shuts down, --fail for one that failed, --fatal for an
    entry that no consumer can process. The ID - reads IDs from standard input, as in `ack`.

    \b
    Examples:
      streamkeep nack orders.store orders mail 1718004800000-0
      streamkeep nack orders.store orders mail 1718004800000-0 --fatal
    """
    wanted = given_ids(ids, key)
    with open_store(store_path, sync=sync) as store:
        given_back = 0
        if wanted:
            given_back = store.xnack(
                key, group, mode or "FAIL", *wanted, retrycount=retry_count, force=force
            )
        output.line(str(given_back))


# --- look ---------------------------------------------------------------------------------------


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@group_argument
@click.option("--start", type=Id(times=True), metavar="ID", help="From this ID or time on.")
@click.option("--end", type=Id(times=True), metavar="ID", help="Up to this ID or time.")
@click.option(
    "--count",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Print at most N of them, 0 for all. [default: {LISTED}]",
)
@click.option(
    "--idle",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Only what was delivered at least MS milliseconds ago, or was given back.",
)
@click.option("--consumer", type=Bytes(), metavar="CONSUMER", help="Only what this consumer has.")
@json_option
@quoted_option
def pending(
    store_path: Path,
    key: bytes,
    group: bytes,
    start: bytes | None,
    end: bytes | None,
    count: int | None,
    idle: int | None,
    consumer: bytes | None,
    as_json: bool,
) -> None:
    """Print what a group has pending: delivered, not acknowledged (XPENDING).

    Without options a summary: how many entries, from which ID to which, and who has them. With any
    of the options the entries themselves, by ID: who has each, how long ago it was delivered, and
    how often. - stands for nobody: a consumer gave the entry back.

    \b
    Examples:
      streamkeep pending orders.store orders mail
      streamkeep pending orders.store orders mail --count 20
      streamkeep pending orders.store orders mail --consumer ann --idle 60000 --json
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        if (start, end, count, idle, consumer) == (None,) * 5:
            print_summary(snapshot, key, group, as_json=as_json)
            return
        rows = pending_rows(snapshot, key, group, start or b"-", end or b"+", consumer, idle)
        most = LISTED if count is None else count or None
        found = list(islice(rows, most))
        more = next(rows, None) is not None
    if as_json:
        for row in found:
            output.json_line("pending", key=output.json_bytes(key), **row_members(row))
        output.json_summary("pending", key=output.json_bytes(key), entries=len(found), more=more)
        return
    if found:
        output.table(
            ("id", "consumer", "idle", "delivered"),
            [
                (
                    row["message_id"].decode(),
                    owner_text(row["consumer"], row["time_since_delivered"]),
                    idle_text(row["time_since_delivered"]),
                    f"{row['times_delivered']:,}",
                )
                for row in found
            ],
            left=(0, 1),
        )
    if more:
        output.note(f"next: --start '({found[-1]['message_id'].decode()}' goes on")


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


def print_summary(snapshot: Snapshot, key: bytes, group: bytes, *, as_json: bool) -> None:
    """Print how much is pending, and who has it."""
    found = snapshot.xpending(key, group)
    owners = [(one["name"], int(one["pending"])) for one in found["consumers"]]
    nobody = found["pending"] - sum(count for _, count in owners)
    lowest, highest = (one and one.decode() for one in (found["min"], found["max"]))
    if as_json:
        for name, count in owners:
            output.json_line(
                "consumer",
                key=output.json_bytes(key),
                group=output.json_bytes(group),
                name=output.json_bytes(name),
                pending=count,
            )
        output.json_summary(
            "pending",
            key=output.json_bytes(key),
            pending=found["pending"],
            min_id=lowest,
            max_id=highest,
            unowned=nobody,
        )
        return
    output.line(f"pending  {found['pending']:,}")
    if lowest is None:
        return
    output.line(f"from     {lowest}")
    output.line(f"to       {highest}")
    output.line("")
    rows = [(output.cut(output.shown(name)), f"{count:,}") for name, count in owners]
    if nobody:
        rows.append(("-", f"{nobody:,}"))
    output.table(("consumer", "pending"), rows, left=(0,))


def row_members(row: dict[str, Any]) -> dict[str, Any]:
    """Return what JSON says of a pending entry; one that nobody has was never idle."""
    idle_ms = row["time_since_delivered"]
    return {
        "id": row["message_id"].decode(),
        "consumer": None if idle_ms < 0 else output.json_bytes(row["consumer"]),
        "idle_ms": None if idle_ms < 0 else idle_ms,
        "times_delivered": row["times_delivered"],
    }


def owner_text(consumer: bytes, idle_ms: int) -> str:
    """Return who has a pending entry; - for nobody, whom only the idle time tells apart."""
    return "-" if idle_ms < 0 else output.cut(output.shown(consumer))


# --- claim --------------------------------------------------------------------------------------


def parse_moment(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Read Unix milliseconds, or a time in ISO 8601."""
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else parse_iso(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@group_argument
@consumer_argument
@ids_argument
@min_idle_option(default=0)
@click.option(
    "--idle",
    type=click.IntRange(min=0),
    metavar="MS",
    help="Say that they were delivered MS milliseconds ago, instead of now.",
)
@click.option(
    "--time",
    "delivery_ms",
    callback=parse_moment,
    metavar="TIME",
    help="Say that they were delivered then: Unix milliseconds, or 2024-06-10T07:33:20Z.",
)
@retry_count_option
@force_option
@justid_option
@click.option(
    "--last-id", type=Id(), metavar="ID", help="Set the last delivered ID of the group, if higher."
)
@json_option
@sync_option
@quoted_option
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
    as_json: bool,
    sync: Sync,
) -> None:
    """Make pending entries those of CONSUMER, and print them (XCLAIM).

    For entries whose consumer died. --min-idle protects one that is only slow: an entry that
    somebody else claimed in the meantime is left alone. IDs that are not pending are passed over;
    what was deleted from the stream is pending no more. The ID - reads IDs from standard input, as
    in `ack`.

    \b
    Examples:
      streamkeep claim orders.store orders mail bob 1718004800000-0 --min-idle 60000
      streamkeep claim orders.store orders mail bob 1718004800000-0 --justid
      streamkeep claim orders.store orders mail bob 1718004800000-0 --force --retry-count 3
    """
    if idle is not None and delivery_ms is not None:
        raise click.UsageError("--idle and --time cannot be used together")
    wanted = given_ids(ids, key)
    claimed: list[Delivered] = []
    if wanted:
        with open_store(store_path, sync=sync) as store, store.transaction() as txn:
            found = txn.xclaim(
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
            claimed = [just(one) for one in found] if justid else look_up(txn, key, found)
    print_claimed(claimed, justid=justid, as_json=as_json)
    if as_json:
        output.json_summary("claim", key=output.json_bytes(key), entries=len(claimed))


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@group_argument
@consumer_argument
@min_idle_option(required=True)
@click.option(
    "--start",
    type=Id(),
    default="0-0",
    show_default=True,
    metavar="ID",
    help="Look at pending entries from this ID on.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Claim at most N entries, and look at ten times as many.",
)
@justid_option
@json_option
@sync_option
@quoted_option
def autoclaim(
    store_path: Path,
    key: bytes,
    group: bytes,
    consumer: bytes,
    min_idle: int,
    start: bytes,
    count: int,
    justid: bool,
    as_json: bool,
    sync: Sync,
) -> None:
    """Claim what has been pending too long, and print it (XAUTOCLAIM).

    What consumers left behind that died becomes that of CONSUMER. One call looks at some of the
    pending entries, and says with which --start to go on. Entries that were deleted from the
    stream are named, and are pending no more.

    With --justid nothing is known of deleted entries, nor where to go on: repeat the command until
    it prints nothing.

    \b
    Examples:
      streamkeep autoclaim orders.store orders mail bob --min-idle 60000
      streamkeep autoclaim orders.store orders mail bob --min-idle 60000 --justid
    """
    cursor, gone = b"", []
    with open_store(store_path, sync=sync) as store, store.transaction() as txn:
        found = txn.xautoclaim(key, group, consumer, min_idle, start, count, justid)
        if justid:
            claimed = [just(one) for one in found]
        else:
            cursor, entries, gone = found
            claimed = look_up(txn, key, entries)
    print_claimed(claimed, justid=justid, as_json=as_json)
    if as_json:
        for one in gone:
            print_id("deleted", StreamId.parse(one), as_json=True)
        output.json_summary(
            "autoclaim",
            key=output.json_bytes(key),
            entries=len(claimed),
            deleted=len(gone),
            cursor=cursor.decode() or None,
        )
        return
    if gone:
        ids = " ".join(one.decode() for one in gone)
        output.note(f"deleted from the stream, and pending no more: {ids}")
    if cursor not in (b"", b"0-0"):
        output.note(f"next: --start {cursor.decode()} goes on")


def just(id_text: bytes) -> Delivered:
    """Return an entry of which only the ID is known."""
    return Delivered(StreamId.parse(id_text), [])


def print_claimed(claimed: list[Delivered], *, justid: bool, as_json: bool) -> None:
    """Print what was claimed, one entry or ID a line."""
    for one in claimed:
        if justid:
            print_id("id", one.id, as_json=as_json)
        else:
            print_delivered(one, as_json=as_json)
