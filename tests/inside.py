"""What tests reach inside of an open store, each by one name: the only file that knows the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from streamkeep.engine.api.store import Store
from streamkeep.engine.blocking.waiters import Waiters
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.checkpoint.checkpointer import Checkpointer
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.notify.wait_table import WaitTable
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.store.group_commit import GroupCommit
from streamkeep.engine.tables.segment_files import SegmentFiles
from streamkeep.engine.txn.begin import run_locked
from streamkeep.engine.txn.context import EngineContext
from streamkeep.engine.txn.flush import flush
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.txn import WriteTxn

T = TypeVar("T")


def environment_of(store: Store[Any]) -> Environment:
    """Return what all users of a store in this process share."""
    return store._environment


def context_of(store: Store[Any]) -> EngineContext:
    """Return what transactions share."""
    return environment_of(store).context


def journal_of(store: Store[Any]) -> Journal:
    """Return the journal of a store that may be written."""
    journal = context_of(store).journal
    assert journal is not None
    return journal


def wait_table_of(store: Store[Any]) -> WaitTable:
    """Return the table of the blocked readers of all processes."""
    return context_of(store).wait_table


def tickets_in(table: WaitTable) -> int:
    """Return how many calls of all processes wait."""
    with table._mutex:
        try:
            table._enter()
            return len({row[0] for row in table._rows()})
        finally:
            table._leave()


def lock_is_awaited(control: ControlFile) -> bool:
    """Return whether a process says that it waits for the write lock."""
    return control._words[20] != 0


def waiters_of(store: Store[Any]) -> Waiters:
    """Return the blocked readers of this process."""
    return environment_of(store).waiters


def group_commit_of(store: Store[Any]) -> GroupCommit:
    """Return the queue of writers."""
    return environment_of(store).group_commit


def checkpointer_of(store: Store[Any]) -> Checkpointer:
    """Return the checkpointer of a store that may be written."""
    checkpointer = environment_of(store).checkpointer
    assert checkpointer is not None
    return checkpointer


def checkpoint_file_of(store: Store[Any]) -> CheckpointFile:
    """Return the file of checkpoints of a store that may be written."""
    file = environment_of(store).checkpoint_file
    assert file is not None
    return file


def segment_files_of(store: Store[Any]) -> SegmentFiles:
    """Return the open files of the archive."""
    return environment_of(store).segments


def uuid_of(store: Store[Any]) -> bytes:
    return environment_of(store).uuid.bytes


def checkpoint_now(store: Store[Any]) -> None:
    environment_of(store).make_checkpoint()


def flush_now(store: Store[Any]) -> None:
    """Have LMDB get all commits; the store was written to before."""
    context = context_of(store)
    run_locked(context, flush, (context,))


def flush_each_commit(store: Store[Any]) -> None:
    """Have LMDB get each commit at once."""
    context_of(store).memtable.most_commits = 1


def begin_read(store: Store[Any]) -> ReadTxn:
    """Begin a read transaction, which the test closes."""
    return environment_of(store).begin_read()


def begin_write(store: Store[Any]) -> WriteTxn:
    """Begin a write transaction, which the test commits or aborts."""
    return environment_of(store).begin_write(durable=False)


def run_read(store: Store[Any], call: Callable[..., T], *args: Any) -> T:
    """Call a function with a read transaction."""
    return environment_of(store).read(call, *args)


def run_write(store: Store[Any], call: Callable[..., T], *args: Any) -> T:
    """Call a function with a write transaction, and commit that."""
    return environment_of(store).write(call, *args)
