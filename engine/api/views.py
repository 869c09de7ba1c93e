"""The views of a store: a snapshot, a transaction, its commands with another sync mode."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Literal

import lmdb

from streamkeep.engine.api.command_base import Key, Result, read
from streamkeep.engine.api.frame_commands import FrameCommands
from streamkeep.engine.api.key_commands import KeyContainer
from streamkeep.engine.api.read_commands import Delete
from streamkeep.engine.api.stream_commands import StreamCommands
from streamkeep.engine.commands import keys, xreadgroup
from streamkeep.engine.commands.arguments import to_bytes
from streamkeep.engine.commands.history import Unreadable
from streamkeep.engine.commands.xinfo import StreamStat, stream_stat
from streamkeep.engine.notify.wait_table import EVERYONE, GROUP, READ, Event
from streamkeep.engine.store.command import Command
from streamkeep.engine.system.lmdb_errors import translate, translated
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.txn.read_txn import ReadTxn, Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import errors
from streamkeep.format.core.entry import Text

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

Sync = Literal["commit", "interval", "none"]
CallSync = Literal["commit", "interval", "none", "shipped"]
_SYNC_MODES: Final = ("commit", "interval", "none")


def check_sync(sync: CallSync) -> CallSync:
    """Return a sync mode of a store; raise ArgumentError for anything else."""
    if sync not in _SYNC_MODES:
        raise errors.ArgumentError(f"sync must be one of {', '.join(_SYNC_MODES)}, not {sync!r}")
    return sync


class Snapshot(FrameCommands[Text], KeyContainer[Text], StreamCommands[Text]):
    """All reading commands on one unchanging state of the store; a context manager.

    Other callers can write; a snapshot does not show their changes. The store keeps every page of
    the snapshot until it is closed, so do not keep one for long while much is written. `delete` of
    a scanned entry deletes from the store itself.

    Archive files are not kept: a segment that is dropped, or rewritten by an erasure, is gone for
    snapshots, too. A read with `history=True` then raises StaleSnapshotError, because it cannot
    return the state of the snapshot. The store's own reads use a newer snapshot instead.
    """

    def __init__(self, store: Store[Text], txn: ReadTxn) -> None:
        self._store: Store[Text] = store
        self._txn = txn
        self._set_decode(store._decode)

    def close(self) -> None:
        """Release the snapshot."""
        self._txn.close()

    def __enter__(self) -> Snapshot[Text]:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def uuid(self) -> str:
        """The identity of the store, which copies and backups share."""
        return self._store.uuid

    @property
    def commit_number(self) -> int:
        """The newest commit that it shows; `Store.changes` goes on after that."""
        return self._txn.commit_number

    @property
    def txn(self) -> ReadTxn:
        """The read transaction itself, for checks and tools."""
        return self._txn

    def stats(self) -> Iterator[StreamStat]:
        """Yield length, nodes and sizes of every stream, ascending by name."""
        self._check_open()
        with translated():
            for name, number in keys.iter_keys(self._txn):
                yield stream_stat(self._txn.load_numbered(number, name))

    def stat(self, name: Key) -> StreamStat:
        """Return length, nodes and sizes of one stream; raise NoSuchKeyError when it is missing."""
        return self._run(read(_stat, (to_bytes(name, "name"),)))

    def as_bytes(self) -> Snapshot[bytes]:
        """Return this snapshot with results as bytes, whatever the store returns."""
        if not self._decode:
            return self  # type: ignore[return-value]  # of a store of bytes
        same: Snapshot[bytes] = Snapshot(self._store, self._txn)  # type: ignore[arg-type]  # it is asked for no text
        same._set_decode(False)
        return same

    def ready_in(self, groupname: Key, names: Iterable[Key]) -> int:
        """Return in how many milliseconds XREADGROUP with `>` may return entries, or raise.

        0 means now, and -1 that only a commit, or the death of a process, can change the result.
        What a dead process had counts, as with `claim_dead="owned"` of `xreadgroup`.
        """
        streams: list[tuple[bytes, xreadgroup.Position]] = [
            (to_bytes(name, "name"), xreadgroup.NEW) for name in names
        ]
        group = to_bytes(groupname, "groupname")
        return self._run(read(xreadgroup.pause, (streams, group, None, True, True)))

    def _run(self, command: Command[Result]) -> Result:
        if command.writes:
            raise errors.StoreError("a snapshot only reads; call the method on the store")
        self._check_open()
        try:
            return command.result(command.run(self._txn, *command.args))
        except lmdb.Error as error:
            raise translate(error) from error
        except Unreadable as gone:
            if self._store._environment.read(gone.still_named):
                raise gone.error from None
            raise errors.StaleSnapshotError(
                f"{gone.record.where} was dropped or rewritten since this snapshot was taken; take "
                "a new one, or read from the store"
            ) from None

    def _check_open(self) -> None:
        if not self._txn.open:
            raise errors.StoreClosedError("the snapshot is closed; next: take a new one")
        self._txn.context.check_open()  # a forked child has it, too: its slot is the parent's

    def _deleter(self) -> Delete:
        return self._store.xdel

    def _reading(self) -> AbstractContextManager[ReadTxn]:
        self._check_open()
        return nullcontext(self._txn)


class Transaction(FrameCommands[Text], KeyContainer[Text], StreamCommands[Text]):
    """Several commands as one: `with store.transaction() as txn:`.

    Commands see the changes of earlier commands in the transaction. Other callers see all changes
    after the block, or none if the block raises. A transaction holds the only write lock of the
    store, so keep it short. Use it in the thread that began it, and call no writing method of the
    store itself inside the block.

    A CommandError may be caught inside the block, because that command has changed nothing. Any
    other error that interrupts a writing command, such as a full store, undoes the whole
    transaction, and the block ends with an error even if that one was caught.
    """

    _late_text = True
    _in_own_thread = True

    def _deleter(self) -> Delete:
        # Without a reference, which classes of `scan` would keep until the garbage is collected.
        this = weakref.ref(self)

        def delete(name: bytes, entry_id: Any) -> int:
            txn = this()
            if txn is None:
                raise errors.StoreClosedError(
                    "the transaction of this entry has ended; next: use xdel"
                )
            return txn.xdel(name, entry_id)

        return delete

    def __init__(self, store: Store[Text], txn: WriteTxn) -> None:
        self._store: Store[Text] = store
        self._txn = txn
        self._set_decode(store._decode)
        self._thread = threading.get_ident()
        self._broken: BaseException | None = None  # the error that interrupted a command

    @property
    def txn(self) -> WriteTxn:
        """The write transaction itself, for pipelines and tools."""
        if self._txn.context.forked:
            self._check_usable()
        return self._txn

    def as_bytes(self) -> Transaction[bytes]:
        """Return this transaction with results as bytes, whatever the store returns."""
        if not self._decode:
            return self  # type: ignore[return-value]  # of a store of bytes
        same: Any = copy(self)
        same._scan_kinds = {}  # whose entries would belong to this object
        same._set_decode(False)
        return same  # type: ignore[no-any-return]

    def interrupt(self, error: BaseException) -> None:
        """Undo everything, because of an error; the block then ends with an error, too."""
        self._broken = error
        self._txn.abort()

    def is_open(self) -> bool:
        """Return whether it may take more commands."""
        return self._txn.open

    def abort(self) -> None:
        """Undo everything. The block may continue, but the transaction accepts no more commands."""
        self._txn.abort()

    def wake(self, key: Key, group: Key | None = None, count: int = 1) -> None:
        """Wake readers that wait for a key, after the commit, as a new entry would.

        Args:
            group: wake `count` consumers of this group; by default all callers of `read_when`, and
                of XREAD, that wait for the key.
        """
        name = to_bytes(key, "key")
        if group is None:
            self._txn.events.append(Event(name, None, READ, EVERYONE))
        else:
            self._txn.events.append(Event(name, to_bytes(group, "group"), GROUP, count))

    def check_whole(self) -> None:
        """Raise if a command was interrupted, which undid the transaction."""
        if self._broken is not None:
            raise errors.StoreError(
                "nothing of the transaction was written, since one of its commands failed "
                f"({self._broken}); run all of it again"
            ) from self._broken

    def _run(self, command: Command[Result]) -> Result:
        txn = self._txn
        # In a forked child, LMDB could write pages of the parent's transaction to the data file.
        if not txn.open or threading.get_ident() != self._thread or txn.context.forked:
            self._check_usable()
        try:
            reply = command.run(txn, *command.args)
        except errors.CommandError:
            raise
        except Unreadable as gone:
            raise gone.error from None
        except lmdb.Error as error:
            told = translate(error)
            self.interrupt(told)
            raise told from error
        except BaseException as error:
            if command.writes:
                self.interrupt(error)
            raise
        return command.result(reply)

    def _check_usable(self) -> None:
        if self._txn.context.forked:
            self._txn.context.check_open()
        if self._txn.open and threading.get_ident() != self._thread:
            raise errors.StoreError("a transaction belongs to the thread that began it")
        self.check_whole()
        if not self._txn.open:
            raise errors.StoreClosedError("the transaction has ended; next: begin another one")

    def _reading(self) -> AbstractContextManager[ReadTxn]:
        self._check_usable()
        return nullcontext(self._txn)  # type: ignore[arg-type]  # both kinds read alike


class SyncView(FrameCommands[Text], KeyContainer[Text], StreamCommands[Text]):
    """The commands of a store with another sync mode: `store.using(sync="none").xadd(...)`."""

    def __init__(self, store: Store[Text], sync: CallSync) -> None:
        self._store: Store[Text] = store
        self._set_decode(store._decode)
        self._ships = sync == "shipped"
        self._wait = self._ships or check_sync(sync) == "commit"

    def _run(self, command: Command[Result]) -> Result:
        result = self._store._run(command, self._wait)
        if self._ships and (command.writes or command.call is not None):
            self._store._wait_for_copy(self._store._environment.newest_commit())
        return result


def _stat(txn: Txn, name: bytes) -> StreamStat:
    return stream_stat(existing_stream(txn, name))
