"""One LMDB environment per process and store: transactions, durability, growth.

Commands of users run through `read`, `read_durable` and `command.write_once`, work of the engine
through `read` and `write`. These repair what they can (a map that must grow, a missing pin, a full
table of readers) and translate LMDB's errors. A map that had to begin small (`opening`) grows when
it is used up: under the write lock, with the gate for new readers closed, after the last reader of
this process has finished.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
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
from streamkeep.engine.store.ending import Ending
from streamkeep.engine.store.group_commit import GroupCommit
from streamkeep.engine.system.failures import Failures
from streamkeep.engine.system.lmdb_errors import translate, translated
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.manifest import remote_setting
from streamkeep.engine.tables.segment_files import SegmentFiles
from streamkeep.engine.txn.begin import (
    CheckpointNeeded,
    begin_read,
    begin_stored,
    begin_write,
    run_locked,
    run_read,
    run_write,
)
from streamkeep.engine.txn.context import BUDGET_BYTES, EngineContext
from streamkeep.engine.txn.flush import may_lack_pages, used_bytes
from streamkeep.engine.txn.page_memory import clear_memory, kept_pages
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import StoreError, StoreFullError, StreamkeepError

RETIRED_LEAST: Final = 64 << 20  # bytes in `retired` below which there is no back pressure
SHIPPED_POLL_S: Final = 0.01  # a piece needs longer to reach a bucket

Args = TypeVarTuple("Args")
Result = TypeVar("Result")
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


class Environment(Ending):
    """The open LMDB environment of a store, shared by all `Store` objects of this process."""

    def __init__(
        self,
        folder: Folder,
        context: EngineContext,
        *,
        uuid_bytes: bytes,
        readonly: bool,
        lock: CheckpointFile | None,
        control: ControlFile | None,
        open_lmdb: OpenLmdb,
    ) -> None:
        super().__init__(folder, context, lock)
        self.uuid = uuid.UUID(bytes=uuid_bytes)
        self.readonly = readonly
        self.follows = ""  # what a standby follows; set while the store is opened
        self._open_lmdb = open_lmdb
        self.failures = Failures()  # of the threads that work for this environment
        self.waiters = Waiters(folder, context, self.read)
        self.back_pressure: BackPressure | None = None  # called after commits
        self.transactions: dict[int, object] = {}  # those of `Store.transaction`, by thread
        self.renew_queue()
        self.segments = SegmentFiles(folder, remote=self.remote_archive)
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
        """Wait for the write lock and begin a transaction; see `begin.begin_write`."""
        return self.retrying(lambda: begin_write(self.context, durable=durable))

    def begin_stored(self) -> ReadTxn:
        """Begin a read transaction of what `data.mdb` has now, whatever the journal has."""
        with translated():
            return begin_stored(self.context)

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
        the command runs again, on a newer snapshot. So it does once with a file that is opened
        again: by now a sound copy may be in its place, or the archive may have moved.
        """
        again: set[str] = set()  # paths
        while True:
            try:
                return (self.read_durable if durable else self.read)(command, *args)
            except Unreadable as gone:
                path = gone.record.path
                if path in again and self.read(gone.still_named):
                    raise gone.error from None
                again.add(path)
                self.segments.forget(path)

    def write(
        self,
        command: Callable[[WriteTxn, *Args], Result],
        *args: *Args,
        wait: bool = False,
        durable: bool = False,
        frees: bool = False,
        most_s: float = -1.0,
    ) -> Result:
        """Run `command(txn, *args)` in a write transaction of its own, and commit.

        If a checkpoint is missing it is made, if the map is full it grows, and the command runs
        again from the start. For work of the engine: a command of a user comes here only if
        `command.write_once` finds that one of these has to be done first.

        Args:
            wait: return when the commit is on disk.
            durable: the caller waits for that itself, later.
            frees: the command makes room, so it may use a reserve when the store is at its limit.
            most_s: about how long to wait for the write lock; -1 for no limit.

        Callers may hold the archive's lock, or that of the checkpoints. So whatever a commit makes
        due and takes one of these locks is left to `settle`.
        """
        result = self.retrying(
            run_write, self.context, command, args, wait, durable, frees, most_s, frees=frees
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
        if checkpoints.journal.control.moved:  # perhaps it is back by now
            checkpoints.journal.control.check_not_moved()
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
        return read_slots(self.folder.folder(JOURNAL_FOLDER, missing_ok=True))

    def following(self) -> list[Slot]:
        """Return the slots of copies that follow this store, and not one that was in its place."""
        return [one for one in self.slots() if not one.taken_over and (one.shipped or one.begun)]

    def newest_commit(self) -> int:
        """Return the number of the newest commit, of any process."""
        with self.begin_read() as txn:
            return txn.newest_commit()

    def shipped(self) -> int:
        """Return up to which commit a copy elsewhere has everything; StoreError without one."""
        found = max((slot.shipped for slot in self.following()), default=-1)
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
        cleared = tried = dropped = False
        while True:
            try:
                return begin(*args)
            except CheckpointNeeded:
                self._make_checkpoint_needed()
            except lmdb.MapResizedError:
                self.resize(0)
            except lmdb.PanicError:
                self._reopen()
            except lmdb.MapFullError:  # of a flush
                self.resize(2 * self.map_size())
            except lmdb.ReadersFullError as error:
                if cleared or self.raw.reader_check() == 0:
                    raise translate(error) from error
                cleared = True
            except (StoreFullError, lmdb.Error) as error:
                told = translate(error) if isinstance(error, lmdb.Error) else error
                makes_room = frees or may_lack_pages(self.context)
                if dropped or not makes_room or not isinstance(told, StoreFullError):
                    if told is error:
                        raise
                    raise told from error
                # Pages and journal files can then be reused; at last, the recycled one is room.
                self.make_checkpoint()
                dropped = tried
                if dropped and frees and self.context.journal is not None:
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
        with self.without_transactions("LMDB must be opened again"):
            with suppress(lmdb.PanicError):
                context.raw.begin().abort()
                return  # another thread has done it
            context.raw.close()
            try:
                with translated(system=True):
                    opened = self._open_lmdb()
            except BaseException:
                context.use(cast(lmdb.Environment, _Unopened(context.raw)), context.tables)
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
        with self.without_transactions("the store's map must be resized"):
            self.raw.set_mapsize(size)
