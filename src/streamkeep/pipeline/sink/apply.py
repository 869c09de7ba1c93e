"""Appending staged files to a store, on the driver."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa

from streamkeep.engine.commands.xadd import EXPLICIT, NewId, xadd_many
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import IdTooSmallError, StreamkeepError
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, read_range
from streamkeep.pipeline.sink import executor
from streamkeep.pipeline.storage.places import file_system

_APPLY_ENTRIES: Final = 10_000
_TOP: Final = (1 << 64) - 1


def apply_staged(txn: WriteTxn, staged: list[executor.Staged]) -> dict[bytes, int]:
    """Append the staged entries; return the number of entries by stream.

    Raises:
        IdTooSmallError: an ID is not above those of its stream, or is repeated.
        StagedFileMissingError: the driver cannot find the file of a task.
    """
    files = {one.location: _open_staged(one.location) for one in staged if one.location}
    by_key: dict[bytes, list[tuple[Any, executor.Run]]] = {}
    with_ids = any(one.with_ids for one in staged)
    for one in staged:
        for run in one.runs:
            by_key.setdefault(run.key, []).append((files[one.location], run))
    added: dict[bytes, int] = {}
    for key, runs in by_key.items():
        sources = [_entries(reader, run) for reader, run in runs]
        if with_ids:
            entries: Iterator[executor.Pairs] = heapq.merge(*sources, key=executor.id_of)
        else:
            entries = chain.from_iterable(sources)
        expected = sum(run.entries for _, run in runs)
        with executor.without_collector():
            added[key] = _append(txn, key, entries, with_ids)
        if added[key] != expected:
            raise StreamkeepError(
                f"stream {key!r}: {expected} entries were staged, {added[key]} were read back"
            )
    return added


def staged_nodes(one: executor.Staged) -> Iterator[tuple[int, int, bytes]]:
    """Yield the nodes of a staged file, as (ms, seq, listpack)."""
    reader = _open_staged(one.location) if one.location else None
    for run in one.runs:
        yield from _nodes(reader, run)


def _append(txn: WriteTxn, key: bytes, entries: Iterator[executor.Pairs], with_ids: bool) -> int:
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


def _nodes(reader: Any, run: executor.Run) -> Iterator[tuple[int, int, bytes]]:
    for at in range(run.first, run.last):
        batch = reader.get_batch(at)
        columns = (batch.column(name).to_pylist() for name in ("ms", "seq", "node"))
        yield from zip(*columns, strict=True)


def _entries(reader: Any, run: executor.Run) -> Iterator[executor.Pairs]:
    for ms, seq, data in _nodes(reader, run):
        out: list[Any] = []
        read_range(data, ms, seq, Range(0, 0, _TOP, _TOP, 1 << 40, False, int(PAIRS)), out)
        yield from out


def _open_staged(location: str) -> Any:
    system, path = file_system(location)
    try:
        return pa.ipc.open_file(system.open_input_file(path))
    except FileNotFoundError:
        raise executor.StagedFileMissingError(
            f"{location}: a task has staged this file, but the driver cannot find it; next: on a "
            "cluster, set the option 'stagingPath' (--staging) to a folder that all hosts share"
        ) from None
