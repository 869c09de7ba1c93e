"""`streamkeep backup` and `streamkeep compact`: the store copied, and the store made smaller."""

from __future__ import annotations

import time
from pathlib import Path

import click

from streamkeep.format.humanize import count_text, size_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import path_of, store_argument
from streamkeep.tools.base.command import command


@command()
@store_argument
@click.argument("target", metavar="TARGET", type=click.Path(), callback=path_of)
@click.option("--no-verify", is_flag=True, help="Do not check the copy with fsck.")
def backup(store_path: Path, target: Path, no_verify: bool) -> None:
    """Copy STORE, which may be in use, to the folder TARGET.

    The copy is of one moment, with the archive of that moment, and is an ordinary store: to restore
    it, copy the folder back. It has no free pages, is checked with fsck, and gets the name TARGET
    only when it is complete: a command that fails or is killed leaves an earlier backup unchanged.

    TARGET must be missing, empty, or an earlier backup of STORE that has not been written to. Of
    the archive, only segments that the earlier backup lacks are copied.

    \b
    Example:
      streamkeep backup orders.store backup.store
    """
    from streamkeep.recovery.backups.backup import backup as copy_store

    began = time.perf_counter()
    with output.progress("backup", 300, sized=False, unit="bytes") as advance:
        parts = ("archive", "data", "check")

        def show(what: str, done: int, total: int) -> None:
            advance(100 * parts.index(what) + 100 * done // max(total, 1), done)

        report = copy_store(store_path, target, verify=not no_verify, progress=show)
    seconds = time.perf_counter() - began
    if common.as_json():
        output.summary(
            path=str(report.path),
            epoch=report.epoch,
            commit=report.commit_number,
            store_bytes=report.store_bytes,
            data_bytes=report.data_bytes,
            copied_segments=report.copied_segments,
            copied_bytes=report.copied_bytes,
            kept_segments=report.kept_segments,
            kept_bytes=report.kept_bytes,
            verified=not no_verify,
            recorded=report.recorded,
            seconds=round(seconds, 3),
        )
        return
    parts_text = [f"{size_text(report.data_bytes)} of data"]
    for count, size, done in (
        (report.copied_segments, report.copied_bytes, "copied"),
        (report.kept_segments, report.kept_bytes, "kept from the earlier backup"),
    ):
        if count:
            segments = count_text(count, "segment", "segments")
            parts_text.append(f"{segments} ({size_text(size)}) {done}")
    checked = "not checked" if no_verify else "checked"
    output.note(f"{target}: {', '.join(parts_text)}; {checked}, in {output.span_text(seconds)}")
    if not report.recorded:
        hint = "`streamkeep status` needs --backup to know of this backup"
        output.note(f"{store_path} cannot be written, so {hint}")


@command()
@store_argument
def compact(store_path: Path) -> None:
    """Copy the data file of STORE without its free pages.

    Returns to the disk the space of deleted and archived entries. No other process may have STORE
    open. The disk needs space for the new file next to the old one. A crash at any moment leaves
    the old file or the new one.

    \b
    Example:
      streamkeep compact orders.store
    """
    from streamkeep.engine.whole_store.compact import compact as compact_store

    data = store_path / "data.mdb"
    total = data.stat().st_size if data.exists() else 0
    with output.progress("compact", total, sized=True, unit="bytes") as advance:
        done = compact_store(store_path, progress=lambda size: advance(size, size))
    if common.as_json():
        output.summary(
            before_bytes=done.before_bytes, after_bytes=done.after_bytes, epoch=done.epoch
        )
    else:
        before, after = size_text(done.before_bytes), size_text(done.after_bytes)
        output.line(f"{before} before, {after} after")
