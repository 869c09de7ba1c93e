"""The server: its clients, its turns, and how commits become durable before their replies leave.

One event loop runs everything but long waits for the disk, for which there are two threads. Clients
that have sent something are `ready`; the next turn runs what they have sent, in one transaction.
While a large batch waits for the disk, the next turn waits too: as many clients gather as will
share the next sync.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from streamkeep.commands.replies import CodedError
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.long_wait import StillTaken
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, StreamkeepError
from streamkeep.replication.primary import Primary
from streamkeep.server.access import REFUSED_S, Access
from streamkeep.server.resp import info
from streamkeep.server.resp.blocked import BlockedClients
from streamkeep.server.resp.connection import Connection
from streamkeep.server.resp.encoder import encode, error_text
from streamkeep.server.resp.expiry import Expiry
from streamkeep.server.resp.lock_wait import LockWait
from streamkeep.server.resp.memory import Memory
from streamkeep.server.resp.requests import ProtocolError, RequestParser
from streamkeep.server.resp.settings import Settings
from streamkeep.server.resp.turn import Turn, failure_line
from streamkeep.server.resp.turns import Turns
from streamkeep.server.resp.upstream import Upstream

_MANY: Final = 8  # clients in a batch from which on the next turn begins after its sync
_SYNC_THREADS: Final = 2
_QUICK_S: Final = 0.0003  # syncs for which the loop waits itself
_IDLE_CHECK_S: Final = 1.0
_COPIES_POLL_S: Final = 0.02
_MOMENT_S: Final = 0.05  # in which a client that reads takes something, at the end

log = logging.getLogger("streamkeep.server")


class Server:
    """Serves one store to Redis clients; `server.serve` makes it reachable.

    Args:
        store: without decode_responses; open for reading only, it refuses what writes.
        access: users and passwords.
        stopped: is called when a client has sent SHUTDOWN.
    """

    def __init__(
        self,
        store: Store[bytes],
        *,
        access: Access | None = None,
        stopped: Callable[[], object] = lambda: None,
        backup: Callable[[], object] | None = None,
    ) -> None:
        self.store = store
        self.environment = store._environment
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self, self.environment)
        self.access: Access = access or Access()
        self.settings: Settings = Settings(store, self.turns)
        self.statistics: info.Statistics = info.Statistics(self.turns)
        self.clients: dict[int, Connection] = {}
        self.memory = Memory(self)
        self.expiry = Expiry(self)
        self.blocked = BlockedClients(self.environment, self.loop, self._unblocked, self.schedule)
        self.turns.watcher = self.blocked
        self.primary = Primary(self.environment, self.loop, self.drop)
        self.upstream = Upstream(self)
        self.stopped = stopped
        self._backup = backup
        self.lock_wait = LockWait(self)
        self._next_id = 1
        self._to_sync: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._sync_batches, name="streamkeep sync", daemon=True)
            for _ in range(_SYNC_THREADS)
        ]
        for thread in self._threads:
            thread.start()
        self._sync_s = 1.0  # how long the newest sync took
        self._settling = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_timer = self.loop.call_later(_IDLE_CHECK_S, self._close_idle)

    # --- clients ----------------------------------------------------------------------------

    def has_room(self, others: int = 0) -> bool:
        """Return whether there may be another client beside others that will be clients."""
        return len(self.clients) + others < self.settings.max_clients

    def connected(self, client: Connection) -> None:
        self.statistics.connections += 1
        transport = client.transport
        if not self.has_room():
            self.statistics.refused += 1
            transport.write(b"-ERR max number of clients reached\r\n")
            transport.close()
            client.closing = True
            return
        client.id = self._next_id
        self._next_id += 1
        client.address = _address(transport, "peername")
        client.local_address = _address(transport, "sockname")
        self.clients[client.id] = client
        self.log_in_by_default(client)
        client.renew_plain()

    def disconnected(self, client: Connection) -> None:
        self.clients.pop(client.id, None)
        if client.replica is not None:
            self.primary.detach(client.replica)
            client.replica = None  # which refers to it: the collector would look for both
        self.blocked.watches.remove(client)
        self._forget(client)
        self.memory.give()
        self.end_wait(client)

    def end_wait(self, client: Connection) -> None:
        """Let a client wait no longer for entries, without a reply."""
        if client.blocked is not None:
            blocked, client.blocked = client.blocked, None
            self.blocked.remove(blocked)

    def log_in_by_default(self, client: Connection) -> None:
        client.user = self.access.default
        client.authenticated = self.access.anonymous is not None

    def log_in(self, client: Connection, name: bytes, password: bytes) -> None:
        """Make a client another user; raise if the password is wrong."""
        # Another one in this transaction was wrong: only the first guess costs time there.
        user = None if client.refused else self.access.log_in(name, password)
        if user is None:
            client.refused = True
            self.statistics.refused_logins += 1
            client.waits_for_disk += 1  # for the time of a pause, without a disk
            client.stopped = True
            self.loop.call_later(REFUSED_S, self._synced, [client], False, None, None)
            raise CodedError("WRONGPASS invalid username-password pair or user is disabled.")
        client.user = user
        client.authenticated = True
        client.renew_plain()

    def kill(self, client: Connection, turn: Turn, *, after_reply: bool) -> None:
        client.close()
        if not after_reply:
            client.transport.abort()  # `close` would wait until the peer reads
        self.end_wait(client)
        turn.clients.append(client)

    def log(self, text: str) -> None:
        log.warning("%s: %s", self.store.path, text)

    def _close_idle(self) -> None:
        self._idle_timer = self.loop.call_later(_IDLE_CHECK_S, self._close_idle)
        self.statistics.sample()
        self.memory.look()
        oldest = time.time() - limit if (limit := self.settings.timeout_s) else 0
        for client in list(self.clients.values()):
            if client.blocked is not None:
                if client.paused and client.has_gone() and not client.eof_received():
                    client.transport.abort()
            elif client.waits_for_lock or client.waits_for_disk or client.replica is not None:
                continue
            elif client.active < oldest:
                left = client.transport.get_write_buffer_size()
                if client.closing and left >= client.unread:
                    client.transport.abort()  # it reads nothing of what was sent before
                client.unread = left
                client.close()
                client.flush()

    # --- turns ------------------------------------------------------------------------------

    def renew_plain(self) -> None:
        for client in self.clients.values():
            client.renew_plain()

    def schedule(self) -> None:
        """Have a turn soon, before which something is due."""
        self.turns.due = True
        self.turns.schedule()

    def begin(self, turn: Turn) -> None:
        """Do what is due before the commands of a turn."""
        self.turns.ends = True
        try:
            self.expiry.run_due(turn)
            self.blocked.run_woken(turn)
        except StillTaken:
            self.lock_wait.put_off()
        except Exception:
            log.exception("%s: what was due in a turn failed", self.store.path)
            turn.run_apart()
            self.schedule()  # for what was not reached

    def end(self) -> None:
        """Do what commands of a turn have asked for."""
        try:
            if self.expiry.changed:
                self.expiry.renew()
            self.blocked.start_fresh()
        except Exception:
            log.exception("%s: what a turn asked for failed", self.store.path)

    def refuse(self, client: Connection, error: ProtocolError) -> None:
        """End the connection of a client that did not send a command."""
        client.reply(error_text(f"ERR Protocol error: {error}"))
        client.close()

    def drop(self, client: Connection, why: str) -> None:
        """End the connection of a client at once, without its replies."""
        self.log(f"closed client {client.id} at {client.address}: {why}")
        client.close()
        client.transport.abort()  # `close` would keep what the peer does not read
        self._forget(client)

    def _forget(self, client: Connection) -> None:
        client.parser = RequestParser()
        client.again = client.queued = None
        client.out.clear()
        client.out_size = client.unsent = client.kept = 0
        self.memory.forget(client)
        client.recount()

    def _unblocked(self, client: Connection) -> None:
        if client.blocked is not None:
            client.kept -= client.blocked.size
        client.blocked = None
        self.memory.forget(client)
        client.resume()
        if not self.turns.in_turn:
            client.flush()

    # --- the disk ---------------------------------------------------------------------------

    def hold(self, clients: list[Connection], txn: WriteTxn | None) -> None:
        """Keep the replies of these clients until a commit is on disk.

        While syncs are quick, the loop waits for the disk itself: two switches of threads take as
        long. It never waits for another thread or process.
        """
        if txn is not None and self._sync_s <= _QUICK_S:
            waits = not txn.is_on_disk()
            began = time.monotonic()
            try:
                synced = txn.wait(patient=False)
            except Exception as failure:
                synced = True
                for client in clients:
                    _replace(client, failure)
            if synced:
                if waits:
                    self._note_sync(time.monotonic() - began)
                return
        for client in clients:
            client.waits_for_disk += 1  # it may wait already: a blocked client that was served
            client.stopped = True
        big = len(clients) >= _MANY
        self.turns.big_batches += big
        self._to_sync.put((txn, clients, big))

    def _sync_batches(self) -> None:
        """Wait for the disk; in a thread of its own."""
        while True:
            batch = self._to_sync.get()
            if batch is None:
                return
            txn, held, big = batch
            error: Exception | None = None
            waits = txn is None or not txn.is_on_disk()
            began = time.monotonic()
            try:
                if txn is None:
                    self.environment.sync()
                else:
                    txn.wait()
            except Exception as failure:
                error = failure
            del txn
            taken = time.monotonic() - began if waits else None
            with suppress(RuntimeError):  # the loop was closed
                self.loop.call_soon_threadsafe(self._synced, held, big, error, taken)

    def _synced(
        self, held: list[Connection], big: bool, error: Exception | None, taken: float | None
    ) -> None:
        """Send the replies of clients whose commit is on disk.

        Args:
            taken: seconds that the wait took; None if another thread's sync had covered the commit.
        """
        if taken is not None:
            self._note_sync(taken)
        self.turns.big_batches -= big
        for client in held:
            client.waits_for_disk -= 1
            if error is not None:
                _replace(client, error)
            client.flush()
            client.resume()
        self.turns.go_on()

    def _note_sync(self, taken: float) -> None:
        self._sync_s = taken
        self.statistics.syncs.note(taken)

    def wait_for_disk(self, client: Connection) -> None:
        """Keep the replies of a client until everything that is committed now is on disk."""
        client.wrote = True
        client.waits_for_disk += 1
        client.stopped = True
        # After the commit of this turn, which this client may have a part in.
        self.loop.call_soon(self._to_sync.put, (None, [client], False))

    # --- copies elsewhere -------------------------------------------------------------------

    def copies_with(self, commit_number: int, *, on_disk: bool = False) -> int:
        """Return how many copies of the store elsewhere have a commit, and how many replicas.

        Args:
            on_disk: count only replicas that have it on disk.
        """
        shipped = sum(slot.shipped >= commit_number for slot in self.environment.following())
        return shipped + self.primary.acknowledged(commit_number, on_disk=on_disk)

    def offset_of_commits(self) -> int:
        control = self.environment.context.control
        return 0 if control is None else control.newest()

    async def wait_for_copies(self, client: Connection, wanted: int, timeout_ms: int) -> int:
        """Return how many copies have what is committed now, when they are as many as WAIT wants.

        It rides the pieces that are shipped anyway, and asks only replicas.
        """
        deadline = self.loop.time() + timeout_ms / 1000 if timeout_ms else float("inf")
        commit_number = self.offset_of_commits()
        count, asked = 0, False
        while True:
            with suppress(OSError, StreamkeepError):  # too many files are open, for example
                count = self.copies_with(commit_number)
            gone = client.closing
            if not gone and not timeout_ms:
                gone = client.ended or (client.paused and client.has_gone())
            if count >= wanted or self.loop.time() >= deadline or gone:
                return count
            asked = asked or (bool(self.primary.replicas) and self.primary.ask(commit_number))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.primary.moved.wait(), _COPIES_POLL_S)

    def answer_later(self, client: Connection, found: Coroutine[Any, Any, object]) -> None:
        """Hold the reply of a command, the last that a client gets, until a task has found it.

        The task begins after the commit of this turn, which other clients may have a part in.
        """
        client.waits_for_disk += 1
        client.stopped = True
        place = len(client.out)

        async def answer() -> None:
            try:
                reply = encode(await found, client.resp3)
            except Exception as error:
                failure = CommandError(str(error)) if isinstance(error, StreamkeepError) else error
                reply = failure_line(failure)
            client.out[place:] = [reply] * len(client.out[place:])
            self._synced([client], False, None, None)

        task = self.loop.create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settle(self, garbage: bool) -> None:
        """Do what commits have made due, in a thread."""
        if self._settling or not (garbage or self.environment.is_due()):
            return
        self._settling = True

        def settle() -> None:
            try:
                self.environment.settle()
                self.store._collect_garbage()
            finally:
                self._settling = False

        self.loop.run_in_executor(None, settle)

    # --- the whole --------------------------------------------------------------------------

    def start_backup(self) -> None:
        """Make a backup in a thread (BGSAVE)."""
        if self._backup is None:
            raise CommandError(
                "no folder for backups was given; start the server with --backup FOLDER"
            )
        if self.statistics.saving:
            raise CommandError("Background save already in progress")
        self.statistics.saving = True
        make = self._backup
        changes = int(self.turns.changes)

        def save() -> None:
            try:
                make()
                self.statistics.saved(changes)
            except Exception as error:
                self.statistics.save_failed = True
                log.error("%s: the backup failed: %s", self.store.path, error)
            finally:
                self.statistics.saving = False

        # Not of the loop, whose end would wait for it; the store's waits only for its snapshot.
        threading.Thread(None, save, "streamkeep backup", daemon=True).start()

    async def close(self, grace_s: float = 5.0) -> None:
        """Send the replies that wait for the disk, and close all connections."""
        deadline = self.loop.time() + grace_s
        while self.loop.time() < deadline and any(
            client.waits_for_disk or client.in_ready or client.waits_for_lock
            for client in self.clients.values()
        ):
            await asyncio.sleep(0.005)
        self._idle_timer.cancel()
        if self.statistics.saving:
            self.log("a backup has not ended, and does with the server; the next one begins anew")
        await self.upstream.close()
        self.primary.stop()
        self.expiry.close()
        self.blocked.close()
        for client in list(self.clients.values()):
            if client.waits_for_lock and client.mode == "on":
                client.reply(error_text("ERR the server stops, and another process writes"))
            client.close()
            client.flush()
        for _ in self._threads:
            self._to_sync.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, grace_s)
            if thread.is_alive():  # it ends with the process
                self.log(f"a wait for the disk did not end within {grace_s:g} s")
        unsent = self._unsent()
        before = unsent + 1
        while 0 < unsent < before and self.loop.time() < deadline:  # they read
            await asyncio.sleep(_MOMENT_S)
            before, unsent = unsent, self._unsent()
        for client in list(self.clients.values()):  # which do not read, or do not answer TLS's end
            client.transport.abort()

    def _unsent(self) -> int:
        return sum(one.transport.get_write_buffer_size() for one in self.clients.values())


def _replace(client: Connection, error: Exception) -> None:
    """Turn the replies of a client into errors: its commit may be lost."""
    client.out[:] = [failure_line(error) if reply else b"" for reply in client.out]


def _address(transport: Any, which: str) -> str:
    name = transport.get_extra_info(which)
    if isinstance(name, tuple) and len(name) >= 2:
        host = f"[{name[0]}]" if ":" in str(name[0]) else name[0]
        return f"{host}:{name[1]}"
    return f"{name.decode() if isinstance(name, bytes) else name or ''}:0"
