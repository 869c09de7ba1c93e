"""upgrade: a store of an older format becomes one of the present format."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from streamkeep.engine.crash_recovery.state import WAYS, WayName
from streamkeep.format.humanize import size_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import store_argument
from streamkeep.tools.base.command import command

_STEPS: Final = ("copy", "compare", "check")


@command()
@store_argument
@click.option(
    "--force-recovery",
    type=click.Choice(WAYS),
    help="How to go on if commits are missing: with what the data file or the last checkpoint has.",
)
def upgrade(store_path: Path, force_recovery: WayName | None) -> None:
    """Bring STORE to the present format of stores.

    A converted copy of the data file is written beside it, compared with it row by row, and checked
    with fsck. Only then does it take the place of the original. A command that fails or is killed
    leaves the old store or the new one: run it again. No other process may have STORE open. The
    disk needs space for the new file next to the old one. Entries, groups and the archive do not
    change. Older programs can no longer open STORE: keep a backup until all are new.

    \b
    Exit status: 0  done, or there was nothing to do
                 3  not a store, of a newer version, open elsewhere, or in need of recovery
                 4  damaged: it is as it was
                 6  there is no such store

    \b
    Example:
      streamkeep upgrade orders.store
    """
    from streamkeep.recovery.upgrade import upgrade as upgrade_store

    with output.progress("upgrade", 300, sized=False, unit="steps") as advance:

        def show(step: str, done: int, total: int) -> None:
            advance(100 * _STEPS.index(step) + min(100, 100 * done // max(total, 1)), done)

        done = upgrade_store(store_path, force_recovery=force_recovery, progress=show)
    if common.as_json():
        output.summary(
            path=str(store_path),
            before=done.before,
            after=done.after,
            before_bytes=done.before_bytes,
            after_bytes=done.after_bytes,
        )
    elif done.before == done.after:
        output.line(f"{store_path}: of the present format, {done.after}: nothing to do")
    else:
        sizes = f"{size_text(done.before_bytes)} before, {size_text(done.after_bytes)}"
        output.line(
            f"{store_path}: from format {done.before} to format {done.after}, verified; {sizes} "
            "after"
        )
