"""Entries as tables, for spreadsheets (CSV) and for all that computes (Parquet), and as text.

*CSV*: a line per entry, a column per field, after the columns `stream` and `id`. It does not tell
an empty value from a field that is missing; it loses the order of fields, all but the last of
fields with one name, groups and counters.

*Parquet*: the columns of the Spark data source (stream, id, ms, seq, ts, and fields as a list of
pairs in their order, duplicates included); or stream, id, ts, and a column for each chosen field.
It loses groups and counters.

*Text* is for people: long values and long lists of pending entries are cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple

from streamkeep.engine.commands.arguments import to_bytes
from streamkeep.engine.commands.dump import counters_of, group_part
from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.tables.lag import lag as lag_of
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import TransferError
from streamkeep.format.humanize import count_text, entries_text, time_text
from streamkeep.format.quoting import brief_pairs, named
from streamkeep.format.redis.stream_parts import NOBODY, GroupPart
from streamkeep.transfer.dumping.source import Source
from streamkeep.transfer.formats import ID_COLUMN, KEY_COLUMN, arrow

# --- CSV ------------------------------------------------------------------------------------------


MOST_COLUMNS: Final = 16_384  # what spreadsheets take
_LINES: Final = 500  # written at once
_special: Final = re.compile('[\r\n"]').search
_quotes: Final = re.compile('[\r\n",]').search


def write_csv(
    source: Source, fields: Sequence[bytes] | None, write: Callable[[bytes], object]
) -> None:
    """Write CSV.

    Args:
        fields: the fields that become columns; None for all, and then the entries are read twice.
    """
    if fields is None:
        moved, source.moved = source.moved, lambda entries: None
        fields = list(_names(source))
        source.moved, source.streams, source.entries = moved, 0, 0
    fields = list(dict.fromkeys(fields))  # a field that is named twice gets one column
    lines: list[str] = []
    places = {name: place for place, name in enumerate(fields)}
    empty = [""] * len(fields)

    def flush() -> None:
        write("".join(lines).encode("utf-8", "surrogateescape"))
        lines.clear()

    lines.append(_line([KEY_COLUMN, ID_COLUMN, *map(_cell, fields)]))
    for stream in source:
        key = _cell(stream.name)
        for ms, seq, flat in source.read(stream):
            cells = empty.copy()
            for name, value in zip(flat[0::2], flat[1::2], strict=True):
                place = places.get(name)
                if place is not None:
                    cells[place] = _cell(value)
            lines.append(_line([key, f"{ms}-{seq}", *cells]))
            if len(lines) >= _LINES:
                flush()
    flush()


def _line(cells: list[str]) -> str:
    """Return a line. Python's writer would leave a carriage return without quotes."""
    joined = ",".join(cells)
    if joined.count(",") == len(cells) - 1 and not _special(joined):
        return joined + "\n"
    quoted = ('"' + cell.replace('"', '""') + '"' if _quotes(cell) else cell for cell in cells)
    return ",".join(quoted) + "\n"


def _cell(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _names(source: Source) -> dict[bytes, None]:
    """Return the names of all fields, in the order in which they come."""
    names: dict[bytes, None] = {}
    for stream in source:
        for _, _, flat in source.read(stream):
            names.update(dict.fromkeys(flat[0::2]))
            if len(names) > MOST_COLUMNS:
                raise TransferError(
                    f"the entries have more than {MOST_COLUMNS:,} names of fields, which is more "
                    "columns than a table may have",
                    hint="fields=NAME chooses columns; format=jsonl takes any entry",
                )
    return names


# --- Parquet --------------------------------------------------------------------------------------


if TYPE_CHECKING:
    import pyarrow

_ROW_GROUP_BYTES: Final = 64 << 20


class Chosen(NamedTuple):
    """The fields that become columns, their types, and what becomes of values that do not fit."""

    fields: Sequence[bytes]
    types: Mapping[Any, object]
    errors: Literal["raise", "null"]
    repeated: Literal["raise", "last"]


def write_parquet(source: Source, chosen: Chosen | None, out: BinaryIO) -> None:
    """Write Parquet.

    Args:
        chosen: None for all fields, in one column.

    Raises:
        ArgumentError: a column or a type is not one.
        ValueMismatchError: a value does not fit its column.
    """
    pa = arrow()
    schema = _schema(pa, source, chosen)
    with pa.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for stream in source:
            left = source.limits.most
            gathered: list[pyarrow.RecordBatch] = []
            for batch in _batches(source, stream, schema, chosen):
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= len(batch)
                gathered.append(batch)
                source.count(len(batch))
                if sum(one.nbytes for one in gathered) > _ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(gathered, schema))
                    gathered = []
                if left == 0:
                    break
            if gathered:
                writer.write_table(pa.Table.from_batches(gathered, schema))


def _batches(
    source: Source, stream: Stream, schema: Any, chosen: Chosen | None
) -> Iterator[pyarrow.RecordBatch]:
    from streamkeep.arrow.batches import IdRangeError, RowShape, record_batches
    from streamkeep.arrow.frames import BATCH_ROWS, FrameReader

    limits = source.limits
    nodes = ([node] for node in source.nodes(stream))
    try:
        if chosen is None:
            shape = RowShape(schema, stream.name)
            yield from record_batches(shape, nodes, limits.start, limits.end)
            return
        reader = FrameReader(schema, stream.name, chosen.errors, chosen.repeated, BATCH_ROWS)
        parts = ((limits.start, chunk) for chunk in nodes)
        yield from reader.batches(parts, limits.end)
    except IdRangeError as error:  # its advice is for those who choose columns
        problem = str(error).partition("; next: ")[0]
        hint = "fields= leaves out seq, and errors=null makes a time null; jsonl and csv have "
        hint += "every ID"
        raise TransferError(problem, hint=hint) from error


def _schema(pa: Any, source: Source, chosen: Chosen | None) -> Any:
    """Return the schema; keys are binary where one of them is not its own text."""
    from streamkeep.arrow.batches import DEFAULT_SCHEMA
    from streamkeep.arrow.frames import column_of, frame_schema, given_types
    from streamkeep.arrow.keys import key_text

    schema = DEFAULT_SCHEMA
    if chosen is not None:
        columns = [KEY_COLUMN, "id", "ts", *map(column_of, chosen.fields)]
        given = given_types(chosen.types).items()
        types = {column_of(to_bytes(name)): kind for name, kind in given}
        schema = frame_schema(columns, types)
    if any(key_text(name).encode() != name for name in source.names()):
        return schema.set(0, pa.field(KEY_COLUMN, pa.binary()))
    return schema


# --- text -----------------------------------------------------------------------------------------


_MOST_PENDING: Final = 20  # of a consumer


class TextWriter:
    def __init__(self, source: Source, write: Callable[[bytes], object]) -> None:
        self._source = source
        self._write = write

    def _line(self, text: str) -> None:
        self._write(text.encode("utf-8", "backslashreplace") + b"\n")

    def dump(self) -> None:
        for stream in self._source:
            counters = counters_of(stream, 0)
            self._line(f"stream {named(stream.name)}")
            last = "{}-{}".format(*counters.last_id)
            deleted = "{}-{}".format(*(counters.max_deleted_id or (0, 0)))
            self._line(
                f"  {entries_text(counters.length)}, {counters.entries_added:,} added, "
                f"last generated ID {last}, max deleted ID {deleted}"
            )
            for ms, seq, flat in self._source.read(stream):
                pairs = list(zip(flat[0::2], flat[1::2], strict=True))
                self._line(f"  {ms}-{seq}  {brief_pairs(pairs)}")
            if self._source.limits.whole:
                for group in groups_of(self._source.txn, stream):
                    self.group(group, lag_of(stream.record, group.record))

    def group(self, group: Group, lag: int | None) -> None:
        part = group_part(group)
        last = "{}-{}".format(*part.last_id)
        told = "unknown" if lag is None else f"{lag:,}"
        self._line(f"  group {named(part.name)}: last delivered ID {last}, lag {told}")
        for place, consumer in enumerate(part.consumers):
            self._line(f"    consumer {named(consumer.name)}")
            self._pending(part, place)
        if part.zone:
            self._line("    nobody")
            self._pending(part, NOBODY)

    def _pending(self, part: GroupPart, place: int) -> None:
        mine = [one for one in part.pending if one.consumer == place]
        for one in islice(mine, _MOST_PENDING):
            when = f", delivered {time_text(one.delivery_time)}" if place != NOBODY else ""
            times = count_text(one.delivery_count, "time")
            self._line(f"      {one.ms}-{one.seq}  {times}{when}")
        if len(mine) > _MOST_PENDING:
            self._line(f"      and {len(mine) - _MOST_PENDING:,} more")
