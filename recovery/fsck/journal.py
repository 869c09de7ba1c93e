"""The journal, replayed on tables in memory: the state that a recovery would bring the store to.

A check reads this state through the same tables as that of a healthy store. Repair goes on where
recovery ends: it skips damaged records, and applies of the others each change that fits to its row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from streamkeep.engine.journal.reader import Reader, journal_files, read_header
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import NODES, STREAMS, TABLES, check_key, node_key
from streamkeep.format.journal import journal
from streamkeep.format.node.envelope import ENVELOPE, HEADER_SIZE, decode_envelope
from streamkeep.format.rows.records import decode_stream_record
from streamkeep.recovery.fsck.rows import row_place
from streamkeep.recovery.pages.raw_pages import key_of, record_only, without_record
from streamkeep.recovery.pages.tree import Tables

_RECORD_SIZE_AT: Final = ENVELOPE.offset("record_size")
_LISTPACK_HEADER: Final = 6


Mend = Callable[[bytes], bytes | None]  # makes a damaged envelope a sound one, if it can


class Replay:
    """A replay of the journal on tables.

    Args:
        mend: for the row that the first EXTEND changes, after which the checksum proves nothing.

    Attributes:
        partial: rows of which a part could not be made, by table and key: as they were before.
    """

    def __init__(self, tables: Tables, reader: Reader, mend: Mend | None = None) -> None:
        self.tables = tables
        self.reader = reader
        self._mend = mend
        self.partial: dict[tuple[int, bytes], bytes] = {}
        self._followed: set[bytes] = set()  # streams that were changed since the last lost record
        self._left: deque[journal.Change] = deque()  # of a record that `run` could not apply

    def run(self, end: int) -> None:
        """Apply the records up to a commit; raise CorruptionError."""
        reader = self.reader
        while reader.position.commit_number < end:
            body = reader.next()
            if body is None:
                raise CorruptionError("journal", f"it ends before commit {end}")
            self._left.extend(journal.read_changes(body, TABLES))
            while self._left:
                self._apply(self._left[0])
                self._left.popleft()
            self.tables.commit_number = reader.position.commit_number

    def salvage(self, made: int) -> list[str]:
        """Apply everything that comes later; return what could not be applied, as text.

        Args:
            made: the newest commit that is known to have been made.
        """
        lost: list[str] = []
        reader, before = self.reader, self.reader.position.commit_number
        self._salvage(self._left, before, lost)
        while True:
            body = reader.next()
            if body is None:
                more = _resume(reader)
                first, before = before + 1, reader.position.commit_number if more else made
                if first <= before:
                    commits = f"commit{'s' * (first < before)} {first}"
                    commits += f" to {before}" if first < before else ""
                    lost.append(f"{commits}: the journal is damaged there")
                if not more:
                    return lost
                self._followed.clear()
                continue
            before = reader.position.commit_number
            try:
                self._salvage(journal.read_changes(body, TABLES), before, lost)
            except CorruptionError as error:
                lost.append(f"changes of commit {before}: {error.problem}")
            self.tables.commit_number = before

    def _salvage(self, changes: Iterable[journal.Change], commit: int, lost: list[str]) -> None:
        for change in changes:
            tail = self._tail_before(change)
            problem = self._apply_if_possible(change)
            if tail:
                self._keep_sealed(change, tail)
            if problem:
                place = row_place(change.table, change.db_key)
                lost.append(f"what precedes commit {commit} in {place}: {problem}")

    def _apply(self, change: journal.Change) -> None:
        """Make a change; raise CorruptionError if it does not fit to its row."""
        tables, table, db_key = self.tables, change.table, change.db_key
        check_key(table, db_key)
        if change.kind == journal.PUT:
            tables.change(table, db_key, change.value)
        elif change.kind == journal.DELETE:
            tables.change(table, db_key, None)
        else:
            is_move = change.kind == journal.MOVE
            old = tables.get(table, db_key) if is_move else self._mended(table, db_key)
            change.check(-1 if old is None else len(old))
            if is_move:
                tables.change(change.kept, db_key, old)
                tables.change(table, db_key, None)
            else:
                tables.change(table, db_key, change.apply(old))

    def _mended(self, table: int, db_key: bytes) -> bytes | None:
        """Return a row that a record extends; a damaged one is mended before the first of them."""
        old = self.tables.get(table, db_key)
        is_first = not self.tables.is_changed(table, db_key)
        if self._mend and old and is_first and not journal.is_sound(old):
            old = self._mend(old) or old
            self.tables.change(table, db_key, old)
        return old

    def _tail_before(self, change: journal.Change) -> bytes:
        """Return the row of a stream that is changed for the first time after a lost record."""
        if change.table != STREAMS or change.db_key in self._followed:
            return b""
        self._followed.add(change.db_key)
        place = (STREAMS, change.db_key)
        return self.partial.get(place) or self._row(place)

    def _keep_sealed(self, change: journal.Change, before: bytes) -> None:
        """Seal the tail that a stream had, if that was done in the record that is lost.

        The row has another tail by now: without this, one lost record would take a whole node.
        """
        tables = self.tables
        try:
            old = decode_envelope(before, "streams")
            new = decode_envelope(tables.get(STREAMS, change.db_key) or b"", "streams")
            first = decode_stream_record(new.record, "streams").first_id()
        except CorruptionError:
            return
        db_key = node_key(old.number, old.ms, old.seq)
        if (
            old.listpack
            and (old.ms, old.seq) != (new.ms, new.seq)
            and (0, 0) < first <= (old.ms, old.seq)  # otherwise some of it was trimmed
            and not tables.is_changed(NODES, db_key)
        ):
            tables.change(NODES, db_key, without_record(old))

    def _apply_if_possible(self, change: journal.Change) -> str:
        """Make a change, or the part of it that can be made.

        Returns:
            the problem as text; "" without one, or if the row has had one before.
        """
        tables, place = self.tables, (change.table, change.db_key)
        extends = change.kind in (journal.SPLICE, journal.EXTEND)
        problem = ""
        if not (extends and place in self.partial):
            try:
                self._apply(change)
            except CorruptionError as error:
                if not extends:
                    return error.problem
                problem = error.problem
                self.partial[place] = self._row(place)
            else:
                if change.kind in (journal.PUT, journal.DELETE):
                    self.partial.pop(place, None)
                return ""
        old = self._row(place)
        value = change.joined(old)
        longer = _head_size(value) - _head_size(old) if change.table == STREAMS and old else 0
        if longer:  # the record that is lost made the head of the row longer
            value = change.joined(bytes(longer) + old if longer > 0 else old[-longer:])
        if change.table == STREAMS and len(value) > HEADER_SIZE and key_of(value) != key_of(old):
            value = record_only(value)  # what follows the first entry of a tail is nothing alone
        tables.change(*place, value)
        return problem

    def _row(self, place: tuple[int, bytes]) -> bytes:
        """Return a row; b"" if there is none that can be read."""
        try:
            return self._mended(*place) or b""
        except CorruptionError:
            return b""


def _head_size(row: bytes) -> int:
    """Return where a row of `streams` goes on after the count of its tail, which begins that."""
    record_size = int.from_bytes(row[_RECORD_SIZE_AT : _RECORD_SIZE_AT + 2], "big")
    at = HEADER_SIZE + record_size + _LISTPACK_HEADER
    return at + (2 if row[at : at + 1] < b"\x80" else 3)  # the count has 7 or 13 bits


def _resume(reader: Reader) -> bool:
    """Go to the next record after the damage at which a reader has ended.

    Returns:
        Whether there is one. Its commit number may be higher by more than one.
    """
    for number, name in journal_files(reader.folder).items():
        header = read_header(reader.folder, name)
        start = reader.start_of(name)
        if number < reader.number or (header is not None and start is None):
            continue
        begin = reader.offset
        if number > reader.number:
            if start is not None and start.commit_number > reader.commit_number:
                before = reader.position
                reader.go_to(*start)
                found = reader.next() is not None
                reader.go_to(*(start if found else before))
                if found:
                    return True
            begin = journal.FILE_HEADER.size
        place = journal.find_record(reader.folder.read(name), begin, reader.commit_number)
        if place is not None:
            reader.go_to(number, *place)
            return True
    return False
