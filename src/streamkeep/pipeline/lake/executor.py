"""Reading and writing the Parquet files of a lake, inside a worker.

A file ends at the end of a day, or when it is large enough. Row groups have about a million rows;
smaller ones would take a quarter more space. IDs are delta-encoded, which makes them five times
smaller than text. A file is written under a temporary name, which no reader and no other job uses.
When it is complete, it gets its name, which contains the IDs of its range.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import xxhash

from streamkeep.arrow.casts import converter
from streamkeep.arrow.keys import key_of_text, key_text
from streamkeep.engine.system import failpoints
from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.lake import files
from streamkeep.pipeline.lake.files import PARTITIONS
from streamkeep.pipeline.storage import places

FILE_BYTES: Final = 256 << 20  # of rows in memory, about ten times as much as on disk
_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 128 << 20
_DAY_MS: Final = 86_400_000
_LEVEL: Final = 3
_BATCH_ROWS: Final = 65_536
_DELTA: Final = ("incarnation", "ms", "seq", "ts")
_TEXT: Final = pa.dictionary(pa.int8(), pa.string())
_CONSTANTS: Final = (
    pa.field("store", _TEXT),
    pa.field("stream", _TEXT),
    pa.field("incarnation", pa.int64()),
)


class _Sink:
    def __init__(self, stream: pa.NativeFile) -> None:
        self.digest = xxhash.xxh3_64()
        self.size = 0
        self.closed = False
        self._stream = stream

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        self._stream.write(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: only the complete file matters."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


class FileWriter:
    """Writes the entries of one stream, in ascending order, into files by day.

    Args:
        root: of the lake in the file system.
        origin: of the entries; the files have it in columns of their own.
        schema: of the entries: that of the files without these columns.
        file_bytes: the size at which a file ends, in bytes of rows in memory. None: it ends only
            with the day.
    """

    def __init__(
        self,
        system: pafs.FileSystem,
        root: str,
        origin: files.Origin,
        schema: pa.Schema,
        file_bytes: int | None = FILE_BYTES,
    ) -> None:
        self._file_bytes = file_bytes
        self.files: list[files.LakeFile] = []
        self._system = system
        self._root = root
        self._origin = origin
        self._schema = schema
        self._day: str | None = None
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._sink: _Sink | None = None
        self._draft = ""
        self._entries = 0
        self._written = 0
        self._first = self._last = StreamId(0, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        for start, stop in _days(batch):
            part = batch.slice(start, stop - start)
            first = id_at(part, 0)
            day = files.day_of(first.ms)
            full = self._file_bytes is not None and self._written >= self._file_bytes
            if self._entries and (day != self._day or full):
                self._end_file()
            if not self._entries:
                self._day, self._first = day, first
            self._waiting.append(part)
            self._rows += len(part)
            self._bytes += part.nbytes
            self._entries += len(part)
            self._last = id_at(part, len(part) - 1)
            if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
                self._end_group()

    def close(self) -> list[files.LakeFile]:
        if self._entries:
            self._end_file()
        return self.files

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Remove all written files, after a failure."""
        if kind is None:
            return
        if self._writer is not None:
            self._close_draft()
            self._system.delete_file(self._draft)
        for file in self.files:
            self._system.delete_file(f"{self._root}/{file.path}")

    def _close_draft(self) -> tuple[int, str]:
        """End the file being written; return its size and checksum."""
        assert self._writer is not None
        assert self._sink is not None
        self._writer.close()
        self._sink.close()
        size, checksum = self._sink.size, self._sink.digest.hexdigest()
        self._writer = self._sink = None
        return size, checksum

    def _end_group(self) -> None:
        if self._writer is None:
            folder = f"{self._root}/{files.folder_of(self._origin, self._day)}"
            places.make_folder(self._system, folder)
            self._draft = f"{folder}/_{uuid.uuid4().hex}.draft"
            self._sink = _Sink(self._system.open_output_stream(self._draft, compression=None))
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                pa.schema([*_CONSTANTS, *self._schema]),
                compression="zstd",
                compression_level=_LEVEL,
                use_dictionary=[
                    n for n in ("store", "stream", *self._schema.names) if n not in _DELTA
                ],
                column_encoding={name: "DELTA_BINARY_PACKED" for name in _DELTA},
                store_schema=False,  # it would say that the constants are dictionaries
            )
        table = _with_origin(
            pa.Table.from_batches(self._waiting, schema=self._schema), self._origin
        )
        self._writer.write_table(table, row_group_size=len(table))
        self._written += self._bytes
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _end_file(self) -> None:
        if self._rows:
            self._end_group()
        size, checksum = self._close_draft()
        path = files.new_path(self._origin, self._day, self._first, self._last, checksum)
        target = f"{self._root}/{path}"
        if isinstance(self._system, pafs.LocalFileSystem):
            places.sync_file(self._draft)  # a power loss must not empty a file that a commit names
        failpoints.hit("lake:file-written")
        self._system.move(self._draft, target)
        places.check_written(self._root, self._system, target, size)
        failpoints.hit("lake:file-named")
        file = files.LakeFile(
            path, self._origin, self._day, self._entries, size, self._first, self._last
        )
        self.files.append(file)
        self._entries = self._written = 0


def _with_origin(rows: pa.Table, origin: files.Origin) -> pa.Table:
    """Return rows with the columns of their origin, as dictionaries, which are fast to write."""
    zeros = pa.repeat(pa.scalar(0, pa.int8()), len(rows))
    columns = [
        pa.DictionaryArray.from_arrays(zeros, pa.array([text]))
        for text in (origin.store, key_text(origin.key))
    ]
    columns.append(pa.repeat(pa.scalar(origin.number, pa.int64()), len(rows)))
    arrays = [pa.chunked_array([column]) for column in columns]
    return pa.Table.from_arrays(
        [*arrays, *rows.columns], schema=pa.schema([*_CONSTANTS, *rows.schema])
    )


def read_file(
    system: pafs.FileSystem,
    root: str,
    file: files.LakeFile,
    columns: Sequence[str],
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file as record batches.

    The rows of a file of another program are sorted first, in memory, if they are not in order.
    """
    with pq.ParquetFile(f"{root}/{file.path}", filesystem=system) as source:
        if not file.foreign or _in_order(source):
            yield from source.iter_batches(batch_rows, columns=list(columns))
            return
        rows = source.read(columns=list(dict.fromkeys([*columns, "ms", "seq"])))
    halves = [rows[name].combine_chunks().view(pa.uint64()) for name in ("ms", "seq")]
    order = pc.sort_indices(
        pa.table(halves, names=["ms", "seq"]), sort_keys=[("ms", "ascending"), ("seq", "ascending")]
    )
    yield from rows.select(list(columns)).take(order).combine_chunks().to_batches(batch_rows)


def read_whole(
    system: pafs.FileSystem, root: str, file: files.LakeFile, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file with all columns of a lake.

    Columns that were added to the lake after the file was written get their values from `fields`.
    """
    with pq.ParquetFile(f"{root}/{file.path}", filesystem=system) as source:
        there = set(source.schema_arrow.names)
    if file.foreign:  # the other program wrote null for them
        there = {"ms", "seq", "ts", "fields"}
    names = [name for name in schema.names if name in there]
    for batch in read_file(system, root, file, names):
        columns = [
            batch.column(one.name) if one.name in there else _promoted(batch.column("fields"), one)
            for one in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _promoted(fields: pa.Array, column: pa.Field) -> pa.Array:
    """Return the last value of the field of a name in each entry; null where there is none."""
    pairs = fields.flatten()
    names, values = pairs.field("field"), pairs.field("value")
    name = column.name.removeprefix("field.").encode()
    found = pc.indices_nonzero(pc.fill_null(pc.equal(names, pa.scalar(name)), False))
    rows = np.full(len(fields), -1, np.int64)
    rows[pc.list_parent_indices(fields).take(found).to_numpy()] = found.to_numpy()
    texts = values.take(pa.array(rows, mask=rows < 0))
    convert = converter(column.type)
    assert convert is not None
    return convert(texts)


def _in_order(source: pq.ParquetFile) -> bool:
    last: StreamId | None = None
    for batch in source.iter_batches(_BATCH_ROWS, columns=["ms", "seq"]):
        if len(batch):
            if not ascending(batch, last):
                return False
            last = id_at(batch, len(batch) - 1)
    return True


def described(
    system: pafs.FileSystem, root: str, path: str
) -> tuple[files.Origin, StreamId, StreamId]:
    """Return the origin, and the lowest and highest ID, of a file of another program.

    Raises:
        LakeError: the file has rows of several streams, or none.
    """
    with pq.ParquetFile(f"{root}/{path}", filesystem=system) as source:
        rows = source.read(columns=[*files.ORIGIN, "ms", "seq"])
    origins = rows.group_by(list(files.ORIGIN)).aggregate([]).to_pylist()
    if len(origins) != 1:
        raise files.LakeError(
            f"{path}: another program wrote rows of {len(origins)} streams into one file; next: "
            "restore an older version of the table, or make a new lake"
        )
    ms, seq = (rows[name].combine_chunks().view(pa.uint64()) for name in ("ms", "seq"))
    ends: list[StreamId] = []
    for top in (pc.min(ms), pc.max(ms)):
        of_ms = seq.filter(pc.equal(ms, top))
        best = pc.max(of_ms) if ends else pc.min(of_ms)
        ends.append(StreamId(top.as_py(), best.as_py()))
    (one,) = origins
    return (
        files.Origin(one["store"], one["incarnation"], key_of_text(one["stream"])),
        ends[0],
        ends[1],
    )


def ascending(batch: pa.RecordBatch, after: StreamId | None) -> bool:
    """Return whether the IDs of a batch, which has rows, rise strictly and are above `after`."""
    if after is not None and id_at(batch, 0) <= after:
        return False
    ms, seq = (batch.column(name).view(pa.uint64()) for name in ("ms", "seq"))
    falls = pc.greater(ms[:-1], ms[1:])
    same = pc.and_(pc.equal(ms[:-1], ms[1:]), pc.greater_equal(seq[:-1], seq[1:]))
    return not pc.any(pc.or_(falls, same)).as_py()


def id_at(batch: pa.RecordBatch, row: int) -> StreamId:
    halves = (batch.column(name)[row].as_py() for name in ("ms", "seq"))
    return StreamId(*map(files.unsigned, halves))


def _days(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that belong to one day each; IDs ascend, and so do days."""
    ms = batch.column("ms").view(pa.uint64())
    if not len(ms):
        return
    if files.day_of(ms[0].as_py()) == files.day_of(ms[len(ms) - 1].as_py()):
        yield 0, len(ms)
        return
    days = pc.divide(pc.min_element_wise(ms, pa.scalar(files.LAST_MS + 1, pa.uint64())), _DAY_MS)
    changes = pc.indices_nonzero(pc.not_equal(days[1:], days[:-1])).to_pylist()
    ends = [change + 1 for change in changes] + [len(ms)]
    start = 0
    for end in ends:
        yield start, end
        start = end


def without_ids(batch: pa.RecordBatch, ids: Collection[StreamId]) -> pa.RecordBatch:
    """Return the rows of a batch that have none of the IDs."""
    chosen = {(files.signed(one.ms), files.signed(one.seq)) for one in ids}
    ms, seq = batch.column("ms"), batch.column("seq")
    maybe = pc.is_in(ms, pa.array([one[0] for one in chosen], pa.int64()))
    kept = np.ones(len(batch), bool)
    for row in pc.indices_nonzero(maybe).to_pylist():
        kept[row] = (ms[row].as_py(), seq[row].as_py()) not in chosen
    return batch if kept.all() else batch.filter(pa.array(kept))


@dataclass(frozen=True)
class TableFile:
    """A file that the log names, of any program; its path is relative to the lake."""

    path: str
    stream: str | None
    date: Any
    size_bytes: int
    store: str | None = None


def table_batches(uri: str, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of its partition. Runs in a worker."""
    system, root = places.file_system(uri)
    names = [name for name in schema.names if name not in PARTITIONS]
    with places.reaching(uri), pq.ParquetFile(f"{root}/{file.path}", filesystem=system) as source:
        there = set(source.schema_arrow.names)
        for batch in source.iter_batches(_BATCH_ROWS, columns=[n for n in names if n in there]):
            columns = [
                batch.column(name).cast(schema.field(name).type)
                if name in there
                else pa.nulls(len(batch), schema.field(name).type)  # the column was added later
                for name in names
            ]
            constant = pa.scalar(file.date, schema.field("date").type)
            columns.append(pa.repeat(constant, len(batch)))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
