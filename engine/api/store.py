"""The public class `Store`. Its snapshots and transactions are in `views`."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from sys import is_finalizing
from typing import Any, Final

import lmdb

from streamkeep.engine.api.admin_commands import AdminCommands, checked_record
from streamkeep.engine.api.command_base import Result
from streamkeep.engine.api.follow import FollowCommands, Plan, Stop, Stopped, checking
from streamkeep.engine.api.frame_commands import FrameCommands
from streamkeep.engine.api.key_commands import KeyContainer
from streamkeep.engine.api.redis_pipeline import Pipeline
from streamkeep.engine.api.stream_commands import StreamCommands
from streamkeep.engine.api.views import CallSync, Snapshot, Sync, SyncView, Transaction, check_sync
from streamkeep.engine.api.work import WorkCommands
from streamkeep.engine.archive import back_pressure, garbage
from streamkeep.engine.archive.maintenance import ArchiveThread
from streamkeep.engine.blocking.calls import BlockingCall
from streamkeep.engine.commands.arguments import check_node_limits
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.engine.crash_recovery.state import WayName
from streamkeep.engine.store import opening
from streamkeep.engine.store.command import Command, Write, attempt, read_once, write_relaxed
from streamkeep.engine.store.registry import Opening
from streamkeep.engine.system.clock import Clock, current_clock
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.lmdb_errors import translate
from streamkeep.engine.system.modes import Group, chosen_modes
from streamkeep.engine.system.owners import Trusted, trusted_numbers
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.whole_store import scrub
from streamkeep.format import html
from streamkeep.format.core.durations import Duration, above_zero
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import (
    ArgumentError,
    NotShippedError,
    StoreClosedError,
    StoreError,
)
from streamkeep.format.core.values import whole
from streamkeep.format.segment.manifest import SegmentRecord

MOST_SHIPPING_S: Final = 30.0  # for which a call with sync="shipped" waits
_MOST_READERS: Final = 100_000  # `lock.mdb` has 64 bytes on disk for each

log = logging.getLogger("streamkeep")


class Store(
    AdminCommands[Text],
    FollowCommands[Text],
    FrameCommands[Text],
    WorkCommands[Text],
    KeyContainer[Text],
    StreamCommands[Text],
):
    """A directory of Redis Streams; `streamkeep.open` makes one.

    It is safe to share between threads, and any number of processes may have the store open. After
    a fork, the child must open it again.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        sync: Sync = "commit",
        interval: Duration = 1,
        readonly: bool = False,
        read_durable: bool = False,
        force_recovery: WayName | None = None,
        create: bool = True,
        decode_responses: bool = False,
        max_readers: int = 512,
        max_store_bytes: int | None = None,
        node_max_bytes: int | None = None,
        node_max_entries: int | None = None,
        archive_every: Duration | None = None,
        retired_max_bytes: int | None = None,
        trust_owners: Trusted = (),
        mode: int | None = None,
        group: Group | None = None,
        lease: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Open the store at `path`; see `streamkeep.open`."""
        check_sync(sync)
        interval_ms = above_zero(interval, "interval")
        whole(max_readers, "max_readers", 1, _MOST_READERS)
        if archive_every is not None:
            every_ms = above_zero(archive_every, "archive_every")
            if readonly:
                raise ArgumentError("archive_every needs a store that is not readonly")
        if retired_max_bytes is not None:
            whole(retired_max_bytes, "retired_max_bytes", back_pressure.RETIRED_LEAST)
        if read_durable and readonly:
            raise ArgumentError("read_durable needs a store that is not readonly: it may sync")
        self.path = path_of(path, "path")
        self.sync_mode = sync
        self._set_decode(decode_responses)
        self._closed = self._closing = False
        self._readonly = readonly
        self._has_lease = lease and not readonly
        self._wait = sync == "commit"
        self._read_durable = read_durable
        self._interval_ms = interval_ms
        self._interval_s: float | None = None
        self._archiving: ArchiveThread | None = None
        self._opening = Opening(self.path.absolute())
        try:
            self._environment = opening.open_environment(
                self.path.absolute(),
                readonly=readonly,
                force_recovery=force_recovery,
                create=create,
                max_readers=max_readers,
                max_store_bytes=max_store_bytes,
                clock=clock or current_clock(),
                node_limits=check_node_limits(node_max_bytes, node_max_entries),
                trust_owners=trusted_numbers(trust_owners),
                modes=chosen_modes(mode, group),
                opening=self._opening,
            )
        except BaseException:
            self._opening.undo()
            raise
        try:
            self._note_sync(sync)
            if not readonly:
                self._start_maintenance(retired_max_bytes)
                if archive_every is not None:
                    self._archiving = ArchiveThread(self._environment, every_ms / 1000)
            log.info("%s: opened%s, sync=%s", self.path, " for reading" if readonly else "", sync)
        except BaseException:
            self.close()
            raise

    def _start_maintenance(self, most_retired: int | None) -> None:
        """Start what this process does beside commands, once for all stores on this directory.

        Finish what others have left unfinished, or say how to finish it.
        """
        environment = self._environment
        if environment.back_pressure is None:
            environment.back_pressure = back_pressure.BackPressure(environment, most_retired)
        elif most_retired not in (None, environment.back_pressure.most):
            raise StoreError(
                f"{self.path}: open in this process with retired_max_bytes="
                f"{environment.back_pressure.most}; leave it out, or close that store first"
            )

        # What processes that were killed have left unfinished:
        self._collect_garbage()
        back_pressure.clean_after_crash(environment)
        if environment.read(scrub.is_unfinished):
            log.warning("%s: %s", self.path, scrub.UNFINISHED)

    # --- life -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store. Calls that run in other threads finish; later calls raise.

        Does nothing if the store is closed, or if this thread is closing it. An interrupt, as by
        Ctrl-C, is raised when everything is closed. If more of them end the wait for other threads,
        call the method again.

        Raises:
            StoreError: this thread has a transaction open on it, or a signal handler calls this in
                the middle of a call that writes, or that begins or ends a wait.
        """
        environment = self._environment
        if not self._closed:
            begun = environment.transactions.get(threading.get_ident())
            if isinstance(begun, Transaction) and begun._store is self:
                environment.context.check_not_writing()
            environment.check_may_close()
        if self._closed:  # by now: a signal handler may have closed it
            if not self._closing:  # an interrupt may have ended the call that was to do it
                self._opening.undo()
            environment.finish()
            return
        self._closed = self._closing = True
        try:
            environment.waiters.alarm()  # blocked calls of this store end
            if self._archiving is not None:
                self._archiving.stop()
            if self._interval_s is not None and environment.checkpointer is not None:
                environment.checkpointer.remove_interval(self._interval_s)
                if environment.users > 1 and not environment.context.closed:
                    environment.sync()  # the last one makes a checkpoint
        finally:
            try:
                environment.release(self._opening)
            finally:
                self._closing = False

    def __del__(self) -> None:
        """Warn of a store that was forgotten, as files do; it is closed when the process ends.

        Not here: this thread may be anywhere, and hold any lock. What a forked child has of its
        parent is not forgotten.
        """
        environment = self.__dict__.get("_environment")
        if environment is None or self._closed or environment.context.closed or is_finalizing():
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Store[Text]:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"sync={self.sync_mode!r}"
        return f"<streamkeep.Store {str(self.path)!r} {state}>"

    def _repr_html_(self) -> str:
        if self._closed:
            return html.table_html([repr(self)], [])
        with self.snapshot() as snapshot:
            some = list(islice(snapshot.stats(), html.MOST_ROWS))
            return html.streams_html(repr(self), some, len(snapshot))

    @property
    def uuid(self) -> str:
        """The store's identity, given when it was created."""
        return str(self._environment.uuid)

    @property
    def map_size_bytes(self) -> int:
        """Address space reserved for the store; the disk holds only what was written."""
        self._check_open()
        return self._environment.map_size()

    @property
    def used_bytes(self) -> int:
        """Bytes of the data file that were ever used."""
        self._check_open()
        return self._environment.context.size()

    @property
    def reusable_bytes(self) -> int:
        """The part of `used_bytes` that is free and will be used again."""
        return self._environment.reusable_size()

    def segment_path(self, record: SegmentRecord) -> Path:
        """Return the path of a segment's file; `record` is one of `archived_segments`."""
        return self._environment.segments.path(checked_record(record))

    # --- several commands at once -----------------------------------------------------------

    @contextmanager
    def transaction(self, sync: CallSync | None = None) -> Iterator[Transaction[Text]]:
        """Make several commands one transaction, across streams; see `Transaction`.

        Args:
            sync: a sync mode for this transaction, instead of that of the store; or "shipped", as
                for `using`.
        """
        self._check_writable()
        if sync == "shipped":
            self._environment.shipped()  # raises before a change, not after it
        wait = self._waits("commit" if sync == "shipped" else sync)
        txn = self._environment.begin_write(durable=wait)
        transaction = Transaction(self, txn)
        thread = threading.get_ident()
        self._environment.transactions[thread] = transaction
        try:
            yield transaction
            if txn.open:
                txn.commit()
            else:
                transaction.check_whole()
        except lmdb.Error as error:
            txn.abort()
            raise translate(error) from error
        except BaseException:
            txn.abort()
            raise
        finally:
            # By thread, since another one may have begun one. It is gone if this transaction was
            # aborted and the block then made another, which has ended.
            self._environment.transactions.pop(thread, None)
        self._environment.notice()
        if wait:
            txn.wait()
        self._environment.settle()
        if txn.garbage:
            self._collect_garbage()
        if sync == "shipped":
            self._wait_for_copy(self._environment.newest_commit())

    def open_transaction(self) -> Transaction[bytes] | Transaction[str] | None:
        """Return the transaction that this thread has open on the store, if it has one."""
        begun = self._environment.transactions.get(threading.get_ident())
        return begun if isinstance(begun, Transaction) and begun.is_open() else None

    def using(self, sync: CallSync) -> SyncView[Text]:
        """Return an object with the commands of the store, which uses another sync mode.

        With "shipped", a call that writes returns when its change is on disk and a copy elsewhere
        has it, too, so that it survives this machine: with the next piece, within a second unless
        `streamkeep ship --every` says otherwise. It waits for half a minute at most.

        Raises:
            StoreError: "shipped", and nothing ships the store.
            NotShippedError: later, by a call: its change was made, and no copy has it yet.
        """
        self._check_open()
        if sync == "shipped":
            self._environment.shipped()  # raises if nothing ships it
        else:
            self._note_sync(sync)
        return SyncView(self, sync)

    def _wait_for_copy(self, commit: int) -> None:
        """Return when a copy elsewhere has everything up to a commit; raise NotShippedError."""
        if not self._environment.wait_shipped(MOST_SHIPPING_S, commit):
            raise self._not_shipped()

    def _not_shipped(self) -> NotShippedError:
        return NotShippedError(
            f"{self.path}: the change was made and is on disk here, but no copy has it after "
            f"{MOST_SHIPPING_S:.0f} s; next: see that `streamkeep ship` runs and reaches its "
            "target, and do not repeat the call"
        )

    def snapshot(self) -> Snapshot[Text]:
        """Return the present state of the store, for reads that must agree; see `Snapshot`."""
        self._check_open()
        return Snapshot(self, self._environment.begin_read())

    def pipeline(self, transaction: bool = True, shard_hint: object = None) -> Pipeline:
        """Queue commands and run them in one transaction, as redis-py's pipeline does.

        Args:
            transaction: ignored, and accepted because redis-py has it. It always is a transaction.
        """
        self._check_open()
        return Pipeline(self, transaction, self._decode)

    # --- how commands run -------------------------------------------------------------------

    def _run(self, command: Command[Result], durable: bool | None = None) -> Result:
        """Run a command, and then what its commit has made due.

        Args:
            durable: a write returns when its commit is on disk; by default as the store was opened.
        """
        if durable is None:
            durable = self._wait
        if self._closed:
            self._check_open()
        if command.call is not None:
            found = self._wait_for(command.call, command.block_ms, durable, command.stop)
            return command.result(found)
        environment = self._environment
        reply: object
        if command.writes:
            if self._readonly:
                self._check_writable()
            if durable:
                reply = environment.group_commit.run(command)
                environment.settle()
            else:  # there is nothing to share with other callers but the write lock
                reply = write_relaxed(environment, command)
            if command.leaves_garbage:
                self._collect_garbage()
        elif command.reads_history:
            run, durable = command.run, self._read_durable
            reply = environment.read_history(run, *command.args, durable=durable)
        elif self._read_durable:
            reply = environment.read_durable(command.run, *command.args)
        else:
            reply = read_once(environment, command)
        return command.result(reply)

    def _wait_for(
        self, call: BlockingCall, block_ms: int | None, durable: bool, stop: Stop | None
    ) -> Found:
        """Run a call that may wait; return [] if `stop` ends the wait.

        Args:
            block_ms: None: it does not wait.
            durable: as in `_run`.
        """

        def once() -> Found:
            return self._run(attempt(call), durable)

        def note() -> None:
            self._run(Write(call.note, ()), durable)

        if block_ms is None:
            return once()
        try:
            waiters = self._environment.waiters
            return waiters.block(once, note, call, block_ms, checking(self, stop))
        except Stopped:
            return []

    def _iterate(self, plan: Plan, stop: Stop) -> Iterator[Any]:
        try:
            while not stop():
                found = self._wait_for(plan.call(), plan.wait_ms(), self._wait, stop)
                items = plan.take(found)
                if items is None:
                    return
                for item in items:
                    yield item
                    if stop():
                        return
        finally:
            plan.close()

    def _origin(self) -> Store[Text]:
        return self

    def _now_ms(self) -> int:
        return self._environment.context.clock.now_ms()

    def _reading(self) -> ReadTxn:
        self._check_open()
        return self._environment.begin_read()

    def _waits(self, sync: Sync | None) -> bool:
        """Return whether a call with this sync mode waits for the disk."""
        if sync is None:
            return self._wait
        self._check_open()
        check_sync(sync)
        self._note_sync(sync)
        return sync == "commit"

    def _note_sync(self, sync: Sync | None) -> None:
        """Begin to sync the journal every `interval`, if this is the first use of that mode."""
        checkpointer = self._environment.checkpointer
        if sync == "interval" and self._interval_s is None and checkpointer is not None:
            self._interval_s = self._interval_ms / 1000
            checkpointer.add_interval(self._interval_s)

    def _lease(self) -> int:
        if not self._has_lease or self._closed:
            return 0
        environment = self._environment
        return environment.leases.take(environment.context.wait_table)

    def ask_stops(self) -> None:
        """Make the calls that wait in this process ask their `stop` now, not within a second."""
        self._environment.waiters.alarm()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed; next: open it again, in a `with` block")

    def _check_writable(self) -> None:
        """Raise unless this store may write. Other stores on the same files may."""
        self._check_open()
        if self._readonly:
            raise StoreError(
                "the store was opened with readonly=True; next: open it without that to write"
            )

    def _collect_garbage(self) -> None:
        garbage.collect(self._environment)
