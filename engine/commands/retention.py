"""Retention: what a stream's settings remove, on append and by `maintain`.

Each exceeded limit becomes a trim as by XTRIM, of a few nodes per transaction. An append removes
about as much as it adds. If a new setting makes many entries superfluous at once, they are
removed in bounded steps, by later appends or by `maintain`. For a stream without settings, or
within its limits, an append only compares each number.

With `keep_unacknowledged` no trim passes the first entry that a group has not read or not
acknowledged. A stream can then grow without limit, unless `keep_max_bytes` is set; `when_full` says
what happens at that size: entries are refused, or the oldest are removed anyway. Without
`keep_max_bytes` the store itself fills and refuses entries of every stream (StoreFullError).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from streamkeep.engine.commands import xtrim
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.group import Group, find_group, groups_of
from streamkeep.engine.tables.node_walk import NodeWalk, refresh_ends
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import ArgumentError, StoreFullError, StreamFullError
from streamkeep.format.core.id_codec import MAX, Id, next_id, previous_id
from streamkeep.format.core.keys import RETIRED
from streamkeep.format.node.envelope import set_trimmed
from streamkeep.format.node.node import end_ids, peek_counts
from streamkeep.format.node.tombstones import mark_oldest
from streamkeep.format.rows.retention import NO_RETENTION, NONE, Retention

WITH_APPEND: Final = 8  # nodes that an append removes at most
PER_STEP: Final = 256  # and a transaction of `maintain`


class RetentionChange(NamedTuple):
    """The changes of `set_retention`; None leaves a setting as it is, -1 removes a limit."""

    maxlen: int | None = None
    max_age_ms: int | None = None
    max_bytes: int | None = None
    archive: bool | None = None
    keep_unacknowledged: bool | None = None
    approximate: bool | None = None
    archive_max_age_ms: int | None = None
    keep_max_bytes: int | None = None
    when_full: str | None = None
    archive_deleted: bool | None = None

    def check(self) -> None:
        """Raise ArgumentError for a value that a setting cannot have."""
        for name in ("maxlen", "max_age_ms", "max_bytes", "archive_max_age_ms", "keep_max_bytes"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and -1 <= value < NONE):
                what = (
                    "number of bytes, such as 64 << 20" if "bytes" in name else "number from 0 on"
                )
                raise ArgumentError(
                    f"{name} must be a {what}, or -1 to remove the limit, not {value!r}"
                )
        for name in ("archive", "keep_unacknowledged", "approximate", "archive_deleted"):
            value = getattr(self, name)
            if not isinstance(value, (bool, type(None))):
                raise ArgumentError(f"{name} must be True, False or None, not {value!r}")
        if self.when_full not in (None, "refuse", "trim"):
            raise ArgumentError(f"when_full must be 'refuse' or 'trim', not {self.when_full!r}")


def set_retention(txn: WriteTxn, name: bytes, change: RetentionChange) -> Retention:
    """Change the retention of a stream, which is created if it is missing; return it."""
    stream = txn.find_stream(name)
    if stream is None:
        stream = txn.create_stream(name)
    old = stream.retention() or NO_RETENTION
    named: dict[str, Any] = {
        setting: None if value == -1 and not isinstance(value, bool) else value
        for setting, value in change._asdict().items()
        if value is not None
    }
    new = old._replace(**named)
    stream.set_retention(new)
    return new


def retention(txn: Txn, name: bytes) -> Retention:
    """Return the retention of a stream; raise NoSuchKeyError when there is none."""
    return existing_stream(txn, name).retention() or NO_RETENTION


def check_room(txn: WriteTxn, stream: Stream) -> None:
    """Raise unless a stream takes entries; make room if its retention allows that.

    Raises, before anything has changed:
        StreamFullError: it takes none until its groups acknowledge some.
        StoreFullError: it takes none until the retired nodes can be archived.
    """
    policy = stream.retention()
    if policy is None:
        return
    if txn.context.refuse_above and policy.archive:
        size = txn.table_bytes(RETIRED)
        if size > txn.context.refuse_above:  # they cannot be archived: see `back_pressure`
            raise StoreFullError(
                f"{size} bytes of trimmed entries wait for the archiver, which failed; make room "
                "on the disk and archive, or set archive=False"
            )
    if not policy.keep_unacknowledged or policy.when_full != "refuse":
        return
    most = policy.keep_max_bytes
    if most is None or stream.node_bytes() < most:
        return
    if not _makes_room(txn, stream, policy, most):
        raise StreamFullError(
            f"the stream holds {stream.node_bytes()} bytes, keep_max_bytes is {most}, and a group "
            "has not acknowledged the oldest entries"
        )
    enforce(txn, stream, WITH_APPEND)


def _makes_room(txn: Txn, stream: Stream, policy: Retention, most: int) -> bool:
    """Return whether `enforce` would bring a stream below `most` bytes; nothing changes."""
    stop = first_needed(txn, stream)
    oldest = 0 if policy.max_age_ms is None else txn.now_ms() - policy.max_age_ms
    length = stream.record.length
    size = stream.node_bytes()
    nodes = stream.nodes()
    walk = NodeWalk(txn, stream)
    found = walk.first()
    for _ in range(WITH_APPEND):
        if not found:
            break
        data = walk.load()
        last = end_ids(data, walk.ms, walk.seq).last_slot
        live = peek_counts(data[:32])[0]
        goes = _goes(policy, length - live, nodes, size, last, oldest)
        if not goes or (stop is not None and last >= stop):
            if policy.approximate:
                break
            return size - len(data) + _size_inside(walk, data, policy, stop, length, oldest) < most
        length -= live
        size -= len(data)
        nodes -= 1
        if size < most:
            return True
        found = walk.next()
    return False


def _goes(policy: Retention, rest: int, nodes: int, size: int, last: Id, oldest: int) -> bool:
    """Return whether a limit removes all of the oldest node, after which `rest` entries stay.

    Args:
        nodes, size: of all nodes together.
        last: the last slot of that node.
        oldest: the lowest time that stays.
    """
    too_long = policy.maxlen is not None and rest >= policy.maxlen
    too_big = policy.max_bytes is not None and nodes > 1 and size > policy.max_bytes
    return too_long or too_big or last < (oldest, 0)


def _size_inside(
    walk: NodeWalk, data: bytes, policy: Retention, stop: Id | None, length: int, oldest: int
) -> int:
    """Return the size of a node after the trims of `enforce`, which may rewrite it.

    Args:
        stop: the lowest ID that a group needs.
        length: of the stream, from this node on.
        oldest: the lowest time that stays.
    """
    highest = (MAX, MAX) if stop is None else previous_id(*stop)
    surplus = 0 if policy.maxlen is None else max(0, length - policy.maxlen)
    marked = mark_oldest(data, walk.ms, walk.seq, surplus, highest[0], highest[1], set())
    if oldest > 0:
        highest = min(highest, previous_id(oldest, 0))
        aged = mark_oldest(data, walk.ms, walk.seq, length, highest[0], highest[1], set())
        if len(aged.ids) > len(marked.ids):
            marked = aged
    if not marked.ids:
        return len(data)
    if marked.live == 0:
        return 0
    trimmed = set_trimmed(walk.trimmed, marked.slots) if policy.archive else walk.trimmed
    return len(xtrim.stored_form(walk, marked.data, marked.live, marked.deleted, trimmed)[0])


def enforce(txn: WriteTxn, stream: Stream, most_nodes: int) -> int:
    """Remove the entries that the retention of a stream does not keep; return their number.

    Args:
        most_nodes: how many nodes to remove or look at, at most, for each limit.
    """
    policy = stream.retention()
    record = stream.record
    if policy is None or record.length == 0:
        return 0
    maxlen = policy.maxlen
    max_bytes = policy.max_bytes
    max_age_ms = policy.max_age_ms
    oldest = 0 if max_age_ms is None else txn.now_ms() - max_age_ms
    too_long = maxlen is not None and record.length > maxlen
    too_old = record.first_ms < oldest and not (policy.approximate and stream.begins(oldest))
    too_big = max_bytes is not None and stream.node_bytes() > max_bytes and stream.nodes() > 1
    if not (too_long or too_old or too_big):
        return 0
    stop: Id | None = None
    if policy.keep_unacknowledged:
        most = policy.keep_max_bytes
        full = policy.when_full == "trim" and most is not None and stream.node_bytes() > most
        if not full:
            if _nothing_goes(txn, stream, policy, oldest):
                return 0
            stop = first_needed(txn, stream)
            if stop is not None and stop <= record.first_id():
                return 0
    removed = 0
    if too_long and maxlen is not None:
        spec = xtrim.TrimSpec.to_length(
            maxlen, policy.approximate, xtrim.NO_TRIM_LIMIT, xtrim.KEEPREF
        )
        removed += _trim(txn, stream, spec, stop, most_nodes)
    if too_old and record.first_ms < oldest and record.length:
        spec = xtrim.TrimSpec.from_id(
            oldest, 0, policy.approximate, xtrim.NO_TRIM_LIMIT, xtrim.KEEPREF
        )
        removed += _trim(txn, stream, spec, stop, most_nodes)
        walk = NodeWalk(txn, stream)
        if policy.approximate and record.length and walk.first() and not walk.on_tail:
            # Appends then need not read the node before it expires.
            stream.note_begins(end_ids(walk.load(), walk.ms, walk.seq).last_slot[0])
    if max_bytes is not None:
        removed += _trim_to_size(txn, stream, max_bytes, stop, most_nodes)
    return removed


def _nothing_goes(txn: Txn, stream: Stream, policy: Retention, oldest: int) -> bool:
    """Return whether it is clear that nothing may be removed, without asking all groups.

    No limit removes a whole node, or the group that held the stream last still needs the oldest.
    """
    record = stream.record
    if not policy.approximate:
        return _is_held(txn, stream, record.first_id())
    walk = NodeWalk(txn, stream)
    if not walk.first():
        return True
    data = walk.load()
    rest = record.length - peek_counts(data[:32])[0]
    is_old = record.first_ms < oldest
    last = end_ids(data, walk.ms, walk.seq).last_slot if is_old else (MAX, MAX)
    if not _goes(policy, rest, stream.nodes(), stream.node_bytes(), last, oldest):
        if is_old and not walk.on_tail:
            stream.note_begins(last[0])
        return True
    if _is_held(txn, stream, record.first_id()):
        return True
    return _is_held(txn, stream, end_ids(data, walk.ms, walk.seq).last_slot)


def _is_held(txn: Txn, stream: Stream, entry_id: Id) -> bool:
    """Return whether the group that held the stream last still needs an entry up to that."""
    name = stream.held_by
    group = None if name is None else find_group(txn, stream, name)
    needed = None if group is None else _needed_by(group)
    return needed is not None and needed <= entry_id


def _needed_by(group: Group) -> Id | None:
    """Return the lowest ID that a group has pending or has not read."""
    unread = next_id(group.record.last_ms, group.record.last_seq)
    pending = group.pel.lowest()
    if unread == (0, 0):
        return pending
    return unread if pending is None else min(unread, pending)


def first_needed(txn: Txn, stream: Stream) -> Id | None:
    """Return the lowest ID that a group has pending or has not read; None without groups."""
    lowest: Id | None = None
    for group in groups_of(txn, stream):
        needed = _needed_by(group)
        if needed is not None and (lowest is None or needed < lowest):
            lowest = needed
            stream.held_by = group.record.name
    return lowest


def has_limits(stream: Stream) -> bool:
    policy = stream.retention()
    if policy is None:
        return False
    limits = (policy.maxlen, policy.max_age_ms, policy.max_bytes)
    return stream.record.length > 0 and any(limit is not None for limit in limits)


def enforce_step(txn: WriteTxn, name: bytes) -> int:
    """Enforce the retention of the stream `name` for a bounded number of nodes."""
    stream = txn.find_stream(name)
    return 0 if stream is None else enforce(txn, stream, PER_STEP)


def _trim(
    txn: WriteTxn, stream: Stream, spec: xtrim.TrimSpec, stop: Id | None, most_nodes: int
) -> int:
    spec.stop = stop
    spec.most_nodes = most_nodes
    return xtrim.trim_stream(txn, stream, spec)


def _trim_to_size(
    txn: WriteTxn, stream: Stream, max_bytes: int, stop: Id | None, most_nodes: int
) -> int:
    """Remove the oldest nodes while all together are too big; keep the newest."""
    removed = 0
    walk = NodeWalk(txn, stream)
    while most_nodes > 0 and stream.nodes() > 1 and stream.node_bytes() > max_bytes:
        most_nodes -= 1
        if not walk.first():
            break
        data = walk.load()
        if stop is not None and end_ids(data, walk.ms, walk.seq).last_slot >= stop:
            break
        removed += peek_counts(data[:32])[0]
        walk.retire()
    if removed:
        refresh_ends(txn, stream, first=True, last=False)
    return removed
