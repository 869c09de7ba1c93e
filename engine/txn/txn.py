"""Transactions: typed access to the sub-databases, one LMDB transaction at a time.

A `ReadTxn` (`read_txn`) is one snapshot. A `WriteTxn` holds the store's only write lock. Its
streams stay decoded between transactions (`EngineContext.cache`), so that consecutive appends read
nothing.

Another process may commit in between. The commit number shows that: a transaction whose number is
not one above our last begins a new *generation* of the cache. A stream of an older generation is
compared with its row before it is used, and decoded again only if the bytes differ; processes that
take turns mostly change other rows. An aborted transaction empties the cache, since its streams may
be half changed.

Envelopes carry (epoch, commit number). The number rises by one with each commit and never repeats
within an epoch. A row of LMDB holds that of the newest commit (`format.journal.position`).

A commit is in the journal before it is in LMDB (`journal`), often long before (`deferral`); `wait`
returns when it is on disk.

Compiled by mypyc.
"""

from __future__ import annotations

import weakref
from typing import Final

import lmdb

from streamkeep.engine.notify.wait_table import Event
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.context import CachedRow, CachedRowKey, EngineContext
from streamkeep.engine.txn.deferral import BIG
from streamkeep.engine.txn.page_memory import SMALL_COMMIT, note_commit
from streamkeep.engine.txn.read_txn import Txn, stream_of
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.undo import cut_record
from streamkeep.format.core.checksum import seal_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    GARBAGE,
    KEYS,
    LAST_NUMBER,
    META,
    NAMES,
    RETIRED,
    STREAMS,
    check_number,
    name_key,
    pack_number,
)
from streamkeep.format.journal.journal import Operations
from streamkeep.format.journal.position import POSITION_KEY
from streamkeep.format.rows.records import (
    STREAM_NODES,
    StreamRecord,
    decode_counter,
    encode_garbage,
    encode_key_row,
    encode_number,
)

NEXT_STREAM: Final = b"next_stream_number"
NEXT_GARBAGE: Final = b"next_garbage_number"
_CACHED_STREAMS: Final = 1024
_CACHED_TAIL: Final = 1 << 20
_COMMIT_BYTES: Final = 20_480  # the pages of a small commit, estimated: data, trees, free list


class WriteTxn(Txn):
    """The one write transaction of the store; `commit` or `abort` ends it.

    Streams taken from `find_stream` and `create_stream` are written back at commit when they
    differ from what is stored. All commands in one transaction see one time.
    """

    def __init__(
        self, context: EngineContext, raw: lmdb.Transaction[bytes], deferred: bool
    ) -> None:
        super().__init__(context, raw)
        self.open = True
        self.committed = False
        self.raw_open = True
        self.deferred = deferred  # the journal commits it, and LMDB later; see `deferral`
        self.commit_number = context.journal_or_raise().commit_number() + 1
        self.operations: Operations | None = None  # None while nothing is changed
        self.durable = False  # a caller will wait until it is on disk
        self.touched = False  # a change was tried, which may have failed
        self.saving = False  # a change of an earlier commit was tried, which has failed
        self.put_later = 0  # changes that LMDB's transaction gets when it ends; see `unsaved`
        self.garbage = False  # rows were left for removal in later transactions
        self.retired = False  # nodes were retired: the archive has work
        self.streams: dict[bytes, Stream] = {}  # that this transaction has returned to callers
        self.cached_rows: dict[CachedRowKey, CachedRow] = {}
        self.added: dict[bytes, int] = {}  # number of new entries by key, for blocked readers
        self.events: list[Event] = []  # other events that wake blocked readers
        self._now_ms = -1
        self.follows = self.commit_number == context.cached_commit + 1  # a commit of this process
        if not self.follows:
            context.generation += 1
            context.cached_commit = self.commit_number - 1

    def __del__(self) -> None:
        """Release the write lock if an interrupt came before a caller had the transaction."""
        if self.open:
            self.abort()

    def now_ms(self) -> int:
        """Return the time of this transaction in Unix milliseconds, the same at each call."""
        if self._now_ms < 0:
            self._now_ms = self.context.now_ms()
        return self._now_ms

    def get(self, table: int, db_key: bytes) -> bytes | None:
        """Return the value stored under `db_key`."""
        if self.deferred:
            unsaved = self.context.deferral.unsaved
            rows = unsaved.rows.get(table)
            if rows is not None:
                value = rows.get(db_key)
                if value is not None:
                    return value
            elif table == STREAMS:
                row = unsaved.streams.get(db_key)
                if row is not None:
                    return row.encode()
        return self.raw.get(db_key, None, self.tables[table])

    def cursor(self, table: int) -> lmdb.Cursor[bytes]:
        """Return a cursor over a table."""
        self._save(table)
        return self.raw.cursor(self.tables[table])

    def rows(self, table: int) -> int:
        """Return the number of rows of a table."""
        self._save(table)
        return int(self.raw.stat(self.tables[table])["entries"])

    def _save(self, table: int) -> None:
        """Put what a deferred transaction has changed in a table into LMDB's transaction."""
        if self.deferred:
            unsaved = self.context.deferral.unsaved
            self.saving = True
            if table == STREAMS:
                if unsaved.streams:
                    unsaved.save_streams(self.raw, self.tables[STREAMS])
            elif table in unsaved.rows:
                unsaved.save_rows(self.raw, table, self.tables[table])
            self.saving = False

    def put(self, table: int, db_key: bytes, value: bytes) -> None:
        """Store `value` under `db_key`."""
        self.touched = True
        rows = self.context.deferral.unsaved.rows.get(table) if self.deferred else None
        if rows is not None:
            rows[db_key] = value
            self.put_later += 1
        else:
            self.raw.put(db_key, value, True, True, False, self.tables[table])
        self._changes().put(table, db_key, value)

    def put_row(self, table: int, db_key: bytes, body: bytes) -> None:
        """Store a row with its checksum."""
        self.put(table, db_key, seal_row(table, db_key, body))

    def put_newest(self, table: int, db_key: bytes, value: bytes) -> None:
        """Store a value under a key that is probably the highest of the table.

        LMDB then fills its pages, instead of leaving each half empty.
        """
        self.touched = True
        if self.raw.put(db_key, value, True, True, True, self.tables[table]):
            self._changes().put(table, db_key, value)
        else:
            self.put(table, db_key, value)

    def move(self, table: int, db_key: bytes, target: int) -> None:
        """Move a row, which must exist, to another table under the same key."""
        self.touched = True
        value = self.raw.pop(db_key, self.tables[table])
        if value is None:
            raise CorruptionError("LMDB", "a row that was just read is missing")
        self.raw.put(db_key, value, True, True, False, self.tables[target])
        self._changes().move(table, db_key, target)

    def delete(self, table: int, db_key: bytes) -> bool:
        """Remove the row under `db_key`; return whether there was one."""
        self.touched = True
        self._save(table)
        if not self.raw.delete(db_key, b"", self.tables[table]):
            return False
        self._changes().delete(table, db_key)
        return True

    def _changes(self) -> Operations:
        """Return the operations for the journal; a transaction without any writes no record."""
        if self.operations is None:
            self.operations = Operations(self.commit_number)
        return self.operations

    def count_changes(self) -> int:
        """Return how many changes of rows the record of this transaction has."""
        return 0 if self.operations is None else self.operations.count

    def find_stream(self, name: bytes) -> Stream | None:
        """Return the stream `name` with the changes of this transaction; None if it is missing."""
        stream = self.streams.get(name)
        if stream is None:
            cache = self.context.cache
            stream = cache.get(name)
            if stream is None or stream.generation != self.context.generation:
                stream = self.load_stream(name) if stream is None else self._refresh(stream)
                if stream is None:
                    return None
                stream.generation = self.context.generation
                cache[name] = stream
            self.streams[name] = stream
        return stream

    def _refresh(self, stream: Stream) -> Stream | None:
        """Return a stream as it is stored now, given its former state; None when it is gone."""
        name = stream.name
        if self.get(KEYS, name_key(b"", name)) != stream.key_row:
            self.context.cache.pop(name, None)
            return self.load_stream(name)
        value = self.get(STREAMS, stream.db_key)
        if value == stream.stored:
            return stream
        return stream_of(stream.number, name, stream.key_row, value)

    def create_stream(self, name: bytes) -> Stream:
        """Create the stream `name`, which must not exist, empty."""
        context = self.context
        number = self.take_number(NEXT_STREAM)
        stream = Stream(
            number, name, StreamRecord(context.node_max_bytes, context.node_max_entries)
        )
        stream.record.extension = context.new_extension
        stream.generation = context.generation
        self._put_name(stream)
        context.cache[name] = stream
        self.streams[name] = stream
        return stream

    def remove_stream(self, stream: Stream) -> None:
        """Remove the stream's name and record; its nodes become garbage."""
        self._forget(stream)
        self.delete(NAMES, stream.db_key)
        self.delete(STREAMS, stream.db_key)
        self.add_garbage(encode_garbage(STREAM_NODES, stream.number))

    def add_garbage(self, body: bytes) -> None:
        """Leave rows for removal in later, bounded transactions."""
        self.put_row(GARBAGE, pack_number(self.take_number(NEXT_GARBAGE)), body)
        self.garbage = True

    def rename_stream(self, stream: Stream, name: bytes) -> None:
        """Give the stream another name, which must be free."""
        self._forget(stream)
        stream.name = name
        self._put_name(stream)
        self.context.cache[name] = stream
        self.streams[name] = stream

    def _put_name(self, stream: Stream) -> None:
        """Write the row that maps a stream's name to its number, and the one for the way back."""
        db_key = name_key(b"", stream.name)
        stream.key_row = seal_row(KEYS, db_key, encode_key_row(stream.number, stream.name))
        self.put(KEYS, db_key, stream.key_row)
        self.put_newest(NAMES, stream.db_key, seal_row(NAMES, stream.db_key, stream.name))

    def take_number(self, counter: bytes) -> int:
        """Return the next number of a counter in `meta`, from 1 on; no number is returned twice."""
        body = self.get_row(META, counter, "meta")
        number = 1 if body is None else decode_counter(body, "meta")
        check_number(number, LAST_NUMBER, f"meta {counter.decode()}")
        self.put_row(META, counter, encode_number(number + 1))
        return number

    def find_attached(self, key: CachedRowKey) -> CachedRow | None:
        """Return the cached rows under a key, of this transaction or of an earlier one."""
        cached_rows = self.cached_rows.get(key)
        if cached_rows is None:
            cached_rows = self.context.cached_rows.get(key)
            if cached_rows is not None:
                self.cached_rows[key] = cached_rows
        return cached_rows

    def attach(self, key: CachedRowKey, cached_rows: CachedRow) -> None:
        """Save cached rows at commit, and keep them for later transactions."""
        self.cached_rows[key] = cached_rows
        self.context.cached_rows[key] = cached_rows

    def detach(self, key: CachedRowKey) -> None:
        """Forget the cached rows under a key, which are being removed."""
        self.cached_rows.pop(key, None)
        self.context.cached_rows.pop(key, None)

    def _forget(self, stream: Stream) -> None:
        """Remove the stream's name from the store and from memory."""
        self.delete(KEYS, name_key(b"", stream.name))
        self.context.cache.pop(stream.name, None)
        self.streams.pop(stream.name, None)

    def flush(self) -> None:
        """Write the rows of changed streams into the transaction, for code that reads tables."""
        for cached_rows in self.cached_rows.values():
            cached_rows.save()
        for stream in self.streams.values():
            if stream.differs():
                self.touched = True
                self._write_row(stream)

    def _write_row(self, stream: Stream) -> None:
        """Journal the row of a changed stream, and write it now or at the end of the deferral."""
        epoch, number = self.context.epoch, self.commit_number
        changes = self._changes()
        old = stream.stored
        if self.deferred:
            unsaved = self.context.deferral.unsaved.streams
            row = stream.extend(changes, STREAMS, epoch, number)
            if row is not None:
                unsaved[stream.db_key] = row
                self.put_later += 1
                return
            if unsaved.pop(stream.db_key, None) is not None:
                old = b""  # it is no longer what the journal has
        value = stream.rewrite(changes, STREAMS, epoch, number, old)
        self.raw.put(stream.db_key, value, True, True, False, self.tables[STREAMS])

    def commit(self) -> None:
        """Make everything visible at once, and end the transaction."""
        self.context.check_open()  # a forked child also has it, and must not commit
        self.flush()
        context = self.context
        if self.retired:
            context.retired_bytes = self.table_bytes(RETIRED)
        try:
            if self.operations is not None:
                self._commit_changes(context, self.operations.body())
            elif not self.deferred:
                self.raw_open = False
                self.raw.commit()
            self.committed = True
        finally:
            if self.committed:
                self.open = False
                for name, stream in self.streams.items():
                    if stream.tail_size() > _CACHED_TAIL:
                        context.cache.pop(name, None)
                if len(context.cache) > _CACHED_STREAMS or (
                    len(context.cached_rows) > _CACHED_STREAMS
                ):
                    context.forget()
                self._release()
                if self._wakes():  # here: an interrupt may have come since the commit
                    context.wait_table.notify(self.added, self.events)

    def _wakes(self) -> bool:
        """Return whether the commit may concern a reader that waits."""
        return bool(self.added or self.events) and self.context.wait_table.has_readers()

    def note_added(self, name: bytes, count: int) -> None:
        """Wake the readers that are blocked on a stream for new entries, after the commit."""
        self.added[name] = self.added.get(name, 0) + count

    def _commit_changes(self, context: EngineContext, body: bytes) -> None:
        """Commit in the journal, then in LMDB, now or later."""
        journal = context.journal_or_raise()
        deferral = context.deferral
        operations = self.operations
        assert operations is not None
        interrupt: BaseException | None = None
        try:
            self._note_size(aborted=False)
            # After a commit of another process, the write to disk is not started early: processes
            # that take turns wait longer for LMDB's lock than for the disk.
            journal.append(body, self.durable and self.follows)
            failpoints.hit("commit:journaled")
            row: bytes | None = None
            if not self.deferred:
                row = journal.next_row()
                self.raw.put(POSITION_KEY, row)
                self.raw_open = False
                self.raw.commit()
            elif len(body) >= BIG:
                row = journal.next_row()
                interrupt = deferral.end_with(row, operations.count - self.put_later)
            else:
                interrupt = journal.publish()
            self.committed = True
        except BaseException:
            failpoints.hit("commit:failed")
            # A commit of LMDB that fails, of this transaction or of the whole deferred one, has
            # released the lock, and another process may have written its record here since.
            locked = deferral.raw is not None if self.deferred else self.raw_open
            if locked:
                journal.cut()
            else:
                cut_record(context, self.commit_number)
            raise
        try:
            journal.advance(deferred=row is None)
            context.last_commit = self.commit_number
            context.cached_commit = self.commit_number
            context.bytes_since_checkpoint += len(body)
            failpoints.hit("commit:made")
            if row is None:
                count = operations.count - self.put_later
                deferral.note(len(body), count, wakes=self._wakes(), durable=self.durable)
            else:
                context.bytes_since_checkpoint += _COMMIT_BYTES
                deferral.note_own()
        except BaseException:  # an interrupt, where this is interpreted
            deferral.undo()  # replays the commit, which position or counts may lack
            raise
        if interrupt is not None:
            raise interrupt

    def abort(self) -> None:
        """Undo everything, and end the transaction. Does nothing after `commit`."""
        if not self.open:
            return
        self.open = False
        if self.context.leave_to_parent(self.raw):
            return
        self.context.forget()
        self._note_size(aborted=True)
        if not self.committed:  # it changed nothing: there is no commit to wait for
            self.operations = None
            self.garbage = self.retired = False
        try:
            if not self.deferred:
                self._abort_raw()
            elif self.touched or self.saving:
                self.context.deferral.undo()
        finally:
            self._release()

    def leave(self) -> None:
        """End a transaction in which commands have only read; a caller has it to itself."""
        self.open = False
        self._release()

    def wait(self) -> None:
        """Return when the commit, and all before it, are on disk; at once after `abort`."""
        journal = self.context.journal
        if journal is not None and self.operations is not None:
            held = journal.syncs.wait_for(self.commit_number)
            assert held, "its own commit"
            self.context.deferral.note_synced()

    def is_on_disk(self) -> bool:
        """Return whether `wait` would return at once."""
        journal = self.context.journal
        return (
            journal is None
            or self.operations is None
            or journal.control.durable() >= self.commit_number
        )

    def try_wait(self) -> bool:
        """Do as `wait`, unless another thread or process is syncing; return whether it is done."""
        journal = self.context.journal
        assert journal is not None
        if self.operations is None:
            return True
        if not journal.syncs.try_to(self.commit_number):
            return False
        self.context.deferral.note_synced()
        return True

    def _note_size(self, *, aborted: bool) -> None:
        """Note a big transaction for `page_memory`."""
        operations = self.operations
        if operations is not None and operations.count > SMALL_COMMIT:
            note_commit(self.context, self.raw, operations.count, aborted=aborted)

    def _abort_raw(self) -> None:
        """End LMDB's transaction without its changes, and without waiting for readers."""
        if self.raw_open and not self.touched:
            self.raw_open = False
            self.raw.commit()
            return
        alive = weakref.ref(self.raw)
        del self.raw
        raw = alive()
        if raw is not None:  # an iterator, or a traceback of interpreted code, has a reference
            raw.abort()

    def _release(self) -> None:
        self.context.writer = 0
        self.context.write_lock.release()
