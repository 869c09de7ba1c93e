"""Connections with TLS, each of which counts from its first moment.

An event loop says that there is a connection when its handshake has ended. So peers that send
nothing would be counted nowhere, and take all files that the process may have.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

HANDSHAKE_S: Final = 10.0
BACKLOG: Final = 511
_PAUSE_S: Final = 0.05


class SecureListener:
    """Accepts connections at a socket, and makes a protocol for each after its handshake.

    Args:
        room: whether there is room for another connection beside so many handshakes; the
            connection is closed if not.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        room: Callable[[int], bool],
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._make = make
        self._room = room
        self._handshakes: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more; connections that were made stay."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                peer, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # it has gone, or the process has all its files
                await asyncio.sleep(_PAUSE_S)
                continue
            if self._room(len(self._handshakes)):
                task = self._loop.create_task(self._shake(peer))
                self._handshakes.add(task)
                task.add_done_callback(partial(self._ended, peer))
            else:
                peer.close()
            await asyncio.sleep(0)  # `sock_accept` does not let others run while peers wait

    def _ended(self, peer: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        if task.cancelled():  # perhaps before it began
            peer.close()

    async def _shake(self, peer: socket.socket) -> None:
        with suppress(OSError):  # of the peer, or too late
            await self._loop.connect_accepted_socket(
                self._make, peer, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
