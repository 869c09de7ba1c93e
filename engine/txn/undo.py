"""Undoing: what remains of a command that failed halfway, and of a commit that LMDB did not make.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lmdb

from streamkeep.format.journal.position import POSITION_KEY

if TYPE_CHECKING:
    from streamkeep.engine.txn.context import EngineContext
    from streamkeep.engine.txn.txn import WriteTxn


def is_half_changed(txn: WriteTxn) -> bool:
    """Return whether a command may have left changes in the deferred transaction."""
    if txn.touched or txn.saving:
        return True
    unsaved = txn.context.deferral.unsaved.streams
    for stream in txn.streams.values():
        if unsaved.get(stream.db_key) is stream and stream.is_half_changed():
            return True
    return False


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
            journal.reopen()
    finally:
        raw.commit()  # nothing was written
