"""load: append the rows of a CSV or JSON Lines file to a stream.

Rows are appended in batches, each one transaction, so a bad line costs at most its own batch and
memory stays bounded. IDs are checked against the stream here before the store does it once more,
because only here is it known which line of the file is to blame.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn

import click

from streamkeep.format.entry import MIN_ID, StreamId
from streamkeep.format.errors import CommandError
from streamkeep.tools import output
from streamkeep.tools.command import (
    Failure,
    StoreCommand,
    json_option,
    key_argument,
    open_store,
    progress_option,
    quoted_option,
    store_argument,
    sync_option,
)
from streamkeep.tools.rows import (
    FORMATS,
    SUFFIXES,
    Columns,
    CountingReader,
    Format,
    Row,
    RowError,
    open_rows,
    read_rows,
)
from streamkeep.tools.times import TIME_UNITS, TimeUnit

if TYPE_CHECKING:
    from streamkeep.engine.api import Store, Sync

# A batch ends at this size, too: a thousand entries may be a gigabyte.
BATCH_BYTES: Final = 64 << 20
STDIN: Final = "-"


@click.command(cls=StoreCommand)
@store_argument
@key_argument
@click.argument(
    "file",
    metavar="[FILE]",
    default=STDIN,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="Format of FILE; by default its name tells.",
)
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
    help="Pass over what stands before line N (CSV: but for the names).",
)
@sync_option
@json_option
@progress_option
@quoted_option
def load(
    store_path: Path,
    key: bytes,
    file: str,
    kind: Format | None,
    time_column: str | None,
    time_unit: TimeUnit,
    id_column: str | None,
    sort: bool,
    drop_empty: bool,
    batch: int,
    from_line: int,
    sync: Sync,
    as_json: bool,
    progress: bool | None,
) -> None:
    """Append the rows of FILE to the stream KEY, in batches (XADD).

    FILE is JSON Lines (.jsonl .ndjson .json), CSV (.csv) or tab-separated (.tsv), gzip or not; - or
    nothing is standard input and needs --format. Store and stream are created when they do not
    exist.

    CSV: the first line names the fields. JSON: one object per line, its members are the fields;
    numbers keep their digits, nested values become compact JSON. Lines that `streamkeep range
    --json` printed come back as they were, IDs and binary values included.

    IDs come from the clock unless --time or --id names a column for them; the column stays among
    the fields. Times are ISO 8601 (UTC when there is no zone) or Unix seconds, milliseconds or
    microseconds; several entries in one millisecond are numbered. IDs must rise, so a row that is
    older than the one before is an error, unless --sort puts the file in order.

    A bad line ends the command with exit status 1. Its batch is not stored, earlier ones are; the
    message says how many entries that is and how to go on. --batch 1 stores each line as it
    arrives, for a pipe that stays open.

    \b
    Examples:
      streamkeep load orders.store orders orders.csv --time ordered_at
      streamkeep load orders.store orders export.jsonl.gz --sync none
      streamkeep range orders.store orders --json | streamkeep load copy.store orders --format jsonl
    """
    if time_column is not None and id_column is not None:
        raise click.UsageError("--time and --id cannot be used together")
    if time_column is None and time_unit != "auto":
        raise click.UsageError("--time-unit needs --time")
    kind = kind or _format_of(file)
    if drop_empty and kind == "jsonl":
        raise click.UsageError("--drop-empty is for CSV; JSON leaves members out by itself")
    columns = Columns(time_column, time_unit, id_column)
    name = "standard input" if file == STDIN else file
    with ExitStack() as stack:
        source = CountingReader(_open(file, stack))
        loader = Loader(store_path, key, name, sync=sync, may_sort=not sort)
        stack.enter_context(loader)
        move = stack.enter_context(
            output.progress(progress, os.path.basename(name), _size(file), sized=True)
        )
        try:
            stream = open_rows(source)
            rows = read_rows(stream, kind, columns, drop_empty=drop_empty)
            rows = (row for row in rows if row.line >= from_line)
            if sort:
                rows = iter(_sorted(rows, lambda: move(source.done, 0)))
            for part in _batches(rows, batch):
                loader.append(part)
                move(source.done, loader.stored)
        except RowError as error:
            loader.fail(error)
        except KeyboardInterrupt:
            output.note(f"\n{name}: interrupted, {output.entries_text(loader.stored)} stored")
            raise
    loader.report(as_json=as_json)


def _format_of(file: str) -> Format:
    """Tell the format by the name of a file."""
    if file == STDIN:
        raise click.UsageError("standard input has no name that tells its format: add --format")
    path = Path(file.lower().removesuffix(".gz"))
    if path.suffix not in SUFFIXES:
        known = " ".join(SUFFIXES)
        raise click.UsageError(f"{file}: the name does not end in {known}: add --format")
    return SUFFIXES[path.suffix]


def _open(file: str, stack: ExitStack) -> BinaryIO:
    if file == STDIN:
        return sys.stdin.buffer
    return stack.enter_context(open(file, "rb"))


def _size(file: str) -> int | None:
    """Return the size of a file for the progress bar; None for a pipe."""
    status = None if file == STDIN else os.stat(file)
    return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None


def _sorted(rows: Iterable[Row], moved: Callable[[], None]) -> list[Row]:
    """Return all rows by time or ID; rows of the same time stay in the order of the file."""
    found: list[Row] = []
    for row in rows:
        if row.ms is None:
            raise RowError(row.line, "--sort needs a time or an ID: name it with --time or --id")
        found.append(row)
        if len(found) % 1000 == 0:
            moved()
    return sorted(found, key=lambda row: (row.ms or 0, row.seq or 0))


def _batches(rows: Iterable[Row], count: int) -> Iterator[list[Row]]:
    """Yield rows in lists of `count`, or of fewer that are large."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        pairs = row.fields.items() if isinstance(row.fields, dict) else row.fields
        size += sum(map(len, chain.from_iterable(pairs)))
        if len(batch) >= count or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Loader(ExitStack):
    """Appends batches to a stream; opens the store with the first, so a bad file creates none."""

    def __init__(self, path: Path, key: bytes, name: str, *, sync: Sync, may_sort: bool) -> None:
        super().__init__()
        self.path = path
        self.key = key
        self.name = name
        self.sync = sync
        self.may_sort = may_sort
        self.stored = 0
        self.next_line = 1
        self.first_id: StreamId | None = None
        self.last_id = MIN_ID  # that the stream has generated
        self.start_id = MIN_ID  # the same, before this command
        self.began = time.perf_counter()
        self._store: Store | None = None

    def append(self, batch: list[Row]) -> None:
        """Append a batch in one transaction.

        Raises:
            RowError: an ID is not above the one before; nothing of the batch is stored.
        """
        store = self._opened()
        self._check_order(batch)
        ids = [row.id_text for row in batch]
        try:
            added = store.xadd_many(self.key, [row.fields for row in batch], ids)
        except CommandError as error:
            problem = f"this or a later line up to {batch[-1].line}: {error.redis_error}"
            raise RowError(batch[0].line, problem) from error
        self.stored += len(added)
        self.next_line = batch[-1].line + 1
        self.last_id = StreamId.parse(added[-1])
        if self.first_id is None:
            self.first_id = StreamId.parse(added[0])

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self.enter_context(open_store(self.path, create=True, sync=self.sync))
            if self._store.exists(self.key):
                counters = self._store.xinfo_stream(self.key)
                self.last_id = self.start_id = StreamId.parse(counters["last-generated-id"])
        return self._store

    def _check_order(self, batch: list[Row]) -> None:
        """Raise for the first row whose ID the stream will not take."""
        last_ms, last_seq = self.last_id
        for row in batch:
            if row.ms is None:
                continue
            seq = row.seq
            if seq is None:
                seq = last_seq + 1 if row.ms == last_ms else 0
            if (row.ms, seq) <= (last_ms, last_seq):
                self._refuse(row, StreamId(last_ms, last_seq))
            last_ms, last_seq = row.ms, seq

    def _refuse(self, row: Row, last: StreamId) -> NoReturn:
        assert row.ms is not None
        if row.seq is None:
            problem = f"{output.time_text(row.ms)} is before {output.time_text(last.ms)}"
        else:
            problem = f"ID {row.ms}-{row.seq} is not above {last}"
        if last == self.start_id:
            problem += f", the last ID of {output.named(self.key)}; a stream only takes newer ones"
            raise RowError(row.line, problem)
        hint = "--sort puts the file in order" if self.may_sort and not self.stored else ""
        raise RowError(row.line, f"{problem}, the row before; IDs must rise", hint=hint)

    def fail(self, error: RowError) -> NoReturn:
        """End the command because of a line; say what is stored, and how to go on."""
        if not self.stored:
            raise Failure(
                f"{self.name} line {error.line}: {error}; nothing was stored", hint=error.hint
            ) from None
        going_on = f"--from-line {self.next_line} goes on behind them" if self.may_sort else ""
        raise Failure(
            f"{self.name} line {error.line}: {error}; {output.entries_text(self.stored)} stored, "
            f"up to line {self.next_line - 1}",
            hint=error.hint or going_on,
        ) from None

    def report(self, *, as_json: bool) -> None:
        """Print the summary."""
        seconds = time.perf_counter() - self.began
        if as_json:
            output.json_summary(
                "load",
                key=output.json_bytes(self.key),
                file=self.name,
                entries=self.stored,
                first_id=None if self.first_id is None else str(self.first_id),
                last_id=str(self.last_id) if self.stored else None,
                duration_ms=round(seconds * 1000),
            )
            return
        if self.first_id is None:
            output.note(f"{self.name}: no entries")
            return
        times = f"{output.time_text(self.first_id.ms)} to {output.time_text(self.last_id.ms)}"
        rate = f"{self.stored / max(seconds, 1e-9):,.0f} entries/s"
        output.note(
            f"{self.name}: {output.entries_text(self.stored)} into {output.named(self.key)}, "
            f"{times}, in {output.span_text(seconds)} ({rate})"
        )
