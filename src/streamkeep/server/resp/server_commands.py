"""Every command that the server knows; here those about the server: INFO, CONFIG, ACL, COMMAND."""

from __future__ import annotations

import random
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from streamkeep.commands import command_table
from streamkeep.commands.help_lines import SUMMARIES
from streamkeep.commands.keys import all_names
from streamkeep.commands.replies import OK, Status
from streamkeep.commands.strings import is_known, load_script
from streamkeep.commands.words import integer, option, options, syntax, text_of, wrong_subcommand
from streamkeep.engine.commands.glob import Glob
from streamkeep.format.core.errors import CommandError
from streamkeep.server.access import categories_of
from streamkeep.server.resp import client_commands, info, transactions
from streamkeep.server.resp.encoder import Sent, encode
from streamkeep.server.resp.turn import ALREADY, HANDLERS, TABLE, Handler, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkeep.server.resp.connection import Connection

WITHOUT_PASSWORD: Final = {"hello", "auth", "quit", "reset"}
IN_TRANSACTION: Final = {"exec", "discard", "multi", "watch", "quit", "reset"}
# Of CLIENT REPLY and REPLCONF ACK in a transaction, Redis leaves out replies that the array of EXEC
# announces. Redis takes REPLICAOF there; here its reply comes when it is done.
NOT_IN_TRANSACTION: Final = {
    "shutdown", "client|reply", "psync", "sync", "replconf", "replicaof", "slaveof",
}  # fmt: skip
_FLAGS: Final = {"read": "readonly", "write": "write"}  # of COMMAND INFO, by category


# --- keys that the user may read ----------------------------------------------------------------


def visible(client: Connection, words: list[bytes], turn: Turn) -> object:
    """KEYS, SCAN and RANDOMKEY: only keys that the user may read, and that are not over."""
    name = option(words[0])
    spec = TABLE[name]
    assert spec.run is not None
    txn = turn.read_txn()
    is_over = client.server.expiry.is_over

    def seen(names: Iterable[bytes]) -> list[bytes]:
        return [one for one in names if client.user.sees(one) and not is_over(one)]

    reply: Any = spec.run(txn, words, 0)
    if name == b"SCAN":
        return [reply[0], seen(reply[1])]
    if name == b"KEYS":
        return seen(reply)
    if reply is not None and not seen([reply]):
        names = seen(all_names(txn))
        return random.choice(names) if names else None
    return reply


# --- the server ---------------------------------------------------------------------------------


def _time(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [b"%d" % part for part in divmod(time.time_ns() // 1000, 1_000_000)]


def _wait(client: Connection, words: list[bytes], turn: Turn) -> object:
    wanted = integer(words[1])
    timeout_ms = integer(words[2], "timeout is not an integer or out of range")
    if timeout_ms < 0:
        raise CommandError("timeout is negative")
    server = client.server
    copied = bool(server.primary.replicas) or bool(server.environment.following())
    if wanted > 0 and copied and not client.executing:
        server.answer_later(client, server.wait_for_copies(client, wanted, timeout_ms))
        return 0  # which is replaced
    return server.copies_with(server.offset_of_commits())


def _waitaof(client: Connection, words: list[bytes], turn: Turn) -> object:
    local = integer(words[1])
    if local not in (0, 1):
        raise CommandError("value is out of range, value must between 0 and 1")
    if integer(words[2]) < 0:
        raise CommandError("value is out of range, must be positive")
    if integer(words[3], "timeout is not an integer or out of range") < 0:
        raise CommandError("timeout is negative")
    if local:
        client.server.wait_for_disk(client)
    # Copies elsewhere get nothing that is not on disk here; to wait for them, there is WAIT.
    server = client.server
    return [local, server.copies_with(server.offset_of_commits(), on_disk=True)]


def _bgsave(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) > 2 or (len(words) == 2 and option(words[1]) != b"SCHEDULE"):
        raise syntax()
    client.server.start_backup()
    return Status("Background saving started")


def _shutdown(client: Connection, words: list[bytes], turn: Turn) -> object:
    chosen = {option(word) for word in words[1:]}
    if chosen == {b"ABORT"}:
        raise CommandError("No shutdown in progress.")
    if not chosen <= {b"SAVE", b"NOSAVE", b"NOW", b"FORCE"} or {b"SAVE", b"NOSAVE"} <= chosen:
        raise syntax()
    client.server.loop.call_soon(client.server.stopped)
    client.close()
    return ALREADY


def _info(client: Connection, words: list[bytes], turn: Turn) -> object:
    sections = [text_of(word).lower() for word in words[1:]]
    return info.text(client.server, sections, turn)


def _config_resetstat(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.server.statistics.reset()
    return OK


def _config_set(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) % 2:
        raise syntax()
    client.server.settings.set(list(zip(words[2::2], words[3::2], strict=True)))
    return OK


def _config_rewrite(client: Connection, words: list[bytes], turn: Turn) -> object:
    raise CommandError("The server is running without a config file")


def _flush(client: Connection, words: list[bytes], turn: Turn) -> object:
    """SCRIPT FLUSH and FUNCTION FLUSH: there is nothing to forget."""
    name = option(words[0]).decode()
    if len(words) > 3 and name == "FUNCTION":
        raise wrong_subcommand(words)
    if len(words) > 3 or (len(words) == 3 and option(words[2]) not in (b"SYNC", b"ASYNC")):
        verb = "supports" if name == "FUNCTION" else "support"
        raise CommandError(f"{name} FLUSH only {verb} SYNC|ASYNC option")
    return OK


def _function_list(client: Connection, words: list[bytes], turn: Turn) -> object:
    for _ in options(words, 2, (b"LIBRARYNAME",), (b"WITHCODE",), _wrong_list):
        pass
    return []  # there are no functions


def _wrong_list(words: list[bytes], at: int) -> CommandError:
    if option(words[at]) == b"LIBRARYNAME":
        return CommandError("library name argument was not given")
    return CommandError(f"Unknown argument {text_of(words[at])}")


# --- COMMAND ------------------------------------------------------------------------------------


def _help(client: Connection, words: list[bytes], turn: Turn) -> object:
    return command_table.help_of(option(words[0]).decode().lower(), ALL_SPECS)


def _command_names(client: Connection, words: list[bytes], turn: Turn) -> list[bytes]:
    return [spec.name.encode() for spec in ALL_SPECS if "|" not in spec.name]


def _command_list(client: Connection, words: list[bytes], turn: Turn) -> list[bytes]:
    if len(words) == 2:
        return [spec.name.encode() for spec in ALL_SPECS]
    kind = option(words[3]) if len(words) == 5 and option(words[2]) == b"FILTERBY" else b""
    if kind == b"MODULE":
        return []
    if kind == b"ACLCAT":
        category = text_of(words[4]).lower()
        return [spec.name.encode() for spec in ALL_SPECS if category in categories_of(spec)]
    if kind == b"PATTERN":
        pattern = Glob(words[4].lower())
        return [spec.name.encode() for spec in ALL_SPECS if pattern.matches(spec.name.encode())]
    raise syntax()


def _command_info(client: Connection, words: list[bytes], turn: Turn) -> object:
    named = words[2:] or _command_names(client, words, turn)
    found = [TABLE.get(word.upper()) for word in named]
    return [None if spec is None else _described(spec, client.resp3) for spec in found]


def _command_docs(client: Connection, words: list[bytes], turn: Turn) -> object:
    named = words[2:] or _command_names(client, words, turn)
    docs: dict[str, object] = {}
    for word in named:
        spec = TABLE.get(word.upper())
        if spec is not None:
            group = b"stream" if spec.name.startswith("x") else b"generic"
            summary = SUMMARIES.get(spec.name, "").encode()
            docs[spec.name] = {"summary": summary, "since": b"5.0.0", "group": group}
    return docs


def _command_getkeys(client: Connection, words: list[bytes], turn: Turn) -> object:
    try:
        spec = command_table.look_up(words[2:], TABLE)
    except CommandError:
        raise CommandError("Invalid command specified") from None
    if not spec.first:
        raise CommandError("The command has no key arguments")
    if not spec.takes(len(words) - 2):
        raise CommandError("Invalid number of arguments specified for command")
    found = spec.keys(words[2:])
    if spec.first == command_table.STREAMS and not found:
        raise CommandError("Invalid arguments specified for command")
    return found


@cache  # a client may name each command a million times
def _described(spec: command_table.Spec, resp3: bool) -> Sent:
    categories = categories_of(spec) - {"all"}
    flags = {Status(_FLAGS[one]) for one in categories & _FLAGS.keys()}
    if spec.parse is not None or spec.name in ("wait", "waitaof"):
        flags.add(Status("blocking"))
    if spec.first < 0:
        flags.add(Status("movablekeys"))
    first = max(spec.first, 0)
    subs = [one for one in ALL_SPECS if one.name.startswith(f"{spec.name}|")]
    facts: list[object] = [
        spec.name.encode(),
        spec.arity,
        flags,
        first,
        spec.last if first else 0,
        int(first > 0),
        {Status(f"@{one}") for one in categories},
        set(),
        set(),
        [_described(sub, resp3) for sub in subs] or set(),
    ]
    return Sent(encode(facts, resp3))


# --- the table ----------------------------------------------------------------------------------

_CONTAINERS: Final = ("client", "config", "script", "function", "acl")
_COMMANDS: Final[tuple[tuple[str, int, Handler], ...]] = (
    *client_commands.COMMANDS,
    *transactions.COMMANDS,
    ("client|unpause", 2, lambda client, words, turn: OK),
    ("time", 1, _time),
    ("wait", 3, _wait),
    ("waitaof", 4, _waitaof),
    ("lastsave", 1, lambda client, words, turn: int(client.server.statistics.last_save)),
    ("bgsave", -1, _bgsave),
    ("shutdown", -1, _shutdown),
    ("info", -1, _info),
    ("config|get", -3, lambda client, words, turn: client.server.settings.get(words[2:])),
    ("config|set", -4, _config_set),
    ("config|resetstat", 2, _config_resetstat),
    ("config|rewrite", 2, _config_rewrite),
    ("script|load", 3, lambda client, words, turn: load_script(words[2])),
    ("script|exists", -3, lambda client, words, turn: [int(is_known(one)) for one in words[2:]]),
    ("script|flush", -2, _flush),
    ("function|flush", -2, _flush),
    ("function|list", -2, _function_list),
    ("acl|whoami", 2, lambda client, words, turn: client.user.name),
    ("acl|users", 2, lambda client, words, turn: sorted(client.server.access.users)),
    ("acl|list", 2, lambda client, words, turn: client.server.access.rules()),
    ("command", -1, _command_info),
    ("command|count", 2, lambda *request: len(_command_names(*request))),
    ("command|list", -2, _command_list),
    ("command|info", -2, _command_info),
    ("command|docs", -2, _command_docs),
    ("command|getkeys", -3, _command_getkeys),
    *((f"{name}|help", 2, _help) for name in (*_CONTAINERS, "command")),
)

ALL_SPECS: Final = (
    *command_table.SPECS,
    *command_table.SERVER_SPECS,
    *(command_table.Spec(name, -2, command_table.READS, container=True) for name in _CONTAINERS),
    *(
        command_table.Spec(name, arity, command_table.READS, container=name == "command")
        for name, arity, _ in _COMMANDS
        if name != "watch"
    ),
    command_table.Spec("watch", -2, command_table.READS, 1, last=-1, rights=(0,)),
)
TABLE.update(command_table.by_name(ALL_SPECS))
HANDLERS.update({name: handler for name, _, handler in _COMMANDS})
HANDLERS.update(dict.fromkeys(("keys", "scan", "randomkey"), visible))
