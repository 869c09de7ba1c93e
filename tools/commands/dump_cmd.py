"""dump: streams of a store as text, tables, commands, or files for Redis; and bytes, annotated."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final, Literal

import click

from streamkeep.format import quoting
from streamkeep.format.core import errors
from streamkeep.format.core.json_form import json_pairs
from streamkeep.format.humanize import count_text, entries_text, size_text
from streamkeep.format.redis.stream_dump import NEWEST, TARGETS
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES
from streamkeep.tools.base import arguments, common, output
from streamkeep.tools.base.arguments import EntryId, From, Natural, StorePath, To
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Failure
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.base.terminal import binary_output
from streamkeep.tools.commands.archive_cmd import BlockLimit
from streamkeep.transfer import DumpFormat, Heading, Slot
from streamkeep.transfer import dump as dump_file
from streamkeep.transfer.dump_file import DEFAULT_REDIS, dump_group
from streamkeep.transfer.formats import BINARY_FORMATS, dump_format
from streamkeep.transfer.inspection import (
    TABLE_NAMES,
    Item,
    inspect_checkpoints,
    inspect_group,
    inspect_journal,
    inspect_node,
    inspect_segment,
    inspect_table,
)

STDOUT: Final = "-"
_HEX: Final = 16  # bytes of a field that are shown


File = Annotated[Path, click.Path(exists=True, dir_okay=False, path_type=Path)]


@dataclass
class Written:
    """How entries are written in another format.

    Args:
        overwrite: Replace FILE if it exists, when it is complete.
        start: From this ID or time on.
        end: Up to this ID or time, included.
        history: Also entries that were trimmed while the stream archived.
        redis: For rdb, dump and resp: the oldest Redis that will read it; 7.2 is right for Valkey.
        fields (--field): For csv and parquet: this field becomes a column, others are left out. May
            be repeated.
        errors: For parquet: what becomes of a value that is not of its --type.
        repeated: For parquet: what becomes of a --field that an entry has more than once.
    """

    overwrite: bool = False
    start: From | None = None
    end: To | None = None
    history: bool = False
    redis: Annotated[str, click.Choice(list(TARGETS))] = DEFAULT_REDIS
    fields: tuple[bytes, ...] = ()
    errors: Literal["raise", "null"] = "raise"
    repeated: Literal["raise", "last"] = "raise"


@command(stops=True)
def dump(
    *,
    store_path: StorePath | None = None,
    key: bytes | None = None,
    format: DumpFormat | None = None,
    target: str = STDOUT,
    count: Natural | None = None,
    types: tuple[bytes, ...] = (),
    node: EntryId | None = None,
    group: bytes | None = None,
    table: Annotated[str, click.Choice(TABLE_NAMES)] | None = None,
    segment: File | None = None,
    journal: File | None = None,
    checkpoint: File | None = None,
    as_bytes: bool = False,
    max_block_bytes: BlockLimit = MAX_BLOCK_BYTES,
    written: Written,
) -> None:
    """Write STORE, or its stream KEY, in another format.

    The store does not change. The dump is of one moment, while other processes may write.

    Formats:
      jsonl    a line per entry, group, pending entry ...; loses nothing
      text     the same for people; pending entries and long values are cut
      csv      a line per entry, a column per field; loses groups, counters and the
               difference between an empty value and a missing one
      parquet  the columns of the Spark data source, or those of --field; loses
               groups and counters
      resp     commands for `redis-cli --pipe`
      dump     what Redis's DUMP returns: of KEY as it is, else a line of JSON per stream
      rdb      a file that Redis starts from

    Other formats than jsonl and text, and older Redis versions, cannot hold everything. What they
    drop beside that is listed on standard error; rdb and dump for `--redis 8.10`: the retention.
    No format has times to live or the rows of queues and programs, such as jobs that are delayed.
    `streamkeep load` reads all formats except text.

    The other options show how things are stored: --node, --group and --table in a store, --segment,
    --journal and --checkpoint in a file. --bytes annotates every byte; --json gives one object per
    field. Damaged bytes are shown as far as they can be read.

    Examples:
      streamkeep dump orders.store --output saved.jsonl
      streamkeep dump orders.store orders --format csv --start 2024-06-10
      streamkeep dump orders.store orders -o orders.parquet --field sku --field n --type n=int64
      streamkeep dump orders.store --format resp > orders.resp
      streamkeep dump orders.store --redis 7.0 --output saved.rdb
      streamkeep dump orders.store orders --node 1526919030474-55 --bytes
      streamkeep dump --checkpoint orders.store/steady --bytes

    Args:
        format: What to write; by default the name of the output gives it, or else it is jsonl.
        target (-o --output FILE): Write to FILE, which appears when it is complete; - is standard
            output.
        count (-n N): At most N entries per stream, or N rows of --table.
        types (--type FIELD=TYPE): For parquet: the type of a --field, such as count=int64; by
            default text.
        node: Show the macro node of KEY that holds ID.
        group (GROUP): Show a group of KEY.
        table: Show rows of a sub-database.
        segment (FILE): Show an archive segment.
        journal (FILE): Show a log file of the journal.
        checkpoint (FILE): Show a file of checkpoints.
        as_bytes (--bytes): Show every byte of it, field by field.
    """
    looks = [one for one in (node, group, table, segment, journal, checkpoint) if one is not None]
    if looks:
        if len(looks) > 1 or format is not None or target != STDOUT:
            raise click.UsageError(
                "--node, --group, --table, --segment, --journal and --checkpoint show one thing, "
                "and do not go with --format and --output"
            )
        arguments.refuse_options(
            "is for entries that are written in another format",
            *(one.name for one in fields(Written)),
            "types",
        )
        if table is None:
            arguments.refuse_options("is for entries and for rows of --table", "count")
        if segment is None:
            arguments.refuse_options("is for the blocks of --segment", "max_block_bytes")
        if segment or journal or checkpoint:
            arguments.refuse_options("does not go with a file that is shown", "store_path", "key")
        if segment is not None:
            _print(inspect_segment(segment, as_bytes=as_bytes, max_block_bytes=max_block_bytes))
        elif journal is not None:
            _print(inspect_journal(journal))
        elif checkpoint is not None:
            _print(inspect_checkpoints(checkpoint))
        else:
            path = arguments.given_store(store_path)
            if table is None and key is None:
                raise click.UsageError("--node and --group need KEY")
            with open_store(path, readonly=True) as store:
                if table is not None:
                    _print(inspect_table(store, table, key=key, count=count))
                elif key is not None and node is not None:
                    _print(inspect_node(store, key, node, as_bytes=as_bytes))
                elif key is not None and group is not None and as_bytes:
                    _print(inspect_group(store, key, group))
                elif key is not None and group is not None:
                    form: Literal["jsonl", "text"] = "jsonl" if common.as_json() else "text"
                    dump_group(store, binary_output(), key, group, format=form)
                    output.done(damaged=0)
        return
    store_path = arguments.given_store(store_path)
    arguments.refuse_options("is for the blocks of --segment", "max_block_bytes")
    if as_bytes:
        raise click.UsageError("--bytes needs --node, --group, --table, --segment, ...")
    if common.as_json() and target == STDOUT:
        raise click.UsageError(
            "--json prints a summary and needs --output; for the data as JSON use --format jsonl"
        )
    chosen: DumpFormat = format or "jsonl"
    if format is None and Path(target).suffix:
        try:
            chosen = dump_format(None, target)
        except errors.ArgumentError as error:
            raise click.UsageError(f"{error}, as in --format jsonl") from error
    if target == STDOUT and chosen in BINARY_FORMATS and sys.stdout.isatty():
        raise Failure(f"{chosen} is not for a terminal", hint="--output FILE")
    types_of = {}
    for text in types:
        field, equals, kind = text.rpartition(b"=")
        if not equals:
            shown = quoting.shown(text)
            raise click.UsageError(f"--type {shown} is not FIELD=TYPE, such as n=int64")
        types_of[field] = kind.decode("utf-8", "replace")
    sink = target if target != STDOUT else binary_output()  # before rich takes over the stream
    with (
        open_store(store_path, readonly=True) as store,
        output.progress(str(store_path), "entries") as advance,
        arguments.as_of_library(),
    ):
        report = dump_file(
            store,
            sink,
            format=chosen,
            keys=None if key is None else [key],
            count=count,
            types=types_of or None,
            progress=lambda one: advance(one.done, one.total, one.entries),
            **{**vars(written), "fields": written.fields or None},
        )
    if report.unfinished:
        left_out = count_text(report.unfinished, "stream")
        output.note(f"left out: {left_out} of loads that are running or were killed")
    rate = f"{report.entries / max(report.seconds, 1e-9):,.0f} entries/s"
    size = "" if report.size_bytes is None else f", {size_text(report.size_bytes)}"
    counts = f"{count_text(report.streams, 'stream')}, {entries_text(report.entries)}{size}"
    said = f"{target}: {counts} in {output.span_text(report.seconds)} ({rate})"
    output.total(
        "" if target == STDOUT else said,
        output=target,
        streams=report.streams,
        entries=report.entries,
        size_bytes=report.size_bytes,
        dropped=report.dropped,
        duration_ms=round(report.seconds * 1000),
    )
    if not common.as_json():
        output.note_losses(report.dropped)
        if report.newer_keeps_more:
            output.note(f"next: --redis {NEWEST} keeps more")


def _print(items: Iterable[Item]) -> None:
    damaged = 0
    for item in items:
        if isinstance(item, Heading):
            output.item(item.kind, item.text, **item.members)
        elif isinstance(item, Slot):
            output.item(
                "slot",
                f"{item.number:>4}  {item.state:<7}  {item.id}  {quoting.brief_pairs(item.pairs)}",
                slot=item.number,
                id=str(item.id),
                state=item.state,
                same_fields=item.same_fields,
                fields=json_pairs(item.pairs),
            )
        else:
            damaged += item.name == "damage"
            size = len(item.data)
            place = f"{item.offset}-{item.offset + max(size, 1) - 1}"
            cut = item.data[:_HEX].hex() + (".." if size > _HEX else "")
            value = quoting.shown(item.value.encode()) if item.value else ""
            output.item(
                "field",
                f"{place:>11}  {cut:<34} {item.name:<24} {value}".rstrip(),
                offset=item.offset,
                size=size,
                hex=item.data.hex(),
                name=item.name,
                value=item.value,
            )
    output.done(damaged=damaged)
