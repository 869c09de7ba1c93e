"""The journal files: records are appended under the write lock, and synced together without it.

Once the record is written (`shared_file`), the kernel has it, and it survives the process. A commit
is made as soon as its number is published in the control file. A caller that needs the commit on
disk waits for a sync that covers it (`syncs`).

A writer that is killed between the record and its publication leaves a record that no caller was
told of. The next writer overwrites it, or the next process that opens the store alone replays it.

A file has FILE_SIZE bytes, reserved on disk before its first record is written. The first ones
after an opening that found none are smaller. When a file is full, the next one begins, in a
recycled file if there is one. Files before the newest checkpoint are no longer needed; one of them
becomes the recycled one. Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Final

from streamkeep.engine.journal import reader
from streamkeep.engine.journal.control_file import CONTROL_FILE, NEW_CONTROL_FILE, ControlFile
from streamkeep.engine.journal.slots import is_slot_name, read_slots
from streamkeep.engine.journal.syncs import Syncs, sync_failed
from streamkeep.engine.journal.write_lock import LOCK_FILE
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.system.shared_file import SharedFile
from streamkeep.format.core.errors import StoreError
from streamkeep.format.journal import journal as layout
from streamkeep.format.journal.position import LogPosition

FILE_SIZE: Final = 16 << 20
_FIRST_SIZE: Final = 1 << 20
_FILL_SIZE: Final = 1 << 16
_NONE: Final = 1 << 62  # no file has a number from here on
RECYCLED: Final = "spare"
_NEW: Final = "new"
RECYCLED_NAMES: Final = (RECYCLED, _NEW)

log = logging.getLogger("streamkeep")


def is_journal_name(name: str) -> bool:
    return (
        name in (CONTROL_FILE, NEW_CONTROL_FILE, RECYCLED, _NEW, LOCK_FILE)
        or reader.is_file_name(name)
        or is_slot_name(name)
    )


class Journal:
    """The journal of an open store."""

    def __init__(self, folder: Folder, control: ControlFile, store_uuid: bytes, epoch: int) -> None:
        self.folder = folder
        self.control = control
        self.file_size = FILE_SIZE
        self.first_size = _FIRST_SIZE
        # After the newest commit, where the next record goes, unless that needs another file.
        self.log = reader.Reader(folder, reader.Owner(epoch, store_uuid))
        self.syncs = Syncs(folder, control, self.log)
        self._file: SharedFile | None = None  # the file that is written
        self._handle = -1  # of that file
        self._opened = -1  # its number
        self._room = 0  # where its last record must end
        self._filled = 0  # up to where its blocks have been written, as far as this process knows
        self._next_offset = 0
        self._next_chain = 0
        self._written = 0, 0  # file and offset of the last record that was written
        self._clean = False  # the next record must go into a file that was never used

    def raise_epoch(self) -> None:
        """Begin the next epoch: files of this one count no more, neither to write nor to read."""
        owner = self.log.owner
        self.log.owner = reader.Owner(owner.epoch + 1, owner.store_uuid)

    def close(self) -> None:
        """Close the files, except the control file."""
        self._close_file()
        self.log.close()
        self.syncs.close()
        self.folder.close()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
        self._opened = -1

    # --- append, under the write lock -------------------------------------------------------

    def begin_clean_file(self) -> None:
        """Write the record of this transaction to a new file that never held other bytes.

        The caller holds the write lock. Every other process sees the erasure before it writes.
        """
        self.control.count_erasure()
        self._clean = True

    def append(self, body: bytes, durable: bool = False, frees: bool = False) -> None:
        """Write the record of the next commit.

        Args:
            frees: the commit makes room, so it may use what a full disk has for that.
            durable: a caller will wait for the record. Then it is not written through the map: a
                sync makes that read-only, and the next write to it would be a page fault, a
                seventh of the processor time of an `xadd`.

        Raises:
            StoreFullError: there is no room; nothing was written that counts.
        """
        log, control = self.log, self.control
        first = control.file_number() == 0  # no file is in use: a checkpoint has all commits
        if self._opened != log.number and not first:
            control.check_not_moved()
            self._open_file(log.number)
        size = layout.RECORD_HEADER.size + len(body)
        # A higher file was begun for a commit that failed. Syncs may already begin with that file.
        # It is begun again: every process finds its next record in the file of the last commit, or
        # as the first one of the file that follows.
        skipped = control.file_number() > log.number
        number, offset, chain = log.number, log.offset, log.chain
        if offset + size > self._room or self._clean or skipped or first:
            if self._room and not first:
                # A killed writer may have left a record here, which a reader would follow.
                self._write(offset, reader.END)
            number, offset, chain = self._begin_file(size, first, frees)
            self._clean = False
        chain = layout.record_checksum(body, chain)
        self._written = number, offset
        try:
            self._write(offset, layout.encode_record(body, chain), through_map=not durable)
        except StoreError:
            self._written = 0, 0  # it is not whole
            raise
        self._next_offset = offset + size
        self._next_chain = chain
        if control.file_number() != number:
            control.set_file(number)

    def begin_writing(self) -> None:
        """Have the disk begin to write the record that was just written, for which a caller waits.

        This makes the sync cheaper, even if nothing is done in between.
        """
        offset = self._written[1]
        size = self._next_offset - offset
        if self._next_offset > self._filled and size < _FILL_SIZE // 2:
            self._fill(self._next_offset)
        files.begin_writing(self._handle, offset, size)

    def _write(self, offset: int, data: bytes, *, through_map: bool = True) -> None:
        """Write bytes to the open file; raise StoreFullError if there is no room."""
        assert self._file is not None
        try:
            self._file.write(offset, data, through_map=through_map)
        except OSError as error:
            raise translate_os(error) from error

    def _fill(self, offset: int) -> None:
        """Write zeros where the next records go, unless the blocks there have been written before.

        The first write to a reserved block makes its sync also write the file's block map. This way
        one sync in 300 does so, and not one in 20. To fill a whole file would make all syncs of
        that moment wait for 0.1 s.
        """
        end = self._room + len(reader.END)
        try:
            # What was only read counts as written as long as it is in memory.
            files.begin_writing(self._handle, offset, end - offset)
            hole = os.lseek(self._handle, offset, os.SEEK_HOLE)
            self._filled = hole
            if hole < offset + files.PAGE:
                start = -(-offset // files.PAGE) * files.PAGE
                self._filled = min(start + _FILL_SIZE, end)
                # Page by page: the kernel keeps large writes as large folios, too.
                files.write_zeros(self._handle, start, self._filled - start, files.PAGE)
        except OSError:  # it is only slower
            self._filled = end

    def advance(self) -> None:
        """Move the position after the record that was just written: its commit is made."""
        log = self.log
        log.go_to(self._written[0], self._next_offset, self._next_chain, log.commit_number + 1)

    def cut(self) -> None:
        """Remove the record that was just written, if any was: its commit has failed.

        A file that was begun for it is begun again for the next commit, by any process.

        Raises:
            RecoveryNeededError: the record could not be removed. A recovery would make the commit
                although its caller got an error, so no process may go on as if it were gone.
        """
        number, offset = self._written
        try:
            if number and (number, offset) >= (self.log.number, self.log.offset):
                if self._opened != number:
                    self._open_file(number)
                if self._file is not None:  # otherwise the store was deleted
                    try:
                        self._file.overwrite(offset, reader.END)
                    except OSError:
                        self.drop_recycled()
                        self._file.overwrite(offset, reader.END)
                self._written = 0, 0  # the next commit may fail before it has a record
        except (OSError, StoreError) as error:
            self.control.poison()
            raise sync_failed() from error
        finally:
            self.reopen()

    def reopen(self) -> None:
        """Open the file again for the next record: another process may have begun it again."""
        self._opened = -1

    def _begin_file(self, size: int, first: bool, frees: bool) -> tuple[int, int, int]:
        """Begin the next file; return its number, the place of its first record, and the chain."""
        log, control = self.log, self.control
        number = max(log.number + 1, control.file_number())  # a higher one is begun again
        try:
            if first:  # also one that a killed writer has begun
                for name in reader.journal_names(self.folder):
                    start = log.start_of(name)
                    if start is None or start.commit_number != log.commit_number:
                        number = max(number, reader.named_number(name) + 1)
                control.set_durable(number, 0, control.durable())
            salt = int.from_bytes(os.urandom(8), "big")
            owner, first_commit = log.owner, log.commit_number + 1
            data = layout.FileHeader(
                owner.epoch, number, first_commit, salt, owner.store_uuid
            ).encode()
            control.check_not_moved()
            begun = reader.file_name(number)  # in vain, if it is there
            if self._clean:  # a new file could reuse these, which hold old records
                for name in (*RECYCLED_NAMES, begun):
                    self._wipe(name)
            elif not self.folder.size(RECYCLED):  # it may be all that a full disk has for deletions
                with contextlib.suppress(FileNotFoundError):
                    self.folder.rename(begun, RECYCLED)
            self._make_file(data, size, first, frees)
            # Named only with its header: by an old one, another process would retire the file.
            self.folder.rename(_NEW, begun)
            control.count_begun()
        except OSError as error:
            raise translate_os(error) from error
        self._open_file(number)
        failpoints.hit("journal:new-file")
        return number, len(data), layout.first_chain(data)

    def _make_file(self, header: bytes, size: int, first: bool, frees: bool) -> None:
        """Write the header of a file without its name, in the recycled file if there is one."""
        least = len(header) + size + len(reader.END)
        # A store of a few thousand commits should not take 16 MiB.
        most = self.first_size if first else 2 * max(self._room, self.first_size)
        recycled = self.folder.size(RECYCLED)
        try:
            if first and not recycled:  # for deletions, until a file is retired
                self._fill_new(b"", most, False)
                self.folder.rename(_NEW, RECYCLED)
            whole = max(min(most, self.file_size), least)
            self._fill_new(header, whole, whole <= recycled == self.file_size)
        except OSError:  # the disk is nearly full: the record itself may fit
            self._fill_new(header, least, frees and recycled >= least)

    def _fill_new(self, header: bytes, size: int, recycled: bool) -> None:
        """Reserve a file without a name, and write its header.

        Args:
            recycled: take the recycled file, if there is one.
        """
        if recycled:
            with contextlib.suppress(FileNotFoundError):
                self.folder.rename(RECYCLED, _NEW)
        handle = self.folder.open(_NEW, os.O_RDWR | os.O_CREAT)
        failpoints.hit("journal:unnamed")
        try:
            files.reserve(handle, size)
            files.write_at(handle, header + reader.END, 0)
        except OSError:
            self.folder.remove(_NEW)
            raise
        finally:
            os.close(handle)

    def _open_file(self, number: int) -> None:
        """Open a file for writing; it has no room if it is gone."""
        self._close_file()
        self._opened, self._room, self._filled = number, 0, 0
        try:
            self._handle = self.folder.open(reader.file_name(number), os.O_RDWR)
            self._file = SharedFile(self._handle)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate_os(error) from error
        self._room = len(self._file.data) - len(reader.END)

    # --- files ------------------------------------------------------------------------------

    def drop_recycled(self) -> bool:
        """Remove the recycled file to make room on a full disk; return whether there was one."""
        return self.folder.remove(RECYCLED)

    def retire_before(self, position: LogPosition, *, wipe: bool = False) -> None:
        """Retire the files before a position, after a checkpoint was made there.

        Args:
            wipe: overwrite and remove these files, recycle none of them, and hold none for a copy.
        """
        self.control.set_durable(
            position.file_number, position.offset, position.commit_number
        )  # it is in the data file
        held = _NONE if wipe else self._held()
        # By name: a file that is just being begun may still have the header of its former use.
        for name in reader.journal_names(self.folder):
            old = reader.named_number(name) < position.file_number
            if position.file_number == 0:  # no file was in use
                start = self.log.start_of(name)
                old = start is None or start.commit_number < position.commit_number
            if old and reader.named_number(name) < held:
                failpoints.hit("journal:retire")
                if wipe:
                    self._wipe(name)
                # A smaller one than most is only what a full disk has for deletions (`_make_file`):
                # who reads it may be behind, as one who feeds replicas. A larger one gives way.
                elif self.folder.size(name) >= min(self.folder.size(RECYCLED), self.file_size):
                    try:
                        self.folder.rename(name, RECYCLED)
                    except OSError:  # a full XFS may have no block for a new name; or it is gone
                        self.folder.remove(name)
                else:
                    self.folder.remove(name)
        if wipe:
            self.folder.sync()

    def _held(self) -> int:
        """Return the first journal file that a copy of the store needs and may hold."""
        held = _NONE
        for slot in read_slots(self.folder, feeds=True):
            if slot.position.commit_number < 0:
                continue  # its copy begins anew in any case
            needed = slot.position.file_number
            names = [
                name
                for name in reader.journal_names(self.folder)
                if reader.named_number(name) >= needed
            ]
            size = sum(self.folder.size(name) for name in names)
            # A full disk stops the store; a copy that has to begin anew is only slow.
            disk = os.fstatvfs(self.folder.handle)
            most = min(slot.hold_bytes, disk.f_bavail * disk.f_frsize)
            if size <= most:
                held = min(held, needed)
            else:
                log.warning(
                    "%s: %s would hold %d bytes of journal files, and may hold %d; it will have to "
                    "begin anew",
                    self.folder.path,
                    slot.target,
                    size,
                    most,
                )
        return held

    def _wipe(self, name: str) -> None:
        """Overwrite a file with zeros on disk, then remove it.

        The old bytes are gone only if the file system overwrites in place. Another process that has
        the file mapped reads zeros.
        """
        try:
            handle = self.folder.open(name, os.O_WRONLY)
        except FileNotFoundError:
            return
        try:
            files.write_zeros(handle, 0, os.fstat(handle).st_size)
            files.sync_data(handle)
        finally:
            os.close(handle)
        self.folder.remove(name)
