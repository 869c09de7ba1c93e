"""Rows of CSV, JSON Lines or Parquet files appended to one stream.

Rows are appended in batches, each in one transaction: a bad line costs at most its own batch, and
memory stays bounded. IDs are checked against the stream here before the store checks them again,
because only this module knows the line of each ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

from streamkeep.engine.commands.xadd import xadd_many
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import CommandError
from streamkeep.format.humanize import entries_text, time_text
from streamkeep.format.quoting import named
from streamkeep.transfer.loading.tables import Row, RowError
from streamkeep.transfer.stores import Target, uninterrupted

_NAMED: Final = 8  # streams that a message names
# A batch ends at this size, too: a thousand entries may be a gigabyte.
BATCH_BYTES: Final = 64 << 20


def sorted_rows(rows: Iterable[Row], moved: Callable[[], None]) -> list[Row]:
    """Return all rows sorted by time or ID; rows of the same time keep their order."""
    found: list[Row] = []
    for row in rows:
        if row.ms is None:
            raise RowError(
                row.line,
                "sorting needs a time or an ID in each row",
                hint="time_column=COLUMN or id_column=COLUMN names it",
            )
        found.append(row)
        if len(found) % 1000 == 0:
            moved()
    return sorted(found, key=lambda row: (row.ms or 0, row.seq or 0))


def batches(rows: Iterable[Row], count: int) -> Iterator[list[Row]]:
    """Yield rows in lists of `count`, or of fewer that are large."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(map(len, row.flat))
        if len(batch) >= count or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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


class Appender:
    """Appends rows to a stream, batch by batch.

    Attributes:
        stored: how many entries are in the store.
        next_line: the line after the last one that is in the store.
        first_id, last_id: of these entries; `last_id` begins as the last ID of the stream.
    """

    def __init__(self, target: Target, key: bytes, *, in_order: bool) -> None:
        """Append to the stream `key`; `in_order` where the rows come in the order of the file."""
        self._target = target
        self._key = key
        self._in_order = in_order
        self._begun = False
        self.stored = 0
        self.next_line = 1
        self.first_id: StreamId | None = None
        self.last_id = MIN_ID
        self._start_id = MIN_ID  # what the stream had before this load

    def append(self, batch: list[Row], moved: Callable[[], None]) -> None:
        """Append a batch in one transaction, then call `moved`.

        Raises:
            RowError: an ID is not above the one before; nothing of the batch is stored.
        """
        if not self._target.exists():
            self._check_order(batch)  # a file without a single good batch creates no store
        store = self._target.store()
        if not self._begun:
            self._begun = True
            if store.exists(self._key):
                counters = store.xinfo_stream(self._key)
                self.last_id = self._start_id = StreamId.parse(counters["last-generated-id"])
        self._check_order(batch)
        ids = [row.new_id for row in batch]
        with uninterrupted():
            try:
                with store.transaction(self._target.sync) as transaction:
                    flats = [row.flat for row in batch]
                    added = xadd_many(transaction.txn, self._key, flats, ids)
            except CommandError as error:
                problem = f"this or a later line up to {batch[-1].line}: {error.redis_error}"
                raise RowError(batch[0].line, problem) from error
            self.stored += len(added)
            self.next_line = batch[-1].line + 1
            self.last_id = StreamId.parse(added[-1])
            if self.first_id is None:
                self.first_id = StreamId.parse(added[0])
            moved()

    def _check_order(self, batch: list[Row]) -> None:
        """Raise for the first row whose ID the stream will not take."""
        last_ms, last_seq = self.last_id
        for row in batch:
            if row.ms is None:
                continue
            seq = row.seq
            if seq is None:
                seq = last_seq + 1 if row.ms == last_ms else 0
            if (row.ms, seq) <= (last_ms, last_seq):
                self._refuse(row, StreamId(last_ms, last_seq))
            last_ms, last_seq = row.ms, seq

    def _refuse(self, row: Row, last: StreamId) -> NoReturn:
        assert row.ms is not None
        if row.seq is None:
            problem = f"{time_text(row.ms)} is before {time_text(last.ms)}"
        else:
            problem = f"ID {row.ms}-{row.seq} is not above {last}"
        if last == self._start_id:
            problem += f", the last ID of {named(self._key)}; a stream only takes newer ones"
            raise RowError(row.line, problem)
        hint = "sort=True puts the file in order" if self._in_order and not self.stored else ""
        raise RowError(row.line, f"{problem}, the row before; IDs must rise", hint=hint)

    def outcome(self) -> str:
        if not self.stored:
            return "nothing was stored"
        if not self._in_order:  # the stored rows are not the first lines of the file
            return f"{entries_text(self.stored)} stored"
        return f"{entries_text(self.stored)} stored, up to line {self.next_line - 1}"

    def resume(self) -> str:
        """Return how to load the rest of the file, or nothing where there is no such way."""
        if not self.stored or not self._in_order:
            return ""
        return f"from_line={self.next_line} continues after them"
