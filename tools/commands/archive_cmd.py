"""archive ...: what a stream has trimmed, in compressed files that stay readable."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import click

from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.engine.commands.arguments import range_start
from streamkeep.format import quoting
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import IdTooSmallError
from streamkeep.format.humanize import count_text, entries_text, size_text, time_text
from streamkeep.format.segment.manifest import ORIGINS, SegmentRecord
from streamkeep.format.segment.remote import segment_name
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES
from streamkeep.format.segment.writer import DEFAULT_BLOCK_BYTES, DEFAULT_LEVEL
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import From, Number, PathOrUri, Positive, StorePath, To, Yes
from streamkeep.tools.base.command import group_command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import confirm_loss, open_store


@group_command()
def archive() -> None:
    """Manage the archive: trimmed entries in compressed files.

    Segments are files below STORE/archive, each with a range of IDs of one stream. Reading with
    --history shows their entries together with live ones.

    Example:
      streamkeep archive list orders.store
      streamkeep archive verify orders.store
    """


StreamNumber = Annotated[
    Positive, "(N): The stream of this number instead of KEY. A deleted stream has no other name."
]
BlockLimit = Annotated[
    Positive,
    "(N): Refuse a segment with a block that takes more memory; a small file can hold much.",
]


@dataclass
class Chosen:
    """Which segments are meant, beside the key of their stream.

    Args:
        start (ID|TIME): Only from this ID or time on.
        end (ID|TIME): Only up to this ID, included, or the first millisecond of this time.
    """

    stream_number: StreamNumber | None = None
    start: From = b"-"
    end: To = b"+"


def check_chosen(key: bytes | None, stream_number: int | None, name: str = "KEY") -> None:
    """Refuse two ways to name a stream."""
    if key is not None and stream_number is not None:
        raise click.UsageError(f"{name} and --stream-number cannot be used together")


def segment_json(
    store: Store[bytes], record: SegmentRecord, *, sealed: bool = False
) -> dict[str, Any]:
    path, remote = store.segment_path(record), store.remote_archive()
    place = str(path)
    if remote is not None and (sealed or not path.exists()):
        place = f"{remote.uri}/{store.uuid}/{segment_name(record.path, sealed=sealed)}"
    return {
        "key": record.key,
        "stream_number": record.stream_number,
        "file": place,
        "first_id": str(record.first_id),
        "last_id": str(record.last_id),
        "first_time_ms": record.first_ms,
        "last_time_ms": record.last_ms,
        **{name: getattr(record, name) for name in ("entries", "nodes", "size_bytes", "raw_bytes")},
        "checksum": f"{record.checksum:016x}",
        "sequence": record.sequence,
        "created_time_ms": record.created_ms,
        "erased": record.erased,
        "origin": ORIGINS[record.origin],
    }


@archive.command("run")
def run(
    store_path: StorePath,
    *,
    maintain: bool = True,
    to: str | None = None,
    name: str | None = None,
    labels: tuple[str, ...] = (),
    seal: bool = False,
    level: Annotated[int, click.IntRange(-7, 22)] = DEFAULT_LEVEL,
    block_bytes: Annotated[int, Number(4096, 64 << 20)] = DEFAULT_BLOCK_BYTES,
) -> None:
    """Move trimmed entries into segment files.

    Only streams that archive (`streamkeep retention set --archive`) have anything to move. If the
    command is killed, each entry is in exactly one place, and the next run continues. One archiver
    works at a time, in any process; this one waits for it and does the rest.

    With --to, segments are written below the URI, read back, and removed here. The store notes the
    URI, so later runs need no --to. Reads of the history fetch from there what they need. An S3
    bucket needs the extra `s3`, and credentials in the environment.

    Examples:
      streamkeep archive run orders.store
      streamkeep archive run orders.store --level 9 --block-bytes 1048576
      streamkeep archive run orders.store --to s3://bucket/fleet --label region=eu --seal

    Args:
        maintain: First trim streams to their retention and remove old segments (the default).
        to (URI): Keep the archive at this URI or folder, from now on: s3://bucket/fleet.
        name (TEXT): What the archive there calls this store.
        labels (--label NAME=TEXT): A label of this store there; can be repeated.
        seal: Also copy live entries there; they stay in the store.
        level: Compression level of zstd: higher is smaller and slower.
        block_bytes: Bytes compressed together: a higher number makes smaller files, and slower
            single reads.
    """
    for text in labels:
        if text.find("=") < 1:
            raise click.UsageError(f"--label {text}: expected NAME=TEXT")
    named = dict(text.split("=", 1) for text in labels)
    with open_store(store_path) as store:
        care = store.maintain() if maintain else None
        how = ArchiveOptions(level=level, block_bytes=block_bytes)
        where: dict[str, Any] = {"to": to, "name": name, "labels": named, "seal": seal}
        with output.progress("archiving", "bytes") as advance:
            report = store.archive(options=how, progress=advance, **where)
    there = report.published
    if common.as_json():
        output.summary(
            entries=report.entries,
            segments=report.segments,
            raw_bytes=report.raw_bytes,
            size_bytes=report.size_bytes,
            trimmed=care.trimmed if care else 0,
            dropped_segments=care.dropped if care else 0,
            forgotten_messages=care.forgotten if care else 0,
            removed_files=report.removed,
            uri=there.uri,
            moved_from=there.moved_from,
            uploaded_segments=there.uploaded,
            uploaded_bytes=there.uploaded_bytes,
            sealed_entries=there.sealed_entries,
            missing_segments=[one.path for one in there.missing],
            elapsed_ms=round(1000 * output.seconds()),
        )
    else:
        if care is not None and (care.trimmed or care.dropped):
            trimmed = entries_text(care.trimmed)
            output.note(f"retention: {trimmed} trimmed, {care.dropped} segments dropped")
        segments = count_text(report.segments, "segment")
        output.line(f"{entries_text(report.entries)} archived in {segments}")
        if report.segments:
            ratio = report.size_bytes / report.raw_bytes
            sizes = f"{size_text(report.size_bytes)} of {size_text(report.raw_bytes)}"
            output.note(f"{sizes} ({ratio:.0%}) in {output.taken()}")
        if there.uri is not None:
            sent = count_text(there.uploaded, "segment")
            output.line(f"{sent}, {size_text(there.uploaded_bytes)}, written to {there.uri}")
            if seal:
                output.line(f"{entries_text(there.sealed_entries)} sealed there")
        if there.moved_from is not None:
            output.note(
                f"what is at {there.moved_from} stays there: erase and archive remove do not reach "
                "it any more; next: remove it when nobody reads it"
            )
    if there.missing:
        names = ", ".join(one.path for one in there.missing[:3])
        lost = f"{count_text(len(there.missing), 'segment')} of the archive, {names}"
        problem = f"{lost}: neither on the disk nor at {there.uri}"
        hint = "`streamkeep archive adopt` takes a copy"
        raise Failure(problem, hint=hint, status=Exit.DAMAGED)


_SPAN: Final = ("first", "last", "span")


@archive.command("list")
def list_(store_path: StorePath, *, key: bytes | None = None, chosen: Chosen) -> None:
    """List what is archived: by stream, or each segment of KEY.

    The ratio compares the size of the files with that of the macro nodes in them. Retired entries
    were trimmed and are not in a segment yet: `streamkeep archive run` writes them. Streams that
    were removed keep their segments, and are listed with their number.

    Examples:
      streamkeep archive list orders.store
      streamkeep archive list orders.store orders --start 2024-06-10 --json
    """
    check_chosen(key, chosen.stream_number)
    with open_store(store_path, readonly=True) as store:
        records = store.archived_segments(key, **vars(chosen))
        streams = [
            one
            for one in store.archived_streams()
            if chosen.stream_number in (None, one.stream_number)
            and (key is None or (one.exists and one.key == key))
        ]
        size, raw = sum(one.size_bytes for one in records), sum(one.raw_bytes for one in records)
        entries = sum(one.entries for one in records)
        retired = sum(one.retired_entries for one in streams)
        by_stream = key is None and chosen == Chosen()
        if by_stream or common.as_json():
            output.listing(
                "archived_stream",
                streams,
                _members,
                (*("stream", "segments", "entries", *_SPAN), "size", "ratio", "retired"),
                lambda one: (
                    output.cut(quoting.shown(one.key))
                    + ("" if one.exists else f" (deleted, number {one.stream_number})"),
                    *(one.segments, one.entries),
                    *_span(one.first_id, one.last_id),
                    *(size_text(one.size_bytes), _ratio(one.size_bytes, one.raw_bytes)),
                    one.retired_entries,
                ),
                left=(0, 3, 4),
            )
        if not by_stream or common.as_json():
            output.listing(
                "segment",
                records,
                lambda one: segment_json(store, one),
                ("segment", *_SPAN, "entries", "size", "ratio", "from"),
                lambda one: (
                    *(one.path, *_span(one.first_id, one.last_id), one.entries),
                    *(size_text(one.size_bytes), _ratio(one.size_bytes, one.raw_bytes)),
                    ORIGINS[one.origin],
                ),
                left=(0, 1, 2, 7),
            )
    ratio = f", {_ratio(size, raw)} of the nodes" if raw else ""
    files = count_text(len(records), "segment")
    counts = {"streams": len(streams), "segments": len(records), "entries": entries}
    sizes = {"size_bytes": size, "raw_bytes": raw, "retired_entries": retired}
    output.total(f"{files}, {entries_text(entries)}, {size_text(size)}{ratio}", **counts, **sizes)
    if retired and not common.as_json():
        output.note(f"{entries_text(retired)} retired, not yet in a segment")


def _members(report: Any) -> dict[str, Any]:
    """Return the members of a NamedTuple as JSON has them."""
    members = report._asdict().items()
    return {name: str(one) if isinstance(one, StreamId) else one for name, one in members}


def _span(first: StreamId | None, last: StreamId | None) -> tuple[str, str, str]:
    """Return the time of two IDs, and how long it is from one to the other."""
    if first is None or last is None:
        return "-", "-", "-"
    return time_text(first.ms), time_text(last.ms), output.span_text((last.ms - first.ms) / 1000)


def _ratio(size: int, raw: int) -> str:
    return f"{size / raw:.0%}" if raw else "-"


@archive.command("verify")
def verify(
    store_path: StorePath, key: bytes | None = None, stream_number: StreamNumber | None = None
) -> None:
    """Read segments to the last byte, and report damage.

    Copies of live entries in an object store (`archive run --seal`) are read, too.
    Each damaged block is named; the others can still be read. Nothing is changed.

    Exit status: 0  all segments are whole
                 4  something is damaged or missing

    Examples:
      streamkeep archive verify orders.store
      streamkeep archive verify orders.store orders --json
    """
    check_chosen(key, stream_number)
    bad = problems = count = size = 0
    with (
        open_store(store_path, readonly=True) as store,
        output.progress("verifying", "bytes") as advance,
    ):
        for one in store.verify_archive(key, stream_number=stream_number, progress=advance):
            count += 1
            size += one.record.size_bytes
            bad += bool(one.problems)
            problems += len(one.problems)
            if common.as_json():
                found = [str(problem) for problem in one.problems]
                members = segment_json(store, one.record, sealed=one.sealed)
                output.json_line("segment", **members, sealed=one.sealed, problems=found)
            else:
                for problem in one.problems:
                    output.line(str(problem))
    counts = {"segments": count, "damaged": bad, "problems": problems}
    verdict = f"{count_text(bad, 'segment')} damaged" if bad else "all whole"
    read = f"{count_text(count, 'segment')}, {size_text(size)}"
    text = f"{read} in {output.taken()}: {verdict}"
    output.total(text, **counts, size_bytes=size, seconds=output.seconds())
    if bad:
        click.get_current_context().exit(Exit.DAMAGED)


@archive.command("adopt")
def adopt(
    store_path: StorePath,
    paths: tuple[Annotated[str, PathOrUri(exists=True)], ...],
    key: bytes | None = None,
    create: bool = False,
    max_block_bytes: BlockLimit = MAX_BLOCK_BYTES,
) -> None:
    """Add segment files to the archive of STORE.

    PATH is a file, a folder that is searched for *.seg, or what `archive run --to` has written: the
    folder or URI, a slash and the UUID of the store. Each file is verified, copied below
    STORE/archive unless it is there, and part of the history from then on. Segments that the
    archive has are skipped; the file of one that was lost is put back. A segment must not overlap
    the live entries of its stream, or another segment; sealed ones that do are left out.

    Examples:
      streamkeep archive export orders.store exported
      streamkeep archive adopt orders.store exported
      streamkeep archive adopt orders.store exported --key orders-2024
      streamkeep archive adopt history.store exported --create

    Args:
        paths (PATH...):
        key (KEY): The stream that they will belong to, created if missing; by default their own.
        create: Create STORE when it is missing.
    """
    adopted = known = entries = 0
    with (
        open_store(store_path, create=create, hint="--create creates it") as store,
        output.progress("adopting", "bytes") as advance,
    ):
        for one in store.adopt_segments(
            *paths, key=key, progress=advance, max_block_bytes=max_block_bytes
        ):
            record = one.record
            known += record is None
            if record is not None:
                adopted, entries = adopted + 1, entries + record.entries
            if common.as_json():
                segment = None if record is None else segment_json(store, record)
                facts = {"known": record is None, "erased": one.erased, "segment": segment}
                output.json_line("adopted", source=str(one.source), **facts)
            elif record is not None:
                left = f", without {entries_text(one.erased)} erased" if one.erased else ""
                output.line(f"{one.source}: {entries_text(record.entries)}{left}")
    more = f", {known:,} known already" if known else ""
    text = f"adopted {count_text(adopted, 'segment')} with {entries_text(entries)}{more}"
    output.total(text, adopted=adopted, known=known, entries=entries)


@archive.command("export")
def export(
    store_path: StorePath,
    folder: Annotated[Path, click.Path(file_okay=False, path_type=Path)],
    *,
    key: bytes | None = None,
    chosen: Chosen,
) -> None:
    """Copy verified segments into FOLDER, which is created.

    `archive adopt` adds them to another store; `zstd -d` decompresses those without a dictionary.
    Segments are copied whole, even if they reach beyond --start or --end.

    Examples:
      streamkeep archive export orders.store exported
      streamkeep archive export orders.store june orders --start 2024-06-01 --end 2024-07-01
    """
    check_chosen(key, chosen.stream_number)
    copied = 0
    with open_store(store_path, readonly=True) as store:
        records = store.archived_segments(key, **vars(chosen))
        size = sum(record.size_bytes for record in records)
        folder.mkdir(parents=True, exist_ok=True)
        with output.progress("exporting", "bytes") as advance:
            for path in store.export_segments(folder, key, **vars(chosen), progress=advance):
                copied += 1
                output.item("exported", str(path), file=str(path))
    text = f"exported {count_text(copied, 'segment')}, {size_text(size)}"
    output.total(text, segments=copied, size_bytes=size)


@archive.command("remove")
def remove(
    store_path: StorePath,
    *,
    key: bytes | None = None,
    stream_number: StreamNumber | None = None,
    before: From,
    yes: Yes = False,
) -> None:
    """Remove old segments for good.

    The command names the loss and asks first; --yes answers. A segment that also has entries from
    --before on stays whole. Run `streamkeep archive export` before to keep a copy.

    Example:
      streamkeep archive remove orders.store orders --before 2024-01-01 --yes

    Args:
        before (ID|TIME): Remove segments whose entries are all older than this; + for all segments.
    """
    check_chosen(key, stream_number)
    with open_store(store_path) as store:
        limit = None if before == b"+" else StreamId(*range_start(before))
        segments = store.archived_segments(key, stream_number=stream_number)
        doomed = [one for one in segments if limit is None or one.last_id < limit]
        dropped: list[SegmentRecord] = []
        if doomed:
            losses = []
            for number in dict.fromkeys(record.stream_number for record in doomed):
                mine = [record for record in doomed if record.stream_number == number]
                entries = entries_text(sum(record.entries for record in mine))
                files = f"{count_text(len(mine), 'segment')} with {entries}"
                span = f"{time_text(mine[0].first_id.ms)} to {time_text(mine[-1].last_id.ms)}"
                size_of = size_text(sum(record.size_bytes for record in mine))
                losses.append(f"{quoting.named(mine[0].key)}: {files}, {span}, {size_of}")
            confirm_loss(losses, "Remove them?", yes=yes)
            dropped = store._drop(doomed)  # others may be there by now, which nobody has named
        size = sum(record.size_bytes for record in dropped)
        for record in dropped if common.as_json() else ():
            output.json_line("segment", **segment_json(store, record))
    text = f"removed {count_text(len(dropped), 'segment')}, {size_text(size)}"
    output.total(text, segments=len(dropped), size_bytes=size)
    if len(dropped) < len(doomed):
        changed = count_text(len(doomed) - len(dropped), "segment")
        problem = f"{changed} of those were rewritten or removed meanwhile"
        raise Failure(problem, hint="repeat the command")


@archive.command("restore")
def restore(
    store_path: StorePath,
    key: bytes,
    *,
    source: bytes | None = None,
    into: Path | None = None,
    chosen: Chosen,
) -> None:
    """Write archived entries into a stream, with the IDs they had.

    NEWKEY is created if it is missing. It must not have IDs above the first restored one. The
    archive of a stream is older than its live entries, so restore it into another stream or
    another store. Erased entries do not come back. A restore that was interrupted continues when
    the same command runs again; each entry comes once.

    Examples:
      streamkeep archive restore orders.store june --source orders --end 2024-07-01
      streamkeep archive restore orders.store orders --into copy.store

    Args:
        key (NEWKEY):
        source (KEY): The stream whose archive is restored; by default NEWKEY.
        into (STORE): Restore into this store, which is created if it is missing.
    """
    check_chosen(source, chosen.stream_number, "--source")
    if into is not None and into.resolve() == store_path.resolve():
        into = None
    with ExitStack() as stack:
        origin = None
        if into is not None:
            origin = stack.enter_context(open_store(store_path, readonly=True))
            name = source or (key if chosen.stream_number is None else None)
            origin.archived_segments(name, **vars(chosen))  # a wrong name must not create INTO
        target = stack.enter_context(open_store(into or store_path, create=into is not None))
        advance = stack.enter_context(output.progress("restoring", "entries"))
        try:
            report = target.restore_archive(
                key, source, from_store=origin, progress=advance, **vars(chosen)
            )
        except IdTooSmallError as error:
            there = shlex.quote(str(into or store_path))
            hint = f"streamkeep info {there} {output.shell_key(key)}"
            raise Failure(error.redis_error, hint=hint) from error
    span = f", {report.first_id} to {report.last_id}" if report.first_id else ""
    again = " (went on where it was interrupted)" if report.resumed else ""
    text = f"restored {entries_text(report.entries)} into {quoting.named(key)}{span}"
    text += f" in {output.taken()}{again}"
    if report.already:
        there = entries_text(report.already)
        text = f"nothing to do: {quoting.named(key)} has the {there} already{span}"
    output.total(text, key=key, **_members(report), seconds=output.seconds())
