"""Deferred commits: LMDB's transaction stays open over many commands, and the journal has each.

The *image* is what LMDB shows to a reader: the commits up to the end of its last transaction.

A commit of LMDB costs ten times as much as a small command. So while commands follow each other
closely, each is committed by its record in the journal, and LMDB's transaction stays open for the
next one. It ends, and LMDB then shows all of its commits,

- when it is big or old, or when no command has come for one to eight milliseconds, in which no
  caller waited for the disk;
- before a read transaction of this process begins;
- when readers wait for what was added, or another process wants to write or to read (`lmdb_lock`);
- at a commit that waits for the disk while other processes have the store open.

One thread of the environment begins and ends the deferred transactions (`image_thread`). Any thread
that holds the write lock may put into them.

A reader must see every commit that returned before it began. In this process it ends the deferred
transaction. In another one it finds that the snapshot lacks commits which the control file names
as deferred. It then asks for them and waits for LMDB's lock (`begin.begin_read`).

A command that fails halfway has spoiled the transaction. It is undone, and the commits before that
command are replayed from the journal, before the write lock is released. If LMDB cannot take them,
because the disk fails for example, the image *lags*: they are safe in the journal, and until LMDB
has them every write and every snapshot raises the error. A reading command replays them for itself.
The same happens if the end of a deferred transaction fails. If the process dies, the next one that
writes or reads replays them.

So that the end of a transaction does not fail on a full disk, it begins with room for its pages
(`image_room`). A big commit ends the transaction, and is made only if LMDB makes it.

Deferral pays only for many commits. An end that was forced after few of them makes the next
commands commit one by one; the number of these commands grows while that goes on.

Everything here is called with the write lock held. Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Final

import lmdb

from streamkeep.engine.journal.control_file import WANTED_TO_READ
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.journal.replay import Replay
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.image_room import ImageRoom
from streamkeep.engine.txn.image_thread import ImageThread, Task
from streamkeep.engine.txn.page_memory import SMALL_COMMIT, note_commit
from streamkeep.engine.txn.unsaved import Unsaved
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.journal.position import POSITION_KEY

if TYPE_CHECKING:
    from streamkeep.engine.txn.context import EngineContext

IDLE_S: Final = 0.001  # a pause between commands that ends a transaction
_SHARED_S: Final = 0.002
_LONGEST_S: Final = 0.02
_WAITING_LONGER: Final = 10  # times that, where most of it is waiting for the disk
_STOP_S: Final = 10.0  # how long the end waits for the thread
_LOOK_LESS: Final = 4  # times `idle_s`, which a transaction may be idle if no process waits for it
_MOST_COMMITS: Final = 1000
_MOST_BYTES: Final = 1 << 20  # of records
_FEW: Final = 64  # commits for which a transaction does not pay
_LEAST_PENALTY: Final = 8
_MOST_PENALTY: Final = 4096
_MOST_OPERATIONS: Final = 600  # which change 4 pages each at most, beside those of the values
BIG: Final = 128 << 10  # bytes of a record
_PAGES_BYTES: Final = 65_536  # of the pages that the end of a transaction writes, estimated

log = logging.getLogger("streamkeep")


class CheckpointNeeded(StreamkeepError):
    """A checkpoint must be made first, or the memory cleared after an erasure.

    The process has no pin, or the journal has no log position, or a sync has failed.
    """


class Deferral:
    """The deferred transaction of one environment.

    Attributes:
        raw: LMDB's transaction; None if none is open.
        allowed: whether commits may be deferred.
        lags: LMDB lacks commits that are in the journal, and could not take them.
        idle_s: how long a pause between commits ends a transaction.
        longest_s: how long a transaction may last, if no caller waits for the disk.
        shared_s: the same while other processes have the store open.
        lock: LMDB's lock, as processes share it.
        room: on the disk, for the end of a transaction.
        unsaved: rows that are put into the transaction when it ends.
    """

    def __init__(self, context: EngineContext) -> None:
        self.raw: lmdb.Transaction[bytes] | None = None
        self.allowed = False
        self.lags = False
        self.idle_s = IDLE_S
        self.longest_s = _LONGEST_S
        self.shared_s = _SHARED_S
        self.lock = context.lmdb_lock
        self.unsaved = Unsaved()
        self._context = context
        self._commits = 0
        self._bytes = 0
        self._operations = 0
        self._began = 0.0
        self._last = 0.0  # when the newest commit was made
        self._hold_off = 0  # commits that are not deferred
        self._penalty = _LEAST_PENALTY
        self.room = ImageRoom(context.raw)
        self._seen = -1  # the number of commits at the last look of the thread
        self._image = ImageThread(self._pause, self._look)

    def pays(self, durable: bool) -> bool:
        """Return whether a transaction should be begun for the commands to come.

        Args:
            durable: the caller waits for the disk. Other processes can use the lock while it waits.
        """
        if self._hold_off > 0:
            self._hold_off -= 1
            self._last = time.monotonic()
            return False
        if not self.allowed or self.lags:
            return False
        context = self._context
        journal = context.journal
        if journal is None or context.wait_table.has_readers():
            return False
        if durable and journal.control.is_shared():
            return False
        return time.monotonic() - self._last < self.idle_s

    def begin(self, journal: Journal) -> bool:
        """Begin a transaction; return False if LMDB or the journal is not ready for it."""
        if not self._image.start():
            self.allowed = False
            return False
        control = journal.control
        self.lock.let_others(control)
        self.lock.have(self._image, self._begin)
        return self.raw is not None

    def allow(self, data: int) -> None:
        """Defer commits from now on.

        Args:
            data: a descriptor of the data file, which `forbid` closes.
        """
        self.room.allow(data)
        self.allowed = True

    def forbid(self) -> None:
        """Defer no commits any more."""
        self.allowed = False
        self.room.forbid()

    def note_own(self) -> None:
        """Note a commit that LMDB has made by itself."""
        self._last = time.monotonic()

    def note_synced(self) -> None:
        """Note that a caller need not wait for the disk any more; needs no lock.

        A caller that waited was not idle, so its next command follows this one closely.
        """
        self._last = time.monotonic()

    def note(self, size: int, operations: int, *, wakes: bool, durable: bool) -> None:
        """Note a commit that was deferred; end the transaction if that is due.

        Args:
            size: bytes of its record.
            wakes: readers wait for what it added.
            durable: its caller waits for the disk. Other processes use the lock in the meantime,
                so that they share the sync.
        """
        context = self._context
        journal = context.journal
        assert journal is not None
        now = time.monotonic()
        self._last = now
        self._commits += 1
        self._bytes += size
        self._operations += operations
        control = journal.control
        age = now - self._began
        wanted = control.wanted()
        overdue = (durable or age >= self.shared_s) and control.is_shared()
        if (wanted or wakes or overdue) and self.lock.give_way(
            wanted, age, wakes=wakes, overdue=overdue
        ):
            self.end(forced=wakes or durable or wanted == WANTED_TO_READ)
        elif (
            self._commits >= _MOST_COMMITS
            or self._bytes >= _MOST_BYTES
            or self._operations + self.unsaved.count() >= _MOST_OPERATIONS
            or age >= self.longest_s * (_WAITING_LONGER if durable else 1)
        ):
            self.end()

    def end_with(self, row: bytes, operations: int) -> BaseException | None:
        """End the transaction with a commit that is not deferred; raise if LMDB fails.

        Args:
            row: that of the log position after the record of the commit.

        Returns:
            An interrupt that came in the meantime. The commit is made; the caller raises it.
        """
        self._operations += operations
        self._last = time.monotonic()

        def finish(task: Task) -> None:
            self._finish_with(row)

        return self._image.do(finish, quiet=True)

    def end(self, *, forced: bool = False) -> None:
        """End the transaction, if one is open, so that LMDB shows its commits.

        Raises nothing if LMDB fails: the image then lags.

        Args:
            forced: for another use of LMDB. If that comes often, deferral does not pay.
        """
        if self.raw is None:
            return
        self._learn(forced)
        self._image.do(self._finish)

    def _learn(self, forced: bool) -> None:
        """Make the next commits one by one if the transaction ends for others after few."""
        if forced and self._commits < _FEW:
            self._penalty = min(2 * self._penalty, _MOST_PENALTY)
            self._hold_off = self._penalty
        else:
            self._penalty = _LEAST_PENALTY

    def undo(self) -> None:
        """A command failed halfway: bring back the commits before it, from the journal."""
        if self.raw is not None:
            self.lags = True  # first: an interrupt may come
            self._image.do(self._drop)
        try:
            self.catch_up()
        except Exception as error:
            log.error(
                "%s: LMDB cannot take the commits that the journal has: %s",
                self._context.raw.path(),
                error,
            )

    def catch_up(self) -> None:
        """Replay what LMDB lacks; other processes may have done it."""
        raw = self.begin_own()
        raw.commit()  # nothing was written

    def begin_own(self, checkpoint: bool = False) -> lmdb.Transaction[bytes]:
        """Begin a transaction of the calling thread, in which LMDB lacks no commit.

        Args:
            checkpoint: a checkpoint is to be made. Where nothing can be replayed first, it is made
                of what LMDB has.

        Raises:
            CheckpointNeeded: LMDB lacks commits, and the process must not write: it has no pin, or
                its memory holds what was erased.
        """
        context = self._context
        journal = context.journal_or_raise()
        control = journal.control
        while True:
            raw = self.begin_behind()
            if control.newest_deferred() <= journal.commit_number():
                self.lags = False
                return raw
            # Without a pin, a commit could reuse pages of the checkpoint.
            if context.pin is None or control.erasures() != context.erasures:
                if checkpoint:
                    return raw  # of the image as it is; the journal goes on after it
                raw.commit()
                raise CheckpointNeeded
            self._replay(raw, journal)

    def begin_behind(self) -> lmdb.Transaction[bytes]:
        """Begin a transaction of the calling thread, in which LMDB may lack commits."""
        self.end(forced=True)
        journal = self._context.journal_or_raise()
        self.lock.let_others(journal.control)
        raw = self.lock.begin(journal.control, self._image)
        try:
            journal.locate(raw.get(POSITION_KEY, None), raw.id() - 1)
        except BaseException:
            raw.commit()  # nothing was written
            raise
        return raw

    def begin_replayed(self) -> lmdb.Transaction[bytes]:
        """Begin a transaction that has all commits, which the caller must abort."""
        journal = self._context.journal_or_raise()
        raw = self._context.raw.begin(None, None, True, False)
        try:
            journal.locate(raw.get(POSITION_KEY, None), raw.id() - 1)
            self._apply(raw, journal)
        except BaseException:
            raw.abort()
            raise
        return raw

    def _apply(self, raw: lmdb.Transaction[bytes], journal: Journal) -> int:
        """Replay into a transaction; return the number of commits."""
        replay = Replay(raw, self._context.tables)
        count = journal.replay(replay.apply)
        replay.finish()
        raw.put(POSITION_KEY, journal.row())
        return count

    def _replay(self, raw: lmdb.Transaction[bytes], journal: Journal) -> None:
        """Replay into a transaction, and commit it."""
        self.lags = True
        try:
            count = self._apply(raw, journal)
            failpoints.hit("image:replayed")
            raw.commit()
        except BaseException as error:
            raw.abort()
            if isinstance(error, lmdb.Error) and journal.drop_recycled():
                return  # there is room now: again
            raise
        self._context.bytes_since_checkpoint += _PAGES_BYTES
        log.info("%s: replayed %d commits", self._context.raw.path(), count)

    def leave_to_parent(self) -> None:
        """In a forked child, forget the transaction and the thread, which are the parent's."""
        raw, self.raw = self.raw, None
        self.unsaved.clear()
        if raw is not None:
            self._context.leave_to_parent(raw)
        self.forbid()
        self._image = ImageThread(self._pause, self._look)

    def stop(self) -> bool:
        """End the transaction and the thread, for good.

        Returns:
            False if the thread waits for the lock of a process that is stopped. Then LMDB must not
            be closed.
        """
        self.end()
        stopped = self._image.stop(_STOP_S)
        if stopped and self.room.is_reserved() and not self.lags:
            with contextlib.suppress(lmdb.Error, OSError, StreamkeepError):
                raw = self.begin_own()
                try:
                    self.room.release()
                finally:
                    raw.commit()  # nothing was written
                self._image.stop(_STOP_S)
        self.forbid()
        return stopped

    # --- in the thread ---------------------------------------------------------------------

    def _pause(self) -> float:
        """Return how many seconds pass until the next look for commits; -1 for none.

        A look takes the interpreter from the threads that work, so it is rare while this process
        is the only one.
        """
        journal = self._context.journal
        if self.raw is None:
            return -1
        if journal is not None and journal.control.is_shared():
            return self.idle_s
        return _LOOK_LESS * self.idle_s

    def _look(self) -> None:
        """End the transaction if it has no commits after the last look, or others wait for it.

        Where processes write in turns, each would wait for the look of the other one. So it is
        a forced end if others wait.

        While a caller waits for the disk, the process is not idle, and its next command comes as
        soon as the disk is ready. That may take longer than the whole pause, and no other process
        has the store open in this time.
        """
        context = self._context
        journal = context.journal
        if journal is not None and journal.syncs.is_running() and not journal.control.is_shared():
            self._seen = -1
            return
        # Not by waiting: the thread that holds the lock may wait for this one.
        if not context.write_lock.acquire(False):
            self._seen = -1
            return
        try:
            wanted = journal is not None and journal.control.wanted() != 0
            if self.raw is not None and (wanted or self._commits == self._seen):
                if wanted:
                    self._learn(True)
                self._finish()
            self._seen = self._commits
        finally:
            context.write_lock.release()

    def _begin(self, task: Task) -> None:
        context = self._context
        journal = context.journal_or_raise()
        control = journal.control
        raw = self.lock.begin_for(task, control)
        if raw is None:
            return
        try:
            ready = journal.locate(raw.get(POSITION_KEY, None), raw.id() - 1)
            if not self.room.reserve():
                self._hold_off = _MOST_PENALTY
            elif (
                ready
                and control.newest_deferred() <= journal.commit_number()
                and control.may_write(context.erasures)  # another process was waited for
            ):
                control.defer(os.getpid())
                self._commits = self._bytes = self._operations = 0
                self.unsaved.clear()
                self._began = time.monotonic()
                self.raw = raw
        finally:
            if self.raw is None:
                raw.commit()  # nothing was written; an abort would wait for readers

    def _finish(self, task: Task | None = None) -> None:
        """Commit; the image lags if that fails."""
        context = self._context
        raw = self.raw
        if raw is None:
            return
        if not self._commits:  # nothing changed; a commit would have no number of its own
            try:
                context.journal_or_raise().control.defer(0)
                raw.commit()
            finally:
                self.raw = None
            return
        try:
            self._finish_with(context.journal_or_raise().row())
        except Exception as error:
            log.warning("%s: a deferred commit of LMDB failed: %s", context.raw.path(), error)

    def _finish_with(self, row: bytes) -> None:
        """Commit, with a row of the log position; the image lags if that fails."""
        context = self._context
        raw = self.raw  # until LMDB has the commits, so that no reader begins before
        assert raw is not None
        try:
            self._operations += self.unsaved.count()
            self.unsaved.save(raw, context.tables)
            if self._operations > SMALL_COMMIT:
                note_commit(context, raw, self._operations, aborted=False)
            raw.put(POSITION_KEY, row)
            context.journal_or_raise().control.defer(0)
            failpoints.hit("image:ending")
            raw.commit()
            failpoints.hit("image:ended")
        except Exception:
            self.lags = True
            self.unsaved.clear()
            context.forget()
            raw.abort()
            raise
        finally:
            self.raw = None
        context.bytes_since_checkpoint += _PAGES_BYTES

    def _drop(self, task: Task) -> None:
        raw, self.raw = self.raw, None
        self._operations += self.unsaved.count()
        self.unsaved.clear()
        if raw is not None:
            if self._operations > SMALL_COMMIT:
                note_commit(self._context, raw, self._operations, aborted=True)
            raw.abort()
