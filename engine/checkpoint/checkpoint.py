"""Checkpoints: commits that survive a power loss, although LMDB itself never syncs.

LMDB writes its pages unsynced, in any order, and reuses pages that no snapshot needs. After a power
loss its file may hold any mixture of pages. A *checkpoint* is the meta page of a commit whose pages
are all on disk and are not overwritten. A checkpoint is made in four steps:

1. Under the write lock: flush, and begin a read transaction, which pins the pages. Copy LMDB's meta
   page of that commit, and take its log position.
2. Without the lock: sync the data file. Now all pages of that commit are on disk.
3. Write the copy into the older slot of `steady`, and sync that file.
4. Only now release the pin of the checkpoint before, and retire the journal files before this one.

A pin ends with its process. So every process that commits has a pin of its own, at a commit not
above the newest checkpoint (`EngineContext.pin`; `begin_write` requires it). An idle process
releases its pin, because LMDB reuses no pages while it is held, and the file grows.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import lmdb

from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.lmdb_errors import FULL, translate_os
from streamkeep.engine.system.locks import make_reentrant_lock
from streamkeep.engine.system.long_wait import LongWait, holders_of, lock_file
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.begin import CheckpointNeeded, begin_stored, release_room, run_locked
from streamkeep.engine.txn.context import EngineContext, position_in
from streamkeep.engine.txn.flush import flush, lacks_pages
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.journal.checkpoint import SLOT_SIZE, CheckpointSlot, root_checksum
from streamkeep.format.journal.position import LogPosition
from streamkeep.format.lmdb_file.meta_page import MetaPage, decode_meta_page

DATA_FILE = "data.mdb"

log = logging.getLogger("streamkeep")


class Hold(NamedTuple):
    """A snapshot and LMDB's meta page of its commit."""

    txn: ReadTxn
    meta: MetaPage


# A pin, LMDB's meta page of its commit, and the log position of that.
_Begun = tuple["lmdb.Transaction[bytes]", MetaPage, LogPosition]


class Checkpoints:
    """Makes the checkpoints of one environment and holds its pin."""

    def __init__(
        self, folder: Folder, context: EngineContext, file: CheckpointFile, journal: Journal
    ) -> None:
        self.context = context
        self.file = file
        self.journal = journal
        self.lock = make_reentrant_lock("checkpoint", context.path)
        self.wait = LongWait("the lock of checkpoints", self._holders)
        self._depth = 0  # of nested `exclusive` blocks
        self._store = folder
        self._folder = journal.folder.open_again()
        self._handles = [self._folder]
        try:
            self._data = folder.open(DATA_FILE, os.O_RDWR)
        except BaseException:
            self.close_files()
            raise
        self._handles.append(self._data)
        context.data_handle = self._data
        self._doubtful = journal.control.is_syncing()  # after the file was opened

    def close(self) -> None:
        self.unpin()
        self.close_files()

    def close_files(self) -> None:
        """Close the files; also called in a forked child, at any moment of the parent."""
        while self._handles:
            os.close(self._handles.pop())

    # --- the pin ----------------------------------------------------------------------------

    def pin(self) -> None:
        """Take a pin, so that this process may commit; make a checkpoint if that is needed."""
        with self.exclusive(), self._poisoning():
            if self.context.pin is None:
                self._make()  # of the image as it is; with its pin, what that lacks can be flushed

    def unpin(self) -> None:
        """Release the pin; no thread of this process is writing."""
        with self.lock:
            pin, self.context.pin = self.context.pin, None
            if pin is not None:
                pin.abort()

    def release_room(self) -> None:
        """Give back what was reserved for flushes, unless another process may flush as well."""
        control = self.journal.control
        control.look_for_others()
        if not control.is_shared():
            release_room(self.context)

    def unpin_if_idle(self) -> bool:
        """Release the pin if the newest checkpoint has all commits of this process.

        Others may go on: they have pins of their own.

        Returns:
            Whether it was released.
        """
        context = self.context
        with self.lock:
            if not context.thread_lock.acquire(blocking=False):
                return False
            try:
                slot = self.file.newest()
                if slot is None or slot.commit_number < context.last_commit:
                    return False
                self.unpin()
                return True
            finally:
                context.thread_lock.release()

    # --- making a checkpoint ----------------------------------------------------------------

    def make(self, held: list[Hold] | None = None, *, strict: bool = False) -> None:
        """Make a checkpoint of the newest commit.

        Args:
            held: see `make_clean`.
            strict: raise if the image lacks commits afterwards.

        Raises:
            RecoveryNeededError: this sync or an earlier one failed.
            CheckpointNeeded: this process must clear its memory first; only if `strict`.
        """
        self.journal.syncs.check()
        with self.exclusive(), self._poisoning():
            self.pin()
            self._make(held, strict=strict)

    def make_clean(self) -> Hold:
        """As `make`; also overwrite and remove the journal files before the checkpoint.

        Returns:
            A snapshot of the checkpoint and its meta page. No page of it is reused until the
            snapshot is closed.
        """
        held: list[Hold] = []
        try:
            self.make(held, strict=True)
        except BaseException:
            for hold in held:
                hold.txn.close()
            raise
        return held[0]

    @contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Make every process refuse to write if the block raises an error of the system."""
        try:
            yield
        except OSError as error:
            raise self.journal.syncs.fail(error) from error

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep others from making checkpoints and from retiring journal files.

        Raises:
            StoreLockedError: the process that does so is stopped.
        """
        with self.lock:
            self._depth += 1
            try:  # an interrupt may arrive as soon as the lock is held
                if self._depth == 1:
                    lock_file(self._folder, self.wait)
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._folder, fcntl.LOCK_UN)

    def _holders(self) -> list[int]:
        return holders_of([self._folder])

    def _make(self, held: list[Hold] | None = None, *, strict: bool = False) -> None:
        context, journal = self.context, self.journal
        journal.control.check_not_moved()
        pin, meta, position = cast(_Begun, run_locked(context, self._begin, (held, strict)))
        here = boot_id()
        newest = self.file.newest_on_disk()
        control = journal.control
        doubtful = self._doubtful and control.is_syncing()
        if doubtful and newest is not None:
            self.file.rewrite()  # whose sync may have failed, which no one else is told
        if (
            newest is None
            or newest.epoch != context.epoch
            or newest.boot_id != here
            or newest.position() != position
        ):
            failpoints.hit("checkpoint:pinned")
            mark = control.begin_sync()
            files.sync_data(self._data)  # tells every error since then; LMDB may be open anew
            if doubtful:  # as in `Syncs._sync_file`
                self._store.check_on_disk(DATA_FILE, self._data)
            self._doubtful = False
            journal.syncs.sync_names()
            failpoints.hit("checkpoint:synced")
            self.file.write(
                CheckpointSlot(
                    context.epoch,
                    position.commit_number,
                    journal.log.owner.store_uuid,
                    here,
                    position.file_number,
                    position.offset,
                    position.chain,
                    root_checksum(read_page(self._data, meta, meta.main_root)),
                    root_checksum(read_page(self._data, meta, meta.free_root)),
                    meta.data,
                )
            )
            control.finish_sync(mark)
            failpoints.hit("checkpoint:made")  # the pin of the checkpoint before is still held
        old, context.pin = context.pin, pin
        if old is not None:
            old.abort()
        context.raw.reader_check()
        context.allow_growth()
        try:
            journal.retire_before(position, wipe=held is not None)
        except OSError as error:
            if error.errno not in FULL:
                raise
            # To overwrite a file may need room. The checkpoint is made: nothing is in doubt.
            raise translate_os(error) from error

    def _begin(self, held: list[Hold] | None, strict: bool) -> _Begun:
        """Flush, and pin the newest commit; the caller has the write lock."""
        context = self.context
        self._flush(strict=strict)
        pin = context.raw.begin(None, None, False, False)
        try:
            position = position_in(pin)
            meta = meta_page_of(self._data, pin.id())
            if held is not None:
                held.append(Hold(begin_stored(context), meta))
        except BaseException:
            pin.abort()
            raise
        return pin, meta, position

    def flush(self) -> None:
        """Put all commits into the image, which is not synced.

        Raises:
            CheckpointNeeded: this process must make a checkpoint, or clear its memory, first.
        """
        run_locked(self.context, lambda: self._flush(strict=True), ())

    def _flush(self, *, strict: bool) -> None:
        """Flush if this process may write to LMDB; without room, the image stays as it is.

        A checkpoint of it makes room, and the journal has what it lacks.

        Args:
            strict: raise if the image lacks commits afterwards.
        """
        context = self.context
        # Without a pin, a flush could reuse pages of the checkpoint.
        if context.pin is None or not self.journal.control.may_write(context.erasures):
            if strict:
                raise CheckpointNeeded
            return
        if not strict and lacks_pages(context):
            return
        try:
            flush(context)
        except lmdb.Error as error:
            if strict or isinstance(error, lmdb.MapFullError):  # the map grows
                raise
            log.warning("%s: a checkpoint of what data.mdb has: %s", self.context.path, error)


def meta_page_of(data: int, commit_number: int) -> MetaPage:
    for page in read_meta_pages(data):
        if page.commit_number == commit_number:
            return page
    raise CorruptionError(DATA_FILE, f"there is no meta page of commit {commit_number}")


def read_meta_pages(data: int) -> list[MetaPage]:
    """Return LMDB's readable meta pages, the newest last."""
    first = decode_meta_page(os.pread(data, SLOT_SIZE, 0))
    sizes = [first.page_size] if first is not None else [4096, 8192, 16384, 32768, 65536]
    pages = [] if first is None else [first]
    for size in sizes:
        second = decode_meta_page(os.pread(data, SLOT_SIZE, size))
        if second is not None and second.page_size == size:
            pages.append(second)
            break
    return sorted(pages, key=lambda page: page.commit_number)


def read_page(data: int, meta: MetaPage, number: int | None) -> bytes | None:
    """Return a page, with zeros where the file is truncated; None if there is none.

    Raises:
        CorruptionError: the commit has no such page.
    """
    if number is None:
        return None
    if number > meta.last_page:
        raise CorruptionError(DATA_FILE, f"page {number} is behind the end, {meta.last_page}")
    page = os.pread(data, meta.page_size, number * meta.page_size)
    return page.ljust(meta.page_size, b"\0")
