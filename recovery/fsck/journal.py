"""The journal, replayed on tables in memory: the state that a recovery would bring the store to.

A check reads this state through the same tables as that of a healthy store. Repair goes on where
recovery ends: it skips damaged records, and applies of the others each change that fits to its row.
"""

from __future__ import annotations

from streamkeep.engine.journal.reader import Reader
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES, check_key
from streamkeep.format.journal import journal
from streamkeep.recovery.fsck.rows import row_place
from streamkeep.recovery.pages.tree import Tables


class Replay:
    """A replay of the journal on tables.

    Attributes:
        partial: rows of which a part could not be made, by table and key: as they were before.
    """

    def __init__(self, tables: Tables, reader: Reader) -> None:
        self.tables = tables
        self.reader = reader
        self.partial: dict[tuple[int, bytes], bytes] = {}

    def run(self, end: int) -> None:
        """Apply the records up to a commit; raise CorruptionError."""
        reader = self.reader
        while reader.position.commit_number < end:
            body = reader.next()
            if body is None:
                raise CorruptionError("journal", f"it ends before commit {end}")
            for change in journal.read_changes(body, TABLES):
                self._apply(change)
            self.tables.commit_number = reader.position.commit_number

    def salvage(self, made: int) -> list[str]:
        """Apply everything that comes later; return what could not be applied, as text.

        Args:
            made: the newest commit that is known to have been made.
        """
        lost: list[str] = []
        reader, before = self.reader, self.reader.position.commit_number
        while True:
            body = reader.next()
            if body is None:
                more = reader.resume()
                first, before = before + 1, reader.position.commit_number if more else made
                if first <= before:
                    commits = f"commit{'s' * (first < before)} {first}"
                    commits += f" to {before}" if first < before else ""
                    lost.append(f"{commits}: the journal is damaged there")
                if not more:
                    return lost
                continue
            before = reader.position.commit_number
            try:
                for change in journal.read_changes(body, TABLES):
                    problem = self._apply_if_possible(change)
                    if problem:
                        place = row_place(change.table, change.db_key)
                        lost.append(f"what precedes commit {before} in {place}: {problem}")
            except CorruptionError as error:
                lost.append(f"changes of commit {before}: {error.problem}")
            self.tables.commit_number = before

    def _apply(self, change: journal.Change) -> None:
        """Make a change; raise CorruptionError if it does not fit to its row."""
        tables, table, db_key = self.tables, change.table, change.db_key
        check_key(table, db_key)
        if change.kind == journal.PUT:
            tables.change(table, db_key, change.value)
        elif change.kind == journal.DELETE:
            tables.change(table, db_key, None)
        else:
            old = tables.get(table, db_key)
            change.check(-1 if old is None else len(old))
            if change.kind == journal.MOVE:
                tables.change(change.kept, db_key, old)
                tables.change(table, db_key, None)
            else:
                tables.change(table, db_key, change.apply(old))

    def _apply_if_possible(self, change: journal.Change) -> str:
        """Make a change, or the part of it that can be made.

        Returns:
            the problem as text; "" without one, or if the row has had one before.
        """
        tables, place = self.tables, (change.table, change.db_key)
        extends = change.kind in (journal.SPLICE, journal.EXTEND)
        if extends and place in self.partial:
            tables.change(*place, change.joined(tables.get(*place) or b""))
            return ""
        try:
            self._apply(change)
        except CorruptionError as error:
            if extends:
                try:
                    old = tables.get(*place) or b""
                except CorruptionError:
                    old = b""
                tables.change(*place, change.joined(old))
                self.partial[place] = old
            return error.problem
        if change.kind in (journal.PUT, journal.DELETE):
            self.partial.pop(place, None)
        return ""
