"""The state of a client that a turn needs, and the scheduling of turns.

Compiled by mypyc.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from streamkeep.commands.command_table import Spec
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.txn.stream import Stream
from streamkeep.server.resp.requests import WORD_BYTES, ProtocolError, RequestParser
from streamkeep.server.resp.turn import Turn, is_error, run_commands

_COMMANDS: Final[i64] = 1024  # of one client in one turn
_MOST_PENDING: Final[i64] = 1 << 20  # unread bytes of a client whose commands wait
_LEAST_PAUSE_S: Final = 0.001
_MOST_PAUSE_S: Final = 0.05
MOST_HELD: Final[i64] = 256 << 20
_now: Final = time.time


class Calls:
    """What INFO commandstats says of one command."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count: i64 = 0
        self.nanos: i64 = 0
        self.lately: i64 = 0  # about how long the newest calls took each
        self.rejected: i64 = 0  # refused before they ran
        self.failed: i64 = 0

    def note(self, reply: bytes, nanos: i64) -> None:
        self.count += 1
        self.nanos += nanos
        self.failed += is_error(reply)


def size_of(words: list[bytes]) -> i64:
    """Return about how much memory a command needs."""
    size: i64 = WORD_BYTES * len(words)
    for word in words:
        size += len(word)
    return size


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientState:
    """What a turn needs to know of a client.

    Attributes:
        transport: where its replies go; None before it is connected.
        out: replies that were not sent.
        plain: no transaction, no password or rights to check: commands run as they come.
        queued: the commands of its transaction (MULTI); None outside of one.
        queues: as `plain`, but these come into its transaction.
        stopped: it is blocked, closed, or waits for the disk; its next command must wait.
        closing: its connection ends after what was replied.
        ended: it has sent all; its connection ends when that has run.
        waits_for_disk: commits with replies in `out` that are not on disk.
        active: when it last sent something, or ceased to wait, in Unix seconds.
        waits_for_lock: its next command, in `again`, waits for the write lock.
        again: the words of a command that runs again when there is room for its reply, or the lock.
        held: bytes of memory that it needs: what it sent and what it has not read (`recount`).
        unsent: bytes of replies that its transport has, once these are many.
        kept: bytes of commands that it has queued, or waits with.
        reserved: bytes of the reply of `again`, for which there is room.
        moved: bytes that came from it, or went to its transport.
        paused: nothing is read from it until its commands have run.
        full: the transport has more to send than it likes to keep.
        mark: for `memory.Memory`.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.parser = RequestParser()
        self.transport: Any = None
        self.out: list[bytes] = []
        self.out_size: i64 = 0
        self.resp3 = False
        self.plain = False
        self.queued: list[tuple[Spec, list[bytes]]] | None = None
        self.queues = False
        self.stopped = False
        self.waits_for_room = False  # for its next reply
        self.waits_for_lock = False
        self.closing = False
        self.ended = False
        self.waits_for_disk: i64 = 0
        self.in_ready = False
        self.active = 0.0
        self.wrote = False  # in this turn
        self.served_here = False  # a command of this server ended its last wait
        self.again: list[bytes] | None = None
        self.held: i64 = 0
        self.unsent: i64 = 0
        self.kept: i64 = 0
        self.reserved: i64 = 0
        self.moved: i64 = 0
        self.mark: i64 = -1
        self.paused = False
        self.full = False
        self.last_command = "NULL"

    def data_received(self, data: bytes) -> None:
        """Take bytes; their commands run at once, or in the next turn."""
        if self.closing:
            return
        turns = self.turns
        turns.bytes_in += len(data)
        self.moved += len(data)
        self.parser.feed(data)
        if not self.stopped and not self.in_ready:
            turns.take(self)
            return
        pending = self.parser.pending()
        if self.full and self.parser.trusted:  # clients send a whole pipeline, and read then
            if pending + self.kept > turns.query_limit:
                turns.drop_large(self)
                return
        elif not self.paused and pending > _MOST_PENDING:
            self.paused = True  # it sends faster than its commands run
            self.transport.pause_reading()
        self.recount()
        turns.check_memory()

    def read_on(self) -> None:
        if self.paused:
            self.paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def command(self, words: list[bytes], turn: Turn) -> None:
        raise NotImplementedError

    def read(self, spec: Spec, words: list[bytes], turn: Turn) -> None:
        """Run XREAD or XREADGROUP, and wait if it finds nothing."""
        raise NotImplementedError

    def reply(self, data: bytes) -> None:
        self.out.append(data)
        self.out_size += len(data)

    def queue(self, spec: Spec, words: list[bytes]) -> None:
        """Keep a command of a transaction until EXEC."""
        assert self.queued is not None
        self.queued.append((spec, words))
        self.kept += size_of(words)
        self.reply(b"+QUEUED\r\n")

    def flush(self) -> None:
        out = self.out
        if out and not self.waits_for_disk:
            turns = self.turns
            for reply in out:
                if is_error(reply):
                    turns.host.statistics.note_error(reply)
            data = out[0] if len(out) == 1 else b"".join(out)
            turns.bytes_out += len(data)
            self.moved += len(data)
            out.clear()
            self.out_size = 0
            transport = self.transport
            # uvloop raises for a connection that has ended, which would keep the other clients.
            if data and transport is not None and not transport.is_closing():
                transport.write(data)
        self.recount()
        if self.ended and not self.stopped and not self.in_ready:
            self.closing = self.stopped = True
        # A second `close` of asyncio's TLS forgets the connection, which then nothing can abort.
        if self.closing and not out and self.transport and not self.transport.is_closing():
            self.transport.close()

    def recount(self) -> None:
        """Count the memory that it needs."""
        held: i64 = self.parser.pending()
        held += self.kept + self.reserved + self.out_size + self.unsent
        self.turns.held += held - self.held
        self.held = held

    def passed(self) -> int:
        """Return the number of bytes that came from it and ran, or that it has read."""
        return int(self.moved - self.unsent) - self.parser.pending()


class Turns:
    """Runs what clients have sent.

    The commands of all clients that have sent something share a turn, which begins in the next
    round of the event loop. A client that alone sends commands does not wait for that round: its
    commands run as they come.

    A turn that is long ends early, and the next one goes on with the other clients. A command of
    which calls have been slow lately waits for a turn of its own kind, before which there is a
    pause: in it, new clients connect and short commands run. So a hundred long commands that come
    at once do not delay a short one by the time of all of them.

    Args:
        host: the `server.Server` around it, which is not compiled.

    Attributes:
        durable: replies to commands that wrote wait for the disk.
        watcher: serves blocked clients.
        due: the host has something to do before the next turn.
        ends: a command has asked the host for something after the turn.
        big_batches: that wait for the disk; the next turn begins after them.
        locked_out: another process has the write lock, and a thread of the host waits for it.
        calls: what commands were called; the server's own counters.
        held: bytes of memory that clients need.
        most_held: a long reply waits while its bytes would bring `held` above this. At twice as
            many bytes, clients lose their connections.
    """

    def __init__(self, host: Any, environment: Environment) -> None:
        self.host = host
        self.environment = environment
        self.context = environment.context
        self.streams_read: dict[bytes, Stream] = {}  # for the snapshots of turns that only read
        self.hidden: set[bytes] = set()  # keys that are over, in a store that is only read
        self.durable = False
        self.watcher: Any = None  # the `blocked.BlockedClients` of the host
        self.due = False
        self.ends = False
        self.big_batches: i64 = 0
        self.locked_out = False
        self.commands: i64 = 0
        self.changes: i64 = 0  # commands that wrote
        self.bytes_in: i64 = 0
        self.bytes_out: i64 = 0
        self.query_limit: i64 = 1 << 30
        self.held: i64 = 0
        self.most_held: i64 = MOST_HELD
        self.calls: dict[str, Calls] = {}
        self.in_turn = False
        self._call_soon: Callable[[Callable[[], None]], Any] = host.loop.call_soon
        self._call_later: Callable[[float, Callable[[], None]], Any] = host.loop.call_later
        self._ready: list[ClientState] = []
        self._slow: list[ClientState] = []  # with a slow command in `again`
        self._pause_s = _LEAST_PAUSE_S
        self._pausing = False
        self._scheduled = False
        self._alone: ClientState | None = None  # the only client of the last turn

    def calls_of(self, name: str) -> Calls:
        calls = self.calls.get(name)
        if calls is None:
            calls = Calls()
            self.calls[name] = calls
        return calls

    def take(self, client: ClientState) -> None:
        """Run what a client has sent: at once if it is alone, else in the next turn."""
        if (
            self._alone is client
            and not self._scheduled
            and not self.in_turn
            and not self.big_batches
            and not self._ready
            and not self._slow
        ):
            self._run([client], False)
        else:
            self.ready(client)

    def ready(self, client: ClientState) -> None:
        """Run what a client has sent in the next turn."""
        if not client.in_ready:
            client.in_ready = True
            self._ready.append(client)
            self.schedule()

    def schedule(self) -> None:
        """Have a turn soon, unless the next one must wait for the disk."""
        if not self._scheduled and not self.in_turn and not self.big_batches:
            self._scheduled = True
            self._call_soon(self.run)

    def go_on(self) -> None:
        """Have a turn soon if a client is ready."""
        if self._ready or self.due:
            self.schedule()
        if self._slow and not self._pausing and not self.big_batches:
            self._pausing = True
            self._call_later(self._pause_s, self._run_slow)

    def defer(self, client: ClientState, words: list[bytes]) -> None:
        """Run a command, which is slow, in a later turn."""
        client.again = words
        client.in_ready = True
        self._slow.append(client)

    def has_room(self, client: ClientState, size: int) -> bool:
        """Return whether a reply fits into the memory for clients; a huge one needs half of it."""
        needed = min(i64(size), self.most_held // 2)
        return self.held - client.held + needed <= self.most_held

    def drop_large(self, client: ClientState) -> None:
        self.host.drop(client, "its query buffer is over the limit")

    def check_memory(self) -> None:
        """Bound the memory that clients need."""
        if self.held > 2 * self.most_held:
            self.host.memory.relieve()

    def run(self) -> None:
        self._scheduled = False
        ready = self._ready
        self._ready = []
        self._alone = ready[0] if len(ready) == 1 and not self._slow else None
        left = self._run(ready, self._alone is None)
        if left:
            self._ready = left + self._ready
            self.schedule()

    def _run_slow(self) -> None:
        """Run slow commands, one at least."""
        self._pausing = False
        if not self.big_batches:
            slow = self._slow
            self._slow = []
            began = _now()
            left = self._run(slow, False)
            self._slow = left + self._slow
            self._pause_s = max(_LEAST_PAUSE_S, min((_now() - began) / 8, _MOST_PAUSE_S))
        self.go_on()

    def _run(self, ready: list[ClientState], defers: bool) -> list[ClientState]:
        """Run what these clients have sent, commit, and send the replies.

        Args:
            defers: slow commands wait.

        Returns:
            The clients that a long turn did not reach.
        """
        turn = Turn(self)
        host = self.host
        now = _now()
        left: list[ClientState] = []
        self.in_turn = True
        try:
            if self.due:
                self.due = False
                host.begin(turn)
                turn.size = 0  # what was due may go on in each turn, with a command of each client
            for client in ready:
                if turn.is_long():
                    left.append(client)
                    continue
                client.in_ready = False
                turn.clients.append(client)
                if client.stopped:
                    continue
                client.active = now
                try:
                    more = run_commands(turn, client, _COMMANDS, defers)
                except ProtocolError as error:
                    host.refuse(client, error)
                    continue
                if more:
                    self.ready(client)
                elif client.parser.pending() + client.kept > self.query_limit:
                    self.drop_large(client)
                elif not client.stopped:
                    client.read_on()
            txn = turn.finish()
        finally:
            self.in_turn = False
        self.commands += turn.commands
        if turn.apart or (txn is not None and txn.operations is not None):
            self.changes += sum([not step.reads() for step in turn.steps])
        turn.steps = []  # a transaction refers to its turn: the collector would take 0.1 s
        if turn.durable and (turn.apart or (txn is not None and txn.operations is not None)):
            wrote = [client for client in turn.clients if client.wrote]
            if wrote:
                host.hold(wrote, None if turn.apart else txn)
        for client in turn.clients:
            client.wrote = False
            client.flush()
        self.check_memory()
        if self.ends:
            self.ends = False
            host.end()
        if txn is not None:
            context = self.context  # what commits may have made due, `Environment.is_due` decides
            if txn.garbage or not context.keeps_up() or context.retired_bytes > 0:
                host.settle(txn.garbage)
        self.go_on()
        return left
