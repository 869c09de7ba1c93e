"""The journal's files: append under the write lock, sync outside of it, together.

A commit in three steps, of which the first two hold the write lock:

1. the record is written into the mapped file, but not synced, and the place behind it is
   published (`journal_head`);
2. LMDB commits, unsynced;
3. whoever needs it on disk waits for a sync that covers it.

Callers that wait at the same time share syncs: one of them syncs, for a process by a lock and for
all processes in its turn (`turns`); the others find afterwards that their commit is on disk
already. (Syncs of one file at the same time take several times as long.) A record that somebody
will wait for is sent to the disk in step 1: the disk writes it while LMDB commits, and the sync
takes half as long.

A writer that was killed between 1 and 2 leaves a record of a commit that never was. The next
writer writes over it, since it has the same number, or cuts it before it begins another file. A
record whose LMDB commit failed is cut at once, by its own writer: its caller was told of the
failure.

A file has room for FILE_SIZE bytes, which the disk has granted before the first is written; the
first file of a store is smaller. When it is full the next begins, in the place of one that is no
longer needed, if there is such a file (`spare`). Files before the newest checkpoint are no longer
needed. Where there is time, a new file is filled with zeros, which spares one sync in ten the note
that its blocks are now in use.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from typing import Final

from streamkeep.engine.journal.control_file import CONTROL_FILE, ControlFile, LogPosition
from streamkeep.engine.journal.reader import (
    END,
    SUFFIX,
    file_name,
    highest_number,
    journal_names,
    named_number,
)
from streamkeep.engine.journal.sync_leader import TURN_FILE, SyncLeader
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import RecoveryNeededError, StoreError, StreamkeepError
from streamkeep.format.log.journal import (
    RECORD_HEADER,
    FileHeader,
    encode_record,
    first_chain,
    record_checksum,
)

FILE_SIZE: Final = 16 << 20
_FIRST_SIZE: Final = 1 << 20
_SPARE: Final = "spare"
NEW_RECYCLED: Final = "spare.new"  # and a random name, while it is made
_NEW: Final = "new"


class Journal:
    """The journal of an open store."""

    def __init__(self, folder: Folder, store_uuid: bytes, epoch: int) -> None:
        self.folder = folder
        self.store_uuid = store_uuid
        self.epoch = epoch
        self.control = ControlFile(folder)
        try:
            self.turns = SyncLeader(folder, self.control)
        except BaseException:
            self.control.close()
            raise
        self.file_size = FILE_SIZE
        self.first_size = _FIRST_SIZE
        # The place behind the newest commit, as far as this process knows.
        self._number = 0
        self._offset = 0
        self._chain = 0
        self._commit_number = -1
        self._begun: LogPosition | None = None  # the start of a file that does not serve yet
        self._map: mmap.mmap | None = None  # of the file with this number
        self._handle = -1  # of the same file
        self._mapped = 0
        self._room = 0
        self._next_offset = 0
        self._next_chain = 0
        self._sync_lock = threading.Lock()
        self._sync_handle = -1  # of the file with this number
        self._synced = 0
        self._clean = False  # the next record goes into a file that was never used

    def close(self) -> None:
        """Close the files."""
        self._close_files()
        self.control.close()
        self.folder.close()

    def abandon(self) -> None:
        """Close the files in a forked child, which must neither write to them nor hold locks."""
        self._close_files()
        self._sync_lock = threading.Lock()
        self.control.abandon()
        self.folder.close()

    def _close_files(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._handle)
        if self._sync_handle >= 0:
            os.close(self._sync_handle)
            self._sync_handle = -1
        self.turns.close()

    # --- append, under the write lock -------------------------------------------------------

    def locate(self, commit_number: int) -> bool:
        """Find the place behind the newest commit, which another process may have made.

        Returns:
            False when the journal does not hold it.
        """
        if self._commit_number == commit_number:
            return True
        number, offset, chain = self.control.parts_after(commit_number)
        if number == 0:
            return False
        self._number = number
        self._offset = offset
        self._chain = chain
        self._commit_number = commit_number
        return True

    def place_for_point(self, commit_number: int) -> LogPosition:
        """Return the place behind the newest commit, or in a new file behind it.

        Nobody writes to a new file before `serve`: what is in it counts only behind a checkpoint.
        """
        if not self.locate(commit_number):
            number = highest_number(self.folder) + 1
            self._begin_file(number, commit_number, self.first_size, 0)
            self._begun = self.position()
            self.forget()
            return self._begun
        return self.position()

    def serve(self, position: LogPosition) -> None:
        """A checkpoint was made at a place: from now on records may follow it."""
        if self._begun == position:
            self.control.set_made(position.commit_number)
            self.control.set_position(position)
            self._begun = None

    def go_on_clean(self) -> None:
        """Have the record of this transaction go into a file none of whose bytes were ever used.

        Under the write lock. Every other process that writes takes notice of the erasure first.
        """
        self.control.count_erasure()
        self._clean = True

    def position(self) -> LogPosition:
        """Return the place behind the newest commit that this process knows."""
        return LogPosition(self._number, self._offset, self._chain, self._commit_number)

    def _go_to(self, position: LogPosition) -> None:
        self._number, self._offset, self._chain, self._commit_number = position

    def append(self, body: bytes, durable: bool = False) -> None:
        """Write the record of the next commit, which LMDB has not made yet.

        Args:
            durable: somebody will wait for it: have the disk begin.

        Raises:
            StoreFullError: there is no room; nothing was written.
        """
        if self._mapped != self._number:
            self.control.check_there()
            try:
                self._map_file(self._number)
            except OSError as error:
                raise translate_os(error) from error
        size = RECORD_HEADER.size + len(body)
        if self._offset + size > self._room or self._clean:
            if self._clean:
                self._wipe_spares()
            # A writer that was killed may have left its record here, which a reader would follow.
            assert self._map is not None
            self._map[self._offset : self._offset + len(END)] = END
            self._begin_file(self._number + 1, self._commit_number, self.file_size, size)
            self._clean = False
        chain = record_checksum(body, self._chain)
        end = self._offset + size
        assert self._map is not None
        self._map[self._offset : end] = encode_record(body, chain)
        self._next_offset = end
        self._next_chain = chain
        if durable:
            files.begin_writing(self._handle, self._offset, size)
        self.control.publish(self._number, end, chain, self._commit_number + 1)

    def _wipe_spares(self) -> None:
        """Remove what a new file could be made of: it holds old records."""
        try:
            for name in (_SPARE, _NEW):
                wipe_file(self.folder, name)
        except OSError as error:
            raise translate_os(error) from error

    def advance(self) -> None:
        """Go behind the record that was appended: LMDB has made the commit."""
        self._offset = self._next_offset
        self._chain = self._next_chain
        self._commit_number += 1
        self.control.set_made(self._commit_number)

    def cut_behind(self, commit_number: int) -> None:
        """Remove what is behind the newest commit: a record, or a file that was begun for one."""
        with contextlib.suppress(OSError, StoreError):  # of a store that was deleted
            self.control.check_there()
            if self.locate(commit_number):
                if self._mapped != self._number:
                    self._map_file(self._number)
                assert self._map is not None
                self._map[self._offset : self._offset + len(END)] = END
                self.folder.remove(file_name(self._number + 1))

    def forget(self) -> None:
        """Look the place up again next time.

        A file that was begun for a commit that failed is not known to others, who may put another
        in its place.
        """
        self._mapped = 0
        self._commit_number = -1

    def _begin_file(self, number: int, commit_number: int, usual: int, size: int) -> None:
        """Begin a file behind a commit, with room for a record of `size` bytes.

        It gets its name when it has its header: by the old one, another process would take it for
        a file that is no longer needed.
        """
        salt = int.from_bytes(os.urandom(8), "big")
        header = FileHeader(self.epoch, number, commit_number + 1, salt, self.store_uuid)
        data = header.encode()
        least = len(data) + size + len(END)
        try:
            self.control.check_there()
            with contextlib.suppress(FileNotFoundError):
                self.folder.rename(_SPARE, _NEW)
            handle = self.folder.open(_NEW, os.O_RDWR | os.O_CREAT)
            failpoints.hit("journal:unnamed")
            try:
                new = os.fstat(handle).st_size == 0
                _reserve(handle, max(usual, least), least)
                if new and not size:  # else somebody waits with a record
                    files.fill(handle)
                files.write_at(handle, data + END, 0)
            except OSError:
                self.folder.remove(_NEW)
                raise
            finally:
                os.close(handle)
            self.folder.rename(_NEW, file_name(number))
            self._map_file(number)
        except OSError as error:
            raise translate_os(error) from error
        self._go_to(LogPosition(number, len(data), first_chain(data), commit_number))
        failpoints.hit("journal:new-file")

    def _map_file(self, number: int) -> None:
        try:
            handle = self.folder.open(file_name(number), os.O_RDWR)
            try:
                mapped = mmap.mmap(handle, 0)
            except BaseException:
                os.close(handle)
                raise
        except OSError as error:
            raise translate_os(error) from error
        if self._map is not None:
            self._map.close()
            os.close(self._handle)
        self._map = mapped
        self._handle = handle
        self._mapped = number
        self._room = len(mapped) - len(END)

    # --- sync, by anyone --------------------------------------------------------------------

    def sync(self, commit_number: int) -> bool:
        """Return when the journal up to a commit is on disk; False when it does not hold it.

        Raises:
            RecoveryNeededError: this sync or an earlier one failed; what was committed since the
                last good one may be lost.
        """
        control = self.control
        if control.durable() >= commit_number:
            return True
        with self._sync_lock:
            wave = self.turns.take(commit_number)
            if wave == 0:
                return True
            try:
                return self._sync_files(commit_number)
            finally:
                self.turns.give_back(wave)

    def _sync_files(self, commit_number: int) -> bool:
        """Sync every file that was written since the last time, up to a commit at least."""
        control = self.control
        self.check()
        control.check_there()
        newest = control.to_sync(commit_number)
        if newest is None:
            return False
        last, made = newest
        first = control.durable_file()
        try:
            failpoints.hit("journal:sync")
            for number in range(first, last + 1):
                self._sync_file(number)
            if first != last:
                self.folder.sync()
            failpoints.hit("journal:synced")
        except OSError as error:
            raise self.failed(error) from error
        control.set_durable(last, made)
        return True

    def _sync_file(self, number: int) -> None:
        if self._synced != number:
            try:
                handle = self.folder.open(file_name(number), os.O_RDWR)
            except FileNotFoundError:
                return  # no longer needed: a checkpoint covers it
            if self._sync_handle >= 0:
                os.close(self._sync_handle)
            self._sync_handle = handle
            self._synced = number
        files.sync_data(self._sync_handle)

    def failed(self, error: OSError) -> StreamkeepError:
        """Return what to raise after an error of the system, which may be that of a sync.

        Nothing was asked of the disk where there were no descriptors. After all else nobody knows
        what is on it.
        """
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return translate_os(error)
        self.control.poison()
        return sync_failed()

    def check(self) -> None:
        """Raise when a sync has failed, in this process or another."""
        if self.control.poisoned():
            raise sync_failed()

    # --- files ------------------------------------------------------------------------------

    def prepare_recycled(self) -> None:
        """Have a file ready for when the present one is full; also a reserve for a full disk."""
        if self._offset < self.file_size // 4 or self.folder.exists(_SPARE):
            return
        self.control.check_there()
        # Of its own: another process may be at it, too, and the first to be ready is used at once.
        name = f"{NEW_RECYCLED}.{os.urandom(8).hex()}"
        try:
            handle = self.folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                files.reserve(handle, self.file_size)
                files.fill(handle)
            finally:
                os.close(handle)
            failpoints.hit("journal:new-recycled")
            self.folder.rename(name, _SPARE)
        except OSError:
            self.folder.remove(
                name
            )  # the disk is nearly full; whoever needs a file takes a smaller one

    def drop_recycled(self) -> bool:
        """Remove the spare file, to make room on a full disk; say whether there was one."""
        return self.folder.remove(_SPARE)

    def covered(self, position: LogPosition, *, wipe: bool = False) -> None:
        """Note that a checkpoint was made at a place: what is before it is on disk elsewhere.

        Args:
            wipe: overwrite the files that are no longer needed, and keep none as the spare.
        """
        control = self.control
        with self._sync_lock:
            wave = self.turns.take()
            try:
                if control.durable() < position.commit_number:
                    control.set_durable(position.file_number, position.commit_number)
            finally:
                self.turns.give_back(wave)
        # By name: the header of a file that is just being begun is still that of its former use.
        for name in journal_names(self.folder):
            if named_number(name) < position.file_number:
                failpoints.hit("journal:retire")
                if wipe:
                    wipe_file(self.folder, name)
                else:
                    retire_file(self.folder, name, self.file_size)
        if wipe:
            self.folder.sync()


def is_journal_name(name: str) -> bool:
    """Say whether a name in `journal/` is one of the journal's own."""
    return (
        name in (CONTROL_FILE, _SPARE, _NEW)
        or name.startswith((f"{NEW_RECYCLED}.", f"{TURN_FILE}."))
        or name.endswith(SUFFIX)
    )


def sync_failed() -> RecoveryNeededError:
    """Return the error after a failed sync."""
    return RecoveryNeededError(
        "writing to the disk has failed; check the disk, close the store in every process, and "
        "open it again: it will be recovered"
    )


def retire_file(folder: Folder, name: str, file_size: int) -> None:
    """Make a file the spare one, or remove it."""
    if folder.size(name) == file_size and not folder.exists(_SPARE):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            folder.rename(name, _SPARE)
    else:
        folder.remove(name)


def wipe_file(folder: Folder, name: str) -> None:
    """Remove a file, its bytes overwritten on disk first, where the file system does so in place.

    Another process may have it mapped, or be making it; it only ever reads zeros then.
    """
    try:
        handle = folder.open(name, os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        files.write_zeros(handle, 0, os.fstat(handle).st_size)
        files.sync_data(handle)
    finally:
        os.close(handle)
    folder.remove(name)


def _reserve(handle: int, size: int, least: int) -> None:
    """Have the disk grant `size` bytes, or `least` where it is nearly full."""
    try:
        files.reserve(handle, size)
    except OSError:
        if size == least:
            raise
        os.ftruncate(handle, 0)
        files.reserve(handle, least)
