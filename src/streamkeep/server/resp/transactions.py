"""MULTI, EXEC, DISCARD, WATCH: the commands of a transaction are one step of a turn.

As in Redis, a command of this server that changes a watched key marks the clients that watch it,
even if a later one puts everything back. What other processes change is seen at EXEC, which
compares the key with what it was at WATCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streamkeep.commands.command_table import READS, Spec
from streamkeep.commands.replies import NIL_ARRAY, OK, CodedError
from streamkeep.commands.strings import deadline_of, find_string
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError
from streamkeep.format.node.ranges import MOST_SENT
from streamkeep.server.resp.encoder import Sent, encode
from streamkeep.server.resp.turn import ALREADY, Handler, Step, Turn, run_queued

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkeep.engine.notify.wait_table import Event
    from streamkeep.server.resp.connection import Connection


# --- watched keys ---------------------------------------------------------------------------------


class Watches:
    """The watched keys of one server."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, set[Connection]] = {}
        self._before: dict[bytes, object] = {}

    def add(self, client: Connection, key: bytes, txn: Txn) -> None:
        """Let a client watch a key that it does not watch."""
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


# --- transactions ---------------------------------------------------------------------------------


class Exec(Step):
    """The commands of a transaction: all of them run, or none."""

    def __init__(
        self, client: Connection, commands: list[tuple[Spec, list[bytes]]], turn: Turn
    ) -> None:
        super().__init__(client, commands)
        self.connection = client
        self.turn = turn
        self.watched = client.watched
        self.watched_changed = client.watched_changed

    def run(self, txn: Any) -> bytes:
        client = self.connection
        if self.watched_changed or any(
            state_of(txn, key) != before for key, before in self.watched.items()
        ):
            return encode(NIL_ARRAY, client.resp3)
        replies: list[object] = []
        watcher = None if self.turn.apart else self.turn.watcher
        size = 0
        for spec, words in self.commands:
            if size > MOST_SENT:
                raise CommandError(
                    f"the transaction would have more than {MOST_SENT >> 20} MB of replies"
                )
            reply = run_queued(client, txn, spec, words, self.turn)
            size += len(reply)
            replies.append(Sent(reply))
            if watcher is not None and spec.kind != READS:
                watcher.note(txn)
        return encode(replies, client.resp3)


_WATCHED: Final = 500  # bytes of memory for a watched key, beside its name


def drop_transaction(client: Connection) -> None:
    """Forget what a client has queued and watches."""
    client.queued = None
    client.kept = 0
    client.broken = False
    client.server.blocked.watches.remove(client)
    client.renew_plain()


def _multi(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is not None:
        raise CommandError("MULTI calls can not be nested")
    client.queued = []
    client.broken = False
    client.renew_plain()
    return OK


def _discard(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is None:
        raise CommandError("DISCARD without MULTI")
    drop_transaction(client)
    return OK


def _watch(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is not None:
        raise CommandError("WATCH inside MULTI is not allowed")
    blocked = client.server.blocked
    for key in words[1:]:
        if key not in client.watched:
            blocked.watches.add(client, key, turn.read_txn())
            client.kept += len(key) + _WATCHED
    turn.watcher = blocked
    return OK


def _unwatch(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.server.blocked.watches.remove(client)
    client.kept = 0
    return OK


def _exec(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is None:
        raise CommandError("EXEC without MULTI")
    if client.broken:
        drop_transaction(client)
        raise CodedError("EXECABORT Transaction discarded because of previous errors.")
    expiry = client.server.expiry
    if expiry.watches:
        for spec, queued in client.queued:
            expiry.before(spec, queued, turn)
    step = Exec(client, client.queued, turn)
    if any(spec.kind != READS for spec, _ in step.commands):
        turn.run_step(step)
    else:
        turn.run_read(step)
    drop_transaction(client)  # not before: EXEC runs again if the write lock is taken
    return ALREADY


COMMANDS: Final[tuple[tuple[str, int, Handler], ...]] = (
    ("multi", 1, _multi),
    ("exec", 1, _exec),
    ("discard", 1, _discard),
    ("watch", -2, _watch),
    ("unwatch", 1, _unwatch),
)
