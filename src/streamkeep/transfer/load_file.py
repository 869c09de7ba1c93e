"""`load`: a file into a store, as whole streams, as commands, or as rows of one stream."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final, Literal, NamedTuple

from streamkeep.engine.api.command_base import Key
from streamkeep.engine.api.views import Sync
from streamkeep.engine.commands.arguments import to_bytes
from streamkeep.engine.commands.xadd import xadd_many
from streamkeep.engine.system.files import path_of
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import (
    ArgumentError,
    CommandError,
    CorruptionError,
    LoadError,
    StreamkeepError,
)
from streamkeep.format.core.times import TIME_UNITS, TimeUnit
from streamkeep.format.core.values import texts, whole
from streamkeep.format.humanize import count_text, entries_text, lost_texts, time_text
from streamkeep.format.quoting import named
from streamkeep.format.redis.resp import read_commands
from streamkeep.transfer import stores
from streamkeep.transfer.aof import CommandFailure, OpenMulti, Replay
from streamkeep.transfer.formats import DELIMITERS, LoadFormat, load_format
from streamkeep.transfer.loading import tables
from streamkeep.transfer.loading.staged import Existing
from streamkeep.transfer.loading.tables import Row, RowError
from streamkeep.transfer.loading.whole import CallerError, Choice, Given, WholeLoader

BATCH: Final = 1000  # entries per transaction
# A batch ends at this size, too: a thousand entries may be a gigabyte.
BATCH_BYTES: Final = 64 << 20

LoadSource = str | os.PathLike[str] | BinaryIO
Kind = Literal["streams", "commands", "rows"]

_DUMP_START: Final = b'{"type":"dump"'
_RDB_STARTS: Final = (b"REDIS0", b"VALKEY0")
_EXISTING: Final = ("refuse", "skip", "replace")


class Outcome(NamedTuple):
    """How far a load came: as text, how to load the rest, and how many entries or commands."""

    text: str
    resume: str = ""
    done: int = 0


class LoadReport(NamedTuple):
    """What a load has brought.

    Attributes:
        source: the name of the file.
        format: the format of the file.
        kind: "streams" where whole streams came, "commands" where commands were applied, "rows"
            where rows were appended to one stream.
        streams: how many whole streams came.
        entries: how many entries came.
        skipped: how many streams were left as they were, because they existed.
        commands: the number of the last command that was applied or skipped.
        dropped: what the file holds and a store cannot, and how often it occurred.
        first_id, last_id: of the rows; None where there were none.
        unfinished: temporary names of streams in the store whose loads have not ended or were
            killed; those of killed loads may be deleted.
        seconds: how long the load took.
    """

    source: str
    format: LoadFormat
    kind: Kind
    streams: int = 0
    entries: int = 0
    skipped: int = 0
    commands: int = 0
    dropped: dict[str, int] = {}  # noqa: RUF012  # never changed
    first_id: StreamId | None = None
    last_id: StreamId | None = None
    unfinished: tuple[bytes, ...] = ()
    seconds: float = 0.0


def load(
    store: stores.AnyStore,
    source: LoadSource,
    *,
    format: LoadFormat | None = None,
    key: Key | None = None,
    existing: Existing | None = None,
    database: int | None = None,
    time_column: str | None = None,
    time_unit: TimeUnit | None = None,
    id_column: str | None = None,
    sort: bool = False,
    batch: int | None = None,
    from_line: int | None = None,
    skip: Iterable[str] = (),
    max_line: int = tables.MAX_LINE,
    sync: Sync | None = None,
    name: str | None = None,
    progress: stores.ProgressCallback | None = None,
) -> LoadReport:
    """Load a file into a store: whole streams, commands, or rows of one stream.

    *Whole streams* come from dumps in "jsonl"; from "rdb" and "dump"; and without `key` from "csv"
    and "parquet" that name the stream of each entry. All streams appear together when the end of
    the file was reached and its checksum or its counts were right, or none does (10,000 at a time
    where there are more). An error, and Ctrl-C, leaves the store as it was.

    *Commands* ("resp") are applied in batches of 1,000, each in one transaction. A command that is
    refused ends the load; all commands before it are applied.

    *Rows* of "jsonl", "csv", "tsv" and "parquet" are appended to the stream `key` in batches, each
    in one transaction. A bad row ends the load; the batches before its own are stored.

    What has come is as durable as `sync` says when the call returns. An error that ends a load of
    commands or rows says in its message, or in its notes (`__notes__`), how much is stored and
    which `from_line` continues.

    Args:
        store: an open store, or the path of a store. It is opened, and created where there is none,
            when the file has brought something to write; a store that was created in vain is
            removed again.
        source: a path, or a binary file that is open for reading. It may be compressed with gzip,
            except Parquet, which must also be seekable.
        format: the format of the file; None: the ending of its name gives it, before `.gz`.
        key: the stream that rows are appended to; the name for a payload ("dump"), which has none;
            of several whole streams the only one that is loaded. Not for "resp".
        existing: for whole streams that the store has already: "refuse" (the default) raises,
            "skip" leaves them as they are, "replace" replaces them.
        database: for "rdb": load the streams of this database only.
        time_column: for rows: the column or member that holds the time of each entry.
        time_unit: how it gives the time: "iso", "s", "ms", "us", or "auto" (the default).
        id_column: for rows: the column or member that holds complete entry IDs.
        sort: for rows: sort them by time or ID first, in memory.
        batch: for rows: how many are appended in one transaction; 1,000 by default.
        from_line: for rows and commands: begin at this line or command, from 1 on.
        skip: for "resp": names of commands that are not applied, but counted as dropped.
        max_line: how many bytes a line of text may have; it takes up to forty times the memory.
        sync: when the changes are durable, as in `streamkeep.open`; None for the mode of the open
            store, or "commit" for a path.
        name: the name of the source in messages; None for that of the file.
        progress: is called with a `Progress` after every batch. With rows and commands it counts
            what is stored.

    Raises:
        ArgumentError: the format is unknown, or an argument does not go with what the file holds.
        LoadError: the file is damaged, is of another format, or holds what the store refuses.
        KeyExistsError: a stream exists, and `existing` is "refuse"; nothing was loaded.
        StoreFullError: the disk is full.
        StoreError: the store cannot be opened or written.
        OSError: the file cannot be opened.
    """
    if time_column is not None and id_column is not None:
        raise ArgumentError("time_column= and id_column= cannot be used together")
    if time_column is None and time_unit is not None:
        raise ArgumentError("time_unit= needs time_column=")
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise ArgumentError(f"time_unit must be one of {', '.join(TIME_UNITS)}, not {time_unit!r}")
    for number, what in ((batch, "batch"), (from_line, "from_line"), (max_line, "max_line")):
        whole(1 if number is None else number, what, 1)
    whole(0 if database is None else database, "database", 0)
    if isinstance(source, io.TextIOBase):
        raise ArgumentError("the source is a file of text; open it in binary mode")
    if existing is not None and existing not in _EXISTING:
        raise ArgumentError(f"existing must be one of {', '.join(_EXISTING)}, not {existing!r}")
    is_file = hasattr(source, "read") and not isinstance(source, os.PathLike)
    path = None if is_file else str(path_of(source, "source"))
    kind = load_format(format, path)
    stream_key = None if key is None else to_bytes(key, "key")
    columns = tables.Columns(time_column, time_unit or "auto", id_column)
    with stores.SourceFile(source, name) as file, stores.Target(store, sync) as target:
        loading = _Loading(
            file, kind, stream_key, target, progress, existing, database, columns, sort, batch,
            from_line, texts(skip, "skip"), max_line,
        )  # fmt: skip
        try:
            return loading.run()
        except CallerError as stopped:
            raise stopped.error from None


class _Loading(Given):
    def run(self) -> LoadReport:
        self.so_far: Callable[[], Outcome] = lambda: Outcome("nothing was loaded")
        began = time.perf_counter()
        stream: Any = self.file.for_parquet() if self.kind == "parquet" else self.file.contents()
        try:
            kind = self._kind_of(stream)
        except CorruptionError as error:
            raise self._explained(error) from error
        self._check_options(kind)
        runs = {"streams": self._streams, "commands": self._commands, "rows": self._rows}
        try:
            found = runs[kind](stream)
        except (RowError, CommandFailure, OpenMulti) as error:
            raise self._explained(error) from error
        except (StreamkeepError, KeyboardInterrupt) as error:
            if isinstance(error, CorruptionError) and error.where.startswith(self.file.name):
                raise self._explained(error) from error
            told, resume, _ = self.so_far()
            why = "interrupted; " if isinstance(error, KeyboardInterrupt) else ""
            error.add_note("; ".join(filter(None, (f"{self.file.name}: {why}{told}", resume))))
            raise
        seconds = time.perf_counter() - began
        return LoadReport(self.file.name, self.kind, kind, **found, seconds=seconds)

    def _explained(self, error: Exception) -> LoadError:
        """Return the error of a file, with what is in the store and how to go on."""
        name, line = self.file.name, None
        outcome, hint, done = self.so_far()
        problem = f"{name}: {error}"
        if isinstance(error, RowError):
            problem, line = f"{name}{error.place}: {error}", error.line
            hint = error.hint or hint
        elif isinstance(error, (CommandFailure, OpenMulti)):
            line = error.number
        else:
            problem = str(error)
        if isinstance(error, CommandFailure):
            over = f"from_line={error.number + 1} leaves this command out, "
            over += f"skip={error.name} all of its name"
            hint = f"{hint}; {over}" if hint else over
        return LoadError(f"{problem}; {outcome}", source=name, line=line, done=done, hint=hint)

    def _kind_of(self, stream: Any) -> Kind:
        if self.kind == "resp":
            if stream.peek(len(_RDB_STARTS[1])).startswith(_RDB_STARTS):
                raise LoadError(
                    f"{self.file.name}: it begins as an RDB file, not with a command; "
                    "nothing was loaded",
                    source=self.file.name,
                    hint='format="rdb" loads an RDB file; if commands follow in it '
                    "(aof-use-rdb-preamble), load the RDB file that `redis-cli SAVE` writes",
                )
            return "commands"
        if self.kind in ("rdb", "dump") or (self.key is None and self.kind != "jsonl"):
            return "streams"
        if self.kind != "jsonl":
            return "rows"
        start = stream.peek(len(_DUMP_START)).removeprefix(tables.BOM).lstrip()
        start = start[: len(_DUMP_START) + 8]
        is_dump = start.replace(b" ", b"").startswith(_DUMP_START)
        if self.key is None and start and not is_dump:
            raise LoadError(
                f"{self.file.name}: not a dump: name the stream that these rows go to",
                source=self.file.name,
                hint="key=KEY names it",
            )
        return "streams" if is_dump or self.key is None else "rows"

    def _check_options(self, kind: Kind) -> None:
        """Refuse options that mean nothing for what the file brings."""
        if kind != "streams" and self.existing is not None:
            raise ArgumentError("existing= is for whole streams")
        if self.kind != "rdb" and self.database is not None:
            raise ArgumentError("database= is for RDB files")
        if kind != "commands" and self.skip:
            raise ArgumentError("skip= is for commands")
        if kind == "streams" and self.from_line is not None:
            raise ArgumentError("from_line= is for rows and commands: streams come whole")
        if kind != "rows":
            columns = {"time_column": self.columns.time, "id_column": self.columns.id}
            for one in ("time_column", "id_column", "sort", "batch"):
                if columns.get(one) or getattr(self, one, None):
                    raise ArgumentError(f"{one}= is for rows of a table")
        if kind == "commands" and self.key is not None:
            raise ArgumentError("commands name their streams: leave key= out")

    # --- whole streams ----------------------------------------------------------------------

    def _streams(self, stream: Any) -> dict[str, Any]:
        loader = WholeLoader(self)
        published = 0
        try:
            loader.read(stream)
            with stores.uninterrupted():
                published = loader.publish()
                self.so_far = lambda: Outcome("all was loaded")
        finally:
            loader.discard()
        return {
            "streams": published,
            "entries": loader.entries,
            "skipped": loader.skipped,
            "dropped": dict(loader.losses),
            "unfinished": loader.unfinished,
        }

    # --- commands ---------------------------------------------------------------------------

    def _commands(self, stream: Any) -> dict[str, Any]:
        first = self.from_line or 1
        replay = Replay(self.target, first, self.skip, self.moved)

        def so_far() -> Outcome:
            applied = max(replay.done - first + 1, 0)
            if not applied:
                return Outcome("no command was applied")
            resume = f"from_line={replay.done + 1} resumes there"
            texts = [f"{count_text(applied, 'command')} applied", *lost_texts(replay.losses)]
            return Outcome(", dropped: ".join(texts), resume, applied)

        self.so_far = so_far
        replay.run(read_commands(stream.read, self.file.name))
        entries, dropped = replay.entries, dict(replay.losses)
        return {"entries": entries, "commands": replay.done, "dropped": dropped}

    # --- rows -------------------------------------------------------------------------------

    def _rows(self, stream: Any) -> dict[str, Any]:
        assert self.key is not None
        appender = Appender(self.target, self.key, in_order=not self.sort)
        self.so_far = appender.so_far
        choice = Choice(self.key)
        first = self.from_line or 1
        found: Iterable[Row]
        if self.kind == "parquet":
            found = tables.read_parquet(stream)
        elif self.kind == "jsonl":
            found = tables.read_jsonl(stream, self.max_line, self.columns)
        else:
            assert self.kind in DELIMITERS, self.kind
            found = tables.read_csv(stream, self.kind, self.max_line, self.columns)
        rows = choice.rows(row for row in found if row.line >= first)
        if self.sort:
            rows = iter(sorted_rows(rows, lambda: self.moved(0)))
        for part in batches(rows, self.batch or BATCH):
            appender.append(part, lambda: self.moved(appender.stored))
        choice.check(may_be_empty=True)
        first_id, last_id = appender.first_id, appender.last_id
        return {"entries": appender.stored, "first_id": first_id, "last_id": last_id}


# --- rows of one stream -------------------------------------------------------------------------


def sorted_rows(rows: Iterable[Row], moved: Callable[[], None]) -> list[Row]:
    """Return all rows sorted by time or ID; rows of the same time keep their order."""
    found: list[Row] = []
    for row in rows:
        if row.ms is None:
            raise RowError(
                row.line,
                "sorting needs a time or an ID in each row",
                hint="time_column=COLUMN or id_column=COLUMN names it",
            )
        found.append(row)
        if len(found) % 1000 == 0:
            moved()
    return sorted(found, key=lambda row: (row.ms or 0, row.seq or 0))


def batches(rows: Iterable[Row], count: int) -> Iterator[list[Row]]:
    """Yield rows in lists of `count`, or of fewer that are large."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(map(len, row.flat))
        if len(batch) >= count or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Appender:
    """Appends rows to a stream, batch by batch.

    Attributes:
        stored: how many entries are in the store.
        next_line: the line after the last one that is in the store.
        first_id, last_id: of these entries.
    """

    def __init__(self, target: stores.Target, key: bytes, *, in_order: bool) -> None:
        """Append to the stream `key`; `in_order` where the rows come in the order of the file."""
        self._target = target
        self._key = key
        self._in_order = in_order
        self.stored = 0
        self.next_line = 1
        self.first_id: StreamId | None = None
        self.last_id: StreamId | None = None

    def append(self, batch: list[Row], moved: Callable[[], None]) -> None:
        """Append a batch in one transaction, then call `moved`.

        Raises:
            RowError: an ID is not above the one before; nothing of the batch is stored.
        """
        store = self._target.store()
        with stores.uninterrupted():
            try:
                with store.transaction(self._target.sync) as transaction:
                    flats = [row.flat for row in batch]
                    ids = [row.new_id for row in batch]
                    added = xadd_many(transaction.txn, self._key, flats, ids)
            except CommandError as error:
                raise self._refused(batch, error) from error
            self.stored += len(added)
            self.next_line = batch[-1].line + 1
            self.first_id = self.first_id or StreamId.parse(added[0])
            self.last_id = StreamId.parse(added[-1])
            moved()

    def _refused(self, batch: list[Row], error: CommandError) -> RowError:
        """Return the error for the first row that the stream does not take."""
        zeros = (at for at, row in enumerate(batch) if (row.ms, row.seq) == MIN_ID)  # no stream's
        at = error.entry_index if error.entry_index is not None else next(zeros, None)
        row = batch[at or 0]
        if at is None:
            problem = f"this or a later line up to {batch[-1].line}: {error.redis_error}"
            return RowError(row.line, problem)
        if row.ms is None or (at and batch[at - 1].ms is None):  # the clock gave one of the two
            return RowError(row.line, error.redis_error)
        if at:
            last = StreamId(batch[at - 1].ms or 0, batch[at - 1].seq or 0)
        else:
            store = self._target.store()
            known = store.exists(self._key) and store.xinfo_stream(self._key)
            last = StreamId.parse(known["last-generated-id"]) if known else MIN_ID
        if row.seq is None:
            problem = f"{time_text(row.ms)} is before {time_text(last.ms)}"
        else:
            problem = f"ID {row.ms}-{row.seq} is not above {last}"
        if not at and last != self.last_id:
            problem += f", the last ID of {named(self._key)}; a stream only takes newer ones"
            return RowError(row.line, problem)
        hint = "sort=True puts the file in order" if self._in_order and not self.stored else ""
        return RowError(row.line, f"{problem}, the row before; IDs must rise", hint=hint)

    def so_far(self) -> Outcome:
        if not self.stored:
            return Outcome("nothing was stored")
        text = f"{entries_text(self.stored)} stored"
        if not self._in_order:  # the stored rows are not the first lines of the file
            return Outcome(text, "", self.stored)
        resume = f"from_line={self.next_line} continues after them"
        return Outcome(f"{text}, up to line {self.next_line - 1}", resume, self.stored)
