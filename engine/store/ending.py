"""The end of an open store: of one use, and of the last use with everything that is open.

Any step may be interrupted, and another thread may want the store at once. So what is to be closed
is a list of steps, of which each may be taken twice, and the thread that comes next takes those
that are left. Nothing is closed under a transaction, and LMDB can be opened again, or its map
resized, only while this process has none: `without_transactions` waits for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Final, Protocol

from streamkeep.engine.blocking.waiters import Waiters
from streamkeep.engine.checkpoint.checkpoint import Checkpoints
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.checkpoint.checkpointer import Checkpointer
from streamkeep.engine.liveness.leases import Leases
from streamkeep.engine.store.registry import Opening, identity_of, registry
from streamkeep.engine.system.locks import is_mine, make_reentrant_lock
from streamkeep.engine.system.long_wait import IN_HANDLER, LongWait, OwnedLock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.segment_files import SegmentFiles
from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.errors import StoreError, StoreLockedError, StreamkeepError

READERS_WAIT_S: Final = 10.0
_LAST_WAIT_S: Final = 2.0  # for the locks of other processes; supervisors kill after ten seconds
_POLL_S: Final = 0.001
_GATE_S: Final = 0.1

Step = Callable[[], None]


class Part(Protocol):
    """What an environment closes at its end."""

    def close(self) -> None: ...


class Ending:
    """What ends of an environment, and how; `Environment` is the only subclass and opens it."""

    waiters: Waiters
    segments: SegmentFiles
    leases: Leases
    make_checkpoint: Callable[[], None]
    sync: Callable[[], None]

    def __init__(self, folder: Folder, context: EngineContext, lock: CheckpointFile | None) -> None:
        self.folder = folder
        self.path = folder.path
        self.identity = identity_of(self.path)
        self.context = context
        self.users = 0
        self._unclosed: list[Step] | None = None  # what `close_files` has left; None before it
        self.checkpoint_file = lock  # None if the store is read-only and has no such file
        self.checkpoints: Checkpoints | None = None  # None for a read-only store
        self.checkpointer: Checkpointer | None = None
        self.archive_work = OwnedLock("archive", context.path)
        self.archive_wait = LongWait("the lock of the archive")  # for other processes
        self.life = make_reentrant_lock("life", context.path)  # held by a thread that closes it

    @property
    def checkpoint_lock(self) -> AbstractContextManager[object]:
        """The lock of checkpoints, which is taken before all others."""
        return nullcontext() if self.checkpoints is None else self.checkpoints.lock

    @contextmanager
    def without_transactions(self, why: str) -> Iterator[None]:
        """Run the block while this process has no transaction of LMDB open, not even a pin.

        Raises:
            StoreError: a snapshot or iterator of this process stays open.
        """
        context = self.context
        context.check_not_writing()
        deadline = time.monotonic() + READERS_WAIT_S
        closed_s = _GATE_S
        with self.checkpoint_lock:
            while True:
                try:  # an interrupt may arrive as soon as the locks are held
                    context.begin_alone()
                    if self._is_unread(closed_s):
                        context.forget()
                        if self.checkpoints is not None:
                            self.checkpoints.unpin()
                        yield
                        return
                finally:
                    context.end_alone()
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{why}, which open snapshots and iterators of this process prevent; "
                        "close them"
                    )
                time.sleep(_GATE_S)  # others may begin, and write
                # Longer each time: threads that scan in turns leave no moment without a snapshot.
                closed_s = min(2 * closed_s, READERS_WAIT_S / 4)

    def _is_unread(self, wait_s: float) -> bool:
        """Return whether this process has no snapshot open; wait a moment for those of commands."""
        end = time.monotonic() + wait_s
        while self.context.left < self.context.entered:
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def check_may_close(self) -> None:
        """Raise StoreError if to close a store would wait for this thread, or take its files."""
        work = ""
        if is_mine(self.waiters.lock):
            work = "beginning or ending a wait"
        elif self.users > 1:
            return
        elif self.context.wait_table.is_waking():
            work = "waking a reader"
        elif self.checkpoints is not None and is_mine(self.checkpoints.lock):
            work = "making a checkpoint"
        if work:
            raise StoreLockedError(
                f"{self.path}: this thread is {work}, which a signal has interrupted; "
                f"next: {IN_HANDLER}"
            )
        self.context.check_not_writing()
        if self.archive_work.is_mine():
            raise StoreLockedError(
                f"{self.path}: this thread is working on the archive; next: close the store when "
                "that method has returned"
            )

    def release(self, opening: Opening | None = None) -> None:
        """End one use; the last one closes the environment, after archiving has ended.

        Args:
            opening: which began it, and has not ended yet: two threads may end it. Its `undo`
                does this again, if an interrupt came before.
        """
        with self.life:
            last = False
            try:
                with registry.lock:
                    if opening is not None and not opening.counted:
                        return
                    last = self.users == 1 and not self.context.closed
                    self.users -= 1
                    if opening is not None:
                        opening.counted = False  # no interrupt comes between the two
                if not last:
                    return
                if self.checkpoints is not None:
                    until = time.monotonic() + _LAST_WAIT_S
                    self.context.wait.until = self.checkpoints.wait.until = until
                if self.checkpointer is not None:
                    self.checkpointer.stop()
                self.archive_work.acquire()
                if self.checkpoints is not None:
                    if self._needs_last_checkpoint(self.checkpoints):
                        try:
                            self.make_checkpoint()
                        except StoreLockedError:  # the process that has the lock will make it
                            self.sync()
                    with suppress(StreamkeepError):  # this process may not even have written
                        self.checkpoints.release_room()
            finally:
                if last:
                    _take(self._last_steps())

    def _needs_last_checkpoint(self, checkpoints: Checkpoints) -> bool:
        """Return whether to make a checkpoint before the end, so that no recovery is needed.

        A process that has not written makes it for others that were killed.
        """
        control = checkpoints.journal.control
        if self.context.pin is not None or control.poisoned():
            return True
        control.look_for_others()
        if control.is_shared():
            return False
        slot = checkpoints.file.newest()
        return slot is not None and slot.commit_number < control.newest()

    def finish(self) -> None:
        """Close what the last `release` has left open, because it was interrupted.

        Does nothing while this thread is in there, as in a signal handler: it goes on afterwards.
        """
        if self.users <= 0 and not self.context.forked and not is_mine(self.life):
            self.context.check_not_writing()
            with self.life:
                _take(self._last_steps())

    def _last_steps(self) -> list[Step]:
        """Return what closes the environment at last; to take a step again does no harm."""
        return [self.close_files, partial(registry.remove, self), self._end_archive_work]

    def _end_archive_work(self) -> None:
        if self.archive_work.is_mine():
            self.archive_work.release()

    def close_files(self) -> None:
        """Close everything, without a checkpoint.

        A store that stayed open could not be opened again by this process. So no failure of a part
        keeps the others open, and an interrupted part is closed again.
        """
        with self.checkpoint_lock:
            self.context.run_at_end(self._close_parts)

    def _close_parts(self) -> None:
        self.context.closed = "the store is closed; next: open it again"
        if self._unclosed is None:
            self._unclosed = self._parts()
        _take(self._unclosed)

    def _parts(self) -> list[Step]:
        """Return what closes each part, in this order; a second call does no harm."""
        context = self.context
        parts: list[Part | None] = [self.checkpoints, self.leases, self.waiters, self.segments]
        parts += [context.raw, context.write_lock, context.journal or context.log, context.control]
        closing = (part.close for part in (*parts, self.checkpoint_file) if part is not None)
        lock = context.write_lock
        release = [] if lock is None else [lock.release_idle]  # wakes who waits for it
        return [context.start_over, *release, *closing, self.folder.close_all]


def _take(steps: list[Step]) -> None:
    """Take every step, whatever the others raise; raise the first failure at the end.

    An interrupted step is taken again, but only once: it may wait, and another interrupt ends that.
    Such a step stays in the list.
    """
    failures: list[BaseException] = []
    for step in list(steps):
        for _ in range(2):
            try:
                step()
                if step in steps:  # an interrupt may come just after it was removed
                    steps.remove(step)
                break
            except Exception as error:
                failures.append(error)
                if step in steps:
                    steps.remove(step)
                break
            except BaseException as error:
                failures.append(error)
    if failures:
        raise failures[0]
