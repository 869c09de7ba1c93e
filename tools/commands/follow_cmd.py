"""`streamkeep follow`: a store that follows a Redis server."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from streamkeep.format.humanize import count_text, entries_text
from streamkeep.tools.base import arguments, output
from streamkeep.tools.base.arguments import SizeBytes, StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit, Failure, given
from streamkeep.tools.base.opening import on_signals, open_store


@command()
def follow(
    source: str,
    store_path: StorePath,
    match: tuple[str, ...] = (),
    deletions: Literal["apply", "keep"] = "apply",
    once: bool = False,
    skip: tuple[str, ...] = (),
    resync: bool = False,
    detach: bool = False,
    backlog: SizeBytes = 4 << 30,
) -> None:
    """Keep the streams of a Redis server in STORE, and what it trims.

    SOURCE is redis://[user:password@]host[:port][/db], rediss:// with TLS, or unix:///socket. A
    password that it does not have is taken from REDISCLI_AUTH, as redis-cli does.

    STORE becomes a replica of it: nothing changes there, and no program notices. What Redis trims
    goes into the archive of STORE. End it whenever you want, also by kill -9: it goes on where it
    was.

    Exit status: 5  with --once: Redis had trimmed or deleted entries before they came

    Examples:
      streamkeep follow redis://localhost orders.store --once
      streamkeep follow redis://localhost orders.store --match 'orders:*' --deletions keep

    Args:
        match (PATTERN): Follow only keys that fit, as with KEYS. May be repeated.
        deletions: What is deleted there goes here, too, or is kept in the archive.
        once: End when STORE has what SOURCE has now.
        skip (COMMAND): Do not apply this command. May be repeated.
        resync: Take all streams anew, in place of going on, and forget what was lost before.
        detach: Follow no more: the streams of STORE are its own from now on.
        backlog: What may have come and not be applied yet, on the disk of STORE.
    """
    if detach:
        others = ("match", "deletions", "once", "skip", "resync", "backlog")
        arguments.refuse_options("cannot be used with --detach", *others)
        detach_from(source, store_path)
        return
    which: dict[str, Any] = {"match": match, "deletions": deletions, "skip": skip}
    follow_server(source, store_path, once=once, resync=resync, backlog=backlog, **which)


def detach_from(source: str, path: Path) -> None:
    from streamkeep.replication import detach, following
    from streamkeep.replication.address import parse_address

    source = parse_address(source).shown()
    with open_store(path) as store:
        row = following(store)
        if row is None or row.source != source:
            found = "no server" if row is None else row.source
            raise Failure(f"{path}: follows {found}, not {source}; nothing was changed")
        streams = detach(store)
    text = f"{path}: what followed {source} is its own now: {count_text(streams, 'stream')}"
    output.total(text, source=source, streams=streams)


def follow_server(source: str, store_path: Path, *, once: bool, **options: Any) -> None:
    """Follow a server, with a progress bar, until a signal comes."""
    from streamkeep.replication import Follower
    from streamkeep.replication.follower import lost_text

    with ExitStack() as bar:
        shown: list[output.Advance] = []

        def progress(done: int, total: int | None) -> None:
            if not shown:
                shown.append(bar.enter_context(output.progress("all keys", "bytes")))
            shown[0](done, total)

        def told(text: str) -> None:
            bar.close()
            shown.clear()
            output.note(text)

        options |= {"password": os.environ.get("REDISCLI_AUTH", ""), "sync": given().sync}
        follower = Follower(source, store_path, told=told, progress=progress, **options)
        if not once:
            on_signals(follower.stop.set)
        report = follower.run(once=once)
    skipped = sum(report.skipped.values())
    out = f"; {count_text(skipped, 'command')} for other keys or types" if skipped else ""
    text = (
        f"everything up to byte {report.offset:,} of {report.source}: "
        f"{count_text(report.commands, 'command')}, {entries_text(report.entries)}{out}"
    )
    text = text if report.full else f"nothing of {report.source} yet"
    output.total(f"{store_path}: has {text}", **report._asdict())
    if once and follower.lost:
        raise Failure(
            f"{store_path}: {lost_text(follower.lost)}",
            hint="a larger repl-backlog-size in Redis, or a follower that runs all the time",
            status=Exit.LOSS,
        )
