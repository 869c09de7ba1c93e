"""MULTI, EXEC, DISCARD, WATCH: the commands of a transaction are one step of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.errors import CommandError
from streamkeep.server.commands.replies import NIL_ARRAY, OK
from streamkeep.server.commands.strings import find_string
from streamkeep.server.commands.table import READS, Spec
from streamkeep.server.resp.encoder import Sent, encode
from streamkeep.server.resp.handlers import ALREADY, HANDLERS, CodedError, Handler
from streamkeep.server.resp.turn import Step, Turn, failure_line, run_one

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection


class Exec(Step):
    """The commands of a transaction: all of them run, or none."""

    def __init__(
        self, client: Connection, commands: list[tuple[Spec, list[bytes]]], turn: Turn
    ) -> None:
        super().__init__(client, commands)
        self.connection = client
        self.turn = turn
        self.watched = client.watched

    def run(self, txn: Any) -> bytes:
        """Run them; return the replies as one."""
        client = self.connection
        for key, before in self.watched.items():
            if state_of(txn, key) != before:
                return encode(NIL_ARRAY, client.resp3)
        replies: list[object] = []
        for spec, words in self.commands:
            handler = HANDLERS.get(spec.name)
            try:
                client.server.expiry.check(txn, spec, words)
                if handler is None:
                    replies.append(Sent(run_one(txn, spec, words, client.resp3)))
                else:
                    replies.append(handler(client, words, self.turn))
            except CommandError as error:
                replies.append(error)
        return encode(replies, client.resp3)


def state_of(txn: Txn, key: bytes) -> object:
    """Return what WATCH compares: everything that a writer of this stream changes."""
    stream = txn.find_stream(key)
    if stream is None:
        return find_string(txn, key)
    record = stream.record
    return (
        stream.number,
        record.length,
        record.last_id(),
        record.first_id(),
        record.max_deleted_id(),
        record.entries_added,
        record.extension,
    )


def drop_transaction(client: Connection) -> None:
    """Forget what a client has queued and watches."""
    client.queued = None
    client.broken = False
    client.watched = {}
    client.renew_plain()


def _multi(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is not None:
        raise CommandError("MULTI calls can not be nested")
    client.queued = []
    client.broken = False
    client.plain = False
    return OK


def _discard(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is None:
        raise CommandError("DISCARD without MULTI")
    drop_transaction(client)
    return OK


def _watch(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is not None:
        raise CommandError("WATCH inside MULTI is not allowed")
    txn = turn.read_txn()
    for key in words[1:]:
        if key not in client.watched:
            client.watched[key] = state_of(txn, key)
    return OK


def _unwatch(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.watched = {}
    return OK


def _exec(client: Connection, words: list[bytes], turn: Turn) -> object:
    if client.queued is None:
        raise CommandError("EXEC without MULTI")
    if client.broken:
        drop_transaction(client)
        raise CodedError("EXECABORT Transaction discarded because of previous errors.")
    for spec, queued in client.queued:
        client.server.expiry.before(spec, queued, turn)
    step = Exec(client, client.queued, turn)
    drop_transaction(client)
    if any(spec.kind != READS for spec, _ in step.commands):
        turn.run_step(step)
        return ALREADY
    try:
        return Sent(step.run(turn.read_txn()))
    except Exception as error:
        return Sent(failure_line(error))


COMMANDS: Final[tuple[tuple[str, int, Handler], ...]] = (
    ("multi", 1, _multi),
    ("exec", 1, _exec),
    ("discard", 1, _discard),
    ("watch", -2, _watch),
    ("unwatch", 1, _unwatch),
)
