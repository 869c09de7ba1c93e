"""load: files into a store, as whole streams or as entries of one stream."""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import click

from streamkeep.format.core.errors import CorruptionError, KeyExistsError, StreamkeepError
from streamkeep.recovery.load import PREFIX, Existing, Load, leftovers
from streamkeep.tools.base import output
from streamkeep.tools.base.command import (
    Bytes,
    Exit,
    Failure,
    command,
    open_store,
    refuse_options,
    store_argument,
)
from streamkeep.tools.base.interrupts import uninterrupted
from streamkeep.tools.base.times import TIME_UNITS, TimeUnit
from streamkeep.tools.commands.retention_cmd import Size
from streamkeep.tools.transfer.dump_table import read_parquet
from streamkeep.tools.transfer.load_resp import Replay, load_commands
from streamkeep.tools.transfer.load_rows import Choice, Loader, batches, sorted_rows
from streamkeep.tools.transfer.load_whole import Loaded, WholeLoader
from streamkeep.tools.transfer.rows import (
    DAMAGED,
    DELIMITERS,
    SUFFIXES,
    Columns,
    CountingReader,
    Row,
    open_rows,
    read_rows,
    row_of,
)
from streamkeep.tools.transfer.text_lines import MAX_LINE_OPTION, RowError

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.tools.transfer.rows import Format as RowFormat

Format = Literal["jsonl", "csv", "tsv", "parquet", "resp", "dump", "rdb"]
LOADABLE: Final[tuple[Format, ...]] = ("jsonl", "csv", "tsv", "parquet", "resp", "dump", "rdb")
STDIN: Final = "-"
_SUFFIXES: Final[dict[str, Format]] = {
    **SUFFIXES,
    ".parquet": "parquet",
    ".resp": "resp",
    ".aof": "resp",
    ".dump": "dump",
    ".rdb": "rdb",
}
_DUMP_START: Final = b'{"type":"dump"'


@command()
@store_argument
@click.argument("words", metavar="[KEY] [FILE]", nargs=-1, type=Bytes())
@click.option(
    "--format",
    "kind",
    type=click.Choice(LOADABLE),
    help="Format of FILE; by default its name tells.",
)
@click.option(
    "--existing",
    type=click.Choice(["refuse", "skip", "replace"]),
    default="refuse",
    show_default=True,
    help="What to do where a whole stream comes and the store has one of its name.",
)
@click.option("--db", type=click.IntRange(min=0), help="Load this database of an RDB file only.")
@click.option(
    "--time", "time_column", metavar="COLUMN", help="Column that holds the time of each entry."
)
@click.option(
    "--time-unit",
    type=click.Choice(TIME_UNITS),
    default="auto",
    show_default=True,
    help="How that column gives it.",
)
@click.option("--id", "id_column", metavar="COLUMN", help="Column that holds complete entry IDs.")
@click.option(
    "--sort", is_flag=True, help="Sort by time or ID first: keeps the whole file in memory."
)
@click.option("--drop-empty", is_flag=True, help="Leave out empty CSV cells.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Append N entries per transaction.",
)
@click.option(
    "--from-line",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Pass over what stands before line N (CSV: but for the names; resp: before command N).",
)
@click.option(
    MAX_LINE_OPTION,
    "max_line",
    type=Size(),
    default="16M",
    show_default=True,
    metavar="SIZE",
    help="How long a line of JSON or CSV may be; memory takes up to forty times as much.",
)
@click.option(
    "--skip",
    "skipped",
    multiple=True,
    metavar="NAME",
    help="Pass over commands of this name; resp only. May be given several times.",
)
def load(
    store_path: Path,
    words: tuple[bytes, ...],
    kind: Format | None,
    existing: Existing,
    db: int | None,
    time_column: str | None,
    time_unit: TimeUnit,
    id_column: str | None,
    sort: bool,
    drop_empty: bool,
    batch: int,
    from_line: int,
    max_line: int,
    skipped: tuple[str, ...],
) -> None:
    """Load FILE into STORE: whole streams, or rows into the stream KEY.

    FILE may be compressed with gzip; - is standard input and needs --format. Store and streams are
    created when they do not exist.

    WHOLE STREAMS come from what `streamkeep dump` writes, and from Redis: `jsonl`; `rdb`, an RDB
    file of Redis 5.0 to 8.10 or of Valkey; `dump`, a DUMP payload, which needs KEY for a name, or
    lines of them; without KEY, `csv` whose first columns are `stream` and `id`, and `parquet` with
    a column `stream`. All streams of the file appear at once, when its end has been reached and its
    checksum was right, or none does. Of a dump or an RDB file KEY chooses one. What a store has no
    place for, such as keys of other types, is counted.

    COMMANDS (`resp`), as `dump` writes them and append-only files have them, are run in batches.
    What changes no stream is passed over and counted, and so is what is not for database 0. A
    command that is refused, or may change streams in a way that is not known, ends the load with
    exit status 1; --from-line goes on, --skip passes over all commands of a name.

    ROWS of `jsonl`, `csv`, `tsv` and `parquet` are appended to the stream KEY in batches (XADD).
    CSV: the first line names the fields. JSON: one object per line, its members are the fields;
    numbers keep their digits, nested values become compact JSON. Lines that `streamkeep range
    --json` printed come back as they were, IDs and binary values included. Parquet needs the
    columns `id` and `fields`. Where rows say of which stream they are, as in the tables that `dump`
    writes, those of the stream KEY are taken, with their IDs.

    IDs of other rows come from the clock unless --time or --id names a column for them; the column
    stays among the fields. Times are ISO 8601 (UTC when there is no zone) or Unix seconds,
    milliseconds or microseconds; several entries in one millisecond are numbered. IDs must rise, so
    a row that is older than the one before is an error, unless --sort puts the file in order.

    A bad line ends the command with exit status 1. Its batch is not stored, earlier ones are; the
    message says how many entries that is and how to go on. --batch 1 stores each line as it
    arrives, for a pipe that stays open.

    \b
    Examples:
      streamkeep load restored.store orders.jsonl
      streamkeep load redis.store dump.rdb
      streamkeep load orders.store orders orders.csv --time ordered_at
      streamkeep load orders.store orders export.jsonl.gz --sync none
      streamkeep range orders.store orders --json | streamkeep load copy.store orders --format jsonl
    """
    as_json = output.as_json()
    if time_column is not None and id_column is not None:
        raise click.UsageError("--time and --id cannot be used together")
    if time_column is None and time_unit != "auto":
        raise click.UsageError("--time-unit needs --time")
    key, file = _key_and_file(words, kind)
    kind = kind or _format_of(file)
    if drop_empty and kind not in DELIMITERS:
        raise click.UsageError("--drop-empty is for CSV; JSON leaves members out by itself")
    columns = Columns(time_column, time_unit, id_column)
    name = "standard input" if file == STDIN else file
    with ExitStack() as stack:
        source = CountingReader(_open(file, stack))
        move = stack.enter_context(output.progress(os.path.basename(name), _size(file), sized=True))
        if kind == "parquet":
            stream: Any = _seekable(source, name)
        else:
            stream = _opened(source, name)
        whole = kind != "resp" and _is_whole(kind, key, stream)
        _check_options(kind, key, whole=whole)
        if kind == "resp" or whole:

            def opened() -> Store[Any]:
                store = stack.enter_context(open_store(store_path, create=True))
                _note_leftovers(store, store_path)
                return store

            told = lambda entries: move(source.done, entries)  # noqa: E731  # one line, used twice
            if kind == "resp":
                replay = Replay(opened, from_line, skipped, told)
                load_commands(replay, stream, name, as_json=as_json)
            else:
                make = partial(WholeLoader, name=name, key=key, database=db, max_line=max_line)
                _load_whole(opened, make, kind, stream, name, existing, told, as_json=as_json)
            return
        assert key is not None
        loader = Loader(store_path, key, name, may_sort=not sort)
        stack.enter_context(loader)
        try:
            rows = (
                _parquet_rows(stream, name)
                if kind == "parquet"
                else read_rows(stream, _row_format(kind), columns, max_line, drop_empty=drop_empty)
            )
            choice = Choice(key)
            rows = choice.rows(row for row in rows if row.line >= from_line)
            if sort:
                rows = iter(sorted_rows(rows, lambda: move(source.done, 0)))
            for part in batches(rows, batch):
                loader.append(part)
                move(source.done, loader.stored)
            choice.check(name, may_be_empty=True)
        except RowError as error:
            loader.fail(error)
        except KeyboardInterrupt:
            output.note("")
            loader.note_stored("interrupted; ")
            raise
        except StreamkeepError:
            loader.note_stored("")
            raise
    loader.report(as_json=as_json)


# --- the arguments ------------------------------------------------------------------------------


def _key_and_file(words: tuple[bytes, ...], kind: Format | None) -> tuple[bytes | None, str]:
    """Return KEY, if there is one, and FILE.

    One word is a file, except that rows may come from standard input by naming a format.
    """
    if len(words) > 2:
        raise click.UsageError(f"at most KEY and FILE are expected, found {len(words)} arguments")
    if not words:
        raise click.UsageError("Missing argument 'FILE'.")
    file = os.fsdecode(words[-1])
    if len(words) == 1 and file != STDIN and not os.path.exists(file):
        if kind in SUFFIXES.values() and not sys.stdin.isatty():
            return words[0], STDIN
        hint = "for rows from standard input give KEY and -, and add --format"
        raise click.UsageError(f"File {file!r} does not exist; {hint}.")
    if file != STDIN and not os.path.isfile(file) and not _is_pipe(file):
        raise click.UsageError(
            f"File {file!r} is a directory."
            if os.path.isdir(file)
            else f"File {file!r} does not exist."
        )
    return (words[0] if len(words) == 2 else None), file


def _check_options(kind: Format, key: bytes | None, *, whole: bool) -> None:
    """Refuse what means nothing for what a file brings: streams, commands, or rows."""
    if kind != "rdb":
        refuse_options("is for RDB files", "db")
    if kind != "resp":
        refuse_options("is for commands", "skipped")
    if not whole:
        refuse_options("is for whole streams", "existing")
    if whole or kind == "resp":
        refuse_options(
            "is for rows of a table",
            *("time_column", "id_column", "sort", "drop_empty", "batch"),
        )
    if whole:
        refuse_options("is for rows and commands: streams come whole", "from_line")
    if kind == "resp" and key is not None:
        raise click.UsageError("commands name their streams: leave KEY out")


def _is_pipe(file: str) -> bool:
    return os.path.exists(file) and not os.path.isdir(file)


def _format_of(file: str) -> Format:
    """Tell the format by the name of a file."""
    if file == STDIN:
        raise click.UsageError("standard input has no name that tells its format: add --format")
    path = Path(file.lower().removesuffix(".gz"))
    if path.suffix not in _SUFFIXES:
        known = " ".join(_SUFFIXES)
        raise click.UsageError(f"{file}: the name does not end in {known}: add --format")
    return _SUFFIXES[path.suffix]


def _row_format(kind: Format) -> RowFormat:
    assert kind == "jsonl" or kind == "csv" or kind == "tsv"
    return kind


def _is_whole(kind: Format, key: bytes | None, stream: Any) -> bool:
    """Say whether a file brings whole streams."""
    if kind in ("rdb", "dump") or (key is None and kind != "jsonl"):
        return True
    if kind != "jsonl":
        return False
    start = b""
    with suppress(*DAMAGED):  # which reading the lines will tell
        start = stream.peek(len(_DUMP_START)).lstrip()[: len(_DUMP_START) + 8]
    is_dump = start.replace(b" ", b"").startswith(_DUMP_START)
    if key is None and start and not is_dump:
        raise Failure(
            "these are rows, and their stream is not named: the file does not begin as a dump does",
            hint="streamkeep load STORE KEY FILE",
        )
    return bool(is_dump) or key is None


def _open(file: str, stack: ExitStack) -> BinaryIO:
    if file == STDIN:
        return sys.stdin.buffer
    return stack.enter_context(open(file, "rb"))


def _opened(source: CountingReader, name: str) -> io.BufferedReader[Any]:
    try:
        return open_rows(source)
    except OSError as error:
        raise Failure(f"{name}: {error.strerror or error}") from error


def _seekable(source: CountingReader, name: str) -> BinaryIO:
    """Return the file itself: Parquet is read from its end."""
    file = source.file()
    if not file.seekable():
        raise Failure(f"{name}: Parquet is read from a file, not from a pipe")
    return file


def _size(file: str) -> int | None:
    """Return the size of a file for the progress bar; None for a pipe."""
    status = None if file == STDIN else os.stat(file)
    return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None


def _parquet_rows(stream: BinaryIO, name: str) -> Iterator[Row]:
    """Yield the rows of a Parquet file."""
    for number, (key, ms, seq, flat) in enumerate(read_parquet(stream, name), 1):
        yield row_of(number, key, ms, seq, flat)


# --- whole streams ------------------------------------------------------------------------------


def _note_leftovers(store: Store[Any], path: Path) -> None:
    """Tell of what a load that was killed has left."""
    names = leftovers(store)
    if names:
        output.note(
            f"{output.count_text(len(names), 'stream')} of loads that are running or were killed: "
            f"{PREFIX.decode()}...; of the killed, `streamkeep remove {path} "
            f"{output.shell_key(names[0])}` removes one"
        )


def _load_whole(
    opened: Callable[[], Store[Any]],
    make_loader: Callable[..., WholeLoader],
    kind: Format,
    stream: Any,
    name: str,
    existing: Existing,
    told: Callable[[int], None],
    *,
    as_json: bool,
) -> None:
    began = time.perf_counter()
    loaded: Loaded | None = None
    try:
        with ExitStack() as stack:

            def begun() -> Load:
                return stack.enter_context(Load(opened(), existing))

            loader = make_loader(begun, moved=told)
            if kind == "jsonl":
                loader.jsonl(stream)
            elif kind == "rdb":
                loader.rdb(stream)
            elif kind == "dump":
                loader.payload(stream)
            elif kind == "parquet":
                loader.parquet(stream)
            else:
                loader.csv(stream, DELIMITERS[kind])
            with uninterrupted():
                loaded = loader.publish()
    except KeyboardInterrupt:
        output.note("")
        output.note(f"{name}: interrupted; {'nothing' if loaded is None else 'all'} was loaded")
        raise
    except RowError as error:
        problem = f"{name} line {error.line}: {error}; nothing was loaded"
        raise Failure(problem, hint=error.hint) from error
    except KeyExistsError as error:
        hint = "--existing skip leaves it, --existing replace replaces it"
        raise Failure(f"{error}; nothing was loaded", hint=hint) from error
    except CorruptionError as error:
        if not error.where.startswith(name):
            raise
        raise Failure(f"{error}; nothing was loaded", status=Exit.ABORTED) from error
    except DAMAGED as error:
        raise Failure(f"{name}: the gzip file is damaged or cut off; nothing was loaded") from error
    _report(loaded, name, time.perf_counter() - began, as_json=as_json)


def _report(loaded: Loaded, name: str, seconds: float, *, as_json: bool) -> None:
    if as_json:
        output.json_summary(
            "load",
            file=name,
            streams=loaded.streams,
            entries=loaded.entries,
            skipped=loaded.skipped,
            no_place=dict(loaded.losses),
            duration_ms=round(seconds * 1000),
        )
        return
    rate = f"{loaded.entries / max(seconds, 1e-9):,.0f} entries/s"
    skipped = f", {loaded.skipped:,} skipped" if loaded.skipped else ""
    output.note(
        f"{name}: {output.count_text(loaded.streams, 'stream')}{skipped}, "
        f"{output.entries_text(loaded.entries)} in {output.span_text(seconds)} ({rate})"
    )
    output.note_losses(loaded.losses)
