"""What all transactions of one LMDB environment have in common: locks, caches, the wait table.

LMDB's map must not be resized while a transaction of this process is open. So transactions are
counted when they begin, under `gate`, and when they end. `Environment.resize` holds the gate.
Compiled by mypyc.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import lmdb

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.liveness.leases import Leases
from streamkeep.engine.notify.wait_table import WaitTable
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.locks import make_lock
from streamkeep.engine.system.long_wait import PatientLock
from streamkeep.engine.txn.deferral import Deferral
from streamkeep.engine.txn.lmdb_lock import LmdbLock
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import StoreClosedError, StoreError

BUDGET_BYTES: Final = 256 << 20  # written, after which a checkpoint is due
_get_ident: Final = threading.get_ident
_time_ns: Final = time.time_ns


class CachedRow:
    """A decoded object that a write transaction changes, and saves at commit."""

    def save(self) -> None:
        """Write what changed into the transaction."""
        raise NotImplementedError


def keep_for_ever(one: object) -> None:
    """Never free an object, not even at the end of the interpreter."""
    import ctypes  # only in forked children

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


CachedRowKey = tuple[int, bytes]  # stream number, name


class EngineContext:
    """What all transactions of one LMDB environment have in common."""

    def __init__(
        self,
        raw: lmdb.Environment,
        tables: dict[int, lmdb._Database],
        epoch: int,
        clock: Clock,
        node_max_bytes: int,
        node_max_entries: int,
    ) -> None:
        # Replaced together, by `use`.
        self.raw = raw
        self.tables = tables
        # Set here and never changed.
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
        self.segment_files: object = None  # a `SegmentFiles`, for reading history
        self.lmdb_lock = LmdbLock(raw)
        self.make_locks()
        # Protected by `write_lock`.
        self.cache: dict[bytes, Stream] = {}
        self.cached_rows: dict[CachedRowKey, CachedRow] = {}
        self.generation = 0  # of the cache; rises after commits of other processes
        self.cached_commit = -1  # the newest commit that this generation includes
        self.most_pages = 0  # changed by the biggest commit at most; see `page_memory`
        self.deferral = Deferral(self)
        # Changed under the checkpoint lock. `begin_write` only asks whether there is one.
        self.pin: lmdb.Transaction[bytes] | None = None
        # Changed under `write_lock` and read without it: an old value is harmless.
        self.last_commit = -1
        self.bytes_since_checkpoint = 0  # estimated; the checkpointer sets it back
        self.erasures = 0  # the number of erasures for which the memory was cleared
        self.writer = 0  # the thread that holds `write_lock`; compared with the caller only
        # Numbers and flags that are set in one step and need no lock.
        self.shown = (
            0  # the newest deferred commit that snapshots of this process are known to show
        )
        self.retired_bytes = 0  # size of `retired` after the last commit that added to it
        self.refuse_above = 0  # retired bytes above which streams that archive take no entries
        self.watched = False  # the checkpointer thread knows that there are commits
        self.closed = ""  # why no transaction may begin any more; set under `gate`
        self.forked = False  # this is a child process, and everything open is the parent's
        self.entered = 0  # read transactions begun; protected by `gate`
        self.left = 0  # read transactions ended; protected by `exit_gate`
        # With locks of their own. The wait table is replaced under the lock of the waiters.
        self.wait_table = WaitTable(None)
        self.leases: Leases | None = None  # set while the store is opened; None in tools
        self.deaths = 0  # of leases, as far as the watch of this process has seen them

    def make_locks(self) -> None:
        """Make the locks; also in a forked child, where threads of the parent may hold the old."""
        store = self.raw.path()
        self.write_lock = PatientLock(make_lock("write", store), self.lmdb_lock.wait)
        self.gate = make_lock("gate", store)  # held while the map is resized
        self.exit_gate = make_lock("exit gate", store)

    def use(self, raw: lmdb.Environment, tables: dict[int, lmdb._Database]) -> None:
        """Go on with LMDB opened again; no transaction of this process is open."""
        self.raw = raw
        self.tables = tables
        self.lmdb_lock.raw = raw
        self.deferral.room.raw = raw

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return int(_time_ns() // 1_000_000) if self._ticks else self.clock.now_ms()

    def keeps_up(self) -> bool:
        """Return whether the checkpointer thread is awake, and keeps up with the commits."""
        return self.watched and self.bytes_since_checkpoint < BUDGET_BYTES

    def check_open(self) -> None:
        """Raise unless transactions may begin."""
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
            keep_for_ever(raw)
        return self.forked

    def forget(self) -> None:
        """Empty the caches: their contents may differ from what is stored."""
        self.cache.clear()
        self.cached_rows.clear()

    def check_not_writing(self) -> None:
        """Raise StoreError if this thread has a write transaction: it would wait for itself."""
        if self.writer == _get_ident():
            raise StoreError(
                "this thread has a transaction open on the store; call the method on the "
                "transaction, or end it first"
            )
