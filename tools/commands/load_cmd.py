"""load: a file into a store, as whole streams, as commands, or as entries of one stream."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.format import quoting
from streamkeep.format.core.errors import ArgumentError, KeyExistsError, LoadError, StreamkeepError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.core.times import TIME_UNITS
from streamkeep.format.humanize import count_text, entries_text, time_text
from streamkeep.format.redis.stream_dump import Losses
from streamkeep.tools.base import arguments, common, output
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import given
from streamkeep.tools.base.statuses import Failure
from streamkeep.tools.commands.retention_cmd import Size
from streamkeep.transfer import LOAD_FORMATS, LoadReport
from streamkeep.transfer import load as load_file
from streamkeep.transfer.formats import UNNAMED, load_format

if TYPE_CHECKING:
    from streamkeep.transfer import LoadFormat

STDIN: Final = "-"


@command()
@arguments.store_argument
@click.argument("words", metavar="[KEY] [FILE]", nargs=-1, type=arguments.Bytes())
@click.option(
    "--format",
    type=click.Choice(LOAD_FORMATS),
    help="Format of FILE; by default its name gives it.",
)
@click.option(
    "--existing",
    type=click.Choice(["refuse", "skip", "replace"]),
    default="refuse",
    show_default=True,
    help="What to do with a whole stream if the store has one of the same name.",
)
@click.option(
    "--db", "database", type=click.IntRange(min=0), help="Load this database of an RDB file only."
)
@click.option(
    "--time", "time_column", metavar="COLUMN", help="Column that holds the time of each entry."
)
@click.option(
    "--time-unit",
    type=click.Choice(TIME_UNITS),
    default="auto",
    show_default=True,
    help="What a number in that column counts.",
)
@click.option("--id", "id_column", metavar="COLUMN", help="Column that holds complete entry IDs.")
@click.option(
    "--sort", is_flag=True, help="Sort by time or ID first; the whole file is kept in memory."
)
@click.option("--drop-empty", is_flag=True, help="Leave out empty CSV cells.")
@click.option(
    "--batch",
    type=arguments.Number(min=1),
    default=1000,
    show_default=True,
    help="Append N entries per transaction.",
)
@click.option(
    "--from-line",
    type=arguments.Number(min=1),
    default=1,
    help="Begin at line N; of CSV the line with the names is read, too. For resp: at command N.",
)
@click.option(
    "--max-line",
    type=Size(),
    default="16M",
    show_default=True,
    metavar="SIZE",
    help="How long a line of JSON or CSV may be; it takes up to forty times as much memory.",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="NAME",
    help="Skip commands of this name; resp only. May be given several times.",
)
def load(
    store_path: Path, words: tuple[bytes, ...], format: LoadFormat | None, **options: Any
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

    \b
    Examples:
      streamkeep load restored.store orders.jsonl
      streamkeep load redis.store dump.rdb
      streamkeep load orders.store orders orders.csv --time ordered_at
      streamkeep load orders.store orders export.jsonl.gz --sync none
      streamkeep range orders.store orders --json | streamkeep load copy.store orders --format jsonl
    """
    ctx = click.get_current_context()
    for option in ("existing", "time_unit", "batch", "from_line"):
        if not arguments.was_given(ctx, option):
            options[option] = None  # `load` refuses it for formats for which it means nothing
    key, file = _key_and_file(words, format)
    chosen = format or _format_of(file)
    name = "standard input" if file == STDIN else file
    source = sys.stdin.buffer if file == STDIN else file
    with output.shown_progress(os.path.basename(name), sized=True) as moved:
        try:
            report = load_file(
                store_path,
                source,
                format=chosen,
                key=key,
                sync=given(ctx).sync,
                name=name,
                progress=moved,
                **options,
            )
        except ArgumentError as error:
            raise click.UsageError(arguments.as_options(str(error))) from error
        except LoadError as error:
            text, hint = arguments.as_options(str(error)), arguments.as_options(error.hint)
            raise Failure(text, hint=hint, code=type(error).__name__) from error
        except KeyExistsError as error:
            hint = "--existing skip leaves it, --existing replace replaces it"
            text = f"{error}; nothing was loaded"
            raise Failure(text, hint=hint, code=type(error).__name__) from error
        except (StreamkeepError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt):
                output.note("")
            for one in getattr(error, "__notes__", ()):
                output.note(arguments.as_options(one))
            raise
    if report.unfinished:
        output.note(
            f"{count_text(len(report.unfinished), 'stream')} of loads that are running or "
            f"were killed: {UNNAMED.decode()}...; of the killed, `streamkeep exec {store_path} DEL "
            f"{output.shell_key(report.unfinished[0])}` removes one"
        )
    _report(report, key)


# --- the arguments ------------------------------------------------------------------------------


def _key_and_file(words: tuple[bytes, ...], kind: LoadFormat | None) -> tuple[bytes | None, str]:
    """Return KEY, if there is one, and FILE.

    One word is a file, except that rows may come from standard input by naming a format.
    """
    if len(words) > 2:
        raise click.UsageError(f"at most KEY and FILE are expected, found {len(words)} arguments")
    if not words:
        raise click.UsageError("Missing argument 'FILE'.")
    file = os.fsdecode(words[-1])
    if len(words) == 1 and file != STDIN and not os.path.exists(file):
        if kind in ("jsonl", "csv", "tsv") and not sys.stdin.isatty():
            return words[0], STDIN
        hint = "for rows from standard input give KEY and -, and add --format"
        raise click.UsageError(f"File {file!r} does not exist; {hint}.")
    if file != STDIN and not os.path.exists(file):
        raise click.UsageError(f"File {file!r} does not exist.")
    if file != STDIN and os.path.isdir(file):
        raise click.UsageError(f"File {file!r} is a directory.")
    return (words[0] if len(words) == 2 else None), file


def _format_of(file: str) -> LoadFormat:
    """Return the format that the name of a file gives."""
    if file == STDIN:
        raise click.UsageError("standard input has no name that gives its format: add --format")
    try:
        return load_format(None, file)
    except ArgumentError as error:
        raise click.UsageError(f"{error}: add --format") from error


# --- the summary --------------------------------------------------------------------------------


def _report(report: LoadReport, key: bytes | None) -> None:
    """Print what a load has brought."""
    if common.as_json():
        members: dict[str, Any] = {"file": report.source}
        if report.kind == "rows":
            assert key is not None
            members = {"key": json_bytes(key), **members}
            members["entries"] = report.entries
            members["first_id"] = None if report.first_id is None else str(report.first_id)
            members["last_id"] = None if report.last_id is None else str(report.last_id)
        elif report.kind == "commands":
            members.update(commands=report.commands, entries=report.entries)
        else:
            members.update(streams=report.streams, entries=report.entries, skipped=report.skipped)
        if report.kind != "rows":
            members["dropped"] = report.dropped
        output.summary(**members, duration_ms=round(report.seconds * 1000))
        return
    entries = entries_text(report.entries)
    rate = f"{report.entries / max(report.seconds, 1e-9):,.0f} entries/s"
    taken = f"in {output.span_text(report.seconds)} ({rate})"
    if report.kind == "commands":
        commands = count_text(report.commands, "command")
        output.note(f"{report.source}: {commands}, {entries} {taken}")
    elif report.kind == "streams":
        streams = count_text(report.streams, "stream")
        skipped = f", {report.skipped:,} skipped" if report.skipped else ""
        output.note(f"{report.source}: {streams}{skipped}, {entries} {taken}")
    elif report.first_id is None or report.last_id is None:
        output.note(f"{report.source}: no entries")
    else:
        assert key is not None
        times = f"{time_text(report.first_id.ms)} to {time_text(report.last_id.ms)}"
        output.note(f"{report.source}: {entries} into {quoting.named(key)}, {times}, {taken}")
    output.note_losses(Losses(report.dropped))
