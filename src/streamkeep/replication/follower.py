"""A store that follows the streams of a Redis server, and keeps what the server trims."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, Final, Literal

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import FOLLOWING, SlotLock, hold_slot
from streamkeep.engine.store.durability import following_of
from streamkeep.format.core.errors import (
    ArgumentError,
    CommandError,
    CorruptionError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StreamkeepError,
)
from streamkeep.format.core.keys import META
from streamkeep.format.core.values import texts, whole
from streamkeep.format.humanize import count_text, entries_text
from streamkeep.format.quoting import named
from streamkeep.format.redis.rdb_values import Source
from streamkeep.format.redis.resp import read_command
from streamkeep.format.rows.meta_rows import META_FOLLOWING, FollowingRow
from streamkeep.format.rows.retention import NO_RETENTION
from streamkeep.replication.address import parse_address
from streamkeep.replication.commands import Followed, Following, all_followed, own_keys, put_row
from streamkeep.replication.link import Link, LinkLost, RefusedError, Stopped
from streamkeep.replication.synchronize import Synchronization
from streamkeep.transfer.aof import CommandFailure, SkippedKey
from streamkeep.transfer.stores import Target

Deletions = Literal["apply", "keep"]

BACKLOG: Final = 4 << 30
_SHORTEST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_DETACHED: Final = 1000  # streams of one transaction
_NAMED: Final = 3  # keys in an error

log: Final = logging.getLogger("streamkeep.follow")


class FollowError(StreamkeepError):
    """A command of the server cannot be applied; the store has everything before it."""


class _Anew(LinkLost):
    """The connection was ended, for another one over which all streams are taken anew."""


def following(store: Store[Any]) -> FollowingRow | None:
    """Return how far a store follows a server; None if it never did."""
    with store.snapshot() as snapshot:
        return following_of(snapshot.txn)


def attach(store: Store[Any], source: str) -> None:
    """Have the servers of a store follow a Redis server, whenever they run (REPLICAOF).

    Raises:
        ArgumentError: the address cannot be used.
        StoreLockedError: a process follows a server with this store.
        StoreError: the store has streams or strings of its own; nothing has changed.
    """
    address = parse_address(source)
    shown, now = address.shown(), int(time.time() * 1000)
    new = FollowingRow(shown, database=address.database, since_ms=now, time_ms=now)
    with closing(_lock(store)):
        with store.snapshot() as snapshot:
            row = following_of(snapshot.txn) or new
            own = [named(name) for name in islice(own_keys(snapshot.txn), _NAMED + 1)]
        if row.replicaof == shown:
            return
        if own:  # a Redis would delete them
            names = ", ".join(own[:_NAMED]) + " and others" * (len(own) > _NAMED)
            raise StoreError(
                f"the store has keys of its own, which no replica of {shown} would have: {names}; "
                "next: delete them, or add the streams of that server to them with `streamkeep "
                "follow`"
            )
        with store.transaction() as transaction:
            put_row(transaction.txn, row._replace(replicaof=shown))


def detach(store: Store[Any]) -> int:
    """Let a store follow no more; return how many streams are its own from now on.

    They keep what they have, and archive what is trimmed as before.

    Raises:
        StoreLockedError: a process follows a server with this store.
    """
    with closing(_lock(store)):
        with store.snapshot() as snapshot:
            if following_of(snapshot.txn) is None:
                return 0
            names = list(all_followed(snapshot.txn))
        for start in range(0, len(names), _DETACHED):
            with store.transaction() as transaction:
                for name in names[start : start + _DETACHED]:
                    stream = transaction.txn.find_stream(name)
                    if stream is not None:
                        retention = stream.retention() or NO_RETENTION
                        stream.set_retention(retention._replace(follows=False))
        with store.transaction() as transaction:  # at last, so that this can be done again
            transaction.txn.delete(META, META_FOLLOWING)
    return len(names)


def _lock(store: Store[Any]) -> SlotLock:
    environment = store._environment
    lock = hold_slot(environment.folder.folder(JOURNAL_FOLDER), FOLLOWING)
    if lock is None:
        raise StoreLockedError(
            f"{environment.path}: another process follows a server; next: end that one"
        )
    return lock


def lost_text(entries: int) -> str:
    return f"{entries_text(entries)} that Redis had trimmed or deleted by then never came here"


class Follower:
    """Follows one server, until `stop` is set.

    Attributes:
        stop: set it to end `run`.
        problem: why there is no connection; empty while there is one.
        state: "connect", "connecting", "sync" or "connected", as ROLE says it.
        address: where the server is; a change counts for the next connection.
        lost: entries that this object missed: when it took all streams, the server had trimmed or
            deleted them.
    """

    def __init__(
        self,
        source: str,
        store: Store[Any] | str | os.PathLike[str],
        *,
        match: Iterable[str] = (),
        deletions: Deletions = "apply",
        skip: Iterable[str] = (),
        resync: bool = False,
        backlog: int = BACKLOG,
        password: str = "",
        sync: Sync | None = None,
        told: Callable[[str], None] | None = None,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> None:
        """Prepare to follow.

        Args:
            source: redis://[user:password@]host[:port][/db], rediss://, or unix:///socket[?db=0].
            store: an open store, or the path of one; it is created where there is none.
            match: patterns of the keys to follow, as those of KEYS; none for all.
            deletions: "apply": what is deleted on the server goes; "keep": it goes to the archive,
                as what is trimmed does.
            skip: names of commands that are not applied, but counted.
            resync: take all streams anew, in place of going on, and forget what was lost.
            backlog: bytes that may have come and not be applied yet, on the disk of the store.
            password: where the address has none.
            sync: as in `streamkeep.open`; None for that of the open store, or "commit".
            told: is called with a sentence when the connection is made, lost or refused.
            progress: is called while all streams are taken, with the bytes read, and how many there
                are; None where the server does not say that.

        Raises:
            ArgumentError: the address, a pattern or an option cannot be used.
        """
        address = parse_address(source)
        if deletions not in ("apply", "keep"):
            raise ArgumentError(f"deletions must be 'apply' or 'keep', not {deletions!r}")
        whole(backlog, "backlog", 1 << 20)
        self.address = address._replace(password=address.password or password)
        self._name = address.shown()
        self._match = texts(match, "match")
        self._followed = Followed(self._match, deletions)
        self._deletions = deletions
        self._skip = texts(skip, "skip")
        self._resync = resync
        self._backlog = backlog
        self._target = Target(store, sync)
        self._told = told or log.info
        self._warned = told or log.warning
        self._progress = progress
        self._row = FollowingRow("")
        self._link: Link | None = None
        self._lock: SlotLock | None = None
        self._busy = threading.Lock()  # held while `run` may use the store
        self.stop = threading.Event()
        self.problem = ""
        self.state = "connect"
        self.lost = 0

    def run(self, *, once: bool = False) -> FollowingRow:
        """Follow the server; return when `stop` is set, with what `following` returns.

        A connection that is lost is made again. The offset changes in the transactions that apply
        the commands, so that a process which is killed leaves nothing out, and applies nothing
        twice.

        Args:
            once: return when the store has what the server had at the beginning.

        Raises:
            FollowError: a command cannot be applied: it is unknown, or the streams in the store
                were changed by others.
            RefusedError: the server does not let this client follow it.
            LinkLost: with `once`: there is no connection.
            StoreLockedError: another process follows a server with this store.
            StoreError: the store follows another server, or cannot be written.
        """
        with self._busy, self._target as target:
            if self.stop.is_set():
                return self._row
            store = target.store()
            self._lock = _lock(store)
            try:
                self._row = self._begin(store)
                self._keep_on(store, once)
            finally:
                self._lock.close()
        return self._row

    def end(self) -> None:
        """End `run` of another thread: when this returns, it changes the store no more.

        It may go on for the time of an attempt to connect, and other threads and processes may
        follow a server with the store meanwhile.
        """
        self.stop.set()
        link = self._link  # which the other thread may end now
        if link is not None:
            link.interrupt()
        with self._busy:
            if self._lock is not None:
                self._lock.close()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Let `end` return while the block runs."""
        self._busy.release()
        try:
            yield
        finally:
            self._busy.acquire()

    def _begin(self, store: Store[Any]) -> FollowingRow:
        database = self.address.database
        row = following(store) or FollowingRow(
            self._name, database=database, match=self._match, deletions=self._deletions
        )
        if self._resync or (row.match, row.deletions) != (self._match, self._deletions):
            row = row._replace(replication_id="", lost=0 if self._resync else row.lost)
        if row.database != database and not self._resync:
            raise StoreError(
                f"the store follows {row.source}, another database than {database}; next: "
                "take another store, or all streams anew with resync=True (--resync)"
            )
        return row._replace(database=database, match=self._match, deletions=self._deletions)

    def _keep_on(self, store: Store[Any], once: bool) -> None:
        pause = _SHORTEST_PAUSE_S
        while not self.stop.is_set():
            before = self._row.offset
            durable = store._waits(self._target.sync)
            self.state = "connecting"
            try:
                with self._waiting():
                    self._link = Link(self.address, store.path, self._backlog, durable=durable)
                if self.stop.is_set():
                    return
                self._follow(store, self._link, once)
            except Stopped:
                return
            except RefusedError as error:
                raise RefusedError(f"{self._name}: {error}") from error
            except (LinkLost, StoreFullError) as error:
                if self.stop.is_set():
                    return
                if once and not isinstance(error, _Anew):
                    raise type(error)(f"{self._name}: {error}") from error
                if str(error) != self.problem:
                    self._told(f"{self._name}: {error}; trying again")
                self.problem = str(error)
            finally:
                self.state = "connect"
                if self._link is not None:
                    self._link.close()
                    self._link = None
            pause = _SHORTEST_PAUSE_S if self._row.offset != before else pause * 2
            pause = min(pause, _LONGEST_PAUSE_S)
            with self._waiting():
                self.stop.wait(pause)

    def _follow(self, store: Store[Any], link: Link, once: bool) -> None:
        """Take what a connection brings, until it ends.

        Raises:
            Stopped: the follower is to end, or has what it was to get.
            LinkLost: the connection is lost.
        """
        end = link.offset() if once else -1
        full, replication_id, offset = link.psync(self._row.replication_id, self._row.offset)
        rest = b""
        if full:
            self.state = "sync"
            rest = self._synchronize(store, link, replication_id, offset)
        row = self._row._replace(source=self._name, replication_id=replication_id)
        if row != self._row:  # a later start compares its server with this one
            with store.transaction() as transaction:
                put_row(transaction.txn, row)
            self._row = row
        self.problem, self.state = "", "connected"
        how = "took all its streams, and follows" if full else "goes on"
        self._told(f"{self._name}: {how}")

        def moved(entries: int) -> None:
            self._row = commands.row
            link.acknowledged = self._row.offset

        def more(size: int) -> bytes:
            if not link.spool.size:  # what has come is applied before the wait for more
                commands.flush()
                if 0 <= end <= self._row.offset:
                    raise Stopped
            data = link.read(self.stop)
            commands.came_ms = int(link.spool.came * 1000)
            return data

        commands = Following(self._target, self._followed, self._row, self._skip, moved)
        commands.came_ms = int(link.spool.came * 1000)
        source = Source(more, self._name, rest)
        begin = link.acknowledged = self._row.offset
        if full:
            link.loading = False  # after `acknowledged`, which another thread sends from now on
            link.acknowledge_now()
        number = 0
        try:
            while True:
                words = read_command(source)
                if not words:
                    continue
                number += 1
                asks = words[0].upper() == b"REPLCONF"  # for the offset; it counts, as PING does
                commands.add((number, begin + source.offset, [b"PING"] if asks else words))
                if asks:
                    commands.flush()
                    link.acknowledge_now()
                if self.stop.is_set():
                    commands.flush()
                    raise Stopped
        except CorruptionError as error:
            if error.where != self._name:
                raise
            raise LinkLost(str(error)) from error
        except CommandFailure as failure:
            if isinstance(commands.refusal, SkippedKey):
                self._row = self._row._replace(replication_id="")
                raise _Anew(f"{failure}: all streams are taken anew") from failure
            raise FollowError(
                f"{failure}; the store has everything before it; next: if the command changes no "
                f"stream, leave it out with skip (--skip {failure.name}), or take all streams anew "
                "with resync=True (--resync)"
            ) from failure

    def _synchronize(
        self, store: Store[Any], link: Link, replication_id: str, offset: int
    ) -> bytes:
        """Take all streams; return the bytes that came after the file."""
        row, done = self._row, 0
        if row.full and row.source != self._name and not self._resync:  # it has another history
            raise StoreError(
                f"the store follows {row.source}, and {self._name} does not go on where that was; "
                "next: take another store, or take all streams of this server with resync=True "
                "(--resync)"
            )
        where = f"{self._name}, file of all keys"
        synchronization = Synchronization(store, self._followed, row)

        def read(size: int) -> bytes:
            nonlocal done
            if self.stop.is_set():  # without a wait for the rest of the file
                raise Stopped
            data = link.read(self.stop)
            done += len(data)
            if self._progress is not None:
                total = synchronization.total
                self._progress(done if total is None else min(done, total), total)
            return data

        try:
            self._row = synchronization.run(read, where, replication_id, offset)
        except (CommandError, CorruptionError) as error:
            if isinstance(error, CorruptionError) and not error.where.startswith(where):
                raise
            raise FollowError(f"{error}; no stream was changed by this file") from error
        for kind, count in synchronization.losses.items():
            self._told(f"{where}: {count} with another type, {kind}: not followed")
        if synchronization.lost:
            self.lost += synchronization.lost
            self._warned(f"{self._name}: {lost_text(synchronization.lost)}")
        if synchronization.dropped:
            kept = self._followed.retention.archive_deleted
            self._warned(
                f"{self._name}: {'archived' if kept else 'deleted'} "
                f"{count_text(synchronization.dropped, 'stream')} with "
                f"{entries_text(synchronization.dropped_entries)}: "
                "the server has none of that name, or one with another history"
            )
        if synchronization.hidden:
            self._warned(
                f"{self._name}: {entries_text(synchronization.hidden)} that it has stay in the "
                "history only, since they were trimmed before"
            )
        return synchronization.rest
