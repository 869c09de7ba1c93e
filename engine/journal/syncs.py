"""The syncs of one process: its callers wait here until their commits are on disk.

Threads of a process that wait at the same time share a sync. Processes do not agree on who syncs:
the disk takes the syncs of all at once. With a leader among four, whom the others waited for, they
made half of the commits, since each was woken after the sync of another one. What each process
publishes is true, and who finds its commit on disk does not sync.

Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import os

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.reader import Reader, file_name
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import NO_DESCRIPTORS, translate_os
from streamkeep.engine.system.long_wait import IN_HANDLER, OwnedLock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import (
    RecoveryNeededError,
    StoreClosedError,
    StoreError,
    StreamkeepError,
)


class Syncs:
    """The syncs of an open journal; they need no write lock."""

    def __init__(self, folder: Folder, control: ControlFile, log: Reader) -> None:
        self._folder = folder
        self._control = control
        self._log = log  # where the newest commit ends that this process knows
        self._lock = OwnedLock("sync", "")
        self._awaited = -1  # the newest commit for which a caller has waited
        self._closed = False  # set under the lock
        self._handle = -1  # of the file that was synced last
        self._number = 0  # its number
        self._begun = -1  # how many files were begun when it was opened
        self._doubted = -1  # up to this commit, records may have been written before that

    def close(self) -> None:
        """Close the files; commits for which threads still wait are on disk then."""
        with self._lock:
            try:
                with contextlib.suppress(StreamkeepError):  # each of these threads gets the error
                    if self._control.durable() < self._awaited:
                        self._sync_files(self._awaited)
            finally:
                self._close_files()

    def check_not_syncing(self) -> None:
        """Raise StoreError if this thread is in a sync: a signal handler would wait for it."""
        if self._lock.is_mine():
            raise StoreError(
                "this thread is in a call that waits for the disk, which a signal has interrupted; "
                f"next: {IN_HANDLER}"
            )

    def abandon(self) -> None:
        """Close the files in a forked child, which must not hold locks of its parent."""
        self._close_files()
        self._lock = OwnedLock("sync", "")

    def _close_files(self) -> None:
        self._closed = True
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def wait_for(self, commit_number: int, patient: bool = True) -> bool:
        """Return after the journal up to a commit is on disk; return False if it lacks the commit.

        Args:
            patient: otherwise, it also returns False if another thread is syncing.

        Raises:
            RecoveryNeededError: this sync or an earlier one failed; commits since the last good
                sync may be lost.
            StoreClosedError: the store was closed in the meantime, without a sync.
            StoreError: this thread is in a sync.
        """
        control = self._control
        if self._awaited < commit_number:
            self._awaited = commit_number
        if control.durable() >= commit_number:
            return True
        if patient:
            self.check_not_syncing()
        if not self._lock.acquire(wait=patient):
            return False
        try:
            return control.durable() >= commit_number or self._sync_files(commit_number)
        finally:
            self._lock.release()

    def _sync_files(self, commit_number: int) -> bool:
        """Sync every file that was written since the last sync, at least up to a commit."""
        control = self._control
        self.check()
        if self._closed:
            raise StoreClosedError(
                "the store was closed while this call waited for the disk: its change is "
                "committed, and a power cut may still undo it; next: open the store again"
            )
        control.check_not_moved()
        number, offset, made = self._newest(commit_number)
        if not number:
            return False  # no file is in use
        first, start = control.durable_place()
        try:
            failpoints.hit("journal:sync")
            for one in range(first, number + 1):
                begin, end = start if one == first else 0, offset if one == number else 0
                self._sync_file(one, begin, end, made)
            if control.named() != control.begun():
                self.sync_names()
            failpoints.hit("journal:synced")
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise StoreError(
                    "the change is committed and cannot be synced: too many files are open "
                    f"({error}); next: close some, or raise the limit (ulimit -n), then call `sync`"
                ) from error
            raise self.fail(error) from error
        self.check()  # the system tells each error once: another process may have got this one
        control.set_durable(number, offset, made)
        return True

    def _newest(self, commit_number: int) -> tuple[int, int, int]:
        """Return what to sync: file and offset where a commit ends, and the number of that commit.

        It is the newest commit that this process knows. If that is not the one that a caller waits
        for, the offset is 0, since it is not known.
        """
        log, control = self._log, self._control
        made = log.commit_number  # first: another thread may move the log, the commit as the last
        number, offset = log.number, log.offset
        if made >= commit_number and number == log.number:
            return number, offset, made
        made = max(commit_number, control.newest())
        return control.file_number(), 0, made  # after the commits: none is in a higher file

    def sync_names(self) -> None:
        """Return after the names of the journal's files are on disk, for all processes."""
        begun = self._control.begun()  # first: a file that is begun in the meantime counts as new
        self._folder.sync()
        self._control.set_named(begun)

    def _sync_file(self, number: int, start: int, end: int, made: int) -> None:
        """Sync a file.

        Args:
            start: where what may not be on disk begins.
            end: where it ends; 0 if that is not known.
            made: the newest commit before the end.
        """
        # A process may have begun the file again, after a commit that failed. To ask the system
        # whether the name is gone would cost 60 us: once its times were asked for, Linux has the
        # next record write them, too.
        control = self._control
        begun = control.begun()
        if self._number != number or self._begun != begun:
            try:
                handle = self._folder.open(file_name(number), os.O_RDWR)
            except FileNotFoundError:
                return  # a checkpoint covers it, and it was removed
            old, self._handle = self._handle, handle  # first: a fork may come after `close`
            if old >= 0:
                os.close(old)
            # One writer may have begun a record that it had not published yet.
            self._doubted = control.newest() + 1
            self._number, self._begun = number, begun
        files.sync_data(self._handle)
        if self._doubted < 0:
            return
        # The system tells an error once for each time that the file is open, and to no one who
        # opens it afterwards: so perhaps only to a process that was killed, or stopped, before it
        # could say so. What was written before the file was opened here is in doubt.
        if control.was_shared():
            self._folder.check_on_disk(file_name(number), self._handle, start, end or None)
        if made >= self._doubted or not end:
            self._doubted = -1

    def fail(self, error: OSError) -> StreamkeepError:
        """Refuse all writes after an error of the system during a sync; return the exception.

        After a failed sync the state of the disk is unknown.
        """
        if error.errno in NO_DESCRIPTORS:  # the disk was not involved
            return translate_os(error)
        self._control.poison()
        return sync_failed()

    def check(self) -> None:
        if self._control.poisoned():
            raise sync_failed()


def sync_failed() -> RecoveryNeededError:
    return RecoveryNeededError(
        "writing to the disk has failed; next: check the disk, close the store in every process, "
        "and open it again, which recovers it"
    )
