"""The part of `audit` on executors: reading and checking every byte of segments and files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import xxhash

from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import CHUNK_BYTES, ChunkCache, RemoteArchive
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.lake.executor.parquet import ascending, count_ids, id_at, read_file
from streamkeep.pipeline.lake.files import (
    LakeFile,
    Statistics,
    checksum_of_path,
    day_of,
    folder_of,
)
from streamkeep.pipeline.storage.places import check_reached, file_system, host

if TYPE_CHECKING:
    from streamkeep.format.segment.manifest import SegmentRecord


_CHUNK: Final = 8 << 20


@dataclass(frozen=True)
class Task:
    """The files that one worker checks.

    Attributes:
        archive: the folder of the segments.
        uri, store: where segments are that are not in the folder; "" for nowhere. The UUID of the
            store.
        lake: the root of the lake's files.
        erased: by path of a file, the IDs of its range that were erased.
        statistics: by path of a file, what the log says of its columns.
    """

    archive: str
    segments: tuple[SegmentRecord, ...]
    lake: str
    files: tuple[LakeFile, ...]
    erased: dict[str, tuple[StreamId, ...]] = field(default_factory=dict)
    statistics: dict[str, dict[str, Statistics]] = field(default_factory=dict)
    driver: str = ""  # its host
    uri: str = ""
    store: str = ""


def look_at(task: Task) -> list[str]:
    """Check the files of a task; return the facts about each. Runs in a worker."""
    if task.segments and not task.uri and task.driver != host():  # a missing file may be there
        check_reached(task.archive, "archive")
    found = [_segment_facts(task, record) for record in task.segments]
    if task.files:
        system, root = file_system(task.lake)
        found += [
            _file_facts(
                system,
                root,
                file,
                task.erased.get(file.path, ()),
                task.statistics.get(file.path, {}),
            )
            for file in task.files
        ]
    return [json.dumps(one) for one in found]


# --- one segment ----------------------------------------------------------------------------------


def _segment_facts(task: Task, record: SegmentRecord) -> dict[str, Any]:
    from streamkeep.engine.system.safe_files import Folder
    from streamkeep.format.segment.segment import Segment

    problems: list[str] = []
    size = 0
    try:
        handle = Folder(Path(task.archive)).open(record.path)
        with os.fdopen(handle, "rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size
            descriptor = source.fileno()
            segment = Segment.open(
                lambda offset, length: os.pread(descriptor, length, offset), size, record.where
            )
            problems += [str(error) for error in segment.check()]
            problems += [f"{record.where}: {text}" for text in differences(segment, record)]
    except FileNotFoundError:
        if task.uri:
            size = record.size_bytes
            problems += archived_problems(task.uri, task.store, record, sealed=False)
        else:
            problems.append(f"{record.where}: the file is missing")
    except StreamkeepError as error:
        problems.append(str(error))
    return {"entries": record.entries, "size_bytes": size, "problems": problems}


def archived_problems(uri: str, store: str, record: SegmentRecord, *, sealed: bool) -> list[str]:
    """Return the problems of a segment in an object store, of which every byte is read."""
    try:
        archive = RemoteArchive(open_objects(uri), store)
        segment = archive.open(record, sealed=sealed, cache=ChunkCache(4 * CHUNK_BYTES))
        found = [f"{record.where}: {text}" for text in differences(segment, record)]
        return found + [str(error) for error in segment.check()]
    except StreamkeepError as error:
        return [str(error)]


def differences(segment: Any, record: SegmentRecord) -> Iterator[str]:
    """Yield the differences between a segment and its row in the manifest."""
    trailer = segment.trailer
    for name, found, expected in (
        ("size", segment.size, record.size_bytes),
        ("checksum", trailer.checksum, record.checksum),
        ("first ID", trailer.first_id, record.first_id),
        ("last ID", trailer.last_id, record.last_id),
        ("number of entries", trailer.entries, record.entries),
        ("number of nodes", trailer.nodes, record.nodes),
    ):
        if found != expected:
            yield f"{name} is {found}, {expected} in the manifest"


# --- one file of the lake -------------------------------------------------------------------------


def _file_facts(
    system: pafs.FileSystem,
    root: str,
    file: LakeFile,
    erased: Sequence[StreamId],
    said: Mapping[str, Statistics],
) -> dict[str, Any]:
    where = f"lake file {file.path}"
    problems: list[str] = []
    try:
        size, checksum = _digest(system, f"{root}/{file.path}")
        if size != file.size_bytes:
            problems.append(f"{where}: {size} bytes, {file.size_bytes} in the log")
        if not file.foreign and checksum != checksum_of_path(file.path):
            problems.append(f"{where}: its checksum is {checksum}, which differs from its name")
        else:
            found = _rows_problems(system, root, file, erased, said)
            problems += [f"{where}: {text}" for text in found]
    except FileNotFoundError:
        problems.append(f"{where}: the file is missing, but the log names it")
    except (pa.ArrowException, OSError) as error:
        problems.append(f"{where}: cannot be read: {error}")
    return {"entries": file.entries, "size_bytes": file.size_bytes, "problems": problems}


def _digest(system: pafs.FileSystem, path: str) -> tuple[int, str]:
    """Return size and XXH3-64 of a file."""
    digest, size = xxhash.xxh3_64(), 0
    with system.open_input_stream(path, compression=None) as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _rows_problems(
    system: pafs.FileSystem,
    root: str,
    file: LakeFile,
    erased: Sequence[StreamId],
    said: Mapping[str, Statistics],
) -> Iterator[str]:
    if not file.path.startswith(folder_of(file.origin, file.date) + "/"):
        yield f"it is in the wrong partition, not in {folder_of(file.origin, file.date)}"
    last: StreamId | None = None
    first: StreamId | None = None
    entries = erased_entries = 0
    columns = {name: _Column() for name in said}
    for batch in read_file(system, root, file, tuple(dict.fromkeys(("ms", "seq", *said)))):
        for name, column in columns.items():
            if name in batch.schema.names:  # otherwise it was added to the table later
                column.add(batch.column(name))
        if not len(batch):
            continue
        ends = [id_at(batch, 0), id_at(batch, len(batch) - 1)]
        if (last is not None and ends[0] <= last) or not ascending(batch):
            yield f"IDs do not rise (rows {entries} to {entries + len(batch)})"
        first, last = first or ends[0], ends[1]
        erased_entries += count_ids(batch, erased)
        entries += len(batch)
        if any(day_of(one.ms) != file.date for one in ends):
            yield f"rows {entries - len(batch)} to {entries} are not all of {file.date}"
    if erased_entries:
        yield (
            f"it holds {erased_entries} of the entries that were erased from the store or from the "
            "lake; next: `streamkeep spark erase` removes them"
        )
    if entries != file.entries:
        yield f"{entries} rows, {file.entries} in the log"
    if (first, last) != (file.first, file.last):
        yield f"it holds {first} to {last}, which differs from its name"
    for name, column in columns.items():
        yield from column.problems(name, said[name])


class _Column:
    """The lowest and the highest value of a column, and the number of rows without one."""

    def __init__(self) -> None:
        self.low: Any = None
        self.high: Any = None
        self.nulls = 0

    def add(self, values: pa.Array) -> None:
        self.nulls += values.null_count
        found = pc.min_max(values).as_py()
        if found["min"] is not None:
            self.low = found["min"] if self.low is None else min(self.low, found["min"])
            self.high = found["max"] if self.high is None else max(self.high, found["max"])

    def problems(self, name: str, said: Statistics) -> Iterator[str]:
        """Yield the differences from what the log says; its bounds may be wider."""
        if self.low is not None:
            below = said.low is not None and self.low < said.low
            if below or (said.high is not None and self.high > said.high):
                yield (
                    f"column {name!r} holds {self.low} to {self.high}, but the log says {said.low} "
                    f"to {said.high}, so readers may skip the file"
                )
        if said.nulls is not None and self.nulls != said.nulls:
            yield f"column {name!r} has {self.nulls} nulls, {said.nulls} in the log"
