"""A standby: a store that follows a copy, can be read meanwhile, and can take the place of its own.

It begins as a restore. Then it applies each piece of the copy as every process applies the journal:
the rows go into LMDB in one transaction with the log position, so that a crash in the middle is
nothing. No process can write to it until it is promoted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, cast

import lmdb

from streamkeep.engine.archive.segment_output import TEMPORARY
from streamkeep.engine.checkpoint.checkpoint import Checkpoints
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import SlotLock, hold_slot
from streamkeep.engine.store.durability import standby_of
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.store.opening import open_environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.progress import StepProgress
from streamkeep.engine.tables.manifest import decode_row, iter_segments
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, stored_name
from streamkeep.engine.txn.begin import CheckpointNeeded
from streamkeep.engine.txn.memtable import Memtable
from streamkeep.format.copies.head import Generation
from streamkeep.format.copies.piece import Commit, Piece
from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.durations import Duration, above_zero
from streamkeep.format.core.errors import (
    CorruptionError,
    NotAStoreError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    UnreachableError,
)
from streamkeep.format.core.keys import META, SEGMENTS, TABLES
from streamkeep.format.journal.journal import PUT, ChangeReader
from streamkeep.format.journal.position import POSITION_KEY, LogPosition, encode_position
from streamkeep.format.rows.meta_rows import META_RECOVERY, META_STANDBY, StandbyRow
from streamkeep.format.rows.records import encode_number
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import SUFFIX
from streamkeep.recovery.copies.restore import fetch_segment, note_copy, put_rows, restore_copy
from streamkeep.recovery.copies.target import PieceFollower, Place, Target
from streamkeep.recovery.fsck.findings import Severity

_BATCH_BYTES: Final = 8 << 20
_LONGEST_PAUSE_S: Final = 30.0
_OWN: Final = (META_EPOCH, META_RECOVERY)  # rows of `meta` that are not those of the source

log = logging.getLogger("streamkeep")


class Standby(PieceFollower):
    """Follows a copy, in the thread that calls `run`.

    Attributes:
        stop: set it to end `run`, from any thread.
        missing: names of segments that the copy lacked, or that were damaged there.
    """

    def __init__(
        self,
        source: Place,
        path: str | Path,
        *,
        every: Duration = "500ms",
        progress: StepProgress | None = None,
    ) -> None:
        """Open the standby at `path`, or restore it from the copy if there is nothing.

        Args:
            every: how often to look for a new piece.

        Raises:
            StoreError: there is a store that is no standby of this copy, or another process follows
                it. Others as `restore_copy`.
        """
        target = Target(source)
        self.every_s = above_zero(every, "every") / 1000
        self.stop = threading.Event()
        self.missing: set[str] = set()
        place = path_of(path, "path").absolute()
        if not os.path.lexists(place):
            report = restore_copy(source, place, standby=True, progress=progress)
            for one in report.archive_findings:
                log.warning("%s", one)
                if one.severity is Severity.ERROR:
                    self.missing.add(one.where)
        self.environment = open_environment(place, clock=Clock(), standby=True)
        self.context = self.environment.context
        with ExitStack() as stack:
            stack.callback(self.environment.release)
            self._lock = stack.enter_context(closing(_lock(self.environment, target.uri, place)))
            with self.environment.begin_read() as txn:
                state = standby_of(txn)
            if state is None or state.source != target.uri:
                found = "no standby" if state is None else f"the standby of {state.source}"
                raise StoreError(f"{place}: {found}; next: name a path where nothing is")
            self.state = state
            position = self.context.position()
            super().__init__(target, state.generation, (position.commit_number, position.chain))
            _remove_strays(self.environment)
            stack.pop_all()

    def close(self) -> None:
        """Close the store; a checkpoint has everything."""
        self._lock.close()
        self.environment.release()

    # --- following --------------------------------------------------------------------------

    def run(self, *, once: bool = False) -> StandbyRow:
        """Apply what the copy has, until `stop` is set; with `once`, what it has now."""
        pause = 1.0
        damaged = False
        while not self.stop.is_set():
            try:
                # A shipper follows a damaged generation by another one.
                found = self.find_next(once=once, damaged=damaged)
                if found is not None:
                    self._apply(*found)
                pause, damaged = 1.0, False
            except (
                UnreachableError,
                CorruptionError,
                NotAStoreError,
                StoreFullError,
                StoreLockedError,
            ) as error:
                if not damaged and isinstance(error, CorruptionError):
                    damaged = True
                    continue
                # A copy that is gone may come back, such as a disk that is not mounted now.
                if once or (isinstance(error, NotAStoreError) and error.was_open):
                    raise
                log.warning("%s; following goes on in %.0f s", error, pause)
                self.stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            if found is not None:
                continue
            if once:
                break
            self.stop.wait(self.every_s)
        return self.state

    def take_up(self, generation: Generation, *, continues: bool) -> None:
        """Go on with another generation; from its base, if it does not go on where this one is."""
        if continues:
            self.generation = generation.name
            self.state = self.state._replace(generation=generation.name)
            return
        log.warning(
            "%s: %s does not go on after commit %d; beginning with its base, of commit %d",
            self.target.uri,
            generation.name,
            self.state.commit_number,
            generation.base_commit,
        )
        self._take_base(generation)

    # --- applying ---------------------------------------------------------------------------

    def _apply(self, piece: Piece, commits: Iterator[Commit]) -> None:
        """Apply the commits of a piece that follow.

        Raises:
            CorruptionError: it is damaged, or of another history than this store.
        """
        batch: list[bytes] = []
        size = 0
        for commit in commits:
            batch.append(commit.body)
            size += len(commit.body)
            if size >= _BATCH_BYTES or commit.commit_number == piece.last_commit:
                position = LogPosition(0, 0, commit.chain, commit.commit_number)
                self._commit(batch, position, piece.last_ms)
                failpoints.hit("standby:applied")
                batch, size = [], 0

    def _commit(self, bodies: list[bytes], position: LogPosition, time_ms: int) -> None:
        touched: set[bytes] = set()
        for body in bodies:  # what the manifest names must be there first
            change = ChangeReader(body, TABLES)
            while change.next():
                if change.table == SEGMENTS:
                    touched.add(change.db_key)
                    if change.kind == PUT:
                        self._fetch(decode_row(change.db_key, change.value))

        def write(txn: lmdb.Transaction[bytes]) -> set[str]:
            tables = self.context.tables
            rows = {db_key: txn.get(db_key, None, tables[SEGMENTS]) for db_key in touched}
            memtable = Memtable()
            for body in bodies:
                memtable.apply(body, txn, tables)
            memtable.write(txn, tables)
            self.context.bytes_since_checkpoint += memtable.bytes
            return {decode_row(db_key, row).path for db_key, row in rows.items() if row is not None}

        self._write(write, position, time_ms)

    def _take_base(self, generation: Generation) -> None:
        """Replace all rows by those of a base, in one transaction: readers see it at once."""
        rows = self.target.base(generation, self.target.rows(generation.name))
        # Of two checkpoints of one epoch, that of the higher commit counts: a later opening would
        # go back to the history that this one leaves.
        goes_back = generation.base_commit < self.place[0]

        def write(txn: lmdb.Transaction[bytes]) -> set[str]:
            tables = self.context.tables
            before = _paths(txn, tables)
            own = {one: txn.get(one, None, tables[META]) for one in _OWN}
            if goes_back:
                body = encode_number(self.context.epoch + 1)
                own[META_EPOCH] = with_checksum(META, META_EPOCH, body)
            for handle in tables.values():
                txn.drop(handle, delete=False)
            for name in rows.parts:
                put_rows(txn, tables, self.target.piece(name)[1], is_base=True)
            for own_key, value in own.items():
                if value is not None:
                    txn.put(own_key, value, db=tables[META])
            for db_key, value in txn.cursor(tables[SEGMENTS]):
                self._fetch(decode_row(db_key, value))
            return before

        position = LogPosition(0, 0, generation.base_chain, generation.base_commit)
        self._write(write, position, generation.begun_ms, generation.name)
        if goes_back:
            self.context.epoch += 1
            cast(Journal, self.context.journal).raise_epoch()
            self.environment.make_checkpoint(strict=True)

    def _write(
        self,
        write: Callable[[lmdb.Transaction[bytes]], set[str]],
        position: LogPosition,
        time_ms: int,
        generation: str = "",
    ) -> None:
        """Run `write` in a transaction of LMDB, with the log position; and show it to readers.

        Args:
            write: returns segments that the manifest may not name any more.
            generation: the one that goes on, if it is another one.
        """
        context = self.context
        control, journal = cast(ControlFile, context.control), cast(Journal, context.journal)
        generation = generation or self.generation
        state = StandbyRow(self.target.uri, generation, position.commit_number, time_ms)

        def commit() -> set[str]:
            # As for a flush: without a pin, it could reuse pages of the checkpoint.
            if context.pin is None or not control.may_write(context.erasures):
                raise CheckpointNeeded
            with control.lmdb_lock(), context.raw.begin(None, None, True, False) as txn:
                outdated = write(txn)
                outdated -= _paths(txn, context.tables) if outdated else set()
                txn.put(META_STANDBY, state.encode(), db=context.tables[META])
                txn.put(POSITION_KEY, encode_position(*position))
            with context.apply_lock:
                context.memtable.clear()
                context.image = -1
                journal.log.go_to(*position)
                context.forget()
            failpoints.hit("standby:written")
            control.publish(position.commit_number)  # last: the journal does not have it
            context.last_commit = position.commit_number
            return outdated

        outdated = self.environment.run_locked(commit)
        self.state, self.generation = state, generation
        self.place = position.commit_number, position.chain
        failpoints.hit("standby:committed")  # a later opening removes the files
        if outdated:  # so that no recovery goes back to a manifest that names them
            self.environment.make_checkpoint(strict=True)
        for path in outdated:
            self.environment.folder.remove(stored_name(path))
            self.environment.segments.forget(path)
        self.environment.notice()

    def _fetch(self, record: SegmentRecord) -> None:
        """Fetch a segment of the archive, unless it is here or elsewhere."""
        here = fetch_segment(self.target, record, self.environment.folder)
        if not here and self.environment.remote_archive() is None:
            self.target.known_head()  # of a copy that has gone, it is fetched later
            log.warning("%s: the copy lacks %s", self.target.uri, record.where)
            self.missing.add(record.where)


def _paths(txn: lmdb.Transaction[bytes], tables: Mapping[int, Any]) -> set[str]:
    return {decode_row(db_key, value).path for db_key, value in txn.cursor(tables[SEGMENTS])}


def _remove_strays(environment: Environment) -> None:
    """Remove the segments that the manifest does not name. The caller holds its lock.

    A killed process may have committed that a segment is gone and not removed its file, or fetched
    one that no commit names yet. Rows of `garbage` are those of the source, which deletes them once
    its own file is removed. So only the folder shows what is left here.
    """
    folder = environment.folder
    with environment.begin_read() as txn:
        named = {one.path for one in iter_segments(txn)}
    strays = [
        path
        for path in folder.files_below(ARCHIVE_FOLDER)
        if path.endswith((SUFFIX, SUFFIX + TEMPORARY)) and path not in named
    ]
    if not strays:
        return
    environment.make_checkpoint(strict=True)  # no recovery goes back to a manifest that names them
    for path in strays:
        log.warning("%s: removing %r, which no row names", environment.path, stored_name(path))
        folder.remove(stored_name(path))


def _lock(environment: Environment, source: str, place: Path) -> SlotLock:
    """Lock a standby, so that only one process follows or promotes it."""
    lock = hold_slot(environment.folder.folder(JOURNAL_FOLDER), source)
    if lock is None:
        raise StoreLockedError(f"{place}: a process follows {source}; next: end it")
    return lock


def promote(path: str | Path) -> StandbyRow | None:
    """Make a standby a store that can be written, in the place of the one that it followed.

    `ship` then goes on with the same copy, under a new generation: the store that was followed is
    refused there, and its standbys follow this one. On return, that is on disk.

    Returns:
        how far it was; None if it is no standby.

    Raises:
        StoreLockedError: a process still follows.
    """
    place = path_of(path, "path").absolute()
    environment = open_environment(place, clock=Clock(), standby=True)
    try:
        if not environment.follows:
            return None
        with closing(_lock(environment, environment.follows, place)):
            with environment.begin_read() as txn:  # now: the process that followed has ended
                state = standby_of(txn)
            if state is None:
                return None  # another process has just promoted it
            _remove_strays(environment)
            note_copy(environment.folder, state.source, state.generation)
            failpoints.hit("standby:noted")
            environment.write(lambda txn: txn.delete(META, META_STANDBY), wait=True)
            cast(Checkpoints, environment.checkpoints).make()
    finally:
        environment.release()
    return state
