"""Adopting segment files that no manifest names: copied from elsewhere, or left by a crash.

A file is checked to the last byte, and its range of IDs against everything that the stream has.
No entry is in two places: a segment may overlap no macro node, of which the newest grows upwards,
nor what else is archived; it may well lie between nodes, where a range was trimmed. Then the file
is copied to a name of its own below `archive/` (or stays, if it is there already), and a row of the
manifest names it. A file without its row changes nothing, so a crash leaves at worst a file to
adopt again.

A segment that the manifest names already is passed over, unless its file is gone: then the copy
takes the place of that, and the manifest stays as it is.

Entries that were erased here do not come back: a file that has some is written anew without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from streamkeep.engine.archive.iterate import nodes_without, retired_from
from streamkeep.engine.archive.lock import archive_lock
from streamkeep.engine.archive.segment_output import segment_output
from streamkeep.engine.commands.keys import name_of
from streamkeep.engine.model.manifest import erased_ids, overlapping, put_segment, take_file_number
from streamkeep.engine.model.node_walk import NodeWalk
from streamkeep.engine.model.segment_files import (
    ARCHIVE_FOLDER,
    open_segment,
    open_stored,
    stored_name,
)
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import NEXT_STREAM, Txn, WriteTxn
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, CommandError
from streamkeep.format.core.keys import META, STREAMS, pack_number
from streamkeep.format.node.node import end_ids, has_live
from streamkeep.format.rows.records import decode_counter, encode_file_garbage, is_safe_path
from streamkeep.format.segment.manifest import ADOPTED, SegmentRecord, record_of
from streamkeep.format.segment.segment import SUFFIX, Segment, segment_path
from streamkeep.format.segment.writer import SegmentWriter

Id = tuple[int, int]
Progress = Callable[[int, int], None]  # (bytes done, of)

_COPY_BYTES: Final = 1 << 20


class Adopted(NamedTuple):
    """What became of one file."""

    source: Path
    record: SegmentRecord | None  # None: the archive has this very segment already
    erased: int  # entries that were left out, because they were erased here


class _Place(NamedTuple):
    """Where a segment belongs."""

    number: int  # of the stream, which may be a deleted one
    key: bytes
    create: bool  # the stream is to be created; the number is the next one then
    named: SegmentRecord | None  # the row of this very segment, where the manifest has one
    erased: set[Id]  # what may not come back


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the segment files among paths and below those that are folders, sorted.

    Raises:
        ArgumentError: a path does not exist.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found.update(path.rglob(f"*{SUFFIX}"))
        elif path.is_file():
            found.add(path)
        else:
            raise ArgumentError(f"{path}: no such file or folder")
    return sorted(found)


def adopt(
    environment: Environment,
    paths: Iterable[Path],
    key: bytes | None,
    progress: Progress | None,
    max_block_bytes: int,
) -> Iterator[Adopted]:
    """Adopt segment files, one after the other; yield what became of each.

    Args:
        key: the stream that they are to belong to; it is created when it is missing. None for the
            stream they were written for: the one of that number where this store wrote them, else
            the one of that key.
        max_block_bytes: what a block may take when it is decompressed.

    Raises:
        StoreError: a block takes more. Files before it stay adopted.
        CorruptionError: a file is damaged. Those before it stay adopted.
        CommandError: it does not fit to what the stream has.
    """
    wanted = find_files(paths)
    total = sum(path.stat().st_size for path in wanted)
    done = 0
    for path in wanted:
        segment = open_segment(path, max_block_bytes=max_block_bytes)
        with archive_lock(environment):  # not while the caller works: it may archive meanwhile
            adopted = _adopt_one(environment, path, segment, key)
        environment.settle()
        yield adopted
        done += segment.size
        if progress is not None:
            progress(done, total)


def _adopt_one(
    environment: Environment, path: Path, segment: Segment, key: bytes | None
) -> Adopted:
    """Adopt one file, under the archive's lock."""
    own_uuid = environment.uuid.bytes
    place = environment.read(_find_place, own_uuid, segment, key)
    if place.named is not None and environment.folder.exists(stored_name(place.named.path)):
        return Adopted(path, None, 0)
    for problem in segment.check():
        raise problem
    if place.named is not None:
        _copy(environment, segment, place.named.path)
        return Adopted(path, place.named, 0)
    gone = {one for one in place.erased if _has(segment, one)}
    at_home = _below_archive(environment, path)
    if at_home is not None and not gone:
        where = at_home
    else:
        file_number, where = _new_path(environment, place, segment)
        with segment_output(environment.folder, stored_name(where)) as output:
            parts = (
                _without(segment, gone, environment, file_number) if gone else _bytes_of(segment)
            )
            for part in parts:
                output.write(part)
        segment = open_stored(environment.folder, where)
    failpoints.hit("adopt:copied")
    replaced = at_home if gone else None
    arguments = (own_uuid, segment, key, where, len(gone), replaced)
    record = environment.write_alone(_register, arguments, True, False)
    failpoints.hit("adopt:named")
    return Adopted(path, record, len(gone))


def _copy(environment: Environment, segment: Segment, path: str) -> None:
    """Write the file of a segment, as it is, under a name in the archive that is free."""
    with segment_output(environment.folder, stored_name(path)) as output:
        for part in _bytes_of(segment):
            output.write(part)


def _new_path(environment: Environment, place: _Place, segment: Segment) -> tuple[int, str]:
    """Return a file number and the path of a new file, which is not there.

    After a power loss, a file may be there whose number is forgotten, and given out again.
    """
    first, last = segment.trailer.first_id, segment.trailer.last_id
    while True:
        file_number = environment.write(take_file_number)
        epoch = environment.context.epoch
        where = segment_path(place.number, place.key, first, last, epoch, file_number)
        if not environment.folder.exists(stored_name(where)):
            return file_number, where


def _find_place(txn: Txn, own_uuid: bytes, segment: Segment, key: bytes | None) -> _Place:
    """Return where a segment belongs; raise CommandError when it does not fit there."""
    index, trailer = segment.index, segment.trailer
    first, last = trailer.first_id, trailer.last_id
    body = txn.get_row(META, NEXT_STREAM, "meta")
    following = 1 if body is None else decode_counter(body, "meta")
    ours = index.store_uuid == own_uuid and 0 < index.stream_number < following
    name = index.key if key is None else key
    named = txn.find_stream(name)
    named_number = 0 if named is None else named.number
    known = index.stream_number if ours and key is None else named_number
    number = known or following
    for other in overlapping(txn, number, first, last):
        if other.checksum == trailer.checksum:
            return _Place(number, name, False, other, set())
        raise _unfit(segment, f"it overlaps {other.where}")
    if txn.get(STREAMS, pack_number(number)) is not None:
        _check_live(txn, txn.load_numbered(number, name), segment)
    for node in retired_from(txn, number, first, None, 1):
        if (node.ms, node.seq) <= last:
            raise _unfit(segment, "its entries are still to be archived here; archive them first")
    erased = erased_ids(txn, number, first, last)
    if ours:
        erased |= erased_ids(txn, index.stream_number, first, last)
    return _Place(number, name, known == 0, None, erased)


def _check_live(txn: Txn, stream: Stream, segment: Segment) -> None:
    """Raise CommandError when a macro node of the stream is in the range of a segment."""
    walk = NodeWalk(txn, stream)
    if not stream.nodes() or not walk.seek(*segment.trailer.last_id):
        return
    key = (walk.ms, walk.seq)
    if key > segment.trailer.last_id:
        return
    if walk.on_tail:
        raise _unfit(segment, f"the newest live entries begin at {StreamId(*key)}, not behind it")
    if end_ids(walk.load(), *key).last_slot >= segment.trailer.first_id:
        raise _unfit(segment, f"it overlaps the live entries from {StreamId(*key)} on")


def _unfit(segment: Segment, problem: str) -> CommandError:
    first, last = StreamId(*segment.trailer.first_id), StreamId(*segment.trailer.last_id)
    return CommandError(f"{segment.where} ({first} to {last}) does not fit: {problem}")


def _register(
    txn: WriteTxn,
    own_uuid: bytes,
    segment: Segment,
    key: bytes | None,
    path: str,
    erased: int,
    replaced: str | None,
) -> SegmentRecord:
    """Write the row of a file that is in its place; create the stream where it is missing."""
    place = _find_place(txn, own_uuid, segment, key)
    if place.create:
        txn.create_stream(place.key)
    _raise_last_id(txn, place, segment.trailer.last_id)
    if replaced is not None:
        txn.add_garbage(encode_file_garbage(replaced))
    return put_segment(
        txn,
        record_of(
            segment,
            stream_number=place.number,
            path=path,
            key=place.key,
            sequence=0,
            created_ms=txn.now_ms(),
            epoch=txn.context.epoch,
            origin=ADOPTED,
            erased=erased,
        ),
    )


def _raise_last_id(txn: WriteTxn, place: _Place, last: Id) -> None:
    """Have the next entry of a stream, if it exists, come after the segment."""
    name = name_of(txn, place.number, [place.key])
    stream = None if name is None else txn.find_stream(name)
    if stream is not None and (stream.record.last_ms, stream.record.last_seq) < last:
        stream.record.last_ms, stream.record.last_seq = last


def _below_archive(environment: Environment, path: Path) -> str | None:
    """Return the path of a file below `archive/`; None for a file elsewhere."""
    folder = (environment.path / ARCHIVE_FOLDER).resolve()
    try:
        inside = path.resolve().relative_to(folder).as_posix()
    except ValueError:
        return None
    return inside if is_safe_path(inside) else None


# --- what goes into the file --------------------------------------------------------------------


def _bytes_of(segment: Segment) -> Iterator[bytes]:
    """Yield the bytes of a segment's file."""
    for at in range(0, segment.size, _COPY_BYTES):
        yield segment.read_at(at, min(_COPY_BYTES, segment.size - at))


def _has(segment: Segment, wanted: Id) -> bool:
    """Say whether a segment has an entry."""
    number = segment.seek(*wanted)
    if number == len(segment.index.blocks):
        return False
    return any(
        has_live(node.listpack, node.ms, node.seq, *wanted) for node in segment.block(number)
    )


def _without(
    segment: Segment, gone: set[Id], environment: Environment, file_number: int
) -> Iterator[bytes]:
    """Yield the bytes of a segment without some of its entries.

    It has no dictionary: that of the old one may hold what is to go.
    """
    writer = SegmentWriter(
        store_uuid=segment.index.store_uuid,
        stream_number=segment.index.stream_number,
        key=segment.index.key,
        created_ms=environment.context.clock.now_ms(),
        epoch=environment.context.epoch,
        file_number=file_number,
    )
    for node in nodes_without(segment, sorted(gone)):
        yield writer.add(node, segment.where)
    if writer.entries == 0:
        raise CommandError(f"{segment.where}: all of its entries were erased from this store")
    yield writer.finish()
