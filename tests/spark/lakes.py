"""Entries, files and commits of a lake, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs.executor import audit as audit_worker
from streamkeep.pipeline.lake.executor import FileWriter, read_file
from streamkeep.pipeline.lake.files import LakeFile, Origin, signed
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.storage.places import file_system
from streamkeep.pipeline.store_fleet.pieces import POSITIONS, Positions

DAY_MS = 86_400_000
KEY = b"orders"
STORE = "0b7cbc3e-58c4-4a0a-8b0e-3d2a7c7f1d5e"


def origin(key: bytes = KEY, number: int = 1, store: str = STORE) -> Origin:
    return Origin(store, number, key)


def rows(schema: Any, ids: list[tuple[int, int]]) -> Any:
    return pa.RecordBatch.from_pylist(
        [
            {"ms": signed(ms), "seq": signed(seq), "fields": [{"field": b"n", "value": b"%d" % ms}]}
            for ms, seq in ids
        ],
        schema=schema,
    )


def write(
    lake: Lake, ids: list[tuple[int, int]], key: bytes = KEY, number: int = 1, store: str = STORE
) -> list[LakeFile]:
    """Write entries into files of a lake, without committing them."""
    system, root = file_system(lake.uri)
    writer = FileWriter(system, root, origin(key, number, store), lake.entry_schema)
    writer.add(rows(lake.entry_schema, ids))
    return writer.close()


def rows_in(lake: Lake, names: Sequence[str]) -> Iterator[tuple[LakeFile, dict[str, Any]]]:
    """Yield these columns of each row of a lake, in the order of its files, which come with it."""
    system, root = file_system(lake.uri)
    for file in lake.files():
        for batch in read_file(system, root, file, names):
            for row in batch.to_pylist():
                yield file, row


def committed(lake: Lake, files: list[LakeFile]) -> Lake:
    """Commit files of one store as `to-lake` does."""
    positions = Positions()
    for file in files:
        positions = positions.with_rows(file.origin.number, file.origin.key, file.entries)
    POSITIONS.write(lake.uri, STORE, 1, positions.as_json())
    versions = {POSITIONS.application(STORE): 1}
    return lake.commit("to-lake", files, origins={file.origin for file in files}, versions=versions)


def problems_of(lake: Lake, *files: LakeFile) -> list[str]:
    task = audit_worker.Task((), lake.uri, files)
    return [text for facts in audit_worker.look_at(task) for text in facts.problems]


def fill(store: Store[bytes], start: int, count: int, key: str = "orders") -> None:
    store.xadd_many(
        key,
        [{"sku": str(n % 7), "note": f"n{n}"} for n in range(start, start + count)],
        ids=[f"{n * 60_000}-0" for n in range(start, start + count)],
    )
