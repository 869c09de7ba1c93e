"""One connection: bytes in, commands in order, bytes out.

A client whose replies wait for the disk, or which is blocked, sends into its parser until that is
full; then the loop stops reading from its socket. A client that does not read its replies gets no
further commands run once its socket and the transport's buffer are full.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from streamkeep.format.core.errors import CommandError
from streamkeep.server.commands.table import Spec, find
from streamkeep.server.resp.encoder import encode, error_line, error_text
from streamkeep.server.resp.handlers import ALREADY, HANDLERS, TABLE
from streamkeep.server.resp.requests import ProtocolError
from streamkeep.server.resp.session_commands import IN_TRANSACTION, WITHOUT_PASSWORD
from streamkeep.server.resp.turn import ClientState, Turn, run_commands

if TYPE_CHECKING:
    from streamkeep.server.resp.blocked import Blocked
    from streamkeep.server.resp.server import Server

_MOST_PENDING: Final = 1 << 20  # unread bytes of a client that cannot run commands now
_COMMANDS_PER_TURN: Final = 1024
NO_AUTH: Final = "NOAUTH Authentication required."


class Connection(ClientState, asyncio.Protocol):
    """A client of the server.

    Attributes:
        queued: the commands of its transaction (MULTI); None outside of one.
        broken: a command was refused while the transaction was being queued.
        watched: keys of WATCH, with what they were.
        mode: `on`, `off`, or `skip` for the next reply (CLIENT REPLY).
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
        self.id = 0
        self.transport: Any = None
        self.address = "?:0"
        self.local_address = "?:0"
        self.made = time.time()
        self.active = self.made
        self.name = b""
        self.library = b""
        self.library_version = b""
        self.user = server.access.default
        self.authenticated = False
        self.queued: list[tuple[Spec, list[bytes]]] | None = None
        self.broken = False
        self.watched: dict[bytes, object] = {}
        self.mode = "on"
        self.blocked: Blocked | None = None
        self.waits_for_disk = 0  # commits with replies in `out` that are not on disk
        self.closing = False
        self.paused = False
        self.full = False  # the transport has more to send than it likes to keep
        self.in_ready = False

    # --- the transport ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, unless there are too many."""
        self.transport = transport
        self.server.connected(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes; their commands run in the next turn."""
        if self.closing:
            return
        self.server.statistics.bytes_in += len(data)
        self.parser.feed(data)
        if self.stopped:
            self.check_pending()
        else:
            self.server.ready(self)

    def check_pending(self) -> None:
        """Stop reading from a client that sends faster than its commands run."""
        if not self.paused and self.parser.pending() > _MOST_PENDING:
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Go on with the client's commands."""
        self.stopped = (
            self.blocked is not None or self.waits_for_disk > 0 or self.full or self.closing
        )
        if self.stopped:
            return
        if self.paused:
            self.paused = False
            self.transport.resume_reading()
        self.server.ready(self)

    def eof_received(self) -> bool:
        """Close the connection: a client that has sent all has gone, for Redis."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the client."""
        self.closing = True
        self.stopped = True
        self.server.disconnected(self)

    def pause_writing(self) -> None:
        """Run no more of its commands: it does not read its replies."""
        self.full = True
        self.stopped = True

    def resume_writing(self) -> None:
        """Run its commands again."""
        self.full = False
        self.resume()

    def flush(self) -> None:
        """Send the replies that are ready."""
        if self.out and not self.waits_for_disk:
            statistics = self.server.statistics
            for reply in self.out:
                if reply[:1] == b"-":
                    statistics.note_error(reply)
            data = self.out[0] if len(self.out) == 1 else b"".join(self.out)
            statistics.bytes_out += len(data)
            self.out.clear()
            self.out_size = 0
            if data and self.transport is not None:
                self.transport.write(data)
        if self.closing and not self.out and self.transport is not None:
            self.transport.close()

    def close(self) -> None:
        """Close the connection after what was replied."""
        self.closing = True
        self.stopped = True

    # --- commands ---------------------------------------------------------------------------

    def take_turn(self, turn: Turn) -> None:
        """Run what the client has sent."""
        turn.clients.append(self)
        try:
            more = run_commands(turn, self, _COMMANDS_PER_TURN)
        except ProtocolError as error:
            self.server.statistics.protocol_errors += 1
            self.reply(error_text(f"ERR Protocol error: {error}"))
            self.close()
            return
        if more:
            self.server.ready(self)
        elif self.parser.pending() > self.server.settings.query_buffer_limit:
            self.server.log(f"closed client {self.id}: its query buffer is over the limit")
            self.close()
            self.out.clear()

    def renew_plain(self) -> None:
        """Note whether commands run as they come."""
        self.plain = (
            self.authenticated
            and self.queued is None
            and self.mode == "on"
            and self.user.is_unrestricted()
            and not self.server.watches_commands
        )
        self.parser.trusted = self.authenticated

    def command(self, words: list[bytes], turn: Turn) -> None:
        """Run a command, queue it, or refuse it."""
        before, steps, mode = len(self.out), len(turn.steps), self.mode
        try:
            self._command(words, turn)
        except CommandError as error:
            self.reply(error_line(error.redis_line))
        if mode == "skip" or (mode == self.mode == "off"):
            for step in turn.steps[steps:]:
                if step.client is self:
                    step.slot = -1
            del self.out[before:]
        if mode == "skip" and self.mode == "skip":
            self.mode = "on"
            self.renew_plain()
        elif self.mode == "next":
            self.mode = "skip"

    def _command(self, words: list[bytes], turn: Turn) -> None:
        try:
            spec = find(words, TABLE)
            self.last_command = spec.name
            turn.calls[spec.name] = turn.calls.get(spec.name, 0) + 1
            if not self.authenticated and spec.name not in WITHOUT_PASSWORD:
                raise _NotAuthenticated(NO_AUTH)
            if self.authenticated:
                self.user.check(spec, words)
        except CommandError:
            self.broken = self.queued is not None
            raise
        if self.queued is not None and spec.name not in IN_TRANSACTION:
            self.queued.append((spec, words))
            self.reply(b"+QUEUED\r\n")
            return
        expiry = self.server.expiry
        if self.server.watches_commands:
            expiry.before(spec, words, turn)
            expiry.check(turn.read_txn(), spec, words)
        expiry.note(spec.name)
        handler = HANDLERS.get(spec.name)
        if handler is not None:
            self.reply_to(handler(self, words, turn))
        elif spec.parse is not None:
            self._read(spec, words, turn)
        else:
            turn.run(self, spec, words)

    def reply_to(self, reply: object) -> None:
        """Queue a reply; nothing for the marker that a handler has replied itself."""
        if reply is not ALREADY:
            self.reply(encode(reply, self.resp3))

    def _read(self, spec: Spec, words: list[bytes], turn: Turn) -> None:
        """Run XREAD or XREADGROUP, and wait if it finds nothing."""
        assert spec.parse is not None
        waiting = spec.parse(words, 3)
        if waiting.block_ms < 0:
            turn.run(self, spec, words)
            return
        waiting.call.may_wait = True
        waiting.call.resp3 = self.resp3
        reply = self.server.attempt(self, spec, words, waiting, turn)
        if reply is not None:
            return
        self.stopped = True
        self.blocked = self.server.blocked.add(self, waiting)
        turn.watcher = self.server.blocked


class _NotAuthenticated(CommandError):
    redis_code = "NOAUTH"
