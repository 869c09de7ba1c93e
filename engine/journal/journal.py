"""The journal files: records are appended under the write lock, and synced together without it.

Once the record is written (`shared_file`), the kernel has it, and it survives the process. A commit
is made as soon as its number is published in the control file. A caller that needs the commit on
disk waits for a sync that covers it (`syncs`).

A writer that is killed between the record and its publication leaves a record that no caller was
told of. The next writer overwrites it, or the next process that opens the store alone replays it.

A file has FILE_SIZE bytes, reserved on disk before the first record is written; the first file of a
store is smaller. When a file is full, the next one begins, in a recycled file if there is one.
Files before the newest checkpoint are no longer needed.
"""

from __future__ import annotations

import os
from typing import Final

from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.follower import Follower
from streamkeep.engine.journal.journal_files import (
    RECYCLED,
    begin_file,
    prepare_recycled,
    retire_file,
    wipe_file,
    wipe_recycled,
)
from streamkeep.engine.journal.reader import (
    END,
    file_name,
    highest_number,
    journal_names,
    named_number,
)
from streamkeep.engine.journal.syncs import Syncs, sync_failed
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import SharedFile
from streamkeep.format.core.errors import StoreError
from streamkeep.format.journal.journal import (
    RECORD_HEADER,
    FileHeader,
    encode_record,
    first_chain,
    record_checksum,
)
from streamkeep.format.journal.position import LogPosition, encode_position

FILE_SIZE: Final = 16 << 20
_FIRST_SIZE: Final = 1 << 20


class Journal:
    """The journal of an open store."""

    def __init__(self, folder: Folder, control: ControlFile, store_uuid: bytes, epoch: int) -> None:
        self.folder = folder
        self.store_uuid = store_uuid
        self.epoch = epoch
        self.control = control
        self.syncs = Syncs(folder, control)
        self.file_size = FILE_SIZE
        self.first_size = _FIRST_SIZE
        self.log = Follower(folder, self)  # where the next record goes
        self.first: LogPosition | None = None  # the start of the file that a checkpoint began
        self._file: SharedFile | None = None  # the file that is written
        self._handle = -1  # of that file
        self._opened = 0  # its number
        self._room = 0  # where its last record must end
        self._next_offset = 0
        self._next_chain = 0
        self._written = 0, 0  # file and offset of the last record that was written
        self._begun_from = self.position()  # where the next record went, when a file was begun
        self._clean = False  # the next record must go into a file that was never used

    def close(self) -> None:
        """Close the files, except the control file."""
        self._close_file()
        self.log.close()
        if self.syncs.close():
            self.folder.close()

    def abandon(self) -> None:
        """Close the files in a forked child, which must neither write to them nor hold locks."""
        self._close_file()
        self.log.close()
        self.syncs.abandon()
        self.folder.close()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            os.close(self._handle)
        self._opened = 0

    # --- append, under the write lock -------------------------------------------------------

    def is_usable(self) -> bool:
        """Return whether a journal file is in use; otherwise a checkpoint must begin one."""
        return self.log.number > 0 and self.control.file_number() > 0

    def commit_number(self) -> int:
        """Return the number of the newest commit that this process knows."""
        return self.log.commit_number

    def row(self) -> bytes:
        """Return the row of the log position after the newest commit that this process knows."""
        log = self.log
        return encode_position(log.number, log.offset, log.chain, log.commit_number)

    def begin_first_file(self) -> LogPosition:
        """Begin a file after the newest commit, for a checkpoint.

        No process writes to that file before `use_from`: its records count only after a checkpoint.
        """
        # Files may have been removed by hand: others look for a later one than they know.
        number = max(highest_number(self.folder), self.log.number) + 1
        self._begin_file(number, self.first_size, 0)
        self.reopen()
        return self.position()

    def use_from(self, position: LogPosition) -> None:
        """Let records follow a position, after a checkpoint was made there."""
        if position.file_number > self.control.file_number():  # it was begun for the checkpoint
            self.control.publish(position.commit_number)
            self.control.set_file(position.file_number)

    def begin_clean_file(self) -> None:
        """Write the record of this transaction to a new file that never held other bytes.

        The caller holds the write lock. Every other process sees the erasure before it writes.
        """
        self.control.count_erasure()
        self._clean = True

    def position(self) -> LogPosition:
        """Return the log position after the newest commit that this process knows."""
        return self.log.position()

    def append(self, body: bytes, durable: bool = False) -> None:
        """Write the record of the next commit.

        Args:
            durable: a caller will wait for the record. The disk begins to write it at once, which
                makes the sync cheaper, even if nothing is done in between.

        Raises:
            StoreFullError: there is no room; nothing was written.
        """
        log, control = self.log, self.control
        if self._opened != log.number:
            control.check_not_moved()
            try:
                self._open_file(log.number)
            except OSError as error:
                raise translate_os(error) from error
        size = RECORD_HEADER.size + len(body)
        # A higher file was begun for a commit that failed. Syncs may already begin with that file.
        # It is begun again: every process finds its next record in the file of the last commit, or
        # as the first one of the file that follows.
        skipped = control.file_number() > log.number
        if log.offset + size > self._room or self._clean or skipped:
            if self._clean:
                try:
                    wipe_recycled(self.folder)
                except OSError as error:
                    raise translate_os(error) from error
            # A killed writer may have left a record here, which a reader would follow.
            self._write(log.offset, END)
            self._begun_from = log.position()
            self._begin_file(log.number + 1, self.file_size, size)
            self._clean = False
        chain = record_checksum(body, log.chain)
        self._written = log.number, log.offset
        try:
            self._write(log.offset, encode_record(body, chain))
        except StoreError:
            self._written = 0, 0  # it is not whole
            raise
        self._next_offset = log.offset + size
        self._next_chain = chain
        if durable:
            files.begin_writing(self._handle, log.offset, size)
        if control.file_number() != log.number:
            control.set_file(log.number)

    def _write(self, offset: int, data: bytes) -> None:
        """Write bytes to the open file; raise StoreFullError if there is no room."""
        assert self._file is not None
        try:
            self._file.write(offset, data)
        except OSError as error:
            raise translate_os(error) from error

    def publish(self) -> None:
        """Make the commit whose record was just written.

        Raises:
            StoreFullError: there is no room; the commit is not made.
        """
        self.control.publish(self.log.commit_number + 1)

    def advance(self) -> None:
        """Move the position after the record that was just written: its commit is made."""
        log = self.log
        log.go_to(log.number, self._next_offset, self._next_chain, log.commit_number + 1)

    def cut(self) -> None:
        """Remove the record that was just written, if any was: its commit has failed.

        A file that was begun for it is never used: another process may begin it again for the next
        commit, which may fail as well.

        Raises:
            RecoveryNeededError: the record could not be removed. A recovery would make the commit
                although its caller got an error, so no process may go on as if it were gone.
        """
        number, offset = self._written
        try:
            if (number, offset) >= (self.log.number, self.log.offset):
                if self._opened != number:
                    self._open_file(number)
                self._write(offset, END)
        except FileNotFoundError:
            pass  # the store was deleted
        except (OSError, StoreError) as error:
            self.control.poison()
            raise sync_failed() from error
        finally:
            if self._begun_from.commit_number == self.log.commit_number:
                self.log.go_to(*self._begun_from)
            self.reopen()

    def reopen(self) -> None:
        """Open the file again for the next record: another process may have begun it again."""
        self._opened = 0

    def _begin_file(self, number: int, usual: int, size: int) -> None:
        """Begin a file after the newest commit, with room for a record of `size` bytes."""
        salt = int.from_bytes(os.urandom(8), "big")
        commit_number = self.log.commit_number
        header = FileHeader(self.epoch, number, commit_number + 1, salt, self.store_uuid)
        data = header.encode()
        try:
            self.control.check_not_moved()
            begin_file(self.folder, number, data, usual, size)
            self.control.count_begun()
            self._open_file(number)
        except OSError as error:
            raise translate_os(error) from error
        self.log.go_to(number, len(data), first_chain(data), commit_number)
        failpoints.hit("journal:new-file")

    def _open_file(self, number: int) -> None:
        handle = self.folder.open(file_name(number), os.O_RDWR)
        try:
            opened = SharedFile(handle)
        except BaseException:
            os.close(handle)
            raise
        if self._file is not None:
            self._file.close()
            os.close(self._handle)
        self._file = opened
        self._handle = handle
        self._opened = number
        self._room = len(opened.data) - len(END)

    # --- files ------------------------------------------------------------------------------

    def prepare_recycled(self) -> None:
        """Prepare a file for later; it is also a reserve of space for a full disk."""
        if self.log.offset < self.file_size // 4 or self.folder.exists(RECYCLED):
            return
        self.control.check_not_moved()
        prepare_recycled(self.folder, self.file_size, fill=self.syncs.used)
        self.syncs.used = False

    def drop_recycled(self) -> bool:
        """Remove the recycled file to make room on a full disk; return whether there was one."""
        return self.folder.remove(RECYCLED)

    def retire_before(self, position: LogPosition, *, wipe: bool = False) -> None:
        """Retire the files before a position, after a checkpoint was made there.

        Args:
            wipe: overwrite and remove these files, and recycle none of them.
        """
        self.syncs.note_checkpoint(position.file_number, position.commit_number)
        # By name: a file that is just being begun may still have the header of its former use.
        for name in journal_names(self.folder):
            if named_number(name) < position.file_number:
                failpoints.hit("journal:retire")
                if wipe:
                    wipe_file(self.folder, name)
                else:
                    retire_file(self.folder, name, self.file_size)
        if wipe:
            self.folder.sync()
