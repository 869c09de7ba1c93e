"""Commands about pending entries: ack, nack, pending."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.format import quoting
from streamkeep.format.core.json_form import json_bytes, pending_json
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import (
    Bytes,
    Duration,
    Id,
    Number,
    count_option,
    group_argument,
    key_argument,
    one_of,
    policy_options,
    store_argument,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.entry_ids import Outcomes, given_ids, ids_argument
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.commands.group_cmds import idle_text, nothing_pending

if TYPE_CHECKING:
    from streamkeep.engine.api.command_base import RefPolicy
    from streamkeep.engine.api.group_commands import NackMode
    from streamkeep.engine.api.views import Snapshot

LISTED: Final = 100  # pending entries that are printed unless another count is asked for
_BATCH: Final = 1000

retry_count_option = click.option(
    "--retry-count", type=Number(min=0), help="Set the delivery count to N."
)
force_option = click.option(
    "--force", is_flag=True, help="Also take entries of the stream that are not pending."
)


# --- finish -------------------------------------------------------------------------------------


@command()
@store_argument
@key_argument
@group_argument
@ids_argument
@click.option("--delete", is_flag=True, help="Delete the entries from the stream, too (XACKDEL).")
@policy_options
def ack(
    store_path: Path,
    key: bytes,
    group: bytes,
    ids: tuple[bytes, ...],
    delete: bool,
    policy: RefPolicy | None,
) -> None:
    """Acknowledge entries; print how many were pending (XACK).

    An acknowledged entry is done and no longer pending. The ID - reads IDs from standard input, one
    at the start of each line or in each JSON object, as `read` and `claim` print them, and any
    command with --json. All of them are acknowledged in one transaction, or none if a line is
    wrong.

    --delete also deletes the entries. With --acked, an entry stays until the last group is done
    with it, which makes a stream a queue that empties itself.

    \b
    Examples:
      streamkeep ack orders.store orders mail 1718004800000-0
      streamkeep ack orders.store orders mail 1718004800000-1 --delete --acked
      streamkeep range orders.store orders | streamkeep ack orders.store orders mail -
    """
    if policy is not None and not delete:
        raise click.UsageError(f"--{policy.lower()} needs --delete")
    wanted = given_ids(ids, key)
    results: list[int] = []
    acknowledged = 0
    with open_store(store_path) as store:
        if wanted and delete:
            results = store.xackdel(key, group, *wanted, ref_policy=policy or "KEEPREF")
            acknowledged = sum(result > 0 for result in results)
        elif wanted:
            acknowledged = store.xack(key, group, *wanted)
        outcomes = Outcomes(wanted if delete else [], results, absent="not pending")
        outcomes.print(acknowledged)
        if wanted and not acknowledged:
            raise nothing_pending(store, key, group)


@command()
@store_argument
@key_argument
@group_argument
@ids_argument
@one_of(
    "mode",
    {
        "SILENT": "Undo the delivery: it does not count.",
        "FAIL": "The delivery counts (the default).",
        "FATAL": "Set the count to the maximum: no consumer can process it.",
    },
)
@retry_count_option
@force_option
def nack(
    store_path: Path,
    key: bytes,
    group: bytes,
    ids: tuple[bytes, ...],
    mode: NackMode | None,
    retry_count: int | None,
    force: bool,
) -> None:
    """Return pending entries to the group; print how many (XNACK).

    They have no owner then. Any claim takes them, regardless of idle time; `read --claim` returns
    them first. --silent is for a consumer that shuts down, --fail for one that failed, --fatal for
    an entry that no consumer can process. The ID - reads IDs from standard input, as in `ack`.

    \b
    Examples:
      streamkeep nack orders.store orders mail 1718004800000-0
      streamkeep nack orders.store orders mail 1718004800000-1 --fatal
    """
    wanted = given_ids(ids, key)
    with open_store(store_path) as store:
        given_back = 0
        if wanted:
            given_back = store.xnack(
                key, group, mode or "FAIL", *wanted, retrycount=retry_count, force=force
            )
        output.result(str(given_back), count=given_back)
        if wanted and not given_back:
            raise nothing_pending(store, key, group)


# --- look ---------------------------------------------------------------------------------------


@command()
@store_argument
@key_argument
@group_argument
@click.option("--start", type=Id("from"), help="From this ID or time on.")
@click.option("--end", type=Id("to"), help="Up to this ID or time.")
@count_option(f"Print at most N of them; {LISTED} by default, 0 for all.", least=0)
@click.option(
    "--idle",
    type=Duration(),
    help="Only entries that were delivered at least so long ago, or have no owner.",
)
@click.option("--consumer", type=Bytes(), metavar="CONSUMER", help="Only entries of this consumer.")
def pending(
    store_path: Path,
    key: bytes,
    group: bytes,
    start: bytes | None,
    end: bytes | None,
    count: int | None,
    idle: int | None,
    consumer: bytes | None,
) -> None:
    """Print delivered entries that are not acknowledged (XPENDING).

    Without options, a summary: how many entries, the first and the last ID, and the owners. With
    any option, the entries by ID: the owner of each, how long ago it was delivered, and how often.
    The owner is - if a consumer returned the entry with `nack`.

    \b
    Examples:
      streamkeep pending orders.store orders mail
      streamkeep pending orders.store orders mail --count 20
      streamkeep pending orders.store orders mail --consumer ann --idle 1m --json
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
        lambda row: {"key": json_bytes(key), **pending_json(row)},
        ("id", "consumer", "idle", "delivered"),
        lambda row: (
            row["message_id"].decode(),
            owner_text(row["consumer"], row["time_since_delivered"]),
            idle_text(row["time_since_delivered"]),
            row["times_delivered"],
        ),
        left=(0, 1),
    )
    if common.as_json():
        output.summary(key=json_bytes(key), entries=len(found), more=more)
    elif more:
        output.note(f"next: --start '({found[-1]['message_id'].decode()}' continues")


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
    """Print how many entries are pending, and their owners."""
    found = snapshot.xpending(key, group)
    owners = [(one["name"], int(one["pending"])) for one in found["consumers"]]
    nobody = found["pending"] - sum(count for _, count in owners)
    lowest, highest = (one and one.decode() for one in (found["min"], found["max"]))
    if common.as_json():
        for name, count in owners:
            output.json_line(
                "consumer",
                key=json_bytes(key),
                group=json_bytes(group),
                name=json_bytes(name),
                pending=count,
            )
        output.summary(
            key=json_bytes(key),
            pending=found["pending"],
            min_id=lowest,
            max_id=highest,
            unowned=nobody,
        )
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


def owner_text(consumer: bytes, idle_ms: int) -> str:
    """Return the owner of a pending entry; - for none, which only the idle time shows."""
    return "-" if idle_ms < 0 else output.cut(quoting.shown(consumer))
