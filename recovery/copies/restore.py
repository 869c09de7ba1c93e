"""Restoring a store from a copy, as it was at any commit that the copy has.

1. Put the rows of the base into a new LMDB file, in order, and then those that were written since.
2. Apply the records of level 0 after them, up to the commit, as each process of a store does.
3. Fetch the segments of the archive that this commit names.
4. Check the store with fsck, and only then give it its name. A segment that the copy lacks, or that
   is damaged there, is told: all else is restored, and to read what was in it is an error.

Everything happens in the folder `.NAME.restore` beside the new store. A restore that was killed
goes on there, in the same boot: LMDB's transactions say which pieces it has.
"""

from __future__ import annotations

import json
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import lmdb

from streamkeep.engine.archive.segment_output import segment_output
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, NOWHERE
from streamkeep.engine.journal.slots import Slot
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.progress import StepProgress, silent
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.manifest import decode_row
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, stored_name
from streamkeep.engine.txn.memtable import Memtable
from streamkeep.engine.whole_store.copying import finish_copy, made_beside, open_new, tables_of
from streamkeep.format.copies.head import Generation, Head
from streamkeep.format.copies.piece import PieceName
from streamkeep.format.core.checksum import digest64, with_checksum
from streamkeep.format.core.errors import ArgumentError, CorruptionError, StoreError
from streamkeep.format.core.keys import META, SEGMENTS, TABLES
from streamkeep.format.core.values import whole
from streamkeep.format.humanize import time_text
from streamkeep.format.journal.journal import DELETE, ChangeReader
from streamkeep.format.journal.position import POSITION_KEY, decode_position, encode_position
from streamkeep.format.rows.meta_rows import META_STANDBY, StandbyRow
from streamkeep.format.rows.records import encode_number
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.recovery.copies.shipper import HOLD_BYTES
from streamkeep.recovery.copies.target import (
    OtherHistoryError,
    Place,
    Rows,
    Target,
    chain_of,
    commits_after,
    is_any_removed,
    segment_name,
)
from streamkeep.recovery.fsck.findings import Finding
from streamkeep.recovery.fsck.store import check_whole

_RESTORING: Final = b"restoring"  # beside the log position, until the store is whole
_BATCH_BYTES: Final = 8 << 20
_OF_SEGMENTS: Final = ("SK301", "SK302", "SK303")  # a file is missing, damaged, or another one

T = TypeVar("T")

log = logging.getLogger("streamkeep")


class RestoreReport(NamedTuple):
    """The result of a restore.

    Attributes:
        commit_number: the newest commit that the store has.
        time_ms: Unix time at which that had been made.
        behind: how many later commits the copy has.
        pieces, segments: what was read.
        archive_findings: segments of the archive that the copy lacks or that are damaged there; and
            what fsck found in the object store of the archive, which the store reads from.
    """

    path: Path
    target: str
    generation: str
    commit_number: int
    time_ms: int
    behind: int
    pieces: int
    segments: int
    archive_findings: tuple[Finding, ...] = ()


class Plan(NamedTuple):
    """What is read to restore one commit.

    Attributes:
        rows: the base, and the rows of level 1 that follow it.
        pieces: of level 0 after these.
        end: the commit that is restored.
        time_ms: Unix time at which it had been made.
        newest: the newest commit that the copy has.
    """

    generation: Generation
    rows: tuple[Rows, ...]
    pieces: tuple[PieceName, ...]
    end: int
    time_ms: int
    newest: int


class _DamagedRows(Exception):
    """Rows of level 1 cannot be read; the records that they sum up may be whole."""


def restore_copy(
    target: Place,
    new: str | Path,
    *,
    commit: int | None = None,
    at_ms: int | None = None,
    standby: bool = False,
    progress: StepProgress | None = None,
) -> RestoreReport:
    """Make a store of a copy, as it was at a commit; the newest one by default.

    The copy does not change. On return the store is durable and was checked with fsck. It knows the
    copy: `ship` goes on with a new generation there, and another store that still ships to it gets
    an error. Leases of workers that took jobs before are dead, so others take these jobs.

    Args:
        new: must not exist; its parent folder must.
        commit: the number of a commit.
        at_ms: Unix time in milliseconds; the last piece that was shipped before is restored.
        standby: the store is a standby, which `standby.Standby` follows the copy with.

    Raises:
        ArgumentError: the copy does not have that commit, or begins after that time.
        CorruptionError: the copy is damaged or lacks something, other than segments of the archive;
            the error names it.
        StoreError: there is something at `new`.
        StoreFullError: the disk is full.
        UnreachableError: the target does not answer.
    """
    if commit is not None and at_ms is not None:
        raise ArgumentError("commit and at_ms may not be combined; next: leave out one of them")
    for number, what in ((commit, "commit"), (at_ms, "at_ms")):
        if number is not None:
            whole(number, what, 0)
    place = path_of(new, "new").absolute()
    if os.path.lexists(place):
        raise StoreError(f"{place}: there is something already; next: move it away")
    if not place.parent.is_dir():
        raise StoreError(f"{place.parent}: no such folder; next: create it")
    source = Target(target)
    head = source.known_head()
    parent = Folder(place.parent, outside=True)

    def restore(head: Head, avoid: frozenset[Rows]) -> RestoreReport:
        plan = plan_restore(source, head, commit, at_ms, avoid)
        filling = Filling(source, plan, progress or silent)
        return _restore(filling, head, staging, standby=standby)

    with made_beside(parent, place.name, "restore", goes_on=None) as staging:
        report = until_read(source, head, restore)
        parent.rename(staging.path.name, place.name)
        parent.sync()
        failpoints.hit("ship-restore:named")
    return report._replace(path=place)


def until_read(target: Target, head: Head, read: Callable[[Head, frozenset[Rows]], T]) -> T:
    """Read a copy, and again while a shipper removes what is read, or rows are damaged.

    Args:
        read: takes the head, and the rows that cannot be read, in whose place it reads records.
    """
    avoid: set[Rows] = set()
    while True:
        try:
            return read(head, frozenset(avoid))
        except _DamagedRows as damaged:
            log.warning("%s; the records that they sum up are applied instead", damaged.args[0])
            avoid.add(damaged.args[1])
        except CorruptionError:
            before, head = head, target.known_head()
            if not is_any_removed(before, head):
                raise


def plan_restore(
    target: Target, head: Head, commit: int | None, at_ms: int | None, avoid: frozenset[Rows]
) -> Plan:
    """Return what has to be read; nothing is read but names, and headers for a time."""
    following = None
    for generation in reversed(head.generations):
        before_commit = commit is not None and commit < generation.base_commit
        if before_commit or (at_ms is not None and at_ms < generation.begun_ms):
            following = generation
            continue
        return _plan(target, generation, following, commit, at_ms, avoid)
    oldest = head.generations[0]
    raise ArgumentError(
        f"{target.uri}: the copy begins with commit {oldest.base_commit}, of "
        f"{time_text(oldest.begun_ms)}; next: name a later one"
    )


def _plan(
    target: Target,
    generation: Generation,
    following: Generation | None,
    commit: int | None,
    at_ms: int | None,
    avoid: frozenset[Rows],
) -> Plan:
    found = target.rows(generation.name)
    base = target.base(generation, found)
    names = target.names(generation.name, 0)
    newest, damage = generation.base_commit, ""
    if names:
        try:
            newest = target.piece(names[-1])[0].last_commit  # a header alone proves nothing
        except CorruptionError as error:
            newest, damage = names[-1].first - 1, error.problem
    end = newest
    if commit is not None:
        end = commit
    elif at_ms is not None:
        # The last piece that was written by then: within a generation times never fall.
        at = bisect_right(names, at_ms, key=lambda name: target.header(name).last_ms)
        for name in names[max(0, at - 1) : at + 1]:
            target.piece(name)
        end = target.header(names[at - 1]).last_commit if at else generation.base_commit
        if following is not None and end == newest < following.base_commit:
            log.warning(
                "%s: what was committed between commit %d and %d is not in the copy, and some of "
                "it may be older than that time",
                *(target.uri, newest, following.base_commit),
            )
    if damage and (end > newest or (commit is None and at_ms is None)):
        raise _damaged(target.where(names[-1]), damage, newest)
    if end > newest:
        if following is None:
            problem = f"the copy ends with commit {newest}, before {commit}"
        else:
            problem = f"the copy has commit {newest}, and then {following.base_commit}"
        raise ArgumentError(f"{target.uri}: {problem}; next: name one that it has")
    rows = chain_of([one for one in found if one not in avoid], generation.base_commit, end)
    done = rows[-1].last if rows else generation.base_commit
    # A piece goes up to the next one. One that ends before is not read.
    pieces = [
        name
        for name, following_it in zip_longest(names, names[1:])
        if name.first <= end and (following_it is None or following_it.first > done + 1)
    ]
    time_ms = generation.begun_ms
    with suppress(CorruptionError):  # of a piece that need not be read
        for name in [name for name in names if name.first <= end][-1:]:
            time_ms = target.header(name).last_ms
    if end > done and (not pieces or pieces[0].first > done + 1):
        missing = PieceName(generation.name, 0, done + 1)
        raise CorruptionError(target.where(missing), "the piece is missing")
    return Plan(generation, (base, *rows), tuple(pieces), end, time_ms, newest)


def _damaged(where: str, problem: str, before: int) -> CorruptionError:
    next_step = f"next: `streamkeep ship restore --commit {before}` restores what comes before it"
    return CorruptionError(where, f"{problem}; {next_step}")


class Filling:
    """The rows of a commit of a copy, which are put into an empty environment of LMDB."""

    def __init__(self, target: Target, plan: Plan, progress: StepProgress = silent) -> None:
        self.target = target
        self.plan = plan
        self.progress = progress
        self.steps: list[PieceName] = [name for rows in plan.rows for name in rows.parts]
        self.total = len(self.steps) + len(plan.pieces)
        # A restore of another plan, or in another boot, is not gone on with.
        names = digest64(" ".join(map(str, self.steps)).encode()).hex()
        self.identity = f"{boot_id().hex()} {plan.end} {names}"

    def fill(self, raw: lmdb.Environment, tables: dict[int, Any], done: int = 0) -> tuple[int, int]:
        """Put all rows, but those of the first pieces; return the commit and its checksum."""
        for number, name in enumerate(self.steps[done:], done):
            self._put_rows(raw, tables, number, name)
        return self._apply_pieces(raw, tables)

    def done(self, raw: lmdb.Environment) -> int | None:
        """Return how many pieces of rows are there; None if they are not of this plan."""
        with raw.begin() as txn:
            noted = txn.get(_RESTORING)
            if noted is None:
                return 0 if txn.stat()["entries"] == 0 else None
        identity, done = json.loads(noted)
        return int(done) if identity == self.identity else None

    def _put_rows(
        self, raw: lmdb.Environment, tables: dict[int, Any], number: int, name: PieceName
    ) -> None:
        try:
            piece, body, _ = self.target.piece(name)
        except CorruptionError as error:
            if name.first == 0:
                raise
            rows = next(one for one in self.plan.rows if name in one.parts)
            raise _DamagedRows(f"{error}", rows) from error
        with raw.begin(write=True) as txn:
            put_rows(txn, tables, body, is_base=name.first == 0)
            position = encode_position(0, 0, piece.chain_after, piece.last_commit)
            txn.put(POSITION_KEY, position)
            txn.put(_RESTORING, json.dumps([self.identity, number + 1]).encode())
        failpoints.hit("ship-restore:rows")
        self.progress("pieces", number + 1, self.total)

    def _apply_pieces(self, raw: lmdb.Environment, tables: dict[int, Any]) -> tuple[int, int]:
        """Apply the records of level 0 that follow, up to the last commit that is wanted."""
        with raw.begin() as txn:
            position = decode_position(txn.get(POSITION_KEY) or b"")
        last, chain = position.commit_number, position.chain
        for at, name in enumerate(self.plan.pieces):
            try:
                piece, body, _ = self.target.piece(name)
            except CorruptionError as error:
                raise _damaged(error.where, error.problem, last) from error
            if piece.last_commit <= last:
                continue  # before this restore was killed
            after = commits_after(piece, body, self.target.where(name), last, chain)
            wanted = takewhile(lambda commit: commit.commit_number <= self.plan.end, after)
            try:
                while True:
                    with raw.begin(write=True) as txn:
                        memtable = Memtable()
                        for commit in wanted:
                            memtable.apply(commit.body, txn, tables)
                            last, chain = commit.commit_number, commit.chain
                            if memtable.bytes >= _BATCH_BYTES:
                                break
                        if not memtable.commits:
                            break
                        memtable.write(txn, tables)
                        txn.put(POSITION_KEY, encode_position(0, 0, chain, last))
            except OtherHistoryError as error:
                rows = self.plan.rows[-1]
                if rows.first:
                    raise _DamagedRows(f"{error}", rows) from error
                raise
            failpoints.hit("ship-restore:piece")
            self.progress("pieces", len(self.steps) + at + 1, self.total)
        if last != self.plan.end:
            missing = PieceName(self.plan.generation.name, 0, last + 1)
            raise _damaged(self.target.where(missing), "the piece is missing", last)
        return last, chain


def _restore(filling: Filling, head: Head, staging: Folder, *, standby: bool) -> RestoreReport:
    """Make a store in a folder of its own, where a restore that was killed may have begun it."""
    target, plan = filling.target, filling.plan
    raw = open_new(staging)
    try:
        done = filling.done(raw)
        if done is None:
            raw.close()
            for name in staging.names():
                staging.remove_any(name)
            raw = open_new(staging)
        tables = tables_of(raw)
        filling.fill(raw, tables, done or 0)
        segments = _fetch_segments(filling, head, raw, tables, staging)
        epoch = max(one.epoch for one in head.generations) + 1
        with raw.begin(write=True) as txn:
            body = encode_number(epoch)
            txn.put(META_EPOCH, with_checksum(META, META_EPOCH, body), db=tables[META])
            if standby:
                row = StandbyRow(target.uri, plan.generation.name, plan.end, plan.time_ms)
                txn.put(META_STANDBY, row.encode(), db=tables[META])
            txn.delete(_RESTORING)
        raw.sync(True)
    finally:
        raw.close()
    failpoints.hit("ship-restore:written")
    staging.make_ours(DATA_FILE)
    finish_copy(staging, Clock(), standby=standby)
    note_copy(staging, target.uri, head.generations[-1].name)
    found = check_whole(staging.path, filling.progress, "the store was not restored", _OF_SEGMENTS)
    return RestoreReport(
        staging.path,
        target.uri,
        plan.generation.name,
        plan.end,
        plan.time_ms,
        plan.newest - plan.end,
        filling.total,
        segments,
        found,
    )


def _fetch_segments(
    filling: Filling, head: Head, raw: lmdb.Environment, tables: dict[int, Any], staging: Folder
) -> int:
    """Fetch the segments of the manifest that the copy has; fsck finds out about the others."""
    target, segments = filling.target, 0
    with raw.begin() as txn:
        records = [decode_row(key, value) for key, value in txn.cursor(tables[SEGMENTS])]
    for at, record in enumerate(records):
        segments += fetch_segment(target, record, staging)
        failpoints.hit("ship-restore:segment")
        filling.progress("segments", at + 1, len(records))
    if segments < len(records) and is_any_removed(head, target.known_head()):
        raise CorruptionError(target.where(filling.plan.generation.name), "it was removed")
    if staging.has_folder(ARCHIVE_FOLDER):
        staging.sync(ARCHIVE_FOLDER)
    return segments


def note_copy(store: Folder, uri: str, generation: str) -> None:
    """Note that a store knows a copy, and that its journal does not go on there."""
    slot = Slot(uri, generation, "", 0, NOWHERE, 0, 0, HOLD_BYTES)
    slot.write(store.folder(JOURNAL_FOLDER), durable=True)


def put_rows(
    txn: lmdb.Transaction[bytes], tables: Mapping[int, Any], body: bytes, *, is_base: bool
) -> None:
    """Put the rows of a piece of level 1 into LMDB; those of a base come in order."""
    change = ChangeReader(body, TABLES)
    while change.next():
        handle = tables[change.table]
        if change.kind == DELETE:
            txn.delete(change.db_key, db=handle)
        else:
            txn.put(change.db_key, change.value, append=is_base, db=handle)


def fetch_segment(target: Target, record: SegmentRecord, store: Folder) -> bool:
    """Fetch a segment, unless it is there; return False if the copy does not have it."""
    name, stored = segment_name(record), stored_name(record.path)
    if store.size(stored) == record.size_bytes:
        return True
    size = target.objects.size(name)
    if size is None:
        return False
    with segment_output(store, stored) as output:
        for offset in range(0, size, _BATCH_BYTES):
            output.write(target.read(name, offset, min(_BATCH_BYTES, size - offset)))
        store.remove(stored)  # not before: the target may not answer
    return True
