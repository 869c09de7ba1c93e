"""The part of `audit` on executors: reading and checking every byte of segments and files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import xxhash

from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import CHUNK_BYTES, ChunkCache, RemoteArchive
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.segment_files import open_stored
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import MissingSegmentError, StreamkeepError
from streamkeep.format.segment.manifest import SegmentRecord, as_in_file
from streamkeep.format.segment.segment import Segment
from streamkeep.pipeline.lake import files as lake_files
from streamkeep.pipeline.lake.executor import ascending, id_at, read_file, without_ids
from streamkeep.pipeline.lake.files import LakeFile, Origin, Statistics
from streamkeep.pipeline.storage.places import check_reached, file_system
from streamkeep.pipeline.store_fleet import pieces
from streamkeep.pipeline.store_fleet.executor import read_manifest
from streamkeep.pipeline.store_fleet.pieces import Member, Positions

_CHUNK: Final = 8 << 20


@dataclass(frozen=True)
class Archived:
    """A segment that a task reads, and where it is.

    Attributes:
        member: its store; of one on a path, with the URI under which its archive is published, too.
        driver: the host that has that path.
        prefix: names the store in problems; "" for the only one.
    """

    member: Member
    record: SegmentRecord
    sealed: bool = False
    driver: str = ""
    prefix: str = ""

    @property
    def size_bytes(self) -> int:
        return self.record.raw_bytes


@dataclass(frozen=True)
class Task:
    """What one worker checks.

    Attributes:
        groups: of segments, packed.
        lake: the root of the lake's files.
        erased: by path of a file, the IDs of its range that were erased.
        statistics: by path of a file, what the log says of its columns.
    """

    groups: tuple[bytes, ...] = ()
    lake: str = ""
    files: tuple[LakeFile, ...] = ()
    erased: dict[str, tuple[StreamId, ...]] = field(default_factory=dict)
    statistics: dict[str, dict[str, Statistics]] = field(default_factory=dict)


class Facts(NamedTuple):
    """What a check of one file has found."""

    entries: int
    size_bytes: int
    problems: list[str]


def look_at(task: Task) -> list[Facts]:
    """Check the files of a task; return the facts about each. Runs in a worker."""
    segments: list[Archived] = [one for text in task.groups for one in pieces.unpack_group(text)]
    for path in {one.member.path for one in segments if one.driver not in ("", gethostname())}:
        check_reached(f"{path}/archive", "archive")  # where it is missing, each file would be
    found = [_segment_facts(one) for one in segments]
    if task.files:
        system, root = file_system(task.lake)
        for file in task.files:
            erased, said = task.erased.get(file.path, ()), task.statistics.get(file.path, {})
            found.append(_file_facts(system, root, file, erased, said))
    return found


# --- segments -------------------------------------------------------------------------------------


class Described(NamedTuple):
    """The segments of a store in groups, and what a lake should have of it.

    Attributes:
        segments: their number.
        streams: by number, how many entries of a stream the lake must have, and what was erased.
    """

    store: str
    problems: list[str]
    groups: Sequence[tuple[int, bytes]] = ()
    segments: int = 0
    streams: Mapping[int, tuple[int, Sequence[StreamId]]] = {}  # never changed


def describe_stores(asks: tuple[tuple[Member, Positions], ...]) -> list[Described]:
    """Describe stores by their manifests. Runs in a worker."""
    found = []
    for member, positions in asks:
        try:
            found.append(_described(member, positions))
        except StreamkeepError as error:
            found.append(Described(member.store, [str(error)]))
    return found


def _described(member: Member, positions: Positions) -> Described:
    member, manifest = read_manifest(member)
    expected: dict[int, int] = defaultdict(int)
    by_stream = manifest.by_stream()
    for number, stream in manifest.streams.items():
        end = positions.end_of(number)
        for piece in pieces.stream_pieces(member, stream.key, by_stream[number]):
            record = piece.record
            assert record is not None
            whole = (piece.start, piece.end) == (record.first_id, record.last_id)
            if whole and piece.end <= end:
                expected[number] += piece.entries
    living = {number: one.key for number, one in manifest.streams.items() if one.exists}
    losses = pieces.deleted_streams(positions, living) | pieces.streams_gone_back(
        positions, manifest
    )
    prefix = f"store {member.store}: "
    segments = [
        Archived(member, one.record, one.sealed, prefix=prefix)
        for number in sorted(manifest.streams)
        for one in by_stream[number]
    ]
    problems = [
        f"{Origin(member.store, number, positions.streams[number].key)}: {text}"
        for number, text in sorted(losses.items())
    ]
    streams = {number: (expected[number], one.erased) for number, one in manifest.streams.items()}
    return Described(member.store, problems, pieces.pack_groups(segments), len(segments), streams)


def _segment_facts(one: Archived) -> Facts:
    problems: list[str] = []
    size = 0
    try:
        segment = _opened(one)
        size = segment.size
        problems += [f"{one.record.where}: {text}" for text in differences(segment, one.record)]
        problems += [str(error) for error in segment.check()]
    except StreamkeepError as error:
        problems.append(str(error))
    return Facts(one.record.entries, size, [one.prefix + text for text in problems])


def _opened(one: Archived) -> Segment:
    """Open a segment on the disk of its store; if it is not there, where it is published."""
    member = one.member
    if member.path:
        try:
            return open_stored(Folder(Path(member.path)), one.record.path, one.record.where)
        except MissingSegmentError:
            if not member.uri:
                raise
    archive = RemoteArchive(open_objects(member.uri), member.store)
    return archive.open(one.record, sealed=one.sealed, cache=ChunkCache(4 * CHUNK_BYTES))


def differences(segment: Segment, record: SegmentRecord) -> Iterator[str]:
    """Yield the differences between a segment and its row in the manifest."""
    found = as_in_file(record, segment)
    for name, there, told in zip(record._fields, found, record, strict=True):
        if there != told:
            yield f"{name} is {there}, {told} in the manifest"


# --- one file of the lake -------------------------------------------------------------------------


def _file_facts(
    system: pafs.FileSystem,
    root: str,
    file: LakeFile,
    erased: Sequence[StreamId],
    said: Mapping[str, Statistics],
) -> Facts:
    where = f"lake file {file.path}"
    problems: list[str] = []
    try:
        size, checksum = _digest(system, f"{root}/{file.path}")
        if size != file.size_bytes:
            problems.append(f"{where}: {size} bytes, {file.size_bytes} in the log")
        if not file.foreign and checksum != lake_files.checksum_of_path(file.path):
            problems.append(f"{where}: its checksum is {checksum}, which differs from its name")
        else:
            found = _rows_problems(system, root, file, erased, said)
            problems += [f"{where}: {text}" for text in found]
    except FileNotFoundError:
        problems.append(f"{where}: the file is missing, but the log names it")
    except (pa.ArrowException, OSError) as error:
        problems.append(f"{where}: cannot be read: {error}")
    return Facts(file.entries, file.size_bytes, problems)


def _digest(system: pafs.FileSystem, path: str) -> tuple[int, str]:
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
    if not file.path.startswith(lake_files.folder_of(file.origin, file.date) + "/"):
        yield f"it is in the wrong partition, not in {lake_files.folder_of(file.origin, file.date)}"
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
        if not ascending(batch, last):
            yield f"IDs do not rise (rows {entries} to {entries + len(batch)})"
        first, last = first or ends[0], ends[1]
        erased_entries += len(batch) - len(without_ids(batch, erased))
        entries += len(batch)
        if any(lake_files.day_of(one.ms) != file.date for one in ends):
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
