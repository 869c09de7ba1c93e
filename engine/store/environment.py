"""One LMDB environment per process and store: transactions, durability, growth, the end.

Commands of users run through `read`, `read_durable` and `command.write_once`, work of the engine
through `read` and `write`. These repair what they can (a map that must grow, a missing pin, a full
table of readers) and translate LMDB's errors. A map that had to begin small (`opening`) grows when
it is used up: under the write lock, with the gate for new readers closed, after the last reader of
this process has finished.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeVar, TypeVarTuple, cast

import lmdb

from streamkeep.engine.blocking.waiters import Waiters
from streamkeep.engine.checkpoint.checkpoint import Checkpoints
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.checkpoint.checkpointer import Checkpointer
from streamkeep.engine.commands.history import Unreadable
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, Owner, Reader
from streamkeep.engine.journal.slots import Slot, read_slots
from streamkeep.engine.journal.write_lock import WriteLock
from streamkeep.engine.liveness.leases import Leases
from streamkeep.engine.remote.remote_archive import RemoteArchive, remote_archive
from streamkeep.engine.store.durability import Durability, read_durability
from streamkeep.engine.store.group_commit import GroupCommit
from streamkeep.engine.store.registry import Opening, identity_of, registry
from streamkeep.engine.system.failures import Failures
from streamkeep.engine.system.lmdb_errors import translate, translate_os, translated
from streamkeep.engine.system.locks import is_mine, make_reentrant_lock
from streamkeep.engine.system.long_wait import IN_HANDLER, OwnedLock
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.manifest import remote_setting
from streamkeep.engine.tables.segment_files import SegmentFiles
from streamkeep.engine.txn.begin import (
    CheckpointNeeded,
    begin_read,
    begin_write,
    run_locked,
    run_read,
    run_write,
)
from streamkeep.engine.txn.context import BUDGET_BYTES, EngineContext, position_in
from streamkeep.engine.txn.flush import no_room, used_bytes
from streamkeep.engine.txn.page_memory import clear_memory, kept_pages
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import (
    StoreError,
    StoreFullError,
    StoreLockedError,
    StreamkeepError,
)

RETIRED_LEAST: Final = 64 << 20  # bytes in `retired` below which there is no back pressure
READERS_WAIT_S: Final = 10.0
_POLL_S: Final = 0.001
_GATE_S: Final = 0.1
SHIPPED_POLL_S: Final = 0.01  # a piece needs longer to reach a bucket

Args = TypeVarTuple("Args")
Result = TypeVar("Result")
Step = Callable[[], None]
OpenLmdb = Callable[[], tuple[lmdb.Environment, dict[int, lmdb._Database]]]


class BackPressure(Protocol):
    """Archives when too much was retired; implemented in `archive.back_pressure`."""

    most: int  # bytes in `retired` from which on it archives

    def __call__(self) -> None:
        """Archive the surplus; the caller holds no lock of the store."""


log = logging.getLogger("streamkeep")


class _Unopened:
    """Stands for an environment that could not be opened again: each transaction asks for that."""

    def __init__(self, closed: lmdb.Environment) -> None:
        self._closed = closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closed, name)

    def begin(self, *args: object, **options: object) -> NoReturn:
        raise lmdb.PanicError("not opened again yet")


class Environment:
    """The open LMDB environment of a store, shared by all `Store` objects of this process."""

    def __init__(
        self,
        folder: Folder,
        context: EngineContext,
        *,
        uuid_bytes: bytes,
        readonly: bool,
        max_store_bytes: int | None,
        lock: CheckpointFile | None,
        control: ControlFile | None,
        open_lmdb: OpenLmdb,
    ) -> None:
        self.folder = folder
        self.path = folder.path
        self.context = context
        self.uuid = uuid.UUID(bytes=uuid_bytes)
        self.readonly = readonly
        self.max_store_bytes = max_store_bytes
        self.follows = ""  # what a standby follows; set while the store is opened
        self._open_lmdb = open_lmdb
        self.users = 0
        self._unclosed: list[Step] | None = None  # what `close_files` has left; None before it
        self.failures = Failures()  # of the threads that work for this environment
        self.identity = identity_of(self.path)
        self.waiters = Waiters(folder, context, self.read)
        self.checkpoint_file = lock  # None if the store is read-only and has no such file
        self.checkpoints: Checkpoints | None = None  # None for a read-only store
        self.checkpointer: Checkpointer | None = None
        self.back_pressure: BackPressure | None = None  # called after commits
        self.transactions: dict[int, object] = {}  # those of `Store.transaction`, by thread
        self.renew_queue()
        self.segments = SegmentFiles(folder, remote=self.remote_archive)
        self.archive_work = OwnedLock("archive", context.path)
        self.life = make_reentrant_lock("life", context.path)  # held by a thread that closes it
        context.segment_files = self.segments
        context.control = control
        if not readonly and lock is not None:
            assert control is not None
            journal = Journal(folder.folder(JOURNAL_FOLDER), control, uuid_bytes, context.epoch)
            try:
                context.write_lock = WriteLock(
                    journal.folder,
                    control,
                    context.wait,
                    context.thread_lock.unlimited(),
                    context.follow,
                )
                self.checkpoints = Checkpoints(folder, context, lock, journal)
            except BaseException:
                if context.write_lock is not None:
                    context.write_lock.close()
                journal.close()
                raise
            context.journal = journal
            context.log = journal.log
            context.wait.progress = control.newest
            context.erasures = journal.control.erasures()
            self.checkpointer = Checkpointer(
                context, self.checkpoints, self.make_checkpoint, self.failures
            )
        elif control is not None:
            owner = Owner(context.epoch, uuid_bytes)
            context.log = Reader(folder.folder(JOURNAL_FOLDER), owner)
        self.leases = context.leases = Leases(folder)
        if not readonly:
            self.waiters.open_wait_table()  # commits notify the waiting calls in it
            context.max_bytes = max_store_bytes or 0

    @property
    def raw(self) -> lmdb.Environment:
        """LMDB's environment, which `_reopen` replaces."""
        return self.context.raw

    def renew_queue(self) -> None:
        """Begin with an empty queue of writers; a forked child cannot use its parent's."""
        self.group_commit = GroupCommit(self)

    def remote_archive(self) -> RemoteArchive | None:
        """Return where the archive is also kept; None for a store without that."""
        setting = self.read(remote_setting)
        return None if setting is None else remote_archive(setting, str(self.uuid))

    # --- transactions -----------------------------------------------------------------------

    def begin_read(self) -> ReadTxn:
        return self.retrying(begin_read, self.context)

    def begin_write(self, *, durable: bool) -> WriteTxn:
        """Wait for the write lock and begin a transaction.

        Args:
            durable: the caller waits until the commit is on disk.
        """
        return self.retrying(lambda: begin_write(self.context, durable=durable))

    def begin_image(self) -> ReadTxn:
        """Begin a read transaction of what `data.mdb` has: the newest commit, if it can be flushed.

        For code that reads the pages of the file.
        """
        if not self.readonly:
            self.make_checkpoint()
        return self.begin_stored()

    def begin_stored(self) -> ReadTxn:
        """Begin a read transaction of what `data.mdb` has now, whatever the journal has."""
        context = self.context
        with translated(), context.gate:
            context.check_open()
            raw = context.raw.begin(None, None, False, False)
            context.entered += 1
        txn = ReadTxn(context, raw, {}, position_in(raw).commit_number)
        txn.group_counts = {}  # the memtable may have others
        return txn

    def read(self, command: Callable[[ReadTxn, *Args], Result], *args: *Args) -> Result:
        """Run `command(txn, *args)` on a snapshot."""
        return cast(Result, self.retrying(run_read, self.context, command, args))

    def read_durable(self, command: Callable[[ReadTxn, *Args], Result], *args: *Args) -> Result:
        """Do the same as `read`; return when everything that the snapshot showed is on disk."""
        with self.begin_read() as txn:
            try:
                result = command(txn, *args)
            except lmdb.Error as error:
                raise translate(error) from error
            commit_number = txn.newest_commit()
        self.sync_to(commit_number)
        return result

    def read_history(
        self, command: Callable[[ReadTxn, *Args], Result], *args: *Args, durable: bool = False
    ) -> Result:
        """Do the same as `read`, or `read_durable`, for a command that reads segments.

        Another process may remove a segment at any time. If the newest manifest no longer names it,
        the command runs again, on a newer snapshot.
        """
        while True:
            try:
                return (self.read_durable if durable else self.read)(command, *args)
            except Unreadable as gone:
                if self.read(gone.still_named):
                    raise gone.error from None

    def write(
        self,
        command: Callable[[WriteTxn, *Args], Result],
        *args: *Args,
        wait: bool = False,
        durable: bool = False,
        frees: bool = False,
    ) -> Result:
        """Run `command(txn, *args)` in a write transaction of its own, and commit.

        If a checkpoint is missing it is made, if the map is full it grows, and the command runs
        again from the start. For work of the engine: a command of a user comes here only if
        `command.write_once` finds that one of these has to be done first.

        Args:
            wait: return when the commit is on disk.
            durable: the caller waits for that itself, later.
            frees: the command makes room, so it may use a reserve when the store is at its limit.

        Callers may hold the archive's lock, or that of the checkpoints. So whatever a commit makes
        due and takes one of these locks is left to `settle`.
        """
        result = self.retrying(
            run_write, self.context, command, args, wait, durable, frees, frees=frees
        )
        self.notice()
        return cast(Result, result)

    def run_locked(self, command: Callable[[], Result]) -> Result:
        """Run `command()` under the write lock, with the memtable up to date."""
        return cast(Result, self.retrying(run_locked, self.context, command, ()))

    def notice(self) -> None:
        """After a commit, wake the checkpointer thread, unless it is awake and keeps up."""
        if self.checkpointer is not None and not self.context.keeps_up():
            self.checkpointer.notice()

    def is_due(self) -> bool:
        """Return whether commits have made something due that `settle` does."""
        retired = self.back_pressure is not None and self.context.retired_bytes > RETIRED_LEAST
        return retired or self._needs_checkpoint()

    def _needs_checkpoint(self) -> bool:
        # The checkpointer thread makes them earlier, unless it cannot keep up.
        return self.context.bytes_since_checkpoint >= 2 * BUDGET_BYTES

    def settle(self) -> None:
        """Do what commits have made due: a checkpoint, archiving on the spot.

        Methods of the store call it when their own work is done. Both take locks, so the caller
        must hold neither the archive's lock nor that of the checkpoints. A failure is logged,
        because the commits themselves succeeded.
        """
        if self._needs_checkpoint():
            self.context.bytes_since_checkpoint = 0
            try:
                self.make_checkpoint()
            except StreamkeepError as error:
                log.error("%s: no checkpoint could be made: %s", self.path, error)
        archive = self.back_pressure
        if archive is not None and self.context.retired_bytes > RETIRED_LEAST:
            archive()

    # --- durability -------------------------------------------------------------------------

    def make_checkpoint(self, *, strict: bool = False) -> None:
        """Make a checkpoint: all that is committed is on disk, in the data file itself.

        Args:
            strict: raise if the data file cannot take it. Otherwise the journal has what it lacks.
        """
        if self.checkpoints is not None:
            self.retrying(partial(self.checkpoints.make, strict=strict), frees=strict)

    def _make_checkpoint_needed(self) -> None:
        """Get a pin and a log position; see `CheckpointNeeded`."""
        context, checkpoints = self.context, self.checkpoints
        assert checkpoints is not None
        checkpoints.journal.syncs.check()
        context.check_open()
        if not checkpoints.journal.control.may_write(context.erasures):
            self.clear_memory()
            if context.pin is not None:
                return
        self.retrying(checkpoints.pin if context.pin is None else checkpoints.make)

    def clear_memory(self) -> None:
        """Remove from LMDB's memory everything that was written before the last erasure."""
        while not self.retrying(run_locked, self.context, clear_memory, (self.context,)):
            self.resize(self.map_size() + 2 * PAGE * kept_pages(self.context))

    def durability(self) -> Durability:
        with self.begin_read() as txn:
            return read_durability(txn, self.folder, self.checkpoint_file, self.failures)

    def sync(self) -> None:
        """Return when everything that is committed now is on disk."""
        with self.begin_read() as txn:
            commit_number = txn.newest_commit()
        self.sync_to(commit_number)

    def sync_to(self, commit_number: int) -> None:
        journal = self.context.journal
        if journal is not None and not journal.syncs.wait_for(commit_number):
            self.make_checkpoint()  # it was made before this journal was begun

    def slots(self) -> Iterator[Slot]:
        return read_slots(self.folder.folder(JOURNAL_FOLDER))

    def newest_commit(self) -> int:
        """Return the number of the newest commit, of any process."""
        with self.begin_read() as txn:
            return txn.newest_commit()

    def shipped(self) -> int:
        """Return up to which commit a copy elsewhere has everything; StoreError without one."""
        found = max((slot.shipped for slot in self.slots()), default=-1)
        if found < 0:
            raise StoreError(f"{self.path}: nothing ships the store; next: `streamkeep ship`")
        return found

    def wait_shipped(self, timeout_s: float, commit: int, *, ask: bool = False) -> bool:
        """Wait until a copy elsewhere has everything up to a commit; return whether it has.

        Args:
            ask: have it shipped at once.

        Raises:
            StoreError: there is no copy.
        """
        deadline = time.monotonic() + timeout_s
        if ask and self.context.control is not None:
            self.context.control.want(commit)
        while True:
            shipped = self.shipped()
            if shipped >= commit or time.monotonic() >= deadline:
                return shipped >= commit
            self.context.check_open()
            time.sleep(SHIPPED_POLL_S)

    def retrying(
        self, begin: Callable[[*Args], Result], *args: *Args, frees: bool = False
    ) -> Result:
        """Call `begin` again after errors that can be repaired; translate the others.

        Args:
            begin: changes nothing before it fails.
            frees: it makes room, so that it may use the reserve of a full disk.
        """
        cleared = tried = False
        while True:
            try:
                return begin(*args)
            except CheckpointNeeded:
                self._make_checkpoint_needed()
            except lmdb.MapResizedError:
                self.resize(0)
            except lmdb.PanicError:
                self._reopen()
            except lmdb.MapFullError as error:  # of a flush
                if self.max_store_bytes is None:
                    self.resize(2 * self.map_size())
                elif tried:
                    raise no_room(self.context) from error
                else:  # a checkpoint lets pages be reused, except those that readers keep
                    tried = True
                    self.make_checkpoint()
            except lmdb.ReadersFullError as error:
                if cleared or self.raw.reader_check() == 0:
                    raise translate(error) from error
                cleared = True
            except (StoreFullError, lmdb.Error) as error:
                told = translate(error) if isinstance(error, lmdb.Error) else error
                if tried or not frees or not isinstance(told, StoreFullError):
                    if told is error:
                        raise
                    raise told from error
                # Pages can then be reused, and old journal files removed, the recycled one last.
                self.make_checkpoint()
                if self.context.journal is not None:
                    self.context.journal.drop_recycled()
                tried = True

    def _reopen(self) -> None:
        """Open LMDB again.

        When the page that makes a commit valid cannot be written, as on a full disk whose blocks
        move, LMDB refuses each further transaction of this environment, also when there is room
        again. The commits that it lacks are in the journal and are replayed, as after a kill.

        Raises:
            StoreError: a snapshot or iterator of this process stays open, or LMDB cannot be opened,
                as without a descriptor. The next call tries it again.
        """
        context = self.context
        context.check_not_writing()
        with (
            self._checkpoint_lock,
            without_transactions(context, self.checkpoints, "LMDB must be opened again"),
        ):
            with suppress(lmdb.PanicError):
                context.raw.begin().abort()
                return  # another thread has done it
            context.raw.close()
            try:
                opened = self._open_lmdb()
            except BaseException as error:
                context.use(cast(lmdb.Environment, _Unopened(context.raw)), context.tables)
                if isinstance(error, lmdb.Error):
                    raise translate(error) from error
                if isinstance(error, OSError):
                    raise translate_os(error) from error
                raise
            context.use(*opened)
        log.warning("%s: LMDB was opened again after a commit that it could not finish", self.path)

    # --- size -------------------------------------------------------------------------------

    def map_size(self) -> int:
        return self.raw.info()["map_size"]

    def reusable_size(self) -> int:
        """Return the bytes of used pages that are free and will be used again."""
        with self.begin_read() as txn:
            return max(0, self.context.size() - used_bytes(self.context, txn.raw()))

    def resize(self, size: int) -> None:
        """Set the size of the map; 0 adopts the size that another process has set.

        Raises:
            StoreError: a snapshot or iterator of this process stays open and pins the map.
        """
        self.context.check_not_writing()
        why = "the store's map must be resized"
        with self._checkpoint_lock, without_transactions(self.context, self.checkpoints, why):
            self.raw.set_mapsize(size)

    @property
    def _checkpoint_lock(self) -> AbstractContextManager[object]:
        """The lock of checkpoints, which is taken before all others."""
        return nullcontext() if self.checkpoints is None else self.checkpoints.lock

    # --- end --------------------------------------------------------------------------------

    def check_may_close(self) -> None:
        """Raise StoreError if to close a store would wait for this thread, or take its files."""
        work = ""
        if is_mine(self.waiters.lock):
            work = "beginning or ending a wait"
        elif self.users > 1:
            return
        elif self.context.wait_table.is_waking():
            work = "waking a reader"
        elif self.checkpoints is not None and is_mine(self.checkpoints.lock):
            work = "making a checkpoint"
        if work:
            raise StoreLockedError(
                f"{self.path}: this thread is {work}, which a signal has interrupted; "
                f"next: {IN_HANDLER}"
            )
        self.context.check_not_writing()
        if self.archive_work.is_mine():
            raise StoreLockedError(
                f"{self.path}: this thread is working on the archive; next: close the store when "
                "that method has returned"
            )

    def release(self, opening: Opening | None = None) -> None:
        """End one use; the last one closes the environment, after archiving has ended.

        Args:
            opening: which began it, and has not ended yet: two threads may end it. Its `undo`
                does this again, if an interrupt came before.
        """
        with self.life:
            last = False
            try:
                with registry.lock:
                    if opening is not None and not opening.counted:
                        return
                    last = self.users == 1 and not self.context.closed
                    self.users -= 1
                    if opening is not None:
                        opening.counted = False  # no interrupt comes between the two
                if not last:
                    return
                if self.checkpointer is not None:
                    self.checkpointer.stop()
                self.archive_work.acquire()
                if self.checkpoints is not None:
                    if self._needs_last_checkpoint(self.checkpoints):
                        self.make_checkpoint()
                    with suppress(StreamkeepError):  # this process may not even have written
                        self.checkpoints.release_room()
            finally:
                if last:
                    _take(self._last_steps())

    def _needs_last_checkpoint(self, checkpoints: Checkpoints) -> bool:
        """Return whether to make a checkpoint before the end, so that no recovery is needed.

        A process that has not written makes it for others that were killed.
        """
        control = checkpoints.journal.control
        if self.context.pin is not None or control.poisoned():
            return True
        control.forget_killed()
        if control.is_shared():
            return False
        slot = checkpoints.file.newest()
        return slot is not None and slot.commit_number < control.newest()

    def finish(self) -> None:
        """Close what the last `release` has left open, because it was interrupted.

        Does nothing while this thread is in there, as in a signal handler: it goes on afterwards.
        """
        if self.users <= 0 and not self.context.forked and not is_mine(self.life):
            self.context.check_not_writing()
            with self.life:
                _take(self._last_steps())

    def _last_steps(self) -> list[Step]:
        """Return what closes the environment at last; to take a step again does no harm."""
        return [self.close_files, partial(registry.remove, self), self._end_archive_work]

    def _end_archive_work(self) -> None:
        if self.archive_work.is_mine():
            self.archive_work.release()

    def close_files(self) -> None:
        """Close everything, without a checkpoint.

        A store that stayed open could not be opened again by this process. So no failure of a part
        keeps the others open, and an interrupted part is closed again.
        """
        context = self.context
        with self._checkpoint_lock, context.thread_lock.unlimited(), context.gate:
            context.closed = "the store is closed; next: open it again"
            if self._unclosed is None:
                self._unclosed = self._parts()
            _take(self._unclosed)

    def _parts(self) -> list[Step]:
        """Return what closes each part, in this order; a second call does no harm."""
        context = self.context
        parts: list[Step] = [context.start_over]
        if self.checkpoints is not None:
            parts.append(self.checkpoints.close)
        parts += [self.leases.close, self.waiters.close, self.segments.close, self.raw.close]
        if context.write_lock is not None:
            parts.append(context.write_lock.close)
        if context.journal is not None:
            parts.append(context.journal.close)
        elif context.log is not None:
            parts.append(context.log.close)
        if context.control is not None:
            parts.append(context.control.close)
        if self.checkpoint_file is not None:
            parts.append(self.checkpoint_file.close)
        return [*parts, self.folder.close_all]


def _take(steps: list[Step]) -> None:
    """Take every step, whatever the others raise; raise the first failure at the end.

    An interrupted step is taken again, but only once: it may wait, and another interrupt ends that.
    Such a step stays in the list.
    """
    failures: list[BaseException] = []
    for step in list(steps):
        for _ in range(2):
            try:
                step()
                if step in steps:  # an interrupt may come just after it was removed
                    steps.remove(step)
                break
            except Exception as error:
                failures.append(error)
                if step in steps:
                    steps.remove(step)
                break
            except BaseException as error:
                failures.append(error)
    if failures:
        raise failures[0]


@contextmanager
def without_transactions(
    context: EngineContext, checkpoints: Checkpoints | None, why: str
) -> Iterator[None]:
    """Run the block while this process has no transaction of LMDB open, not even a pin.

    The caller holds the lock of the checkpoints, and no write transaction.

    Raises:
        StoreError: a snapshot or iterator of this process stays open.
    """
    deadline = time.monotonic() + READERS_WAIT_S
    closed_s = _GATE_S
    while True:
        with context.thread_lock, context.gate:
            context.writer = threading.get_ident()
            try:
                if _is_unread(context, closed_s):
                    context.forget()
                    if checkpoints is not None:
                        checkpoints.unpin()
                    yield
                    return
            finally:
                context.writer = 0
        if time.monotonic() > deadline:
            raise StoreError(
                f"{why}, which open snapshots and iterators of this process prevent; close them"
            )
        time.sleep(_GATE_S)  # others may begin, and write
        # Longer each time: threads that scan in turns leave no moment without a snapshot.
        closed_s = min(2 * closed_s, READERS_WAIT_S / 4)


def _is_unread(context: EngineContext, wait_s: float) -> bool:
    """Return whether this process has no snapshot open; wait a moment for those of commands."""
    end = time.monotonic() + wait_s
    while context.left < context.entered:
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True
