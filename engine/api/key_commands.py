"""The commands on streams as a whole: retention, names, and copies to and from Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from streamkeep.engine.api.command_base import (
    CommandBase,
    Key,
    read,
    remove,
    write,
)
from streamkeep.engine.commands import (
    dump,
    keys,
    load,
    retention,
)
from streamkeep.engine.commands.arguments import (
    no_arguments,
    to_bytes,
)
from streamkeep.engine.commands.glob import glob
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import (
    ArgumentError,
)
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
        max_age_ms: int | None = None,
        max_bytes: int | None = None,
        archive: bool | None = None,
        keep_unacknowledged: bool | None = None,
        approximate: bool | None = None,
        archive_max_age_ms: int | None = None,
        keep_max_bytes: int | None = None,
        when_full: Literal["refuse", "trim"] | None = None,
    ) -> Retention:
        """Say how much of a stream stays, and what becomes of the rest; return all settings.

        Appends keep the stream within its limits from now on; what is beyond them already goes in
        small steps with the next appends, or at once with `Store.maintain`, which also sees to
        the age of streams that nobody appends to. A stream that does not exist is created empty.
        A setting that is None stays as it is; -1 removes a limit.

        Args:
            maxlen: how many entries stay.
            max_age_ms: how old entries get, by the time in their IDs.
            max_bytes: how much their macro nodes take. Whole nodes go; the newest always stays.
            archive: whether what is trimmed goes to the archive instead of away, by whatever
                command: XTRIM, XADD with MAXLEN or MINID, `trim_range`, retention. XDEL deletes.
            keep_unacknowledged: retention waits until every group has read and acknowledged.
            approximate: `maxlen` and `max_age_ms` remove whole macro nodes only, which costs a
                fraction and leaves up to one node more.
            archive_max_age_ms: how old archived entries get; `Store.maintain` drops segments whose
                last entry is older.
            keep_max_bytes: with keep_unacknowledged, how much the nodes may take while groups are
                waited for. None: until the store itself is full.
            when_full: what happens beyond that. "refuse": appends raise StreamFullError until
                groups acknowledge. "trim": the oldest entries go all the same.
        """
        change = retention.RetentionChange(
            maxlen,
            max_age_ms,
            max_bytes,
            archive,
            keep_unacknowledged,
            approximate,
            archive_max_age_ms,
            keep_max_bytes,
            when_full,
        )
        change.check()
        return self._run(write(retention.set_retention, (to_bytes(name, "name"), change)))

    def retention(self, name: Key) -> Retention:
        """Return the settings of `set_retention`; without limits where nothing was set.

        Raises:
            NoSuchKeyError: the stream does not exist.
        """
        return self._run(read(retention.retention, (to_bytes(name, "name"),)))

    # --- names ------------------------------------------------------------------------------------

    def delete(self, *names: Key) -> int:
        """Delete streams with all they hold; return how many there were (DEL).

        The streams are gone at once; what they take on the disk is freed in bounded steps.
        """
        return self._delete("del", names)

    def unlink(self, *names: Key) -> int:
        """As `delete`: removal is always deferred (UNLINK)."""
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
        """Return `stream`, or `none` when there is no such key (TYPE)."""
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
        pattern = None if match is None else glob(to_bytes(match, "match"))
        txn, must_close = self._begin_scan()
        try:
            with translated():
                for name, _ in keys.iter_keys(txn):
                    if pattern is None or pattern.fullmatch(name):
                        yield self._as_text(name)
        finally:
            if must_close:
                txn.close()

    def rename(self, src: Key, dst: Key) -> bool:
        """Rename a stream; a stream of the new name is deleted (RENAME).

        Raises:
            NoSuchKeyError: there is no stream `src`.
        """
        return self._run(remove(keys.rename, (to_bytes(src, "src"), to_bytes(dst, "dst"), False)))

    def renamenx(self, src: Key, dst: Key) -> bool:
        """Rename a stream unless the new name is taken; say whether it was renamed (RENAMENX)."""
        return self._run(write(keys.rename, (to_bytes(src, "src"), to_bytes(dst, "dst"), True)))

    # --- to and from Redis ------------------------------------------------------------------------

    def dump(self, name: Key, server: str = "7.2") -> bytes | None:
        """Return a stream as Redis's RESTORE takes it, groups included; None when missing (DUMP).

        Costs memory for the whole stream; `streamkeep dump` and RDB files do not.

        Args:
            server: the oldest Redis that is to read it: "5.0", "7.0", "7.2" (also every Valkey),
                "8.6", "8.8" or "8.10". Older ones have no place for all that a stream holds; only
                "8.8" and later lose nothing.
        """
        if server not in TARGETS:
            raise ArgumentError(f"server must be one of {', '.join(TARGETS)}, not {server!r}")
        return self._run(read(dump.dump, (to_bytes(name, "name"), server)))

    def restore(self, name: Key, ttl: int, value: bytes, replace: bool = False) -> bool:
        """Create a stream from what DUMP of a Redis, a Valkey or a store returned (RESTORE).

        Every byte is checked; the macro nodes are taken over as they are.

        Args:
            ttl: must be 0: streams of a store do not expire.
            replace: delete a stream of that name first; otherwise it is an error.

        Raises:
            KeyExistsError: the key exists.
            CommandError: the payload is damaged, is of no stream, or of a newer version; the
                CorruptionError that caused it says more. Nothing was changed.
        """
        if ttl != 0:
            raise ArgumentError(f"ttl must be 0, not {ttl!r}: streams of a store do not expire")
        return self._run(
            remove(load.restore, (to_bytes(name, "name"), to_bytes(value, "value"), replace))
        )


def _type(txn: Txn, name: bytes) -> bytes:
    return b"none" if txn.find_stream(name) is None else b"stream"


def _keys(txn: Txn, pattern: bytes) -> list[bytes]:
    if pattern == b"*":
        return [name for name, _ in keys.iter_keys(txn)]
    matcher = glob(pattern)
    return [name for name, _ in keys.iter_keys(txn) if matcher.fullmatch(name)]
