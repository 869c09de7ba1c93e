"""`streamkeep archive run`: retention, then segments of what was trimmed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from streamkeep.engine.archive.archiver import DEFAULT_OPTIONS, TARGET_BYTES, ArchiveOptions
from streamkeep.engine.archive.publish import PublishReport
from streamkeep.format.core.errors import StoreLockedError
from streamkeep.format.humanize import count_text, entries_text, size_text
from streamkeep.format.segment.writer import DEFAULT_BLOCK_BYTES, DEFAULT_LEVEL
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Number, store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.statuses import Exit, Failure

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
    type=Number(4096, _MOST_BLOCK),
    default=DEFAULT_BLOCK_BYTES,
    show_default=True,
    help="Bytes compressed together: a higher number makes smaller files, and slower single reads.",
)
@click.option(
    "--target-bytes",
    type=Number(1 << 20, 1 << 32),
    default=TARGET_BYTES,
    show_default=True,
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
@click.option(
    "--to",
    metavar="URI",
    help="Keep the archive at this URI or folder, from now on: s3://bucket/fleet.",
)
@click.option("--name", metavar="TEXT", help="What the archive there calls this store.")
@click.option(
    "--label",
    "labels",
    metavar="NAME=TEXT",
    multiple=True,
    help="A label of this store there; can be repeated.",
)
@click.option("--seal", is_flag=True, help="Also copy live entries there; they stay in the store.")
def run(
    store_path: Path,
    level: int,
    block_bytes: int,
    target_bytes: int,
    dictionary: bool,
    maintain: bool,
    no_wait: bool,
    to: str | None,
    name: str | None,
    labels: tuple[str, ...],
    seal: bool,
) -> None:
    """Move trimmed entries into segment files.

    Only streams that archive (`streamkeep retention set --archive`) have anything to move. If the
    command is killed, each entry is in exactly one place, and the next run continues. One archiver
    works at a time, in any process; this one waits for it and does the rest.

    With --to, segments are written below the URI, read back, and removed here. The store notes the
    URI, so later runs need no --to. Reads of the history fetch from there what they need. An S3
    bucket needs the extra `s3`, and credentials in the environment.

    \b
    Examples:
      streamkeep archive run orders.store
      streamkeep archive run orders.store --level 9 --block-bytes 1048576
      streamkeep archive run orders.store --to s3://bucket/fleet --label region=eu --seal
    """
    options: ArchiveOptions = DEFAULT_OPTIONS._replace(
        level=level, block_bytes=block_bytes, target_bytes=target_bytes, dictionary=dictionary
    )
    began = time.perf_counter()
    with open_store(store_path) as store:
        care = store.maintain() if maintain else None
        with output.progress("archiving", None, sized=True, unit="bytes") as advance:
            try:
                report = store.archive(
                    wait=not no_wait,
                    options=options,
                    progress=advance,
                    to=to,
                    name=name,
                    labels=_labels(labels),
                    seal=seal,
                )
            except StoreLockedError as error:
                raise Failure(
                    str(error), hint="without --no-wait, the command waits for it"
                ) from error
    seconds = time.perf_counter() - began
    trimmed = 0 if care is None else care.trimmed
    dropped = 0 if care is None else care.dropped
    there = report.published
    if common.as_json():
        output.summary(
            entries=report.entries,
            segments=report.segments,
            raw_bytes=report.raw_bytes,
            size_bytes=report.size_bytes,
            trimmed=trimmed,
            dropped_segments=dropped,
            forgotten_messages=0 if care is None else care.forgotten,
            removed_files=report.removed,
            uri=there.uri,
            uploaded_segments=there.uploaded,
            uploaded_bytes=there.uploaded_bytes,
            sealed_entries=there.sealed_entries,
            missing_segments=[one.path for one in there.missing],
            elapsed_ms=round(1000 * seconds),
        )
        _refuse_missing(there)
        return
    if care is not None and (trimmed or dropped):
        output.note(f"retention: {entries_text(trimmed)} trimmed, {dropped} segments dropped")
    files = count_text(report.segments, "segment")
    output.line(f"{entries_text(report.entries)} archived in {files}")
    if report.segments:
        ratio = report.size_bytes / report.raw_bytes
        sizes = f"{size_text(report.size_bytes)} of {size_text(report.raw_bytes)}"
        output.note(f"{sizes} ({ratio:.0%}) in {output.span_text(seconds)}")
    if there.uri is not None:
        sent = count_text(there.uploaded, "segment")
        output.line(f"{sent}, {size_text(there.uploaded_bytes)}, written to {there.uri}")
        if seal:
            output.line(f"{entries_text(there.sealed_entries)} sealed there")
    _refuse_missing(there)


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    """Return labels by name."""
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--label {text}: expected NAME=TEXT")
        labels[name] = value
    return labels


def _refuse_missing(report: PublishReport) -> None:
    """Fail if segments are nowhere."""
    if report.missing:
        names = ", ".join(one.path for one in report.missing[:3])
        raise Failure(
            f"{count_text(len(report.missing), 'segment')} of the archive, "
            f"{names}: neither on the disk nor at {report.uri}",
            hint="`streamkeep archive adopt` takes a copy",
            status=Exit.DAMAGED,
        )
