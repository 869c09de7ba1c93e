"""Every command that the server knows, and COMMAND, by which clients ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamkeep.format.core.errors import CommandError
from streamkeep.server.commands.replies import Status
from streamkeep.server.commands.summaries import SUMMARIES
from streamkeep.server.commands.table import (
    READS,
    SERVER_SPECS,
    SPECS,
    STREAMS,
    Spec,
    by_name,
    look_up,
)
from streamkeep.server.commands.words import option
from streamkeep.server.resp import client_commands, server_commands, transactions
from streamkeep.server.resp.handlers import HANDLERS, TABLE, Handler
from streamkeep.server.resp.session_help import HELP
from streamkeep.server.resp.turn import Turn

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection

WITHOUT_PASSWORD: Final = {"hello", "auth", "quit", "reset"}
IN_TRANSACTION: Final = {"exec", "discard", "multi", "watch", "quit", "reset"}
# Of CLIENT REPLY in a transaction, Redis leaves out replies that the array of EXEC announces.
NOT_IN_TRANSACTION: Final = {"shutdown", "client|reply"}


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
            summary = SUMMARIES.get(spec.name, "").encode()
            docs[spec.name] = {"summary": summary, "since": b"5.0.0", "group": group}
    return docs


def _command_getkeys(client: Connection, words: list[bytes], turn: Turn) -> object:
    try:
        spec = look_up(words[2:], TABLE)
    except CommandError:
        raise CommandError("Invalid command specified") from None
    if not spec.first:
        raise CommandError("The command has no key arguments")
    if not spec.takes(len(words) - 2):
        raise CommandError("Invalid number of arguments specified for command")
    found = spec.keys(words[2:])
    if spec.first == STREAMS and not found:
        raise CommandError("Invalid arguments specified for command")
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

_COMMANDS: Final[tuple[tuple[str, int, Handler], ...]] = (
    *client_commands.COMMANDS,
    *transactions.COMMANDS,
    *server_commands.COMMANDS,
    ("client|help", 2, _help),
    ("config|help", 2, _help),
    ("command", -1, _command),
    ("command|count", 2, _command_count),
    ("command|list", -2, _command_list),
    ("command|info", -2, _command_info),
    ("command|docs", -2, _command_docs),
    ("command|getkeys", -3, _command_getkeys),
)
_CONTAINERS: Final = ("client", "config", "script", "function", "slowlog", "latency", "acl")


def _spec(name: str, arity: int) -> Spec:
    keys = (1, -1, 1) if name == "watch" else (0, 0, 0)
    return Spec(name, arity, READS, *keys, container=name == "command")


ALL_SPECS: Final = (
    *SPECS,
    *SERVER_SPECS,
    *(Spec(name, -2, READS, container=True) for name in _CONTAINERS),
    *(_spec(name, arity) for name, arity, _ in _COMMANDS),
)
TABLE.update(by_name(ALL_SPECS))
HANDLERS.update({name: handler for name, _, handler in _COMMANDS})
HANDLERS.update(dict.fromkeys(("keys", "scan", "randomkey"), server_commands.visible))
