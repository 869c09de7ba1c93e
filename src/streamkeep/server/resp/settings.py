"""What CONFIG GET shows and CONFIG SET changes.

These have an effect: `appendfsync` is the sync mode, `stream-node-max-...` and `stream-idmp-...`
apply to streams that are created from now on, and `maxclients`, `timeout`, `maxmemory-clients` and
`client-query-buffer-limit` are limits of the server; `masterauth`, `masteruser` and
`replica-read-only` are for what it follows. The others answer what is true of a store,
since clients and exporters ask for them.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from socket import socket
from typing import Any, Final

from streamkeep.commands.command_table import READS, Spec
from streamkeep.commands.keys import run_flush
from streamkeep.commands.replies import CodedError
from streamkeep.commands.words import integer, text_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.arguments import NODE_LIMITS
from streamkeep.engine.commands.glob import Glob
from streamkeep.format.core.errors import CommandError
from streamkeep.format.rows import extension
from streamkeep.format.rows.records import PAGE_FIT
from streamkeep.server.resp.turns import Turns

OWN_FILES: Final = 256  # descriptors for the store and the process
_SYNC_OF: Final = {"always": "commit", "everysec": "interval", "no": "none"}
_FSYNC_OF: Final = {mode: name for name, mode in _SYNC_OF.items()}
_FIXED: Final = {
    "appendonly": "yes",
    "databases": "1",
    "hz": "10",
    "list-max-listpack-size": "-2",
    "loglevel": "notice",
    "lua-time-limit": "5000",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "notify-keyspace-events": "",
    "proto-max-bulk-len": "536870912",
    "save": "",
    "tcp-keepalive": "300",
}
# Which change no key, and cannot do what they promise.
_NOT_READONLY: Final = ("bgsave", "psync", "sync", "wait", "waitaof", "replicaof", "slaveof")
_NODE_NAMES: Final = ("stream-node-max-bytes", "stream-node-max-entries")
_READ_ONLY: Final = ("replica-read-only", "slave-read-only")
# Whose attribute each is, the least value, and the first that is too much.
_NUMBERS: Final[dict[str, tuple[str, str, int, int]]] = {
    "maxclients": ("settings", "max_clients", 1, 1 << 32),
    "timeout": ("settings", "timeout_s", 0, 1 << 31),
    "client-query-buffer-limit": ("turns", "query_limit", 1 << 20, 1 << 40),
    "maxmemory-clients": ("turns", "most_held", 1 << 20, 1 << 50),
    "stream-idmp-duration": ("messages", "duration", 1, extension.MAX_DURATION + 1),
    "stream-idmp-maxsize": ("messages", "maxsize", 1, extension.MAX_MAXSIZE + 1),
    "stream-node-max-bytes": ("context", "node_max_bytes", 0, (1 << 32) - 2),
    "stream-node-max-entries": ("context", "node_max_entries", 0, (1 << 32) - 2),
}
_SIZES: Final = ("client-query-buffer-limit", "maxmemory-clients", "stream-node-max-bytes")
_UNITS: Final = {
    "b": 1, "k": 1000, "kb": 1 << 10, "m": 1000**2, "mb": 1 << 20, "g": 1000**3, "gb": 1 << 30,
}  # fmt: skip
_MOST_PATTERNS: Final = 1000  # each is compared with every name


class Settings:
    def __init__(self, store: Store[bytes], turns: Turns) -> None:
        self._context = store._environment.context
        self._store = store
        self.max_clients = 10_000
        self.other_files = OWN_FILES
        self.timeout_s = 0
        self.allow_flush = False
        self.readonly = store._readonly
        self.is_replica = False  # of a server that it follows itself
        self.replica_readonly = True
        self.sync = store.sync_mode
        self._turns = turns
        turns.durable = self.sync == "commit"
        self.shown: dict[str, str] = {"dir": str(store.path), "dbfilename": "data.mdb"}
        self.addresses: list[str] = []  # where clients reach it over TCP

    def note_address(self, host: str, listener: socket) -> None:
        """Note an address on which the server listens; `shown` has the port of the last one."""
        port = listener.getsockname()[1]
        self.addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        bound = self.shown.get("bind")
        self.shown.update(bind=f"{bound} {host}" if bound else host, port=str(port))

    @property
    def refuses_writes(self) -> bool:
        return self.readonly or (self.is_replica and self.replica_readonly)

    def clients_that_fit(self, wanted: int) -> int:
        """Return how many clients there may be so that the store never lacks descriptors."""
        return max(1, min(wanted, limit_of_files(wanted + self.other_files) - self.other_files))

    def check_allowed(self, spec: Spec) -> None:
        """Raise for a command that this server does not run."""
        if self.refuses_writes and spec.kind != READS:
            raise CodedError("READONLY You can't write against a read only replica.")
        if self.is_replica and spec.name in ("wait", "waitaof"):
            raise CommandError(
                f"{spec.name.upper()} cannot be used with replica instances. Please also note that "
                "writes to replicas are just local and are not propagated."
            )
        if self.readonly and spec.name in _NOT_READONLY:
            raise CommandError("the store is open for reading only (--readonly)")
        if spec.run is run_flush and not self.allow_flush:
            raise CommandError(
                f"{spec.name.upper()} deletes every stream of the store; start the server with "
                "--allow-flush to allow it"
            )

    def _holders(self) -> dict[str, Any]:
        messages = extension.idempotence_of(self._context.new_extension, "settings")
        return {
            "settings": self,
            "turns": self._turns,
            "messages": messages,
            "context": self._context,
        }

    def values(self) -> dict[str, str]:
        holders = self._holders()
        numbers = {
            name: str(getattr(holders[holder], attribute))
            for name, (holder, attribute, _, _) in _NUMBERS.items()
        }
        if self._context.node_max_bytes == PAGE_FIT:
            limits = zip(_NODE_NAMES, map(str, NODE_LIMITS), strict=True)
            numbers.update(limits)
        upstream = self._turns.host.upstream
        return {
            **_FIXED,
            **self.shown,
            "appendfsync": _FSYNC_OF[self.sync],
            "masterauth": upstream.password,
            "masteruser": upstream.user,
            **dict.fromkeys(_READ_ONLY, "yes" if self.replica_readonly else "no"),
            **numbers,
        }

    def get(self, patterns: list[bytes]) -> dict[str, bytes]:
        """Return the settings whose names match one of the patterns."""
        if len(patterns) > _MOST_PATTERNS:
            raise CommandError(f"CONFIG GET takes {_MOST_PATTERNS} patterns at most")
        matchers = [Glob(pattern.lower()) for pattern in patterns]
        return {
            name: value.encode(errors="surrogateescape")  # of a path that is not UTF-8
            for name, value in sorted(self.values().items())
            if any(matcher.matches(name.encode()) for matcher in matchers)
        }

    def set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        chosen: dict[str, str] = {}
        known = self.values()
        for word, value in pairs:
            name = _whole(word).lower()
            if name not in known:
                raise CommandError(
                    f"Unknown option or number of arguments for CONFIG SET - '{text_of(word)}'"
                )
            if name in chosen:
                raise _refused(name, "duplicate parameter")
            chosen[name] = _whole(value)
            _check(name, chosen[name], known[name])
            if name == "maxclients":
                most = self.clients_that_fit(int(chosen[name]))
                if most < int(chosen[name]):
                    why = "The operating system is not able to handle the specified number of "
                    raise _refused(name, f"{why}clients, try with {most}")
        for name, text in chosen.items():
            self._apply(name, text)

    def _apply(self, name: str, text: str) -> None:
        context = self._context
        if name == "appendfsync":
            self.sync = _SYNC_OF[text.lower()]  # type: ignore[assignment]  # one of the modes
            self._store._note_sync(self.sync)
            self._turns.durable = self.sync == "commit"
            # For HTTP, too; a program that serves its own store keeps what it has chosen.
            self._store._wait = "commit" in (self.sync, self._store.sync_mode)
        elif name in _READ_ONLY:
            self.replica_readonly = text.lower() == "yes"
            self._turns.host.renew_plain()
        elif name in ("masterauth", "masteruser"):
            upstream = self._turns.host.upstream
            setattr(upstream, "user" if name == "masteruser" else "password", text)
            upstream.log_in()
        elif name in _NUMBERS:
            if name in _NODE_NAMES and context.node_max_bytes == PAGE_FIT:
                context.node_max_bytes, context.node_max_entries = NODE_LIMITS
            holders = self._holders()
            holder, attribute, _, _ = _NUMBERS[name]
            setattr(holders[holder], attribute, _number(name, text))
            if holder == "messages":
                section = holders["messages"].encode()
                context.new_extension = extension.with_section(b"", extension.IDEMPOTENCE, section)


def limit_of_files(needed: int) -> int:
    """Let the process have as many files as are needed, if it may; return how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def _whole(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


def _check(name: str, text: str, present: str) -> None:
    if name == "appendfsync":
        if text.lower() not in _SYNC_OF:
            raise _refused(name, "argument(s) must be one of the following: everysec, always, no")
    elif name in _NUMBERS:
        _, _, least, most = _NUMBERS[name]
        number = _number(name, text)
        if not least <= number < most:
            raise _refused(name, f"argument must be between {least} and {most - 1} inclusive")
    elif name in _READ_ONLY:
        if text.lower() not in ("yes", "no"):
            raise _refused(name, "argument must be 'yes' or 'no'")
    elif text != present and name not in ("loglevel", "masterauth", "masteruser"):
        raise _refused(name, "can't set immutable config")


def _number(name: str, text: str) -> int:
    """Return the value of a number, which may have a unit if it is a size."""
    problem, unit = "couldn't be parsed into an integer", "b"
    if name in _SIZES:
        problem, digits = "must be a memory value", text.rstrip("bBgGkKmM")
        text, unit = digits, text[len(digits) :].lower() or "b"
    with suppress(CommandError, KeyError):
        return integer(text.encode("utf-8", "surrogateescape")) * _UNITS[unit]
    raise _refused(name, f"argument {problem}")


def _refused(name: str, why: str) -> CommandError:
    return CommandError(f"CONFIG SET failed (possibly related to argument '{name}') - {why}")
