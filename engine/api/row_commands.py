"""Rows: ordered keys and values beside the streams, for programs built on a store.

They are not part of Redis. A row is as durable as an entry, and a transaction changes rows, streams
and groups together. The queue keeps its schedule, its results and its locks in them.
"""

from __future__ import annotations

from streamkeep.engine.api.command_base import CommandBase, Key, free, read, write
from streamkeep.engine.commands import rows
from streamkeep.engine.commands.arguments import check_not_negative, to_bytes
from streamkeep.format.core.entry import Text


class RowCommands(CommandBase[Text]):
    """The commands on rows; a base of `StreamCommands`. Keys and values are always bytes."""

    def row_get(self, space: Key, key: bytes) -> bytes | None:
        """Return the value of a row; None if there is none."""
        return self._run(read(rows.row_get, (_row_key(space, key),)))

    def row_put(self, space: Key, key: bytes, value: bytes) -> None:
        """Store a row, in place of one that has the same key.

        Args:
            space: the name of the program's own range of rows, 1 to 255 bytes. It exists while it
                has rows.
            key: 1 byte or more; space and key together have at most 510 bytes. Rows are in the
                order of their keys' bytes.

        Raises:
            ArgumentError: the space or the key is empty or too long.
        """
        data = to_bytes(value, "value")
        return self._run(write(rows.row_put, (_row_key(space, key), data)))

    def row_delete(self, space: Key, key: bytes) -> bool:
        """Delete a row; return whether there was one."""
        return self._run(free(rows.row_delete, (_row_key(space, key),)))

    def row_range(
        self,
        space: Key,
        first: bytes = b"",
        last: bytes = b"",
        count: int | None = None,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of the rows of a space, in the order of their keys.

        Args:
            first, last: the range of keys, both included; empty for the ends of the space.
            count: return at most this many.
            reverse: begin with the highest key.
        """
        most = -1 if count is None else check_not_negative("count must be >= 0", "count", count)
        prefix = rows.check_space(to_bytes(space, "space"))
        low, high = to_bytes(first, "first"), to_bytes(last, "last")
        return self._run(read(rows.row_range, (prefix, low, high, most, bool(reverse))))


def _row_key(space: Key, key: bytes) -> bytes:
    return rows.row_key(to_bytes(space, "space"), to_bytes(key, "key"))
