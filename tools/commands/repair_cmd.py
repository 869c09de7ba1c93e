"""repair: save the data of a damaged store, and report exactly what was lost."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import path_of, store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.statuses import Exit

if TYPE_CHECKING:
    from streamkeep.recovery.salvage.repair import Repaired


@command(finishes=True)
@store_argument
@click.option(
    "--output",
    "target",
    type=click.Path(),
    callback=path_of,
    metavar="NEW",
    help="Write the repaired store here; the folder must not exist.",
)
@click.option("--dry-run", is_flag=True, help="Only report what would be lost; needs no --output.")
@click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False),
    callback=path_of,
    metavar="FOLDER",
    help="Where --dry-run writes a temporary copy as large as STORE; by default next to it.",
)
def repair(store_path: Path, target: Path | None, dry_run: bool, scratch: Path | None) -> None:
    """Save the data of a damaged STORE into a new store.

    STORE is not changed. What can be derived is rebuilt without loss. Damaged macro nodes are read
    up to the damage. If LMDB's own pages are damaged, all pages of the file are searched for nodes
    and rows. Entries that belong nowhere, or may have been deleted, go to NEW/lost+found. The
    command ends with fsck.

    \b
    Exit status: 0  repaired, nothing was lost
                 3  not a store, locked, or written by a newer version
                 4  damage is left: a bug, please report it
                 5  repaired, and something was lost: it is listed

    \b
    Examples:
      streamkeep repair orders.store --output orders.repaired
      streamkeep repair orders.store --dry-run
    """
    from streamkeep.recovery.salvage import repair as repairs

    if target is None and not dry_run:
        raise click.UsageError("name the new store with --output NEW, or try with --dry-run")
    if scratch is not None and not dry_run:
        raise click.UsageError("--scratch is for --dry-run")
    began = time.perf_counter()
    total = _pages(store_path)
    with output.progress("repairing", total, sized=False, unit="pages") as advance:
        done = 0

        def count(pages: int) -> None:
            nonlocal done
            done += pages
            advance(min(done, total or done), done)

        if dry_run or target is None:
            repaired = repairs.try_repair(store_path, scratch=scratch, progress=count)
        else:
            repaired = repairs.repair(store_path, target, progress=count)
    _show(store_path, target, repaired, dry_run, time.perf_counter() - began)
    ctx = click.get_current_context()
    if repaired.damaged():
        ctx.exit(Exit.DAMAGED)
    if repaired.report.lost_anything():
        ctx.exit(Exit.LOSS)


def _pages(store: Path) -> int | None:
    """Return about how many pages there are to read."""
    try:
        return (store / "data.mdb").stat().st_size // 4096 or None
    except OSError:
        return None


def _show(
    store: Path, target: Path | None, repaired: Repaired, dry_run: bool, seconds: float
) -> None:
    """Print losses, what was rebuilt, and the verdict."""
    report = repaired.report
    lost = report.lost_anything()
    if common.as_json():
        for _, loss in sorted(report.streams.items()):
            if loss.any():
                members = loss.as_json()
                output.json_line(members.pop("type"), **members)
        for text in report.other:
            output.json_line("loss", stream=None, notes=[text])
        for found in repaired.findings:
            members = found.as_json()
            output.json_line(members.pop("type"), **members)
        entries = [loss.entries for loss in report.streams.values()]
        output.summary(
            path=str(store),
            output=None if target is None or dry_run else str(target),
            dry_run=dry_run,
            verdict=_verdict(repaired),
            lost_entries=None if None in entries else sum(one or 0 for one in entries),
            unverified_entries=sum(loss.unverified for loss in report.streams.values()),
            moved_entries=sum(loss.moved for loss in report.streams.values()),
            rebuilt=report.rebuilt,
            corrected=report.corrected,
            recovered_nodes=report.recovered,
            old_copies=report.stale,
            lost_and_found=repaired.items,
            seconds=round(seconds, 3),
        )
    else:
        for what, count in sorted(report.rebuilt.items()):
            output.line(f"rebuilt: {what}: {count:,}")
        if report.corrected:
            output.line(f"corrected: one byte in each of {report.corrected:,} values")
        if report.recovered:
            output.line(f"recovered: {report.recovered:,} macro nodes from pages without a tree")
        if report.stale:
            output.line(f"left out: {report.stale:,} old copies, which newer data replaces")
        for text in report.lines():
            output.line(text)
        for found in repaired.findings:
            output.line(str(found))
    where = "dry run" if dry_run or target is None else str(target)
    words = {"clean": "nothing was lost", "loss": "something was lost", "damaged": "damage is left"}
    output.note(f"{where}: {words[_verdict(repaired)]}, in {output.span_text(seconds)}")
    if repaired.items and not dry_run:
        output.note(
            f"lost+found: {repaired.items:,} items, see {repaired.lost_and_found}/index.jsonl"
        )
    if dry_run and lost:
        name = shlex.quote(f"{str(store).rstrip('/')}.repaired")
        output.note(f"next: streamkeep repair {shlex.quote(str(store))} --output {name}")


def _verdict(repaired: Repaired) -> str:
    if repaired.damaged():
        return "damaged"
    return "loss" if repaired.report.lost_anything() else "clean"
