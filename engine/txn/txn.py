"""Transactions: typed access to the sub-databases, one at a time for those that write.

A `ReadTxn` (`read_txn`) is one snapshot. A `WriteTxn` holds the write lock of the store, and keeps
its changes in its *write set*. The commit is a record in the journal, and its published number. The
rows then go to the memtable, and with those of many commits to LMDB (`flush`). A transaction that
fails before that leaves nothing behind.

Streams stay decoded between transactions (`EngineContext.cache`), so that consecutive appends read
nothing. They are dropped where another process changes their rows. A transaction that fails empties
the cache, since its streams may be half changed.

Envelopes carry (epoch, commit number). The number rises by one with each commit and never repeats
within an epoch. `wait` returns when the commit is on disk.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

import lmdb

from streamkeep.engine.notify.wait_table import Event
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.context import CachedRow, CachedRowKey, EngineContext
from streamkeep.engine.txn.flush import flush_after, make_room, no_room
from streamkeep.engine.txn.overlay import LazyRow, Table, encoded
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.errors import CorruptionError, StoreLockedError
from streamkeep.format.journal.journal import Operations
from streamkeep.format.rows import records

NEXT_STREAM: Final = b"next_stream_number"
NEXT_GARBAGE: Final = b"next_garbage_number"
_CACHED_TAIL: Final = 2 << 20
# Of a store that has reached `max_store_bytes`. With a tenth of it, or a 64th, flushes of deletions
# found the map full, and the store stayed so until it was opened again.
_TAKES_BYTES: Final = 65_536


class WriteTxn(Txn):
    """The one write transaction of the store; `commit` or `abort` ends it.

    Streams taken from `find_stream` and `create_stream` are written back at commit when they
    differ from what is stored. All commands in one transaction see one time.
    """

    def __init__(self, context: EngineContext, raw: lmdb.Transaction[bytes] | None) -> None:
        super().__init__(context, raw, context.memtable.tables)
        self.open = True
        self.committed = False
        self.commit_number = context.journal_or_raise().log.commit_number + 1
        self.changes: dict[int, Table] = {}  # the write set
        self.operations: Operations | None = None  # its record; None while nothing is changed
        self.frees = False  # it makes room, so that it needs none
        self.takes = False  # a job, whose end will make room
        self.durable = False  # a caller will wait until it is on disk
        self.half_done = False  # a function of several commands has failed, maybe after a change
        self.garbage = False  # rows were left for removal in later transactions
        self.retired = False  # nodes were retired: the archive has work
        self.streams: dict[bytes, Stream] = {}  # that this transaction has returned to callers
        self.cached_rows: dict[CachedRowKey, CachedRow] = {}
        self._numbers: dict[bytes, int] = {}  # next ones of counters; `save` writes their rows
        self.added: dict[bytes, int] = {}  # number of new entries by key, for blocked readers
        self.events: list[Event] = []  # other events that wake blocked readers
        self._now_ms = -1

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
        changes = self.changes.get(table)
        if changes is not None and db_key in changes.rows:
            value = changes.rows[db_key]
            return None if value is None else encoded(value)
        return super().get(table, db_key)

    def layers(self, table: int) -> list[Table]:
        """Return the rows in memory that lie over those of LMDB, the newest first."""
        return [self._table(table), *super().layers(table)]  # also if it is empty: it may get rows

    def _table(self, table: int) -> Table:
        changes = self.changes.get(table)
        if changes is None:
            changes = self.changes[table] = Table()
        return changes

    def put(self, table: int, db_key: bytes, value: bytes) -> None:
        self._changes().put(table, db_key, value)
        self._table(table).put(db_key, value)

    def put_row(self, table: int, db_key: bytes, body: bytes) -> None:
        self.put(table, db_key, with_checksum(table, db_key, body))

    def move(self, table: int, db_key: bytes, target: int) -> None:
        """Move a row, which must exist, to another table under the same key."""
        value = self.get(table, db_key)
        if value is None:
            raise CorruptionError("LMDB", "a row that was just read is missing")
        self._changes().move(table, db_key, target)
        self._table(table).remove(db_key)
        self._table(target).put(db_key, value)

    def delete(self, table: int, db_key: bytes) -> bool:
        if self.get(table, db_key) is None:
            return False
        self._changes().delete(table, db_key)
        self._table(table).remove(db_key)
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
            context = self.context
            stream = context.cache.get(name)
            if stream is None:
                stream = self.load_stream(name)
                if stream is None:
                    if self.missing is not None:
                        self.missing(self, name)
                    return None
                context.keep(stream)
            self.streams[name] = stream
        return stream

    def create_stream(self, name: bytes, number: int | None = None) -> Stream:
        """Create the stream `name`, which must not exist, empty.

        Args:
            number: that of a stream which is written again; None for the next one.
        """
        context = self.context
        if number is None:
            number = self.take_number(NEXT_STREAM)
        stream = Stream(
            number, name, records.StreamRecord(context.node_max_bytes, context.node_max_entries)
        )
        stream.record.extension = context.new_extension
        self._put_name(stream)
        context.keep(stream)
        self.streams[name] = stream
        return stream

    def remove_stream(self, stream: Stream) -> None:
        """Remove the stream's name and record; its nodes become garbage."""
        self._forget(stream)
        self.delete(keys.NAMES, stream.db_key)
        self.delete(keys.STREAMS, stream.db_key)
        self.add_garbage(records.encode_garbage(records.STREAM_NODES, stream.number))

    def add_garbage(self, body: bytes) -> None:
        """Leave rows for removal in later, bounded transactions."""
        self.put_row(keys.GARBAGE, keys.pack_number(self.take_number(NEXT_GARBAGE)), body)
        self.garbage = True

    def rename_stream(self, stream: Stream, name: bytes) -> None:
        self._forget(stream)
        stream.name = name
        self._put_name(stream)
        self.context.keep(stream)
        self.streams[name] = stream

    def _put_name(self, stream: Stream) -> None:
        """Write the row that maps a stream's name to its number, and the one for the way back."""
        db_key = keys.name_key(b"", stream.name)
        self.put_row(keys.KEYS, db_key, records.encode_key_row(stream.number, stream.name))
        self.put_row(keys.NAMES, stream.db_key, stream.name)

    def take_number(self, counter: bytes) -> int:
        """Return the next number of a counter in `meta`, from 1 on; no number is returned twice."""
        number = self._numbers.get(counter, 0)
        if not number:
            body = self.get_row(keys.META, counter, "meta")
            number = 1 if body is None else records.decode_counter(body, "meta")
        if number > keys.LAST_NUMBER:  # only then is the text of the place worth making
            keys.check_number(number, keys.LAST_NUMBER, f"meta {counter.decode()}")
        self._numbers[counter] = number + 1
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
        self.delete(keys.KEYS, keys.name_key(b"", stream.name))
        self.context.drop(stream.name)
        self.streams.pop(stream.name, None)

    def save(self) -> None:
        """Write the rows of counters and changed streams and groups, for code that reads tables."""
        for counter, number in self._numbers.items():
            self.put_row(keys.META, counter, records.encode_number(number))
        self._numbers.clear()
        for cached_rows in self.cached_rows.values():
            cached_rows.save()
        for stream in self.streams.values():
            if stream.differs():
                epoch, newest, changes = self.context.epoch, self.commit_number, self._changes()
                row: bytes | LazyRow | None = stream.extend(changes, keys.STREAMS, epoch, newest)
                if row is None:
                    row = stream.rewrite(changes, keys.STREAMS, epoch, newest, stream.stored)
                self._table(keys.STREAMS).put(stream.db_key, row)

    def commit(self) -> None:
        self.context.check_open()  # a forked child also has it, and must not commit
        self.save()
        context = self.context
        if self.retired:
            context.retired_bytes = self.table_bytes(keys.RETIRED)
        try:
            if self.operations is not None:
                self._commit_changes(context, self.operations.body())
            self.committed = True
        finally:
            if self.committed:
                self.open = False
                for name, stream in self.streams.items():
                    size = 2 * stream.tail_size()  # builders have room for more
                    if size > _CACHED_TAIL:
                        context.drop(name)
                    else:
                        context.cached_bytes += size - stream.cached_size
                        stream.cached_size = size
                context.shrink()
                self._release()
                # Here: an interrupt may have come since the commit.
                table = context.wait_table
                if table.has_readers() and (self.added or self.events or table.has_followers()):
                    table.notify(self.added, self.events)
                    if context.write_lock is not None:
                        context.write_lock.note_woken()

    def note_added(self, name: bytes, count: int) -> None:
        """Wake the readers that are blocked on a stream for new entries, after the commit."""
        self.added[name] = self.added.get(name, 0) + count

    def _commit_changes(self, context: EngineContext, body: bytes) -> None:
        """Commit: write the record, and publish it."""
        journal = context.journal_or_raise()
        self._make_room(context, len(body))
        try:
            journal.append(body, self.durable, self.frees)
            # After a commit of another process, the write to disk is not started early: processes
            # that take turns wait longer for the lock than for the disk.
            if self.durable and self.commit_number == context.last_commit + 1:
                journal.begin_writing()
            failpoints.hit("commit:journaled")
            with context.apply_lock:  # a reader of this process would apply the record, too
                journal.control.publish(self.commit_number)
                self.committed = True
                failpoints.hit("commit:published")
                context.memtable.merge(self.changes, len(body))
                if self.group_counts is not context.group_counts:
                    context.group_counts = {}
                journal.advance()
        except BaseException:
            failpoints.hit("commit:failed")
            if self.committed or journal.control.newest() >= self.commit_number:
                self.committed = True  # an interrupt came just afterwards
                with context.apply_lock:
                    context.start_over()  # the next transaction finds the commit
            else:
                journal.cut()
            raise
        context.last_commit = self.commit_number
        context.bytes_since_checkpoint += len(body)
        failpoints.hit("commit:made")
        flush_after(context)

    def _make_room(self, context: EngineContext, size: int) -> None:
        """Have room for the next flush; raise if there is none, unless this makes room."""
        failure: Exception | None = None
        room = 0
        try:
            if make_room(context, size):
                return
            room = context.memtable.room
            if self.takes and context.max_bytes:  # a store that is full of jobs would stay so
                room += _TAKES_BYTES
        except (lmdb.Error, StoreLockedError) as error:
            failure = error
        if self.frees:
            return
        growth = 0
        for number, table in self.changes.items():
            for db_key, value in table.rows.items():
                old = super().get(number, db_key)
                growth += 0 if value is None else len(encoded(value))
                growth -= 0 if old is None else len(old)
        if growth > max(0, room):
            raise no_room(context) if failure is None else failure

    def abort(self) -> None:
        """Undo everything, and end the transaction. Does nothing after `commit`."""
        if not self.open:
            return
        self.open = False
        if self.context.leave_to_parent(self._raw):
            return
        self.context.forget()
        if not self.committed:  # it changed nothing: there is no commit to wait for
            self.operations = None
            self.garbage = self.retired = False
        self._release()

    def wait(self, patient: bool = True) -> bool:
        """Return when the commit, and all before it, are on disk; at once after `abort`.

        Args:
            patient: otherwise, return False if another thread is syncing.
        """
        if self.operations is None:
            return True
        done = self.context.journal_or_raise().syncs.wait_for(self.commit_number, patient)
        assert done or not patient, "its own commit"
        return done

    def is_on_disk(self) -> bool:
        """Return whether `wait` would return at once."""
        control = self.context.journal_or_raise().control
        return self.operations is None or control.durable() >= self.commit_number

    def _release(self) -> None:
        context = self.context
        # A cached group refers to its last transaction, which would keep all of this in memory.
        self.streams, self.cached_rows, self.changes = {}, {}, {}
        try:
            raw, self._raw = self._raw, None
            if raw is not None:
                raw.abort()
        finally:
            context.release_write()
