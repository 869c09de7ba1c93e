"""Staged files, through which rows of Spark become entries of a store.

Tasks cannot share a transaction. So they write their rows into files, and the driver applies all
files in one transaction. A task does most of the work: it converts and sorts rows and makes macro
nodes. The driver decodes nodes and appends a million entries per second.

A staged file is an Arrow file, and each of its rows is a macro node with the key of its stream. If
the store gives the IDs, the nodes hold the entries in the order of the rows, under consecutive
numbers. If the rows have IDs, they ascend within a *run*, which is a range of batches of the file;
runs of one stream are merged when they are applied. Staged files are useless after the transaction,
and the folder of a job is removed as a whole.

Files are accessed through `pyarrow.fs`: a path, or a URI that all hosts of a cluster can reach.
"""

from __future__ import annotations

import gc
import heapq
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from streamkeep.engine.commands.xadd import EXPLICIT, NewId, xadd_many
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import IdTooSmallError, StreamkeepError
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.node import PAIRS, Range, read_range
from streamkeep.pipeline.rows import Pairs, RowReader
from streamkeep.pipeline.storage import check, file_system, make_folder

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

_id_of: Final = itemgetter(0, 1)


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


# --- in a task ------------------------------------------------------------------------------------


def stage(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    name: str,
    key: bytes | None,
    node_bytes: int = NODE_BYTES,
) -> Staged:
    """Write rows into a file of the folder; return its description.

    Args:
        node_bytes: the size limit of a node; the default suits nodes that are decoded again.
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
    """Disable Python's cyclic collector, which would search millions of lists in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def stage_ascending(
    batches: Iterable[pa.RecordBatch], folder: str, name: str, key: bytes, node_bytes: int
) -> Staged:
    """Write rows of one stream, whose IDs rise from row to row, into a file without gathering them.

    Batches of some thousand rows are best: their entries stay in the processor's cache, which saves
    two thirds of the time.
    """
    file: _File | None = None
    try:
        with _without_collector():
            for batch in batches:
                if file is None:
                    reader = RowReader(batch.schema, key)
                    file = _File(folder, name)
                entries = zip(*reader.ids_of(batch), reader.fields_of(batch), strict=True)
                file.write(key, encode_nodes(entries, node_bytes), batch.num_rows, True)
            return Staged("", (), True) if file is None else file.close(True)
    except BaseException:
        if file is not None:
            file.abandon()
        raise


class _Writer:
    """Gathers rows, sorts them, and writes them into a staged file."""

    def __init__(self, reader: RowReader, folder: str, name: str, node_bytes: int) -> None:
        self.reader = reader
        self._node_bytes = node_bytes
        self._file = _File(folder, name)
        self._waiting: dict[bytes, list[Pairs]] = {}
        self._rows = self._bytes = 0
        self._newest: dict[bytes, tuple[int, int]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; write them when there are enough."""
        for key, entries in self.reader.read(batch).items():
            self._waiting.setdefault(key, []).extend(entries)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        for key, entries in self._waiting.items():
            rises = True
            if self.reader.with_ids:
                entries.sort(key=_id_of)
                rises = key in self._newest and self._newest[key] < entries[0][:2]
                self._newest[key] = entries[-1][:2]
            self._file.write(key, encode_nodes(entries, self._node_bytes), len(entries), rises)
        self._waiting.clear()
        self._rows = self._bytes = 0

    def close(self) -> Staged:
        """Finish the file."""
        self._flush()
        return self._file.close(self.reader.with_ids)

    def abandon(self) -> None:
        """Close the file, which is removed with its folder."""
        self._file.abandon()


class _File:
    """A staged file that is being written."""

    def __init__(self, folder: str, name: str) -> None:
        self.location = f"{folder.rstrip('/')}/{name}"
        system, path = file_system(self.location)
        make_folder(system, path.rpartition("/")[0])
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._sink = system.open_output_stream(path)
        self._file = pa.ipc.new_file(self._sink, _SCHEMA, options=options)
        self._batches = 0
        self._runs: list[Run] = []

    def write(
        self, key: bytes, nodes: list[tuple[int, int, bytes]], entries: int, rises: bool
    ) -> None:
        """Write nodes of one stream as a batch.

        Args:
            entries: the number of entries in the nodes.
            rises: their IDs are above those written before, so the batch may continue the run.
        """
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
        if last is not None and rises and last.key == key and last.last == at:
            self._runs[-1] = Run(key, last.first, at + 1, last.entries + entries)
        else:
            self._runs.append(Run(key, at, at + 1, entries))

    def close(self, with_ids: bool) -> Staged:
        """Finish the file."""
        self._file.close()
        self._sink.close()
        failpoints.hit("stage:written")
        return Staged(self.location, tuple(self._runs), with_ids)

    def abandon(self) -> None:
        """Close the file, which is removed with its folder."""
        with suppress(Exception):
            self._file.close()
            self._sink.close()


# --- on the driver --------------------------------------------------------------------------------


def apply_staged(txn: WriteTxn, staged: list[Staged]) -> dict[bytes, int]:
    """Append the staged entries; return the number of entries by stream.

    Raises:
        IdTooSmallError: an ID is not above those of its stream, or is repeated.
        StagedFileMissingError: the driver cannot find the file of a task.
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
    """Yield the nodes of a staged file, as (ms, seq, listpack)."""
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
                f"stream {key!r}: entry {ms}-{seq} is not above the newest one, or is repeated; "
                "next: write only new IDs, or leave out the columns id, ms and seq, so that the "
                "store gives IDs"
            ) from error
        done += len(part)


def _nodes(reader: Any, run: Run) -> Iterator[list[Pairs]]:
    """Yield the entries of a run, one node at a time."""
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
            f"{location}: a task has staged this file, but the driver cannot find it; next: on a "
            "cluster, set the option 'stagingPath' (--staging) to a folder that all hosts share"
        ) from None


# --- folders --------------------------------------------------------------------------------------


def new_folder(staging: str) -> str:
    """Return the name for the folder of a new job; the folder is made with its first file.

    Raises:
        StorageError: the bucket does not exist or cannot be reached.
    """
    check(staging)
    return f"{staging.rstrip('/')}/{time.time_ns() // 10**9:012d}-{uuid.uuid4().hex}"


def remove_folder(location: str) -> None:
    """Remove the folder of a job, including the files of failed attempts."""
    system, path = file_system(location)
    with suppress(FileNotFoundError):
        system.delete_dir(path)


def sweep(staging: str, *, now_s: float | None = None) -> int:
    """Remove the folders of jobs that died more than a week ago; return their number."""
    system, path = file_system(staging)
    selector = pafs.FileSelector(path, allow_not_found=True)
    limit = (time.time() if now_s is None else now_s) - _STALE_S
    removed = 0
    for info in system.get_file_info(selector):
        began, dash, _ = info.base_name.partition("-")
        if dash and began.isdigit() and int(began) < limit:
            remove_folder(f"{staging.rstrip('/')}/{info.base_name}")
            removed += 1
    return removed
