"""`streamkeep archive run`: retention, then segments of what was trimmed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from streamkeep.engine.archive.archiver import DEFAULT_OPTIONS, TARGET_BYTES, ArchiveOptions
from streamkeep.format.core.errors import StoreLockedError
from streamkeep.format.segment.writer import DEFAULT_BLOCK_BYTES, DEFAULT_LEVEL
from streamkeep.tools.base import output
from streamkeep.tools.base.arguments import store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.statuses import Failure

_MOST_BLOCK: Final = 64 << 20


@command("run")
@store_argument
@click.option(
    "--level",
    type=click.IntRange(-7, 22),
    default=DEFAULT_LEVEL,
    show_default=True,
    help="Compression level of zstd: higher is smaller and slower.",
)
@click.option(
    "--block-bytes",
    type=click.IntRange(4096, _MOST_BLOCK),
    default=DEFAULT_BLOCK_BYTES,
    show_default=True,
    metavar="N",
    help="Bytes compressed together: a higher number makes smaller files, and slower single reads.",
)
@click.option(
    "--target-bytes",
    type=click.IntRange(1 << 20, 1 << 32),
    default=TARGET_BYTES,
    show_default=True,
    metavar="N",
    help="Bytes of macro nodes after which a segment ends; writers wait for each to be committed.",
)
@click.option(
    "--dictionary/--no-dictionary",
    default=True,
    help="Train a dictionary where that makes segments smaller (the default).",
)
@click.option(
    "--maintain/--no-maintain",
    default=True,
    help="First trim streams to their retention and remove old segments (the default).",
)
@click.option("--no-wait", is_flag=True, help="Fail when another archiver is at work.")
def run(
    store_path: Path,
    level: int,
    block_bytes: int,
    target_bytes: int,
    dictionary: bool,
    maintain: bool,
    no_wait: bool,
) -> None:
    """Move trimmed entries into segment files.

    Only streams that archive (`streamkeep retention set --archive`) have anything to move. If the
    command is killed, each entry is in exactly one place, and the next run continues. One archiver
    works at a time, in any process; this one waits for it and does the rest.

    \b
    Examples:
      streamkeep archive run orders.store
      streamkeep archive run orders.store --level 9 --block-bytes 1048576
    """
    options: ArchiveOptions = DEFAULT_OPTIONS._replace(
        level=level, block_bytes=block_bytes, target_bytes=target_bytes, dictionary=dictionary
    )
    began = time.perf_counter()
    with open_store(store_path) as store:
        care = store.maintain() if maintain else None
        with output.progress("archiving", None, sized=True, unit="bytes") as advance:
            try:
                report = store.archive(wait=not no_wait, options=options, progress=advance)
            except StoreLockedError as error:
                raise Failure(
                    str(error), hint="without --no-wait, the command waits for it"
                ) from error
    seconds = time.perf_counter() - began
    trimmed = 0 if care is None else care.trimmed
    dropped = 0 if care is None else care.dropped
    if output.as_json():
        output.summary(
            entries=report.entries,
            segments=report.segments,
            raw_bytes=report.raw_bytes,
            size_bytes=report.size_bytes,
            trimmed=trimmed,
            dropped_segments=dropped,
            forgotten_messages=0 if care is None else care.forgotten,
            removed_files=report.removed,
            elapsed_ms=round(1000 * seconds),
        )
        return
    if care is not None and (trimmed or dropped):
        output.note(
            f"retention: {output.entries_text(trimmed)} trimmed, {dropped} segments dropped"
        )
    files = output.count_text(report.segments, "segment")
    output.line(f"{output.entries_text(report.entries)} archived in {files}")
    if report.segments:
        ratio = report.size_bytes / report.raw_bytes
        sizes = f"{output.size_text(report.size_bytes)} of {output.size_text(report.raw_bytes)}"
        output.note(f"{sizes} ({ratio:.0%}) in {output.span_text(seconds)}")
