"""Clients that wait for entries in XREAD and XREADGROUP, or for nothing to happen to a key (WATCH).

A command of this server that adds entries serves them before the next command runs, in the order in
which they began to wait on a key, in the same transaction. For what other processes write, each has
a ticket in the store's wait table, as any caller of the library has (`engine.blocking.waiters`);
the event loop watches the bell for all of them. A client
that is woken runs its whole command again.

To enter the wait table takes longer than to serve a client. So one whose last wait was ended by a
command of this server enters it only after 20 ms, or 5 if another process has the store open: a
busy worker has its next entry before that. It looks at the store when it has entered, so that it
misses nothing.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from streamkeep.commands.read import Waiting
from streamkeep.commands.replies import NIL_ARRAY, Named
from streamkeep.engine.blocking.calls import Wait
from streamkeep.engine.blocking.waiters import NOTE, Steps
from streamkeep.engine.notify.notifier import ALARM, Bell
from streamkeep.engine.notify.wait_table import GROUP, READ
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system.long_wait import StillTaken
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError
from streamkeep.server.resp.encoder import encode, error_line
from streamkeep.server.resp.transactions import Watches
from streamkeep.server.resp.turn import Step, Turn, failure_line, is_error, of_streams
from streamkeep.server.resp.turns import ClientState

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkeep.server.resp.connection import Connection

_SOON_S: Final = 0.02
_SOON_SHARED_S: Final = 0.005  # while another process has the store open
_SHORT: Final = 1 << 16  # bytes of a reply that waits for no room: an entry may wake thousands


class Blocked(Step):
    """XREAD or XREADGROUP of one client, which waits for what it does not find.

    Args:
        size: bytes of memory for its words.
    """

    silent = False  # CLIENT REPLY: its reply is not wanted
    ticket = 0
    steps: Steps | None = None
    timer: asyncio.TimerHandle | None = None
    waited = False
    over = True  # it does not wait

    def __init__(self, client: Connection, waiting: Waiting, size: int) -> None:
        super().__init__(client, [])
        self.connection = client
        self.waiting = waiting
        self.size = size
        self.wait = Wait(waiting.call)
        _, self.group, self.kind = waiting.call.interests()[0]
        self.deadline = client.server.environment.waiters.deadline(waiting.block_ms)
        waiting.call.may_wait = True
        waiting.call.resp3 = client.resp3

    def keys(self) -> list[bytes]:
        return self.waiting.keys

    def frees(self) -> bool:
        """It writes deliveries."""
        return False

    def reads(self) -> bool:
        return self.kind == READ

    def attempt(self, txn: Any) -> bytes | None:
        """Run it; return None if it found nothing."""
        run = self.waiting.call.run
        try:  # XREAD goes on waiting for a stream
            found = run(txn) if self.waited and self.reads() else of_streams(txn, run)
        except CommandError as error:
            return error_line(error.redis_line)
        return encode(Named(found), self.client.resp3) if found else None

    def run(self, txn: Any) -> bytes:
        """Run it, also after what it was served with was undone; it waits if it finds nothing."""
        reply = self.attempt(txn)
        if reply is None and 0 <= self.slot < len(self.client.out) - 1:
            return encode(NIL_ARRAY, self.client.resp3)  # commands that follow have run
        if reply is None:
            self.connection.server.blocked.add(self)
        return reply or b""

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def stop(self) -> None:
        self.stop_timer()
        if self.steps is not None:
            self.steps.close()
            self.steps = None


def _count_failure(client: ClientState, reply: bytes) -> None:
    if is_error(reply):
        client.turns.calls_of(client.last_command).failed += 1


class BlockedClients:
    """The blocked clients of one server, and the keys that its clients watch.

    Args:
        unblocked: is called for a client that has got its reply, or will not wait any longer.
        later: asks for a turn, in which `run_woken` is called.
    """

    def __init__(
        self,
        environment: Environment,
        loop: asyncio.AbstractEventLoop,
        unblocked: Callable[[Any], None],
        later: Callable[[], None],
    ) -> None:
        self.watches = Watches()
        self.blocked = 0
        self._environment = environment
        self._waiters = environment.waiters
        self._loop = loop
        self._unblocked = unblocked
        self._later = later
        self._by_key: dict[bytes, dict[Blocked, None]] = {}
        self._by_ticket: weakref.WeakValueDictionary[int, Blocked] = weakref.WeakValueDictionary()
        self._fresh: list[Blocked] = []  # they are not in the wait table yet
        self._woken: deque[Blocked] = deque()  # a commit of another process may be for them
        self._to_note: deque[Blocked] = deque()  # it must be written that their consumers were seen
        self._bell: Bell | None = None
        # Of the step that is running: its keys, and which of them are ready.
        self._added: dict[bytes, int] = {}
        self._events = 0
        self._noted = 0
        self._ready: dict[bytes, None] = {}

    @property
    def count(self) -> int:
        return self.blocked + len(self.watches.by_key)

    # --- begin and end ----------------------------------------------------------------------

    def add(self, blocked: Blocked, *, woken: bool = False) -> None:
        """Let a client wait; if `woken`, its command runs again in the next turn."""
        client = blocked.connection
        if client.ended:
            client.close()
            return
        client.blocked, client.stopped = blocked, True
        client.kept += blocked.size
        client.turns.ends = True
        blocked.waited, blocked.over = True, False
        for key in blocked.waiting.keys:
            self._by_key.setdefault(key, {})[blocked] = None
        if woken:
            self.wake(blocked)
        else:
            self._fresh.append(blocked)
        self.blocked += 1

    def remove(self, blocked: Blocked) -> None:
        if blocked.over:
            return
        blocked.over = True
        self.blocked -= 1
        for key in blocked.waiting.keys:
            waiting = self._by_key.get(key)
            if waiting is not None:
                waiting.pop(blocked, None)
                if not waiting:
                    del self._by_key[key]
        blocked.stop()
        if blocked.wait.owes:
            blocked.wait.owes = False
            self._waiters.pass_on(blocked.waiting.call)

    def end(self, blocked: Blocked, reply: bytes) -> None:
        self.remove(blocked)
        _count_failure(blocked.client, reply)
        if not blocked.silent:
            blocked.client.reply(reply)
        self._unblocked(blocked.client)

    # --- commands of this server ------------------------------------------------------------

    def before(self, txn: WriteTxn, keys: list[bytes]) -> None:
        """Note what the transaction has noted of these keys, before a command changes them."""
        self.watches.before(txn, keys)
        self._added = {key: txn.added.get(key, 0) for key in keys if key in self._by_key}
        self._events = self._noted = len(txn.events)
        self._ready.clear()

    def note(self, txn: WriteTxn) -> None:
        """Note which keys the last command has made ready, in the order in which it happens."""
        for key, count in self._added.items():
            if txn.added.get(key, 0) != count:
                self._added[key] = txn.added[key]
                self._ready[key] = None
        for event in txn.events[self._noted :]:
            if event.count:
                self._ready[event.key] = None
        self._noted = len(txn.events)

    def after(self, turn: Turn, txn: WriteTxn) -> None:
        """Serve the clients that wait for what the command has changed."""
        self.note(txn)
        self.watches.after(txn, txn.events[self._events :])
        for key in self._ready:
            if key in self._by_key:
                self._serve(turn, txn, key)

    def _serve(self, turn: Turn, txn: WriteTxn, key: bytes) -> None:
        """Run the commands of the clients of a key again; without a stream, XREAD goes on waiting.

        As in Redis, each client runs its whole command, for any change that makes the key ready.
        """
        is_stream = txn.find_stream(key) is not None
        emptied: set[bytes] = set()  # groups that have no entry left for a further consumer
        for blocked in list(self._by_key[key]):
            if blocked.kind == READ and (not is_stream or blocked.client.waits_for_room):
                continue
            # One that claims, or has more keys, may find what others do not.
            shares = blocked.kind == GROUP and len(blocked.waiting.keys) == 1
            if not (shares and blocked.group in emptied) and self._try(turn, txn, blocked):
                blocked.client.served_here = True
            else:
                if shares:
                    emptied.add(blocked.group)
                for each in dict.fromkeys(blocked.waiting.keys):  # as if it began to wait now
                    queue = self._by_key[each]
                    del queue[blocked]
                    queue[blocked] = None

    def _try(self, turn: Turn, txn: WriteTxn, blocked: Blocked) -> bool:
        """Run the command of a client again; return whether it no longer waits.

        A failure is raised: the caller calls `run_apart`, which runs the command by itself.
        """
        client, turns = blocked.client, blocked.client.turns
        if client.reserved:
            client.reserved = 0
            client.recount()
        failure: Exception | None = None
        reply: bytes | None = b""
        try:
            reply = blocked.attempt(txn)
        except Exception as error:
            failure = error
        if reply is None:
            return False
        if blocked.kind == READ:
            turn.size += len(reply)
            if len(reply) > _SHORT and not turns.has_room(client, len(reply)):
                blocked.stop()
                turns.host.memory.wait(client, len(reply))
                return True
        self.remove(blocked)
        _count_failure(blocked.client, reply)
        client.wrote = True
        if blocked.silent:
            blocked.slot = -1
            turn.steps.append(blocked)
        else:
            turn.add(blocked, reply)
        turn.clients.append(blocked.client)
        self._unblocked(blocked.client)
        client.recount()  # for the next one that this turn serves
        if failure is not None:
            raise failure
        return True

    # --- commits of other processes ---------------------------------------------------------

    def start_fresh(self) -> None:
        """Enter the clients of the last turn that still wait into the wait table, or do so soon."""
        fresh, self._fresh = self._fresh, []
        journal = self._environment.context.journal
        shared = journal is not None and journal.control.is_shared()
        soon = _SOON_SHARED_S if shared else _SOON_S
        for blocked in fresh:
            if blocked.over or blocked.client.waits_for_room:
                continue
            if blocked.client.served_here and not 0 < blocked.waiting.block_ms < 1000 * soon:
                blocked.timer = self._loop.call_later(soon, self._start, blocked)
            else:
                self._start(blocked)

    def _start(self, blocked: Blocked) -> None:
        blocked.timer = None
        if self._bell is None:
            self._bell = self._waiters.take_bell()
            if self._bell is not None:
                self._loop.add_reader(self._bell.handle, self._on_bell)
        blocked.steps = self._waiters.steps(
            blocked.wait, self._bell, blocked.deadline, self._environment.context.check_open
        )
        self._step(blocked, None)

    def _step(self, blocked: Blocked, notified: bool | None) -> None:
        """Go on with a wait until it sleeps again, ends, or its command is to run."""
        steps = blocked.steps
        if steps is None:  # it has not begun; its timer will begin it
            return
        blocked.stop_timer()
        try:
            ticket, nap = next(steps) if notified is None else steps.send(notified)
        except StopIteration as end:
            blocked.steps = None
            if end.value:
                self.wake(blocked)
            else:
                self.end(blocked, encode(NIL_ARRAY, blocked.client.resp3))
            return
        except Exception as error:  # the store was closed
            blocked.steps = None
            self.end(blocked, failure_line(error))
            return
        if ticket and ticket != blocked.ticket:
            blocked.ticket = ticket
            self._by_ticket[ticket] = blocked
        if nap == NOTE:
            self._to_note.append(blocked)
            self._later()
        else:
            blocked.timer = self._loop.call_later(nap, self._step, blocked, False)

    def wake(self, blocked: Blocked) -> None:
        """Run the command of a client again in the next turn."""
        self._woken.append(blocked)
        self._later()

    def _on_bell(self) -> None:
        if self._bell is None:
            return
        for ticket in self._bell.notifications():
            blocked = self._by_ticket.get(ticket)
            if ticket == ALARM:
                for one in {one for queue in self._by_key.values() for one in queue}:
                    self._step(one, False)
            elif blocked is not None and not blocked.over:
                self._step(blocked, True)

    def run_woken(self, turn: Turn) -> None:
        """Run the commands of the clients that were woken, and write which consumers were seen.

        Raises:
            StillTaken: those that write are left; the others have run.
        """
        left: list[tuple[deque[Blocked], Blocked]] = []
        while self._woken or self._to_note:
            if turn.is_long() or turn.apart:  # where a transaction is open, no command has its own
                self._later()
                break
            notes = not self._woken
            queue = self._to_note if notes else self._woken
            blocked = queue.popleft()
            if blocked.over or blocked.client.waits_for_room:
                continue
            blocked.stop_timer()
            try:
                if notes:
                    self._note(turn.write_txn(), blocked)
                else:
                    # XREAD need not wait for another writer, such as what follows a server.
                    txn = turn.read_txn() if blocked.kind == READ else turn.write_txn()
                    found = self._try(turn, txn, blocked)
                    blocked.wait.owes = blocked.client.served_here = False
                    if not found:
                        self._fresh.append(blocked)
            except StillTaken:
                left.append((queue, blocked))
            except Exception:
                turn.run_apart()
                if not blocked.over:  # in a transaction of its own, for which the map may grow
                    try:
                        self._environment.write(self._note, blocked)
                        if not notes:  # the turn had no transaction: it looks again
                            self._fresh.append(blocked)
                    except Exception as error:
                        self.end(blocked, failure_line(error))
                        turn.clients.append(blocked.client)
                self._later()  # the others share the transaction of another turn
                break
        for queue, blocked in reversed(left):
            queue.appendleft(blocked)
            if blocked.deadline < float("inf"):  # the other process may have the lock for long
                wait_s = blocked.deadline - self._environment.context.clock.monotonic()
                blocked.stop_timer()
                blocked.timer = self._loop.call_later(max(0.0, wait_s), self._end_late, blocked)
        if left:
            raise StillTaken

    def _end_late(self, blocked: Blocked) -> None:
        """End a wait whose command still waits for the write lock; others get the entry."""
        self.end(blocked, encode(NIL_ARRAY, blocked.client.resp3))

    def _note(self, txn: WriteTxn, blocked: Blocked) -> None:
        if blocked.waiting.call.unseen:
            with suppress(CommandError):  # its group is gone, which the next look finds
                blocked.waiting.call.note(txn)
        self._loop.call_soon(self._step, blocked, False)

    def close(self) -> None:
        for blocked in {one for queue in self._by_key.values() for one in queue}:
            self.remove(blocked)
        if self._bell is not None:
            self._loop.remove_reader(self._bell.handle)
            self._waiters.give_back(self._bell, keep=False)
            self._bell = None
