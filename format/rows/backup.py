"""The rows `backup`, `last_backup` and `standby` of `meta`: what a store is a copy of.

The backup has the row `backup`. As long as the commit that wrote it is the newest commit of the
copy, the copy is an unchanged backup and the next backup may replace it. After any later write it
is a store in its own right. The store that was copied has the row `last_backup`. A store that
follows a copy elsewhere has the row `standby`, in JSON, until it is promoted.
"""

from __future__ import annotations

import json
from typing import Annotated, Final, NamedTuple

from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META
from streamkeep.format.core.layout import Layout

META_BACKUP: Final = b"backup"
META_LAST_BACKUP: Final = b"last_backup"
META_STANDBY: Final = b"standby"


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
        return StandbyRow(**json.loads(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptionError(where, f"the row of the standby: {error}") from None
