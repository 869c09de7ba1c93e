"""entries_read and lag: how far a group has read, exactly as Redis counts it.

A group counts what it reads, which is exact as long as no entry after its position was deleted.
If the count is lost it is estimated from the stream's counters; if that is impossible it is
unknown.
"""

from __future__ import annotations

from typing import Final

from streamkeep.format.core.id_codec import Id
from streamkeep.format.rows.group_records import UNKNOWN, GroupRecord
from streamkeep.format.rows.records import StreamRecord

_MOST_READ: Final = (1 << 63) - 1  # XSETID may set entries_added to the highest signed number


def has_tombstones(record: StreamRecord, start: Id) -> bool:
    """Return whether an entry from `start` on was deleted, as far as the stream knows."""
    deleted = record.max_deleted_id()
    return record.length > 0 and deleted != (0, 0) and start <= deleted


def estimate_read(record: StreamRecord, entry_id: Id) -> int:
    """Return how many entries were ever added up to `entry_id`, or UNKNOWN."""
    last = record.last_id()
    deleted = record.max_deleted_id()
    first = record.first_id()
    if record.entries_added == 0:
        return 0
    if record.length == 0 and entry_id <= last:
        return record.entries_added
    if entry_id != (0, 0) and entry_id < deleted:
        return UNKNOWN
    if entry_id == last:
        return record.entries_added
    if entry_id > last:
        return UNKNOWN
    if deleted == (0, 0) or deleted < first:
        if entry_id < first:
            return record.entries_added - record.length
        if entry_id == first:
            return record.entries_added - record.length + 1
    return UNKNOWN


def lag(record: StreamRecord, group: GroupRecord) -> int | None:
    """Return how many entries a group has not read; None when that cannot be known."""
    position = group.last_id()
    first = record.first_id()
    if record.entries_added == 0 or record.length == 0:
        return 0
    if position < first and record.max_deleted_id() < first:
        return record.length
    if group.entries_read != UNKNOWN and not has_tombstones(record, position):
        return record.entries_added - group.entries_read
    estimate = estimate_read(record, position)
    return None if estimate == UNKNOWN else record.entries_added - estimate


def advance(record: StreamRecord, group: GroupRecord, ids: list[Id]) -> None:
    """Note that the entries `ids`, ascending and all above last_delivered_id, were delivered."""
    first = record.first_id()
    for index, entry_id in enumerate(ids):
        position = group.last_id()
        countable = group.entries_read != UNKNOWN and position >= first
        if countable and not has_tombstones(record, position):
            group.entries_read += len(ids) - index  # the rest is countable, too
            break
        if record.entries_added:
            group.entries_read = estimate_read(record, entry_id)
        group.last_ms, group.last_seq = entry_id
    if ids:
        group.last_ms, group.last_seq = ids[-1]
        # It falls below UNKNOWN if a damaged stream has a length above the entries ever added.
        group.entries_read = max(UNKNOWN, min(group.entries_read, _MOST_READ))
