"""Clients whose next command waits for the write lock, while the loop serves the others."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from streamkeep.engine.txn.begin import await_write
from streamkeep.server.resp.turns import size_of

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection
    from streamkeep.server.resp.server import Server


class LockWait:
    """The wait of one server: a thread has it, while `Turns.locked_out` is set.

    Attributes:
        failed: the thread has failed; the next command that writes runs into its error again.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.failed = False
        self._clients: list[Connection] = []

    def put_off(self, *clients: Connection) -> None:
        """Let these clients, and no others, wait for the write lock, which another process has."""
        self._clients += clients
        for client in clients:
            client.reserved = int(size_of(client.again or []))
        server = self._server
        if server.turns.locked_out:
            return
        server.turns.locked_out = True
        try:
            threading.Thread(None, self._wait, "streamkeep-lock-wait", daemon=True).start()
        except RuntimeError:  # the process has too many threads
            self.failed = True
            server.loop.call_later(0.1, self._resume)

    def _wait(self) -> None:
        environment = self._server.environment
        self.failed = True
        with suppress(Exception):
            environment.retrying(await_write, environment.context)
            self.failed = False
        with suppress(RuntimeError):  # the loop was closed
            self._server.loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        """Run the commands again, in their order."""
        self._server.turns.locked_out = False
        clients, self._clients = self._clients, []
        for client in clients:
            client.waits_for_lock = False
            client.resume()
        self._server.schedule()
