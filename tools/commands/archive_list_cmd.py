"""`streamkeep archive list`: what is archived, as tables, JSON and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from streamkeep.engine.commands.keys import iter_keys
from streamkeep.format import quoting
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import count_text, entries_text, size_text, time_text
from streamkeep.format.segment.manifest import ORIGINS, SegmentRecord
from streamkeep.tools.base import archive_plot, common, output, timeline
from streamkeep.tools.base.archive_options import (
    check_chosen,
    number_option,
    optional_key,
    range_options,
    segment_json,
)
from streamkeep.tools.base.arguments import store_argument
from streamkeep.tools.base.command import command
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.statuses import Failure
from streamkeep.tools.commands.stat_cmd import check_picture

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.archive.segments import ArchivedStream

_NO_SPAN: Final = "-"


@command("list")
@store_argument
@optional_key
@number_option
@range_options
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=check_picture,
    metavar="FILE.png|svg",
    help="Draw where entries are over time: archived, retired, live; needs the extra `plot`.",
)
def list_(
    store_path: Path,
    key: bytes | None,
    stream_number: int | None,
    start: bytes,
    end: bytes,
    plot: Path | None,
) -> None:
    """List what is archived: by stream, or each segment of KEY.

    The ratio compares the size of the files with that of the macro nodes in them. Retired entries
    were trimmed and are not in a segment yet: `streamkeep archive run` writes them. Streams that
    were removed keep their segments, and are listed with their number.

    \b
    Examples:
      streamkeep archive list orders.store
      streamkeep archive list orders.store orders --start 2024-06-10 --json
      streamkeep archive list orders.store orders --plot orders.svg
    """
    check_chosen(key, stream_number)
    with open_store(store_path, readonly=True) as store:
        records = store.archived_segments(key, stream_number=stream_number, start=start, end=end)
        streams = [
            one
            for one in store.archived_streams()
            if stream_number in (None, one.stream_number)
            and (key is None or (one.exists and one.key == key))
        ]
        if common.as_json():
            _list_json(store, records, streams)
        elif key is None and stream_number is None and (start, end) == (b"-", b"+"):
            _list_streams(streams)
        else:
            _list_segments(records)
        if not common.as_json():
            _note_sums(records, streams)
        if plot is not None:
            _plot(store, records, key, stream_number, plot)


def _list_streams(streams: Sequence[ArchivedStream]) -> None:
    """Print a line for each stream."""
    if streams:
        output.table(
            ("stream", "segments", "entries", "first", "last", "span", "size", "ratio", "retired"),
            [
                (
                    _stream_name(one),
                    one.segments,
                    one.entries,
                    _time(one.first_id),
                    _time(one.last_id),
                    _span(one.first_id, one.last_id),
                    size_text(one.size_bytes),
                    _ratio(one.size_bytes, one.raw_bytes),
                    one.retired_entries,
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
                    record.entries,
                    size_text(record.size_bytes),
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
        f"{count_text(len(records), 'segment')}, "
        f"{entries_text(sum(record.entries for record in records))}, "
        f"{size_text(size)}" + (f", {_ratio(size, raw)} of the nodes" if raw else "")
    )
    retired = sum(one.retired_entries for one in streams)
    if retired:
        output.note(f"{entries_text(retired)} retired, not yet in a segment")


def _list_json(
    store: Store[bytes], records: Sequence[SegmentRecord], streams: Sequence[ArchivedStream]
) -> None:
    """Print a JSON object for each stream and each segment."""
    for one in streams:
        output.json_line(
            "archived_stream",
            key=json_bytes(one.key),
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
    output.summary(
        streams=len(streams),
        segments=len(records),
        entries=sum(record.entries for record in records),
        size_bytes=sum(record.size_bytes for record in records),
        raw_bytes=sum(record.raw_bytes for record in records),
        retired_entries=sum(one.retired_entries for one in streams),
    )


def _plot(
    store: Store[bytes],
    records: Sequence[SegmentRecord],
    key: bytes | None,
    stream_number: int | None,
    path: Path,
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
        with output.progress("counting", total, sized=False) as advance:
            series = archive_plot.count_places(
                snapshot, places, list(names.values()), plan, advance
            )
    title = str(store.path) if key is None else quoting.shown(key)
    timeline.plot_stacked(plan, series, title, path)
    output.note(f"wrote {path}")


def _stream_name(one: ArchivedStream) -> str:
    name = output.cut(quoting.shown(one.key))
    return name if one.exists else f"{name} (deleted, number {one.stream_number})"


def _time(one: StreamId | None) -> str:
    return _NO_SPAN if one is None else time_text(one.ms)


def _span(first: StreamId | None, last: StreamId | None) -> str:
    if first is None or last is None:
        return _NO_SPAN
    return output.span_text((last.ms - first.ms) / 1000)


def _ratio(size: int, raw: int) -> str:
    return f"{size / raw:.0%}" if raw else _NO_SPAN
