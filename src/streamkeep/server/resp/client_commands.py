"""HELLO, AUTH, PING, SELECT and their like, CLIENT, and what replicas send."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from streamkeep.commands.replies import NIL_ARRAY, OK, CodedError, Status
from streamkeep.commands.words import (
    check_database,
    integer,
    option,
    syntax,
    text_of,
    wrong_count,
    wrong_subcommand,
)
from streamkeep.format.core.errors import CommandError
from streamkeep.replication.primary import Replica
from streamkeep.server.resp.encoder import encode, error_text
from streamkeep.server.resp.info import client_line, followed_by, is_replica
from streamkeep.server.resp.transactions import drop_transaction
from streamkeep.server.resp.turn import ALREADY, REDIS_VERSION, Handler, Turn
from streamkeep.server.resp.upstream import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkeep.server.resp.connection import Connection


_MOST_NAME: Final = 4096  # bytes that are kept for each client
_NO_TRACKING: Final = {"flags": {b"off"}, "redirect": -1, "prefixes": []}


def _ping(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) > 2:
        raise wrong_count("ping")
    return words[1] if len(words) == 2 else Status("PONG")


def _quit(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.close()
    return OK


def _reset(client: Connection, words: list[bytes], turn: Turn) -> object:
    drop_transaction(client)
    client.mode = "skip" if client.mode == "skip" else "on"
    client.resp3 = False
    client.name = b""
    client.server.log_in_by_default(client)
    client.renew_plain()
    return Status("RESET")


def _select(client: Connection, words: list[bytes], turn: Turn) -> object:
    check_database(words[1])
    return OK


def _auth(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) > 3:
        raise syntax()
    name = words[1] if len(words) == 3 else b"default"
    if len(words) == 2 and client.server.access.default.needs_no_password:
        raise CommandError(
            "AUTH <password> called without any password configured for the default user. Are you "
            "sure your configuration is correct?"
        )
    client.server.log_in(client, name, words[-1])
    return OK


def _hello(client: Connection, words: list[bytes], turn: Turn) -> object:
    version = 3 if client.resp3 else 2
    at = 1
    if len(words) > 1:
        try:
            version = integer(words[1])
        except CommandError:
            raise CommandError("Protocol version is not an integer or out of range") from None
        if version not in (2, 3):
            raise CodedError("NOPROTO unsupported protocol version")
        at = 2
    name: bytes | None = None
    while at < len(words):
        word, more = option(words[at]), len(words) - at - 1
        if word == b"AUTH" and more >= 2:
            client.server.log_in(client, words[at + 1], words[at + 2])
            at += 3
        elif word == b"SETNAME" and more:
            name = _checked_name(words[at + 1])
            at += 2
        else:
            raise CommandError(f"Syntax error in HELLO option '{text_of(words[at])}'")
    if not client.authenticated:
        raise CodedError(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
            "HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and "
            "select the RESP protocol version at the same time"
        )
    if name is not None:
        client.name = name
    if len(words) > 1:
        client.resp3 = version == 3
    return {
        "server": b"redis",
        "version": REDIS_VERSION.encode(),
        "proto": version,
        "id": client.id,
        "mode": b"standalone",
        "role": b"replica" if followed_by(client.server, turn) else b"master",
        "modules": [],
    }


# --- CLIENT -------------------------------------------------------------------------------------


def _checked_name(name: bytes, what: str = "Client names") -> bytes:
    if len(name) > _MOST_NAME:
        raise CommandError(f"{what} cannot be longer than {_MOST_NAME} bytes.")
    if any(byte < 33 or byte > 126 for byte in name):
        raise CommandError(f"{what} cannot contain spaces, newlines or special characters.")
    return name


def _client_setname(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.name = _checked_name(words[2])
    return OK


def _client_setinfo(client: Connection, words: list[bytes], turn: Turn) -> object:
    name = option(words[2])
    if name == b"LIB-NAME":
        client.library = _checked_name(words[3], text_of(words[2]))
    elif name == b"LIB-VER":
        client.library_version = _checked_name(words[3], text_of(words[2]))
    else:
        raise CommandError(f"Unrecognized option '{text_of(words[2])}'")
    return OK


def _client_list(client: Connection, words: list[bytes], turn: Turn) -> object:
    chosen = list(client.server.clients.values())
    if len(words) > 2:
        name = option(words[2])
        if name == b"TYPE" and len(words) == 4:
            chosen = list(filter(_is_of_type(words[3]), chosen))
        elif name == b"ID" and len(words) > 3:
            ids = {integer(word, "Invalid client ID") for word in words[3:]}
            chosen = [one for one in chosen if one.id in ids]
        else:
            raise syntax()
    return "".join(map(client_line, chosen))


def _is_of_type(word: bytes) -> Callable[[Connection], bool]:
    if option(word) not in (b"NORMAL", b"MASTER", b"REPLICA", b"SLAVE", b"PUBSUB"):
        raise CommandError(f"Unknown client type '{text_of(word)}'")
    if option(word) in (b"REPLICA", b"SLAVE"):
        return is_replica
    return lambda one: option(word) == b"NORMAL" and not is_replica(one)


def _client_kill(client: Connection, words: list[bytes], turn: Turn) -> object:
    server = client.server
    everyone = list(server.clients.values())
    if len(words) == 3:
        address = text_of(words[2])
        for one in everyone:
            if one.address == address:
                server.kill(one, turn, after_reply=one is client)
                return OK
        raise CommandError("No such client")
    filters: dict[bytes, Callable[[Connection], bool]] = {}  # the last of each name counts
    filters[b"SKIPME"] = lambda one: one is not client
    for place in range(2, len(words), 2):
        if place + 1 == len(words):
            raise syntax()
        filters[option(words[place])] = _filter(client, option(words[place]), words[place + 1])
    chosen = [one for one in everyone if all(fits(one) for fits in filters.values())]
    for one in chosen:
        server.kill(one, turn, after_reply=one is client)
    return len(chosen)


def _filter(client: Connection, name: bytes, value: bytes) -> Callable[[Connection], bool]:
    """Return the function that decides whether an option of CLIENT KILL lets it end a client."""
    text = text_of(value)
    if name == b"ID":
        number = integer(value, "client-id should be greater than 0")
        if number < 1:
            raise CommandError("client-id should be greater than 0")
        return lambda one: one.id == number
    if name == b"MAXAGE":
        least_s = integer(value, "maxage is not an integer or out of range")
        if least_s < 1:
            raise CommandError("maxage should be greater than 0")
        return lambda one: int(time.time() - one.made) >= least_s
    if name == b"ADDR":
        return lambda one: one.address == text
    if name == b"LADDR":
        return lambda one: one.local_address == text
    if name == b"USER":
        if value not in client.server.access.users:
            raise CommandError(f"No such user '{text}'")
        return lambda one: one.user.name == value
    if name == b"TYPE":
        return _is_of_type(value)
    if name == b"SKIPME" and option(value) in (b"YES", b"NO"):
        return lambda one: option(value) == b"NO" or one is not client
    raise syntax()


def _client_reply(client: Connection, words: list[bytes], turn: Turn) -> object:
    mode = option(words[2])
    if mode == b"ON":
        client.mode = "on"
        client.renew_plain()
        return OK
    if mode == b"OFF":
        client.mode = "off"
    elif mode == b"SKIP":
        client.mode = client.mode if client.mode == "off" else "next"
    else:
        raise syntax()
    client.renew_plain()
    return ALREADY


def _client_unblock(client: Connection, words: list[bytes], turn: Turn) -> object:
    with_error = False
    if len(words) > 4:
        raise wrong_subcommand(words)
    if len(words) == 4:
        how = option(words[3])
        if how not in (b"TIMEOUT", b"ERROR"):
            raise CommandError("CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
        with_error = how == b"ERROR"
    number = integer(words[2])
    other = client.server.clients.get(number)
    if other is None or other.blocked is None:
        return 0
    reply = encode(NIL_ARRAY, other.resp3)
    if with_error:
        reply = error_text("UNBLOCKED client unblocked via CLIENT UNBLOCK")
    client.server.blocked.end(other.blocked, reply)
    turn.clients.append(other)
    return 1


def _client_switch(client: Connection, words: list[bytes], turn: Turn) -> object:
    """CLIENT NO-EVICT and NO-TOUCH: there is nothing that they could change."""
    if option(words[2]) not in (b"ON", b"OFF"):
        raise syntax()
    return OK


def _client_pause(client: Connection, words: list[bytes], turn: Turn) -> object:
    raise CommandError("CLIENT PAUSE is not supported: other processes may write to the store")


# --- replicas -----------------------------------------------------------------------------------


def _replica(client: Connection) -> Replica:
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
    replica, follower = _replica(client), client.server.upstream.follower
    if follower is not None and follower.state != "connected":  # nor does it follow itself
        raise CodedError("NOMASTERLINK Can't SYNC while not connected with my master")
    if not replica.attached:
        feed = text_of(words[1]) if len(words) > 1 else ""
        # It asks for the first byte that it lacks.
        position = integer(words[2]) - 1 if len(words) > 2 else -1
        client.server.primary.attach(replica, feed, position)
    return ALREADY


def _role(client: Connection, words: list[bytes], turn: Turn) -> object:
    primary = client.server.primary
    followed = followed_by(client.server, turn)
    if followed is not None:
        state = followed.state.encode()
        return [b"slave", followed.host.encode(), followed.port, state, followed.offset]
    online = [one for one in primary.replicas if one.online]
    rows = [[one.host.encode(), b"%d" % one.port, b"%d" % one.acked] for one in online]
    return [b"master", primary.end, rows]


def _replicaof(client: Connection, words: list[bytes], turn: Turn) -> object:
    if is_replica(client):
        raise CommandError("Command is not valid when client is a replica.")
    source = source_of(text_of(words[1]), text_of(words[2]))
    if source and client.server.upstream.follows(source):
        return Status("OK Already connected to specified master")
    client.server.answer_later(client, client.server.upstream.follow(source))
    return OK  # which is replaced


COMMANDS: Final[tuple[tuple[str, int, Handler], ...]] = (
    ("ping", -1, _ping),
    ("echo", 2, lambda client, words, turn: words[1]),
    ("quit", -1, _quit),
    ("reset", 1, _reset),
    ("select", 2, _select),
    ("auth", -2, _auth),
    ("hello", -1, _hello),
    ("client|id", 2, lambda client, words, turn: client.id),
    ("client|setname", 3, _client_setname),
    ("client|getname", 2, lambda client, words, turn: client.name or None),
    ("client|setinfo", 4, _client_setinfo),
    ("client|info", 2, lambda client, words, turn: client_line(client)),
    ("client|list", -2, _client_list),
    ("client|kill", -3, _client_kill),
    ("client|reply", 3, _client_reply),
    ("client|unblock", -3, _client_unblock),
    ("client|no-evict", 3, _client_switch),
    ("client|no-touch", 3, _client_switch),
    ("client|pause", -3, _client_pause),
    ("client|getredir", 2, lambda client, words, turn: -1),
    ("client|trackinginfo", 2, lambda client, words, turn: dict(_NO_TRACKING)),
    ("replconf", -1, _replconf),
    ("psync", -3, _psync),
    ("sync", 1, _psync),
    ("role", 1, _role),
    ("replicaof", 3, _replicaof),
    ("slaveof", 3, _replicaof),
)
