"""From rows of Spark to entries of a store, by way of staged files.

Tasks cannot share a transaction, so they write what they were given into files, and the driver
applies all files in one. A task does as much of the work as it can: it takes rows apart, makes
macro nodes of them, and sorts. The driver unpacks nodes and appends, a million entries a second.

A staged file is an Arrow file; a row is a macro node with the key of its stream. Where IDs are the
store's to give, its nodes hold entries in the order of the rows, under IDs that count. Where rows
bring their IDs, they ascend within a *run*, a range of the file's batches; runs of one stream
are merged when they are applied. Staged files are worth nothing once the transaction has ended,
either way, and the folder of a job is removed as a whole.

Columns of what is written:

    stream          key; or the option `stream`
    id              `ms-seq`, or 16 bytes; or `ms` and `seq`; or none of them: the store gives IDs
    fields          array<struct<field,value>> or map, of string or binary; or, without it,
    any other       becomes the field of that name (or NAME, for `field.NAME`); null is left out
    ts              is left aside: an ID holds the time

Files are reached through `pyarrow.fs`: a path, or a URI that all hosts of a cluster understand.
"""

from __future__ import annotations

import gc
import heapq
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice, pairwise, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs

from streamkeep.engine import failpoints
from streamkeep.engine.append import EXPLICIT, NewId, xadd_many
from streamkeep.engine.txn import WriteTxn
from streamkeep.format.entry import StreamId
from streamkeep.format.errors import CommandError, IdTooSmallError, StreamkeepError
from streamkeep.format.node import PAIRS, Range, encode_nodes, read_range
from streamkeep.pipeline.arrow import SchemaError

NODE_BYTES: Final = 16 << 10
_CHUNK_BYTES: Final = 64 << 20
_CHUNK_ROWS: Final = 250_000
_APPLY_ENTRIES: Final = 10_000
_STALE_S: Final = 7 * 24 * 3600
_TOP: Final = (1 << 64) - 1

_SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.binary()),
        pa.field("ms", pa.uint64()),
        pa.field("seq", pa.uint64()),
        pa.field("node", pa.binary()),
    ]
)

Pairs = tuple[int, int, list[bytes]]
_id_of: Final = itemgetter(0, 1)


class RowError(StreamkeepError):
    """A row that cannot become an entry; nothing was written."""


class StagedFileMissingError(StreamkeepError):
    """A file that a task has staged is not to be found by the driver."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of one stream in a staged file: batches from `first` to before `last`."""

    key: bytes
    first: int
    last: int
    entries: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task has staged.

    Attributes:
        location: URI or path of the file; empty when there was nothing to write.
        with_ids: the entries bring their IDs.
    """

    location: str
    runs: tuple[Run, ...]
    with_ids: bool


# --- rows to pairs --------------------------------------------------------------------------------


class RowReader:
    """Takes record batches of one schema apart.

    Args:
        schema: of the rows.
        key: of the stream that all rows go to; None: column `stream` says.

    Raises:
        SchemaError: rows of this schema cannot become entries.
    """

    def __init__(self, schema: pa.Schema, key: bytes | None) -> None:
        names = schema.names
        self.key = key
        self.count = 0  # of rows so far; they count as IDs where there are none
        if key is None and "stream" not in names:
            raise SchemaError("where to write is missing: the option 'stream', or such a column")
        self.with_ids = "id" in names or {"ms", "seq"} <= set(names)
        if not self.with_ids and ("ms" in names or "seq" in names):
            raise SchemaError(
                "an ID needs both columns 'ms' and 'seq'; drop the one to have the store give IDs"
            )
        self.plain = [name for name in names if name not in _SYSTEM and name != "fields"]
        self.has_fields = "fields" in names
        if self.has_fields and self.plain:
            raise SchemaError(
                f"column {self.plain[0]!r} beside column 'fields': drop the one, or the other"
            )
        if self.has_fields:
            _check_fields(schema.field("fields").type)
        elif not self.plain:
            raise SchemaError("there is no column 'fields', and no other that could be a field")
        for name in self.plain:
            kind = schema.field(name).type
            if pa.types.is_nested(kind):
                raise SchemaError(
                    f"column {name!r} is {kind}: a field holds text; to_json makes such of it"
                )

    def read(self, batch: pa.RecordBatch) -> dict[bytes, list[Pairs]]:
        """Return the rows of a batch as entries, by stream, in order; IDs count where there are
        none.
        """
        entries = self._fields(batch) if self.has_fields else self._columns(batch)
        if not all(entries):
            at = next(at for at, pairs in enumerate(entries) if not pairs)
            raise RowError(f"row {at} of a batch has no field that is not null")
        ms, seq = self._ids(batch)
        made = list(zip(ms, seq, entries, strict=True))
        if self.key is not None:
            return {self.key: made} if made else {}
        found: dict[bytes, list[Pairs]] = {}
        keys = batch.column("stream").cast(pa.binary())
        if keys.null_count:
            raise RowError("column 'stream' is null in a row")
        for key, entry in zip(keys.to_pylist(), made, strict=True):
            found.setdefault(key, []).append(entry)
        return found

    def _ids(self, batch: pa.RecordBatch) -> tuple[Iterable[int], Iterable[int]]:
        """Return the two halves of the IDs."""
        if not self.with_ids:
            first = self.count + 1
            self.count += batch.num_rows
            return repeat(0, batch.num_rows), range(first, first + batch.num_rows)
        names = batch.schema.names
        if "ms" in names and "seq" in names:
            return _halves(batch.column("ms"), "ms"), _halves(batch.column("seq"), "seq")
        ids = [_parse_id(value) for value in batch.column("id").to_pylist()]
        return [ms for ms, _ in ids], [seq for _, seq in ids]

    def _fields(self, batch: pa.RecordBatch) -> list[list[bytes]]:
        """Return field, value, field, value, ... of each row, from column `fields`."""
        column = batch.column("fields")
        offsets = column.offsets.to_pylist()
        if column.null_count:
            raise RowError("column 'fields' is null in a row")
        if pa.types.is_map(column.type):
            names, values = column.keys, column.items
        else:
            names, values = (column.values.field(at) for at in (0, 1))
        first, last = offsets[0], offsets[-1]
        parts = [one.slice(first, last - first).cast(pa.binary()) for one in (names, values)]
        if parts[0].null_count or parts[1].null_count:
            raise RowError("a field or value in column 'fields' is null")
        flat: list[Any] = [None] * (2 * (last - first))
        flat[0::2], flat[1::2] = (one.to_pylist() for one in parts)
        return [flat[2 * (start - first) : 2 * (stop - first)] for start, stop in pairwise(offsets)]

    def _columns(self, batch: pa.RecordBatch) -> list[list[bytes]]:
        """Return the same from one column per field."""
        names = [name.removeprefix("field.").encode() for name in self.plain]
        texts = [_as_text(batch.column(name)) for name in self.plain]
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


_SYSTEM: Final = ("stream", "id", "ms", "seq", "ts")


def _check_fields(kind: pa.DataType) -> None:
    texts = (pa.types.is_binary, pa.types.is_string)
    if pa.types.is_map(kind):
        parts = [kind.key_type, kind.item_type]
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        parts = [part.type for part in kind.value_type]
    else:
        parts = []
    if len(parts) != 2 or not all(any(test(part) for test in texts) for part in parts):
        raise SchemaError(
            f"column 'fields' is {kind}: array<struct<field,value>> or map, of binary or string, "
            "is expected"
        )


def _as_text(column: Any) -> Any:
    """Return a column as stored values hold it."""
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_timestamp(kind):
        text = column.view(pa.timestamp(kind.unit)).cast(pa.string())  # needs no time zones
        return (pc.binary_join_element_wise(text, "Z", "") if kind.tz else text).cast(pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def _halves(column: Any, name: str) -> list[int]:
    """Return one half of all IDs."""
    if not column.null_count:
        with suppress(pa.ArrowInvalid):
            numbers: list[int] = column.cast(pa.uint64()).to_pylist()
            return numbers
    bad = next(one for one in column.to_pylist() if one is None or not 0 <= one <= _TOP)
    raise RowError(f"column {name!r} is {bad}, 0 to 2^64-1 expected")


def _parse_id(value: Any) -> tuple[int, int]:
    if isinstance(value, bytes) and len(value) == 16:
        return int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")
    try:
        return StreamId.parse(value)
    except (CommandError, TypeError):
        raise RowError(f"column 'id' is {value!r}, an entry ID such as 5-0 is expected") from None


# --- in a task ------------------------------------------------------------------------------------


def stage(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    name: str,
    key: bytes | None,
    node_bytes: int = NODE_BYTES,
) -> Staged:
    """Write rows into a file of the folder; return what is in it.

    Args:
        node_bytes: the most bytes of a node; the default suits nodes that are unpacked again.
    """
    writer: _Writer | None = None
    try:
        with _without_collector():
            for batch in batches:
                if writer is None:
                    writer = _Writer(RowReader(batch.schema, key), folder, name, node_bytes)
                writer.add(batch)
            return Staged("", (), False) if writer is None else writer.close()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python from looking for cycles among millions of lists, which have none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Writer:
    """A staged file being written."""

    def __init__(self, reader: RowReader, folder: str, name: str, node_bytes: int) -> None:
        self.reader = reader
        self._node_bytes = node_bytes
        self.location = f"{folder.rstrip('/')}/{name}"
        system, path = file_system(self.location)
        system.create_dir(str(Path(path).parent), recursive=True)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._sink = system.open_output_stream(path)
        self._file = pa.ipc.new_file(self._sink, _SCHEMA, options=options)
        self._waiting: dict[bytes, list[Pairs]] = {}
        self._rows = self._bytes = 0
        self._batches = 0
        self._runs: list[Run] = []
        self._newest: dict[bytes, tuple[int, int]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; write when enough have come together."""
        for key, entries in self.reader.read(batch).items():
            self._waiting.setdefault(key, []).extend(entries)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        for key, entries in self._waiting.items():
            if self.reader.with_ids:
                entries.sort(key=_id_of)
            self._write(key, entries)
        self._waiting.clear()
        self._rows = self._bytes = 0

    def _write(self, key: bytes, entries: list[Pairs]) -> None:
        """Write one stream's entries as a batch of nodes; they continue the run before, or begin
        one.
        """
        nodes = encode_nodes(entries, self._node_bytes)
        columns = [
            pa.array([key] * len(nodes), pa.binary()),
            pa.array([ms for ms, _, _ in nodes], pa.uint64()),
            pa.array([seq for _, seq, _ in nodes], pa.uint64()),
            pa.array([data for _, _, data in nodes], pa.binary()),
        ]
        self._file.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        at = self._batches
        self._batches += 1
        last = self._runs[-1] if self._runs else None
        follows = last is not None and last.key == key and last.last == at
        if self.reader.with_ids:
            follows = follows and self._newest[key] < entries[0][:2]
            self._newest[key] = entries[-1][:2]
        if last is not None and follows:
            self._runs[-1] = Run(key, last.first, at + 1, last.entries + len(entries))
        else:
            self._runs.append(Run(key, at, at + 1, len(entries)))

    def close(self) -> Staged:
        """Finish the file."""
        self._flush()
        self._file.close()
        self._sink.close()
        failpoints.hit("stage:written")
        return Staged(self.location, tuple(self._runs), self.reader.with_ids)

    def abandon(self) -> None:
        """Let go of the file; it is removed with its folder."""
        with suppress(Exception):
            self._file.close()
            self._sink.close()


# --- on the driver --------------------------------------------------------------------------------


def apply_staged(txn: WriteTxn, staged: list[Staged]) -> dict[bytes, int]:
    """Append what tasks have staged; return how many entries by stream.

    Raises:
        IdTooSmallError: an ID is not above those of its stream, or comes twice.
        StagedFileMissingError: the driver does not see what a task has written.
    """
    files = {one.location: _open_staged(one.location) for one in staged if one.location}
    by_key: dict[bytes, list[tuple[Any, Run]]] = {}
    with_ids = any(one.with_ids for one in staged)
    for one in staged:
        for run in one.runs:
            by_key.setdefault(run.key, []).append((files[one.location], run))
    added: dict[bytes, int] = {}
    for key, runs in by_key.items():
        sources = [chain.from_iterable(_nodes(reader, run)) for reader, run in runs]
        if with_ids:
            entries: Iterator[Pairs] = heapq.merge(*sources, key=_id_of)
        else:
            entries = chain.from_iterable(sources)
        expected = sum(run.entries for _, run in runs)
        with _without_collector():
            added[key] = _append(txn, key, entries, with_ids)
        if added[key] != expected:
            raise StreamkeepError(
                f"stream {key!r}: {expected} entries were staged, {added[key]} were read back"
            )
    return added


def staged_nodes(one: Staged) -> Iterator[tuple[int, int, bytes]]:
    """Yield the nodes of a staged file, as they stand there: key, and listpack."""
    if not one.location:
        return
    reader = _open_staged(one.location)
    for run in one.runs:
        for at in range(run.first, run.last):
            batch = reader.get_batch(at)
            columns = (batch.column(name).to_pylist() for name in ("ms", "seq", "node"))
            yield from zip(*columns, strict=True)


def _append(txn: WriteTxn, key: bytes, entries: Iterator[Pairs], with_ids: bool) -> int:
    done = 0
    while True:
        part = list(islice(entries, _APPLY_ENTRIES))
        if not part:
            return done
        ids = [NewId(EXPLICIT, ms, seq) for ms, seq, _ in part] if with_ids else None
        try:
            xadd_many(txn, key, [pairs for _, _, pairs in part], ids)
        except IdTooSmallError as error:
            ms, seq, _ = part[error.entry_index or 0]
            raise IdTooSmallError(
                f"stream {key!r}: entry {ms}-{seq} is not above the newest one; IDs must be new, "
                "and none may come twice. Without the columns id, ms and seq the store gives them"
            ) from error
        done += len(part)


def _nodes(reader: Any, run: Run) -> Iterator[list[Pairs]]:
    """Yield the entries of a run, a node at a time."""
    for at in range(run.first, run.last):
        batch = reader.get_batch(at)
        for ms, seq, data in zip(
            *(batch.column(name).to_pylist() for name in ("ms", "seq", "node")), strict=True
        ):
            out: list[Any] = []
            wanted = Range(0, 0, _TOP, _TOP, 1 << 40, False, int(PAIRS))
            read_range(data, ms, seq, wanted, out)
            yield out


def _open_staged(location: str) -> Any:
    system, path = file_system(location)
    try:
        return pa.ipc.open_file(system.open_input_file(path))
    except FileNotFoundError:
        raise StagedFileMissingError(
            f"{location}: a task has staged it, and the driver cannot see it; on a cluster, set "
            "the option 'stagingPath' to a folder that all hosts share"
        ) from None


# --- folders --------------------------------------------------------------------------------------


def file_system(location: str) -> tuple[Any, str]:
    """Return the file system of a path or URI, and the path in it."""
    if "://" in location:
        found, path = pa.fs.FileSystem.from_uri(location)
        return found, path
    return pa.fs.LocalFileSystem(), location


def new_folder(staging: str) -> str:
    """Return the name of a new job's folder; it is made with the first file."""
    return f"{staging.rstrip('/')}/{time.time_ns() // 10**9:012d}-{uuid.uuid4().hex}"


def remove_folder(location: str) -> None:
    """Remove the folder of a job, with the files of failed attempts in it."""
    system, path = file_system(location)
    with suppress(FileNotFoundError):
        system.delete_dir(path)


def sweep(staging: str, *, now_s: float | None = None) -> int:
    """Remove the folders that jobs have left which died a week ago; return how many."""
    system, path = file_system(staging)
    selector = pa.fs.FileSelector(path, allow_not_found=True)
    limit = (time.time() if now_s is None else now_s) - _STALE_S
    removed = 0
    for info in system.get_file_info(selector):
        began, dash, _ = info.base_name.partition("-")
        if dash and began.isdigit() and int(began) < limit:
            remove_folder(f"{staging.rstrip('/')}/{info.base_name}")
            removed += 1
    return removed
