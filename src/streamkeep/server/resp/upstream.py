"""REPLICAOF: the server follows a Redis, as `streamkeep follow` does, in a thread of its own.

Which one is written in the store, so that it goes on after a restart. The store has the streams of
that Redis and no other keys, which a Redis would delete: then REPLICAOF is refused. NO ONE makes
the streams those of the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from shlex import quote
from typing import TYPE_CHECKING, Final

from streamkeep.commands.replies import OK, Status
from streamkeep.commands.words import integer
from streamkeep.format.core.errors import ArgumentError, CommandError, StreamkeepError
from streamkeep.format.quoting import shown
from streamkeep.replication import Follower, FollowingRow, RefusedError, attach, detach, following
from streamkeep.replication.address import parse_address
from streamkeep.server.resp.encoder import error_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkeep.server.resp.server import Server

_RETRY_S: Final = 2.0
_LONGEST_RETRY_S: Final = 60.0
_UNBLOCKED: Final = error_text(
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
)

log: Final = logging.getLogger("streamkeep.server")


def source_of(host: str, port: str) -> str:
    """Return the address of a server that REPLICAOF names; empty for NO ONE."""
    if (host.upper(), port.upper()) == ("NO", "ONE"):
        return ""
    number = integer(port.encode(), "Invalid master port")
    if not 0 <= number <= 65535:
        raise CommandError("Invalid master port")
    source = f"redis://[{host}]:{number}" if ":" in host else f"redis://{host}:{number}"
    try:
        parse_address(source)
    except ArgumentError as error:
        raise CommandError(str(error)) from None
    return source


class Upstream:
    """What a server follows.

    Attributes:
        follower: it follows with this; None for a server that is no replica.
        user, password: of its next connection (`masteruser`, `masterauth`).
        end_waits: ends what waits over HTTP to take entries, which is a write.
    """

    def __init__(self, server: Server) -> None:
        self.follower: Follower | None = None
        self.user = ""
        self.password = os.environ.get("REDISCLI_AUTH", "")
        self.end_waits: Callable[[], None] = lambda: None
        self._server = server
        self._source = ""
        self._changing = asyncio.Lock()
        self._closed = False

    def follows(self, source: str) -> bool:
        """Return whether this is the server that is followed."""
        follower = self.follower
        return follower is not None and follower.address[:4] == parse_address(source)[:4]

    async def follow(self, source: str) -> Status:
        """Follow a server from now on, none if there is no source; return the reply of REPLICAOF.

        Raises:
            ArgumentError: the address cannot be used.
            StoreError: the store has keys of its own, another process follows a server with it, or
                it cannot be written. The server follows what it followed.
        """
        if source:
            address = parse_address(source)
            self.user = address.user or self.user
            self.password = address.password or self.password
        store = self._server.store
        async with self._changing:
            if self._closed:
                raise CommandError("the server is about to end")
            self._set_role(source or self._source)  # no client writes any more
            try:
                await self._end()
                if source:
                    await asyncio.to_thread(attach, store, source)
                elif self._source or not self._is_followed_by_another():
                    await asyncio.to_thread(detach, store)
                self._source = source
            finally:
                self.follower = None
                self._set_role(self._source)
                if self._source:
                    self._start()
        return OK

    def _is_followed_by_another(self) -> bool:
        """Return False; raise CommandError if the store follows a server, and this one does not.

        To detach it would end what somebody else has set up; this server is a master already.
        """
        row = following(self._server.store)
        if row is not None and not row.replicaof:
            path = quote(str(self._server.environment.path))
            raise CommandError(
                f"`streamkeep follow` has the store follow {row.source}; next: end it, and run "
                f"`streamkeep follow {quote(row.source)} {path} --detach`"
            )
        return False

    async def _end(self) -> None:
        if self.follower is not None:
            await asyncio.to_thread(self.follower.end)

    def _set_role(self, source: str) -> None:
        server = self._server
        server.settings.is_replica = bool(source)
        server.renew_plain()

    def _start(self) -> None:
        server = self._server
        self.end_waits()
        for client in list(server.clients.values()):
            if client.blocked is not None:  # it may wait to take entries, too
                server.blocked.end(client.blocked, _UNBLOCKED)
                client.close()
                client.flush()
        row = following(server.store) or FollowingRow(self._source)
        self.follower = Follower(
            self._source,
            server.store,
            match=row.match,
            deletions="keep" if row.deletions == "keep" else "apply",
            told=server.log,
        )
        self.log_in()
        thread = threading.Thread(
            target=self._run, args=(self.follower,), name="streamkeep-replica", daemon=True
        )
        thread.start()

    def log_in(self) -> None:
        """Use the user and the password from the next connection on."""
        if self.follower is not None:
            address = self.follower.address
            self.follower.address = address._replace(user=self.user, password=self.password)

    def _run(self, follower: Follower) -> None:
        """Follow, whatever the problem is, until it is ended; in a thread of its own."""
        pause = _RETRY_S
        while not follower.stop.is_set():
            said = follower.problem
            try:
                follower.run()
            except Exception as error:
                if not isinstance(error, StreamkeepError):
                    log.exception("%s: an internal error", self._server.store.path)
                follower.problem = str(error)
                new = follower.problem != said
                if new:
                    data = follower.problem.encode("utf-8", "surrogateescape")
                    told = shown(data)  # it may have words of the other side
                    self._server.log(f"{told}; trying again")
                # Each attempt may have the other server write a file of all that it has.
                cheap = new or isinstance(error, RefusedError)
                pause = _RETRY_S if cheap else min(2 * pause, _LONGEST_RETRY_S)
            follower.stop.wait(pause)

    async def close(self) -> None:
        """End following, until a server of the store begins again."""
        async with self._changing:
            self._closed = True
            await self._end()
