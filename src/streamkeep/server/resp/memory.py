"""The memory that clients need: a bound for all of them together, and who pays for it.

What a client has sent and what it has not read yet is kept for it (`ClientState.recount`). While
that is much for all clients together, a command that only reads and has a long reply runs again
later, when there is room for the reply. Then clients that hardly read lose their connections, and
if it waits too long others, too. Whatever else needs memory is bounded in the same way, at twice as
many bytes. So clients that do not read cannot take the memory of the machine, and others wait for
them only with long replies, and not for long.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection
    from streamkeep.server.resp.server import Server

_PATIENCE_S: Final = 10.0  # how long a reply waits for clients that read
_SLOW: Final = 1 << 16  # bytes in a second, below which a client hardly reads
_NO_MARK: Final = -1


class Memory:
    """The clients of one server that wait for room, and those that have it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._turns = server.turns
        self._waiting: dict[Connection, tuple[float, int]] = {}  # since when, for how much
        self._by_size: list[tuple[int, float, int, Connection]] = []  # a heap; some have gone
        self._marked = False  # clients that need much have a mark: how much had passed
        self.evicted = 0  # clients that have lost their connections

    def wait(self, client: Connection, size: int) -> None:
        client.waits_for_room = client.stopped = True
        since = time.monotonic()
        self._waiting[client] = (since, size)
        heappush(self._by_size, (size, since, client.id, client))

    def forget(self, client: Connection) -> None:
        """Let a client wait no longer, whether there is room or not."""
        self._waiting.pop(client, None)
        client.waits_for_room = False
        client.reserved = 0

    def give(self) -> None:
        """Let clients go on for whose replies there is room."""
        while self._waiting:
            client, size = self._following()
            if not self._turns.has_room(client, size):
                return
            self.forget(client)
            client.reserved = size
            client.recount()
            client.resume()
            if client.blocked is not None:
                self._server.blocked.wake(client.blocked)
        self._by_size.clear()

    def look(self) -> None:
        """Look after the clients; once in a second."""
        turns = self._turns
        if not self._waiting and not self._marked and turns.held <= turns.most_held // 2:
            return
        clients = list(self._server.clients.values())
        for client in clients:
            if client.full:
                client.unsent = client.transport.get_write_buffer_size()
                client.recount()
        self.give()
        large = self._large()
        if self._waiting:
            client, size = self._following()
            for one in large:
                hardly_reads = one.mark != _NO_MARK and _progress(one) < _SLOW
                has_room = turns.has_room(client, size) or not self._is_late()
                if has_room and not hardly_reads:
                    break
                self._evict(one)
            self.give()
        for client in clients:
            client.mark = _NO_MARK
        for client in large:
            client.mark = client.passed()
        self._marked = bool(large)

    def _is_late(self) -> bool:
        return time.monotonic() - next(iter(self._waiting.values()))[0] > _PATIENCE_S

    def _following(self) -> tuple[Connection, int]:
        """Return what gets room next: what has waited too long, else the shortest reply."""
        if self._is_late():
            client, (_, size) = next(iter(self._waiting.items()))
            return client, size
        while True:
            size, since, _, client = self._by_size[0]
            if self._waiting.get(client) == (since, size):
                return client, size
            heappop(self._by_size)

    def relieve(self) -> None:
        """Close connections until the others need no more than they may."""
        for client in self._large()[:-1]:  # one that is alone may have a reply of any size
            if self._turns.held <= self._turns.most_held:
                break
            self._evict(client)

    def _large(self) -> list[Connection]:
        """Return the clients that need more than an equal share; first those that read least."""
        clients = self._server.clients.values()
        share = self._turns.most_held // (2 * max(1, len(clients)))
        large = [client for client in clients if client.held > share and not client.waits_for_room]
        large.sort(key=lambda client: (client.mark == _NO_MARK, _progress(client), -client.held))
        return large

    def _evict(self, client: Connection) -> None:
        self.evicted += 1
        held = int(client.held)
        self._server.drop(client, f"clients need too much memory, and this one holds {held} bytes")


def _progress(client: Connection) -> int:
    return client.passed() - int(client.mark)
