"""What clients ask of the server: keys that they may see, INFO, CONFIG, ACL, BGSAVE, SHUTDOWN."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.commands.keys import iter_keys
from streamkeep.format.core.errors import CommandError
from streamkeep.server.commands.replies import OK, Status
from streamkeep.server.commands.strings import KNOWN_DIGESTS, load_script
from streamkeep.server.commands.words import (
    integer,
    option,
    syntax,
    text_of,
    wrong_subcommand,
)
from streamkeep.server.resp.handlers import ALREADY, TABLE, Handler
from streamkeep.server.resp.turn import Turn

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection

_FLUSH_MODES: Final = (b"SYNC", b"ASYNC")


# --- keys that the user may read ----------------------------------------------------------------


def visible(client: Connection, words: list[bytes], turn: Turn) -> object:
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
    local = integer(words[1])
    if local not in (0, 1):
        raise CommandError("value is out of range, value must between 0 and 1")
    if integer(words[2]) < 0:
        raise CommandError("value is out of range, must be positive")
    if integer(words[3], "timeout is not an integer or out of range") < 0:
        raise CommandError("timeout is negative")
    if local:
        client.server.wait_for_disk(client)
    return [local, 0]


def _lastsave(client: Connection, words: list[bytes], turn: Turn) -> object:
    return int(client.server.statistics.last_save)


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
    client.server.stop()
    client.close()
    return ALREADY


def _info(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.server.info([text_of(word).lower() for word in words[1:]], turn).encode()


def _config_get(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.server.settings.get(words[2:])


def _config_set(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) % 2:
        raise syntax()
    client.server.settings.set(list(zip(words[2::2], words[3::2], strict=True)))
    return OK


def _config_resetstat(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.server.statistics.reset()
    return OK


def _config_rewrite(client: Connection, words: list[bytes], turn: Turn) -> object:
    raise CommandError("The server is running without a config file")


def _script_load(client: Connection, words: list[bytes], turn: Turn) -> object:
    return load_script(words[2])


def _script_exists(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [int(word.lower() in KNOWN_DIGESTS) for word in words[2:]]


def _ok(client: Connection, words: list[bytes], turn: Turn) -> object:
    return OK


def _script_flush(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) > 3 or (len(words) == 3 and option(words[2]) not in _FLUSH_MODES):
        raise CommandError("SCRIPT FLUSH only support SYNC|ASYNC option")
    return OK


def _function_flush(client: Connection, words: list[bytes], turn: Turn) -> object:
    if len(words) > 3:
        raise wrong_subcommand(words)
    if len(words) == 3 and option(words[2]) not in _FLUSH_MODES:
        raise CommandError("FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK


def _function_list(client: Connection, words: list[bytes], turn: Turn) -> object:
    at = 2
    while at < len(words):
        name = option(words[at])
        if name == b"LIBRARYNAME":
            if at + 1 == len(words):
                raise CommandError("library name argument was not given")
            at += 1
        elif name != b"WITHCODE":
            raise CommandError(f"Unknown argument {text_of(words[at])}")
        at += 1
    return []  # there are no functions


def _slowlog_get(client: Connection, words: list[bytes], turn: Turn) -> object:
    problem = "count should be greater than or equal to -1"
    count = integer(words[2], problem) if len(words) > 2 else 10
    if count < -1:
        raise CommandError(problem)
    entries = list(client.server.slow.entries)
    return [entry.row() for entry in (entries if count < 0 else entries[:count])]


def _slowlog_len(client: Connection, words: list[bytes], turn: Turn) -> object:
    return len(client.server.slow.entries)


def _slowlog_reset(client: Connection, words: list[bytes], turn: Turn) -> object:
    client.server.slow.entries.clear()
    return OK


def _latency_latest(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.server.slow.latest()


def _latency_history(client: Connection, words: list[bytes], turn: Turn) -> object:
    samples = client.server.slow.events.get(text_of(words[2]), ())
    return [[when, millis] for when, millis in samples]


def _latency_reset(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.server.slow.forget([text_of(word) for word in words[2:]])


# --- ACL ----------------------------------------------------------------------------------------


def _acl_whoami(client: Connection, words: list[bytes], turn: Turn) -> object:
    return client.user.name


def _acl_users(client: Connection, words: list[bytes], turn: Turn) -> object:
    return sorted(client.server.access.users)


def _acl_list(client: Connection, words: list[bytes], turn: Turn) -> object:
    return [user.rules() for _, user in sorted(client.server.access.users.items())]


COMMANDS: Final[tuple[tuple[str, int, Handler], ...]] = (
    ("client|unpause", 2, _ok),
    ("time", 1, _time),
    ("role", 1, _role),
    ("wait", 3, _wait),
    ("waitaof", 4, _waitaof),
    ("lastsave", 1, _lastsave),
    ("bgsave", -1, _bgsave),
    ("shutdown", -1, _shutdown),
    ("info", -1, _info),
    ("config|get", -3, _config_get),
    ("config|set", -4, _config_set),
    ("config|resetstat", 2, _config_resetstat),
    ("config|rewrite", 2, _config_rewrite),
    ("script|load", 3, _script_load),
    ("script|exists", -3, _script_exists),
    ("script|flush", -2, _script_flush),
    ("function|flush", -2, _function_flush),
    ("function|list", -2, _function_list),
    ("slowlog|get", -2, _slowlog_get),
    ("slowlog|len", 2, _slowlog_len),
    ("slowlog|reset", 2, _slowlog_reset),
    ("latency|history", 3, _latency_history),
    ("latency|latest", 2, _latency_latest),
    ("latency|reset", -2, _latency_reset),
    ("acl|whoami", 2, _acl_whoami),
    ("acl|users", 2, _acl_users),
    ("acl|list", 2, _acl_list),
)
