"""`streamkeep erase`: entries deleted, and their bytes overwritten in every file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamkeep.format import quoting
from streamkeep.format.humanize import count_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import (
    Bytes,
    Duration,
    Id,
    condition_of,
    store_argument,
    where_option,
    yes_option,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.entry_ids import given_ids
from streamkeep.tools.base.entry_output import check_exists
from streamkeep.tools.base.opening import confirm_loss, open_store
from streamkeep.tools.base.statuses import Failure

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store


@command()
@store_argument
@click.argument("key", metavar="[KEY", type=Bytes(), required=False)
@click.argument("ids", metavar="ID...]", type=Id(), nargs=-1)
@where_option
@click.option(
    "--finish", is_flag=True, help="Finish an erasure that was interrupted; takes no KEY and no ID."
)
@click.option(
    "--timeout",
    type=Duration(),
    default="1m",
    show_default=True,
    help="How long to wait for readers of old snapshots.",
)
@yes_option
def erase(
    store_path: Path,
    key: bytes | None,
    ids: tuple[bytes, ...],
    where: tuple[bytes, ...],
    finish: bool,
    timeout: int,
    yes: bool,
) -> None:
    """Erase entries: overwrite their bytes in every file of STORE.

    Prints how many there were. Unlike `streamkeep delete`, this overwrites an entry everywhere in
    STORE: in nodes, in the journal, in free pages, and in unused parts of pages. Entries that were
    deleted or trimmed before are erased, too. All of STORE is read, so erase many entries at once.
    The ID - reads IDs from standard input, see `streamkeep ack --help`.

    --where erases what has these fields: live, archived, and what deletes and trims have left in
    nodes and segments. It then searches all of them again, as a proof; what it finds is an error.

    Other processes may go on reading and writing. If one still reads an old snapshot after
    --timeout, it is named and the bytes remain. --finish then erases them.

    Copies elsewhere are not erased: backups, exported files, snapshots of the file system, and
    blocks that the disk has taken out of use.

    \b
    Examples:
      streamkeep erase orders.store orders 1718004800000-0 1718004800000-1 --yes
      streamkeep erase orders.store orders --where user=42
      streamkeep erase orders.store --finish
    """
    condition = condition_of(where)
    if finish == (key is not None) or (key is not None and bool(ids) == bool(where)):
        raise click.UsageError("give KEY and IDs, KEY and --where, or --finish")
    wanted = given_ids(ids, key) if key is not None and ids else []
    with open_store(store_path) as store:
        if key is not None and condition is not None:
            wanted = [bytes(one) for one in store.find_remains(key, condition)]
            if not wanted:
                output.summary(count=0) if common.as_json() else output.line("0")
                _check_known(store, key)
                return
        if key is not None:
            many = count_text(len(set(wanted)), "ID")
            loss = f"{quoting.named(key)} in {store_path}: {many}; nothing brings the entries back"
            confirm_loss([loss], "Erase these entries?", yes=yes)
        with output.progress("erase", 1000, sized=False, unit="pages") as advance:
            count = store.erase(
                key or b"",
                *wanted,
                timeout=timeout / 1000,
                progress=lambda done, total: advance(1000 * done // max(total, 1), done),
            )
        left = store.find_remains(key or b"", condition) if condition is not None else []
        if left:
            shown = " ".join(map(str, left[:10]))
            raise Failure(
                f"{len(left)} entries with these fields are in the store: {shown}",
                hint="if another process has appended them since, run the command again",
            )
        output.result(str(count), count=count)
        if key is not None and not count:
            _check_known(store, key)


def _check_known(store: Store[bytes], key: bytes) -> None:
    """Raise Failure for a stream that does not exist and has left nothing that was trimmed."""
    if all(one.key != key for one in store.archived_streams()):
        with store.snapshot() as snapshot:
            check_exists(snapshot, key)
