"""archive ...: what a stream has trimmed, in compressed files that stay readable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from streamkeep.engine.keyspace import iter_keys
from streamkeep.format.entry import StreamId
from streamkeep.format.manifest import ORIGINS, SegmentRecord
from streamkeep.tools import archive_plot, output, timeline
from streamkeep.tools.archive_run_cmd import run
from streamkeep.tools.command import (
    Bytes,
    Exit,
    Failure,
    Id,
    StoreCommand,
    confirm_loss,
    json_option,
    open_store,
    progress_option,
    quoted_option,
    store_argument,
    sync_option,
    yes_option,
)
from streamkeep.tools.stat_cmd import check_picture

if TYPE_CHECKING:
    from streamkeep.engine.api import Store, Sync
    from streamkeep.engine.archive_care import ArchivedStream

Function = TypeVar("Function", bound=Callable[..., Any])
_NO_SPAN: Final = "-"


def number_option(function: Function) -> Function:
    """Add --stream-number."""
    return click.option(
        "--stream-number",
        type=click.IntRange(min=1),
        metavar="N",
        help="The stream of this number instead of KEY: deleted ones have no other name.",
    )(function)


def range_options(function: Function) -> Function:
    """Add --start and --end."""
    function = click.option(
        "--end",
        type=Id("to"),
        default="+",
        metavar="ID|TIME",
        help="Only up to this ID, included, or the first millisecond of this time.",
    )(function)
    return click.option(
        "--start",
        type=Id("from"),
        default="-",
        metavar="ID|TIME",
        help="Only from this ID or time on.",
    )(function)


optional_key = click.argument("key", metavar="[KEY]", type=Bytes(), default=None, required=False)


@click.group()
def archive() -> None:
    """Look after the archive: what streams have trimmed, compressed.

    Segments are files below STORE/archive, each with a range of IDs of one stream. Reading with
    --history shows what is in them in one view with live entries.

    \b
    Example:
      streamkeep archive list orders.store
      streamkeep archive verify orders.store
    """


archive.add_command(run)


# --- list ---------------------------------------------------------------------------------------


@archive.command("list", cls=StoreCommand)
@store_argument
@optional_key
@number_option
@range_options
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=check_picture,
    metavar="FILE.png|svg",
    help="Draw where entries are over time: archived, retired, live; needs streamkeep[plot].",
)
@json_option
@progress_option
@quoted_option
def list_(
    store_path: Path,
    key: bytes | None,
    stream_number: int | None,
    start: bytes,
    end: bytes,
    plot: Path | None,
    as_json: bool,
    progress: bool | None,
) -> None:
    """List what is archived: by stream, or each segment of KEY.

    The ratio is the size of the files to that of the macro nodes in them. Retired entries were
    trimmed and are in no segment yet: `streamkeep archive run` writes them. Streams that were
    deleted keep their segments, and are listed with their number.

    \b
    Examples:
      streamkeep archive list orders.store
      streamkeep archive list orders.store orders --start 2024-06-10 --json
      streamkeep archive list orders.store orders --plot orders.svg
    """
    with open_store(store_path, readonly=True) as store:
        records = store.archived_segments(key, stream_number=stream_number, start=start, end=end)
        streams = [
            one
            for one in store.archived_streams()
            if stream_number in (None, one.stream_number)
            and (key is None or (one.exists and one.key == key))
        ]
        if as_json:
            _list_json(store, records, streams)
        elif key is None and stream_number is None and (start, end) == (b"-", b"+"):
            _list_streams(streams)
        else:
            _list_segments(records)
        if not as_json:
            _note_sums(records, streams)
        if plot is not None:
            _plot(store, records, key, stream_number, plot, progress)


def _list_streams(streams: Sequence[ArchivedStream]) -> None:
    """Print a line for each stream."""
    if streams:
        output.table(
            ("stream", "segments", "entries", "first", "last", "span", "size", "ratio", "retired"),
            [
                (
                    _stream_name(one),
                    f"{one.segments:,}",
                    f"{one.entries:,}",
                    _time(one.first_id),
                    _time(one.last_id),
                    _span(one.first_id, one.last_id),
                    output.size_text(one.size_bytes),
                    _ratio(one.size_bytes, one.raw_bytes),
                    f"{one.retired_entries:,}",
                )
                for one in streams
            ],
            left=(0, 3, 4),
        )


def _list_segments(records: Sequence[SegmentRecord]) -> None:
    """Print a line for each segment."""
    if records:
        output.table(
            ("segment", "first", "last", "span", "entries", "size", "ratio", "from"),
            [
                (
                    record.path,
                    _time(record.first_id),
                    _time(record.last_id),
                    _span(record.first_id, record.last_id),
                    f"{record.entries:,}",
                    output.size_text(record.size_bytes),
                    _ratio(record.size_bytes, record.raw_bytes),
                    ORIGINS[record.origin],
                )
                for record in records
            ],
            left=(0, 1, 2, 7),
        )


def _note_sums(records: Sequence[SegmentRecord], streams: Sequence[ArchivedStream]) -> None:
    """Say what there is in all."""
    size = sum(record.size_bytes for record in records)
    raw = sum(record.raw_bytes for record in records)
    output.note(
        f"{output.count_text(len(records), 'segment')}, "
        f"{output.entries_text(sum(record.entries for record in records))}, "
        f"{output.size_text(size)}" + (f", {_ratio(size, raw)} of the nodes" if raw else "")
    )
    retired = sum(one.retired_entries for one in streams)
    if retired:
        output.note(f"{output.entries_text(retired)} retired, not yet in a segment")


def _list_json(
    store: Store[bytes], records: Sequence[SegmentRecord], streams: Sequence[ArchivedStream]
) -> None:
    """Print a JSON object for each stream and each segment."""
    for one in streams:
        output.json_line(
            "archived_stream",
            key=output.json_bytes(one.key),
            stream_number=one.stream_number,
            exists=one.exists,
            segments=one.segments,
            entries=one.entries,
            size_bytes=one.size_bytes,
            raw_bytes=one.raw_bytes,
            first_id=None if one.first_id is None else str(one.first_id),
            last_id=None if one.last_id is None else str(one.last_id),
            retired_nodes=one.retired_nodes,
            retired_entries=one.retired_entries,
            retired_bytes=one.retired_bytes,
        )
    for record in records:
        output.json_line("segment", **segment_json(store, record))
    output.json_summary(
        "archive list",
        streams=len(streams),
        segments=len(records),
        entries=sum(record.entries for record in records),
        size_bytes=sum(record.size_bytes for record in records),
        raw_bytes=sum(record.raw_bytes for record in records),
        retired_entries=sum(one.retired_entries for one in streams),
    )


def segment_json(store: Store[bytes], record: SegmentRecord) -> dict[str, Any]:
    """Return what JSON says of one segment."""
    return {
        "key": output.json_bytes(record.key),
        "stream_number": record.stream_number,
        "file": str(store.segment_path(record)),
        "first_id": str(record.first_id),
        "last_id": str(record.last_id),
        "first_time_ms": record.first_ms,
        "last_time_ms": record.last_ms,
        "entries": record.entries,
        "nodes": record.nodes,
        "size_bytes": record.size_bytes,
        "raw_bytes": record.raw_bytes,
        "checksum": f"{record.checksum:016x}",
        "sequence": record.sequence,
        "created_time_ms": record.created_ms,
        "erased": record.erased,
        "origin": ORIGINS[record.origin],
    }


def _plot(
    store: Store[bytes],
    records: Sequence[SegmentRecord],
    key: bytes | None,
    stream_number: int | None,
    path: Path,
    progress: bool | None,
) -> None:
    """Draw the timeline."""
    with store.snapshot() as snapshot:
        names = {
            number: name
            for name, number in iter_keys(snapshot.txn)
            if key in (None, name) and stream_number in (None, number)
        }
        places = archive_plot.find_places(store, snapshot, records, names)
        plan = archive_plot.plan_of(places)
        if plan is None:
            raise Failure("there are no entries to draw")
        total = places.live.entries if places.live else 0
        with output.progress(progress, "counting", total, sized=False) as advance:
            series = archive_plot.count_places(
                snapshot, places, list(names.values()), plan, advance
            )
    title = str(store.path) if key is None else output.shown(key)
    timeline.plot_stacked(plan, series, title, path)
    output.note(f"wrote {path}")


def _stream_name(one: ArchivedStream) -> str:
    name = output.cut(output.shown(one.key))
    return name if one.exists else f"{name} (deleted, number {one.stream_number})"


def _time(one: StreamId | None) -> str:
    return _NO_SPAN if one is None else output.time_text(one.ms)


def _span(first: StreamId | None, last: StreamId | None) -> str:
    if first is None or last is None:
        return _NO_SPAN
    return output.span_text((last.ms - first.ms) / 1000)


def _ratio(size: int, raw: int) -> str:
    return f"{size / raw:.0%}" if raw else _NO_SPAN


# --- verify -------------------------------------------------------------------------------------


@archive.command("verify", cls=StoreCommand)
@store_argument
@optional_key
@number_option
@json_option
@progress_option
@quoted_option
def verify(
    store_path: Path,
    key: bytes | None,
    stream_number: int | None,
    as_json: bool,
    progress: bool | None,
) -> None:
    """Read segments to the last byte, and say what is damaged.

    Each block that is damaged is named; the others can still be read. Nothing is changed.

    \b
    Exit status: 0  all of them are whole
                 4  something is damaged or missing

    \b
    Examples:
      streamkeep archive verify orders.store
      streamkeep archive verify orders.store orders --json
    """
    began = time.perf_counter()
    bad = problems = 0
    with open_store(store_path, readonly=True) as store:
        records = store.archived_segments(key, stream_number=stream_number)
        size = sum(record.size_bytes for record in records)
        with output.progress(progress, "verifying", size, sized=True, unit="bytes") as advance:
            for one in store.verify_archive(
                key, stream_number=stream_number, progress=lambda done, _: advance(done, done)
            ):
                bad += bool(one.problems)
                problems += len(one.problems)
                if as_json:
                    found = [str(problem) for problem in one.problems]
                    output.json_line("segment", **segment_json(store, one.record), problems=found)
                else:
                    for problem in one.problems:
                        output.line(str(problem))
    seconds = time.perf_counter() - began
    if as_json:
        output.json_summary(
            "archive verify",
            segments=len(records),
            damaged=bad,
            problems=problems,
            size_bytes=size,
            seconds=round(seconds, 3),
        )
    verdict = f"{output.count_text(bad, 'segment')} damaged" if bad else "all whole"
    output.note(
        f"{output.count_text(len(records), 'segment')}, {output.size_text(size)} in "
        f"{output.span_text(seconds)}: {verdict}"
    )
    if bad:
        click.get_current_context().exit(Exit.DAMAGED)


# --- restore ------------------------------------------------------------------------------------


@archive.command("restore", cls=StoreCommand)
@store_argument
@click.argument("key", metavar="NEWKEY", type=Bytes())
@click.option(
    "--source", type=Bytes(), metavar="KEY", help="The stream whose archive it is; else NEWKEY."
)
@number_option
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="STORE",
    help="Restore into this store, which is created when it is missing.",
)
@range_options
@sync_option
@json_option
@progress_option
@quoted_option
def restore(
    store_path: Path,
    key: bytes,
    source: bytes | None,
    stream_number: int | None,
    into: Path | None,
    start: bytes,
    end: bytes,
    sync: Sync,
    as_json: bool,
    progress: bool | None,
) -> None:
    """Write archived entries into a stream, with the IDs they had.

    NEWKEY is created when it is missing. It must not have IDs above the first one that comes: a
    stream's archive is older than the stream, and so goes into another stream or another store.
    What was erased does not come back. A restore that was interrupted goes on when the same
    command runs again; each entry comes once.

    \b
    Examples:
      streamkeep archive restore orders.store june --source orders --end 2024-07-01
      streamkeep archive restore orders.store orders --into copy.store
    """
    if source is not None and stream_number is not None:
        raise click.UsageError("--source and --stream-number exclude each other")
    if into is not None and into.resolve() == store_path.resolve():
        into = None
    began = time.perf_counter()
    wanted: dict[str, Any] = {"stream_number": stream_number, "start": start, "end": end}
    with ExitStack() as stack:
        origin = None
        if into is not None:
            origin = stack.enter_context(open_store(store_path, readonly=True))
            name = None if stream_number is not None else source or key
            origin.archived_segments(name, **wanted)  # what is wrong here must not create INTO
        target = stack.enter_context(
            open_store(into or store_path, create=into is not None, sync=sync)
        )
        advance = stack.enter_context(output.progress(progress, "restoring", None, sized=False))
        report = target.restore_archive(
            key,
            source,
            from_store=origin,
            progress=lambda done, _: advance(done, done),
            **wanted,
        )
    seconds = time.perf_counter() - began
    if as_json:
        output.json_summary(
            "archive restore",
            key=output.json_bytes(key),
            entries=report.entries,
            first_id=None if report.first_id is None else str(report.first_id),
            last_id=None if report.last_id is None else str(report.last_id),
            resumed=report.resumed,
            already=report.already,
            seconds=round(seconds, 3),
        )
        return
    span = f", {report.first_id} to {report.last_id}" if report.first_id else ""
    if report.already:
        output.note(
            f"nothing to do: {output.named(key)} has the {output.entries_text(report.already)} "
            f"already{span}"
        )
        return
    again = " (went on where it was interrupted)" if report.resumed else ""
    output.note(
        f"restored {output.entries_text(report.entries)} into {output.named(key)}{span} in "
        f"{output.span_text(seconds)}{again}"
    )


# --- adopt and export ---------------------------------------------------------------------------


@archive.command("adopt", cls=StoreCommand)
@store_argument
@click.argument(
    "paths",
    metavar="PATH...",
    type=click.Path(exists=True, path_type=Path),
    nargs=-1,
    required=True,
)
@click.option(
    "--key",
    type=Bytes(),
    metavar="KEY",
    help="The stream they are to belong to, created when missing; else the one of their time.",
)
@click.option("--create", is_flag=True, help="Create STORE when it is missing.")
@json_option
@progress_option
@quoted_option
def adopt(
    store_path: Path,
    paths: tuple[Path, ...],
    key: bytes | None,
    create: bool,
    as_json: bool,
    progress: bool | None,
) -> None:
    """Take segment files into the archive that it does not know.

    PATH is a file, or a folder that is searched for *.seg. Each file is verified, copied below
    STORE/archive unless it is there, and part of the history from then on. Files that the archive
    knows are passed over. A segment has to fit: below the live entries of its stream, and beside
    its other segments.

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
        output.progress(progress, "adopting", None, sized=True, unit="bytes") as advance,
    ):
        for one in store.adopt_segments(
            *paths, key=key, progress=lambda done, _: advance(done, done)
        ):
            record = one.record
            if record is None:
                known += 1
            else:
                adopted += 1
                entries += record.entries
            if as_json:
                output.json_line(
                    "adopted",
                    source=str(one.source),
                    known=record is None,
                    erased=one.erased,
                    segment=None if record is None else segment_json(store, record),
                )
            elif record is not None:
                left = f", without {output.entries_text(one.erased)} erased" if one.erased else ""
                output.line(f"{one.source}: {output.entries_text(record.entries)}{left}")
    if as_json:
        output.json_summary("archive adopt", adopted=adopted, known=known, entries=entries)
    output.note(
        f"adopted {output.count_text(adopted, 'segment')} with {output.entries_text(entries)}"
        + (f", {known:,} known already" if known else "")
    )


@archive.command("export", cls=StoreCommand)
@store_argument
@click.argument("folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path))
@optional_key
@number_option
@range_options
@json_option
@progress_option
@quoted_option
def export(
    store_path: Path,
    folder: Path,
    key: bytes | None,
    stream_number: int | None,
    start: bytes,
    end: bytes,
    as_json: bool,
    progress: bool | None,
) -> None:
    """Copy verified segments into FOLDER, which is created.

    `archive adopt` takes them into another store; `zstd -d` decompresses those without a
    dictionary. Segments are copied whole, also when they reach beyond --start or --end.

    \b
    Examples:
      streamkeep archive export orders.store exported
      streamkeep archive export orders.store june orders --start 2024-06-01 --end 2024-07-01
    """
    copied = 0
    with open_store(store_path, readonly=True) as store:
        options: dict[str, Any] = {"stream_number": stream_number, "start": start, "end": end}
        records = store.archived_segments(key, **options)
        size = sum(record.size_bytes for record in records)
        folder.mkdir(parents=True, exist_ok=True)
        with output.progress(progress, "exporting", size, sized=True, unit="bytes") as advance:
            for path in store.export_segments(
                folder, key, **options, progress=lambda done, _: advance(done, done)
            ):
                copied += 1
                if as_json:
                    output.json_line("exported", file=str(path))
                else:
                    output.line(str(path))
    if as_json:
        output.json_summary("archive export", segments=copied, size_bytes=size)
    output.note(f"exported {output.count_text(copied, 'segment')}, {output.size_text(size)}")


# --- drop ---------------------------------------------------------------------------------------


@archive.command("drop", cls=StoreCommand)
@store_argument
@optional_key
@number_option
@click.option(
    "--before",
    type=Id("from"),
    required=True,
    metavar="ID|TIME",
    help="Drop segments whose entries are all older than this; + for all segments.",
)
@yes_option
@json_option
@quoted_option
def drop(
    store_path: Path,
    key: bytes | None,
    stream_number: int | None,
    before: bytes,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove old segments for good.

    Names what is about to be lost and asks first; --yes answers. A segment that also has entries
    from --before on stays whole. `streamkeep archive export` copies segments before.

    \b
    Example:
      streamkeep archive drop orders.store orders --before 2024-01-01 --yes
    """
    with open_store(store_path) as store:
        limit = None if before == b"+" else StreamId.parse(before)
        doomed = [
            one
            for one in store.archived_segments(key, stream_number=stream_number)
            if limit is None or one.last_id < limit
        ]
        dropped: list[SegmentRecord] = []
        if doomed:
            confirm_loss(_losses(doomed), "Drop them?", yes=yes)
            dropped = store.drop_segments(key, stream_number=stream_number, before=before)
        size = sum(record.size_bytes for record in dropped)
        if as_json:
            for record in dropped:
                output.json_line("segment", **segment_json(store, record))
            output.json_summary("archive drop", segments=len(dropped), size_bytes=size)
    output.note(f"dropped {output.count_text(len(dropped), 'segment')}, {output.size_text(size)}")


def _losses(doomed: Sequence[SegmentRecord]) -> list[str]:
    """Return a line for each stream that is about to lose segments."""
    lines = []
    for number in dict.fromkeys(record.stream_number for record in doomed):
        mine = [record for record in doomed if record.stream_number == number]
        lines.append(
            f"{output.named(mine[0].key)}: {output.count_text(len(mine), 'segment')} with "
            f"{output.entries_text(sum(record.entries for record in mine))}, "
            f"{_time(mine[0].first_id)} to {_time(mine[-1].last_id)}, "
            f"{output.size_text(sum(record.size_bytes for record in mine))}"
        )
    return lines
