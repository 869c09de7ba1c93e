"""Whether the journal can be replayed on a commit of `data.mdb`: found out before any change.

Most records change a part of a row, and need the row as it was. If such a record did not fit, a
recovery would stop in the middle, with the newest commit of LMDB overwritten. Only the sizes of
rows are kept, so a long journal takes little memory. Compiled by mypyc.
"""

from __future__ import annotations

from streamkeep.engine.crash_recovery.stored_rows import KeyMissing, StoredRows
from streamkeep.engine.journal.reader import Reader
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.journal import DELETE, MOVE, PUT, read_changes
from streamkeep.format.lmdb_file.meta_page import MetaPage


class Trial:
    """The sizes of the rows that the journal changes, from a commit of a data file on."""

    def __init__(self, handle: int, meta: MetaPage) -> None:
        self._stored = StoredRows(handle, meta)
        self._sizes: dict[tuple[int, bytes], int] = {}  # -1: there is no such row

    def run(self, reader: Reader) -> tuple[int, str]:
        """Read the journal to its end, or to a record that cannot be applied.

        Returns:
            The last commit that can be made, and why the one after it cannot; "" at the end.
        """
        end = reader.position.commit_number
        body = reader.next()
        while body is not None:
            try:
                self._apply(body)
            except CorruptionError as error:
                return end, f"the record of commit {end + 1} cannot be applied: {error}"
            end = reader.position.commit_number
            body = reader.next()
        return end, ""

    def _apply(self, body: bytes) -> None:
        """Note what a record changes; raise CorruptionError if it cannot be applied."""
        for change in read_changes(body, TABLES):
            place = (change.table, change.db_key)
            old_size = -1 if change.kind in (PUT, DELETE) else self._size(place)
            change.check(old_size)
            self._sizes[place] = change.new_size(old_size)
            if change.kind == MOVE:
                self._sizes[(change.kept, change.db_key)] = old_size

    def _size(self, place: tuple[int, bytes]) -> int:
        found = self._sizes.get(place)
        if found is not None:
            return found
        self._stored.root(place[0])  # raises for a table that is missing, which is damage
        try:
            page, index = self._stored.find(place[0], place[1])
        except KeyMissing:
            return -1
        return page.sizes[index]
