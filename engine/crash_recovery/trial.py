"""Whether the journal can be replayed on a commit of `data.mdb`: found out before any change.

Most records change a part of a row, and need the row as it was. If such a record did not fit, a
recovery would stop in the middle, with the newest commit of LMDB overwritten. Only the sizes of
rows are kept, so a long journal takes little memory. Compiled by mypyc.
"""

from __future__ import annotations

from streamkeep.engine.crash_recovery.stored_rows import StoredRows
from streamkeep.engine.journal.reader import Reader
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.journal import DELETE, MOVE, PUT, read_changes
from streamkeep.format.lmdb_file.meta_page import MetaPage


def try_out(handle: int, meta: MetaPage, reader: Reader) -> tuple[int, str]:
    """Read the journal to its end, or to a record that cannot be applied.

    Args:
        handle: the data file.
        meta: LMDB's meta page of the commit with which the reader begins.

    Returns:
        The last commit that can be made, and why the one after it cannot; "" at the end.
    """
    stored = StoredRows(handle, meta)
    sizes: dict[tuple[int, bytes], int] = {}  # of the rows that the journal changes
    end = reader.commit_number
    body = reader.next()
    while body is not None:
        try:
            for change in read_changes(body, TABLES):
                place = (change.table, change.db_key)
                old_size = -1  # there is no such row, or it is not needed
                if change.kind not in (PUT, DELETE):
                    found = sizes.get(place)
                    old_size = stored.size(*place) if found is None else found
                change.check(old_size)
                sizes[place] = change.new_size(old_size)
                if change.kind == MOVE:
                    sizes[(change.kept, change.db_key)] = old_size
        except CorruptionError as error:
            return end, f"the record of commit {end + 1} cannot be applied: {error}"
        end = reader.commit_number
        body = reader.next()
    return end, ""
