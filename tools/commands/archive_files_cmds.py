"""Commands about segments as files: archive verify, adopt, export, remove."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from streamkeep.engine.commands.arguments import range_start
from streamkeep.format import quoting
from streamkeep.format.core.entry import StreamId
from streamkeep.format.humanize import count_text, entries_text, size_text, time_text
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.tools.base import common, output
from streamkeep.tools.base.archive_options import (
    block_limit_option,
    check_chosen,
    number_option,
    optional_key,
    range_options,
    segment_json,
)
from streamkeep.tools.base.arguments import Bytes, Id, PathOrUri, store_argument, yes_option
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import confirm_loss, open_store
from streamkeep.tools.base.statuses import Exit

# --- verify -------------------------------------------------------------------------------------


@command("verify", finishes=True)
@store_argument
@optional_key
@number_option
def verify(store_path: Path, key: bytes | None, stream_number: int | None) -> None:
    """Read segments to the last byte, and report damage.

    Each damaged block is named; the others can still be read. Nothing is changed.

    \b
    Exit status: 0  all segments are whole
                 4  something is damaged or missing

    \b
    Examples:
      streamkeep archive verify orders.store
      streamkeep archive verify orders.store orders --json
    """
    check_chosen(key, stream_number)
    began = time.perf_counter()
    bad = problems = 0
    with open_store(store_path, readonly=True) as store:
        records = store.archived_segments(key, stream_number=stream_number)
        size = sum(record.size_bytes for record in records)
        with output.progress("verifying", size, sized=True, unit="bytes") as advance:
            for one in store.verify_archive(
                key, stream_number=stream_number, progress=lambda done, _: advance(done, done)
            ):
                bad += bool(one.problems)
                problems += len(one.problems)
                if common.as_json():
                    found = [str(problem) for problem in one.problems]
                    output.json_line("segment", **segment_json(store, one.record), problems=found)
                else:
                    for problem in one.problems:
                        output.line(str(problem))
    seconds = time.perf_counter() - began
    output.done(
        segments=len(records),
        damaged=bad,
        problems=problems,
        size_bytes=size,
        seconds=round(seconds, 3),
    )
    verdict = f"{count_text(bad, 'segment')} damaged" if bad else "all whole"
    output.note(
        f"{count_text(len(records), 'segment')}, {size_text(size)} in "
        f"{output.span_text(seconds)}: {verdict}"
    )
    if bad:
        click.get_current_context().exit(Exit.DAMAGED)


# --- adopt and export ---------------------------------------------------------------------------


@command("adopt", finishes=True)
@store_argument
@click.argument(
    "paths",
    metavar="PATH...",
    type=PathOrUri(exists=True),
    nargs=-1,
    required=True,
)
@click.option(
    "--key",
    type=Bytes(),
    metavar="KEY",
    help="The stream that they will belong to, created if missing; by default their own.",
)
@click.option("--create", is_flag=True, help="Create STORE when it is missing.")
@block_limit_option
def adopt(
    store_path: Path, paths: tuple[str, ...], key: bytes | None, create: bool, max_block_bytes: int
) -> None:
    """Add segment files to the archive of STORE.

    PATH is a file, a folder that is searched for *.seg, or the archive of another store in an
    object store: the URI of its fleet, a slash and its UUID. Each file is verified, copied below
    STORE/archive unless it is there, and part of the history from then on. Segments that the
    archive has are skipped; the file of one that was lost is put back. A segment must not overlap
    the live entries of its stream, or another segment.

    \b
    Examples:
      streamkeep archive export orders.store exported
      streamkeep archive adopt orders.store exported
      streamkeep archive adopt orders.store exported --key orders-2024
      streamkeep archive adopt history.store exported --create
    """
    adopted = known = entries = 0
    with (
        open_store(store_path, create=create, hint="--create creates it") as store,
        output.progress("adopting", None, sized=True, unit="bytes") as advance,
    ):
        for one in store.adopt_segments(
            *paths,
            key=key,
            progress=lambda done, _: advance(done, done),
            max_block_bytes=max_block_bytes,
        ):
            record = one.record
            if record is None:
                known += 1
            else:
                adopted += 1
                entries += record.entries
            if common.as_json():
                output.json_line(
                    "adopted",
                    source=str(one.source),
                    known=record is None,
                    erased=one.erased,
                    segment=None if record is None else segment_json(store, record),
                )
            elif record is not None:
                left = f", without {entries_text(one.erased)} erased" if one.erased else ""
                output.line(f"{one.source}: {entries_text(record.entries)}{left}")
    output.done(adopted=adopted, known=known, entries=entries)
    output.note(
        f"adopted {count_text(adopted, 'segment')} with {entries_text(entries)}"
        + (f", {known:,} known already" if known else "")
    )


@command("export", finishes=True)
@store_argument
@click.argument("folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path))
@optional_key
@number_option
@range_options
def export(
    store_path: Path,
    folder: Path,
    key: bytes | None,
    stream_number: int | None,
    start: bytes,
    end: bytes,
) -> None:
    """Copy verified segments into FOLDER, which is created.

    `archive adopt` adds them to another store; `zstd -d` decompresses those without a dictionary.
    Segments are copied whole, even if they reach beyond --start or --end.

    \b
    Examples:
      streamkeep archive export orders.store exported
      streamkeep archive export orders.store june orders --start 2024-06-01 --end 2024-07-01
    """
    check_chosen(key, stream_number)
    copied = 0
    with open_store(store_path, readonly=True) as store:
        options: dict[str, Any] = {"stream_number": stream_number, "start": start, "end": end}
        records = store.archived_segments(key, **options)
        size = sum(record.size_bytes for record in records)
        folder.mkdir(parents=True, exist_ok=True)
        with output.progress("exporting", size, sized=True, unit="bytes") as advance:
            for path in store.export_segments(
                folder, key, **options, progress=lambda done, _: advance(done, done)
            ):
                copied += 1
                if common.as_json():
                    output.json_line("exported", file=str(path))
                else:
                    output.line(str(path))
    output.done(segments=copied, size_bytes=size)
    output.note(f"exported {count_text(copied, 'segment')}, {size_text(size)}")


# --- remove -------------------------------------------------------------------------------------


@command("remove")
@store_argument
@optional_key
@number_option
@click.option(
    "--before",
    type=Id("from"),
    required=True,
    metavar="ID|TIME",
    help="Remove segments whose entries are all older than this; + for all segments.",
)
@yes_option
def remove(
    store_path: Path, key: bytes | None, stream_number: int | None, before: bytes, yes: bool
) -> None:
    """Remove old segments for good.

    The command names the loss and asks first; --yes answers. A segment that also has entries from
    --before on stays whole. Run `streamkeep archive export` before to keep a copy.

    \b
    Example:
      streamkeep archive remove orders.store orders --before 2024-01-01 --yes
    """
    check_chosen(key, stream_number)
    with open_store(store_path) as store:
        limit = None if before == b"+" else StreamId(*range_start(before))
        doomed = [
            one
            for one in store.archived_segments(key, stream_number=stream_number)
            if limit is None or one.last_id < limit
        ]
        dropped: list[SegmentRecord] = []
        if doomed:
            confirm_loss(_losses(doomed), "Remove them?", yes=yes)
            dropped = store.drop_segments(key, stream_number=stream_number, before=before)
        size = sum(record.size_bytes for record in dropped)
        if common.as_json():
            for record in dropped:
                output.json_line("segment", **segment_json(store, record))
            output.summary(segments=len(dropped), size_bytes=size)
    output.note(f"removed {count_text(len(dropped), 'segment')}, {size_text(size)}")


def _losses(doomed: Sequence[SegmentRecord]) -> list[str]:
    """Return a line for each stream that is about to lose segments."""
    lines = []
    for number in dict.fromkeys(record.stream_number for record in doomed):
        mine = [record for record in doomed if record.stream_number == number]
        lines.append(
            f"{quoting.named(mine[0].key)}: {count_text(len(mine), 'segment')} with "
            f"{entries_text(sum(record.entries for record in mine))}, "
            f"{time_text(mine[0].first_id.ms)} to {time_text(mine[-1].last_id.ms)}, "
            f"{size_text(sum(record.size_bytes for record in mine))}"
        )
    return lines
