"""What servers show of their streams, and stores by the same commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from resp_peer import decode
from streamkeep.commands.command_table import BY_NAME, READS, SERVER_SPECS, by_name, find
from streamkeep.engine.api.store import Store
from streamkeep.server.resp.turn import run_one

Call = Callable[..., Any]

TABLE: Final = {**BY_NAME, **by_name(SERVER_SPECS)}
TIMES: Final = (b"seen-time", b"active-time")
# What XINFO STREAM FULL says since 7.0, without how a server stores a stream.
_FACTS: Final = (b"length", b"last-generated-id", b"max-deleted-entry-id", b"entries-added",
                 b"recorded-first-entry-id", b"entries", b"groups")  # fmt: skip


def caller(store: Store[Any]) -> Call:
    """Return a function that runs a command on a store as a server does; none may be refused."""

    def call(*words: bytes) -> Any:
        spec = find(list(words), TABLE)
        environment = store._environment
        run = environment.read if spec.kind == READS else environment.write
        reply = decode(run(run_one, spec, list(words), False))
        if isinstance(reply, str):
            assert not reply.startswith("-"), (words, reply)
            return reply.encode()
        return reply

    return call


def stream(call: Call, key: bytes, *left_out: bytes) -> dict[bytes, Any]:
    """Return all that XINFO reports of a stream, without these facts of groups and consumers."""

    def facts(flat: list[Any]) -> dict[bytes, Any]:
        pairs = zip(flat[0::2], flat[1::2], strict=True)
        return {name: value for name, value in pairs if name not in (*left_out, b"nacked-count")}

    told = facts(call(b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"))
    groups = [facts(group) for group in told[b"groups"]]
    for group in groups:
        group[b"consumers"] = [facts(one) for one in group[b"consumers"]]
    return {name: told[name] for name in _FACTS} | {b"groups": groups}
