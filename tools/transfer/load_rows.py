"""Rows of CSV, JSON Lines or Parquet files appended to one stream.

Rows are appended in batches, each one transaction, so a bad line costs at most its own batch and
memory stays bounded. IDs are checked against the stream here before the store does it once more,
because only here is it known which line of the file is to blame.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import CommandError
from streamkeep.tools.base import output
from streamkeep.tools.base.command import Failure, open_store
from streamkeep.tools.base.interrupts import uninterrupted
from streamkeep.tools.transfer.rows import Row
from streamkeep.tools.transfer.text_lines import RowError

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

_NAMED: Final = 8  # streams that a message names
# A batch ends at this size, too: a thousand entries may be a gigabyte.
BATCH_BYTES: Final = 64 << 20


def sorted_rows(rows: Iterable[Row], moved: Callable[[], None]) -> list[Row]:
    """Return all rows by time or ID; rows of the same time stay in the order of the file."""
    found: list[Row] = []
    for row in rows:
        if row.ms is None:
            raise RowError(row.line, "--sort needs a time or an ID: name it with --time or --id")
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
        pairs = row.fields.items() if isinstance(row.fields, dict) else row.fields
        size += sum(map(len, chain.from_iterable(pairs)))
        if len(batch) >= count or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Choice:
    """Which streams of a file are loaded: KEY, or all of them when that is None.

    What does not say of which stream it is belongs to KEY.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._others: dict[bytes, None] = {}  # the first that were left out
        self._found = False

    def wants(self, stream: bytes | None) -> bool:
        """Say whether a stream is loaded."""
        if self._key is None or stream is None or stream == self._key:
            self._found = True
            return True
        if len(self._others) <= _NAMED:
            self._others[stream] = None
        return False

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows that are loaded."""
        return (row for row in rows if self.wants(row.stream))

    def check(self, name: str, *, may_be_empty: bool) -> None:
        """Raise where the file has no stream KEY; say which there are."""
        if self._found or self._key is None or (may_be_empty and not self._others):
            return
        there = [output.named(one) for one in self._others]
        told = f"; there is {', '.join(there[:_NAMED])}" if there else ""
        more = ", ..." if len(there) > _NAMED else ""
        raise Failure(
            f"{name}: no stream {output.named(self._key)} in it{told}{more}",
            hint="KEY is one of these; streamkeep rename gives it another name" if there else "",
        )


class Loader(ExitStack):
    """Appends batches to a stream; opens the store with the first, so a bad file creates none."""

    def __init__(self, path: Path, key: bytes, name: str, *, may_sort: bool) -> None:
        super().__init__()
        self.path = path
        self.key = key
        self.name = name
        self.may_sort = may_sort
        self.stored = 0
        self.next_line = 1
        self.first_id: StreamId | None = None
        self.last_id = MIN_ID  # that the stream has generated
        self.start_id = MIN_ID  # the same, before this command
        self.began = time.perf_counter()
        self._store: Store | None = None

    def append(self, batch: list[Row]) -> None:
        """Append a batch in one transaction.

        Raises:
            RowError: an ID is not above the one before; nothing of the batch is stored.
        """
        if self._store is None and not os.path.exists(self.path / DATA_FILE):
            self._check_order(batch)  # before there is a store
        store = self._opened()
        self._check_order(batch)
        ids = [row.id_text for row in batch]
        with uninterrupted():
            try:
                added = store.xadd_many(self.key, [row.fields for row in batch], ids)
            except CommandError as error:
                problem = f"this or a later line up to {batch[-1].line}: {error.redis_error}"
                raise RowError(batch[0].line, problem) from error
            self.stored += len(added)
            self.next_line = batch[-1].line + 1
            self.last_id = StreamId.parse(added[-1])
            if self.first_id is None:
                self.first_id = StreamId.parse(added[0])

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self.enter_context(open_store(self.path, create=True))
            if self._store.exists(self.key):
                counters = self._store.xinfo_stream(self.key)
                self.last_id = self.start_id = StreamId.parse(counters["last-generated-id"])
        return self._store

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
            problem = f"{output.time_text(row.ms)} is before {output.time_text(last.ms)}"
        else:
            problem = f"ID {row.ms}-{row.seq} is not above {last}"
        if last == self.start_id:
            problem += f", the last ID of {output.named(self.key)}; a stream only takes newer ones"
            raise RowError(row.line, problem)
        hint = "--sort puts the file in order" if self.may_sort and not self.stored else ""
        raise RowError(row.line, f"{problem}, the row before; IDs must rise", hint=hint)

    def fail(self, error: RowError) -> NoReturn:
        """End the command because of a line; say what is stored, and how to go on."""
        if not self.stored:
            raise Failure(
                f"{self.name} line {error.line}: {error}; nothing was stored", hint=error.hint
            ) from None
        raise Failure(
            f"{self.name} line {error.line}: {error}; {self._stored_text()}",
            hint=error.hint or self._going_on(),
        ) from None

    def note_stored(self, why: str) -> None:
        """Say what is stored where something else than a line ends the command."""
        going_on = f"; {self._going_on()}" if self.stored and self._going_on() else ""
        output.note(f"{self.name}: {why}{self._stored_text()}{going_on}")

    def _stored_text(self) -> str:
        if not self.stored:
            return "nothing was stored"
        if not self.may_sort:  # lines are not in their order
            return f"{output.entries_text(self.stored)} stored"
        return f"{output.entries_text(self.stored)} stored, up to line {self.next_line - 1}"

    def _going_on(self) -> str:
        return f"--from-line {self.next_line} goes on behind them" if self.may_sort else ""

    def report(self, *, as_json: bool) -> None:
        """Print the summary."""
        seconds = time.perf_counter() - self.began
        if as_json:
            output.json_summary(
                "load",
                key=output.json_bytes(self.key),
                file=self.name,
                entries=self.stored,
                first_id=None if self.first_id is None else str(self.first_id),
                last_id=str(self.last_id) if self.stored else None,
                duration_ms=round(seconds * 1000),
            )
            return
        if self.first_id is None:
            output.note(f"{self.name}: no entries")
            return
        times = f"{output.time_text(self.first_id.ms)} to {output.time_text(self.last_id.ms)}"
        rate = f"{self.stored / max(seconds, 1e-9):,.0f} entries/s"
        output.note(
            f"{self.name}: {output.entries_text(self.stored)} into {output.named(self.key)}, "
            f"{times}, in {output.span_text(seconds)} ({rate})"
        )
