"""Scrubbing: overwriting all removed data in the files of a store.

Data that LMDB deletes remains in its file, in free pages and in the free space between the pointers
and the nodes of used pages. LMDB has no way to overwrite it (decision record 9 has a trial). So the
pages are cleared here, directly in the file:

1. A flush: whoever changes a page reads what is removed from it into LMDB's memory. Then a
   transaction begins a clean journal file and raises the number of erasures in the control file.
   Every process that sees the new number clears LMDB's memory before its next write
   (`page_memory.clear_memory`), so that old bytes are not written again.
2. When the readers of the change feed have read that far, a checkpoint is made, and the old journal
   files are overwritten and removed.
3. The caller waits until no process reads a commit before that checkpoint, which a snapshot holds.
   The checkpointer of another process moves its pin within a second.
4. The free space of all pages of that checkpoint is overwritten, without a lock. A used page does
   not change, and neither LMDB nor a reader uses its free space. So this is safe for all processes,
   and a crash may interrupt it at any sector.
5. The pages that were free at the checkpoint and still are, are overwritten under the write lock, a
   tenth of a second at a time. No reader and no recovery needs them. The list of remaining pages
   comes from a snapshot, without the lock. Under the lock, only the part of the free list is read
   that is about to be overwritten, because other commits may have taken pages.
6. The file is truncated after its last page.

Only then is the mark `META_SCRUB` removed, which the transactions of the erasure have set. So an
interrupted erasure is finished by the next one, and `open` reports that one is due.

There is one mark for all erasures, and each transaction of an erasure writes a new one. So an
erasure may overwrite and remove the mark of another one that was killed before it had rewritten the
segments. It first does that work itself (`Mark`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar, TypeVarTuple

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, Hold, meta_page_of
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import FEED, read_slots
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.txn.begin import take_write
from streamkeep.engine.txn.flush import open_readers
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CorruptionError, ErasureBlockedError
from streamkeep.format.core.id_codec import pack_id
from streamkeep.format.core.keys import META
from streamkeep.format.lmdb_file import lmdb_pages
from streamkeep.format.lmdb_file.meta_page import MetaPage

META_SCRUB: Final = b"scrub_due"

UNFINISHED: Final = (
    "an erasure is unfinished; next: if no process is at work on it, repeat its call, or where "
    "that has ended, run `streamkeep erase STORE --finish`"
)
_POLL_S: Final = 0.01
_FEEDS_S: Final = 5.0  # no other process can make a checkpoint meanwhile
_LOCK_S: Final = 0.1  # the longest time that writers wait
_RUN: Final = 256  # free pages that are overwritten together
_CHUNK: Final = 4096  # page numbers of the free list that are read together

Args = TypeVarTuple("Args")
Result = TypeVar("Result")
ScrubPlace = tuple[int, int]  # in the free list: the key of a record, an index in its pages


class Mark:
    """The mark of one erasure, which its transactions write.

    Attributes:
        newest: the mark that this erasure has last written or seen; None at its beginning.
        others: the mark of another erasure was seen, so segments may hold entries that are recorded
            as erased.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.newest: bytes | None = None
        self.others = False

    def write(self, command: Callable[[WriteTxn, *Args], Result], *args: *Args) -> Result:
        """Run a command that removes data, in a transaction that writes the mark."""

        def run(txn: WriteTxn) -> tuple[Result, bytes | None, bytes | None]:
            found = txn.get(META, META_SCRUB)
            mark_due(txn)
            return command(txn, *args), found, txn.get(META, META_SCRUB)

        result, found, newest = self.environment.write(run, frees=True)
        # Only after the commit: a command that had to run again has written another mark.
        self.others = self.others or self._is_foreign(found)
        self.newest = newest
        return result

    def begin_scrub(self, timeout: float) -> Hold | None:
        """Do steps 1 and 2; do nothing and return None if another erasure must be finished first.

        The mark of `hold.txn` may already be that of an erasure that began after step 1.
        """
        environment = self.environment
        checkpoints = environment.checkpoints
        assert checkpoints is not None
        newest: bytes | None = None
        commit = 0

        def begin(txn: WriteTxn) -> bool:
            nonlocal newest, commit
            commit = txn.commit_number
            newest = txn.get(META, META_SCRUB)
            if self._is_foreign(newest):
                return False
            mark_due(txn)
            newest = txn.get(META, META_SCRUB)
            checkpoints.journal.begin_clean_file()  # with this transaction
            return True

        # No other caller recycles an old file of the journal until this is done.
        with checkpoints.exclusive():
            environment.retrying(checkpoints.flush)
            self.others = not environment.write(begin, frees=True)
            self.newest = newest
            if self.others:
                return None
            environment.clear_memory()  # a flush would use it
            _wait_for_feeds(environment, commit, min(timeout, _FEEDS_S))
            return environment.retrying(checkpoints.make_clean)

    def _is_foreign(self, found: bytes | None) -> bool:
        return found is not None and found != self.newest


def mark_due(txn: WriteTxn) -> None:
    """Record, in the transaction that removes data, that the files must be scrubbed."""
    txn.put_row(META, META_SCRUB, pack_id(txn.context.epoch, txn.commit_number))


def is_unfinished(txn: Txn) -> bool:
    return txn.get(META, META_SCRUB) is not None


def scrub(mark: Mark, timeout: float, progress: Progress | None = None) -> bool:
    """Overwrite all data that was removed from the store; this is on disk on return.

    Args:
        mark: that of the erasure.
        timeout: how many seconds to wait for readers of old snapshots.

    Returns:
        False if nothing was overwritten, because another erasure must be finished first.

    Raises:
        ErasureBlockedError: a process still reads an old snapshot; only the journal was
            overwritten.
    """
    environment = mark.environment
    environment.context.check_not_writing()
    hold = mark.begin_scrub(timeout)
    if hold is None:
        return False
    try:
        failpoints.hit("scrub:journal-clean")
        _wait_for_readers(environment, hold.meta.commit_number, timeout)
        with translated(system=True), _DataFile(environment, hold.meta) as data:
            data.clear_pages(progress)
            failpoints.hit("scrub:pages-clear")
            data.clear_free(progress)
            failpoints.hit("scrub:free-clear")
            data.sync()
    finally:
        hold.txn.close()
    failpoints.hit("scrub:synced")
    environment.write(_remove_mark, mark.newest, wait=True, frees=True)
    return True


def _remove_mark(txn: WriteTxn, mark: bytes | None) -> None:
    """Remove the mark, unless another erasure has begun since."""
    if mark is not None and txn.get(META, META_SCRUB) == mark:
        txn.delete(META, META_SCRUB)


# --- readers ------------------------------------------------------------------------------------


def _wait_for_feeds(environment: Environment, commit_number: int, timeout: float) -> None:
    """Return when every reader of the change feed has read a commit, or after the timeout.

    One that is still behind then gets an error, as it does when the journal may not be held longer.
    """
    deadline = time.monotonic() + timeout
    folder = environment.folder.folder(JOURNAL_FOLDER)
    while any(
        slot.target.startswith(FEED) and slot.position.commit_number < commit_number
        for slot in read_slots(folder, feeds=True)
    ):
        if time.monotonic() >= deadline:
            return
        time.sleep(_POLL_S)


def _wait_for_readers(environment: Environment, commit_number: int, timeout: float) -> None:
    """Return when no process reads a commit before `commit_number`."""
    deadline = time.monotonic() + timeout
    raw = environment.raw
    while True:
        with translated():
            raw.reader_check()
            older = [one for one in open_readers(raw) if one.commit_number < commit_number]
        if not older:
            return
        if time.monotonic() >= deadline:
            names = {f"process {one.process} (thread {one.thread})" for one in older}
            own = os.getpid()
            advice = "close its snapshots and iterators on the store, or end it"
            if all(one.process == own for one in older):
                advice = "close the snapshots and iterators that this process has open"
            error = ErasureBlockedError(
                f"old pages are still read by {', '.join(sorted(names))}: the entries are "
                f"deleted, but their bytes remain in the file; next: {advice}, then erase again"
            )
            error.processes = tuple(sorted({one.process for one in older}))
            raise error
        time.sleep(_POLL_S)


# --- pages --------------------------------------------------------------------------------------


class _DataFile:
    """`data.mdb`, opened in addition to LMDB.

    Args:
        meta: the meta page of the checkpoint that is held.
    """

    def __init__(self, environment: Environment, meta: MetaPage) -> None:
        self.environment = environment
        self.meta = meta
        self.page_size = meta.page_size
        self._handle = environment.folder.open(DATA_FILE, os.O_RDWR)

    def __enter__(self) -> _DataFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def sync(self) -> None:
        files.sync_data(self._handle)

    # --- pages in use -----------------------------------------------------------------------

    def clear_pages(self, progress: Progress | None) -> None:
        size = (self.meta.last_page + 1) * self.page_size
        visited = 0
        with mmap.mmap(self._handle, size, access=mmap.ACCESS_READ) as data:
            for start, end, pages in self._free_spaces(data):
                visited += pages
                if data[start:end].count(0) != end - start:
                    files.write_zeros(self._handle, start, end - start)
                    failpoints.hit("scrub:page")
                if progress is not None:
                    progress(visited, self.meta.last_page + 1)

    def _free_spaces(self, data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
        """Yield the free space of every used page: (start, end, number of pages it completes)."""
        roots = [self.meta.main_root, self.meta.free_root]
        stack = [(root, 0) for root in roots if root is not None]
        size = self.page_size
        while stack:
            number, depth = stack.pop()
            base = number * size
            page = lmdb_pages.decode_tree_page(data[base : base + size], number)
            lower, upper = lmdb_pages.free_space(page.data)
            yield base + lower, base + upper, 1
            if depth > 2 * lmdb_pages.MAX_DEPTH:
                raise CorruptionError(f"LMDB page {number}", "the tree has too many levels")
            if not page.leaf:
                stack += [(child, depth + 1) for child in page.children]
                continue
            for index, flags in enumerate(page.flags):
                if flags == lmdb_pages.BIG:
                    place, length = page.places[index], page.sizes[index]
                    first = place * size
                    header = lmdb_pages.decode_overflow_header(
                        data[first : first + lmdb_pages.HEADER_SIZE], place
                    )
                    end = first + header.pages * size
                    if (
                        header.number != place
                        or end > len(data)
                        or first + lmdb_pages.HEADER_SIZE + length > end
                    ):
                        raise CorruptionError(
                            f"LMDB page {place}", f"not the overflow value of page {number}"
                        )
                    yield first + lmdb_pages.HEADER_SIZE + length, end, header.pages
                elif flags == lmdb_pages.TABLE:
                    root = lmdb_pages.decode_database(
                        page.inline(index), f"LMDB page {number}"
                    ).root
                    if root is not None:
                        stack.append((root, depth + 1))

    # --- free pages -------------------------------------------------------------------------

    def clear_free(self, progress: Progress | None) -> None:
        """Overwrite every page that has stayed free.

        Also truncate the file after its last page, where an unfinished transaction may have left
        bytes.
        """
        done: set[int] = set()
        while todo := self._free_pages() - done:
            place: ScrubPlace | None = (0, 0)
            while place is not None:
                with self._newest() as newest:
                    place = self._clear_some(newest, place, todo, done)
                if progress is not None:
                    progress(self.meta.last_page + 1 - len(todo), self.meta.last_page + 1)
                time.sleep(_POLL_S)  # lets waiting writers take the lock
        with self._newest() as newest:
            end = (newest.last_page + 1) * self.page_size
            if os.fstat(self._handle).st_size > end:
                os.ftruncate(self._handle, end)

    def _free_pages(self) -> set[int]:
        """Return the pages that were freed before the checkpoint and never used since.

        The list may be long, so it is read from a snapshot of the newest commit, without a lock. A
        page that was used and freed again is in a record of a later commit, which is not read.
        """
        with self._newest() as newest:
            snapshot = self.environment.context.raw.begin(None, None, False, False)
        with snapshot:
            free = {page for _, pages in self._chunks(newest, (0, 0)) for page in pages}
        if free and not 2 <= min(free) <= max(free) <= newest.last_page:
            raise CorruptionError(DATA_FILE, "the free list names pages that do not exist")
        return free

    def _clear_some(
        self, newest: MetaPage, place: ScrubPlace, todo: set[int], done: set[int]
    ) -> ScrubPlace | None:
        """Overwrite pages that are free now, under the write lock, for `_LOCK_S` seconds.

        Commits between two calls may move pages to records before `place`. The next call of
        `_free_pages` still returns these.

        Args:
            place: where to begin in the free list.
            todo: the pages to overwrite; overwritten ones move from here to `done`.

        Returns:
            Where to continue; None at the end of the list.
        """
        deadline = time.monotonic() + _LOCK_S
        for here, pages in self._chunks(newest, place):
            if here != place and time.monotonic() > deadline:
                return here
            for run in _runs(sorted(todo.intersection(pages))):
                data = self._read(run[0], len(run) * self.page_size)
                if data.count(0) < len(data):
                    files.write_zeros(self._handle, run[0] * self.page_size, len(data))
                    failpoints.hit("scrub:free")
                todo.difference_update(run)
                done.update(run)
                if time.monotonic() > deadline:
                    return here
        return None

    @contextlib.contextmanager
    def _newest(self) -> Iterator[MetaPage]:
        """Hold the write lock in a `with` block; provide the meta page of the newest commit."""
        context = self.environment.context
        take_write(context)
        try:
            with context.raw.begin() as snapshot:
                newest = meta_page_of(self._handle, snapshot.id())
            yield newest
        finally:
            context.release_write()

    def _chunks(
        self, meta: MetaPage, start: ScrubPlace
    ) -> Iterator[tuple[ScrubPlace, Sequence[int]]]:
        """Yield the free list up to the checkpoint, a bounded number of pages at a time."""
        stack = [] if meta.free_root is None else [meta.free_root]
        while stack:
            number = stack.pop()
            page = lmdb_pages.decode_tree_page(self._read(number, self.page_size), number)
            keys = [int.from_bytes(db_key, "little") for db_key in page.keys]
            if not page.leaf:
                ends = [*keys[1:], start[0] + 1]  # the keys of a child are below those of the next
                stack += [
                    child
                    for child, end in zip(reversed(page.children), reversed(ends), strict=True)
                    if end > start[0]
                ]
                continue
            for index, key in enumerate(keys):
                if key > self.meta.commit_number:
                    return
                if key >= start[0]:
                    first = start[1] if key == start[0] else 0
                    for at, pages in self._record(page, index, number, first):
                        yield (key, at), pages

    def _record(
        self, page: lmdb_pages.TreePage, index: int, number: int, first: int
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the pages of one record of the free list, from index `first` on."""
        where = f"LMDB page {number}"
        if page.flags[index] != lmdb_pages.BIG:
            yield 0, tuple(lmdb_pages.free_pages(page.inline(index), where))
            return
        place, size = page.places[index], page.sizes[index]
        count = int.from_bytes(self._read(place, 8, lmdb_pages.HEADER_SIZE), "little")
        if size < 8 or size % 8 or count > size // 8 - 1:
            raise CorruptionError(where, f"a record of {size} bytes names {count} pages")
        for at in range(first, count, _CHUNK):
            length = min(_CHUNK, count - at)
            data = self._read(place, 8 * length, lmdb_pages.HEADER_SIZE + 8 * (1 + at))
            yield at, struct.unpack(f"<{length}Q", data)

    def _read(self, number: int, size: int, skip: int = 0) -> bytes:
        return os.pread(self._handle, size, number * self.page_size + skip)


def _runs(pages: list[int]) -> Iterator[list[int]]:
    """Yield runs of consecutive pages, each of at most `_RUN` pages."""
    start = 0
    for at in range(1, len(pages) + 1):
        if at == len(pages) or pages[at] != pages[at - 1] + 1 or at - start == _RUN:
            yield pages[start:at]
            start = at
