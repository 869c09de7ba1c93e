"""load: a file into a store, as whole streams, as commands, or as entries of one stream."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from shlex import quote
from typing import Annotated, Any, Final, Literal

import click

from streamkeep.format import quoting
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.times import TIME_UNITS
from streamkeep.format.humanize import count_text, entries_text, time_text
from streamkeep.tools.base import arguments, common, output
from streamkeep.tools.base.arguments import Natural, Positive, SizeBytes, StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import given
from streamkeep.transfer import LoadFormat
from streamkeep.transfer import load as load_file
from streamkeep.transfer.formats import UNNAMED, load_format

STDIN: Final = "-"


@dataclass
class Wanted:
    """How a file is read, and what is loaded of it.

    Args:
        existing: What to do with a whole stream if the store has one of the same name; by default
            refuse.
        database (--db): Load this database of an RDB file only.
        time_column (--time COLUMN): Column that holds the time of each entry.
        time_unit: What a number in that column counts; by default auto.
        id_column (--id COLUMN): Column that holds complete entry IDs.
        sort: Sort by time or ID first; the whole file is kept in memory.
        batch: Append N entries per transaction; by default 1,000.
        from_line: Begin at line N; of CSV the line with the names is read, too. For resp: at
            command N.
        max_line (SIZE): How long a line of JSON or CSV may be; it takes up to forty times as much
            memory.
        skip (NAME): Skip commands of this name; resp only. May be given several times.
    """

    existing: Literal["refuse", "skip", "replace"] | None = None
    database: Natural | None = None
    time_column: str | None = None
    time_unit: Annotated[str, click.Choice(TIME_UNITS)] | None = None
    id_column: str | None = None
    sort: bool = False
    batch: Positive | None = None
    from_line: Positive | None = None
    max_line: SizeBytes = 16 << 20
    skip: tuple[str, ...] = ()


@command()
def load(
    store_path: StorePath,
    *,
    words: tuple[bytes, ...] = (),
    format: LoadFormat | None = None,
    wanted: Wanted,
) -> None:
    """Load FILE into STORE: streams, commands, or rows of KEY.

    FILE may be compressed with gzip; - is standard input and needs --format. Store and streams are
    created when they do not exist.

    WHOLE STREAMS come from `streamkeep dump` and from Redis: `jsonl`; `rdb`, an RDB file of Redis
    5.0 to 8.10 or of Valkey; `dump`, a DUMP payload, which needs KEY for a name, or lines of them;
    without KEY, `csv` whose first columns are `stream` and `id`, and `parquet` with a column
    `stream`. All streams of the file appear at once when its end was reached and its checksum was
    right, or none does. Of a dump or an RDB file, KEY chooses one stream. What a store cannot hold,
    such as keys of other types, is dropped and listed.

    COMMANDS (`resp`), as `dump` and append-only files have them, are applied in batches. Commands
    that change no stream, and those for databases other than 0, are skipped and listed. A command
    that is refused, or that may change streams in an unknown way, ends the load with exit status 1.
    --from-line resumes there; --skip skips all commands of a name.

    ROWS of `jsonl`, `csv`, `tsv` and `parquet` are appended to the stream KEY in batches (XADD).
    CSV: the first line names the fields. JSON: one object per line; its members are the fields.
    Numbers keep their digits, and nested values become compact JSON. Lines that `streamkeep range
    --json` printed come back as they were, with IDs and binary values. Parquet needs the columns
    `id` and `fields`. Where rows name their stream, as in the tables that `dump` writes, the rows
    of the stream KEY are loaded, with their IDs.

    The IDs of other rows come from the clock, unless --time or --id names a column for them. The
    column stays among the fields. Times are ISO 8601 (UTC unless there is a zone) or Unix seconds,
    milliseconds or microseconds. Entries of one millisecond are numbered. IDs must rise: a row that
    is older than the one before is an error, unless --sort puts the file in order.

    A bad line ends the command with exit status 1. Its batch is not stored, earlier batches are;
    the message says how many entries that is and how to continue. --batch 1 stores each line as it
    arrives, for a pipe that stays open.

    Examples:
      streamkeep load restored.store orders.jsonl
      streamkeep load redis.store dump.rdb
      streamkeep load orders.store orders orders.csv --time ordered_at
      streamkeep load orders.store orders export.jsonl.gz --sync none
      streamkeep range orders.store orders --json | streamkeep load copy.store orders --format jsonl

    Args:
        words ([KEY] [FILE]):
        format: Format of FILE; by default its name gives it.
    """
    if len(words) > 2:
        raise click.UsageError(f"at most KEY and FILE are expected, found {len(words)} arguments")
    if not words:
        raise click.UsageError("Missing argument 'FILE'.")
    key, file = words[0] if len(words) == 2 else None, os.fsdecode(words[-1])
    if file != STDIN and not os.path.exists(file):
        hint = ""
        if key is None and format in ("jsonl", "csv", "tsv") and not sys.stdin.isatty():
            key, file = words[0], STDIN  # rows may come without a name of a file
        elif key is None:
            hint = "; for rows from standard input give KEY and -, and add --format"
        if file != STDIN:
            raise click.UsageError(f"File {file!r} does not exist{hint}.")
    if file != STDIN and os.path.isdir(file):
        raise click.UsageError(f"File {file!r} is a directory.")
    if format is None and file == STDIN:
        raise click.UsageError("standard input has no name that gives its format: add --format")
    try:
        chosen = format or load_format(None, file)
    except ArgumentError as error:
        raise click.UsageError(f"{error}: add --format") from error
    name = "standard input" if file == STDIN else file
    source = sys.stdin.buffer if file == STDIN else file
    try:
        with output.progress(os.path.basename(name), "bytes") as advance, arguments.as_of_library():
            report = load_file(
                store_path,
                source,
                format=chosen,
                key=key,
                sync=given().sync,
                name=name,
                progress=lambda one: advance(one.done, one.total, one.entries),
                **vars(wanted),
            )
    except KeyboardInterrupt as error:
        if not common.as_json():
            output.note("")  # the terminal shows ^C
        for one in getattr(error, "__notes__", ()):
            output.note(arguments.as_options(one))
        raise
    if report.unfinished:
        output.note(
            f"{count_text(len(report.unfinished), 'stream')} of loads that are running or "
            f"were killed: {UNNAMED.decode()}...; of the killed, `streamkeep exec "
            f"{quote(str(store_path))} DEL {output.shell_key(report.unfinished[0])}` removes one"
        )
    entries = entries_text(report.entries)
    rate = f"{report.entries / max(report.seconds, 1e-9):,.0f} entries/s"
    taken = f"in {output.span_text(report.seconds)} ({rate})"
    members: dict[str, Any]
    if report.kind == "commands":
        members = {"commands": report.commands, "dropped": report.dropped}
        text = f"{count_text(report.commands, 'command')}, {entries} {taken}"
    elif report.kind == "streams":
        members = {"streams": report.streams, "skipped": report.skipped, "dropped": report.dropped}
        skipped = f", {report.skipped:,} skipped" if report.skipped else ""
        text = f"{count_text(report.streams, 'stream')}{skipped}, {entries} {taken}"
    else:
        first, last = report.first_id, report.last_id
        members = {"key": key, "first_id": first and str(first), "last_id": last and str(last)}
        text = "no entries"
        if first is not None and last is not None and key is not None:
            times = f"{time_text(first.ms)} to {time_text(last.ms)}"
            text = f"{entries} into {quoting.named(key)}, {times}, {taken}"
    members |= {"entries": report.entries, "duration_ms": round(report.seconds * 1000)}
    output.total(f"{report.source}: {text}", file=report.source, **members)
    if not common.as_json():
        output.note_losses(report.dropped)
