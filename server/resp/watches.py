"""The keys of WATCH: which clients watch each, and what has changed.

As in Redis, a command of this server that changes a watched key marks the clients that watch it,
even if a later one puts everything back. What other processes change is seen at EXEC, which
compares the key with what it was at WATCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.server.commands.strings import deadline_of, find_string

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkeep.engine.notify.wait_table import Event
    from streamkeep.server.resp.connection import Connection


class Watches:
    """The watched keys of one server."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, set[Connection]] = {}
        self._before: dict[bytes, object] = {}

    def add(self, client: Connection, key: bytes, txn: Txn) -> None:
        """Let a client watch a key."""
        if key not in client.watched:
            client.watched[key] = state_of(txn, key)
            self.by_key.setdefault(key, set()).add(client)

    def remove(self, client: Connection) -> None:
        """Let a client watch nothing, and forget what has changed."""
        for key in client.watched:
            self.by_key[key].discard(client)
            if not self.by_key[key]:
                del self.by_key[key]
        client.watched = {}
        client.watched_changed = False

    def before(self, txn: WriteTxn, keys: Iterable[bytes]) -> None:
        """Note what these keys are before a command changes them."""
        self._before = {key: _changes_of(txn, key) for key in keys if key in self.by_key}

    def after(self, txn: WriteTxn, events: list[Event]) -> None:
        """Mark the clients that watch a key which has changed, or which events name."""
        changed = {key for key, before in self._before.items() if _changes_of(txn, key) != before}
        changed |= {event.key for event in events if event.group is None}
        for key in changed & self.by_key.keys():
            for client in self.by_key[key]:
                client.watched_changed = True


def _changes_of(txn: WriteTxn, key: bytes) -> object:
    """Return the state of a key, and how many entries were added, which may be gone again."""
    return state_of(txn, key), txn.added.get(key, 0)


def state_of(txn: Txn, key: bytes) -> object:
    """Return what WATCH compares; None if there is no such key.

    Of a stream that is, as in Redis, neither groups nor counters.
    """
    deadline = deadline_of(txn, key)
    if deadline is None or 0 <= deadline <= txn.now_ms():
        return None
    stream = txn.find_stream(key)
    if stream is None:
        return find_string(txn, key)
    record = stream.record
    newest = record.last_live_ms, record.last_live_seq
    return stream.number, record.length, record.first_id(), newest, deadline
