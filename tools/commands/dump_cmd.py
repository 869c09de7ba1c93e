"""dump: streams of a store as text, tables, commands, or files for Redis."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import click

from streamkeep.engine.commands.arguments import range_end, range_start
from streamkeep.engine.commands.dump import counters_of, group_part
from streamkeep.engine.model.existing import existing_stream, group_in
from streamkeep.engine.model.group import groups_of
from streamkeep.engine.model.lag import lag
from streamkeep.engine.system.files import replacing
from streamkeep.format.core.entry import StreamId
from streamkeep.format.redis.stream_dump import NEWEST, TARGETS, Losses
from streamkeep.format.redis.stream_parts import NOBODY
from streamkeep.tools.base import output
from streamkeep.tools.base.archive_options import block_limit_option
from streamkeep.tools.base.command import (
    Bytes,
    Exit,
    Failure,
    Id,
    command,
    count_option,
    given_store,
    open_store,
    optional_store,
    refuse_options,
)
from streamkeep.tools.base.terminal import binary_output
from streamkeep.tools.transfer.dump_bytes import (
    TABLE_NAMES,
    Printer,
    print_file,
    print_node,
    print_rows,
    print_segment,
    rows_of_group,
    rows_of_table,
)
from streamkeep.tools.transfer.dump_jsonl import JsonWriter
from streamkeep.tools.transfer.dump_redis import write_commands, write_payloads, write_rdb
from streamkeep.tools.transfer.dump_source import Limits, Source
from streamkeep.tools.transfer.dump_table import write_csv, write_parquet

Format = Literal["text", "jsonl", "csv", "parquet", "resp", "dump", "rdb"]
FORMATS: Final = ("text", "jsonl", "csv", "parquet", "resp", "dump", "rdb")
SUFFIXES: Final[dict[str, Format]] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".resp": "resp",
    ".aof": "resp",
    ".dump": "dump",
    ".rdb": "rdb",
}
_BINARY: Final = ("parquet", "dump", "rdb")
_WHOLE: Final = ("dump", "rdb")
STDOUT: Final = "-"
DEFAULT_SERVER: Final = "7.2"
_MOST_PENDING: Final = 20  # of a consumer in text


def _file_option(name: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option of a file to look at."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(f"--{name}", type=kind, metavar="FILE", help=text)


@command()
@optional_store
@click.argument("key", metavar="[KEY]", required=False, type=Bytes())
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="What to write; by default the name of the output tells, else jsonl.",
)
@click.option(
    "-o",
    "--output",
    "target",
    default=STDOUT,
    metavar="FILE",
    help="Write to FILE, which appears when it is whole; - is standard output.",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists, once it is whole.")
@click.option("--start", type=Id("from"), metavar="ID", help="From this ID or time on.")
@click.option("--end", type=Id("to"), metavar="ID", help="Up to this ID or time, included.")
@count_option("At most N entries per stream, or N rows of --table.", least=0)
@click.option(
    "--history", is_flag=True, help="Also what was trimmed while the stream archived, as entries."
)
@click.option(
    "--redis",
    "server",
    type=click.Choice(list(TARGETS)),
    default=DEFAULT_SERVER,
    show_default=True,
    help="For rdb, dump and resp: the oldest Redis that is to read it; 7.2 suits Valkey.",
)
@click.option(
    "--field", "fields", type=Bytes(), multiple=True, help="For csv: this column; several times."
)
@click.option(
    "--node", type=Id(), metavar="ID", help="Look at the macro node of KEY that holds ID."
)
@click.option("--group", type=Bytes(), metavar="GROUP", help="Look at a group of KEY.")
@click.option("--table", type=click.Choice(TABLE_NAMES), help="Look at rows of a sub-database.")
@_file_option("segment", "Look at an archive segment.")
@_file_option("journal", "Look at a journal file.")
@_file_option("checkpoint", "Look at a file of checkpoints.")
@click.option("--bytes", "as_bytes", is_flag=True, help="Show every byte of it, field by field.")
@block_limit_option
def dump(
    store_path: Path | None,
    key: bytes | None,
    kind: Format | None,
    target: str,
    overwrite: bool,
    start: bytes | None,
    end: bytes | None,
    count: int | None,
    history: bool,
    server: str,
    fields: tuple[bytes, ...],
    node: bytes | None,
    group: bytes | None,
    table: str | None,
    segment: Path | None,
    journal: Path | None,
    checkpoint: Path | None,
    as_bytes: bool,
    max_block_bytes: int,
) -> None:
    """Write STORE, or its stream KEY, in another form.

    It never changes the store. All of it is of one moment, whatever others write meanwhile.

    \b
    Formats:
      jsonl    a line per entry, group, pending entry ...; loses nothing
      text     the same for people, pending entries and long values cut
      csv      a line per entry, a column per field; loses groups, counters and what
               tells an empty value from none
      parquet  the columns of the Spark data source; loses groups and counters
      resp     commands for `redis-cli --pipe`
      dump     what Redis's DUMP returns: of KEY as it is, else a line of JSON per stream
      rdb      a file that Redis starts from

    What is not jsonl or text, and older servers, have no place for all that a stream holds; what
    found none is said. `--redis 8.10` with rdb or dump loses the retention only. `streamkeep load`
    reads all but text.

    To look at how things are stored: --node, --group and --table of a store, --segment, --journal
    and --checkpoint of a file. --bytes annotates every byte; --json gives one object per field.
    Damaged bytes are shown as far as they can be read.

    \b
    Examples:
      streamkeep dump orders.store --output saved.jsonl
      streamkeep dump orders.store orders --format csv --start 2024-06-10
      streamkeep dump orders.store --format resp > orders.resp
      streamkeep dump orders.store --redis 7.0 --output saved.rdb
      streamkeep dump orders.store orders --node 1526919030474-55 --bytes
      streamkeep dump --checkpoint orders.store/steady --bytes
    """
    as_json = output.as_json()
    looks = [one for one in (node, group, table, segment, journal, checkpoint) if one is not None]
    if looks:
        if len(looks) > 1 or kind is not None or target != STDOUT:
            raise click.UsageError("--node, --group, --table, --segment, ... each stand alone")
        refuse_options(
            "is for entries that are written in another form",
            *("overwrite", "start", "end", "history", "server", "fields"),
        )
        if table is None:
            refuse_options("is for entries, and for rows of --table", "count")
        if segment is None:
            refuse_options("is for the blocks of --segment", "max_block_bytes")
        if segment or journal or checkpoint:
            refuse_options("is not for looking at a file", "store_path", "key")
        printer = Printer(as_json=as_json)
        if segment is not None:
            print_segment(segment, printer, as_bytes=as_bytes, max_block_bytes=max_block_bytes)
        elif journal is not None:
            print_file(journal, "journal", printer)
        elif checkpoint is not None:
            print_file(checkpoint, "steady", printer)
        else:
            _look(
                given_store(store_path), key, node, group, table, count, printer, as_bytes=as_bytes
            )
        printer.end()
        return
    store_path = given_store(store_path)
    refuse_options("is for the blocks of --segment", "max_block_bytes")
    if as_bytes:
        raise click.UsageError("--bytes needs --node, --group, --table, --segment, ...")
    kind = kind or SUFFIXES.get(Path(target).suffix.lower(), "jsonl")
    first, last = range_start(start or b"-"), range_end(end or b"+")
    limits = Limits(StreamId(*first), StreamId(*last), count, history)
    if (history or not limits.whole) and kind in _WHOLE:
        raise click.UsageError(
            f"--start, --end, --count and --history are not for {kind}: it is streams as they are"
        )
    if fields and kind != "csv":
        raise click.UsageError("--field is for csv")
    if as_json and target == STDOUT:
        raise click.UsageError("--json tells how it went: with --output; --format jsonl is JSON")
    if target != STDOUT and not overwrite and Path(target).is_file():
        hint = "--overwrite, or another name"
        raise Failure(f"{target}: the file exists", hint=hint, status=Exit.UNREADABLE)
    began = time.perf_counter()
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        source = Source(snapshot, key, limits)
        total = source.total()
        with (
            output.progress(str(store_path), total, sized=False) as move,
            _opened(target, kind) as out,
        ):
            source.moved = lambda entries: move(entries, entries)
            losses = Losses()
            if kind == "jsonl":
                JsonWriter(out.write).dump(source, store.uuid, round(time.time() * 1000))
            elif kind == "text":
                _TextWriter(source, out.write).dump()
            elif kind == "csv":
                write_csv(source, list(fields) or None, out.write)
            elif kind == "parquet":
                write_parquet(source, out)
            elif kind == "resp":
                losses = write_commands(source, server, out.write)
            elif kind == "dump":
                losses = write_payloads(source, server, out.write)
            else:
                losses = write_rdb(source, server, out.write)
    if source.unnamed:
        left_out = output.count_text(source.unnamed, "stream")
        output.note(f"left out: {left_out} of loads that are running or were killed")
    _report(source, target, losses, time.perf_counter() - began, as_json=as_json)


def _look(
    store_path: Path,
    key: bytes | None,
    node: bytes | None,
    group: bytes | None,
    table: str | None,
    count: int | None,
    printer: Printer,
    *,
    as_bytes: bool,
) -> None:
    """Print how something is stored."""
    if table is None and key is None:
        raise click.UsageError("--node and --group need KEY")
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        txn = snapshot.txn
        if table is not None:
            print_rows(islice(rows_of_table(txn, table, key), count), printer)
            return
        assert key is not None
        if node is not None:
            print_node(txn, key, StreamId.parse(node), printer, as_bytes=as_bytes)
        elif group is not None and as_bytes:
            print_rows(rows_of_group(txn, key, group), printer)
        elif group is not None:
            stream = existing_stream(txn, key)
            found = group_in(txn, stream, group)
            if printer.as_json:
                JsonWriter(binary_output().write).group(found)
            else:
                writer = _TextWriter(Source(snapshot, key, Limits()), binary_output().write)
                writer.group(found, lag(stream.record, found.record))


@contextmanager
def _opened(target: str, kind: Format) -> Iterator[BinaryIO]:
    """Open what is written to."""
    if target != STDOUT:
        with replacing(Path(target)) as out:
            yield out
        return
    if kind in _BINARY and sys.stdout.isatty():
        raise Failure(f"{kind} is not for a terminal", hint="--output FILE")
    out = binary_output()
    yield out
    out.flush()


def _report(source: Source, target: str, losses: Losses, seconds: float, *, as_json: bool) -> None:
    if as_json:
        output.json_summary(
            "dump",
            output=target,
            streams=source.streams,
            entries=source.entries,
            size_bytes=os.path.getsize(target) if os.path.isfile(target) else None,
            no_place=dict(losses),
            duration_ms=round(seconds * 1000),
        )
        return
    if target != STDOUT:
        rate = f"{source.entries / max(seconds, 1e-9):,.0f} entries/s"
        size = f", {output.size_text(os.path.getsize(target))}" if os.path.isfile(target) else ""
        output.note(
            f"{target}: {output.count_text(source.streams, 'stream')}, "
            f"{output.entries_text(source.entries)}{size} in {output.span_text(seconds)} ({rate})"
        )
    output.note_losses(losses)
    if losses.newer:
        output.note(f"--redis {NEWEST} has a place for more")


class _TextWriter:
    """Writes streams for people."""

    def __init__(self, source: Source, write: Callable[[bytes], object]) -> None:
        self._source = source
        self._write = write

    def _line(self, text: str) -> None:
        self._write(text.encode("utf-8", "backslashreplace") + b"\n")

    def dump(self) -> None:
        """Write all streams."""
        for stream in self._source:
            counters = counters_of(stream, 0)
            self._line(f"stream {output.named(stream.name)}")
            last = "{}-{}".format(*counters.last_id)
            deleted = "{}-{}".format(*(counters.max_deleted_id or (0, 0)))
            self._line(
                f"  {output.entries_text(counters.length)}, {counters.entries_added:,} added, "
                f"last generated ID {last}, max deleted ID {deleted}"
            )
            for ms, seq, flat in self._source.read(stream):
                pairs = list(zip(flat[0::2], flat[1::2], strict=True))
                self._line(f"  {ms}-{seq}  {output.brief_pairs(pairs)}")
            if self._source.limits.whole:
                for group in groups_of(self._source.txn, stream):
                    self.group(group, lag(stream.record, group.record))

    def group(self, group: Any, behind: int | None) -> None:
        """Write one group."""
        part = group_part(group)
        last = "{}-{}".format(*part.last_id)
        told = "unknown" if behind is None else f"{behind:,}"
        self._line(f"  group {output.named(part.name)}: last delivered ID {last}, lag {told}")
        for place, consumer in enumerate(part.consumers):
            self._line(f"    consumer {output.named(consumer.name)}")
            self._pending(part, place)
        if part.zone:
            self._line("    nobody")
            self._pending(part, NOBODY)

    def _pending(self, part: Any, place: int) -> None:
        mine = [one for one in part.pending if one.consumer == place]
        for one in islice(mine, _MOST_PENDING):
            when = f", delivered {output.time_text(one.delivery_time)}" if place != NOBODY else ""
            times = output.count_text(one.delivery_count, "time")
            self._line(f"      {one.ms}-{one.seq}  {times}{when}")
        if len(mine) > _MOST_PENDING:
            self._line(f"      and {len(mine) - _MOST_PENDING:,} more")
