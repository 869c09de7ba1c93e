"""A store that follows the streams of a Redis server, and keeps what the server trims."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import FOLLOWING, hold_slot
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
from streamkeep.format.redis.rdb_values import Source
from streamkeep.format.redis.resp import read_command
from streamkeep.format.rows.following import META_FOLLOWING, FollowingRow
from streamkeep.replication.address import parse_address
from streamkeep.replication.commands import Followed, Following, all_followed, release
from streamkeep.replication.link import FileReader, Link, LinkLost, RefusedError, Stopped
from streamkeep.replication.synchronize import Synchronization
from streamkeep.transfer.aof import BATCH_BYTES, BATCH_COMMANDS, Command, CommandFailure
from streamkeep.transfer.stores import Target

Deletions = Literal["apply", "keep"]

BACKLOG: Final = 4 << 30
_SHORTEST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_DETACHED: Final = 1000  # streams of one transaction

log: Final = logging.getLogger("streamkeep.follow")


class FollowReport(NamedTuple):
    """What a store has of the server that it follows.

    Attributes:
        source: the address of the server, without the password.
        offset: in bytes of the server's stream of commands, up to which the store has everything.
        full: how often all streams were taken, since the store began to follow.
        commands, entries: how many were applied, and added, since then.
        skipped: what was left out, such as commands of other types, and how often.
        time_ms: Unix time at which the last command came.
    """

    source: str
    offset: int
    full: int
    commands: int
    entries: int
    skipped: dict[str, int]
    time_ms: int


class FollowError(StreamkeepError):
    """A command of the server cannot be applied; the store has everything before it."""


def following(store: Store[Any]) -> FollowingRow | None:
    """Return how far a store follows a server; None if it never did."""
    with store.snapshot() as snapshot:
        return following_of(snapshot.txn)


def detach(store: Store[Any]) -> int:
    """Let a store follow no more; return how many streams are its own from now on.

    They keep what they have, and archive what is trimmed as before.

    Raises:
        StoreLockedError: a process follows a server with this store.
    """
    lock = _lock(store)
    try:
        with store.snapshot() as snapshot:
            names = list(all_followed(snapshot.txn))
        for start in range(0, len(names), _DETACHED):
            with store.transaction() as transaction:
                for name in names[start : start + _DETACHED]:
                    release(transaction.txn, name)
        with store.transaction() as transaction:  # at last, so that this can be done again
            transaction.txn.delete(META, META_FOLLOWING)
    finally:
        os.close(lock)
    return len(names)


def _lock(store: Store[Any]) -> int:
    environment = store._environment
    lock = hold_slot(environment.folder.folder(JOURNAL_FOLDER), FOLLOWING)
    if lock is None:
        raise StoreLockedError(
            f"{environment.path}: another process follows a server; next: end that one"
        )
    return lock


class Follower:
    """Follows one server, until `stop` is set.

    Attributes:
        stop: set it to end `run`.
        address: of the server.
        followed: which keys are followed, and
        skip: which commands are not applied.
        resync: the streams of another server may take the place of those that the store has.
        problem: why there is no connection; empty while there is one.
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
            resync: take all streams anew, in place of going on.
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
        self.address = address._replace(password=address.password or password)
        self._match = tuple(match)
        if deletions not in ("apply", "keep"):
            raise ArgumentError(f"deletions must be 'apply' or 'keep', not {deletions!r}")
        if backlog < 1 << 20:
            raise ArgumentError(f"backlog must be 1 MiB or more, not {backlog}")
        self.followed = Followed(self._match, deletions)
        self._deletions = deletions
        self.skip = tuple(skip)
        self.resync = resync
        self._backlog = backlog
        self._target = Target(store, sync)
        self._told = told or log.info
        self._progress = progress
        self._link: Link | None = None
        self.stop = threading.Event()
        self.problem = ""

    @property
    def waiting(self) -> int:
        """Bytes that came and are not applied."""
        link = self._link
        return 0 if link is None else link.waiting

    def run(self, *, once: bool = False) -> FollowReport:
        """Follow the server; return when `stop` is set.

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
        with self._target as target:
            store = target.store()
            lock = _lock(store)
            try:
                row = self._begin(store)
                return self._run(target, store, row, once)
            finally:
                os.close(lock)

    def _begin(self, store: Store[Any]) -> FollowingRow:
        """Return the row to go on from."""
        address = self.address
        row = following(store)
        if row is None:
            return FollowingRow(
                address.shown(),
                database=address.database,
                match=self._match,
                deletions=self._deletions,
            )
        settings = (row.match, row.deletions)
        if self.resync or settings != (self._match, self._deletions):
            row = row._replace(replication_id="")
        if row.database != address.database and not self.resync:
            raise StoreError(
                f"the store follows {row.source}, another database than {address.database}; next: "
                "take another store, or all streams anew with resync=True (--resync)"
            )
        return row._replace(database=address.database, match=self._match, deletions=self._deletions)

    def _run(
        self, target: Target, store: Store[Any], row: FollowingRow, once: bool
    ) -> FollowReport:
        session = _Session(self, target, store, row)
        durable = store._waits(target.sync)
        pause = _SHORTEST_PAUSE_S
        while not self.stop.is_set():
            before = session.row.offset
            try:
                self._link = Link(self.address, store.path, self._backlog, durable=durable)
                session.run(self._link, once)
            except Stopped:
                break
            except RefusedError as error:
                raise RefusedError(f"{self.address.shown()}: {error}") from error
            except (LinkLost, StoreFullError) as error:
                if once:
                    raise type(error)(f"{self.address.shown()}: {error}") from error
                self._lost(str(error))
            finally:
                if self._link is not None:
                    self._link.close()
                    self._link = None
            pause = _SHORTEST_PAUSE_S if session.row.offset != before else pause * 2
            pause = min(pause, _LONGEST_PAUSE_S)
            self.stop.wait(pause)
        row = session.row
        return FollowReport(
            row.source, row.offset, row.full, row.commands, row.entries, row.skipped, row.time_ms
        )

    def connected(self, full: bool) -> None:
        """Say that the connection is made."""
        self.problem = ""
        how = "took all its streams, and follows" if full else "goes on"
        self._told(f"{self.address.shown()}: {how}")

    def told(self, text: str) -> None:
        """Say something."""
        self._told(text)

    def progressed(self, done: int, total: int | None) -> None:
        """Say how much of the file of all keys was read."""
        if self._progress is not None:
            self._progress(done, total)

    def _lost(self, problem: str) -> None:
        if problem != self.problem:
            self._told(f"{self.address.shown()}: {problem}; trying again")
        self.problem = problem


class _Session:
    """What one connection after the other brings.

    Attributes:
        row: how far the store is.
    """

    def __init__(
        self, follower: Follower, target: Target, store: Store[Any], row: FollowingRow
    ) -> None:
        self._follower = follower
        self._target = target
        self._store = store
        self.row = row
        self._batch: list[Command] = []
        self._multi = -1  # where in it a MULTI is that has no EXEC yet
        self._size = 0

    def run(self, link: Link, once: bool) -> None:
        """Take what a connection brings, until it ends.

        Raises:
            Stopped: the follower is to end, or has what it was to get.
            LinkLost: the connection is lost.
        """
        follower = self._follower
        end = link.offset() if once else -1
        answer = link.psync(self.row.replication_id, self.row.offset)
        rest = b""
        if answer.full:
            self._check_source()
            rest = self._synchronize(link, answer.replication_id, answer.offset)
            link.loading = False
        self.row = self.row._replace(
            source=follower.address.shown(), replication_id=answer.replication_id
        )
        follower.connected(answer.full)
        commands = Following(self._target, follower.followed, self.row, follower.skip)
        self._batch, self._multi, self._size = [], -1, 0
        where = follower.address.shown()

        def more(size: int) -> bytes:
            if not link.waiting:  # what has come is applied before the wait for more
                self._apply(commands, link)
                if 0 <= end <= self.row.offset:
                    raise Stopped
            return link.read(follower.stop)

        source = Source(more, where, rest)
        begin = self.row.offset
        number = 0
        link.acknowledged = begin
        try:
            while True:
                words = read_command(source)
                if not words:
                    continue
                number += 1
                name = words[0].upper()
                if name == b"MULTI":
                    self._multi = len(self._batch)
                elif name == b"EXEC":
                    self._multi = -1
                asks = name == b"REPLCONF"  # for the offset; it counts as bytes, as PING does
                self._batch.append((number, begin + source.offset, [b"PING"] if asks else words))
                self._size += sum(map(len, words))
                if asks or len(self._batch) >= BATCH_COMMANDS or self._size >= BATCH_BYTES:
                    self._apply(commands, link)
                    if asks:
                        link.acknowledge_now()
                    if follower.stop.is_set():
                        raise Stopped
        except CorruptionError as error:
            if error.where != where:
                raise
            raise LinkLost(str(error)) from error

    def _apply(self, commands: Following, link: Link) -> None:
        """Apply the commands that have come, except those of a transaction that has no end yet."""
        end = len(self._batch) if self._multi < 0 else self._multi
        if not end:
            return
        batch, self._batch, self._size = self._batch[:end], self._batch[end:], 0
        self._multi = min(self._multi, 0)
        commands.came_ms = link.came_ms
        try:
            commands.run_batch(batch)
        except CommandFailure as failure:
            self.row = commands.row
            if not commands.anew:
                raise FollowError(
                    f"{failure}; the store has everything before it; next: if the command changes "
                    f"no stream, leave it out with skip (--skip {failure.name}), or take all "
                    "streams anew with resync=True (--resync)"
                ) from failure
            self.row = self.row._replace(replication_id="")
            raise LinkLost(f"{failure}: all streams are taken anew") from failure
        self.row = commands.row
        link.acknowledged = self.row.offset

    def _check_source(self) -> None:
        """Refuse the file of a server that has another history than the one followed so far."""
        row, follower = self.row, self._follower
        if row.full and row.source != follower.address.shown() and not follower.resync:
            raise StoreError(
                f"the store follows {row.source}, and {follower.address.shown()} does not go on "
                "where that was; next: take another store, or take all streams of this server with "
                "resync=True (--resync)"
            )

    def _synchronize(self, link: Link, replication_id: str, offset: int) -> bytes:
        """Take all streams; return the bytes that came after the file."""
        follower = self._follower
        reader = FileReader(lambda: link.read(follower.stop))
        where = f"{follower.address.shown()}, file of all keys"
        synchronization = Synchronization(self._store, follower.followed, self.row)

        def read(size: int) -> bytes:
            if follower.stop.is_set():  # without a wait for the rest of the file
                raise Stopped
            data = reader.read(size)
            follower.progressed(reader.done, reader.total)
            return data

        try:
            self.row = synchronization.run(read, where, replication_id, offset)
        except (CommandError, CorruptionError) as error:
            if isinstance(error, CorruptionError) and not error.where.startswith(where):
                raise
            raise FollowError(f"{error}; no stream was changed by this file") from error
        for kind, count in synchronization.losses.items():
            follower.told(f"{where}: {count} with another type, {kind}: not followed")
        return reader.rest
