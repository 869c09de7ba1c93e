"""Named places where a crash test can stop the process.

A failpoint does nothing unless it was armed: `arm("trim:before-commit", action)` makes the next
passage call `action`. Child processes of the crash tests arm one with `SIGKILL`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NAMES: Final = (
    "create:marked",  # the folder says that a store is being created
    "create:written",  # LMDB has its tables, uncommitted
    "create:named",  # the names of the files are on disk, a checkpoint is not
    "commit:journaled",  # the record is written, LMDB has not committed
    "commit:made",  # LMDB has, and nobody was told
    "ring:before",  # the lock is free, and nobody who waits was rung
    "journal:unnamed",  # a file is being made
    "journal:new-file",  # it can be written to
    "journal:new-spare",  # a spare file is complete, but for its name
    "journal:sync",  # somebody is about to sync
    "journal:synced",  # the sync is done, and nobody was told
    "journal:retire",  # a file is no longer needed
    "steady:pinned",  # the four steps of a checkpoint
    "steady:synced",
    "steady:slot-written",
    "steady:made",
    "erase:written",  # an archive file without the erased entries is there, unnamed
    "erase:segment",  # the manifest names it instead of the old one
    "erase:stored",  # the entries are in nothing that is stored, but in what is left over
    "scrub:journal-clean",  # the journal is clean, and a checkpoint made
    "scrub:page",  # the free space of a page was overwritten
    "scrub:pages-clear",  # that of all
    "scrub:free",  # a run of free pages was overwritten
    "scrub:free-clear",  # all of them
    "scrub:synced",  # that is on disk
    "backup:segment",  # an archive file is copied
    "backup:data",  # the data file is copied, with the next epoch
    "backup:copied",  # all of it
    "backup:checked",  # and found sound
    "backup:exchanged",  # it has its name; the earlier backup is still there
    "backup:aside",  # the earlier backup is moved away, where names cannot be exchanged
    "backup:named",  # it has its name
    "copy:written",  # a compacted copy of the data file is written, with the old epoch
    "compact:prepared",  # a compacted store stands beside the old one
    "compact:ready",  # it will take its place, whatever happens
    "compact:journal-gone",  # the old journal is removed
    "compact:journal-moved",  # the new one is in its place
    "compact:data-moved",  # the new data file, too
    "compact:slots-written",  # and its checkpoints
    "compact:done",  # nothing is left to be done but removing an empty folder
    "recover:remove",  # there is a file that no record of the newest commit leads to
    "recover:point-safe",  # the point to go back to is on disk
    "recover:meta-written",  # one of LMDB's meta pages was put back
    "recover:meta-restored",  # both
    "recover:batch",  # a part of the journal was replayed
    "recover:epoch-raised",  # all of it
    "recover:replayed",  # LMDB is closed again
    "segment:begun",  # a segment is being written, under a temporary name
    "segment:written",  # all of it, and not synced
    "segment:synced",  # it is on disk, but for its name
    "segment:renamed",  # it has its name, perhaps not on disk
    "segment:named",  # the file is there for good, and no row names it
    "adopt:copied",  # an adopted file is in its place, and no row names it
    "adopt:named",
    "drop:step",  # segments left the manifest, their files are garbage
    "restore:step",  # a part of a restore is in the stream, with how far it has come
    "garbage:synced",  # no commit that names the files can come back
    "garbage:removed",  # the files are gone, the rows that say so are there
    "sink:staged",  # Spark's tasks have written, the store knows nothing of it
    "sink:applied",  # the batch and its number are in the transaction
    "sink:committed",  # it is in the store, Spark does not know
    "stage:written",  # a task has written a staged file, nobody was told
    "restore:staged",  # all tasks of a restore have, the target is as before
    "lake:file-written",  # a file of a lake is whole, under a temporary name
    "lake:file-named",  # it has its name, no commit names it
    "lake:made",  # there is a lake without entries
    "lake:commit",  # all files of a job are there, the log is as before
    "lake:committed",  # the log names them
    "lake:swept",  # files that nothing names are removed
    "tail:batch",  # a batch for a table is made
    "tail:committed",  # the table has it, Spark does not know
    "archive:written",  # a segment is on disk, its row and the retired ones are as before
    "archive:committed",  # its row is written, the retired ones are gone
)

_armed: Final[dict[str, Callable[[], None]]] = {}
_watching: Final[list[Callable[[str], None]]] = []


def hit(name: str) -> None:
    """Pass the failpoint `name`."""
    if _armed:
        action = _armed.pop(name, None)
        if action is not None:
            action()
    if _watching:
        for watcher in list(_watching):
            watcher(name)


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` at the next passage of `name`."""
    _armed[name] = action


def watch(watcher: Callable[[str], None]) -> None:
    """Call `watcher` with the name of every failpoint that is passed."""
    _watching.append(watcher)


def unwatch(watcher: Callable[[str], None]) -> None:
    """Take back `watch`."""
    _watching.remove(watcher)


def disarm() -> None:
    """Forget every armed failpoint, and everybody who watches."""
    _armed.clear()
    _watching.clear()
