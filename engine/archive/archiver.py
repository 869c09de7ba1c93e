"""The archiver: it turns retired nodes into segments.

Each step takes a run of retired nodes of one stream and makes one segment:

1. Read the rows of `retired` from a snapshot, and write the file under a temporary name.
2. Sync the file, name it, and sync the folder (`segment_output`).
3. In one transaction, write the row of the manifest and delete the rows of `retired`. It commits
   only if each row is unchanged since step 1; an erasure may have changed one.

Until step 3 is on disk, the entries are in `retired`; after it, they are in the segment. They are
never in both, and never in neither. A crash before step 3 leaves a file without a row, which
`clean` removes: a temporary file, or a complete one whose entries are still retired. Other files
below `archive/`, which a user may want to adopt, are left alone.

A run ends at its target size, or where a live node or another segment lies between two retired
nodes. So the segments of a stream never overlap with anything. Segments are not merged later: a
segment is immutable, and pipelines that follow the manifest read each entry once. To avoid many
small segments, the thread of a store (`archive.maintenance`) waits until the retired nodes of a
stream are worth a file.

Memory is bounded by one block and the keys of a run, and a transaction by one run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from streamkeep.engine.archive.garbage import discard
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.archive.publish import PublishReport
from streamkeep.engine.archive.segment_output import TEMPORARY, write_segment
from streamkeep.engine.commands.keys import forget_name, former_name, name_of
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.tables import manifest
from streamkeep.engine.tables.scan import has_rows, rows_with, stream_numbers
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, open_stored, stored_name
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.errors import CorruptionError, StoreError
from streamkeep.format.core.id_codec import MAX, Id, next_id
from streamkeep.format.node.envelope import CHECKSUM_SIZE
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment.index import Index
from streamkeep.format.segment.manifest import ARCHIVED, SegmentRecord, record_of
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, SUFFIX
from streamkeep.format.segment.writer import DEFAULT_BLOCK_BYTES, DEFAULT_LEVEL

TARGET_BYTES: Final = 32 << 20
_NOWHERE: Final = (MAX, MAX)


log = logging.getLogger("streamkeep")


class ArchiveOptions(NamedTuple):
    """How segments are written.

    Attributes:
        target_bytes: the uncompressed size of nodes at which a segment ends.
        level: the level of zstd.
        block_bytes: the uncompressed size of a block, which is what a point read decompresses.
        dictionary: whether to train a dictionary and use it if it saves space.
        least_bytes: streams with fewer retired bytes are left for later.
    """

    target_bytes: int = TARGET_BYTES
    level: int = DEFAULT_LEVEL
    block_bytes: int = DEFAULT_BLOCK_BYTES
    dictionary: bool = True
    least_bytes: int = 0


class ArchiveReport(NamedTuple):
    """The result of a run of the archiver.

    Attributes:
        entries: the number of archived entries.
        segments: the number of new segment files.
        raw_bytes: the size of the archived macro nodes, uncompressed.
        size_bytes: the size of the new files.
        removed: the number of removed files of an interrupted run.
        published: what was done in the object store, if the archive is kept in one.
    """

    entries: int = 0
    segments: int = 0
    raw_bytes: int = 0
    size_bytes: int = 0
    removed: int = 0
    published: PublishReport = PublishReport()


DEFAULT_OPTIONS: Final = ArchiveOptions()


def archive(
    environment: Environment,
    options: ArchiveOptions = DEFAULT_OPTIONS,
    *,
    wait: bool = True,
    progress: Progress | None = None,
) -> ArchiveReport:
    """Make segments of everything that is retired.

    Args:
        wait: wait for another archiver of any process, then archive what it has left.

    Raises:
        StoreLockedError: another archiver is at work, and `wait` is False.
        StoreFullError: there is no room for a segment. Segments made before remain.
    """
    with ArchiveLock(environment, wait=wait):
        report = ArchiveReport(removed=len(clean(environment)))
        total = environment.read(retired_bytes)
        numbers = environment.read(retired_streams)
        for number in numbers:
            if environment.read(_retired_of, number, options.least_bytes) < options.least_bytes:
                continue
            name = environment.read(stream_name, number)
            while environment.read(_has_retired, number):
                segment = _archive_run(environment, number, name, options)
                if segment is not None:
                    report = report._replace(
                        entries=report.entries + segment.entries,
                        segments=report.segments + 1,
                        raw_bytes=report.raw_bytes + segment.raw_bytes,
                        size_bytes=report.size_bytes + segment.size_bytes,
                    )
                if progress is not None:
                    progress(min(report.raw_bytes, total), total)
    # `retired` is counted with what is only removed in memory, so it may still seem too big.
    environment.context.refuse_above = 0
    if report.segments:
        log.info(
            "%s: archived %d entries in %d segments",
            environment.path,
            report.entries,
            report.segments,
        )
    return report


# --- finding work -------------------------------------------------------------------------------


def retired_bytes(txn: Txn) -> int:
    return txn.table_bytes(keys.RETIRED)


def retired_streams(txn: Txn) -> list[int]:
    """Return the numbers of the streams that have retired nodes, ascending."""
    numbers = stream_numbers(txn, keys.RETIRED, "retired nodes")
    return [number for number in numbers if _has_retired(txn, number)]


def _has_retired(txn: Txn, number: int) -> bool:
    return has_rows(txn, keys.RETIRED, keys.pack_number(number), keys.node_key(number, 0, 1))


def stream_name(txn: Txn, number: int) -> bytes:
    """Return the key of a stream with retired nodes or segments; of a deleted one, its last."""
    name = name_of(txn, number)
    if name is None and txn.get(keys.STREAMS, keys.pack_number(number)) is not None:
        raise CorruptionError(f"stream {number}", "it has no name; next: run `streamkeep repair`")
    name = former_name(txn, number) if name is None else name
    if name is not None:
        return name
    record = manifest.find_segment(txn, number, *_NOWHERE)
    return b"" if record is None else record.key


def _retired_of(txn: Txn, number: int, enough: int) -> int:
    """Return the bytes of the retired nodes of a stream; the count stops at `enough`."""
    total = 0
    for _, value in rows_with(txn, keys.RETIRED, keys.pack_number(number)):
        if total >= enough:
            break
        total += len(value)
    return total


_Rows = list[tuple[bytes, bytes]]  # key and checksum, which shows whether a node has changed


def iter_run(txn: Txn, number: int, target_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (LMDB key, envelope) of the retired nodes that will form one segment."""
    barrier: Id | None = None
    size = 0
    for db_key, value in rows_with(txn, keys.RETIRED, keys.pack_number(number)):
        _, ms, seq = keys.unpack_node_key(db_key)
        if size >= max(1, target_bytes):  # one node at least
            return
        if not is_former_name(ms, seq):
            if barrier is not None and (ms, seq) > barrier:
                return
            if barrier is None:
                barrier = _next_other(txn, number, ms, seq)
            size += len(value)
            yield db_key, value


def _next_other(txn: Txn, number: int, ms: int, seq: int) -> Id:
    """Return the first ID of the next live node or segment after a retired node."""
    other = _NOWHERE
    after = next_id(ms, seq)
    cursor = txn.cursor(keys.NODES)
    if cursor.set_range(keys.node_key(number, *after)):
        stream, node_ms, node_seq = keys.unpack_node_key(cursor.key())
        if stream == number:
            other = node_ms, node_seq
    segment = next(manifest.segments_from(txn, number, *after), None)
    if segment is not None:
        other = min(other, (segment.first_ms, segment.first_seq))
    row = txn.get(keys.STREAMS, keys.pack_number(number))
    if row is not None:
        tail = txn.load_numbered(number, b"")
        if tail.has_tail() and (tail.tail_ms, tail.tail_seq) > (ms, seq):
            other = min(other, (tail.tail_ms, tail.tail_seq))
    return other


# --- one segment --------------------------------------------------------------------------------


class _Changed(Exception):
    """A retired node changed while its segment was written."""


def _archive_run(
    environment: Environment, number: int, name: bytes, options: ArchiveOptions
) -> SegmentRecord | None:
    """Archive the first run of a stream; return its segment.

    Returns:
        None if the nodes had no entries to show, or changed meanwhile: then they are still retired.
    """
    file_number = environment.write(manifest.take_file_number, frees=True)
    rows, record = _write_run(environment, number, name, file_number, options)
    failpoints.hit("archive:written")
    try:
        record = environment.write(_commit_run, number, rows, record, wait=True, frees=True)
    except _Changed:
        discard(environment, [] if record is None else [record.path])
        return None
    failpoints.hit("archive:committed")
    return record


def _write_run(
    environment: Environment, number: int, name: bytes, file_number: int, options: ArchiveOptions
) -> tuple[_Rows, SegmentRecord | None]:
    """Write the file; return the rows that it holds, and its future row of the manifest."""
    rows: _Rows = []
    with environment.begin_read() as txn:

        def nodes() -> Iterator[bytes]:
            for db_key, envelope in iter_run(txn, number, options.target_bytes):
                rows.append((db_key, envelope[-CHECKSUM_SIZE:]))
                yield envelope

        found = write_segment(
            environment,
            number,
            name,
            file_number,
            Index(environment.uuid.bytes, number, name, []),
            nodes(),
            f"retired node of stream {number}",
            raw_bytes=max(1, options.target_bytes) if options.dictionary else 0,
            level=options.level,
            block_bytes=options.block_bytes,
        )
    return rows, None if found is None else record_of(found[1], found[0], ARCHIVED)


def _commit_run(
    txn: WriteTxn, number: int, rows: _Rows, record: SegmentRecord | None
) -> SegmentRecord | None:
    """Write the row of the manifest, and delete the rows of `retired`."""
    for db_key, checksum in rows:
        value = txn.get(keys.RETIRED, db_key)
        if value is None or value[-CHECKSUM_SIZE:] != checksum:
            raise _Changed
        txn.delete(keys.RETIRED, db_key)
    if record is not None:
        record = manifest.put_segment(txn, record)
    forget_name(txn, number)
    return record


# --- files left by a crash ----------------------------------------------------------------------


def clean(environment: Environment) -> list[Path]:
    """Remove the files that a killed archiver has left below `archive/`; the caller has the lock.

    Returns:
        The removed files: temporary ones, and segments of this store whose entries are still
        retired.
    """
    store = environment.folder
    there = store.files_below(ARCHIVE_FOLDER)
    removed = [path for path in there if path.endswith(SUFFIX + TEMPORARY)]
    streams = segments_by_stream(there)
    for number in environment.read(retired_streams):
        if found := streams.get(str(number)):
            named = {row.path for row in environment.read(manifest.list_segments, number)}
            removed += [
                path for path in found if path not in named and _is_undone(environment, path)
            ]
    for path in removed:
        name = str(store.path / stored_name(path))  # of any bytes, so escaped in the log
        log.warning("removing %r, a file that a killed archiver has left", name)
    discard(environment, removed)
    return [store.path / stored_name(path) for path in removed]


def segments_by_stream(paths: list[str]) -> dict[str, list[str]]:
    """Return the segment files of an archive by the stream number in the name of their folder."""
    found: dict[str, list[str]] = {}
    for path in paths:
        if path.endswith(SUFFIX):
            found.setdefault(path.partition("-")[0], []).append(path)
    return found


def _is_undone(environment: Environment, path: str) -> bool:
    """Return whether this store wrote a file without a row, from entries that are still retired."""
    # A file of this store is no larger than what is retired. Any other one may be hostile.
    most = max(environment.read(retired_bytes), MAX_BLOCK_BYTES)
    try:
        segment = open_stored(environment.folder, path, max_block_bytes=most)
        if segment.index.store_uuid != environment.uuid.bytes:
            return False
        node = segment.block(0)[0]
    except (CorruptionError, StoreError):
        return False
    db_key = keys.node_key(segment.index.stream_number, node.ms, node.seq)
    return environment.read(lambda txn: txn.get(keys.RETIRED, db_key)) is not None
