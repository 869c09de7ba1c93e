"""Rows of `meta` that say what a store is a copy of, what it follows, and what was done last.

A backup has the row `backup`. As long as the commit that wrote it is the newest commit of the copy,
the copy is an unchanged backup and the next backup may replace it. After any later write it is a
store in its own right. The store that was copied has the row `last_backup`. A store that follows a
copy elsewhere has the row `standby`, in JSON, until it is promoted; one that follows a Redis server
has the row `following`, also in JSON. The last recovery is in `last_recovery`.

An application that writes in numbered batches, such as a Spark query, repeats a batch if it does
not know whether it was stored. The transaction that applies a batch also stores its number, and for
a query, under another name, a checksum of what Spark had planned for it (`pipeline/sink/identity`).
The key of the row is `batch:` and the application's name (`keys.name_key`).
"""

from __future__ import annotations

import json
import struct
from typing import Annotated, Final, NamedTuple

from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.json_form import of_types
from streamkeep.format.core.keys import META, name_key
from streamkeep.format.core.layout import Field, Layout

META_BACKUP: Final = b"backup"
META_LAST_BACKUP: Final = b"last_backup"
META_STANDBY: Final = b"standby"
META_FOLLOWING: Final = b"following"
META_RECOVERY: Final = b"last_recovery"
BATCH_PREFIX: Final = b"batch:"


class BackupRow(NamedTuple):
    """The source of a backup; see `BACKUP_ROW`."""

    time_ms: Annotated[int, "Q", "Unix time of the snapshot that was copied"]
    epoch: Annotated[int, "Q", "epoch of the store, and"]
    commit_number: Annotated[int, "Q", "commit of the snapshot"]
    own_commit: Annotated[int, "Q", "commit that wrote this row"]

    def encode(self) -> bytes:
        return BACKUP_ROW.struct.pack(*self)


BACKUP_ROW: Final = Layout.of("backup", BackupRow)


def decode_backup(body: bytes, where: str) -> BackupRow:
    return BackupRow(*BACKUP_ROW.unpack(body, where))


class StandbyRow(NamedTuple):
    """The row `standby` of `meta`: what a standby follows, and how far it is.

    Attributes:
        source: URI of the copy.
        commit_number: the newest commit that the standby has.
        time_ms: Unix time at which the store that it follows had made it.
    """

    source: str
    generation: str
    commit_number: int
    time_ms: int

    def encode(self) -> bytes:
        return with_checksum(META, META_STANDBY, json.dumps(self._asdict()).encode())


def decode_standby(body: bytes, where: str) -> StandbyRow:
    try:
        return of_types(StandbyRow(**json.loads(body)), StandbyRow("", "", 0, 0))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptionError(where, f"the row of the standby: {error}") from None


INTERRUPTED: Final = "?"  # as a replica says that it asks for all


class FollowingRow(NamedTuple):
    """How far a store follows a Redis server; written in the transaction that applies its commands.

    Attributes:
        source: its address, without the password.
        replication_id: the history of commands that the offset belongs to; if all streams must be
            taken again, it is empty, or INTERRUPTED where the server had no longer what came next.
        offset: in bytes: of the end of the last command that was applied.
        database: the one that is followed, and
        selected: the one that the next command is for, as text.
        match: patterns of the keys that are followed; none for all.
        deletions: "apply", or "keep" in the archive.
        since_ms: Unix time at which the store began to follow.
        time_ms: Unix time at which the last command came.
        full: how often all streams were taken, and
        full_ms: Unix time at which that was done last.
        lost: entries that the server had trimmed or deleted before they came.
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
    lost: int = 0
    commands: int = 0
    entries: int = 0
    skipped: dict[str, int] = {}  # noqa: RUF012  # never changed
    replicaof: str = ""

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()


def decode_following(body: bytes, where: str) -> FollowingRow:
    try:
        members = json.loads(body)
        row = of_types(FollowingRow(**{**members, "match": ()}), FollowingRow(""))
        match = members.get("match", [])
        texts, numbers = {*map(type, match)}, {*map(type, row.skipped.values())}
        if type(match) is not list or not (texts <= {str} and numbers <= {int}):
            raise ValueError(f"match is {match!r:.100}, skipped is {row.skipped!r:.100}")
        return row._replace(match=tuple(match))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptionError(where, f"the row of what the store follows: {error}") from None


_RECOVERY: Final = struct.Struct(">QQQQQ")


class Recovery(NamedTuple):
    """The last recovery of a store.

    Attributes:
        time_ms: its time, in Unix milliseconds.
        epoch: the epoch that it ended.
        checkpoint_commit: the checkpoint that it went back to.
        replayed: the number of commits that it replayed from the journal.
        lost: the number of later commits that the files show to have been made, and that were lost.
            After a power loss, none of them had been on disk.
    """

    time_ms: int
    epoch: int
    checkpoint_commit: int
    replayed: int
    lost: int = 0

    def encode(self) -> bytes:
        return _RECOVERY.pack(*self)


def decode_recovery(body: bytes) -> Recovery:
    if len(body) != _RECOVERY.size:
        raise CorruptionError("meta", f"the row of the last recovery has {len(body)} bytes")
    return Recovery(*_RECOVERY.unpack(body))


BATCH_ROW: Final = Layout(
    "batch row",
    (
        Field("batch", "Q", "number of the newest batch, or a checksum of its plan"),
        Field("time_ms", "Q", "Unix time at which it was applied"),
    ),
)


def batch_key(application: bytes) -> bytes:
    return name_key(BATCH_PREFIX, application)


def encode_batch(batch: int, time_ms: int, application: bytes) -> bytes:
    """Return the body of a row: the layout, then the application's whole name."""
    return BATCH_ROW.struct.pack(batch, time_ms) + application


def decode_batch(body: bytes, db_key: bytes) -> tuple[int, int, bytes]:
    """Return batch, time and application of a row; raise CorruptionError."""
    where = "meta batch row"
    batch, time_ms = BATCH_ROW.unpack(body, where, more=True)
    application = body[BATCH_ROW.size :]
    if batch_key(application) != db_key:
        problem = f"the row names application {application!r}, its key another one"
        raise CorruptionError(where, problem)
    return batch, time_ms, application
