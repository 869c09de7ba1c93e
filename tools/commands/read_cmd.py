"""read: entries above an ID (XREAD), or the share of a group's consumer (XREADGROUP)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from streamkeep.format.humanize import count_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import (
    Bytes,
    Duration,
    Id,
    Number,
    count_option,
    store_argument,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.entry_output import (
    no_stream,
    print_delivered,
    print_entry,
    shape_options,
)
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.waiting import block_option, last_id

if TYPE_CHECKING:
    from streamkeep.engine.api.read_commands import ScanEntry
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Snapshot


class Limits(NamedTuple):
    """How much a call prints at most; None for all."""

    per_stream: int | None
    max_count: int | None
    max_size: int | None

    @property
    def together(self) -> bool:
        """Whether streams share a limit."""
        return self.max_count is not None or self.max_size is not None


@command()
@store_argument
@click.argument("keys", metavar="KEY...", type=Bytes(), nargs=-1, required=True)
@click.option(
    "--id",
    "ids",
    type=Id("after"),
    multiple=True,
    help="The last ID seen, or a time to read from, once for all streams or once for each; "
    "0 by default, > with --group.",
)
@count_option("Print at most N entries per stream.")
@click.option(
    "--maxcount", type=Number(min=1), help="Print at most N entries of all streams together."
)
@click.option(
    "--maxsize",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Stop when a reply of Redis would have about this size.",
)
@click.option("--group", type=Bytes(), metavar="GROUP", help="Read as a consumer of this group.")
@click.option(
    "--consumer",
    type=Bytes(),
    metavar="CONSUMER",
    help="The consumer that reads; it is created if it does not exist.",
)
@click.option("--noack", is_flag=True, help="Do not make new entries pending: at most once.")
@click.option(
    "--claim",
    "claim_ms",
    type=Duration(),
    help="First take over entries that have been pending for this long, of any consumer.",
)
@click.option(
    "--dead",
    "claim_dead",
    is_flag=True,
    help="First take over what processes that have died had pending.",
)
@block_option
@shape_options
def read(
    store_path: Path,
    keys: tuple[bytes, ...],
    ids: tuple[bytes, ...],
    count: int | None,
    maxcount: int | None,
    maxsize: int | None,
    group: bytes | None,
    consumer: bytes | None,
    noack: bool,
    claim_ms: int | None,
    claim_dead: bool,
    block_ms: int | None,
    show_time: bool,
) -> None:
    """Print entries after an ID, or those that a group delivers (XREAD).

    Prints entries with IDs above --id, stream by stream. Remember the last ID that you saw and pass
    it next time. `+` is the ID before a stream's last entry. With several streams, each line begins
    with the key. --block waits if there is no entry; `$` is then the last ID of the stream now.

    With --group, the group remembers (XREADGROUP): each entry goes to one of its consumers, and is
    pending until `streamkeep ack`. --id '>' means entries that the group has not delivered. Any
    other ID, such as 0, prints again the pending entries of this consumer above it: this
    is how a worker resumes after a crash. Entries that have been deleted are marked. --claim also
    takes over entries that other consumers left pending, and shows for how long, and how often they
    were delivered. --dead takes over those of processes that have died, and never those of live
    ones.

    \b
    Examples:
      streamkeep read orders.store orders --id 1718004800000-0
      streamkeep read orders.store orders payments --id 1718004800000-0 --id 0
      streamkeep read orders.store orders --id 2024-06-10 --count 10
      streamkeep read orders.store orders --id 1718004800000-0 --block 10s
      streamkeep read orders.store orders --group mail --consumer ann --count 10
      streamkeep read orders.store orders --group mail --consumer ann --id 0
      streamkeep read orders.store orders --group mail --consumer ann --claim 1m
      streamkeep read orders.store orders --group mail --consumer ann --dead
    """
    if len(ids) not in (0, 1, len(keys)):
        given = count_text(len(ids), "--id")
        raise click.UsageError(f"{given} for {len(keys)} streams: give one for all, or one each")
    if (group is None) != (consumer is None):
        raise click.UsageError("--group and --consumer must be used together")
    if group is None and (noack or claim_dead or claim_ms is not None):
        raise click.UsageError("--noack, --claim and --dead need --group and --consumer")
    if claim_dead and claim_ms is not None:
        raise click.UsageError("--claim and --dead cannot be used together")
    start = b"0" if group is None else b">"
    each = ids if len(ids) == len(keys) else (ids or (start,)) * len(keys)
    wanted = list(zip(keys, each, strict=True))
    limits = Limits(count, maxcount, maxsize)
    waits = block_ms is not None
    if len(set(keys)) < len(keys) and (group is not None or limits.together or waits):
        raise click.UsageError("a stream is named twice")
    named = common.as_json() or len(keys) > 1
    printed: list[int] = []
    missing: list[bytes] = []
    if group is None or consumer is None:
        with open_store(store_path, readonly=True) as store, ExitStack() as stack:
            if block_ms is not None:
                wanted = await_entries(store, wanted, block_ms)
            snapshot = stack.enter_context(store.snapshot())
            for key, entries in entries_of(snapshot, wanted, limits):
                shown = key if named else None
                printed.append(0)
                for entry in entries:
                    print_entry(entry, show_time=show_time, key=shown)
                    printed[-1] += 1
            missing = [key for key in keys if not snapshot.exists(key)]
    else:
        with open_store(store_path) as store:
            delivered = store.xreadgroup(
                group,
                consumer,
                dict(wanted),
                count=limits.per_stream,
                block=block_ms,
                noack=noack,
                claim_min_idle_time=claim_ms,
                claim_dead=claim_dead,
                max_count=limits.max_count,
                max_size=limits.max_size,
            )
        for key, batch in delivered:
            shown = key if named else None
            for one in batch:
                print_delivered(one, show_time=show_time, key=shown)
            printed.append(len(batch))
    output.done(streams=sum(map(bool, printed)), entries=sum(printed))
    if missing and len(missing) == len(keys):
        raise no_stream(store_path, *missing)
    for key in missing:
        output.note(str(no_stream(store_path, key)))


def await_entries(
    store: Store, wanted: list[tuple[bytes, bytes]], block_ms: int
) -> list[tuple[bytes, bytes]]:
    """Wait until there is an entry; return the IDs, with `$` as it was before the wait."""
    with store.snapshot() as snapshot:
        wanted = [
            (key, last_id(snapshot, key) if after == b"$" else after) for key, after in wanted
        ]
    store.xread(dict(wanted), count=1, block=block_ms)
    return wanted


def entries_of(
    snapshot: Snapshot, wanted: list[tuple[bytes, bytes]], limits: Limits
) -> Iterator[tuple[bytes, Iterator[ScanEntry]]]:
    """Yield each stream and its entries above the ID that is wanted of it."""
    most: dict[bytes, int] | None = None
    if limits.together:
        found = snapshot.xread(
            dict(wanted), limits.per_stream, None, limits.max_count, limits.max_size
        )
        most = {name: len(entries) for name, entries in found}
    for key, after in wanted:
        limit = limits.per_stream if most is None else most.get(key, 0)
        yield key, islice(entries_after(snapshot, key, after), limit)


def entries_after(snapshot: Snapshot, key: bytes, after: bytes) -> Iterator[ScanEntry]:
    """Yield the entries that XREAD returns above an ID, with duplicate fields, one by one."""
    first = snapshot.xread({key: after}, count=1)
    if first:
        [[_, [entry]]] = first
        yield from snapshot.scan(key, entry.id)
