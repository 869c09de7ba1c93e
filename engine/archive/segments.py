"""Segments of the archive: listing, verifying, exporting and dropping them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from streamkeep.engine.archive.archiver import stream_name
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.archive.segment_output import copy_segment
from streamkeep.engine.commands.keys import forget_name, name_of
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.manifest import delete_segment, is_named, iter_segments, note_removed
from streamkeep.engine.tables.scan import rows_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import errors
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.keys import RETIRED, pack_number, unpack_node_key
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.records import encode_file_garbage
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment.manifest import SegmentRecord

_DROP_AT_ONCE: Final = 256


class Verified(NamedTuple):
    """The problems of one segment; none if it is sound."""

    record: SegmentRecord
    problems: list[errors.StreamkeepError]
    sealed: bool = False  # a copy of live entries, in the object store only


class ArchivedStream(NamedTuple):
    """The archive of one stream: all its segments, and the retired nodes to archive next."""

    stream_number: int
    key: bytes  # the present key; of a deleted stream, the last one that is known
    exists: bool
    segments: int
    entries: int
    size_bytes: int
    raw_bytes: int
    first_id: StreamId | None
    last_id: StreamId | None
    retired_nodes: int
    retired_entries: int
    retired_bytes: int


class RetiredNode(NamedTuple):
    """A macro node that no segment holds yet."""

    stream_number: int
    first_id: StreamId
    last_id: StreamId
    entries: int
    size_bytes: int


def iter_retired(txn: Txn, number: int | None = None) -> Iterator[RetiredNode]:
    """Yield the retired nodes of one stream, or of all streams, in order."""
    for db_key, value in rows_with(txn, RETIRED, b"" if number is None else pack_number(number)):
        stream, ms, seq = unpack_node_key(db_key)
        if is_former_name(ms, seq):
            continue
        envelope = decode_envelope(value, f"retired node {ms}-{seq} of stream {stream}")
        data = history_form(envelope.listpack, ms, seq, envelope.trimmed)
        if data:
            ids = end_ids(data, ms, seq)
            first, last = StreamId(*ids.first_live), StreamId(*ids.last_live)
            yield RetiredNode(stream, first, last, int(ids.live), len(value))


def list_streams(txn: Txn) -> list[ArchivedStream]:
    """Return the archive of each stream, including deleted ones, by stream number."""
    found: dict[int, ArchivedStream] = {}

    def one(number: int) -> ArchivedStream:
        if number not in found:
            exists = name_of(txn, number) is not None
            key = stream_name(txn, number)
            found[number] = ArchivedStream(number, key, exists, 0, 0, 0, 0, None, None, 0, 0, 0)
        return found[number]

    for record in iter_segments(txn):
        total = one(record.stream_number)
        found[record.stream_number] = total._replace(
            segments=total.segments + 1,
            entries=total.entries + record.entries,
            size_bytes=total.size_bytes + record.size_bytes,
            raw_bytes=total.raw_bytes + record.raw_bytes,
            first_id=total.first_id or record.first_id,
            last_id=record.last_id,
        )
    for node in iter_retired(txn):
        total = one(node.stream_number)
        found[node.stream_number] = total._replace(
            retired_nodes=total.retired_nodes + 1,
            retired_entries=total.retired_entries + node.entries,
            retired_bytes=total.retired_bytes + node.size_bytes,
        )
    return [found[number] for number in sorted(found)]


def verify(
    environment: Environment,
    records: list[SegmentRecord],
    number: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Verified]:
    """Read segments to the last byte, then sealed ones; yield the problems of each.

    A segment that leaves its manifest during the check is left out.

    Args:
        number: of the stream whose sealed segments are read; None for all.
    """
    remote = environment.remote_archive()
    wanted = [(record, False) for record in records]
    wanted += [(record, True) for record in _sealed(remote, number)]
    total = sum(record.size_bytes for record, _ in wanted)
    done = 0
    for record, sealed in wanted:
        problems: list[errors.StreamkeepError] = []
        try:
            if sealed:
                assert remote is not None
                remote.verify(record, sealed=True)
            else:
                problems += environment.segments.open_uncached(record).check()
        except (errors.CorruptionError, errors.FormatVersionError) as error:
            problems.append(error)
        if not problems or (
            record in _sealed(remote, number) if sealed else environment.read(is_named, record)
        ):
            yield Verified(record, problems, sealed)
        done += record.size_bytes
        if progress is not None:
            progress(done, total)


def _sealed(remote: RemoteArchive | None, number: int | None) -> list[SegmentRecord]:
    """Return the sealed segments of a stream, or of all."""
    newest = None if remote is None else remote.newest()
    if newest is None:
        return []
    return [
        one.record
        for one in newest[1].segments
        if one.sealed and number in (None, one.record.stream_number)
    ]


def export(
    environment: Environment,
    records: list[SegmentRecord],
    folder: Path,
    progress: Progress | None = None,
) -> Iterator[Path]:
    """Copy segments into a folder, under their paths in the archive; yield the path of each copy.

    Each segment is verified first, and its copy is on disk when it is yielded.

    Raises:
        CorruptionError: a segment is missing or damaged.
        StoreError: another file of that name exists, or `folder` cannot be one.
    """
    target: Folder | None = None
    total = sum(record.size_bytes for record in records)
    done = 0
    for record in records:
        segment = environment.segments.open(record)
        for problem in segment.check():
            raise problem
        if target is None:
            try:
                files.create_folder(folder)
                target = Folder(folder, outside=True)
            except OSError as error:
                raise errors.StoreError(
                    f"{folder}: cannot take the copies: {error.strerror}; next: name a folder that "
                    "you may write to"
                ) from error
        copy_segment(segment, target, record.path)
        done += record.size_bytes
        if progress is not None:
            progress(done, total)
        yield folder / record.path


def drop(
    environment: Environment, records: list[SegmentRecord], *, wait: bool = True
) -> list[SegmentRecord]:
    """Remove segments from the manifest for good; return those that were still in it.

    Their files become garbage, which `garbage.collect` removes.

    Args:
        wait: wait for an archiver that is at work; otherwise raise StoreLockedError.
    """
    dropped: list[SegmentRecord] = []
    with ArchiveLock(environment, wait=wait):
        for start in range(0, len(records), _DROP_AT_ONCE):
            step = records[start : start + _DROP_AT_ONCE]
            dropped += environment.write(_drop_step, step, frees=True)
            failpoints.hit("drop:step")
    for record in dropped:
        environment.segments.forget(record.path)
    return dropped


def _drop_step(txn: WriteTxn, records: list[SegmentRecord]) -> list[SegmentRecord]:
    dropped = [record for record in records if is_named(txn, record)]
    for record in dropped:
        delete_segment(txn, record)
        txn.add_garbage(encode_file_garbage(record.path))
    for number in {record.stream_number for record in dropped}:
        forget_name(txn, number)
    note_removed(txn, [(one.stream_number, one.first_id, one.last_id) for one in dropped])
    return dropped
