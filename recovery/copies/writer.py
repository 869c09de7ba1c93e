"""Writing one generation of a copy: its base, the commits after it, rows, segments.

Nothing here replaces an object. If there is another one of the name, `Again` says that somebody
else writes to the target, too, or that the generation has ended.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import closing
from typing import Final

from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import StepProgress, silent
from streamkeep.engine.tables.manifest import decode_row, is_named
from streamkeep.engine.tables.segment_files import open_stored, stored_name
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.format.copies import piece as piece_format
from streamkeep.format.copies.head import Generation
from streamkeep.format.copies.piece import Piece, PieceName
from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, row_checksum
from streamkeep.format.core.errors import ChecksumError, CorruptionError, StreamkeepError
from streamkeep.format.core.keys import ERASURES, NODES, RETIRED, SEGMENTS, STREAMS, TABLES
from streamkeep.format.journal.journal import DELETE, MOVE, ChangeReader, Operations, is_sound
from streamkeep.format.journal.position import LogPosition
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.recovery.copies.history import History
from streamkeep.recovery.copies.target import Rows, Target, chain_of, segment_name
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.fsck.pages import PageWalk
from streamkeep.recovery.fsck.source import meta_of
from streamkeep.recovery.pages.tree import PageFile, Tables

_MOST_PIECE: Final = 16 << 20  # bytes of records in a piece; a single record may be bigger
_MOST_ROWS: Final = 32 << 20  # bytes of rows in a part
# A restore reads so many pieces at most; each time that rows are written is one more request.
_PIECES_PER_ROWS: Final = 12
_MOST_CHANGED: Final = 500_000  # rows that are noted before they are written: 100 MB
_MOST_STEP_MS: Final = 10_000  # back, of the clock, within a generation
_MOST_AT_ONCE: Final = 20  # pieces that are written again after a base, before others
_SMALL: Final = 4096  # rows that are always merged into the next ones: 256 KiB

log = logging.getLogger("streamkeep")

RowKey = tuple[int, bytes]  # table, key


class Again(StreamkeepError):
    """Somebody else has written to the target: read it again."""


class DamagedRowError(ChecksumError):
    """A row of the store is damaged: a restore of it would be refused."""


class Writer:
    """Writes one generation.

    Attributes:
        name: of the generation.
        history: what follows the commits that were written.
        rows_bytes: the size of the rows after the base.
        base_bytes: the size of the base, if this writer wrote it.
        erasures: how many erasures the base knows.
        erased: records that were written since have recorded an erasure.
        last_ms: the time of the last piece: within a generation times never fall, so that a restore
            finds its piece without reading the times of all.
        stepped: the clock was set back since: only another generation has its times again.
        sent_bytes, pieces, missing: what was written, and how many segments the store lacked.
    """

    def __init__(
        self,
        target: Target,
        environment: Environment,
        name: str,
        history: History,
        progress: StepProgress = silent,
        damaged: Container[str] = (),
    ) -> None:
        self.target = target
        self.environment = environment
        self.name = name
        self.history = history
        self.progress = progress
        self.rows_bytes = self.base_bytes = self.erasures = 0
        self.sent_bytes = self.pieces = self.missing = 0
        self.erased = self.stepped = False
        self.last_ms = 0
        self._before = 0  # checksum of the last piece
        self._changed: set[RowKey] = set()  # since rows were written last
        self._rows_from = self.commit_number + 1
        self._pieces = 0  # since then
        self._rows: list[tuple[Rows, int]] = []  # after the base, with the number of rows
        self._refused = False  # a row was damaged: no more rows, only commits
        self._last_keys: set[RowKey] = set()  # of the last of these, unless there are many
        self._segments: set[str] = set()  # that the generation has
        self._damaged = damaged  # objects that are to be written again

    @property
    def commit_number(self) -> int:
        """The newest commit that was written."""
        return self.history.position.commit_number

    def resume(self, generation: Generation, before: int, last_ms: int) -> None:
        """Go on with a generation that another process has begun.

        Args:
            before, last_ms: the checksum and the time of its last piece.
        """
        self._before = before
        self.last_ms = last_ms
        done = generation.base_commit
        found = self.target.rows(self.name)
        self.target.base(generation, found)  # without it, nothing that follows can be restored
        # A target that has lost its last pieces may have rows of later commits: those are removed.
        for rows in chain_of(found, done, self.commit_number):
            self._rows.append((rows, self.target.header(rows.parts[-1]).rows))
            self.rows_bytes += sum(self.target.objects.size(str(one)) or 0 for one in rows.parts)
            done = rows.last
        self._rows_from = done + 1
        self._segments = self.target.needed_segments(self.name)
        names = self.target.names(self.name, 0)
        at = bisect_right(names, done, key=lambda name: name.first)
        for name in names[max(0, at - 1) :]:  # the rows that are not written yet
            piece, body, _ = self.target.piece(name)
            if piece.kind == piece_format.END or piece.last_commit <= done:
                continue
            self._pieces += 1
            for commit in piece_format.read_commits(piece, body, self.target.where(name)):
                if commit.commit_number > done:
                    self._note(commit.body)
        self.drop_merged_rows()

    # --- level 0 ----------------------------------------------------------------------------

    def send_commits(
        self,
        end: int,
        now_ms: int,
        sending: Callable[[LogPosition], None],
        sent: Callable[[], None],
    ) -> None:
        """Write the records up to a commit, in pieces. After an error, it can be called again.

        Args:
            sending, sent: called before each piece, with the position where it ends; and after it.

        Raises:
            Gap: the journal lacks one.
            Again: see the top of this module.
            UnreachableError: the target does not answer; it may have the piece.
        """
        history = self.history
        data: list[bytes] = []
        size = 0
        start = history.position
        segments: list[SegmentRecord] = []
        epoch = history.epoch
        time_ms = max(now_ms, self.last_ms)
        try:
            for record, body in history.read(end):
                data.append(record)
                size += len(record)
                segments += self._note(body)
                if size < _MOST_PIECE and self.commit_number != end:
                    continue
                self._send_segments(segments)
                here = history.position
                piece = Piece(
                    piece_format.RECORDS,
                    self.environment.uuid.bytes,
                    history.epoch,
                    start.commit_number + 1,
                    here.commit_number,
                    time_ms,
                    start.chain,
                    here.chain,
                    self._before,
                    here.commit_number - start.commit_number,
                )
                sending(here)
                self._send_piece(piece, b"".join(data))
                self.last_ms = time_ms
                self.stepped = self.stepped or time_ms - now_ms > _MOST_STEP_MS
                data, size, segments, start, epoch = [], 0, [], here, history.epoch
                sent()
        except BaseException:
            history.go_back(epoch, start)
            raise

    def _send_piece(self, piece: Piece, body: bytes) -> None:
        data = piece.encode(body)
        name = PieceName(self.name, 0, piece.first_commit)
        failpoints.hit("ship:piece")
        if not self.target.create(str(name), data):
            raise Again(self.target.where(name))
        failpoints.hit("ship:sent")
        self._before = piece_format.checksum_of(data)
        self._pieces += 1
        self.pieces += 1
        self.sent_bytes += len(data)

    def _note(self, body: bytes) -> list[SegmentRecord]:
        """Note the rows that a record changes; return the segments that it names."""
        changed, segments = self._changed, []
        change = ChangeReader(body, TABLES)
        while change.next():
            changed.add((change.table, change.db_key))
            if change.kind == MOVE:
                changed.add((change.kept, change.db_key))
            elif change.table == SEGMENTS and change.kind != DELETE:
                segments.append(decode_row(change.db_key, change.value))
            elif change.table == ERASURES:
                self.erased = True
        if self._refused:
            changed.clear()
        return segments

    # --- segments ---------------------------------------------------------------------------

    def _send_segments(self, records: Iterable[SegmentRecord]) -> None:
        """Write segments, and then that the generation needs them."""
        for record in records:
            name = segment_name(record)
            if name in self._segments:
                continue
            size = None if name in self._damaged else self.target.objects.size(name)
            if size != record.size_bytes and not self._send_segment(name, record):
                continue
            failpoints.hit("ship:segment")
            self.target.create(f"{self.name}/{name}", b"")
            self._segments.add(name)

    def _send_segment(self, name: str, record: SegmentRecord) -> bool:
        """Write a segment; return whether it was there to be written."""
        folder = self.environment.folder
        try:
            segment = open_stored(folder, record.path, record.where)
        except CorruptionError as error:  # missing, or damaged: the commits go along all the same
            if self.environment.remote_archive() is not None:
                return False  # the manifest names it, and it is read from there
            if self.environment.read(is_named, record):
                log.warning("%s", error)
                self.missing += 1
            return False  # it was replaced, which a later commit says
        self.target.check_there()
        self.target.objects.put(name, segment.read_at, folder.size(stored_name(record.path)))
        return True

    # --- level 1 ----------------------------------------------------------------------------

    def rows_are_due(self) -> bool:
        many = self._pieces >= _PIECES_PER_ROWS or len(self._changed) >= _MOST_CHANGED
        return many and not self._refused

    def send_rows(self, txn: ReadTxn) -> None:
        """Write the rows that were changed since the last time, as a snapshot shows them.

        Args:
            txn: a snapshot of the newest commit that was written.
        """
        keys, first, kept = self._changed, self._rows_from, self._rows.copy()
        while kept and kept[-1][1] <= max(_SMALL, 2 * len(keys)):
            rows, count = kept.pop()
            known = rows is self._rows[-1][0] and len(self._last_keys) == count
            keys = keys.union(self._last_keys if known else self._keys_of(rows))
            first = rows.first
        order = sorted(keys)
        values = ((table, db_key, txn.get(table, db_key)) for table, db_key in order)
        try:
            sent, parts = self._send_all(first, values, None)
        except DamagedRowError as error:
            log.warning(
                "%s; the copy goes on with the records of commits only; next: `streamkeep fsck`",
                error,
            )
            self._refused = True
            self._changed.clear()
            return
        failpoints.hit("ship:rows")
        self._rows = [*kept, (Rows(first, self.commit_number, parts), len(order))]
        self.rows_bytes += sent
        self._last_keys = keys if len(keys) <= _MOST_CHANGED else set()
        self._changed = set()
        self._rows_from = self.commit_number + 1
        self._pieces = 0

    def _keys_of(self, rows: Rows) -> Iterator[RowKey]:
        for name in rows.parts:
            _, body, _ = self.target.piece(name)
            change = ChangeReader(body, TABLES)
            while change.next():
                yield change.table, change.db_key

    def send_base(self, txn: ReadTxn, stop: threading.Event) -> None:
        """Write all rows of a snapshot, and the segments that it names.

        Args:
            txn: a snapshot of the commit after which `history` begins.
            stop: ends this early, with `Again`.

        Raises:
            DamagedRowError: there is no use in such a base.
        """
        segments: list[SegmentRecord] = []

        def rows() -> Iterator[tuple[int, bytes, bytes]]:
            for table in TABLES:
                cursor = txn.cursor(table)
                found = cursor.first()
                while found:
                    db_key, value = cursor.key(), cursor.value()
                    yield table, db_key, value  # first: what takes it checks it
                    if table == SEGMENTS:
                        segments.append(decode_row(db_key, value))
                    elif table == ERASURES:
                        self.erasures += 1
                    found = cursor.next()

        self._check_pages(txn, stop)
        self.base_bytes, _ = self._send_all(0, rows(), stop)
        for one in segments:
            if stop.is_set():
                raise Again("stopped")
            self._send_segments([one])
        failpoints.hit("ship:base")

    def _send_all(
        self,
        first: int,
        rows: Iterable[tuple[int, bytes, bytes | None]],
        stop: threading.Event | None,
    ) -> tuple[int, tuple[PieceName, ...]]:
        """Write rows in parts; return their size in bytes and the names of the parts."""
        here = self.history.position
        now_ms = self.environment.context.now_ms()
        parts: list[PieceName] = []
        sent = size = count = 0
        body = Operations(here.commit_number)

        def send(*, is_end: bool) -> int:
            piece = Piece(
                piece_format.ROWS,
                self.environment.uuid.bytes,
                self.history.epoch,
                first,
                here.commit_number,
                now_ms,
                0,
                here.chain,
                0,
                count,
            )
            name = PieceName(self.name, 1, first, here.commit_number, len(parts), is_end)
            data = piece.encode(body.body())
            parts.append(name)
            if not self.target.create(str(name), data):
                raise Again(self.target.where(name))
            return len(data)

        for table, db_key, value in rows:
            if size >= _MOST_ROWS:
                sent += send(is_end=False)
                if not first:
                    self.progress("base", sent, 0)
                if stop is not None and stop.is_set():
                    raise Again("stopped")
                body, size = Operations(here.commit_number), 0
            count += 1
            size += len(db_key)
            if value is None:
                body.delete(table, db_key)
            else:
                self._check(table, db_key, value)
                body.put(table, db_key, value)
                size += len(value)
        return sent + send(is_end=True), tuple(parts)

    def _check_pages(self, txn: ReadTxn, stop: threading.Event) -> None:
        """Raise DamagedRowError for damage between rows: LMDB would skip some, or crash."""

        def visited(pages: int) -> None:
            if stop.is_set():
                raise Again("stopped")

        folder = self.environment.folder
        meta = meta_of(folder, txn.raw().id())
        with closing(PageFile(folder, meta.page_size)) as file:
            for found in PageWalk(Tables(file, meta), visited).findings():
                if found.severity is Severity.ERROR:
                    raise DamagedRowError(f"{self.environment.path}: {found.where}", found.problem)

    def _check(self, table: int, db_key: bytes, row: bytes) -> None:
        """Raise DamagedRowError unless the checksum of a row is right."""
        if table in (STREAMS, NODES) or (table == RETIRED and any(db_key[8:])):  # an envelope
            sound = is_sound(row)
        else:
            body = row[:-ROW_CHECKSUM_SIZE]
            sound = row == body + row_checksum(table, db_key, body)
        if not sound:
            where = f"{self.environment.path}: row {db_key.hex()} of {TABLES[table].name}"
            raise DamagedRowError(where, "its checksum does not match")

    def drop_merged_rows(self) -> None:
        """Remove the rows that were merged into others, or not completed: nobody reads them."""
        kept = {name for rows, _ in self._rows for name in rows.parts}
        for name in self.target.names(self.name, 1):
            if name.first and name not in kept:
                self.target.objects.remove(str(name))


class Base:
    """A base that a thread writes.

    Args:
        held: from where on the journal is needed.

    Attributes:
        shipped: where the pieces of the present generation end that were sent meanwhile, and their
            times: a restore to one of these times finds them here, too.
    """

    def __init__(self, writer: Writer, txn: ReadTxn, held: LogPosition, begun_ms: int) -> None:
        self.writer = writer
        self.held = held
        self.begun_ms = begun_ms
        self.epoch = writer.history.epoch
        self.start = writer.history.position
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.shipped: list[tuple[int, int]] = []
        self._txn = txn
        self.thread = threading.Thread(target=self._write, name="streamkeep-base", daemon=True)
        self.thread.start()

    def catch_up(self, sending: Callable[[LogPosition], None]) -> bool:
        """Write some of what was shipped meanwhile; return whether that was all of it.

        Raises:
            Exception: what has ended the base, or as `Writer.send_commits`.
        """
        if self.error is not None:
            raise self.error
        for commit, time_ms in self.shipped[:_MOST_AT_ONCE]:
            if commit > self.writer.commit_number:
                self.writer.send_commits(commit, time_ms, sending, lambda: None)
        del self.shipped[:_MOST_AT_ONCE]
        return not self.shipped

    def _write(self) -> None:
        try:
            with translated():
                self.writer.send_base(self._txn, self.stop)
        except BaseException as error:
            self.error = error
        finally:
            self._txn.close()
