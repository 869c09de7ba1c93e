"""What both kinds of transaction have in common, and the one that only reads.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import lmdb

from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.txn.context import CachedRow, EngineContext
from streamkeep.engine.txn.overlay import Cursor, Table, encoded
from streamkeep.engine.txn.stream import Stream, TailRow, decode_stream
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import KEYS, STREAMS, name_key, pack_number
from streamkeep.format.rows.records import decode_key_row

FOUND: Final = 64  # streams that a caller keeps, with rows of at most this size
_KNOWN_BYTES: Final = 64 << 10


class Txn:
    """The methods that read, which both kinds of transaction have.

    Args:
        raw: a transaction of LMDB that reads; None if it is begun when it is needed.
        over: the rows of the memtable, which lie over it.
    """

    def __init__(
        self, context: EngineContext, raw: lmdb.Transaction[bytes] | None, over: dict[int, Table]
    ) -> None:
        self.context = context
        self._raw = raw
        self.tables = context.tables
        self.over = over
        self.group_counts = context.group_counts  # under `apply_lock`: those of what it shows
        # Raises if the name of a stream that is missing is taken by another kind of key.
        self.missing: Callable[[Any, bytes], None] | None = None

    def raw(self) -> lmdb.Transaction[bytes]:
        """Return the transaction of LMDB, whose rows are below those of the memtable."""
        raw = self._raw
        if raw is None:
            raw = self._raw = self.context.begin_image()
        return raw

    def get(self, table: int, db_key: bytes) -> bytes | None:
        over = self.over.get(table)
        if over is not None and db_key in over.rows:
            value = over.rows[db_key]
            return None if value is None else encoded(value)
        return self.raw().get(db_key, None, self.tables[table])

    def get_row(self, table: int, db_key: bytes, where: str) -> bytes | None:
        value = self.get(table, db_key)
        return None if value is None else row_body(table, db_key, value, where)

    def layers(self, table: int) -> list[Table]:
        """Return the rows in memory that lie over those of LMDB, the newest first."""
        over = self.over.get(table)
        return [] if over is None else [over]

    def cursor(self, table: int) -> Cursor:
        return Cursor(self.raw().cursor(self.tables[table]), self.layers(table))

    def cursor_below(self, table: int) -> Cursor:
        """Return a cursor over what LMDB has of a table."""
        return Cursor(self.raw().cursor(self.tables[table]), [])

    def rows(self, table: int) -> int:
        raw, handle = self.raw(), self.tables[table]
        count = int(raw.stat(handle)["entries"])
        newer: set[bytes] = set()
        for layer in self.layers(table):
            for db_key, value in layer.rows.items():
                if db_key not in newer:
                    newer.add(db_key)
                    there = raw.get(db_key, None, handle) is not None
                    count += int(value is not None) - int(there)
        return count

    def table_bytes(self, table: int) -> int:
        """Return the bytes that a table takes in the data file and in memory."""
        stat = self.raw().stat(self.tables[table])
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        size = int(pages) * PAGE
        for layer in self.layers(table):
            for value in layer.rows.values():
                size += 0 if value is None else len(encoded(value))
        return size

    def stream_number(self, name: bytes) -> int:
        value = self.get(KEYS, name_key(b"", name))
        return 0 if value is None else _number_in(value, name)

    def load_stream(self, name: bytes) -> Stream | None:
        value = self.get(KEYS, name_key(b"", name))
        return None if value is None else self.load_numbered(_number_in(value, name), name, value)

    def load_numbered(self, number: int, name: bytes, key_row: bytes = b"") -> Stream:
        """Return the stream with this number; its row must exist.

        Args:
            key_row: the row that maps the name to the number, if the stream is to keep it.
        """
        return stream_of(number, name, key_row, self.get(STREAMS, pack_number(number)))

    def find_stream(self, name: bytes) -> Stream | None:
        """Return the stream `name` with the changes of this transaction; None if it is missing."""
        return self.load_stream(name)

    def now_ms(self) -> int:
        """Return the time in Unix milliseconds; a write transaction has the same at each call."""
        return self.context.clock.now_ms()


def stream_of(number: int, name: bytes, key_row: bytes, value: bytes | None) -> Stream:
    """Return the stream in a row of `streams`, which must exist."""
    if value is None:
        raise CorruptionError(f"stream {number}", "the key has no row in `streams`")
    stream = decode_stream(number, name, value)
    stream.key_row = key_row
    return stream


def _number_in(value: bytes, name: bytes) -> int:
    """Return the number of a stream from its row of `keys`."""
    body = row_body(KEYS, name_key(b"", name), value, "key row")
    number, whole = decode_key_row(body, "key row")
    if whole != name:
        raise CorruptionError("key row", "the row holds another name")
    return number


class ReadTxn(Txn):
    """One snapshot of the store; `close` it, or use it as a context manager.

    Args:
        over: what `Memtable.freeze` has returned.
        commit_number: the newest commit that it shows.
    """

    def __init__(
        self,
        context: EngineContext,
        raw: lmdb.Transaction[bytes],
        over: dict[int, Table],
        commit_number: int,
    ) -> None:
        super().__init__(context, raw, over)
        self.commit_number = commit_number
        self.open = True
        self.known: dict[bytes, Stream] | None = None  # of earlier snapshots of its caller
        self.found: dict[bytes, Stream] | None = None  # see `keep_found`
        self.found_groups: dict[tuple[int, bytes], CachedRow] | None = None
        self.hidden: set[bytes] = set()  # streams that are missing for its caller

    def find_stream(self, name: bytes) -> Stream | None:
        """Return the stream `name`; None if it is missing.

        A known stream whose rows are the same is not decoded again. Nothing changes a stream that
        was read from a snapshot.
        """
        if name in self.hidden:
            return None
        found = self.found
        stream = None if found is None else found.get(name)
        if stream is None:
            stream = self._load(name)
            if stream is None:
                if self.missing is not None:
                    self.missing(self, name)
            elif found is not None and stream.tail_size() <= _KNOWN_BYTES:
                if len(found) >= FOUND:
                    found.clear()
                found[name] = stream
        return stream

    def _load(self, name: bytes) -> Stream | None:
        known = self.known
        key_row = self.get(KEYS, name_key(b"", name))
        if key_row is None:
            return None
        over = self.over.get(STREAMS)
        if over is not None:
            row = over.rows.get(pack_number(_number_in(key_row, name)))
            if isinstance(row, TailRow):
                return row.stream(name)
        if known is None:
            return self.load_numbered(_number_in(key_row, name), name, key_row)
        stream = known.get(name)
        if (
            stream is not None
            and stream.key_row == key_row
            and stream.stored == self.get(STREAMS, stream.db_key)
        ):
            return stream
        stream = self.load_numbered(_number_in(key_row, name), name, key_row)
        if len(known) >= FOUND:
            known.clear()
        if len(stream.stored) <= _KNOWN_BYTES:
            known[name] = stream
        return stream

    def __del__(self) -> None:
        """End it if an interrupt came before a caller had it: the map could not grow."""
        if self.open:
            self.close()

    def keep_found(self) -> None:
        """Decode a stream and a group once, for a thread that runs many commands: nothing changes.

        What a turn of the server reads is often the same; an XPENDING took 96,000 instructions.
        """
        self.found = {}
        self.found_groups = {}

    def newest_commit(self) -> int:
        return self.commit_number

    def __enter__(self) -> ReadTxn:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """End the transaction; its pages may be reused."""
        if self.open:
            self.open = False
            self.found_groups = None  # they refer to this
            raw, self._raw = self._raw, None  # a reader slot becomes free with the last reference
            if self.context.leave_to_parent(raw):
                return
            if raw is not None:
                raw.abort()
            context = self.context
            with context.exit_gate:
                context.left += 1
                for table in self.over.values():
                    table.hidden += 1
