"""Staged files, through which rows of Spark become entries of a store; tasks write them.

Tasks cannot share a transaction. So they write their rows into files, and the driver applies all
files in one transaction. A task does most of the work: it converts and sorts rows and makes macro
nodes. The driver decodes nodes and appends a million entries per second.

A staged file is an Arrow file, and each of its rows is a macro node with the key of its stream. If
the store gives the IDs, the nodes hold the entries in the order of the rows, under consecutive
numbers. If the rows have IDs, they ascend within a *run*, which is a range of batches of the file;
runs of one stream are merged when they are applied. Staged files are useless after the transaction,
and the folder of a job is removed as a whole.

The columns of a row are

stream          the key, unless the option `stream` gives it
id              `ms-seq`, or 16 bytes; or `ms` and `seq`; if both are there, they say the same;
                without any of these, the store gives IDs
fields          array<struct<field,value>> or map, of string or binary
any other       without `fields`: the field of that name (NAME for `field.NAME`); null is left out
ts              ignored, because the ID contains the time
store,          ignored beside `fields`: rows of a folder of segments have them
incarnation
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamkeep.arrow.batches import SchemaError
from streamkeep.arrow.casts import cast_each
from streamkeep.arrow.keys import key_of_text
from streamkeep.arrow.rows import beyond_calendar, flat_rows, is_packed, is_pairs, is_text
from streamkeep.engine.system import failpoints
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CommandError, StreamkeepError
from streamkeep.format.core.id_codec import unpack_id
from streamkeep.format.node.builder import encode_nodes
from streamkeep.pipeline.storage.places import file_system, make_folder

NODE_BYTES: Final = 16 << 10  # of nodes that are decoded again
_CHUNK_BYTES: Final = 64 << 20
_CHUNK_ROWS: Final = 250_000
_SYSTEM: Final = ("stream", "id", "ms", "seq", "ts")
_ORIGIN: Final = ("store", "incarnation")

Pairs = tuple[int, int, list[bytes]]

id_of: Final = itemgetter(0, 1)


SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.binary()),
        pa.field("ms", pa.uint64()),
        pa.field("seq", pa.uint64()),
        pa.field("node", pa.binary()),
    ]
)


class StagedFileMissingError(StreamkeepError):
    """The driver cannot find a file that a task has staged."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of one stream in a staged file: the batches from `first` to before `last`."""

    key: bytes
    first: int
    last: int
    entries: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged file of one task.

    Attributes:
        location: URI or path of the file; empty if there were no rows.
        with_ids: the entries have their own IDs.
    """

    location: str
    runs: tuple[Run, ...]
    with_ids: bool


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's cyclic collector, which would search millions of lists in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# --- rows -----------------------------------------------------------------------------------------


class RowError(StreamkeepError):
    """A row cannot become an entry; nothing was written."""


class RowReader:
    """Converts record batches of one schema to entries.

    Args:
        schema: of the rows.
        key: of the stream of all rows; None: the column `stream` has it.

    Raises:
        SchemaError: rows of this schema cannot become entries.
    """

    def __init__(self, schema: pa.Schema, key: bytes | None) -> None:
        names = schema.names
        self.key = key
        self.count = 0  # of rows so far, which serve as IDs if the rows have none
        if key is None and "stream" not in names:
            raise SchemaError(
                "the rows have no key; next: give the option 'stream', or add a column 'stream'"
            )
        if key is None and not is_text(kind := schema.field("stream").type):
            raise SchemaError(f"column 'stream' is {kind}, expected string or binary")
        self.with_ids = "id" in names or {"ms", "seq"} <= set(names)
        if not self.with_ids and ("ms" in names or "seq" in names):
            raise SchemaError(
                "an ID needs both columns 'ms' and 'seq'; next: add the other one, or drop this "
                "one to let the store give IDs"
            )
        self.has_fields = "fields" in names
        ignored = (*_SYSTEM, "fields", *(_ORIGIN if self.has_fields else ()))
        self.plain = [name for name in names if name not in ignored]
        if self.has_fields and self.plain:
            raise SchemaError(
                f"there is a column {self.plain[0]!r} and a column 'fields', but an entry takes "
                "its fields from one of them; next: drop one of the two"
            )
        if self.has_fields and not is_pairs(kind := schema.field("fields").type):
            raise SchemaError(
                f"column 'fields' is {kind}, expected array<struct<field,value>> or map, of binary "
                "or string"
            )
        if not self.has_fields and not self.plain:
            raise SchemaError("there is no column 'fields', and no other column for a field")
        for name in self.plain:
            kind = schema.field(name).type
            if pa.types.is_nested(kind):
                raise SchemaError(
                    f"column {name!r} is {kind}, but a field holds text; next: convert it with "
                    "to_json"
                )

    def read(self, batch: pa.RecordBatch) -> dict[bytes, list[Pairs]]:
        """Return the rows of a batch as entries, by stream, in order."""
        entries = list(self.fields_of(batch)) if self.has_fields else self._columns(batch)
        if not all(entries):
            at = next(at for at, pairs in enumerate(entries) if not pairs)
            raise RowError(f"row {at} of a batch has no field: all its values are null")
        ms, seq = self.ids_of(batch)
        made = list(zip(ms, seq, entries, strict=True))
        if self.key is not None:
            return {self.key: made} if made else {}
        found: dict[bytes, list[Pairs]] = {}
        column = batch.column("stream")
        if column.null_count:
            raise RowError("column 'stream' is null in a row")
        names = column.to_pylist()
        known = {one: _key_of(one) if isinstance(one, str) else one for one in set(names)}
        for key, entry in zip(map(known.__getitem__, names), made, strict=True):
            found.setdefault(key, []).append(entry)
        return found

    def ids_of(self, batch: pa.RecordBatch) -> tuple[Iterable[int], Iterable[int]]:
        if not self.with_ids:
            first = self.count + 1
            self.count += batch.num_rows
            return repeat(0, batch.num_rows), range(first, first + batch.num_rows)
        names = batch.schema.names
        halves = {
            name: _halves(batch.column(name), name) for name in ("ms", "seq") if name in names
        }
        if "id" not in names or (len(halves) == 2 and _says_the_same(batch)):
            return halves["ms"], halves["seq"]
        ids = [_parse_id(value) for value in batch.column("id").to_pylist()]
        made = {"ms": [ms for ms, _ in ids], "seq": [seq for _, seq in ids]}
        for name, numbers in halves.items():
            if numbers != made[name]:
                at = next(at for at, one in enumerate(numbers) if one != made[name][at])
                raise RowError(
                    f"column {name!r} is {numbers[at]}, which is not that of the ID "
                    f"{StreamId(*ids[at])} in column 'id'; next: drop one of the columns"
                )
        return made["ms"], made["seq"]

    def fields_of(self, batch: pa.RecordBatch) -> Iterator[list[bytes]]:
        """Return field, value, field, value, ... of each row, from column `fields`."""
        try:
            return flat_rows(batch.column("fields"))
        except ValueError as error:
            raise RowError(str(error)) from None

    def _columns(self, batch: pa.RecordBatch) -> list[list[bytes]]:
        """Return the same as `fields_of`, from one column per field."""
        names = [name.removeprefix("field.").encode() for name in self.plain]
        texts = [_as_text(batch.column(name), name) for name in self.plain]
        columns = [text.to_pylist() for text in texts]
        if not any(text.null_count for text in texts):
            width = 2 * len(names)
            flat: list[Any] = [None] * (width * batch.num_rows)
            for at, (name, column) in enumerate(zip(names, columns, strict=True)):
                flat[2 * at :: width] = repeat(name, batch.num_rows)
                flat[2 * at + 1 :: width] = column
            return [flat[at : at + width] for at in range(0, len(flat), width)]
        return [
            [part for name, value in zip(names, row, strict=True) if value is not None
             for part in (name, value)]
            for row in zip(*columns, strict=True)
        ]  # fmt: skip


def _key_of(text: str) -> bytes:
    """Return the key from a column of text, as the source writes it."""
    try:
        return key_of_text(text)
    except ValueError as error:
        raise RowError(
            f"column 'stream': {error}; next: double the backslashes, or use a column of binary"
        ) from None


def _as_text(column: Any, name: str) -> Any:
    kind = column.type
    if is_text(kind):
        return column.cast(pa.binary())
    is_time = pa.types.is_timestamp(kind)
    text = column.view(pa.timestamp(kind.unit)) if is_time else column  # needs no time zones
    text = text.cast(pa.string())
    if is_time or pa.types.is_date(kind):
        at = beyond_calendar(text)
        if at is not None:
            raise RowError(
                f"column {name!r} has {column[at].value} as {kind} in row {at} of a batch, which "
                "is in no calendar; next: make it a number or text"
            )
    if is_time and kind.tz:
        text = pc.binary_join_element_wise(text, "Z", "")
    return text.cast(pa.binary())


def _says_the_same(batch: pa.RecordBatch) -> bool:
    """Say whether the column `id` has the text of `ms` and `seq`, as rows of the source do."""
    column = batch.column("id")
    if not pa.types.is_string(column.type):
        return False
    halves = [batch.column(name).cast(pa.string()) for name in ("ms", "seq")]
    return bool(pc.all(pc.equal(column, pc.binary_join_element_wise(*halves, "-"))).as_py())


def _halves(column: Any, name: str) -> list[int]:
    if not column.null_count:
        with suppress(pa.ArrowInvalid):
            numbers: list[int] = column.cast(pa.uint64()).to_pylist()
            return numbers
    if column.null_count:
        at = column.is_null().index(True).as_py()
    else:
        at = cast_each(column, pa.uint64())[1][0]
    raise RowError(f"column {name!r} is {column[at].as_py()}, expected 0 to 2^64-1")


def _parse_id(value: Any) -> tuple[int, int]:
    if isinstance(value, bytes) and is_packed(value):
        return unpack_id(value)
    try:
        return StreamId.parse(value)
    except (CommandError, TypeError):
        raise RowError(f"column 'id' is {value!r}, expected an entry ID such as 5-0") from None


# --- files ----------------------------------------------------------------------------------------


def stage(batches: Iterable[pa.RecordBatch], folder: str, name: str, key: bytes | None) -> Staged:
    """Write rows into a file of the folder, sorted a chunk at a time; return its description."""
    reader: RowReader | None = None
    waiting: dict[bytes, list[Pairs]] = {}
    newest: dict[bytes, tuple[int, int]] = {}
    rows = size = 0

    def flush(file: _File, with_ids: bool) -> None:
        for key, entries in waiting.items():
            rises = True
            if with_ids:
                entries.sort(key=id_of)
                rises = key in newest and newest[key] < entries[0][:2]
                newest[key] = entries[-1][:2]
            file.write(key, encode_nodes(entries, NODE_BYTES), len(entries), rises)
        waiting.clear()

    with without_collector(), _File(folder, name) as file:
        for batch in batches:
            reader = RowReader(batch.schema, key) if reader is None else reader
            for found, entries in reader.read(batch).items():
                waiting.setdefault(found, []).extend(entries)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                flush(file, reader.with_ids)
                rows = size = 0
        with_ids = reader is not None and reader.with_ids
        flush(file, with_ids)
        return file.close(with_ids)


def stage_ascending(
    batches: Iterable[pa.RecordBatch], folder: str, name: str, key: bytes, node_bytes: int
) -> Staged:
    """Write rows of one stream, whose IDs rise from row to row, into a file without gathering them.

    Batches of some thousand rows are best: their entries stay in the processor's cache, which saves
    two thirds of the time.
    """
    reader: RowReader | None = None
    with without_collector(), _File(folder, name) as file:
        for batch in batches:
            reader = RowReader(batch.schema, key) if reader is None else reader
            entries = zip(*reader.ids_of(batch), reader.fields_of(batch), strict=True)
            file.write(key, encode_nodes(entries, node_bytes), batch.num_rows, True)
        return file.close(True)


class _File:
    """A staged file, which is made for its first batch."""

    def __init__(self, folder: str, name: str) -> None:
        self._location = f"{folder.rstrip('/')}/{name}"
        self._sink: Any = None
        self._file: Any = None
        self._batches = 0
        self._runs: list[Run] = []

    def __enter__(self) -> _File:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None and self._file is not None:
            with suppress(Exception):  # the first error counts
                self._file.close()
                self._sink.close()
            # If all tasks fail, nobody tells the driver's `abort` in which folder their files are.
            with suppress(Exception):  # `sweep` is left
                system, path = file_system(self._location)
                system.delete_file(path)

    def write(
        self, key: bytes, nodes: list[tuple[int, int, bytes]], entries: int, rises: bool
    ) -> None:
        """Write nodes of one stream as a batch.

        Args:
            entries: the number of entries in the nodes.
            rises: their IDs are above those written before, so the batch may continue the run.
        """
        if self._file is None:
            system, path = file_system(self._location)
            make_folder(system, path.rpartition("/")[0])
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._sink = system.open_output_stream(path)
            self._file = pa.ipc.new_file(self._sink, SCHEMA, options=options)
        columns = [
            pa.array([key] * len(nodes), pa.binary()),
            pa.array([ms for ms, _, _ in nodes], pa.uint64()),
            pa.array([seq for _, seq, _ in nodes], pa.uint64()),
            pa.array([data for _, _, data in nodes], pa.binary()),
        ]
        self._file.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        at = self._batches
        self._batches += 1
        last = self._runs[-1] if self._runs else None
        if last is not None and rises and last.key == key and last.last == at:
            self._runs[-1] = Run(key, last.first, at + 1, last.entries + entries)
        else:
            self._runs.append(Run(key, at, at + 1, entries))

    def close(self, with_ids: bool) -> Staged:
        if self._file is None:
            return Staged("", (), with_ids)
        self._file.close()
        self._sink.close()
        failpoints.hit("stage:written")
        return Staged(self._location, tuple(self._runs), with_ids)
