"""One connection: bytes in, commands in order, bytes out.

A client whose commands wait, since it is blocked, for example, or sends them faster than they run,
sends into its parser until that is full; then the loop stops reading from its socket. A client that
does not read its replies gets no further commands run once its socket and the transport's buffer
are full, but is read from: it may read when it has sent all.
"""

from __future__ import annotations

import asyncio
import select
import time
from typing import TYPE_CHECKING, Any, Final

from streamkeep.commands.command_table import Spec, find
from streamkeep.commands.replies import CodedError
from streamkeep.commands.words import option
from streamkeep.engine.system.long_wait import StillTaken
from streamkeep.format.core.errors import CommandError
from streamkeep.format.node.node import RESP
from streamkeep.server.resp import server_commands
from streamkeep.server.resp.blocked import Blocked
from streamkeep.server.resp.encoder import encode
from streamkeep.server.resp.transactions import drop_transaction
from streamkeep.server.resp.turn import ALREADY, HANDLERS, TABLE, Step, Turn, failure_line
from streamkeep.server.resp.turns import ClientState, size_of

if TYPE_CHECKING:
    from streamkeep.replication.primary import Replica
    from streamkeep.server.access import User
    from streamkeep.server.resp.server import Server

_LOOK_S: Final = 0.02  # at a client whose connection has ended
_GONE: Final = getattr(select, "POLLRDHUP", 0)  # of Linux; with 0, an error of the connection
_OF_HTTP: Final = (b"POST", b"HOST:")  # first words of lines that a browser sends, never a client
NO_AUTH: Final = "NOAUTH Authentication required."


class _Listing(Step):
    """KEYS, SCAN or RANDOMKEY of one of several users, or while keys have deadlines."""

    def __init__(
        self, client: Connection, commands: list[tuple[Spec, list[bytes]]], turn: Turn
    ) -> None:
        super().__init__(client, commands)
        self._connection = client
        self._turn = turn

    def run(self, txn: Any) -> bytes:
        client = self._connection
        found = server_commands.visible(client, self.commands[0][1], self._turn)
        return encode(found, client.resp3)


class Connection(ClientState, asyncio.Protocol):
    """A client of the server.

    Attributes:
        broken: a command was refused while the transaction was being queued.
        watched: keys of WATCH, with what they were.
        watched_changed: a command of this server has changed one of them.
        mode: `on`, `off`, or `skip` for the next reply (CLIENT REPLY).
    """

    def __init__(self, server: Server) -> None:
        super().__init__(server.turns)
        self.server: Server = server
        self.id: int = 0
        self.address = "?:0"
        self.local_address = "?:0"
        self.made = time.time()
        self.active = self.made
        self.name: bytes = b""
        self.library = b""
        self.library_version = b""
        self.user: User = server.access.default
        self.authenticated = False
        self.refused = False  # a password was wrong, and its answer has not gone
        self.broken = False
        self.executing = False  # a command of EXEC
        self.watched: dict[bytes, object] = {}
        self.watched_changed = False
        self.mode = "on"
        self.blocked: Blocked | None = None
        self.replica: Replica | None = None  # from its first REPLCONF on
        self.unread = 0  # bytes that its transport had left when it was closed for being idle

    # --- the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, unless there are too many."""
        self.transport = transport
        self.server.connected(self)

    def resume(self) -> None:
        self.stopped = (
            self.blocked is not None
            or self.waits_for_disk > 0
            or self.waits_for_room
            or self.waits_for_lock
            or self.full
            or self.closing
        )
        if self.stopped:
            return
        self.active = time.time()  # it has waited, and is idle only from now on
        self.refused = False
        if self._has_more():
            self.turns.ready(self)
            return
        self.read_on()
        if self.ended:
            self.flush()

    def _has_more(self) -> bool:
        """Return whether something that it has sent has not run."""
        return self.again is not None or self.parser.pending() > 0

    def eof_received(self) -> bool:
        """Close the connection when all that came has run; one that waits for entries has gone."""
        if self.transport.get_extra_info("ssl_object") is not None:
            return False  # with TLS, nothing can be sent any more
        if self.blocked is not None:
            self.server.end_wait(self)
            self.close()
            return bool(self.out)
        self.ended = self.in_ready or bool(self.out) or (self.stopped and self._has_more())
        return self.ended

    def has_gone(self) -> bool:
        """Return whether its end came while nothing is read from it."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _GONE)
        return bool(poll.poll(0))

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the client; of one with TLS that has ended in order, when all it sent has run."""
        left = self.in_ready or (self.stopped and self._has_more())
        if error is None and left and not self.closing and self.blocked is None:
            self.ended = True
            self.transport.abort()  # so that nothing is written to it
            if self.full:
                self.resume_writing()
            self.server.loop.call_later(_LOOK_S, self.connection_lost, None)
            return
        self.closing = True
        self.stopped = True
        self.server.disconnected(self)

    def pause_writing(self) -> None:
        """Run no more of its commands: it does not read its replies."""
        self.full = True
        self.stopped = True
        self.unsent = self.transport.get_write_buffer_size()
        self.recount()
        if self.parser.trusted:
            self.read_on()

    def resume_writing(self) -> None:
        """Run its commands again, soon: what closes the connection may not do so in this call.

        asyncio would end the connection twice.
        """
        self.full = False
        self.unsent = 0
        self.recount()
        self.server.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.resume()
        self.server.memory.give()
        if self.replica is not None:
            self.server.primary.pump(self.replica)

    def close(self) -> None:
        """Close the connection after what was replied."""
        self.closing = True
        self.stopped = True

    # --- commands ---------------------------------------------------------------------------

    def renew_plain(self) -> None:
        """Note whether commands run as they come."""
        plain = (
            self.authenticated
            and self.mode == "on"
            and self.user.is_unrestricted()
            and not self.server.expiry.watches
            and not self.server.settings.refuses_writes
        )
        self.plain = plain and self.queued is None
        self.queues = plain and self.queued is not None
        self.parser.trusted = self.authenticated

    def command(self, words: list[bytes], turn: Turn) -> None:
        """Run a command, queue it, or refuse it."""
        before, steps, mode = len(self.out), len(turn.steps), self.mode
        size = self.out_size
        try:
            self._command(words, turn)
        except Exception as error:
            self.reply(failure_line(error))
        if mode == self.mode and mode in ("skip", "off"):  # what turns replies on has one
            for step in turn.steps[steps:]:
                if step.client is self:
                    step.slot = -1
            del self.out[before:]
            self.out_size = size
            if self.blocked is not None:
                self.blocked.silent = True
        if mode == "skip" and self.mode == "skip":
            self.mode = "on"
            self.renew_plain()
        elif self.mode == "next":
            self.mode = "skip"

    def _command(self, words: list[bytes], turn: Turn) -> None:
        if option(words[0]) in _OF_HTTP:
            # A page has its visitor's browser send this; the body would run as commands.
            self.server.drop(self, "it sent HTTP: perhaps a web page attacks this server")
            return
        try:
            spec = find(words, TABLE)
            self.last_command = spec.name
            if not self.authenticated and spec.name not in server_commands.WITHOUT_PASSWORD:
                raise CodedError(NO_AUTH)
            if self.authenticated:
                self.user.check(spec, words)
            if self.queued is not None and spec.name in server_commands.NOT_IN_TRANSACTION:
                raise CommandError("Command not allowed inside a transaction")
            self.server.settings.check_allowed(spec)
            if spec.name == "exec" and self.server.settings.is_replica:  # since then, perhaps
                for queued, _ in self.queued or ():
                    self.server.settings.check_allowed(queued)
        except CommandError as error:
            self.broken = self.queued is not None
            known = TABLE.get(words[0].upper())
            if known is not None:
                self.turns.calls_of(known.name).rejected += 1
                if known.name == "exec":
                    drop_transaction(self)
                    raise CodedError(
                        f"EXECABORT Transaction discarded because of: {error}"
                    ) from None
            raise
        if self.queued is not None and spec.name not in server_commands.IN_TRANSACTION:
            self.queue(spec, words)
            return
        turn.called = self.turns.calls_of(spec.name)
        expiry = self.server.expiry
        if expiry.watches:
            expiry.before(spec, words, turn)
        for noted in [(spec, words)] if spec.name != "exec" else self.queued or []:
            expiry.note(*noted)
        handler = HANDLERS.get(spec.name)
        if handler is not None and spec.run is not None:
            turn.run_read(_Listing(self, [(spec, words)], turn))
        elif handler is not None:
            reply = handler(self, words, turn)
            if reply is not ALREADY:  # which the handler itself has sent
                self.reply(encode(reply, self.resp3))
        elif spec.parse is not None:
            self.read(spec, words, turn)
        else:
            turn.run(self, spec, words)

    def read(self, spec: Spec, words: list[bytes], turn: Turn) -> None:
        """Run XREAD or XREADGROUP, and wait if it finds nothing."""
        assert spec.parse is not None
        waiting = spec.parse(words, int(RESP))
        if waiting.block_ms < 0:
            turn.run(self, spec, words)
            return
        blocked = Blocked(self, waiting, int(size_of(words)))
        try:
            if blocked.reads():
                turn.run_read(blocked)
                turn.repeatable = True
            else:
                turn.run_step(blocked)
        except StillTaken:  # it waits as one that was woken: its BLOCK counts from now on
            if self.ended:
                raise
            self.server.lock_wait.put_off()
            self.server.blocked.add(blocked, woken=True)
        if self.blocked is blocked:
            turn.watcher = self.server.blocked
            if turn.steps and turn.steps[-1] is blocked:
                turn.steps.pop()  # it has no reply yet
