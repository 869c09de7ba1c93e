"""Commands that change entries: add, del, trim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkeep.tools import output
from streamkeep.tools.command import (
    Bytes,
    Id,
    StoreCommand,
    key_argument,
    open_store,
    quoted_option,
    store_argument,
    sync_option,
)
from streamkeep.tools.read_cmds import note_missing

if TYPE_CHECKING:
    from streamkeep.engine.api import Store, Sync

maxlen_option = click.option(
    "--maxlen", type=click.IntRange(min=0), metavar="N", help="Keep the newest N entries."
)
minid_option = click.option(
    "--minid",
    type=Id(times=True),
    metavar="ID",
    help="Keep entries from this ID, or this time, on.",
)
exact_option = click.option(
    "--exact/--approximate",
    default=False,
    help="Trim to the entry, or by whole macro nodes only: cheaper, and some more entries stay. "
    "[default: --approximate]",
)
limit_option = click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Trim at most about N entries, with --approximate only; 0 for no limit.",
)


def check_trimming(
    maxlen: int | None, minid: bytes | None, *, exact: bool, limit: int | None
) -> None:
    """Refuse combinations of trimming options that Redis refuses, too."""
    if maxlen is not None and minid is not None:
        raise click.UsageError("--maxlen and --minid cannot be used together")
    if limit is not None and exact:
        raise click.UsageError("--limit cannot be used with --exact")
    if limit is not None and maxlen is None and minid is None:
        raise click.UsageError("--limit needs --maxlen or --minid")


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@click.argument("fields", metavar="FIELD VALUE...", type=Bytes(), nargs=-1, required=True)
@click.option(
    "--id",
    "entry_id",
    type=Id(),
    default="*",
    metavar="ID",
    help="*: from the clock (the default); ms-*: the next one in that millisecond; or a full ID.",
)
@maxlen_option
@minid_option
@exact_option
@limit_option
@click.option("--nomkstream", is_flag=True, help="Do nothing when there is no stream KEY.")
@sync_option
@quoted_option
@click.pass_context
def add(
    ctx: click.Context,
    store_path: Path,
    key: bytes,
    fields: tuple[bytes, ...],
    entry_id: bytes,
    maxlen: int | None,
    minid: bytes | None,
    exact: bool,
    limit: int | None,
    nomkstream: bool,
    sync: Sync,
) -> None:
    """Append one entry to the stream KEY; print its ID (XADD).

    Store and stream are created when they do not exist. A value that begins with a dash and is not
    a number goes behind --.

    \b
    Examples:
      streamkeep add orders.store orders sku 7 --id '1718004800000-*'
      streamkeep add orders.store orders sku 8 count 2
      streamkeep add orders.store orders sku 9 --maxlen 100000
    """
    if len(fields) % 2:
        raise click.UsageError("fields and values come in pairs: the last field has no value")
    check_trimming(maxlen, minid, exact=exact, limit=limit)
    pairs = list(zip(fields[0::2], fields[1::2], strict=True))
    trimming = {"maxlen": maxlen, "minid": minid, "approximate": not exact, "limit": limit}
    with open_store(store_path, create=not nomkstream, sync=sync) as store:
        new_id = append(store, key, pairs, entry_id, nomkstream=nomkstream, trimming=trimming)
        if new_id is None:
            with store.snapshot() as snapshot:
                note_missing(ctx, snapshot, key)
        else:
            output.line(new_id.decode())


def append(
    store: Store,
    key: bytes,
    pairs: list[tuple[bytes, bytes]],
    entry_id: bytes,
    *,
    nomkstream: bool,
    trimming: dict[str, Any],
) -> bytes | None:
    """Append an entry whose fields may repeat; return its ID, None when `nomkstream` applied."""
    fields = dict(pairs)
    new_id: bytes | None
    if len(fields) == len(pairs):
        new_id = store.xadd(key, fields, id=entry_id, nomkstream=nomkstream, **trimming)
        return new_id
    with store.transaction() as txn:  # xadd takes a dict; xadd_pairs does not trim
        if nomkstream and not txn.exists(key):
            return None
        new_id = txn.xadd_pairs(key, pairs, id=entry_id)
        if trimming["maxlen"] is not None or trimming["minid"] is not None:
            txn.xtrim(key, **trimming)
    return new_id


@click.command("del", cls=StoreCommand)
@store_argument
@key_argument
@click.argument("ids", metavar="ID...", type=Id(), nargs=-1, required=True)
@sync_option
@quoted_option
@click.pass_context
def del_(
    ctx: click.Context, store_path: Path, key: bytes, ids: tuple[bytes, ...], sync: Sync
) -> None:
    """Delete entries of KEY by ID; print how many there were (XDEL).

    The stream stays, even empty, and so does its last ID. To delete a whole stream, use
    `streamkeep drop`.

    \b
    Example:
      streamkeep del orders.store orders 1718004800000-0 1718004800000-1
    """
    with open_store(store_path, sync=sync) as store:
        output.line(str(store.xdel(key, *ids)))
        with store.snapshot() as snapshot:
            note_missing(ctx, snapshot, key)


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@maxlen_option
@minid_option
@exact_option
@limit_option
@sync_option
@quoted_option
@click.pass_context
def trim(
    ctx: click.Context,
    store_path: Path,
    key: bytes,
    maxlen: int | None,
    minid: bytes | None,
    exact: bool,
    limit: int | None,
    sync: Sync,
) -> None:
    """Remove the oldest entries of KEY; print how many went (XTRIM).

    Without --exact only whole macro nodes go, each a page full of entries, and at most 10,000
    entries in one call (see --limit).

    \b
    Examples:
      streamkeep trim orders.store orders --maxlen 100000
      streamkeep trim orders.store orders --minid 2024-06-10T00:00:00Z --exact
    """
    check_trimming(maxlen, minid, exact=exact, limit=limit)
    if maxlen is None and minid is None:
        raise click.UsageError("say what stays: --maxlen or --minid")
    with open_store(store_path, sync=sync) as store:
        removed = store.xtrim(key, maxlen=maxlen, minid=minid, approximate=not exact, limit=limit)
        output.line(str(removed))
        with store.snapshot() as snapshot:
            note_missing(ctx, snapshot, key)
            if not exact:
                extra = (
                    snapshot.xlen(key) - maxlen
                    if maxlen is not None
                    else len(snapshot.xrange(key, "-", b"(" + (minid or b""), count=1))
                )
                if extra > 0:
                    output.note(
                        "next: some entries that were to go are still there, since only whole "
                        "macro nodes went; repeat with --exact to trim to the entry"
                    )
