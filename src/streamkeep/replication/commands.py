"""Commands that a primary sends, on the streams of a store that follow it.

They are run as those of an append-only file are (`transfer/aof.py`), with these differences: only
streams that follow the primary are touched; what is trimmed is archived, and what is deleted, too,
if the user wants that; and how far the store is changes in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from streamkeep.commands import entries
from streamkeep.commands.strings import find_string, string_deadlines
from streamkeep.engine.commands import keys
from streamkeep.engine.commands.glob import Glob
from streamkeep.engine.commands.history import last_archived
from streamkeep.engine.commands.load import copy
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError
from streamkeep.format.core.id_codec import parse_id
from streamkeep.format.core.keys import META
from streamkeep.format.node.node import PAIRS
from streamkeep.format.quoting import named
from streamkeep.format.redis.stream_dump import Losses
from streamkeep.format.rows.meta_rows import META_FOLLOWING, FollowingRow
from streamkeep.format.rows.retention import NO_RETENTION, Retention
from streamkeep.transfer.aof import OTHER_KEY, Command, Replay
from streamkeep.transfer.formats import UNNAMED
from streamkeep.transfer.stores import Target


class Followed:
    """Which keys are followed, and what their streams are in the store."""

    def __init__(self, match: Iterable[str], deletions: str) -> None:
        """Take the keys that fit a pattern, all if there is none."""
        self._globs = [Glob(pattern.encode()) for pattern in match]
        self.retention = NO_RETENTION._replace(
            archive=True, archive_deleted=deletions == "keep", follows=True
        )

    def wants(self, key: bytes) -> bool:
        """Return whether a key is followed, if it is a stream."""
        if key.startswith(UNNAMED):
            return False
        return not self._globs or any(glob.matches(key) for glob in self._globs)

    def find(self, txn: Txn, key: bytes) -> Stream | None:
        """Return the stream that follows a key; None if the store has none.

        Raises:
            CommandError: the store has a stream or a string of its own there.
        """
        stream = txn.find_stream(key)
        taken = find_string(txn, key) is not None if stream is None else not follows(stream)
        if taken:
            kind = "string" if stream is None else "stream"
            raise CommandError(
                f"the store has a {kind} {named(key)} of its own; rename it, or leave the key out "
                "with --match"
            )
        return stream


def all_followed(txn: Txn) -> Iterator[bytes]:
    """Yield the names of all streams that follow a server."""
    return (stream.name for stream in _streams(txn) if follows(stream))


def own_keys(txn: Txn) -> Iterator[bytes]:
    """Yield the names of all streams that follow no server, and of all strings."""
    yield from (stream.name for stream in _streams(txn) if not follows(stream))
    yield from (name for name, _ in string_deadlines(txn))


def _streams(txn: Txn) -> Iterator[Stream]:
    for name, _ in list(keys.iter_keys(txn)):
        stream = txn.find_stream(name)
        if stream is not None and not name.startswith(UNNAMED):
            yield stream


def follows(stream: Stream) -> bool:
    retention: Retention | None = stream.retention()
    return retention is not None and retention.follows


class Following(Replay):
    """Applies the commands.

    Attributes:
        row: how far the store is; as it is stored, after a batch.
        came_ms: Unix time at which the commands came.
    """

    def __init__(
        self,
        target: Target,
        followed: Followed,
        row: FollowingRow,
        skipped: Iterable[str],
        moved: Callable[[int], None],
    ) -> None:
        super().__init__(target, 1, skipped, moved)
        self._followed = followed
        self.row = row
        self.came_ms = row.time_ms
        self.loaded = str(row.database).encode()
        self.losses = Losses(row.skipped)
        self.entries = row.entries
        self.database = row.selected.encode()

    def finish(self, batch: list[Command]) -> None:
        self.row = self.row._replace(
            offset=batch[-1][1],
            selected=self.database.decode(errors="replace"),
            time_ms=self.came_ms,
            commands=self.row.commands + len(batch),
            entries=self.entries,
            skipped=dict(self.losses),
        )
        put_row(self.txn, self.row)

    def here(self, name: bytes, words: list[bytes]) -> None:
        """Run a command on the streams that follow, or count it as dropped."""
        if name[:1] == b"X" and len(words) > 2:
            key = words[2 if name == b"XGROUP" else 1]
            if not self._followed.wants(key):
                self.losses.add(OTHER_KEY)
                return
            stream: Any = self._followed.find(self.txn, key)
            if stream is None and (name == b"XADD" or b"MKSTREAM" in map(bytes.upper, words[5:])):
                stream = self.txn.create_stream(key)
                stream.set_retention(self._followed.retention)
            if name == b"XADD":  # most of all commands: without a look at the table
                before = stream.record.entries_added
                entries.replay_xadd(self.txn, words, int(PAIRS))
                self.entries += stream.record.entries_added - before
                return
            # XSETID may begin another stream where the archive has higher IDs, which may come
            # again: what is archived stays, under the number of the former stream.
            if (
                name == b"XSETID"
                and stream is not None
                and parse_id(words[2], 0) < last_archived(self.txn, stream)
            ):
                temporary = UNNAMED + key
                copy(self.txn, key, temporary)
                keys.rename(self.txn, temporary, key, False)
                self._adopt(key)
        super().here(name, words)

    def elsewhere(self, name: bytes, words: list[bytes]) -> None:
        if not self.database and name not in _ANYWHERE:
            raise CommandError("it comes before SELECT: for which database is not known")
        super().elsewhere(name, words)

    def find(self, name: bytes) -> Stream | None:
        """Return the stream that follows a key; None if there is none, or one of the store's."""
        stream = super().find(name)
        return stream if stream is not None and follows(stream) else None

    def wants(self, name: bytes) -> bool:
        """Return whether a key is followed, if it is a stream."""
        return self._followed.wants(name)

    def put(self, name: bytes, run: Callable[..., object], words: list[bytes]) -> None:
        """Run a command that puts a stream under a name, and let it follow."""
        self._followed.find(self.txn, name)
        super().put(name, run, words)
        self._adopt(name)

    def _adopt(self, name: bytes) -> None:
        stream = super().find(name)
        if stream is not None and not follows(stream):
            stream.set_retention(self._followed.retention)

    def delete(self, names: list[bytes]) -> int:
        """Delete those that follow; return how many there were."""
        return super().delete([name for name in names if self.find(name) is not None])

    def flush_all(self) -> None:
        super().delete([name for name in all_followed(self.txn) if self._followed.wants(name)])


def put_row(txn: WriteTxn, row: FollowingRow) -> None:
    txn.put_row(META, META_FOLLOWING, row.encode())


_ANYWHERE: Final = (b"PING", b"MULTI", b"EXEC")
