"""What all transactions of one LMDB environment have in common: locks, cache, who is to be told.

LMDB must not be resized while a transaction of this process is open: transactions are counted in
and out through a gate that `Environment.resize` closes. Compiled by mypyc.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import lmdb

from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.notify.wait_table import WaitTable
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.txn.messages_due import MessagesDue
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import StoreClosedError, StoreError

_get_ident: Final = threading.get_ident


class CachedRow:
    """Something decoded that belongs to a write transaction, which saves it at commit."""

    def save(self) -> None:
        """Write what changed into the transaction."""
        raise NotImplementedError


def keep_for_ever(one: object) -> None:
    """Never free an object, not even when the interpreter ends."""
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
        self.raw = raw
        self.tables = tables
        self.epoch = epoch
        self.clock = clock
        self.node_max_bytes = node_max_bytes  # of streams created from now on
        self.node_max_entries = node_max_entries
        self.write_lock = threading.Lock()
        self.writer = 0  # the thread that holds it
        self.cache: dict[bytes, Stream] = {}
        self.cached_rows: dict[CachedRowKey, CachedRow] = {}
        self.generation = 0  # of what is in the cache: rises when others have committed
        self.cached_commit = -1  # the newest commit that this generation knows
        self.last_commit = -1
        self.wait_table = WaitTable(None)  # who is to be rung after a commit
        self.journal: Journal | None = None  # None where the store is read-only
        self.retired_bytes = 0  # what `retired` took after the last commit that added to it
        self.refuse_above = 0  # retired bytes from which streams that archive take no entries
        self.segment_files: Any = None  # a `SegmentFiles`, for those who read history
        self.pin: lmdb.Transaction[bytes] | None = None  # changed under `write_lock`
        self.bytes_since_checkpoint = 0  # written since the last checkpoint, about
        self.erasures = 0  # how many erasures the memory of this process was cleared after
        self.most_pages = 0  # that a big commit may have changed; see `memory`
        self.messages_due = MessagesDue()
        self.watched = False  # the checkpointer thread knows that there are commits
        self.forked = False  # this is a child, and all that is open the parent's
        self.closed = ""  # why no transaction may begin any more
        self.gate = threading.Lock()  # held while the map is resized
        self.exit_gate = threading.Lock()
        self.entered = 0  # read transactions begun, changed under `gate`
        self.left = 0  # ... and ended, changed under `exit_gate`

    def check_open(self) -> None:
        """Raise unless transactions may begin."""
        if self.closed:
            raise StoreClosedError(self.closed)

    def leave_to_parent(self, raw: Any) -> bool:
        """In a forked child, keep an LMDB transaction for good: to end it is the parent's matter.

        Its end would give back the parent's slot or lock. Return False in any other process.
        """
        if self.forked:
            keep_for_ever(raw)
        return self.forked

    def forget(self) -> None:
        """Empty the cache: what it holds may not be what is stored."""
        self.cache.clear()
        self.cached_rows.clear()

    def check_not_writing(self) -> None:
        """Raise when this thread has a write transaction open: it would wait for itself."""
        if self.writer == _get_ident():
            raise StoreError(
                "this thread has a transaction open on the store; call the method on the "
                "transaction, or end it first"
            )
