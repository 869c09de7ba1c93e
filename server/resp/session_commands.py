"""The commands that concern the connection or the server, not the keys: HELLO, CLIENT, MULTI, ...

`TABLE` has every command that the server knows, `HANDLERS` the functions of those that are here. A
handler takes the connection, the words and the turn, and returns a reply, or ALREADY where it has
queued its reply itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.commands.keys import iter_keys
from streamkeep.format.core.errors import CommandError
from streamkeep.server.commands.replies import NIL_ARRAY, OK, Status
from streamkeep.server.commands.table import READS, SPECS, WRITES, Spec, by_name
from streamkeep.server.commands.words import integer, option, syntax, text_of, wrong_count
from streamkeep.server.resp.encoder import Sent, encode, error_line
from streamkeep.server.resp.session_help import HELP
from streamkeep.server.resp.turn import Step, Turn, failure_line, run_one
from streamkeep.server.resp.versions import REDIS_VERSION

if TYPE_CHECKING:
    from streamkeep.engine.txn.txn import Txn, WriteTxn
    from streamkeep.server.resp.connection import Connection

Handler = Callable[["Connection", list[bytes], Turn], object]


class Already:
    """The type of ALREADY."""


ALREADY: Final = Already()
WITHOUT_PASSWORD: Final = {"hello", "auth", "quit", "reset"}
IN_TRANSACTION: Final = {"exec", "discard", "multi", "watch", "quit", "reset"}


class CodedError(CommandError):
    """An error of Redis whose first word is not ERR; it is the first word of the text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.redis_code = text.partition(" ")[0]


# --- the connection -----------------------------------------------------------------------------


def _ping(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) > 2:
        raise wrong_count("ping")
    return words[1] if len(words) == 2 else Status("PONG")


def _echo(client: Connection, words: list[bytes], turn: Turn) -> object:
    return words[1]


def _quit(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.close()
    return OK


def _reset(client: Connection, words: list[bytes], turn: Turn) -> object:
    _drop_transaction(client)
    client.watched = {}
    client.mode = "on"
    client.resp3 = False
    client.name = b""
    client.server.log_in_by_default(client)
    client.renew_plain()
    return Status("RESET")


def _select(client: Connection, words: list[bytes], turn: Turn) -> object:
    if integer(words[1]) != 0:
        raise CommandError("DB index is out of range")
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
        "role": b"master",
        "modules": [],
    }


# --- CLIENT -------------------------------------------------------------------------------------


def _checked_name(name: bytes, what: str = "Client names") -> bytes:
    if any(byte < 33 or byte > 126 for byte in name):
        raise CommandError(f"{what} cannot contain spaces, newlines or special characters.")
    return name


def _client_id(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.id


def _client_setname(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.name = _checked_name(words[2])
    return OK


def _client_getname(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.name or None


def _client_setinfo(client: Connection, words: list[bytes], turn: Turn) -> object:
    name = option(words[2])
    if name == b"LIB-NAME":
        client.library = _checked_name(words[3], "lib-name")
    elif name == b"LIB-VER":
        client.library_version = _checked_name(words[3], "lib-ver")
    else:
        raise CommandError(f"Unrecognized option '{text_of(words[2])}'")
    return OK


def _client_info(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.server.describe(client).encode()


def _client_list(client: Connection, words: list[bytes], turn: Turn) -> object:
    chosen = list(client.server.clients.values())
    if len(words) > 2:
        name = option(words[2])
        if name == b"TYPE" and len(words) == 4:
            kind = option(words[3])
            if kind not in (b"NORMAL", b"MASTER", b"REPLICA", b"PUBSUB"):
                raise CommandError(f"Unknown client type '{text_of(words[3])}'")
            chosen = chosen if kind == b"NORMAL" else []
        elif name == b"ID" and len(words) > 3:
            ids = {integer(word, "Invalid client ID") for word in words[3:]}
            chosen = [one for one in chosen if one.id in ids]
        else:
            raise syntax()
    return "".join(client.server.describe(one) for one in chosen).encode()


def _client_kill(client: Connection, words: list[bytes], turn: Turn) -> object:
    server = client.server
    everyone = list(server.clients.values())
    if len(words) == 3:
        address = text_of(words[2])
        for one in everyone:
            if one.address == address:
                server.kill(one, turn)
                return OK
        raise CommandError("No such client")
    skips_me, chosen = True, everyone
    for place in range(2, len(words), 2):
        if place + 1 == len(words):
            raise syntax()
        name, value = option(words[place]), words[place + 1]
        if name == b"ID":
            number = integer(value, "client-id should be greater than 0")
            if number < 1:
                raise CommandError("client-id should be greater than 0")
            chosen = [one for one in chosen if one.id == number]
        elif name == b"ADDR":
            chosen = [one for one in chosen if one.address == text_of(value)]
        elif name == b"LADDR":
            chosen = [one for one in chosen if one.local_address == text_of(value)]
        elif name == b"USER":
            if value not in server.access.users:
                raise CommandError(f"No such user '{text_of(value)}'")
            chosen = [one for one in chosen if one.user.name == value]
        elif name == b"TYPE":
            chosen = chosen if option(value) == b"NORMAL" else []
        elif name == b"SKIPME" and option(value) in (b"YES", b"NO"):
            skips_me = option(value) == b"YES"
        else:
            raise syntax()
    chosen = [one for one in chosen if not (skips_me and one is client)]
    for one in chosen:
        server.kill(one, turn)
    return len(chosen)


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
    client.plain = False
    return ALREADY


def _client_unblock(client: Connection, words: list[bytes], turn: Turn) -> object:
    with_error = False
    if len(words) > 4:
        raise wrong_count("client|unblock")
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
        reply = error_line("UNBLOCKED client unblocked via CLIENT UNBLOCK")
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


def _client_trackinginfo(client: Connection, words: list[bytes], turn: Turn) -> object:
    return {"flags": [b"off"], "redirect": -1, "prefixes": []}


def _client_getredir(client: Connection, words: list[bytes], turn: Turn) -> object:
    return -1


# --- transactions -------------------------------------------------------------------------------


class Exec(Step):
    """The commands of a transaction: all of them run, or none."""

    def __init__(
        self, client: Connection, commands: list[tuple[Spec, list[bytes]]], turn: Turn
    ) -> None:
        super().__init__(client, commands)
        self.connection = client
        self.turn = turn
        self.watched = client.watched

    def run_alone(self, txn: Any) -> bytes:
        """Run them; return the replies as one."""
        client = self.connection
        for key, before in self.watched.items():
            if state_of(txn, key) != before:
                return encode(NIL_ARRAY, client.resp3)
        replies: list[object] = []
        for spec, words in self.commands:
            handler = HANDLERS.get(spec.name)
            if handler is None:
                replies.append(Sent(run_one(txn, spec, words, client.resp3)))
                continue
            try:
                replies.append(handler(client, words, self.turn))
            except CommandError as error:
                replies.append(error)
        return encode(replies, client.resp3)


def state_of(txn: Txn, key: bytes) -> object:
    """Return what WATCH compares: everything that a writer of this stream changes."""
    stream = txn.find_stream(key)
    if stream is None:
        return None
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


def _drop_transaction(client: Connection) -> None:
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
    _drop_transaction(client)
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
        _drop_transaction(client)
        raise CodedError("EXECABORT Transaction discarded because of previous errors.")
    step = Exec(client, client.queued, turn)
    _drop_transaction(client)
    if any(spec.kind != READS for spec, _ in step.commands):
        turn.run_step(step)
        return ALREADY
    try:
        return Sent(step.run_alone(turn.read_txn()))
    except Exception as error:
        return Sent(failure_line(error))


# --- keys that the user may read ----------------------------------------------------------------


def _visible(client: Connection, words: list[bytes], turn: Turn) -> object:
    """KEYS, SCAN and RANDOMKEY: only keys that the user may read."""
    name = option(words[0])
    spec = TABLE[name]
    assert spec.run is not None
    if name == b"RANDOMKEY" and not client.user.is_unrestricted():
        names = [one for one, _ in iter_keys(turn.read_txn())]
        seen = [one for one in names if client.user.sees(one)]
        return random.choice(seen) if seen else None
    reply: Any = spec.run(turn.read_txn(), words, 0)
    if name == b"SCAN":
        return [reply[0], [one for one in reply[1] if client.user.sees(one)]]
    return reply if name == b"RANDOMKEY" else [one for one in reply if client.user.sees(one)]


# --- the server ---------------------------------------------------------------------------------


def _time(client: Connection, words: list[bytes], turn: Turn) -> object:
    micros = time.time_ns() // 1000
    return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]


def _role(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [b"master", client.server.offset(), []]


def _wait(client: Connection, words: list[bytes], turn: Turn) -> object:
    integer(words[1])
    if integer(words[2], "timeout is not an integer or out of range") < 0:
        raise CommandError("timeout is negative")
    return 0  # there are no replicas


def _waitaof(client: Connection, words: list[bytes], turn: Turn) -> object:
    local = integer(words[1], "value is out of range, must be between 0 and 1")
    if local not in (0, 1):
        raise CommandError("value is out of range, must be between 0 and 1")
    if integer(words[2]) < 0:
        raise CommandError("value is out of range, must be positive")
    if integer(words[3], "timeout is not an integer or out of range") < 0:
        raise CommandError("timeout is negative")
    client.server.wait_for_disk(client, lambda: encode([local, 0], client.resp3))
    return ALREADY


def _lastsave(client: Connection, words: list[bytes], turn: Turn) -> object:
    return int(client.server.statistics.last_save)


def _bgsave(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) > 2 or (len(words) == 2 and option(words[1]) != b"SCHEDULE"):
        raise syntax()
    client.server.start_backup()
    return Status("Background saving started")


def _shutdown(client: Connection, words: list[bytes], turn: Turn) -> object:
    for word in words[1:]:
        if option(word) == b"ABORT":
            raise CommandError("No shutdown in progress.")
        if option(word) not in (b"SAVE", b"NOSAVE", b"NOW", b"FORCE"):
            raise syntax()
    client.server.stop()
    client.close()
    return ALREADY


def _flush(client: Connection, words: list[bytes], turn: Turn) -> object:
    if not client.server.settings.allow_flush:
        raise CommandError(
            f"{option(words[0]).decode()} deletes every stream of the store; start the server with "
            "--allow-flush to allow it"
        )
    turn.run(client, FLUSH, words)
    return ALREADY


def _info(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.server.info([text_of(word).lower() for word in words[1:]], turn).encode()


def _config_get(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.server.settings.get(words[2:])


def _config_set(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) % 2:
        raise wrong_count("config|set")
    client.server.settings.set(list(zip(words[2::2], words[3::2], strict=True)))
    return OK


def _config_resetstat(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.server.statistics.reset()
    return OK


def _config_rewrite(client: Connection, words: list[bytes], turn: Turn) -> object:
    raise CommandError("The server is running without a config file")


def _empty(client: Connection, words: list[bytes], turn: Turn) -> object:
    return []


def _zero(client: Connection, words: list[bytes], turn: Turn) -> object:
    return 0


def _ok(client: Connection, words: list[bytes], turn: Turn) -> object:
    return OK


# --- ACL ----------------------------------------------------------------------------------------


def _acl_whoami(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.user.name


def _acl_users(client: Connection, words: list[bytes], turn: Turn) -> object:
    return sorted(client.server.access.users)


def _acl_list(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [user.rules() for _, user in sorted(client.server.access.users.items())]


# --- COMMAND ------------------------------------------------------------------------------------


def _command(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [_described(spec) for spec in ALL_SPECS if "|" not in spec.name]


def _command_count(client: Connection, words: list[bytes], turn: Turn) -> object:
    return sum("|" not in spec.name for spec in ALL_SPECS)


def _command_list(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [spec.name.encode() for spec in ALL_SPECS if "|" not in spec.name]


def _command_info(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) == 2:
        return _command(client, words, turn)
    found = [TABLE.get(word.upper()) for word in words[2:]]
    return [None if spec is None else _described(spec) for spec in found]


def _command_docs(client: Connection, words: list[bytes], turn: Turn) -> object:
    named = words[2:] or [spec.name.encode() for spec in ALL_SPECS if "|" not in spec.name]
    docs: dict[str, object] = {}
    for word in named:
        spec = TABLE.get(word.upper())
        if spec is not None:
            group = b"stream" if spec.name.startswith("x") else b"generic"
            docs[spec.name] = {"summary": b"", "since": b"5.0.0", "group": group}
    return docs


def _command_getkeys(client: Connection, words: list[bytes], turn: Turn) -> object:
    spec = TABLE.get(words[2].upper())
    if spec is None:
        raise CommandError("Invalid command specified")
    if spec.arity != len(words) - 2 if spec.arity > 0 else len(words) - 2 < -spec.arity:
        raise CommandError("Invalid number of arguments specified for command")
    found = spec.keys(words[2:])
    if not found:
        raise CommandError("The command has no key arguments")
    return found


def _described(spec: Spec) -> list[object]:
    flags = [Status("readonly" if spec.kind == READS else "write")] if spec.first else []
    if spec.parse is not None:
        flags += [Status("blocking"), Status("movablekeys")]
    first = max(spec.first, 0)
    subs = [one for one in ALL_SPECS if one.name.startswith(f"{spec.name}|")]
    category = Status("@stream" if spec.name.startswith("x") else "@keyspace")
    return [
        spec.name.encode(),
        spec.arity,
        flags,
        first,
        spec.last if first else 0,
        spec.step,
        [category] if spec.first else [Status("@connection")],
        [],
        [],
        [_described(sub) for sub in subs],
    ]


def _help(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [Status(line) for line in HELP[option(words[0]).decode()]]


# --- the table ----------------------------------------------------------------------------------

_HERE: Final[tuple[tuple[str, int, Handler], ...]] = (
    ("ping", -1, _ping),
    ("echo", 2, _echo),
    ("quit", -1, _quit),
    ("reset", 1, _reset),
    ("select", 2, _select),
    ("auth", -2, _auth),
    ("hello", -1, _hello),
    ("client|id", 2, _client_id),
    ("client|setname", 3, _client_setname),
    ("client|getname", 2, _client_getname),
    ("client|setinfo", 4, _client_setinfo),
    ("client|info", 2, _client_info),
    ("client|list", -2, _client_list),
    ("client|kill", -3, _client_kill),
    ("client|reply", 3, _client_reply),
    ("client|unblock", -3, _client_unblock),
    ("client|no-evict", 3, _client_switch),
    ("client|no-touch", 3, _client_switch),
    ("client|pause", -3, _client_pause),
    ("client|unpause", 2, _ok),
    ("client|getredir", 2, _client_getredir),
    ("client|trackinginfo", 2, _client_trackinginfo),
    ("client|help", 2, _help),
    ("multi", 1, _multi),
    ("exec", 1, _exec),
    ("discard", 1, _discard),
    ("watch", -2, _watch),
    ("unwatch", 1, _unwatch),
    ("time", 1, _time),
    ("role", 1, _role),
    ("wait", 3, _wait),
    ("waitaof", 4, _waitaof),
    ("lastsave", 1, _lastsave),
    ("bgsave", -1, _bgsave),
    ("shutdown", -1, _shutdown),
    ("flushdb", -1, _flush),
    ("flushall", -1, _flush),
    ("info", -1, _info),
    ("config|get", -3, _config_get),
    ("config|set", -4, _config_set),
    ("config|resetstat", 2, _config_resetstat),
    ("config|rewrite", 2, _config_rewrite),
    ("config|help", 2, _help),
    ("slowlog|get", -2, _empty),
    ("slowlog|len", 2, _zero),
    ("slowlog|reset", 2, _ok),
    ("latency|latest", 2, _empty),
    ("acl|whoami", 2, _acl_whoami),
    ("acl|users", 2, _acl_users),
    ("acl|list", 2, _acl_list),
    ("command", -1, _command),
    ("command|count", 2, _command_count),
    ("command|list", -2, _command_list),
    ("command|info", -2, _command_info),
    ("command|docs", -2, _command_docs),
    ("command|getkeys", -3, _command_getkeys),
)
HANDLERS: Final[dict[str, Handler]] = {
    **{name: handler for name, _, handler in _HERE},
    **dict.fromkeys(("keys", "scan", "randomkey"), _visible),
}
_CONTAINERS: Final = ("client", "config", "slowlog", "latency", "acl")


def _spec(name: str, arity: int) -> Spec:
    keys = (1, -1, 1) if name == "watch" else (0, 0, 0)
    kind = WRITES if name in ("flushdb", "flushall") else READS
    return Spec(name, arity, kind, *keys, container=name == "command")


ALL_SPECS: Final = (
    *SPECS,
    *(Spec(name, -2, READS, container=True) for name in _CONTAINERS),
    *(_spec(name, arity) for name, arity, _ in _HERE),
)
TABLE: Final = by_name(ALL_SPECS)


def _run_flush(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    from streamkeep.server.commands.keys import run_flush

    return run_flush(txn, words, shape)


FLUSH: Final = Spec("flushall", -1, WRITES, run=_run_flush)
