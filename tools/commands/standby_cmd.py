"""standby, promote: a store that follows another one, and takes its place."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from streamkeep.format.humanize import time_text
from streamkeep.tools.base import output
from streamkeep.tools.base.arguments import Duration, store_argument
from streamkeep.tools.base.command import command


@command(finishes=True)
@click.argument("source", metavar="SOURCE")
@store_argument
@click.option("--once", is_flag=True, help="End when STORE has all that SOURCE has now.")
@click.option(
    "--every",
    type=Duration(),
    default="500ms",
    show_default=True,
    help="How often to look for new commits.",
)
def standby(source: str, store_path: Path, once: bool, every: int) -> None:
    """Follow a copy with a STORE that can be read.

    SOURCE is what `streamkeep ship` writes to: a folder or a bucket. STORE is restored from it if
    it is missing, and then follows it, some two seconds behind. Programs may open STORE with
    readonly=True meanwhile; nothing else can write to it before `streamkeep promote`.

    \b
    Examples:
      streamkeep standby orders.copy standby.store --once
      streamkeep standby s3://bucket/orders standby.store
    """
    from streamkeep.recovery.copies.standby import Standby

    with output.progress("restore", None, sized=False, unit="pieces") as advance:
        following = Standby(
            source,
            store_path,
            every=every / 1000,
            progress=lambda what, done, total: advance(done, done),
        )
    try:
        if not once:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda got, frame: following.stop.set())
            output.note(f"{store_path}: following {following.target.uri}; Ctrl-C ends it")
        state = following.run(once=once)
    finally:
        following.close()
    output.done(**state._asdict())
    output.note(
        f"{store_path}: has everything up to commit {state.commit_number}, of "
        f"{time_text(state.time_ms)}"
    )


@command(finishes=True)
@store_argument
def promote(store_path: Path) -> None:
    """Make a standby the store that programs write to.

    First make sure that nothing writes to the store that it followed, and end `streamkeep standby`
    here. Commits that were not shipped are only in that store. `streamkeep ship` of STORE then
    goes on with the same copy, where that store is refused from then on.

    \b
    Example:
      streamkeep standby orders.copy standby.store --once
      streamkeep promote standby.store
    """
    from streamkeep.recovery.copies.standby import promote as promote_store

    state = promote_store(store_path)
    output.done(**state._asdict())
    output.note(
        f"{store_path}: can be written; it goes on after commit {state.commit_number}, of "
        f"{time_text(state.time_ms)}"
    )
