"""The commands on whole streams: retention, names, copies to and from Redis, `key in store`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from streamkeep.engine.api.command_base import CommandBase, Key, check_lives, read, remove, write
from streamkeep.engine.commands import dump, keys, load, retention
from streamkeep.engine.commands.arguments import no_arguments, to_bytes
from streamkeep.engine.commands.glob import Glob
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.keys import KEYS
from streamkeep.format.core.values import as_given
from streamkeep.format.redis.stream_dump import TARGETS
from streamkeep.format.rows.retention import Retention


class KeyCommands(CommandBase[Text]):
    """The commands on whole streams; a base of `StreamCommands`."""

    # --- retention --------------------------------------------------------------------------------

    def set_retention(
        self,
        name: Key,
        *,
        maxlen: int | None = None,
        max_age: Duration | None = None,
        max_bytes: int | None = None,
        archive: bool | None = None,
        keep_unacknowledged: bool | None = None,
        approximate: bool | None = None,
        archive_max_age: Duration | None = None,
        keep_max_bytes: int | None = None,
        when_full: Literal["refuse", "trim"] | None = None,
        archive_deleted: bool | None = None,
    ) -> Retention:
        """Set how much of a stream is kept, and whether the rest is archived; return all settings.

        From now on, appends keep the stream within its limits. Entries that are already beyond a
        limit are removed in small steps with the next appends, or at once by `Store.maintain`,
        which also removes old entries of streams without appends. A missing stream is created
        empty. A setting that is None stays as it is; -1 removes a limit.

        Args:
            maxlen: the number of entries to keep.
            max_age: the maximum age of entries, by the time in their IDs: "7d", a timedelta, or
                seconds.
            max_bytes: the maximum size of the macro nodes. Whole nodes are removed, but never the
                newest.
            archive: whether trimmed entries go to the archive. This applies to XTRIM, XADD with
                MAXLEN or MINID, `trim_range` and retention; for XDEL, see archive_deleted.
            keep_unacknowledged: retention waits until all groups have read and acknowledged. An
                append may look at each group for that; with `approximate`, only if a node goes.
            approximate: `maxlen` and `max_age` remove whole macro nodes only, which is much
                cheaper and leaves up to one more node.
            archive_max_age: the maximum age of archived entries; `Store.maintain` drops segments
                whose last entry is older.
            keep_max_bytes: with keep_unacknowledged, the maximum size of the nodes while retention
                waits for groups. None: until the store itself is full.
            when_full: what happens at that size. "refuse": appends raise StreamFullError until
                groups acknowledge. "trim": the oldest entries are removed.
            archive_deleted: with archive, deleted entries go to the archive, too: by XDEL and its
                kind, and all of them when the stream is deleted or replaced.
        """
        change = retention.RetentionChange(
            maxlen,
            _age_ms(max_age, "max_age"),
            max_bytes,
            archive,
            keep_unacknowledged,
            approximate,
            _age_ms(archive_max_age, "archive_max_age"),
            keep_max_bytes,
            when_full,
            archive_deleted,
        )
        change.check()
        return self._run(write(retention.set_retention, (to_bytes(name, "name"), change)))

    def retention(self, name: Key) -> Retention:
        """Return the settings of `set_retention`; by default there are no limits.

        Raises:
            NoSuchKeyError: the stream does not exist.
        """
        return self._run(read(retention.retention, (to_bytes(name, "name"),)))

    # --- names ------------------------------------------------------------------------------------

    def delete(self, *names: Key) -> int:
        """Delete streams with their entries and groups; return how many existed (DEL).

        The streams are removed at once. Their pages are freed in small steps.
        """
        return self._delete("del", names)

    def unlink(self, *names: Key) -> int:
        """Do the same as `delete`, which always defers freeing (UNLINK)."""
        return self._delete("unlink", names)

    def _delete(self, command: str, names: tuple[Key, ...]) -> int:
        if not names:
            raise no_arguments(command)
        return self._run(remove(keys.delete, ([to_bytes(name, "a name") for name in names],)))

    def exists(self, *names: Key) -> int:
        """Return how many of the names are streams (EXISTS)."""
        if not names:
            raise no_arguments("exists")
        return self._run(read(keys.exists, ([to_bytes(name, "a name") for name in names],)))

    def type(self, name: Key) -> Text:
        """Return `stream`, or `none` if there is no such key (TYPE)."""
        return self._run(read(_type, (to_bytes(name, "name"),), self._one_text))

    def keys(self, pattern: Key = "*") -> list[Text]:
        """Return the names of all streams that match a glob pattern, ascending (KEYS)."""
        return self._run(read(_keys, (to_bytes(pattern, "pattern"),), self._text))

    def scan_iter(self, match: Key | None = None, count: int | None = None) -> Iterator[Text]:
        """Iterate over the names of streams, ascending, on one snapshot (SCAN).

        Args:
            match: a glob pattern.
            count: a hint in Redis, without effect here.
        """
        pattern = None if match is None else Glob(to_bytes(match, "match"))
        with self._reading() as txn, translated():
            for name, _ in keys.iter_keys(txn):
                check_lives(txn)
                if pattern is None or pattern.matches(name):
                    yield self._as_text(name)

    def rename(self, src: Key, dst: Key) -> bool:
        """Rename a stream; a stream that has the new name is deleted (RENAME).

        Raises:
            NoSuchKeyError: there is no stream `src`.
        """
        return self._run(remove(keys.rename, (to_bytes(src, "src"), to_bytes(dst, "dst"), False)))

    def renamenx(self, src: Key, dst: Key) -> bool:
        """Rename a stream unless the new name is taken; return whether it was (RENAMENX)."""
        return self._run(write(keys.rename, (to_bytes(src, "src"), to_bytes(dst, "dst"), True)))

    # --- to and from Redis ------------------------------------------------------------------------

    def dump(self, name: Key, server: str | None = None) -> bytes | None:
        """Return a stream with its groups in the form for RESTORE; None if it is missing (DUMP).

        It needs memory for the whole stream; `streamkeep dump` and RDB files do not.

        Args:
            server: the oldest Redis that will read it: "5.0", "7.0", "7.2" (also for every Valkey),
                "8.6", "8.8" or "8.10". What it cannot hold is dropped; only "8.8" and later hold
                everything. None for the oldest one from "7.2" on that holds all of this stream.
        """
        if server is not None and server not in [*TARGETS]:
            raise ArgumentError(
                f"server must be one of {', '.join(TARGETS)}, not {as_given(server)}"
            )
        return self._run(read(dump.dump, (to_bytes(name, "name"), server)))

    def restore(self, name: Key, ttl: int, value: bytes, replace: bool = False) -> bool:
        """Create a stream from a payload of DUMP, of a store, a Redis or a Valkey (RESTORE).

        Every byte is checked; the macro nodes are stored as they are.

        Args:
            ttl: must be 0: streams of a store do not expire.
            replace: delete an existing stream of that name first, instead of raising.

        Raises:
            KeyExistsError: the key exists.
            CommandError: the payload is damaged, is not a stream, or is of a newer version. The
                CorruptionError that caused it has the details. Nothing was changed.
        """
        if ttl != 0:
            raise ArgumentError(
                f"ttl must be 0, not {as_given(ttl)}: streams of a store do not expire"
            )
        args = to_bytes(name, "name"), to_bytes(value, "value"), replace
        return self._run(remove(load.restore, args))


class KeyContainer(KeyCommands[Text]):
    """The keys of a store; a base of the classes whose commands return their results."""

    def __contains__(self, name: object) -> bool:
        """Return whether a stream has this key."""
        return self.exists(name) == 1  # type: ignore[arg-type]  # it refuses what is not a key

    def __iter__(self) -> Iterator[Text]:
        """Iterate over the keys, ascending, on one snapshot."""
        return self.scan_iter()

    def __len__(self) -> int:
        """Return the number of streams."""
        return self._run(read(_count, ()))

    def __bool__(self) -> bool:
        """A store without streams is true, too."""
        return True


def _count(txn: Txn) -> int:
    return txn.rows(KEYS)


def _type(txn: Txn, name: bytes) -> bytes:
    return b"none" if txn.find_stream(name) is None else b"stream"


def _keys(txn: Txn, pattern: bytes) -> list[bytes]:
    if pattern == b"*":
        return [name for name, _ in keys.iter_keys(txn)]
    matcher = Glob(pattern)
    return [name for name, _ in keys.iter_keys(txn) if matcher.matches(name)]


def _age_ms(age: Duration | None, name: str) -> int | None:
    """Return a limit of age in milliseconds; -1, which removes it, as it is."""
    if age is None or age == -1:
        return None if age is None else -1
    return milliseconds(age, name)
