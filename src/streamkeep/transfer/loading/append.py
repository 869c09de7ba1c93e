"""Rows of CSV, JSON Lines or Parquet files appended to one stream.

Rows are appended in batches, each in one transaction: a bad line costs at most its own batch, and
memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

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


class Outcome(NamedTuple):
    """How far a load came: as text, how to load the rest, and how many entries or commands."""

    text: str
    resume: str = ""
    done: int = 0


NOTHING_STORED: Final = Outcome("nothing was stored")


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
        first_id, last_id: of these entries.
    """

    def __init__(self, target: Target, key: bytes, *, in_order: bool) -> None:
        """Append to the stream `key`; `in_order` where the rows come in the order of the file."""
        self._target = target
        self._key = key
        self._in_order = in_order
        self.stored = 0
        self.next_line = 1
        self.first_id: StreamId | None = None
        self.last_id: StreamId | None = None

    def append(self, batch: list[Row], moved: Callable[[], None]) -> None:
        """Append a batch in one transaction, then call `moved`.

        Raises:
            RowError: an ID is not above the one before; nothing of the batch is stored.
        """
        store = self._target.store()
        with uninterrupted():
            try:
                with store.transaction(self._target.sync) as transaction:
                    flats = [row.flat for row in batch]
                    ids = [row.new_id for row in batch]
                    added = xadd_many(transaction.txn, self._key, flats, ids)
            except CommandError as error:
                raise self._refused(batch, error) from error
            self.stored += len(added)
            self.next_line = batch[-1].line + 1
            self.first_id = self.first_id or StreamId.parse(added[0])
            self.last_id = StreamId.parse(added[-1])
            moved()

    def _refused(self, batch: list[Row], error: CommandError) -> RowError:
        """Return the error for the first row that the stream does not take."""
        zeros = (at for at, row in enumerate(batch) if (row.ms, row.seq) == MIN_ID)  # no stream's
        at = error.entry_index if error.entry_index is not None else next(zeros, None)
        row = batch[at or 0]
        if at is None:
            problem = f"this or a later line up to {batch[-1].line}: {error.redis_error}"
            return RowError(row.line, problem)
        if row.ms is None or (at and batch[at - 1].ms is None):  # the clock gave one of the two
            return RowError(row.line, error.redis_error)
        if at:
            last = StreamId(batch[at - 1].ms or 0, batch[at - 1].seq or 0)
        else:
            store = self._target.store()
            known = store.exists(self._key) and store.xinfo_stream(self._key)
            last = StreamId.parse(known["last-generated-id"]) if known else MIN_ID
        if row.seq is None:
            problem = f"{time_text(row.ms)} is before {time_text(last.ms)}"
        else:
            problem = f"ID {row.ms}-{row.seq} is not above {last}"
        if not at and last != self.last_id:
            problem += f", the last ID of {named(self._key)}; a stream only takes newer ones"
            return RowError(row.line, problem)
        hint = "sort=True puts the file in order" if self._in_order and not self.stored else ""
        return RowError(row.line, f"{problem}, the row before; IDs must rise", hint=hint)

    def so_far(self) -> Outcome:
        if not self.stored:
            return NOTHING_STORED
        text = f"{entries_text(self.stored)} stored"
        if not self._in_order:  # the stored rows are not the first lines of the file
            return Outcome(text, "", self.stored)
        resume = f"from_line={self.next_line} continues after them"
        return Outcome(f"{text}, up to line {self.next_line - 1}", resume, self.stored)
