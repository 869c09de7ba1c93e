"""The names of all failpoints (`engine/system/failpoints.py`), and what is so when each is hit."""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "create:marked",  # the folder is marked as a store that is being created
    "create:written",  # LMDB has its tables, uncommitted
    "create:named",  # the file names are on disk; there is no checkpoint yet
    "commit:journaled",  # the record is written, and not published
    "commit:failed",  # the commit could not be made; its record is still in the journal
    "commit:published",  # the commit is published, and not in the memtable yet
    "commit:made",  # the commit is published; the caller does not know yet
    "flush:ending",  # LMDB has the rows of the memtable, uncommitted
    "flush:ended",  # it has committed
    "notify:before",  # the write lock is free; the waiting readers were not notified yet
    "journal:unnamed",  # a new journal file has no name yet
    "journal:new-file",  # the new journal file is ready for records
    "journal:sync",  # a sync is about to begin
    "journal:synced",  # the sync is done; no process knows yet
    "journal:retire",  # a journal file is no longer needed
    "checkpoint:pinned",  # step 1 of a checkpoint is done
    "checkpoint:synced",  # step 2
    "checkpoint:slot-written",  # the slot is written, not synced
    "checkpoint:made",  # step 3
    "erase:written",  # a segment without the erased entries is on disk; no row names it
    "erase:segment",  # the manifest names it instead of the old segment
    "erase:stored",  # the entries are gone from all stored data; old bytes remain in the files
    "scrub:journal-clean",  # the journal is clean and a checkpoint is made
    "scrub:page",  # the free space of one page is overwritten
    "scrub:pages-clear",  # the free space of all pages is overwritten
    "scrub:free",  # one run of free pages is overwritten
    "scrub:free-clear",  # all free pages are overwritten
    "scrub:synced",  # the overwritten pages are on disk
    "backup:segment",  # one segment is copied
    "backup:data",  # the data file is copied, with the next epoch
    "backup:copied",  # everything is copied
    "backup:checked",  # the copy is checked and sound
    "backup:exchanged",  # the backup has its name; the earlier backup still exists
    "backup:aside",  # the earlier backup is moved away; the system cannot exchange names
    "backup:named",  # the backup has its name
    "copy:written",  # a compacted copy of the data file is written, with the old epoch
    "compact:prepared",  # the compacted store is complete beside the old one
    "compact:ready",  # the compaction is decided: the compacted store will replace the old one
    "compact:journal-gone",  # the old journal is removed
    "compact:journal-moved",  # the new journal is in place
    "compact:data-moved",  # the new data file is in place
    "compact:slots-written",  # the new checkpoints are in place
    "compact:done",  # only an empty folder remains to be removed
    "recover:point-safe",  # the checkpoint to go back to is on disk
    "recover:meta-written",  # one of LMDB's meta pages is restored
    "recover:meta-restored",  # both meta pages are restored
    "recover:batch",  # a part of the journal is replayed
    "recover:epoch-raised",  # all of the journal is replayed and the epoch is raised
    "recover:replayed",  # LMDB is closed again
    "segment:begun",  # a segment is being written under a temporary name
    "segment:written",  # the segment is complete, not synced
    "segment:synced",  # the segment is on disk under its temporary name
    "segment:renamed",  # the segment has its name, which may not be on disk
    "segment:named",  # the segment and its name are on disk; no row names it
    "adopt:copied",  # an adopted file is in place; no row names it
    "adopt:named",  # the row of the adopted file is written
    "drop:step",  # some segments left the manifest; their files are garbage
    "restore:step",  # a part of a restore and its progress are committed
    "garbage:synced",  # no commit that names the files can return
    "garbage:removed",  # the files are removed; their garbage rows still exist
    "sink:staged",  # Spark's tasks have written; the store is unchanged
    "sink:applied",  # the batch and its number are in the transaction
    "sink:committed",  # the batch is committed; Spark does not know yet
    "stage:written",  # a task has written a staged file; Spark does not know yet
    "restore:staged",  # all tasks of a restore have written; the target is unchanged
    "lake:file-written",  # a file of a lake is complete under a temporary name
    "lake:file-named",  # the file has its name; no commit names it
    "lake:made",  # a lake without entries exists
    "lake:commit",  # all files of a job exist; the log is unchanged
    "lake:committed",  # the log names the files
    "lake:noted",  # the files of an erasure from a lake name what is erased; no commit names them
    "lake:swept",  # files that no commit names are removed
    "fleet:positions",  # the new positions of a fleet's stores are files; no commit names them
    "fleet:committed",  # the log names files and positions; the old positions remain
    "tail:batch",  # a batch for a table is made
    "tail:committed",  # the table has the batch; Spark does not know yet
    "archive:written",  # a segment is on disk; the manifest and the retired rows are unchanged
    "publish:segment",  # a segment is in the object store; nothing names it there
    "publish:sealed",  # the same for a copy of live entries
    "publish:uploaded",  # all new segments are in the object store and verified
    "publish:manifest",  # the manifest is there; the head names the one before
    "publish:noted",  # the version of the next head is committed; it is not written yet
    "publish:head",  # the head names the new manifest; the local copies remain
    "publish:local-removed",  # segments that the new manifest names are no longer on the disk
    "publish:objects-removed",  # objects that no manifest names are gone
    "ship:piece",  # the slot says where the next piece ends; it is not written yet
    "ship:sent",  # it is; the slot does not say so
    "ship:segment",  # a segment is at the target; no generation needs it yet
    "ship:rows",  # the changed rows are written
    "ship:base",  # a base is whole; the head does not name its generation
    "ship:head",  # the head names a new generation; the slot and the one before do not know
    "ship:ended",  # the one before is ended
    "ship:dropped",  # the head no longer names old generations; their objects are there
    "ship-restore:rows",  # the rows of a piece are in the new store
    "ship-restore:piece",  # the records of a piece are
    "ship-restore:segment",  # a segment is
    "ship-restore:written",  # all is; it has no checkpoint yet
    "ship-restore:named",  # the store has its name
    "standby:written",  # LMDB has some commits; they are not published yet
    "standby:committed",  # LMDB has some commits; files that they outdate are still there
    "standby:applied",  # some commits of a piece are in the standby
    "standby:noted",  # the copy is noted as its own; it is not promoted yet
    "archive:committed",  # its row is written; its retired rows are removed
)
