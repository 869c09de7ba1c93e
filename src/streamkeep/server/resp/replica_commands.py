"""PSYNC and what else replicas send, ROLE, and REPLICAOF, which is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamkeep.format.core.errors import CommandError
from streamkeep.server.commands.replies import OK
from streamkeep.server.commands.words import integer, option, syntax, text_of
from streamkeep.server.replication.primary import Replica
from streamkeep.server.resp.handlers import ALREADY, Handler
from streamkeep.server.resp.turn import Turn

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection


def _replica(client: Connection) -> Replica:
    """Return the client as a replica, which it is to be."""
    if client.replica is None:
        client.replica = Replica(client)
        client.replica.host = client.address.rpartition(":")[0]
    return client.replica


def _replconf(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) % 2 == 0:
        raise syntax()
    replica = _replica(client)
    reply: object = OK
    for name, value in zip(words[1::2], words[2::2], strict=True):
        match option(name):
            case b"LISTENING-PORT":
                replica.port = integer(value)
            case b"IP-ADDRESS":
                replica.host = text_of(value)
            case b"CAPA":
                replica.takes_mark = replica.takes_mark or option(value) == b"EOF"
            case b"RDB-ONLY":
                replica.file_only = integer(value) != 0
            case b"ACK":
                client.server.primary.acknowledge(replica, integer(value))
                reply = ALREADY
            case b"GETACK":
                reply = ALREADY  # only a replica answers it
            case b"FACK":
                replica.on_disk = integer(value)
            case b"VERSION":
                pass
            case _:
                raise CommandError(f"Unrecognized REPLCONF option: {text_of(name)}")
    return reply


def _psync(client: Connection, words: list[bytes], turn: Turn) -> object:
    """PSYNC, and SYNC; the answer comes from the feed."""
    replica = _replica(client)
    if not replica.attached:
        feed = text_of(words[1]) if len(words) > 1 else ""
        # It asks for the first byte that it lacks.
        position = integer(words[2]) - 1 if len(words) > 2 else -1
        client.server.primary.attach(replica, feed, position)
    return ALREADY


def _role(client: Connection, words: list[bytes], turn: Turn) -> object:
    primary = client.server.primary
    online = [one for one in primary.replicas if one.online]
    rows = [[one.host.encode(), b"%d" % one.port, b"%d" % one.acked] for one in online]
    return [b"master", primary.end, rows]


def _replicaof(client: Connection, words: list[bytes], turn: Turn) -> object:
    if option(words[1]) == b"NO" and option(words[2]) == b"ONE":
        return OK
    raise CommandError(
        "this server is no replica, since its store has other writers; next: `streamkeep follow "
        "redis://HOST:PORT STORE` copies what a Redis has"
    )


COMMANDS: Final[tuple[tuple[str, int, Handler], ...]] = (
    ("replconf", -1, _replconf),
    ("psync", -3, _psync),
    ("sync", 1, _psync),
    ("role", 1, _role),
    ("replicaof", 3, _replicaof),
    ("slaveof", 3, _replicaof),
)
