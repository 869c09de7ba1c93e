"""Checks of the archive: rows of the manifest, retired nodes, and segment files.

Each entry must be in one place: segments, retired nodes and live nodes of a stream must not
overlap. The check compares ranges of IDs, and reads only those live nodes that are next to
archived entries.

A quick check reads trailer and index of each file, a full check every byte. While other processes
use the store, files come and go, so a problem is reported only if the newest manifest still names
the file.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from streamkeep.engine.archive.segment_output import TEMPORARY
from streamkeep.engine.crash_recovery.stored_rows import META_UUID
from streamkeep.engine.remote.remote_archive import RemoteArchive, check_means, remote_archive
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables import segment_files
from streamkeep.engine.tables.manifest import NEXT_SEQUENCE
from streamkeep.engine.txn.txn import NEXT_STREAM
from streamkeep.engine.whole_store.scrub import META_SCRUB
from streamkeep.format.core import errors
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import META, NODES, RETIRED, pack_number, unpack_node_key
from streamkeep.format.node.check import validate
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.node import end_ids
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.records import ARCHIVE_FILE, decode_uuid
from streamkeep.format.rows.retired import decode_former_name, is_former_name
from streamkeep.format.segment.manifest import SegmentRecord, as_in_file
from streamkeep.format.segment.remote import META_REMOTE, RemoteSetting, decode_setting
from streamkeep.format.segment.segment import Segment
from streamkeep.recovery.fsck import rows as shapes
from streamkeep.recovery.fsck.findings import Finding, Scope, finding
from streamkeep.recovery.fsck.rows import Rows
from streamkeep.recovery.fsck.source import Source, open_source
from streamkeep.recovery.fsck.streams import stream_at
from streamkeep.recovery.pages.tree import Tables

_SEGMENT: Final = 0
_RETIRED: Final = 1
_LIVE: Final = 2


def check_archive(source: Source, tables: Tables, scope: Scope) -> Iterator[Finding]:
    """Check the archived entries and the retired nodes of all streams."""
    yield from check_retired(tables)
    yield from check_places(tables)
    yield from check_manifest(tables)
    yield from check_segments(source, tables, scope)
    yield from check_strays(source, tables)


# --- rows ---------------------------------------------------------------------------------------


def check_retired(tables: Tables) -> Iterator[Finding]:
    """SK306: every retired node can be read and has a trimmed entry."""
    for row in tables.walk(RETIRED):
        try:
            _check_retired(row.key, row.value())
        except errors.CorruptionError as error:
            yield finding("SK306", _retired_place(row.key), error.problem)


def _check_retired(db_key: bytes, value: bytes) -> None:
    where = shapes.row_place(RETIRED, db_key)
    number, ms, seq = unpack_node_key(db_key)
    if is_former_name(ms, seq):
        decode_former_name(number, value, where)
        return
    envelope = decode_envelope(value, where)
    if (envelope.number, envelope.ms, envelope.seq) != (number, ms, seq) or envelope.record:
        raise errors.CorruptionError(where, f"the envelope is of node {envelope.ms}-{envelope.seq}")
    data = history_form(envelope.listpack, ms, seq, envelope.trimmed)
    if not data:
        raise errors.CorruptionError(where, "none of its entries was trimmed")
    validate(data, ms, seq)


def _retired_place(db_key: bytes) -> str:
    try:
        number, ms, seq = unpack_node_key(db_key)
    except errors.CorruptionError:
        return shapes.row_place(RETIRED, db_key)
    return f"retired node {ms}-{seq} of stream number {number}"


class _Place(NamedTuple):
    """A segment or a node with some entries of a stream."""

    first: Id
    kind: int
    last: Id | None  # None for a node that must be read for it
    where: str


def check_places(tables: Tables) -> Iterator[Finding]:
    """SK304, SK305: segments, retired nodes and live nodes of a stream do not overlap."""
    numbers = set(shapes.numbers_in(tables, RETIRED))
    numbers.update(row.stream_number for _, row in Rows(tables).under(shapes.SEGMENT_SHAPE))
    for number in sorted(numbers):
        segments = Rows(tables).under(shapes.SEGMENT_SHAPE, pack_number(number))
        before: _Place | None = None
        reach: Id = (0, 0)  # the highest ID of `before` and of all places before it
        for place in heapq.merge(
            (_Place(row.first_id, _SEGMENT, row.last_id, row.where) for _, row in segments),
            _node_places(tables, RETIRED, number, _RETIRED),
            _node_places(tables, NODES, number, _LIVE),
            _tail_place(tables, number),
        ):
            if before is not None and (before.kind, place.kind) != (_LIVE, _LIVE):
                reach = max(reach, _end_of(tables, number, before))
                if place.first <= reach:
                    same = before.kind == place.kind == _SEGMENT
                    problem = f"begins at {StreamId(*place.first)}, within {before.where}"
                    yield finding("SK304" if same else "SK305", place.where, problem)
            before = place


def _node_places(tables: Tables, table: int, number: int, kind: int) -> Iterator[_Place]:
    name = "retired" if kind == _RETIRED else "macro"
    for row in tables.walk(table, pack_number(number)):
        if len(row.key) == 24:
            _, ms, seq = unpack_node_key(row.key)
            where = f"{name} node {ms}-{seq} of stream number {number}"
            if not is_former_name(ms, seq):
                yield _Place((ms, seq), kind, None, where)


def _tail_place(tables: Tables, number: int) -> Iterator[_Place]:
    """Yield the tail node, which is stored with the stream record."""
    try:
        stream = stream_at(tables, number, None)
        if stream is not None and stream.has_tail():
            ms, seq = stream.tail_ms, stream.tail_seq
            last = end_ids(stream.tail_data(), ms, seq).last_slot
            yield _Place((ms, seq), _LIVE, last, f"macro node {ms}-{seq} of stream number {number}")
    except errors.CorruptionError:
        return  # reported by check_stream


def _end_of(tables: Tables, number: int, place: _Place) -> Id:
    """Return the last ID of a place; its first ID if it cannot be read."""
    if place.last is not None:
        return place.last
    table = RETIRED if place.kind == _RETIRED else NODES
    ms, seq = place.first
    try:
        value = tables.get(table, pack_number(number) + pack_number(ms) + pack_number(seq))
        if value is not None:
            return end_ids(decode_envelope(value, place.where).listpack, ms, seq).last_slot
    except errors.CorruptionError:
        pass  # reported by the checks of nodes
    return place.first


def check_manifest(tables: Tables) -> Iterator[Finding]:
    """SK308, SK309: no sequence is repeated; sequences and stream numbers are not given again."""
    rows = Rows(tables)
    seen: dict[int, str] = {}
    streams = 0
    for _, row in rows.under(shapes.SEGMENT_SHAPE):
        streams = max(streams, row.stream_number)
        other = seen.setdefault(row.sequence, row.where)
        if other != row.where:
            yield finding("SK308", row.where, f"{other} has the same sequence {row.sequence}")
    yield from shapes.check_counter(tables, NEXT_SEQUENCE, max(seen, default=0))
    for db_key, _ in rows.under(shapes.ERASURE_SHAPE):
        streams = max(streams, unpack_node_key(db_key)[0])
    streams = max([streams, *shapes.numbers_in(tables, RETIRED)])
    # What cannot be read is reported with the counters of streams.
    found = shapes.check_counter(tables, NEXT_STREAM, streams, "SK309")
    yield from (one for one in found if one.code == "SK309")


# --- files --------------------------------------------------------------------------------------


def check_segments(source: Source, tables: Tables, scope: Scope) -> Iterator[Finding]:
    """SK301, SK302, SK303, SK307, SK310: each row has its sound file, without erased entries.

    SK314 to SK316: the object store of the archive answers, and has what the store wrote there.
    """
    remote = Remote(tables)
    every = (row for _, row in Rows(tables).under(shapes.SEGMENT_SHAPE))
    found, failure = _check_files(source, tables, every, remote, scope)
    now = _named_by_now(source) if found else None
    if now is not None:
        named, _, newest = now
        found = [(row, one) for row, one in found if row.path in named]
        if remote.setting is None and newest.setting is not None:
            # The files have just gone to the object store.
            remote = newest
            rows = {row.path: row for row, _ in found}
            found, again = _check_files(source, tables, rows.values(), remote, scope)
            failure = failure or again
    yield from (one for _, one in found)
    if failure is not None:
        raise failure
    yield from remote.findings(scope.quick)


def _check_files(
    source: Source, tables: Tables, rows: Iterable[SegmentRecord], remote: Remote, scope: Scope
) -> tuple[list[tuple[SegmentRecord, Finding]], errors.StoreError | None]:
    """Return what is wrong with the files of rows, and why the rest was not checked, if so."""
    found: list[tuple[SegmentRecord, Finding]] = []
    for row in rows:
        try:
            problems = list(_check_file(tables, row, source.folder, remote, scope))
        except errors.UnreachableError as error:
            remote.failure = error
            continue
        except errors.StoreError as error:  # such as too little memory: first what was found
            return found, error
        finally:
            scope.progress.advance(0)
        elsewhere = False
        with suppress(OSError):  # its folder cannot be read, as the problem says
            there = source.folder.exists(segment_files.stored_name(row.path))
            elsewhere = remote.setting is not None and not there
        found += [(row, replace(one, elsewhere=elsewhere)) for one in problems]
    return found, None


class Remote:
    """The archive of a store in an object store, as far as it can be reached.

    Attributes:
        failure: the first error in reaching it; segments that are only there are then not checked.
        setting: where it is; None if the store has none there.
    """

    def __init__(self, tables: Tables) -> None:
        self.failure: errors.UnreachableError | None = None
        self.setting: RemoteSetting | None = None
        self._archive: RemoteArchive | None = None
        try:
            body = tables.get_row(META, META_REMOTE, "meta")
            uuid_body = tables.get_row(META, META_UUID, "meta")
            if body is None or uuid_body is None:
                return
            self.setting = decode_setting(body, "meta")
            store = str(UUID(bytes=decode_uuid(uuid_body, "meta")))
            self._archive = remote_archive(self.setting, store)
        except errors.CorruptionError:
            return  # reported by check_meta
        except errors.UnreachableError as error:
            self.failure = error

    def __call__(self) -> RemoteArchive | None:
        """Return the archive; None if the store has none there.

        Raises:
            UnreachableError: it was not reached before.
        """
        if self.failure is not None:
            raise self.failure
        return self._archive

    def findings(self, quick: bool) -> Iterator[Finding]:
        """SK314 to SK316: the archive answers, with what was written: the head, sealed segments."""
        if self.setting is None:
            return
        where = f"archive at {self.setting.uri}"
        expected = self.setting.version
        try:
            archive = self()
            head = None if archive is None else archive.head()
            version = 0 if head is None else head.version
            if version > expected:  # as of each backup, once its store has gone on
                yield finding(
                    "SK316", where, f"its version is {version}, {expected} here", elsewhere=True
                )
            elif version + 1 < expected:
                problem = f"its version is {version}, expected {expected}: a write was lost"
                yield finding("SK315", where, problem, elsewhere=True)
            elif archive is not None:
                yield from _check_sealed(archive, quick)
        except errors.UnreachableError as error:
            yield finding("SK314", where, str(error), elsewhere=True)
        except (errors.CorruptionError, errors.FormatVersionError) as error:
            yield finding("SK315", where, _problem_of(error), elsewhere=True)


def _check_sealed(archive: RemoteArchive, quick: bool) -> Iterator[Finding]:
    """SK315: each sealed segment that the newest manifest names is there, and whole."""
    newest = archive.newest()
    for one in () if newest is None else newest[1].segments:
        if not one.sealed:
            continue
        try:
            if quick:
                archive.segment(one.record, sealed=True)
            else:
                archive.verify(one.record, sealed=True)
        except (errors.CorruptionError, errors.FormatVersionError) as error:
            now = archive.newest()
            if now is not None and one in now[1].segments:
                where = f"{archive.uri}/{one.name}"
                yield finding("SK315", where, _problem_of(error), elsewhere=True)


def _check_file(
    tables: Tables, row: SegmentRecord, store: Folder, remote: Remote, scope: Scope
) -> Iterator[Finding]:
    try:
        segment = segment_files.open_archived(store, row, remote)
    except errors.MissingSegmentError as error:
        yield finding("SK301", row.where, error.problem)
        return
    except (errors.CorruptionError, errors.FormatVersionError, errors.UntrustedFileError) as error:
        yield finding("SK302", row.where, _problem_of(error))
        return
    try:
        check_means(row, segment)
    except errors.CorruptionError as error:
        yield finding("SK303", row.where, error.problem)
        return
    expected = as_in_file(row, segment)
    if expected != row:
        names = [name for name in row._fields if getattr(expected, name) != getattr(row, name)]
        yield finding("SK307", row.where, f"the row differs from the file in {', '.join(names)}")
    if scope.quick:
        return
    for problem in segment.check():
        yield finding("SK302", problem.where, problem.problem)
    yield from _check_erasures(tables, row, segment)


def _problem_of(error: errors.StreamkeepError) -> str:
    return error.problem if isinstance(error, errors.CorruptionError) else str(error)


def _check_erasures(tables: Tables, row: SegmentRecord, segment: Segment) -> Iterator[Finding]:
    """SK310: a segment has no erased entry, unless the erasure is not finished yet."""
    if tables.get(META, META_SCRUB) is not None:
        return
    rows = Rows(tables).under(shapes.ERASURE_SHAPE, pack_number(row.stream_number))
    erased = (unpack_node_key(db_key)[1:] for db_key, _ in rows)
    inside = (one for one in erased if row.first_id <= one <= row.last_id)
    for _, of_block in groupby(inside, lambda one: segment.seek(*one)):
        with suppress(errors.CorruptionError):  # of the block, which is reported above
            for one in segment.those_of(of_block):
                problem = f"contains entry {StreamId(*one)}, which was erased"
                yield finding("SK310", row.where, problem)


def _named_by_now(source: Source) -> tuple[set[str], set[str], Remote] | None:
    """Return what the store has by now: files of the manifest, garbage, and the object store.

    None for a check that keeps other processes out: what it reads is the newest, and to open the
    store again would wait for this very check.
    """
    if source.alone:
        return None
    with open_source(source.path) as newest:
        if newest.tables is None:
            return None
        rows = Rows(newest.tables)
        named = {row.path for _, row in rows.under(shapes.SEGMENT_SHAPE)}
        garbage = {row.path for _, row in rows.under(shapes.GARBAGE_SHAPE)}
        return named, garbage, Remote(newest.tables)


def check_strays(source: Source, tables: Tables) -> Iterator[Finding]:
    """SK311 to SK313, SK317: each file is named either by the manifest or as garbage."""
    rows = Rows(tables)
    named = {row.path for _, row in rows.under(shapes.SEGMENT_SHAPE)}
    doomed = {row.path for _, row in rows.under(shapes.GARBAGE_SHAPE) if row.kind == ARCHIVE_FILE}
    for path in sorted(named & doomed):
        yield finding("SK313", f"segment {path}", "the file is listed as garbage")
    if rows.unreadable:
        return
    known = named | doomed | {segment_files.ARCHIVE_LOCK}
    unlisted: list[OSError] = []
    files = source.folder.files_below(segment_files.ARCHIVE_FOLDER, unlisted.append)
    for error in unlisted:
        problem = f"it cannot be listed: {error.strerror}"
        yield finding("SK317", f"folder {error.filename}", problem)
    strays = [one for one in files if one not in known]
    now = _named_by_now(source) if strays else None
    by_now = set[str]() if now is None else now[0] | now[1]
    for path in strays:
        if path.endswith(TEMPORARY):
            yield finding("SK312", f"file {path}", "an unfinished segment")
        elif path not in by_now and source.folder.exists(
            segment_files.stored_name(path)  # it may be gone by now
        ):
            yield finding("SK311", f"file {path}", "no row of the manifest names it")
