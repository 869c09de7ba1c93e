"""Writing rows into staged files, on an executor."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from operator import itemgetter
from typing import Final

import pyarrow as pa

from streamkeep.engine.system import failpoints
from streamkeep.format.node.builder import encode_nodes
from streamkeep.pipeline.sink.executor.rows import Pairs, RowReader
from streamkeep.pipeline.sink.staged import SCHEMA, Run, Staged, without_collector
from streamkeep.pipeline.storage.places import file_system, make_folder

NODE_BYTES: Final = 16 << 10
_CHUNK_BYTES: Final = 64 << 20
_CHUNK_ROWS: Final = 250_000

_id_of: Final = itemgetter(0, 1)


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
        with without_collector():
            for batch in batches:
                if writer is None:
                    writer = _Writer(RowReader(batch.schema, key), folder, name, node_bytes)
                writer.add(batch)
            return Staged("", (), False) if writer is None else writer.close()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise


def stage_ascending(
    batches: Iterable[pa.RecordBatch], folder: str, name: str, key: bytes, node_bytes: int
) -> Staged:
    """Write rows of one stream, whose IDs rise from row to row, into a file without gathering them.

    Batches of some thousand rows are best: their entries stay in the processor's cache, which saves
    two thirds of the time.
    """
    file: _File | None = None
    try:
        with without_collector():
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
        self._file = pa.ipc.new_file(self._sink, SCHEMA, options=options)
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
        self._file.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
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
