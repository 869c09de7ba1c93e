"""`streamkeep erase`: entries deleted, and their bytes overwritten in every file."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.engine.commands.arguments import parse_ids
from streamkeep.format import quoting
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import InvalidIdError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import count_text, entries_text
from streamkeep.tools.base import arguments, output
from streamkeep.tools.base.arguments import EntryId, Ms, StorePath, Where, Yes
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Failure
from streamkeep.tools.base.opening import confirm_loss, open_store
from streamkeep.tools.commands.entry_cmds import no_stream

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store


@command()
def erase(
    store_path: StorePath,
    key: bytes | None = None,
    ids: tuple[EntryId, ...] = (),
    where: Where = (),
    finish: bool = False,
    verify: str | None = None,
    timeout: Ms = 60_000,
    yes: Yes = False,
) -> None:
    """Erase entries: overwrite their bytes in every file of STORE.

    Prints how many there were. Unlike XDEL, this overwrites an entry everywhere in
    STORE: in nodes, in the journal, in free pages, and in unused parts of pages. Entries that were
    deleted or trimmed before are erased, too. All of STORE is read, so erase many entries at once.
    The ID - reads IDs from standard input, one at the start of each line or in each JSON object, as
    `range` prints them.

    --where erases what has these fields: live, archived, and what deletes and trims have left in
    nodes and segments, which it then searches again, as a proof; what it finds is an error. What is
    only left in free pages and in the journal, as of ended jobs, cannot be found: all of that is
    overwritten, also where no entry is found.

    Other processes may go on reading and writing. If one still reads an old snapshot after
    --timeout, it is named and the bytes remain. --finish then erases them.

    What `streamkeep ship` keeps elsewhere is replaced by the shipper. --verify waits for that, and
    then searches every object there: contents that it finds are an error. Other copies are not
    erased: backups, exported files, old versions in a bucket, snapshots of the file system, and
    blocks that the disk has taken out of use.

    Examples:
      streamkeep erase orders.store orders 1718004800000-0 1718004800000-1 --yes
      streamkeep erase orders.store orders --where user=42 --verify s3://bucket/orders
      streamkeep erase orders.store --finish

    Args:
        key ([KEY):
        ids (ID...]):
        finish: Finish an erasure that was interrupted; takes no KEY and no ID.
        verify (TARGET): Search the copy TARGET, too, for what was to be erased.
        timeout: How long to wait for readers of old snapshots, and for the shipper of TARGET.
    """
    condition = arguments.condition_of(where)
    if verify is not None and key is None:
        raise click.UsageError("--verify needs a KEY: what to search for")
    if finish == (key is not None) or (key is not None and bool(ids) == bool(where)):
        raise click.UsageError("give KEY and IDs, KEY and --where, or --finish")
    wanted = given_ids(ids, key) if key is not None and ids else []
    with open_store(store_path) as store:
        known = store.exists(key) if key is not None else True
        known = known or any(one.key == key for one in store.archived_streams())
        # Before all of STORE is read for a key that was mistyped. Where the archive is published,
        # segments there may be all that is left of a deleted stream.
        if key is not None and not known and store.remote_archive() is None:
            raise _unknown(store_path, key)
        if key is not None and condition is not None:
            wanted = [bytes(one) for one in store.find_remains(key, condition)]
        if key is not None and wanted:
            many = count_text(len(set(wanted)), "ID")
            loss = f"{quoting.named(key)} in {store_path}: {many}; nothing brings the entries back"
            confirm_loss([loss], "Erase these entries?", yes=yes)
        # Also without an ID: bytes may be left of entries that are in no node any more.
        with output.progress("erase", "pages") as advance:
            count = store.erase(key or b"", *wanted, timeout=timeout / 1000, progress=advance)
        left = store.find_remains(key or b"", condition) if condition is not None else []
        if left:
            shown = " ".join(map(str, left[:10]))
            raise Failure(
                f"still in the store: {entries_text(len(left))} with these fields: {shown}",
                hint="if another process has appended them since, run the command again",
            )
        if verify is not None and key is not None:
            _check_copy(store, verify, key, wanted, condition, timeout / 1000)
        output.result(str(count), count=count)
        if key is not None and not known and not count:
            raise _unknown(store_path, key)


def _check_copy(
    store: Store[bytes],
    target: str,
    key: bytes,
    ids: Sequence[bytes],
    condition: dict[bytes, list[bytes]] | None,
    timeout_s: float,
) -> None:
    """Raise Failure if a copy has contents of entries after its shipper had time to replace it."""
    from streamkeep.recovery.copies.remains import find_in_copy

    # Without an erasure, the shipper replaces nothing.
    found = find_in_copy(
        store, target, key, parse_ids(list(ids)), condition, timeout_s if ids else 0
    )
    if found:
        shown = ", ".join(f"{one.name} ({entries_text(len(one.ids))})" for one in found[:3])
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        raise Failure(
            f"still in the copy {target}: {shown}{more}",
            hint="`streamkeep ship STORE TARGET --once` replaces it; where that was done, --renew "
            "does; then run the command again",
        )
    output.note(f"{target}: clean")


def _unknown(path: Path, key: bytes) -> Failure:
    """Return the error for a stream that does not exist and has left nothing in nodes."""
    failure = no_stream(path, key)
    finish = f"streamkeep erase {shlex.quote(str(path))} --finish"
    failure.hint += f"; or, for what a deleted stream has left in free pages, {finish}"
    return failure


STDIN: Final = b"-"


def given_ids(ids: Sequence[bytes], key: bytes) -> list[bytes]:
    """Return the IDs that were given as arguments, or for - those on standard input.

    All of them are read and checked before the command changes anything, so that it does
    everything or nothing.
    """
    if STDIN not in ids:
        return list(ids)
    if len(ids) > 1:
        raise click.UsageError("the ID - means standard input; give no other ID with it")
    return list(_read_ids(key))


def _read_ids(key: bytes) -> Iterator[bytes]:
    """Yield the ID at the beginning of each line, or in the JSON object that the line is."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        text = line.strip()
        if text.startswith(b"{"):
            found = _json_id(text, key, number)
        else:
            found = text.split(maxsplit=1)[0] if text else None
        if found is None:
            continue
        try:
            StreamId.parse(found)
        except InvalidIdError:
            raise _bad_line(number, f"{quoting.shown(found)} is not an entry ID") from None
        yield found


def _json_id(text: bytes, key: bytes, number: int) -> bytes | None:
    """Return the ID of a line of a --json output; None for its summary."""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise _bad_line(number, f"not JSON: {error}") from None
    if found.get("type") == "summary":
        return None
    of_stream = found.get("key")
    if of_stream not in (None, json_bytes(key)):
        raise _bad_line(number, f"an entry of {of_stream!r}, not of {quoting.named(key)}")
    entry_id = found.get("id")
    if not isinstance(entry_id, str):
        raise _bad_line(number, "the object has no member id")
    return entry_id.encode()


def _bad_line(number: int, problem: str) -> Failure:
    return Failure(f"standard input line {number}: {problem}; nothing was done")
