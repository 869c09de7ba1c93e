"""Whole streams into a store: our own dumps, RDB files and DUMP payloads of Redis, tables.

All streams of a file appear together when its end was reached and its checksum was right, or none
does; `staged.py` says how. The loader counts what a file holds and a store cannot hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, assert_never

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.json_form import from_json
from streamkeep.format.quoting import named
from streamkeep.format.redis.rdb import RdbEnd, StreamObject, read_rdb
from streamkeep.format.redis.stream_dump import EXPIRY_LOSS, Losses, read_payload
from streamkeep.transfer.formats import LoadFormat
from streamkeep.transfer.loading import tables
from streamkeep.transfer.loading.jsonl import JsonReader
from streamkeep.transfer.loading.staged import Entries, Existing, Incoming, Load, leftovers
from streamkeep.transfer.loading.tables import Row, RowError
from streamkeep.transfer.stores import Progress, ProgressCallback, SourceFile, Target

_NAMED: Final = 8  # streams that a message names
# A stream in one piece, also as base64: a server dumps at most 512 MiB.
_MAX_PAYLOAD: Final = 1 << 30
_PAYLOAD_LINE: Final = re.compile(
    rb'\{"type": ?"payload", ?"key": ?(?:"(?:[^"\\]|\\.)*"|\{"base64": ?"[^"]*"\}), ?'
    rb'"payload": ?\{"base64": ?"[0-9A-Za-z+/=]*"\}\}\s*'
)


class Choice:
    """The streams of a file that are loaded: the stream `key`, or all where that is None.

    Rows that do not name a stream belong to `key`.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._others: dict[bytes, None] = {}  # the first that were left out
        self._found = False

    def wants(self, stream: bytes | None) -> bool:
        if self._key is None or stream is None or stream == self._key:
            self._found = True
            return True
        if len(self._others) <= _NAMED:
            self._others[stream] = None
        return False

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        return (row for row in rows if self.wants(row.stream))

    def check(self, *, may_be_empty: bool) -> None:
        """Raise RowError where the file has no stream `key`, with the names of some that it has."""
        if self._found or self._key is None or (may_be_empty and not self._others):
            return
        there = [named(one) for one in self._others]
        told = f"; there is {', '.join(there[:_NAMED])}" if there else ""
        more = ", ..." if len(there) > _NAMED else ""
        hint = "key= takes one of these; RENAME changes its name later"
        problem = f"no stream {named(self._key)} in it{told}{more}"
        raise RowError(None, problem, hint=hint if there else "")


class CallerError(BaseException):
    """What the caller's progress function raised, on its way past the handlers of the load."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Given:
    """What a load was given; options that the caller has left out are None, or empty."""

    file: SourceFile
    kind: LoadFormat
    key: bytes | None
    target: Target
    progress: ProgressCallback | None
    existing: Existing | None
    database: int | None
    columns: tables.Columns
    sort: bool
    batch: int | None
    from_line: int | None
    skip: tuple[str, ...]
    max_line: int

    def moved(self, entries: int) -> None:
        """Report how many entries have been read, or are stored."""
        if self.progress is not None:
            try:
                self.progress(Progress(entries, self.file.done, self.file.size))
            except Exception as error:
                raise CallerError(error) from None


class WholeLoader:
    """Loads the streams of one file.

    Attributes:
        entries: how many belong to the streams that are loaded.
        skipped: how many streams were left as they were in the store.
        losses: what the file holds and a store cannot.
        unfinished: temporary names of streams of other loads.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self._name = given.file.name
        self._choice = Choice(given.key)
        self._begun: Load | None = None
        self.losses = Losses()
        self.entries = self.skipped = 0
        self.unfinished: tuple[bytes, ...] = ()

    def _load(self) -> Load:
        """Begin the load with the first stream, so that a file of another kind makes no store."""
        if self._begun is None:
            target = self._given.target
            store = target.store()
            self.unfinished = tuple(leftovers(store))
            self._begun = Load(store, self._given.existing or "refuse", target.sync)
        return self._begun

    def discard(self) -> None:
        if self._begun is not None:
            self._begun.discard()

    def read(self, stream: Any) -> None:
        kind, given = self._given.kind, self._given
        if kind == "jsonl":
            reader = JsonReader(self._begin, given.moved)
            reader.read(tables.bounded_lines(stream, given.max_line))
            self.entries = reader.entries.loaded
        elif kind == "rdb":
            self._rdb(stream)
        elif kind == "dump":
            self._payloads(stream)
        elif kind == "parquet":
            self._table(tables.read_parquet(stream), "row")
        elif kind == "csv" or kind == "tsv":
            self._table(tables.read_csv(stream, kind, given.max_line), "line")
        elif kind != "resp":  # whose commands `Replay` runs
            assert_never(kind)

    def publish(self) -> int:
        self._choice.check(may_be_empty=False)
        load = self._load()
        streams = load.publish()
        self.skipped = len(load.skipped)
        return streams

    def _begin(self, key: bytes) -> Incoming | None:
        if not self._choice.wants(key):
            return None
        return self._load().begin(key, f"{self._name}: stream {named(key)}")

    def _count(self, entries: int) -> None:
        self.entries += entries
        self._given.moved(self.entries)

    # --- formats ----------------------------------------------------------------------------

    def _rdb(self, stream: BinaryIO) -> None:
        for record in read_rdb(stream.read, self._name):
            if isinstance(record, RdbEnd):
                if not record.checked:
                    self.losses.add("checksum, which the file does not have")
            elif isinstance(record, StreamObject):
                self._rdb_stream(record)
            elif self._given.database in (None, record.database):
                self.losses.add(record.kind)

    def _rdb_stream(self, record: StreamObject) -> None:
        wanted = self._given.database in (None, record.database)
        incoming = self._begin(record.key) if wanted else None
        for part in record.parts:  # all of them, to reach the next record
            if incoming is not None:
                incoming.take(part)
        if incoming is not None:
            self._count(incoming.entries)
            if record.expires_ms is not None:
                self.losses.add(EXPIRY_LOSS)
            if record.database and self._given.database is None:
                self.losses.add("number of a database, of a stream")

    def _payloads(self, stream: BinaryIO) -> None:
        """Load a DUMP payload, or lines of JSON with one each."""
        start = stream.read(1)
        if not start:
            return  # the dump of a store without streams
        if start == b"{":
            longest = max(self._given.max_line, _MAX_PAYLOAD)
            for number, line in enumerate(tables.bounded_lines(stream, longest, start), 1):
                key, data = _payload_line(number, line)
                self._take_payload(key, data)
            return
        if self._given.key is None:
            raise RowError(None, "a payload does not name its stream", hint="key=KEY names it")
        payload = start + stream.read(_MAX_PAYLOAD)
        if len(payload) > _MAX_PAYLOAD:
            raise CorruptionError(self._name, f"a payload of more than {_MAX_PAYLOAD:,} bytes")
        self._take_payload(self._given.key, payload)

    def _take_payload(self, key: bytes, payload: bytes) -> None:
        incoming = self._begin(key)
        if incoming is not None:
            for part in read_payload(payload, self._name):
                incoming.take(part)
            self._count(incoming.entries)

    def _table(self, rows: Iterable[Row], unit: str) -> None:
        known: dict[bytes, Incoming | None] = {}
        entries = Entries(self._given.moved, unit)
        for row in rows:
            if row.stream is None:
                hint = "key=KEY appends the rows to the stream KEY"
                raise RowError(None, "no column 'stream'", hint=hint)
            if row.stream not in known:
                known[row.stream] = self._begin(row.stream)
            entries.add(known[row.stream], row)
        entries.flush()
        self.entries = entries.loaded


def _payload_line(number: int, line: bytes) -> tuple[bytes, bytes]:
    if not _PAYLOAD_LINE.fullmatch(line):  # which no line does that takes much more memory parsed
        raise RowError(number, "not a line with 'key' and 'payload'")
    try:
        members = json.loads(line)
        return from_json(members["key"]), from_json(members["payload"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RowError(number, f"not a line with 'key' and 'payload': {error}") from error
