"""Undoing a commit that LMDB did not make.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lmdb

from streamkeep.format.journal.position import POSITION_KEY

if TYPE_CHECKING:
    from streamkeep.engine.txn.context import EngineContext


def cut_record(context: EngineContext, commit_number: int) -> None:
    """Cut the record of a commit that LMDB has failed to make: its caller gets the error.

    LMDB has released its lock. Another process may then have written its own record at this
    log position, and made that commit.
    """
    journal = context.journal_or_raise()
    journal.reopen()
    try:
        raw = context.raw.begin(None, None, True, False)
    except lmdb.Error:
        return  # nothing can be written now; the next writer overwrites the record
    try:
        journal.locate(raw.get(POSITION_KEY, None), raw.id() - 1)
        if max(journal.commit_number(), journal.control.newest_deferred()) + 1 == commit_number:
            journal.cut()
    finally:
        raw.commit()  # nothing was written
