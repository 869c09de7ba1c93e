"""Feeds replicas, as a primary of Redis does: a file of everything, then commands.

The commands come from the store and not from this server's clients, since other processes write,
too. The feed has a snapshot whose state a replica shows that has executed everything so far. A
hundred times in a second, it compares that with a new snapshot, in the rows that the journal names,
and sends what differs in a transaction. So a replica goes from a state of the store to a later one;
it leaves out those between, and a large difference goes over in several transactions.

What was sent is in memory: as much as a replica that comes back may miss (`BACKLOG_BYTES`), and
more for one that is slow (`MOST_BEHIND_BYTES`), which then loses its connection. A replica's own
buffer is that of its socket. While all replicas are behind, nothing is compared, only the names of
changed rows are collected: many changes of a row become one.

Everything runs in the event loop, in slices between the turns of clients.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

from streamkeep.engine.store.environment import Environment
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.redis.resp import encode_command
from streamkeep.format.redis.stream_dump import TARGETS, Losses
from streamkeep.replication.changes import Log
from streamkeep.replication.steps import Step, file_of

BACKLOG_BYTES: Final = 16 << 20
MOST_BEHIND_BYTES: Final = 256 << 20
BACKLOG_S: Final = 3600.0  # how long the feed goes on without a replica, as in Redis
TIMEOUT_S: Final = 60.0
_STEP_S: Final = 0.01
_IDLE_STEP_S: Final = 0.1  # without a replica
_SLICE_S: Final = 0.002
_MOST_SLICE_S: Final = 0.016  # while it cannot keep up
_FRESH_S: Final = 1.0  # a snapshot keeps pages of LMDB from being used again
_PING_S: Final = 10.0
_AHEAD: Final = 1 << 20  # bytes that the fastest replica lacks, from which on nothing is compared
_TRANSACTION: Final = 1 << 20  # bytes
_PIECE: Final = 64 << 10
_MARKS: Final = 1000  # steps that WAIT can tell apart
_MULTI: Final = encode_command("MULTI")
_EXEC: Final = encode_command("EXEC")

log = logging.getLogger("streamkeep.server")


class Replica:
    """A client that has said that it is a replica.

    Attributes:
        attached, answered: it has sent PSYNC, and has the answer to that.
        position: bytes of the feed that were sent to it, or that it had; -1 before that is known.
        snapshot, file: what it is sent first; the file is None before and after.
        online: it has its answer, and the file, and is sent the feed.
        acked, on_disk: bytes of the feed that it has executed, and has in its append-only file.
        moved: when it last took bytes, in Unix seconds.
    """

    def __init__(self, client: Any) -> None:
        self.client = client  # a `resp.connection.Connection`
        self.host = ""
        self.port = 0
        self.takes_mark = False  # the end of a file whose size is not known (capa eof)
        self.file_only = False
        self.greets = True
        self.attached = self.answered = False
        self.position = -1
        self.snapshot: ReadTxn | None = None
        self.file: Iterator[bytes] | None = None
        self.online = False
        self.acked = self.on_disk = 0
        self.moved = 0.0
        self.pumping = False

    @property
    def state(self) -> str:
        """What INFO calls it."""
        if self.online:
            return "online"
        return "wait_bgsave" if self.position < 0 else "send_bulk"


class Primary:
    """The feed of one store, and its replicas.

    Attributes:
        id: of the feed, random: another process, or a feed that began anew, has another one.
        end: bytes of the feed so far.
        before: the state that the feed leads to; None while nothing is fed.
        moved: set for a moment when the feed or a replica has come further.
    """

    def __init__(
        self,
        environment: Environment,
        loop: asyncio.AbstractEventLoop,
        drop: Callable[[Any, str], None],
    ) -> None:
        self.environment = environment
        self.loop = loop
        self.target = TARGETS["7.0"]
        self.backlog_bytes = BACKLOG_BYTES
        self.most_behind_bytes = MOST_BEHIND_BYTES
        self.timeout_s = TIMEOUT_S
        self.replicas: list[Replica] = []
        self.full_syncs = self.partial_syncs = self.refused_partial_syncs = 0
        self.before: ReadTxn | None = None
        self.losses = Losses()
        self.moved = asyncio.Event()
        self._said: set[str] = set()
        self._drop = drop
        self._timer: asyncio.TimerHandle | None = None
        self._begin_id()

    def _begin_id(self) -> None:
        self.id = secrets.token_hex(20)
        self.end = 0
        self._data = bytearray()
        self._log: Log | None = None
        self._step: Iterator[bytes] | None = None
        self._after: ReadTxn | None = None
        self._out: list[bytes] = []
        self._size = 0
        self._marks: list[tuple[int, int]] = []  # commits, and the end of the feed with them
        self._erasures = 0
        self._slice_s = _SLICE_S
        self._began = self._used = self._pinged = time.monotonic()

    @property
    def start(self) -> int:
        return self.end - len(self._data)

    # --- replicas ---------------------------------------------------------------------------

    def attach(self, replica: Replica, feed: str, position: int) -> None:
        """Answer PSYNC; raise StoreError if the store cannot be fed.

        Args:
            feed: its ID; empty for SYNC, which gets a file without a word about it.
            position: bytes of it that the replica has.
        """
        if self.before is None:
            self._begin_id()
            self.end = 1  # as in Redis: 0 is what a replica says that has executed nothing
            control = self.environment.context.control
            self._erasures = 0 if control is None else control.erasures()
            self._log = Log(self.environment)
            self.before = self._log.first
            self._mark()
            self._schedule(_STEP_S)
        replica.attached = True
        replica.greets = bool(feed)
        replica.moved = time.time()
        if feed == self.id and self.start <= position <= self.end:
            self.partial_syncs += 1
            replica.position = replica.acked = position
        else:
            self.refused_partial_syncs += feed not in ("", "?")
        self.replicas.append(replica)
        self.loop.call_soon(self._greet, replica)

    def detach(self, replica: Replica) -> None:
        """Forget a replica, whose connection has ended."""
        if replica in self.replicas:
            self.replicas.remove(replica)
            self._used = time.monotonic()
            self._let_go(replica)

    def acknowledge(self, replica: Replica, position: int) -> None:
        replica.acked = max(replica.acked, position)
        written = replica.snapshot is not None and replica.file is None
        if replica.attached and written and position >= replica.position:
            self._put_online(replica)
        self._tell()

    def _tell(self) -> None:
        self.moved.set()
        self.moved.clear()

    def acknowledged(self, commit_number: int, *, on_disk: bool = False) -> int:
        """Return how many replicas have executed a commit, or have it on their disks."""
        place = bisect_left(self._marks, (commit_number, 0))
        if place == len(self._marks):
            return 0
        places = [one.on_disk if on_disk else one.acked for one in self.replicas if one.online]
        return sum(one >= self._marks[place][1] for one in places)

    def ask(self, commit_number: int) -> bool:
        """Have the replicas say that they have a commit; return whether the feed has it yet."""
        if not self.before or self.before.commit_number < commit_number:
            if self._step is None:
                self._schedule(0)  # a client waits
            return False
        self._feed(encode_command("REPLCONF", "GETACK", "*"))
        self._pump_all()
        return True

    def _greet(self, replica: Replica) -> None:
        """Begin to send to a replica, after the replies that it still gets."""
        client = replica.client
        if replica.answered or client.closing:
            return
        if client.out:
            self.loop.call_later(_STEP_S, self._greet, replica)
        elif replica.position >= 0:
            replica.answered = True
            client.transport.write(f"+CONTINUE {self.id}\r\n".encode())
            self._put_online(replica)
        elif self._step is None:
            replica.answered = True  # with the state that the feed leads to
            assert self.before is not None
            self.full_syncs += 1
            replica.snapshot, replica.position = self.before, self.end
            replica.file = self._file(replica, self.before)
            self._feed(encode_command("SELECT", 0))  # which another feed may have left elsewhere
            where = self.address_of(replica)
            log.info("%s: a full copy for the replica %s", self.environment.path, where)
            self.pump(replica)

    def _file(self, replica: Replica, txn: ReadTxn) -> Iterator[bytes]:
        if replica.greets:
            yield f"+FULLRESYNC {self.id} {replica.position}\r\n".encode()
        if replica.takes_mark:
            mark = secrets.token_hex(20).encode()
            yield b"$EOF:" + mark + b"\r\n"
            yield from file_of(txn, self.target, self.losses)
            yield mark
            return
        size = 0
        for piece in file_of(txn, self.target, Losses()):
            size += len(piece)
            yield b""
        yield b"$%d\r\n" % size
        yield from file_of(txn, self.target, self.losses)

    def _pump_all(self) -> None:
        for replica in list(self.replicas):
            self.pump(replica)

    def pump(self, replica: Replica) -> None:
        """Send what the socket of a replica takes, for the time of a slice."""
        client = replica.client
        until = time.monotonic() + _SLICE_S
        while not client.full and not client.closing and not client.transport.is_closing():
            if replica.file is not None:
                data = self._next_piece(replica)
            elif replica.online and replica.position < self.end:
                at = replica.position - self.start
                data = bytes(self._data[at : at + _PIECE])
                replica.position += len(data)
            else:
                return
            if data:
                replica.moved = time.time()
                client.transport.write(data)
            if time.monotonic() > until:
                if not replica.pumping:
                    replica.pumping = True
                    self.loop.call_soon(self._pump_on, replica)
                return

    def _pump_on(self, replica: Replica) -> None:
        replica.pumping = False
        self.pump(replica)

    def _next_piece(self, replica: Replica) -> bytes:
        """Return a piece of the file of a replica; empty after the last one."""
        assert replica.file is not None
        try:
            piece = next(replica.file, None)
        except StreamkeepError as error:
            self._drop(replica.client, f"the store cannot be copied: {error}")
            return b""
        if piece is not None:
            return piece
        self._say_losses()
        replica.file = None
        if replica.file_only:
            self._let_go(replica)
            replica.client.transport.close()
        elif not replica.takes_mark:
            self._put_online(replica)
        # Others look for the mark at the end of what they read, so nothing may follow it until
        # they have acknowledged the file.
        return b""

    def _put_online(self, replica: Replica) -> None:
        self._let_go(replica)
        replica.online = True
        self.pump(replica)

    def _let_go(self, replica: Replica) -> None:
        replica.file = None
        txn, replica.snapshot = replica.snapshot, None
        if txn is not None:
            self._release(txn)

    def _release(self, txn: ReadTxn) -> None:
        if txn is not self.before and all(one.snapshot is not txn for one in self.replicas):
            txn.close()

    # --- the feed ---------------------------------------------------------------------------

    def _schedule(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(wait_s, self._tick)

    def stop(self, why: str = "") -> None:
        """Feed nothing any more; the next replica begins another feed.

        Args:
            why: the reason that replicas, which come back, need a full copy.
        """
        if why:
            log.warning("%s: replicas get a full copy: %s", self.environment.path, why)
        for replica in list(self.replicas):
            self.replicas.remove(replica)
            self._let_go(replica)
            if why:
                self._drop(replica.client, why)
        before, self.before = self.before, None
        for txn in (before, self._after):
            if txn is not None:
                txn.close()
        if self._log is not None:
            self._log.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._begin_id()

    def _tick(self) -> None:
        self._timer = None
        try:
            wait_s = self._work()
        except StreamkeepError as error:
            self.stop(str(error))
        except Exception as error:
            log.exception("%s: the feed of replicas failed", self.environment.path)
            self.stop(f"{type(error).__name__}: {error}")
        else:
            if self.before is not None and self._timer is None:  # `ask` may have set it
                self._schedule(wait_s)

    def _work(self) -> float:
        now = time.monotonic()
        control, feed = self.environment.context.control, self._log
        self._look_after(now)
        if self.before is None or control is None or feed is None:
            return 0.0
        if control.erasures() != self._erasures:
            self.stop("entries were erased, and the feed may still have them")
            return 0.0
        newest = control.newest()
        done = feed.read(newest, now + self._slice_s)
        if done and not self._is_held():
            stale = now - self._began > _FRESH_S
            if self._step is None and (newest != self.before.commit_number or stale):
                self._began = now
                after = self._after = self.environment.begin_read()
                feed.read(after.commit_number)
                changes = feed.take()
                self._step = Step(self.before, after, changes, self.target, self.losses).commands()
            done = self._step is None or self._go_on(now + self._slice_s)
        # Busy clients leave it a slice in each of their turns: it takes more if that is too little.
        self._slice_s = _SLICE_S if done else min(2 * self._slice_s, _MOST_SLICE_S)
        return 0.0 if not done else _STEP_S if self.replicas else _IDLE_STEP_S

    def _is_held(self) -> bool:
        """Return whether every replica has enough to do."""
        online = [self.end - one.position for one in self.replicas if one.online]
        if online:
            return min(online) > _AHEAD
        return any(one.snapshot is not None for one in self.replicas)

    def _go_on(self, until: float) -> bool:
        step = self._step
        assert step is not None
        while time.monotonic() < until:
            piece = next(step, None)
            if piece:
                self._out.append(piece)
                self._size += len(piece)
                continue
            if self._out and (piece is None or self._size > _TRANSACTION):
                self._feed(b"".join((_MULTI, *self._out, _EXEC)))
                self._out, self._size = [], 0
            if piece is None:
                before, self.before = self.before, self._after
                self._step = self._after = None
                self._mark()
                if before is not None:
                    self._release(before)
                self._say_losses()
                for replica in self.replicas:
                    if replica.position < 0:
                        self._greet(replica)
                break
            if self._is_held():
                break
        self._pump_all()
        return self._step is None

    def _mark(self) -> None:
        """Note that the feed has everything up to the commit of its snapshot."""
        assert self.before is not None
        if self._marks and self._marks[-1][1] == self.end:
            self._marks.pop()
        self._marks.append((self.before.commit_number, self.end))
        if len(self._marks) > 2 * _MARKS:
            del self._marks[:_MARKS]
        self._tell()

    def _feed(self, data: bytes) -> None:
        """Add to the feed, and forget what no replica may ask for."""
        self._data += data
        self.end += len(data)
        keep = self.end - self.backlog_bytes
        for replica in list(self.replicas):
            behind = self.end - replica.position
            if replica.position >= 0 and behind > self.most_behind_bytes:
                self._drop_replica(replica, f"it is {behind} bytes behind")
            elif replica.position >= 0:
                keep = min(keep, replica.position)
        if keep > self.start:
            del self._data[: keep - self.start]

    def _drop_replica(self, replica: Replica, why: str) -> None:
        self.detach(replica)
        self._drop(replica.client, f"the replica {self.address_of(replica)}: {why}")

    def _look_after(self, now: float) -> None:
        if not self.replicas:
            if now - self._used > BACKLOG_S:
                self.stop()
            return
        wall = time.time()
        for replica in list(self.replicas):
            since = wall - max(replica.client.active, replica.moved)
            if since > self.timeout_s:
                self._drop_replica(replica, f"nothing was heard of it for {since:.0f} s")
        if now - self._pinged > _PING_S:
            self._pinged = now
            self._feed(encode_command("PING"))
            for replica in self.replicas:
                if replica.position < 0:
                    replica.client.transport.write(b"\n")  # it waits for the end of a step
            self._pump_all()

    def _say_losses(self) -> None:
        """Log what replicas do not get, once for each kind."""
        for what, count in self.losses.items():
            if what not in self._said:
                self._said.add(what)
                log.warning("%s: replicas do not get: %s (%d)", self.environment.path, what, count)

    def address_of(self, replica: Replica) -> str:
        """Return where a replica can be reached, as far as it has said so."""
        return f"{replica.host or '?'}:{replica.port}"
