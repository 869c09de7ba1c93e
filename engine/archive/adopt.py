"""Adopting segment files that no manifest names: files from elsewhere, or left by a crash.

A file is checked to the last byte, and its range of IDs is compared with everything that the stream
has, so that no entry is in two places. It may not overlap a macro node or another archived range,
nor follow the beginning of the newest node, which still grows. It may lie between nodes, where a
range was trimmed. Then the file is copied to a new name below `archive/`, unless it is already
there, and a row of the manifest names it. A file without a row changes nothing, so after a crash
the user can adopt it again.

A segment that the manifest already names is skipped. If its file is missing, the adopted file
replaces it, and the manifest is unchanged. Entries that were erased from this store do not return:
a file with such entries is rewritten without them, and skipped if the archive has the rest of it.

From the archive of a store, under a URI or in a folder, archived segments are taken whole, and of
sealed ones only what no archived one has, unless the stream has live entries there. For any other
reason that keeps one out, its entries are missing: that is an error, but the rest is adopted first.
The manifest of that archive knows the present key of a renamed stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from streamkeep.engine.archive.garbage import discard, doomed_files
from streamkeep.engine.archive.iterate import entries_of, has_pieces, nodes_of
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.archive.segment_output import copy_segment, write_segment
from streamkeep.engine.commands.history import Live, Retired, Source
from streamkeep.engine.commands.keys import find_numbered
from streamkeep.engine.commands.reply_budget import Entries
from streamkeep.engine.remote.object_store import normal_uri, open_objects
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.files import files_below
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.tables.manifest import erased_ids, overlapping, put_segment, take_file_number
from streamkeep.engine.tables.segment_files import (
    ARCHIVE_FOLDER,
    open_segment,
    open_stored,
    stored_name,
)
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import NEXT_STREAM, WriteTxn
from streamkeep.format import quoting
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import (
    ArgumentError,
    CommandError,
    CorruptionError,
    StoreError,
    UnreachableError,
)
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import META, STREAMS, pack_number
from streamkeep.format.node.node import end_ids
from streamkeep.format.rows.records import decode_counter, encode_file_garbage, is_safe_path
from streamkeep.format.segment.manifest import ADOPTED, SegmentRecord, record_of
from streamkeep.format.segment.remote import HEAD, RemoteSegment, parts_of, segment_name
from streamkeep.format.segment.segment import SUFFIX, Segment, segment_path
from streamkeep.format.segment.writer import SegmentWriter

log = logging.getLogger("streamkeep")


class Adopted(NamedTuple):
    """The result for one file."""

    source: Path | str  # a URI, if it is not on a disk
    record: SegmentRecord | None  # None if the archive has all of it that was not erased
    erased: int  # the number of entries left out because they were erased from this store


class _StillLive(CommandError):
    """The stream has entries of the range that are live, or in the node that still grows."""


class _OverlapError(CommandError):
    """The stream has another segment in the range."""

    def __init__(self, message: str, other: SegmentRecord, erased: set[Id]) -> None:
        super().__init__(message)
        self.other = other
        self.erased = erased


class _Target(NamedTuple):
    number: int  # of the stream, which may be a deleted one
    key: bytes
    create: bool  # the stream does not exist; `number` is then the next free one
    named: SegmentRecord | None  # the row of this segment, if the manifest has one
    erased: set[Id]  # entries that must not return


class _File(NamedTuple):
    place: Path | str
    size: int
    open: Callable[[], Segment | None]  # None if there is nothing to take from it
    key: bytes | None = None  # of its stream now; a segment has the key of its time
    sealed: bool = False


def find_files(places: Iterable[Path | str], max_block_bytes: int) -> list[_File]:
    """Return the segment files among paths, below folders, and in archives of other stores.

    Raises:
        ArgumentError: a path does not exist, or a URI is not that of a store's archive.
        StoreError: a folder cannot be listed.
    """
    found: set[Path] = set()
    remote: list[_File] = []
    for place in places:
        if isinstance(place, str):
            remote += _find_remote(place)
        elif (place / HEAD).is_file() and _is_uuid(place.name):
            remote += _find_remote(str(place))
        elif place.is_dir():
            try:
                found.update(path for path in files_below(place) if path.name.endswith(SUFFIX))
            except OSError as error:
                raise StoreError(f"{error.filename}: cannot be listed: {error.strerror}") from error
        elif place.is_file():
            found.add(place)
        else:
            raise ArgumentError(f"{place}: no such file or folder")
    opener = partial(open_segment, max_block_bytes=max_block_bytes)
    files = [_File(path, path.stat().st_size, partial(opener, path)) for path in sorted(found)]
    return files + remote


def _find_remote(uri: str) -> list[_File]:
    """Return the segments of a store's archive; of sealed ones, what no archived one has."""
    parent, _, folder = normal_uri(uri).rpartition("/")
    if not _is_uuid(folder):
        raise ArgumentError(
            f"{uri}: expected the archive of one store: the URI of a fleet, a slash and a UUID"
        )
    archive = RemoteArchive(open_objects(parent), folder)
    newest = archive.newest()
    if newest is None:
        raise ArgumentError(f"{uri}: there is no archive of a store")
    manifest = newest[1]
    keys = {number: stream.key for number, stream in manifest.streams.items()}
    by_stream = manifest.by_stream()
    # Streams that exist come first: a deleted one may have had the key, and the IDs, of another.
    existing = {number for number, stream in manifest.streams.items() if stream.exists}
    order = sorted(by_stream, key=lambda number: (number not in existing, number))
    parts = [part for number in order for part in parts_of(by_stream[number])]
    taken = {one.name for _, _, one in parts}
    for one in manifest.segments:
        if one.name not in taken:
            log.warning(
                "%s/%s is left out: it has entries that were trimmed without being archived, and "
                "their range is that of archived segments; next: adopt this object as a file, "
                "with another key",
                archive.uri,
                one.name,
            )
    return [
        _File(
            f"{archive.uri}/{one.name}",
            one.record.size_bytes,
            partial(_open_part, archive, one, first, last),
            keys.get(one.record.stream_number),
            one.sealed,
        )
        for first, last, one in parts
    ]


def _is_uuid(name: str) -> bool:
    try:
        return bool(UUID(name))
    except ValueError:
        return False


def _open_part(archive: RemoteArchive, one: RemoteSegment, first: Id, last: Id) -> Segment | None:
    """Open a segment of a store's archive; make one, in memory, of a part of a sealed one.

    The same part becomes the same bytes each time, so that the archive knows it again.
    """
    record = one.record
    segment = archive.open(record, sealed=one.sealed)
    if (first, last) == (record.first_id, record.last_id):
        return segment
    writer = SegmentWriter(
        segment.index,
        created_ms=segment.trailer.created_ms,
        epoch=segment.trailer.epoch,
        file_number=segment.trailer.file_number,
    )
    data = b"".join(writer.add(node, segment.where) for node in nodes_of(segment, first, last))
    if writer.entries == 0:
        return None
    data += writer.finish()
    return Segment.open(lambda at, size: data[at : at + size], len(data), segment.where)


def adopt(
    environment: Environment,
    places: Iterable[Path | str],
    key: bytes | None,
    progress: Progress | None,
    max_block_bytes: int,
) -> Iterator[Adopted]:
    """Adopt segment files one after the other; yield the result for each.

    Args:
        key: the stream that they will belong to; it is created if it is missing. None for the
            stream for which they were written: the stream of that number if this store wrote them,
            or else the stream of that key.
        max_block_bytes: the limit for the decompressed size of a block.

    Raises:
        StoreError: a block is larger. Files before it remain adopted.
        CorruptionError: a file is damaged. Files before it remain adopted.
        CommandError: a file overlaps with what the stream has. Files before it remain adopted; from
            the archive of a store, all others that fit. A sealed one that overlaps live entries is
            left out.
    """
    wanted = find_files(places, max_block_bytes)
    total = sum(one.size for one in wanted)
    done = 0
    unfit: CommandError | None = None
    written_for: dict[int, tuple[bytes, int]] = {}  # by stream: store and stream of its last file
    for one in wanted:
        segment = one.open()
        if segment is not None:
            try:
                with ArchiveLock(environment):  # released before the yield: the caller may archive
                    adopted = _adopt_one(environment, one, segment, key)
            except CommandError as error:
                if isinstance(one.place, Path):
                    raise
                if one.sealed and isinstance(error, _StillLive):
                    log.warning("%s; it is left out: it is a copy of entries that were live", error)
                else:
                    unfit = unfit or error
            else:
                environment.settle()
                if key is None and adopted.record is not None:
                    origin = segment.index.store_uuid, segment.index.stream_number
                    former = written_for.get(adopted.record.stream_number, origin)
                    written_for[adopted.record.stream_number] = origin
                    if former[0] == origin[0] and former[1] != origin[1]:
                        log.warning(
                            "%s is of stream number %d of its store, and files before it are of "
                            "number %d, which had the same key; both are in the stream %s now; "
                            "next: to have them apart, adopt the files of each with a key of its "
                            "own into another store",
                            one.place,
                            origin[1],
                            former[1],
                            quoting.named(adopted.record.key),
                        )
                yield adopted
        done += one.size
        if progress is not None:
            progress(done, total)
    if unfit is not None:
        raise unfit


def _adopt_one(
    environment: Environment, file: _File, segment: Segment, key: bytes | None
) -> Adopted:
    own_uuid, path = environment.uuid.bytes, file.place
    at_home = _below_archive(environment, path) if isinstance(path, Path) else None
    try:
        target = environment.read(_find_target, own_uuid, segment, key, file.key)
    except _OverlapError as error:
        if at_home is None and _is_rest(environment, error.other, segment, error.erased):
            return Adopted(path, None, 0)
        raise
    if target.named is not None and _is_there(environment, target.named):
        return Adopted(path, None, 0)
    for problem in segment.check():
        raise problem
    if target.named is not None:
        copy_segment(segment, environment.folder, stored_name(target.named.path))
        return Adopted(path, target.named, 0)
    erased = sorted(target.erased)
    gone = len(segment.those_of(erased))
    if at_home is None and gone == segment.trailer.entries:
        return Adopted(path, None, gone)
    changes = has_pieces(segment, erased)
    doomed = {name for _, name in environment.read(doomed_files)}  # which will be removed
    if at_home is not None and at_home not in doomed and not changes:
        where = at_home
        with translated(system=True):
            environment.folder.sync_file(stored_name(where))  # another program has written it
    else:
        file_number, where = _new_path(environment, target, segment)
        if changes:
            # Without a dictionary: that of the file may contain parts of those entries.
            written = write_segment(
                environment,
                target.number,
                target.key,
                file_number,
                segment.index,
                nodes_of(segment, without=erased),
                segment.where,
            )
            if written is None:
                raise CommandError(
                    f"{segment.where}: all of its entries were erased from this store"
                )
            where, segment = written
        else:
            copy_segment(segment, environment.folder, stored_name(where))
            segment = open_stored(environment.folder, where)
    failpoints.hit("adopt:copied")
    replaced = at_home if changes else None
    try:
        record = environment.write(
            _register, own_uuid, segment, key, file.key, where, gone, replaced, wait=True
        )
    except CommandError:  # it does not fit by now
        discard(environment, [where] if where != at_home else [])
        raise
    failpoints.hit("adopt:named")
    return Adopted(path, record, gone)


def _is_there(environment: Environment, record: SegmentRecord) -> bool:
    """Return whether the file of a row exists, on the disk or in the object store."""
    if environment.folder.exists(stored_name(record.path)):
        return True
    remote = environment.remote_archive()
    if remote is None:
        return False
    return remote.objects.size(remote.name(segment_name(record.path))) is not None


def _is_rest(
    environment: Environment, record: SegmentRecord, segment: Segment, erased: set[Id]
) -> bool:
    """Return whether a segment of the archive is another one without what was erased."""
    with suppress(CorruptionError, UnreachableError):  # then nobody knows, and it overlaps
        if _is_there(environment, record):
            there = chain.from_iterable(_entries(environment.segments.open(record)))
            rest = (one for one in chain.from_iterable(_entries(segment)) if one[:2] not in erased)
            return all(one == other for one, other in zip_longest(rest, there))
    return False


def _entries(segment: Segment) -> Iterator[Entries]:
    for block in range(len(segment.index.blocks)):
        for node in segment.block(block):
            yield entries_of(node.ms, node.seq, node.listpack)


def _new_path(environment: Environment, target: _Target, segment: Segment) -> tuple[int, str]:
    """Return a file number and the path of a new file that does not exist.

    After a power loss, a file may exist whose number was lost and is given out again.
    """
    first, last = segment.trailer.first_id, segment.trailer.last_id
    while True:
        file_number = environment.write(take_file_number)
        epoch = environment.context.epoch
        where = segment_path(target.number, target.key, first, last, epoch, file_number)
        if not environment.folder.exists(stored_name(where)):
            return file_number, where


def _find_target(
    txn: Txn, own_uuid: bytes, segment: Segment, key: bytes | None, present: bytes | None
) -> _Target:
    """Return the stream that a segment belongs to; raise CommandError if it does not fit there.

    Args:
        key: of the stream that shall get it.
        present: the key that its stream has by now, where it is known.
    """
    index, trailer = segment.index, segment.trailer
    first, last = trailer.first_id, trailer.last_id
    body = txn.get_row(META, NEXT_STREAM, "meta")
    following = 1 if body is None else decode_counter(body, "meta")
    ours = index.store_uuid == own_uuid and 0 < index.stream_number < following
    name = next(one for one in (key, present, index.key) if one is not None)
    named = txn.find_stream(name)
    named_number = 0 if named is None else named.number
    known = index.stream_number if ours and key is None else named_number
    number = known or following
    numbers = {number, index.stream_number} if ours else {number}
    erased = set[Id]().union(*(erased_ids(txn, one, first, last) for one in numbers))
    for other in overlapping(txn, number, first, last):
        if other.checksum == trailer.checksum:
            return _Target(number, name, False, other, set())
        problem = (
            f"it overlaps with {other.where}; next: if the file of that is lost, "
            "`streamkeep archive remove` its row, then adopt again"
        )
        raise _OverlapError(_unfit(segment, problem), other, erased)
    if txn.get(STREAMS, pack_number(number)) is not None:
        stream = txn.load_numbered(number, name)
        if stream.has_tail() and (stream.tail_ms, stream.tail_seq) <= last:  # it still grows
            newest = StreamId(stream.tail_ms, stream.tail_seq)
            problem = f"the newest live entries begin at {newest}, not after it"
            raise _StillLive(_unfit(segment, problem))
        if stream.nodes() and (node := _node_within(Live(txn, stream), first, last)):
            problem = f"it overlaps with the live entries from {StreamId(*node)} on"
            raise _StillLive(_unfit(segment, problem))
    if _node_within(Retired(txn, number), first, last):
        problem = (
            "this store has trimmed entries of that range that are not archived yet; next: "
            "archive them, then adopt the file"
        )
        raise CommandError(_unfit(segment, problem))
    head = segment.block(0)[0]  # its field names may come from an entry before its first one
    erased.update(*(erased_ids(txn, one, (head.ms, head.seq), first) for one in numbers))
    return _Target(number, name, known == 0, None, erased)


def _node_within(source: Source, first: Id, last: Id) -> Id | None:
    """Return the key of the last node, with slots of trimmed entries, that touches a range."""
    if source.at_or_below(*last):
        ms, seq = source.ms, source.seq
        if end_ids(source.raw(), ms, seq).last_slot >= first:
            return ms, seq
    return None


def _unfit(segment: Segment, problem: str) -> str:
    first, last = StreamId(*segment.trailer.first_id), StreamId(*segment.trailer.last_id)
    return f"{segment.where} ({first} to {last}) does not fit: {problem}"


def _register(
    txn: WriteTxn,
    own_uuid: bytes,
    segment: Segment,
    key: bytes | None,
    present: bytes | None,
    path: str,
    erased: int,
    replaced: str | None,
) -> SegmentRecord:
    """Write the row of a file that is in place; create the stream if it is missing."""
    target = _find_target(txn, own_uuid, segment, key, present)
    if target.create:
        txn.create_stream(target.key)
    stream = find_numbered(txn, target.number)
    if stream is not None and stream.record.last_id() < segment.trailer.last_id:
        stream.set_last_id(segment.trailer.last_id)  # so that the next entry follows it
    if replaced is not None:
        txn.add_garbage(encode_file_garbage(replaced))
    return put_segment(
        txn,
        record_of(segment, path, ADOPTED)._replace(
            stream_number=target.number,
            key=target.key,
            created_ms=txn.now_ms(),
            epoch=txn.context.epoch,
            erased=erased,
        ),
    )


def _below_archive(environment: Environment, path: Path) -> str | None:
    """Return the path of a file relative to `archive/`; None for a file elsewhere."""
    folder = (environment.path / ARCHIVE_FOLDER).resolve()
    try:
        inside = path.resolve().relative_to(folder).as_posix()
    except ValueError:
        return None
    return inside if is_safe_path(inside) else None
