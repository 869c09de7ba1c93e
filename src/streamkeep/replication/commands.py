"""Commands that a primary sends, on the streams of a store that follow it.

They are run as those of an append-only file are (`transfer/aof.py`), with these differences: only
streams that follow the primary are touched; what is trimmed is archived, and what is deleted, too,
if the user wants that; and how far the store is changes in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

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
from streamkeep.format.redis.stream_dump import STREAM_TYPES, Losses
from streamkeep.format.rows.following import META_FOLLOWING, FollowingRow
from streamkeep.format.rows.retention import NO_RETENTION, Retention
from streamkeep.server.commands import append, command_table
from streamkeep.server.commands.strings import delete_keys
from streamkeep.transfer.aof import Command, CommandFailure, OtherDatabase, Replay, copied_to
from streamkeep.transfer.formats import UNNAMED
from streamkeep.transfer.stores import Target

_NAMES_KEPT: Final = 100_000  # of keys, of which it is known whether they are followed
OTHER_KEY: Final = "command for a key that is not followed"


class Followed:
    """Which keys are followed, and what their streams are in the store."""

    def __init__(self, match: Iterable[str], deletions: str) -> None:
        """Take the keys that fit a pattern, all if there is none."""
        self._globs = [Glob(pattern.encode()) for pattern in match]
        self._known: dict[bytes, bool] = {}
        self.retention = NO_RETENTION._replace(
            archive=True, archive_deleted=deletions == "keep", follows=True
        )

    def wants(self, key: bytes) -> bool:
        """Return whether a key is followed, if it is a stream."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _NAMES_KEPT:
                self._known.clear()
            fits = not self._globs or any(glob.matches(key) for glob in self._globs)
            known = self._known[key] = fits and not key.startswith(UNNAMED)
        return known

    def find(self, txn: Txn, key: bytes) -> Stream | None:
        """Return the stream that follows a key; None if the store has none.

        Raises:
            CommandError: the store has a stream of its own there.
        """
        stream = txn.find_stream(key)
        if stream is not None and not follows(stream):
            raise CommandError(
                f"the store has a stream {named(key)} of its own; rename it, or leave the key out "
                "with --match"
            )
        return stream

    def adopt(self, stream: Stream) -> None:
        """Let a stream follow its key from now on."""
        stream.set_retention(self.retention)


def all_followed(txn: Txn) -> Iterator[bytes]:
    """Yield the names of all streams that follow a server."""
    for name, _ in list(keys.iter_keys(txn)):
        stream = txn.find_stream(name)
        if stream is not None and not name.startswith(UNNAMED) and follows(stream):
            yield name


def release(txn: WriteTxn, name: bytes) -> None:
    """Let a stream follow no more."""
    stream = txn.find_stream(name)
    if stream is not None:
        retention: Retention = stream.retention() or NO_RETENTION
        stream.set_retention(retention._replace(follows=False))


def follows(stream: Stream) -> bool:
    """Return whether a stream follows that of a server."""
    retention: Retention | None = stream.retention()
    return retention is not None and retention.follows


class Following(Replay):
    """Applies the commands.

    Attributes:
        row: how far the store is; as it is stored.
        came_ms: Unix time at which the commands came.
        anew: all streams must be taken again, since a command needs what was not followed.
    """

    def __init__(
        self, target: Target, followed: Followed, row: FollowingRow, skipped: Iterable[str]
    ) -> None:
        super().__init__(target, 1, skipped, lambda entries: None)
        self._followed = followed
        self._written = row
        self.came_ms = row.time_ms
        self.row = row
        self.anew = False
        self.loaded = str(row.database).encode()
        self.losses = Losses(row.skipped)
        self.entries = row.entries
        self.database = row.selected.encode()

    def commit(self, batch: list[Command]) -> CommandFailure | None:
        """Run a batch up to the first bad command, in one transaction; return its failure."""
        failure = super().commit(batch)
        self.row = self._written
        return failure

    def finish(self, batch: list[Command], done: int) -> None:
        """Write how far the store is."""
        ran = [command for command in batch if command[0] <= done]
        if ran:
            self._written = self.row._replace(
                offset=ran[-1][1],
                selected=self.database.decode(errors="replace"),
                time_ms=self.came_ms,
                commands=self.row.commands + len(ran),
                entries=self.entries,
                skipped=dict(self.losses),
            )
            put_row(self.txn, self._written)

    def here(self, name: bytes, words: list[bytes]) -> None:
        """Run a command on the streams that follow, or count it as dropped."""
        if name == b"XADD":
            self._xadd(words)
        elif name in _FLUSHES:
            self._flush()
        elif name in (b"DEL", b"UNLINK"):
            self.delete(words[1:])
        elif name in _MOVES and len(words) > 2:
            self._rename(name, words)
        elif name in _RESTORES and len(words) > 3:
            self._restore(name, words)
        elif name[:1] == b"X" and len(words) > 2:
            key = words[2 if name == b"XGROUP" else 1]
            if not self._followed.wants(key):
                self.losses.add(OTHER_KEY)
                return
            if self._followed.find(self.txn, key) is None and b"MKSTREAM" in _upper(words[5:]):
                self._create(key)
            if name == b"XSETID":
                self._leave_archive(key, words)
            super().here(name, words)
        else:
            try:
                super().here(name, words)
            except OtherDatabase:
                self.anew = True
                raise

    def elsewhere(self, name: bytes, words: list[bytes]) -> None:
        """Handle a command for another database."""
        if not self.database and name not in _ANYWHERE:
            raise CommandError("it comes before SELECT: for which database is not known")
        if name == b"FLUSHALL":
            self._flush()
            return
        try:
            super().elsewhere(name, words)
        except OtherDatabase:
            self.anew = True
            raise

    def delete(self, names: list[bytes]) -> int:
        """Delete those that follow; return how many there were."""
        ours = [name for name in names if self._ours(name) is not None]
        return delete_keys(self.txn, ours)

    def _ours(self, key: bytes) -> Stream | None:
        """Return the stream that follows a key; None if there is none, or one of the store's."""
        stream: Stream | None = self.txn.find_stream(key)
        return stream if stream is not None and follows(stream) else None

    def _create(self, key: bytes) -> Stream:
        stream: Stream = self.txn.create_stream(key)
        self._followed.adopt(stream)
        return stream

    def _xadd(self, words: list[bytes]) -> None:
        key = words[1]
        if not self._followed.wants(key):
            self.losses.add(OTHER_KEY)
            return
        stream = self._followed.find(self.txn, key) or self._create(key)
        before = stream.record.entries_added
        append.replay_xadd(self.txn, words, int(PAIRS))
        self.entries += stream.record.entries_added - before

    def _leave_archive(self, key: bytes, words: list[bytes]) -> None:
        """Let XSETID begin another stream where the archive has higher IDs, which may come again.

        What is archived stays, under the number of the former stream.
        """
        stream = self._ours(key)
        if stream is None or parse_id(words[2], 0) >= last_archived(self.txn, stream.number):
            return
        temporary = UNNAMED + key
        copy(self.txn, key, temporary)
        keys.rename(self.txn, temporary, key, False)
        self._adopt(key)

    def _flush(self) -> None:
        self.delete([name for name in all_followed(self.txn) if self._followed.wants(name)])

    def _rename(self, name: bytes, words: list[bytes]) -> None:
        """RENAME, RENAMENX, COPY."""
        source, target = words[1:3]
        copies = name == b"COPY"
        away = copies and copied_to(words, self.loaded) != self.loaded
        if self._ours(source) is None:
            if not away and not self._followed.wants(source) and self._followed.wants(target):
                self.anew = True  # what comes under the name may be a stream
                raise OtherDatabase(self.loaded)
            if name == b"RENAME" or (copies and b"REPLACE" in _upper(words[3:])):
                self.delete([target])
            self.lose(name)
        elif away or not self._followed.wants(target):
            if not copies:
                self.delete([source])
            self.losses.add(OTHER_KEY)
        else:
            self._followed.find(self.txn, target)
            run = command_table.find(words).run
            assert run is not None
            run(self.txn, words, 0)
            if copies:
                self._adopt(target)

    def _restore(self, name: bytes, words: list[bytes]) -> None:
        key, payload = words[1], words[3]
        is_stream = bool(payload) and payload[0] in STREAM_TYPES
        if not self._followed.wants(key):
            self.losses.add(OTHER_KEY)
            return
        if is_stream:
            self._followed.find(self.txn, key)
        super().here(name, words)
        if is_stream:
            self._adopt(key)

    def _adopt(self, key: bytes) -> None:
        stream = self.txn.find_stream(key)
        if stream is not None:
            self._followed.adopt(stream)


def put_row(txn: WriteTxn, row: FollowingRow) -> None:
    """Write how far the store is."""
    txn.put_row(META, META_FOLLOWING, row.encode())


def _upper(words: list[bytes]) -> list[bytes]:
    return [word.upper() for word in words]


_ANYWHERE: Final = (b"PING", b"MULTI", b"EXEC")
_FLUSHES: Final = (b"FLUSHALL", b"FLUSHDB")
_MOVES: Final = (b"RENAME", b"RENAMENX", b"COPY")
_RESTORES: Final = (b"RESTORE", b"RESTORE-ASKING")
