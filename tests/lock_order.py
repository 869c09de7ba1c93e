"""The locks of the engine, in the order in which a thread takes them.

A thread that holds a lock of a store waits only for locks of that store that come later in `ORDER`.
So no two threads can wait for each other. Locks of different stores are independent: a caller may
open one store while it holds a transaction on another. A try that does not wait cannot block, so
it is allowed in any order.

`check` has every lock that is made from then on raise `LockOrderError` when a thread takes it out
of order.

A lock on a file is held by one process or shared by many. All but the last three are taken only by
the thread that holds the thread lock before them, so that one check covers both. The system
releases them when a process dies.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final, NamedTuple

from streamkeep.engine.system import locks


class Lock(NamedTuple):
    """One lock: who holds it, and what it protects."""

    name: str
    where: str  # the attribute, or the file
    protects: str
    file: bool = False


ORDER: Final = (
    Lock(
        "async steps",
        "engine/api/async_methods.py: _Steps._lock",
        "an iterator of the asyncio interface: one thread at a time runs its steps",
    ),
    Lock(
        "life",
        "engine/store/registry.py: Opening.life, Ending.life",
        "one thread opens or closes a store; those that open it meanwhile wait for it",
    ),
    Lock(
        "back pressure",
        "engine/archive/back_pressure.py: BackPressure._lock",
        "one thread of a process archives to make room",
    ),
    Lock(
        "archive",
        "engine/store/ending.py: Ending.archive_work",
        "segment files and the manifest; the store closes after its holder has finished",
    ),
    Lock("archive file", "archive/lock", "the same among processes", file=True),
    Lock(
        "checkpoint",
        "engine/checkpoint/checkpoint.py: Checkpoints.lock",
        "making checkpoints, retiring journal files, EngineContext.pin",
    ),
    Lock("checkpoint file", "journal/", "the same among processes", file=True),
    Lock(
        "write",
        "engine/txn/context.py: EngineContext.thread_lock",
        "changes of rows, the cache of streams and groups, the journal's next log position",
    ),
    Lock("write file", "journal/write", "the write lock among processes", file=True),
    Lock("LMDB", "lock.mdb", "a transaction that writes LMDB, mostly a flush", file=True),
    Lock(
        "gate",
        "engine/txn/context.py: EngineContext.gate",
        "EngineContext.entered; no read transaction begins while the map is resized",
    ),
    Lock(
        "apply",
        "engine/txn/context.py: EngineContext.apply_lock",
        "the memtable, the log position, and which image they belong to",
    ),
    Lock(
        "sync", "engine/journal/syncs.py: Syncs._lock", "one thread of a process syncs the journal"
    ),
    Lock(
        "registry",
        "engine/store/registry.py: Registry.lock",
        "the list of open stores of this process, and the number of their users",
    ),
    Lock(
        "group commit",
        "engine/store/group_commit.py: GroupCommit._mutex",
        "the queue of calls that share a commit, and which call leads",
    ),
    Lock(
        "checkpointer",
        "engine/checkpoint/checkpointer.py: Checkpointer._start_lock",
        "the start and the end of the checkpointer thread",
    ),
    Lock(
        "leases",
        "engine/liveness/leases.py: Leases._lock",
        "the lease of this process on a store, and its watch over those of others",
    ),
    Lock(
        "marks",
        "engine/liveness/marks.py: Marks._lock",
        "what the process works on, in the file of its lease",
    ),
    Lock(
        "waiters",
        "engine/blocking/waiters.py: Waiters.lock",
        "the bells of a store in this process, and which consumers had to wait",
    ),
    Lock(
        "wait table",
        "engine/notify/wait_table.py: WaitTable._mutex",
        "rows of the wait table among threads",
    ),
    Lock("wait table file", "waiters/board", "rows of the wait table among processes", file=True),
    Lock(
        "notifier",
        "engine/notify/notifier.py: Notifier.lock",
        "open pipes to other processes; none is closed while another thread writes to it",
    ),
    Lock(
        "segment files",
        "engine/tables/segment_files.py: SegmentFiles._lock",
        "the segments that are kept open",
    ),
    Lock(
        "chunks of remote segments",
        "engine/remote/remote_archive.py: ChunkCache._lock",
        "what was read last from the object store of the archive",
    ),
    Lock(
        "exit gate",
        "engine/txn/context.py: EngineContext.exit_gate",
        "EngineContext.left; a read transaction may end at any moment, so this lock is the last",
    ),
    Lock(
        "LMDB",
        "journal/head",
        "LMDB's write transactions: flushes, and for a moment each opening",
        file=True,
    ),
    Lock(
        "store",
        "steady",
        "shared by all processes that have the store open; recovery and repair hold it alone",
        file=True,
    ),
    Lock(
        "unlisted readers",
        "data.mdb",
        "shared by readers that may not write lock.mdb; keeps writers out",
        file=True,
    ),
)

PLACES: Final = {lock.name: place for place, lock in enumerate(ORDER) if not lock.file}


class LockOrderError(AssertionError):
    """A thread takes a lock that comes before one that it holds."""


class _Held(threading.local):
    """The checked locks that a thread holds, in the order in which it took them."""

    def __init__(self) -> None:
        self.locks: list[CheckedLock] = []


_held = _Held()


class CheckedLock:
    """A lock that raises when a thread takes it out of order."""

    def __init__(self, name: str, store: str, lock: Any) -> None:
        self.name = name
        self.store = store
        self._place = PLACES[name]
        self._lock = lock  # a Lock or an RLock
        self._holders: list[list[CheckedLock]] = []  # of the thread that has it, once per level

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self._check()
        taken = bool(self._lock.acquire(blocking, timeout))
        if taken:
            _held.locks.append(self)
            self._holders.append(_held.locks)
        return taken

    def release(self) -> None:
        """Release the lock, maybe in another thread than that which took it."""
        if self._holders:
            holder = self._holders.pop()
            if self in holder:  # not after a fork
                holder.remove(self)
        self._lock.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()

    def _check(self) -> None:
        if self in _held.locks and isinstance(self._lock, _RLOCK):
            return
        for one in _held.locks:
            same = one.store == self.store or not one.store or not self.store
            if same and one._place >= self._place:
                raise LockOrderError(
                    f"this thread takes the lock {self.name!r} while it holds {one.name!r}, which "
                    f"comes after it in the order of {__name__}"
                )

    def _is_owned(self) -> bool:
        return self in _held.locks


_RLOCK: Final = type(threading.RLock())


os.register_at_fork(after_in_child=lambda: _held.locks.clear())


def check() -> None:
    """Check the order of all locks that are made from now on."""
    locks.checked = CheckedLock
