"""Entries that a group delivers or claims: complete, and printed after the commit.

A delivery changes the store and is committed before anything is printed: an entry on the screen
is pending. redis-py's dicts show duplicate fields once; here every entry is looked up again in
the same transaction, with all its pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkeep.format.core.entry import StreamId
from streamkeep.tools.base import output
from streamkeep.tools.base.entry_output import print_entry, print_id

if TYPE_CHECKING:
    from streamkeep.engine.api.views import Snapshot, Transaction


class Delivered(NamedTuple):
    """One entry as a group delivers it."""

    id: StreamId
    pairs: list[tuple[bytes, bytes]]
    gone: bool = False  # deleted from the stream, but still pending
    idle_ms: int | None = None  # how it was pending before; None unless the command reports it
    times_delivered: int = 0

    @property
    def members(self) -> dict[str, int]:
        """The JSON members after ID and fields."""
        if self.idle_ms is None:
            return {}
        return {"idle_ms": self.idle_ms, "times_delivered": self.times_delivered}

    @property
    def ending(self) -> str:
        """The text after ID and fields."""
        if self.idle_ms is None or not self.times_delivered:
            return ""
        times = output.count_text(self.times_delivered, "time")
        return f"  (idle {output.span_text(self.idle_ms / 1000)}, delivered {times})"


def look_up(txn: Transaction | Snapshot, key: bytes, entries: Iterable[Any]) -> list[Delivered]:
    """Return entries of a stream, given as redis-py returns them, with all their pairs."""
    return [_look_up(txn, key, *entry) for entry in entries]


def _look_up(
    txn: Transaction | Snapshot,
    key: bytes,
    id_text: bytes,
    fields: dict[bytes, bytes],
    idle_ms: int | None = None,
    times_delivered: int = 0,
) -> Delivered:
    entry_id = StreamId.parse(id_text)
    if not fields:  # an entry has fields: this one is gone
        return Delivered(entry_id, [], True)
    found = next(txn.scan(key, entry_id, entry_id), None)
    if found is None:  # deleted after the delivery, before it was looked up
        return Delivered(entry_id, [], True)
    return Delivered(entry_id, found.pairs, False, idle_ms, times_delivered)


def print_delivered(entry: Delivered, *, show_time: bool = False, key: bytes | None = None) -> None:
    """Print one entry on one line; with `key`, the stream that it is from."""
    if entry.gone:
        print_id("deleted", entry.id, show_time=show_time, key=key, ending="  (deleted)")
        return
    print_entry(entry, show_time=show_time, key=key, ending=entry.ending, **entry.members)
