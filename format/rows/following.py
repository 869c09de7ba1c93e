"""The row `following` of `meta`, in JSON: the server whose streams a store follows, and how far."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError

META_FOLLOWING: Final = b"following"


class FollowingRow(NamedTuple):
    """How far a store follows a Redis server; written in the transaction that applies its commands.

    Attributes:
        source: its address, without the password.
        replication_id: the history of commands that the offset belongs to; empty if all streams
            must be taken again.
        offset: in bytes: of the end of the last command that was applied.
        database: the one that is followed, and
        selected: the one that the next command is for, as text.
        match: patterns of the keys that are followed; none for all.
        deletions: "apply", or "keep" in the archive.
        since_ms: Unix time at which the store began to follow.
        time_ms: Unix time at which the last command came.
        full: how often all streams were taken, and
        full_ms: Unix time at which that was done last.
        commands, entries: how many were applied, and added, since the store began to follow.
        skipped: what was left out, such as commands of other types, and how often.
        replicaof: the address of the server that servers of the store follow, as REPLICAOF has
            chosen it; empty if another process is to follow the source.
    """

    source: str
    replication_id: str = ""
    offset: int = 0
    database: int = 0
    selected: str = ""
    match: tuple[str, ...] = ()
    deletions: str = "apply"
    since_ms: int = 0
    time_ms: int = 0
    full: int = 0
    full_ms: int = 0
    commands: int = 0
    entries: int = 0
    skipped: dict[str, int] = {}  # noqa: RUF012  # never changed
    replicaof: str = ""

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()


def decode_following(body: bytes, where: str) -> FollowingRow:
    try:
        row = FollowingRow(**json.loads(body))
        return row._replace(match=tuple(row.match))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptionError(where, f"the row of what the store follows: {error}") from None
