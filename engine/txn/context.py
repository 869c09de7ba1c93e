"""What all transactions of one LMDB environment have in common: the memtable, locks, caches.

Each transaction begins with `begin_view`, which brings the memtable up to date. It needs no lock
of another process and waits for none.

LMDB's map must not be resized while a transaction of this process is open. So snapshots are counted
when they begin, under `gate`, and when they end. `Environment.resize` holds the gate. Compiled by
mypyc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import lmdb

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.journal.reader import NOWHERE, Reader
from streamkeep.engine.journal.write_lock import WriteLock
from streamkeep.engine.liveness.leases import Leases
from streamkeep.engine.notify.wait_table import WaitTable
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.locks import make_lock, make_reentrant_lock
from streamkeep.engine.system.long_wait import IN_HANDLER, WRITE_LOCK, LongWait, PatientLock
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.txn.memtable import Memtable
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import RecoveryNeededError, StoreClosedError, StoreError
from streamkeep.format.journal.position import POSITION_KEY, LogPosition, decode_position

BUDGET_BYTES: Final = 256 << 20  # written, after which a checkpoint is due
_LEAST_GROWTH: Final = 4 << 20
_CACHED_BYTES: Final = 64 << 20  # of streams: 40,000 with few entries, 8,000 with full tails
_STREAM_BYTES: Final = 1280  # beside the tail
_CACHED_GROUPS: Final = 8192  # of about 8 KB
_get_ident: Final = threading.get_ident
_time_ns: Final = time.time_ns


class CachedRow:
    """A decoded object that a write transaction changes, and saves at commit."""

    def save(self) -> None:
        """Write what changed into the transaction."""
        raise NotImplementedError


CachedRowKey = tuple[int, bytes]  # stream number, name


def position_in(raw: lmdb.Transaction[bytes]) -> LogPosition:
    """Return the log position of the image that a transaction of LMDB shows."""
    row = raw.get(POSITION_KEY, None)
    return LogPosition(0, 0, 0, int(raw.id())) if row is None else decode_position(row)


class EngineContext:
    """What all transactions of one LMDB environment have in common."""

    def __init__(
        self,
        raw: lmdb.Environment,
        tables: dict[int, lmdb._Database],
        path: str,
        epoch: int,
        clock: Clock,
        node_max_bytes: int,
        node_max_entries: int,
    ) -> None:
        # Replaced together, by `use`.
        self.raw = raw
        self.tables = tables
        # Set here and never changed.
        self.path = path
        self.epoch = epoch
        self.clock = clock
        self._ticks = type(clock) is Clock  # no test moves it
        # Of new streams; a server may change them (CONFIG SET), in one step and without a lock.
        self.node_max_bytes = node_max_bytes
        self.node_max_entries = node_max_entries
        self.new_extension = b""  # of their records: how long and how many messages they remember
        # Set once, while the store is opened and no other thread knows it.
        self.journal: Journal | None = None  # None for a read-only store
        self.control: ControlFile | None = None  # None if no other process can write
        self.log: Reader | None = None  # likewise
        self.segment_files: object = None  # a `SegmentFiles`, for reading history
        self.max_bytes = 0  # of pages in use; 0 for no limit
        self.data_handle = -1  # the data file, of a store that may be written
        self.wait = LongWait(WRITE_LOCK)  # for other processes
        self.write_lock: WriteLock | None = None  # among processes; None for a read-only store
        self.make_locks()
        # Protected by `apply_lock`; while a thread has the write lock, only it changes them.
        self.memtable = Memtable()
        self.image = -1  # the LMDB transaction that `memtable` lies over
        # Protected by `thread_lock`, and changed under `apply_lock`.
        self.cache: dict[bytes, Stream] = {}
        self.cached_names: dict[bytes, bytes] = {}  # of the streams in `cache`, by their keys
        self.cached_bytes = 0  # of their tails
        self.cached_rows: dict[CachedRowKey, CachedRow] = {}
        self.group_counts: dict[int, int] = {}  # by stream; another one when groups come or go
        self.most_pages = 0  # changed by the biggest commit at most; see `page_memory`
        # Changed under the checkpoint lock. `begin_write` only asks whether there is one.
        self.pin: lmdb.Transaction[bytes] | None = None
        # Changed under `thread_lock` and read without it: an old value is harmless.
        self.last_commit = -1
        self.bytes_since_checkpoint = 0  # estimated; the checkpointer sets it back
        self.most_size = 0  # of data.mdb, above which a checkpoint is due: see `allow_growth`
        self.erasures = 0  # the number of erasures for which the memory was cleared
        self.writer = 0  # the thread that holds `thread_lock`; compared with the caller only
        # Numbers and flags that are set in one step and need no lock.
        self.retired_bytes = 0  # size of `retired` after the last commit that added to it
        self.refuse_above = 0  # retired bytes above which streams that archive take no entries
        self.watched = False  # the checkpointer thread knows that there are commits
        self.closed = ""  # why no transaction may begin any more; set under `gate`
        self.forked = False  # this is a child process, and everything open is the parent's
        self.entered = 0  # read transactions begun; protected by `gate`
        self.left = 0  # read transactions ended; protected by `exit_gate`
        self.of_thread = threading.local()  # streams that it has decoded: a third of an `xlen`
        # With locks of their own. The wait table is replaced under the lock of the waiters.
        self.wait_table = WaitTable(None)
        self.leases: Leases | None = None  # set while the store is opened; None in tools
        self.deaths = 0  # of leases, as far as the watch of this process has seen them

    def make_locks(self) -> None:
        """Make the locks; also in a forked child, where threads of the parent may hold the old."""
        store = self.path
        self.thread_lock = PatientLock(make_lock("write", store), self.wait)
        self.gate = make_lock("gate", store)  # held while the map is resized
        self.apply_lock = make_lock("apply", store)
        # A thread that holds it may take it again: the garbage collector may end a transaction.
        self.exit_gate = make_reentrant_lock("exit gate", store)

    def use(self, raw: lmdb.Environment, tables: dict[int, lmdb._Database]) -> None:
        """Go on with LMDB opened again; no transaction of this process is open."""
        self.raw = raw
        self.tables = tables
        self.image = -1

    def now_ms(self) -> int:
        return int(_time_ns() // 1_000_000) if self._ticks else self.clock.now_ms()

    def size(self) -> int:
        """Return the bytes of data.mdb that LMDB uses, or has used."""
        return (int(self.raw.info()["last_pgno"]) + 1) * PAGE

    def allow_growth(self) -> None:
        """Let data.mdb grow by a quarter, and by 4 MiB at least, until the next checkpoint is due.

        Only pages that were freed before a checkpoint can be reused. 200,000 entries for 100,000
        streams in any order make a file of 15 times their size if checkpoints go by time alone.
        """
        size = self.size()
        self.most_size = size + max(size // 4, _LEAST_GROWTH)

    def keeps_up(self) -> bool:
        """Return whether the checkpointer thread is awake, and keeps up with the commits."""
        return self.watched and self.bytes_since_checkpoint < BUDGET_BYTES

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosedError(self.closed)

    def journal_or_raise(self) -> Journal:
        """Return the journal of a store that is open for writing."""
        journal = self.journal
        assert journal is not None, "read-only"
        return journal

    def leave_to_parent(self, raw: object) -> bool:
        """In a forked child, keep an LMDB transaction without end, and return True.

        To end it would release a slot or lock of the parent. Return False in any other process.
        """
        if self.forked:
            import ctypes  # only in forked children

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(raw))  # also at the interpreter's end
        return self.forked

    def release_write(self) -> None:
        try:
            if self.write_lock is not None:
                self.write_lock.release()
        finally:
            self.writer = 0
            self.thread_lock.release()

    # --- the memtable -----------------------------------------------------------------------

    def begin_view(self) -> lmdb.Transaction[bytes]:
        """Begin a transaction of LMDB that reads, and bring the memtable up to date over it.

        The caller holds `apply_lock`. Then the rows of the memtable, else those of the transaction,
        are those of the newest commit.

        Raises:
            RecoveryNeededError: the journal lacks commits that were made.
        """
        control = self.control
        image = -2
        while True:
            newest = -1 if control is None else control.newest()  # first: LMDB may be newer by then
            raw = self.raw.begin(None, None, False, False)
            try:
                # LMDB notes the number of its newest commit, then takes the rows. They are newer
                # if two more flushes came between; each comes after another published commit.
                late = control is not None and control.newest() != newest
                if late or raw.id() != self.image:
                    self._attach(raw)
                if self._apply(raw, newest):
                    return raw
                if image == self.image:  # otherwise a checkpoint has removed the next record
                    known = -1 if self.log is None else self.log.commit_number
                    raise RecoveryNeededError(
                        f"{self.path}: the journal ends at commit {known}, but commit "
                        f"{newest} was made; next: close the store in every process, and open it "
                        "again, which recovers it"
                    )
                image = self.image
            except BaseException:
                raw.abort()
                raise
            raw.abort()

    def run_at_end(self, close: Callable[[], None]) -> None:
        """Run a function while no thread of this process has a write transaction, or begins any.

        For interpreted callers: see `run_locked`. A lock that stayed held was waited for forever.
        """
        with self.thread_lock.unlimited(), self.gate:
            close()

    def begin_alone(self) -> None:
        """Do the same until `end_alone`."""
        self.thread_lock.acquire()
        try:
            self.gate.acquire()
        except BaseException:
            self.thread_lock.release()
            raise
        self.writer = threading.get_ident()

    def end_alone(self) -> None:
        """Do nothing if `begin_alone` was interrupted."""
        if self.writer == threading.get_ident():
            self.writer = 0
            self.gate.release()
            self.thread_lock.release()

    def position(self) -> LogPosition:
        """Return the log position after the newest commit, of any process."""
        with self.gate:
            self.check_open()
            with self.apply_lock:
                raw = self.begin_view()
                position = position_in(raw) if self.log is None else self.log.position
                raw.abort()
        return position

    def catch_up(self) -> None:
        with self.apply_lock:
            raw = self.begin_view()
        raw.abort()

    def follow(self) -> None:
        """Apply what other processes have committed, if they have; under the lock of threads."""
        control, log = self.control, self.log
        with self.apply_lock:  # a reader may have moved the log, and not applied the record yet
            if (
                self.image >= 0
                and control is not None
                and log is not None
                and log.commit_number == control.newest()
            ):
                return
        self.catch_up()

    def begin_image(self) -> lmdb.Transaction[bytes]:
        """Begin a transaction of LMDB for a memtable that is up to date, under the write lock."""
        with self.apply_lock:
            raw = self.raw.begin(None, None, False, False)
            if raw.id() != self.image:
                self._attach(raw)
            return raw

    def _attach(self, raw: lmdb.Transaction[bytes]) -> None:
        """Lay the memtable over another image."""
        position = position_in(raw)
        known = -1 if self.log is None else self.log.commit_number
        if position.commit_number >= known:  # never one between: all of it was applied, or nothing
            self.memtable.clear()
            if position.commit_number > known:
                self.group_counts = {}
                if self.log is not None:
                    self.forget()
                    self.log.go_to(*position)
        self.image = int(raw.id())

    def _apply(self, raw: lmdb.Transaction[bytes], newest: int) -> bool:
        """Apply the records up to a commit; return False if they cannot be found."""
        log, memtable = self.log, self.memtable
        if log is None or log.commit_number >= newest:
            return True
        log.begin()
        try:
            while log.commit_number < newest:
                body = log.next()
                if body is None:
                    return False
                memtable.apply(body, raw, self.tables)
            self._drop_changed()
        except BaseException as error:
            self.start_over()
            if isinstance(error, OSError):
                raise translate_os(error) from error
            raise
        return True

    def _drop_changed(self) -> None:
        """Drop what is decoded of rows that other processes have changed."""
        memtable = self.memtable
        if memtable.changed:
            memtable.changed = False
            self.cached_rows.clear()
        if memtable.regrouped:
            memtable.regrouped = False
            self.group_counts = {}
        if memtable.streams:
            changed, memtable.streams = memtable.streams, set()
            for db_key in changed:
                name = self.cached_names.get(db_key)
                if name is not None:
                    self.drop(name)

    def start_over(self) -> None:
        """Forget all rows, decoded or not; the next view begins with the image."""
        self.memtable.clear()
        self.image = -1
        if self.log is not None:
            self.log.go_to(*NOWHERE)
        self.forget()

    def keep(self, stream: Stream) -> None:
        self.cache[stream.name] = stream
        self.cached_names[stream.db_key] = stream.name

    def drop(self, name: bytes) -> None:
        stream = self.cache.pop(name, None)
        if stream is not None:
            del self.cached_names[stream.db_key]
            self.cached_bytes -= stream.cached_size
            stream.cached_size = 0

    def shrink(self) -> None:
        """Drop what has been in the caches for longest, if they are full."""
        if self.cached_bytes + _STREAM_BYTES * len(self.cache) > _CACHED_BYTES:
            for name in list(self.cache)[: len(self.cache) // 8 + 1]:
                self.drop(name)
        if len(self.cached_rows) > _CACHED_GROUPS:
            for key in list(self.cached_rows)[: _CACHED_GROUPS // 8]:
                del self.cached_rows[key]

    def forget(self) -> None:
        """Empty the caches: their contents may differ from what is stored."""
        self.cache.clear()
        self.cached_names.clear()
        self.cached_bytes = 0
        self.cached_rows.clear()

    def check_not_writing(self) -> None:
        """Raise StoreError if this thread is in a transaction or a sync: it would wait for itself.

        A signal handler may run in the middle of a commit, a checkpoint, or a sync.
        """
        if self.writer == _get_ident():
            raise StoreError(
                "this thread has a transaction open on the store; call the method on the "
                f"transaction, or end it first; {IN_HANDLER}"
            )
        if self.journal is not None:
            self.journal.syncs.check_not_syncing()
