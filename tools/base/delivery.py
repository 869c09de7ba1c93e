"""Entries that a group delivers or claims, as commands print them.

A delivery changes the store and is committed before anything is printed: an entry on the screen
is pending.
"""

from __future__ import annotations

from streamkeep.format.core.entry import ClaimedEntry, Entry
from streamkeep.tools.base import output
from streamkeep.tools.base.entry_output import print_entry, print_id


def print_delivered(
    entry: Entry | ClaimedEntry, *, show_time: bool = False, key: bytes | None = None
) -> None:
    """Print one entry on one line; with `key`, the stream that it is from."""
    if not entry.fields:  # every entry has fields: this one was deleted, and is still pending
        print_id("deleted", entry.stream_id, show_time=show_time, key=key, ending="  (deleted)")
        return
    members: dict[str, int] = {}
    ending = ""
    if isinstance(entry, ClaimedEntry):
        idle_ms, count = entry.former_idle_ms, entry.former_delivery_count
        members = {"idle_ms": idle_ms, "times_delivered": count}
        if count:
            idle, times = output.span_text(idle_ms / 1000), output.count_text(count, "time")
            ending = f"  (idle {idle}, delivered {times})"
    print_entry(entry, show_time=show_time, key=key, ending=ending, **members)
