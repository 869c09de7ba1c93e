"""Commands on the entries of one stream: add, trim, range, tail, erase.

Those that read open the store without write access and read snapshots, entry by entry, so that a
stream of any length takes little memory.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from streamkeep.engine.commands.arguments import parse_ids
from streamkeep.format import quoting
from streamkeep.format.core.entry import Entry, StreamId
from streamkeep.format.core.errors import InvalidIdError, NoSuchKeyError
from streamkeep.format.core.json_form import json_bytes, json_pairs
from streamkeep.format.humanize import count_text, entries_text, time_text
from streamkeep.tools.base import arguments, common, output
from streamkeep.tools.base.arguments import (
    EntryId,
    From,
    Ms,
    Natural,
    Policy,
    Positive,
    StorePath,
    To,
    Where,
    Yes,
)
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import confirm_loss, open_store

if TYPE_CHECKING:
    from streamkeep.engine.api.read_commands import ScanEntry
    from streamkeep.engine.api.views import Snapshot

# --- how entries are printed -------------------------------------------------------------------
#
# A line of text begins with the ID, and a JSON object has it as `id`: `erase -` reads either.


def print_entry(entry: Entry[bytes], *, show_time: bool = False) -> None:
    ms, pairs = entry.stream_id.ms, entry.pairs
    if common.as_json():
        output.json_line("entry", id=entry.id.decode(), time_ms=ms, fields=json_pairs(pairs))
        return
    clock = f"  {time_text(ms)}" if show_time else ""
    output.line(f"{entry.id.decode()}{clock}  {quoting.pairs_text(pairs)}")


def no_stream(path: Path, key: bytes, *, where: str = "", hint: str = "") -> Failure:
    return Failure(
        f"no stream {quoting.named(key)}{where or f' in {path}'}",
        hint=f"streamkeep streams {shlex.quote(str(path))}{hint}",
        status=Exit.MISSING,
        code="NoSuchKeyError",
    )


# --- commands ----------------------------------------------------------------------------------

_AT_ONCE: Final = 1000  # entries of a stream that is followed
_POLICIES: Final = ("keepref", "delref", "acked")

History = Annotated[bool, "Also entries that were trimmed and archived, in one ordered view."]
ShowTime = Annotated[bool, "Print the time of each ID after it (text only)."]


@dataclass
class Trimming:
    """What is trimmed of a stream.

    Args:
        maxlen (N): Keep the newest N entries.
        minid (ID): Keep entries from this ID, or this time, on.
        exact (--exact/--approximate): Trim to the entry, or only whole macro nodes, which is
            cheaper and keeps a few more. [default: --approximate]
        limit (N): Trim at most about N entries, with --approximate only; 0 for no limit.
    """

    maxlen: Natural | None = None
    minid: From | None = None
    exact: bool = False
    limit: Natural | None = None
    policy: Policy | None = None

    def options(self) -> dict[str, Any]:
        """Return the arguments of the store; refuse combinations that Redis refuses, too."""
        if self.maxlen is not None and self.minid is not None:
            raise click.UsageError("--maxlen and --minid cannot be used together")
        if self.limit is not None and self.exact:
            raise click.UsageError("--limit cannot be used with --exact")
        if self.maxlen is None and self.minid is None:
            arguments.refuse_options("needs --maxlen or --minid", "limit", "exact", *_POLICIES)
        given = vars(self).copy()
        return {"approximate": not given.pop("exact"), "ref_policy": given.pop("policy"), **given}


@command()
def add(
    store_path: StorePath,
    key: bytes,
    fields: tuple[bytes, ...],
    *,
    entry_id: EntryId = b"*",
    trimming: Trimming,
    nomkstream: bool = False,
    idmp: tuple[bytes, bytes] | None = None,
    idmpauto: bytes | None = None,
) -> None:
    """Append one entry to the stream KEY; print its ID (XADD).

    Store and stream are created when they do not exist. A value that begins with a dash and is
    not a number goes after --.

    A producer that does not know whether its last message arrived sends it again with --idmp and
    the same message ID, or with --idmpauto and the same fields. A message that was added before is
    not added again; the ID of the first entry is printed. XCFGSET (`streamkeep exec`) sets how long
    messages are remembered.

    Examples:
      streamkeep add orders.store orders sku 7 --id '1718004800000-*'
      streamkeep add orders.store orders sku 8 count 2
      streamkeep add orders.store orders sku 9 --maxlen 100000
      streamkeep add orders.store orders sku 10 --idmp till-3 receipt-4711

    Args:
        fields (FIELD VALUE...):
        entry_id (--id): *: from the clock (the default); ms-*: the next one in that millisecond; or
            a full ID.
        nomkstream: Do nothing when there is no stream KEY.
        idmp (PRODUCER IID): Add nothing when PRODUCER has sent the message IID before.
        idmpauto (PRODUCER): Add nothing when PRODUCER has sent the same fields before.
    """
    if len(fields) % 2:
        problem = "fields and values come in pairs: the last field has no value"
        if fields[0] == b"*":
            problem += "; an ID is given with --id, and * is the default"
        raise click.UsageError(problem)
    options = trimming.options()
    if idmp is not None and idmpauto is not None:
        raise click.UsageError("--idmp and --idmpauto cannot be used together")
    if (idmp or idmpauto) is not None and entry_id != b"*":
        raise click.UsageError("--idmp and --idmpauto cannot be used with --id")
    pairs = list(zip(fields[0::2], fields[1::2], strict=True))
    with open_store(store_path, create=not nomkstream) as store:
        new_id = store.xadd(
            key, pairs, id=entry_id, nomkstream=nomkstream, idmp=idmp, idmpauto=idmpauto, **options
        )
        if new_id is None:
            output.done(key=key, id=None)
            raise no_stream(store_path, key)
        output.result(new_id.decode(), key=key, id=new_id.decode())


@command()
def trim(
    store_path: StorePath,
    key: bytes,
    *,
    older_than: Ms | None = None,
    id_range: tuple[From, To] | None = None,
    trimming: Trimming,
) -> None:
    """Trim the oldest entries of KEY, or a range of IDs (XTRIM).

    Without --exact, only whole macro nodes are removed, each a page full of entries, and at most
    10,000 entries in one call (see --limit).

    Removed entries stay pending in consumer groups, unless --delref removes them there, too.
    --acked keeps entries that a group still needs. With these two, entries are removed one by one,
    as with --exact, but never more than --limit allows.

    If the stream archives (`streamkeep retention set --archive`), trimmed entries go to the
    archive, and --history shows them.

    Examples:
      streamkeep trim orders.store orders --maxlen 100000
      streamkeep trim orders.store orders --older-than 30d
      streamkeep trim orders.store orders --minid 2024-06-10T00:00:00Z --exact
      streamkeep trim orders.store orders --maxlen 0 --exact --acked
      streamkeep trim orders.store orders --range 2024-06-10 '(2024-06-11'

    Args:
        older_than: Remove entries that are older.
        id_range (--range START END): Remove the entries from START to END, anywhere in the stream.
            Both are included; ( before one leaves it out.
    """
    if older_than is not None:
        arguments.refuse_options("cannot be used with --older-than", "maxlen", "minid")
        trimming.minid = b"%d-0" % max(0, round(time.time() * 1000) - older_than)
    if id_range is not None:
        others = ("older_than", "maxlen", "minid", "exact", "limit", *_POLICIES)
        arguments.refuse_options("cannot be used with --range", *others)
    options = trimming.options()
    if trimming.maxlen is None and trimming.minid is None and id_range is None:
        raise click.UsageError("one of --older-than, --maxlen, --minid or --range is required")
    with open_store(store_path) as store:
        removed = store.trim_range(key, *id_range) if id_range else store.xtrim(key, **options)
        output.result(f"{entries_text(removed)} removed", count=removed)
        with store.snapshot() as snapshot:
            if not snapshot.exists(key):  # it answers like an empty one
                raise no_stream(store_path, key)
            if id_range is None and (hint := next_trim(snapshot, key, trimming, removed)):
                output.note(f"next: {hint}")


def next_trim(snapshot: Snapshot, key: bytes, done: Trimming, removed: int) -> str:
    """Say why some entries that were to be removed are still there, and what to do; else ""."""
    if done.maxlen is not None:
        left = snapshot.xlen(key) > done.maxlen
    else:
        left = bool(snapshot.xrange(key, "-", b"(" + (done.minid or b""), count=1))
    still = "some of these entries are still there"
    if left and done.policy == "ACKED":
        return f"{still}: a group has not read or acknowledged them: XINFO GROUPS names them"
    if not left or done.exact:
        return ""
    if done.policy == "DELREF":
        return f"{still}: one call removes a limited number, see --limit"
    why = f"{still}, because only whole macro nodes are removed"
    if 2 * removed > (10_000 if done.limit is None else done.limit) > 0:
        why += ", and a limited number in one call, see --limit"
    return f"{why}; --exact trims to the entry"


def print_stream(
    snapshot: Snapshot,
    key: bytes,
    entries: Iterable[ScanEntry],
    *,
    show_time: bool,
    summary: bool = True,
) -> None:
    """Print entries of one stream, and a summary, unless the command goes on.

    A missing stream has a status of its own.
    """
    printed = 0
    for printed, entry in enumerate(entries, 1):  # noqa: B007
        print_entry(entry, show_time=show_time)
    if common.as_json() and summary:
        output.summary(key=key, entries=printed)
    if printed or snapshot.exists(key):
        return
    missing = no_stream(click.get_current_context().params["store_path"], key)
    if summary:
        raise missing
    output.note(str(missing))  # it may be created while the command waits


@command("range", stops=True)
def range_(
    store_path: StorePath,
    key: bytes,
    start: From = b"-",
    end: To = b"+",
    count: Positive | None = None,
    reverse: bool = False,
    history: History = False,
    where: Where = (),
    show_time: ShowTime = False,
) -> None:
    """Print entries of the stream KEY, oldest first (XRANGE).

    START and END are entry IDs, both included: 1718004800000-0, or 1718004800000 for all of that
    millisecond; - and + are the ends of the stream, and '(ID' leaves the ID itself out. A time such
    as 2024-06-10T07:33:20Z, 2024-06-10T07:33 or 2024-06-10 is its first millisecond, and
    '(2024-06-11' leaves that millisecond out. An age such as -2h is so long before now.

    A line has the ID and the fields. What is not plain text is quoted with redis-cli's escapes.
    --json loses nothing, and `streamkeep load` reads it back.

    Examples:
      streamkeep range orders.store orders
      streamkeep range orders.store orders 2024-06-10 '(2024-06-11' --count 10
      streamkeep range orders.store orders --json > page.jsonl
      streamkeep range orders.store orders --reverse --count 1
      streamkeep range orders.store orders --history --count 10
      streamkeep range orders.store orders -2h --where user=42 --where kind=sale

    Args:
        count (-n N): Print at most N entries.
        reverse: Newest first (XREVRANGE).
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        reader = store if history else snapshot  # the store renews its snapshot from time to time
        wanted = arguments.condition_of(where)
        found = reader.scan(key, start, end, reverse=reverse, history=history, where=wanted)
        print_stream(snapshot, key, islice(found, count), show_time=show_time)


@command(stops=True)
def tail(
    store_path: StorePath,
    key: bytes,
    count: Natural = 10,
    follow: bool = False,
    history: History = False,
    show_time: ShowTime = False,
) -> None:
    """Print the last entries of the stream KEY, oldest first.

    With --follow it goes on until Ctrl-C. It sleeps between entries; a process that adds one wakes
    it. The stream may be created later. --json then prints no summary, because there is no end.

    Example:
      streamkeep tail orders.store orders -n 3

    Args:
        count (-n N): How many entries; with 0 and --follow only new ones.
        follow (-f): Continue with new entries as they come, until Ctrl-C.
    """
    with open_store(store_path, readonly=True) as store:
        with store.snapshot() as snapshot:
            after, end = b"0-0", b"+"
            with suppress(NoSuchKeyError):
                after = end = snapshot.xinfo_stream(key)["last-generated-id"]
            entries: Iterable[ScanEntry] = ()
            if count:  # they are read twice, to save memory
                reader = store if history else snapshot
                newest = reader.scan(key, "-", end, reverse=True, history=history)
                back = next(islice(newest, count - 1, None), None)
                entries = reader.scan(key, "-" if back is None else back.id, end, history=history)
            print_stream(snapshot, key, entries, show_time=show_time, summary=not follow)
        sys.stdout.flush()
        for entry in store.follow(key, after, count=_AT_ONCE, history=history) if follow else ():
            print_entry(entry, show_time=show_time)
            sys.stdout.flush()


# --- erase ----------------------------------------------------------------------------------------


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
        finish: Erase the bytes of what an interrupted call had come to. One that was killed is
            repeated instead: entries that it had not come to are still there.
        verify (TARGET): Search the copy TARGET, too, for what was to be erased.
        timeout: How long to wait for readers of old snapshots, and for the shipper of TARGET.
    """
    condition = arguments.condition_of(where)
    if verify is not None and key is None:
        raise click.UsageError("--verify needs a KEY: what to search for")
    if finish == (key is not None) or (key is not None and bool(ids) == bool(where)):
        raise click.UsageError("give KEY and IDs, KEY and --where, or --finish")
    wanted = given_ids(ids, key) if key is not None and ids else []
    hint = f"streamkeep erase {shlex.quote(str(store_path))} --finish"
    hint = f"; or, for what a deleted stream has left in free pages, {hint}"
    unknown = no_stream(store_path, key or b"", hint=hint)
    with open_store(store_path) as store:
        known = (
            key is None
            or store.exists(key)
            or any(one.key == key for one in store.archived_streams())
            or any(one.key == key for one in store.archived_segments())
            or store.find_remains(key) != []  # files that a killed `archive adopt` has left
        )
        # Before all of STORE is read for a key that was mistyped. Where the archive is published,
        # segments there may be all that is left of a deleted stream.
        if key is not None and not known and store.remote_archive() is None:
            raise unknown
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
            from streamkeep.recovery.copies.remains import find_in_copy

            # Without an erasure, the shipper replaces nothing.
            seconds = timeout / 1000 if wanted else 0
            found = find_in_copy(store, verify, key, parse_ids(wanted), condition, seconds)
            if found:
                shown = ", ".join(f"{one.name} ({entries_text(len(one.ids))})" for one in found[:3])
                more = f", and {len(found) - 3} more" if len(found) > 3 else ""
                raise Failure(
                    f"still in the copy {verify}: {shown}{more}",
                    hint="`streamkeep ship STORE TARGET --once` replaces it; where that was done, "
                    "--renew does; then run the command again",
                )
            output.note(f"{verify}: clean")
        output.result(str(count), count=count)
        if not known and not count:
            raise unknown


def given_ids(ids: Sequence[bytes], key: bytes) -> list[bytes]:
    """Return the IDs that were given as arguments, or for - those on standard input.

    Each line there begins with an ID, or is a JSON object with one. All of them are read and
    checked before the command changes anything, so that it does everything or nothing.
    """
    if b"-" not in ids:
        return list(ids)
    if len(ids) > 1:
        raise click.UsageError("the ID - means standard input; give no other ID with it")
    found = []
    for number, line in enumerate(sys.stdin.buffer, start=1):
        text = line.strip()
        if not text:
            continue
        try:
            if text.startswith(b"{"):
                members: dict[str, Any] = json.loads(text)
                if members.get("type") == "summary":
                    continue
                if members.get("key") not in (None, json_bytes(key)):
                    other, own = members["key"], quoting.named(key)
                    raise ValueError(f"an entry of {other!r}, not of {own}")
                found_id = members.get("id")
                if not isinstance(found_id, str):  # a number may be the ID of anything else
                    raise ValueError("the object has no member id")
                text = found_id.encode()
            else:
                text = text.split(maxsplit=1)[0]
            StreamId.parse(text)
        except (ValueError, InvalidIdError) as error:
            problem = str(error)
            if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
                problem = f"not JSON: {error}"
            elif isinstance(error, InvalidIdError):
                problem = f"{quoting.shown(text)} is not an entry ID"
            raise Failure(f"standard input line {number}: {problem}; nothing was done") from None
        found.append(text)
    return found
