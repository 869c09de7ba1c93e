"""Whole streams into a store: dumps of ours, RDB files and DUMP payloads of Redis, tables.

All streams of a file come in together when its end was reached and its checksum was right, or none
does; `recovery/load.py` says how. What a file holds and a store has no place for is counted.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from streamkeep.format.core.errors import CommandError, CorruptionError
from streamkeep.format.core.json_form import from_json
from streamkeep.format.redis.rdb import RdbEnd, StreamObject, read_rdb
from streamkeep.format.redis.stream_dump import Losses, read_payload
from streamkeep.recovery.load import Incoming, Load
from streamkeep.tools.base import output
from streamkeep.tools.base.command import Failure
from streamkeep.tools.transfer.dump_jsonl import JsonReader
from streamkeep.tools.transfer.dump_table import read_parquet
from streamkeep.tools.transfer.load_rows import Choice
from streamkeep.tools.transfer.rows import FlatRow, read_dump_csv
from streamkeep.tools.transfer.text_lines import RowError, bounded_lines

_BATCH_ENTRIES: Final = 1000
_BATCH_BYTES: Final = 4 << 20
# A stream in one piece, also as base64: what a server dumps is at most 512 MiB.
_MAX_PAYLOAD: Final = 1 << 30
_PAYLOAD_LINE: Final = re.compile(
    rb'\{"type": ?"payload", ?"key": ?(?:"(?:[^"\\]|\\.)*"|\{"base64": ?"[^"]*"\}), ?'
    rb'"payload": ?\{"base64": ?"[0-9A-Za-z+/=]*"\}\}\s*'
)


class Loaded(NamedTuple):
    """What came in, and what had no place."""

    streams: int
    entries: int
    skipped: int
    losses: Losses


class WholeLoader:
    """Loads the streams of one file.

    Args:
        make_load: begins the load; called for the first stream, so that a file that is none of
            these leaves no store behind.
        name: of the file, for messages.
        key: load this stream only; for a payload, which has no name, its name.
        database: load only from this database of an RDB file.
        max_line: how many bytes a line of text may have.
        moved: is told how many entries are there.
    """

    def __init__(
        self,
        make_load: Callable[[], Load],
        name: str,
        key: bytes | None,
        database: int | None,
        max_line: int,
        moved: Callable[[int], None],
    ) -> None:
        self._make_load = make_load
        self._made: Load | None = None
        self._name = name
        self._key = key
        self._choice = Choice(key)
        self._database = database
        self._max_line = max_line
        self._moved = moved
        self.losses = Losses()
        self.entries = 0

    def _load(self) -> Load:
        if self._made is None:
            self._made = self._make_load()
        return self._made

    def publish(self) -> Loaded:
        """Give the streams their names; return what to report."""
        self._choice.check(self._name, may_be_empty=False)
        load = self._load()
        streams = load.publish()
        return Loaded(streams, self.entries, len(load.skipped), self.losses)

    def _begin(self, key: bytes) -> Incoming | None:
        if not self._choice.wants(key):
            return None
        return self._load().begin(key, f"{self._name}: stream {output.named(key)}")

    def _count(self, entries: int) -> None:
        self.entries += entries
        self._moved(self.entries)

    # --- formats ----------------------------------------------------------------------------

    def jsonl(self, stream: BinaryIO) -> None:
        """Load what `dump --format jsonl` wrote."""
        reader = JsonReader(self._begin, self._moved)
        reader.read(bounded_lines(stream, self._max_line))
        self.entries = reader.loaded

    def rdb(self, stream: BinaryIO) -> None:
        """Load the streams of an RDB file."""
        for record in read_rdb(stream.read, self._name):
            if isinstance(record, RdbEnd):
                if not record.checked:
                    self.losses.add("checksum, which the file does not have")
            elif isinstance(record, StreamObject):
                self._rdb_stream(record)
            elif self._database in (None, record.database):
                self.losses.add(record.kind)

    def _rdb_stream(self, record: StreamObject) -> None:
        wanted = self._database in (None, record.database)
        incoming = self._begin(record.key) if wanted else None
        for part in record.parts:  # all of them, to come to what is behind
            if incoming is not None:
                incoming.take(part)
        if incoming is not None:
            self._count(incoming.entries)
            if record.expires_ms is not None:
                self.losses.add("time of a stream to expire")
            if record.database and self._database is None:
                self.losses.add("number of a database, of a stream")

    def payload(self, stream: BinaryIO) -> None:
        """Load a DUMP payload, or lines of JSON with one each."""
        start = stream.read(1)
        if not start:
            return  # the lines of a store without streams
        if start == b"{":
            longest = max(self._max_line, _MAX_PAYLOAD)
            for number, line in enumerate(bounded_lines(stream, longest, start), 1):
                key, data = _payload_line(number, line)
                self._take_payload(key, data)
            return
        if self._key is None:
            raise Failure(
                f"{self._name}: a payload does not name its stream",
                hint="streamkeep load STORE KEY FILE --format dump",
            )
        payload = start + stream.read(_MAX_PAYLOAD)
        if len(payload) > _MAX_PAYLOAD:
            raise CorruptionError(self._name, f"a payload of more than {_MAX_PAYLOAD:,} bytes")
        self._take_payload(self._key, payload)

    def _take_payload(self, key: bytes, payload: bytes) -> None:
        incoming = self._begin(key)
        if incoming is not None:
            for part in read_payload(payload, self._name):
                incoming.take(part)
            self._count(incoming.entries)

    def csv(self, stream: io.BufferedReader[Any], delimiter: str) -> None:
        """Load what `dump --format csv` wrote: columns `stream` and `id`, then fields."""
        self._table(read_dump_csv(stream, delimiter, self._max_line), "line")

    def parquet(self, stream: BinaryIO) -> None:
        """Load a Parquet file that has the column `stream`."""

        def rows() -> Iterator[FlatRow]:
            for number, (key, ms, seq, flat) in enumerate(read_parquet(stream, self._name), 1):
                if key is None:
                    raise Failure(
                        f"{self._name}: no column 'stream'",
                        hint="streamkeep load STORE KEY FILE --format parquet",
                    )
                yield number, key, ms, seq, flat

        self._table(rows(), "row")

    def _table(self, rows: Iterable[FlatRow], unit: str) -> None:
        """Load the rows of a table."""
        known: dict[bytes, Incoming | None] = {}
        last = b""
        batch: list[tuple[int, int, list[bytes]]] = []
        numbers: list[int] = []
        size = 0

        def flush() -> None:
            incoming = known.get(last)
            if incoming is None or not batch:
                return
            try:
                incoming.append(batch)
            except CommandError as error:
                number = numbers[error.entry_index or 0]
                raise Failure(
                    f"{self._name} {unit} {number}: ID {batch[error.entry_index or 0][0]}-"
                    f"{batch[error.entry_index or 0][1]} of stream {output.named(last)} is not "
                    "above the one before it; nothing was loaded"
                ) from error
            self._count(len(batch))

        for number, key, ms, seq, flat in rows:
            if key != last or len(batch) >= _BATCH_ENTRIES or size >= _BATCH_BYTES:
                flush()
                batch, numbers, size = [], [], 0
                last = key
            if key not in known:
                known[key] = self._begin(key)
            if not flat:
                raise Failure(f"{self._name} {unit} {number}: an entry without fields")
            batch.append((ms, seq, flat))
            numbers.append(number)
            size += sum(map(len, flat))
        flush()


def _payload_line(number: int, line: bytes) -> tuple[bytes, bytes]:
    if not _PAYLOAD_LINE.fullmatch(line):  # nor does it unfold into much more than it is
        raise RowError(
            number, "no line with 'key' and 'payload', as `dump --format dump` writes it"
        )
    try:
        members = json.loads(line)
        return from_json(members["key"]), from_json(members["payload"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RowError(number, f"no line with 'key' and 'payload': {error}") from error
