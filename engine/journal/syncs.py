"""The syncs of one process: its callers wait here until their commits are on disk.

Callers that wait at the same time share a sync. Among the threads of a process one takes the lock,
and among processes one is the leader.

While no other process has the store open there is no leader to agree on. If one opens it at that
moment, both may sync, which is needless and harmless: what either publishes is true.

Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Final

from streamkeep.engine.journal.control_file import JOURNAL_SYNC, ControlFile
from streamkeep.engine.journal.reader import file_name
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

LOCK_FILE: Final = "sync"
_LOOK_S: Final = 0.02  # how soon it is seen that a leader was killed
_PATIENCE_S: Final = 0.5  # of who waits for a leader; most syncs take a hundredth of that
_ANY: Final = (1 << 62) - 1  # above every commit number
_flock: Final = fcntl.flock
_TRY: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN


class SyncLeader:
    """The lock of a store's syncs; one thread of a process may use it at a time.

    While a process syncs, others commit, and sleep. At its end it wakes the first of them. That one
    takes the lock, syncs everything that is committed by then, and publishes that in the control
    file. The others get the lock after it, find their commits on disk, and leave at once.

    The system releases the lock when a process dies, and sleepers look for that. A process that is
    stopped keeps it. So nobody waits for long: two syncs at once do no harm.

    Attributes:
        patience_s: how long a caller waits for a leader.
    """

    def __init__(self, folder: Folder, control: ControlFile) -> None:
        """Open or create the lock file, which is never written."""
        self.control = control
        self.patience_s = _PATIENCE_S
        self._beside = False  # the lock was taken for longer than that
        self._handle = folder.open(LOCK_FILE, os.O_RDWR | os.O_CREAT)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def lead(self, commit_number: int = _ANY) -> bool:
        """Wait until a commit is on disk or the caller leads.

        Returns:
            Whether the caller leads, until `end`; False if the commit is on disk.
        """
        control = self.control
        until = time.monotonic() + self.patience_s
        while True:
            ended = control.sync_ended()  # before the try: a leader that goes after it changes this
            if self.try_lead():
                break
            if self._beside or time.monotonic() > until:
                self._beside = True
                break
            control.await_sync(ended, _LOOK_S)
        leads = control.durable() < commit_number
        if not leads:
            self.end()
        return leads

    def try_lead(self) -> bool:
        """Lead if no process does; return whether the caller leads, until `end`."""
        try:
            _flock(self._handle, _TRY)
        except BlockingIOError:
            return False
        self._beside = False
        return True

    def end(self) -> None:
        _flock(self._handle, _UNLOCK)
        self.control.end_sync()


class Syncs:
    """The syncs of an open journal; they need no write lock.

    Attributes:
        used: callers have waited for the disk since a file was prepared for them.
    """

    def __init__(self, folder: Folder, control: ControlFile) -> None:
        self.leader = SyncLeader(folder, control)
        self.used = False
        self._folder = folder
        self._control = control
        self._lock = OwnedLock("sync", "")
        self._awaited = -1  # the newest commit for which a caller has waited
        self._closed = False  # set under the lock
        self._handle = -1  # of the file that was synced last
        self._number = 0  # its number
        self._begun = -1  # how many files were begun when it was opened

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
        self.leader.close()

    def wait_for(self, commit_number: int) -> bool:
        """Return after the journal up to a commit is on disk; return False if it lacks the commit.

        Raises:
            RecoveryNeededError: this sync or an earlier one failed; commits since the last good
                sync may be lost.
            StoreClosedError: the store was closed in the meantime, without a sync.
            StoreError: this thread is in a sync.
        """
        if self._is_durable(commit_number):
            return True
        self.check_not_syncing()
        with self._lock:
            return self._sync(commit_number, True)

    def try_to(self, commit_number: int) -> bool:
        """As `wait_for`, unless another thread or process is syncing; return whether it is done."""
        if self._is_durable(commit_number):
            return True
        if not self._lock.acquire(wait=False):
            return False
        try:
            return self._sync(commit_number, False)
        finally:
            self._lock.release()

    def note_checkpoint(self, file_number: int, commit_number: int) -> None:
        """Publish that everything up to a commit is on disk, in the data file.

        Args:
            file_number: the first journal file that may not be on disk.
        """
        control = self._control
        with self._lock:
            try:  # an interrupt may come before `lead` has returned
                self.leader.lead()
                if control.durable() < commit_number:
                    control.set_durable(file_number, commit_number)
            finally:
                self.leader.end()

    def _is_durable(self, commit_number: int) -> bool:
        """Note that a caller waits for a commit; return whether it is on disk already."""
        self.used = True
        if self._awaited < commit_number:
            self._awaited = commit_number
        return self._control.durable() >= commit_number

    def _sync(self, commit_number: int, wait: bool) -> bool:
        """Return whether a commit is on disk, after a sync if this process leads; hold the lock."""
        control, leader = self._control, self.leader
        shared = not self._closed and control.is_shared()
        leads = True
        try:  # an interrupt may come before `lead` has returned
            if shared:
                leads = leader.lead(commit_number) if wait else leader.try_lead()
                if not leads:
                    return wait
            return control.durable() >= commit_number or self._sync_files(commit_number)
        finally:
            if shared and leads:
                leader.end()

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
        newest = control.to_sync(commit_number)
        if newest is None:
            return False
        last, made = newest
        first = control.durable_file()
        doubtful = control.is_syncing(JOURNAL_SYNC)
        mark = control.begin_sync(JOURNAL_SYNC)
        try:
            failpoints.hit("journal:sync")
            for number in range(first, last + 1):
                self._sync_file(number, mark, doubtful)
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
        control.finish_sync(JOURNAL_SYNC, mark)
        control.set_durable(last, made)
        return True

    def sync_names(self) -> None:
        """Return after the names of the journal's files are on disk, for all processes."""
        begun = self._control.begun()  # first: a file that is begun in the meantime counts as new
        self._folder.sync()
        self._control.set_named(begun)

    def _sync_file(self, number: int, mark: int, doubtful: bool) -> None:
        """Sync a file.

        Args:
            mark: that of this sync.
            doubtful: one before it has not ended.
        """
        # A process may have begun the file again, after a commit that failed. To ask the system
        # whether the name is gone would cost 60 us: once its times were asked for, Linux has the
        # next record write them, too.
        begun = self._control.begun()
        is_new = self._number != number or self._begun != begun
        if is_new:
            try:
                handle = self._folder.open(file_name(number), os.O_RDWR)
            except FileNotFoundError:
                return  # a checkpoint covers it, and it was removed
            old, self._handle = self._handle, handle  # first: a fork may come after `close`
            if old >= 0:
                os.close(old)
            self._number = 0
            self._begun = begun
        files.sync_data(self._handle)
        if is_new:
            # The system tells an error once for each time that the file is open, and to no one who
            # opens it afterwards: so perhaps only to a process that was killed, or stopped, before
            # it could say so.
            if doubtful or self._control.newest_sync(JOURNAL_SYNC) != mark:
                self._folder.check_on_disk(file_name(number), self._handle)
            self._number = number  # not before: an interrupt may end the check

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
