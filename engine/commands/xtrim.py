"""Trimming: XTRIM and the MAXLEN and MINID options of XADD.

The loop goes through the nodes from the oldest on, as Redis does, and stops at the first node that
must stay:

1. MAXLEN: stop when the length is reached.
2. LIMIT: stop if the live entries of this node would exceed it. So LIMIT never splits a node.
3. A node may be removed whole if the length stays at or above MAXLEN without it, or if all its IDs
   (including tombstones) are below MINID.
4. `~` stops at the first node that may not be removed whole.
5. Otherwise its oldest entries become tombstones, marked as trimmed.

DELREF and ACKED look at each entry, so that no node is removed unread and `~` has no effect. ACKED
skips entries that a group still needs.

Trimming changes first_id, but neither max_deleted_id nor entries_added: trimmed entries do not
count as deleted. Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.tables.group import Group, groups_of
from streamkeep.engine.tables.node_walk import NodeWalk, refresh_ends
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.id_codec import MAX, previous_id
from streamkeep.format.node.envelope import set_trimmed, trimmed_slots
from streamkeep.format.node.node import end_ids, live_ids, peek_counts
from streamkeep.format.node.tombstones import mark, mark_oldest, rewrite
from streamkeep.format.rows.records import PAGE_FIT

MAXLEN: Final = 0
MINID: Final = 1

DEFAULT_LIMIT: Final = -1
NO_TRIM_LIMIT: Final = 0
_PAGE_ENTRIES: Final = 100  # Redis's default stream-node-max-entries, for the limit of `~`
_MOST_LIMIT: Final = 1_000_000
_ALL_NODES: Final = (1 << 62) - 1


class TrimSpec:
    """What to trim.

    Args:
        strategy: MAXLEN or MINID.
        maxlen: how many entries stay (MAXLEN).
        ms, seq: the lowest ID that stays (MINID).
        approximate: remove only whole nodes (`~`).
        limit: most entries to remove; 0 for no limit, DEFAULT_LIMIT for Redis's default.
        policy: KEEPREF, DELREF or ACKED.

    Attributes:
        stop: no ID from here on is removed, under any strategy; None for no such ID.
        most_nodes: how many nodes one call looks at.
    """

    def __init__(
        self,
        strategy: int,
        maxlen: int,
        ms: int,
        seq: int,
        approximate: bool,
        limit: int,
        policy: int,
    ) -> None:
        self.strategy = strategy
        self.maxlen = maxlen
        self.ms = ms
        self.seq = seq
        self.approximate = approximate
        self.limit = limit
        self.policy = policy
        self.stop: tuple[int, int] | None = None
        self.most_nodes = _ALL_NODES

    @staticmethod
    def to_length(maxlen: int, approximate: bool, limit: int, policy: int) -> TrimSpec:
        """Return what leaves the newest `maxlen` entries."""
        return TrimSpec(MAXLEN, maxlen, 0, 0, approximate, limit, policy)

    @staticmethod
    def from_id(ms: int, seq: int, approximate: bool, limit: int, policy: int) -> TrimSpec:
        """Return what leaves the entries from the ID `ms-seq` on."""
        return TrimSpec(MINID, 0, ms, seq, approximate, limit, policy)


def xtrim(txn: WriteTxn, name: bytes, spec: TrimSpec) -> int:
    stream = txn.find_stream(name)
    return 0 if stream is None else trim_stream(txn, stream, spec)


def effective_limit(spec: TrimSpec, node_max_bytes: int, node_max_entries: int) -> int:
    """Return the most entries that a call removes; 0 for no limit."""
    if spec.limit != DEFAULT_LIMIT:
        return spec.limit
    if not spec.approximate:
        return 0
    per_node = _PAGE_ENTRIES if node_max_bytes == PAGE_FIT else node_max_entries
    return 10_000 if per_node <= 0 else min(100 * per_node, _MOST_LIMIT)


def trim_stream(txn: WriteTxn, stream: Stream, spec: TrimSpec) -> int:
    record = stream.record
    limit = effective_limit(spec, record.node_max_bytes, record.node_max_entries)
    by_length = spec.strategy == MAXLEN
    floor = spec.maxlen if by_length else 0
    references = None if spec.policy == KEEPREF else References(txn, stream)
    removed = 0
    walk = NodeWalk(txn, stream)
    stop = spec.stop
    left = spec.most_nodes
    found = record.length > floor and walk.first()
    while found and record.length > floor and left > 0:
        left -= 1
        data = walk.load()
        live, _ = peek_counts(data[:32])
        if limit and removed + live > limit:
            break
        if by_length:
            whole = record.length - live >= spec.maxlen
        else:
            whole = end_ids(data, walk.ms, walk.seq).last_slot < (spec.ms, spec.seq)
        if stop is not None and whole:
            whole = end_ids(data, walk.ms, walk.seq).last_slot < stop
        if whole and references is None:
            walk.retire()
            removed += live
            found = walk.first()
            continue
        if spec.approximate and references is None:
            break
        removed += _trim_inside(walk, data, spec, references)
        if not whole:
            break
        found = walk.above(walk.ms, walk.seq)
    if removed:
        refresh_ends(txn, stream, first=True, last=references is not None)
    return removed


def _trim_inside(walk: NodeWalk, data: bytes, spec: TrimSpec, references: References | None) -> int:
    """Make tombstones of the oldest entries of a node that may be removed; return how many."""
    record = walk.stream.record
    kept: set[tuple[int, int]] = set()
    if references is not None and spec.policy == ACKED:
        for ms, seq in live_ids(data, walk.ms, walk.seq):
            if references.held(ms, seq):
                kept.add((ms, seq))
    budget = record.length - (spec.maxlen if spec.strategy == MAXLEN else 0)
    last_ms, last_seq = MAX, MAX
    for below in (spec.stop, (spec.ms, spec.seq) if spec.strategy == MINID else None):
        if below == (0, 0):
            return 0
        if below is not None:
            last_ms, last_seq = min((last_ms, last_seq), previous_id(below[0], below[1]))
    marked = mark_oldest(data, walk.ms, walk.seq, budget, last_ms, last_seq, kept)
    count = len(marked.ids)
    if count == 0:
        return 0
    if references is not None and spec.policy == DELREF:
        for ms, seq in marked.ids:
            references.drop(ms, seq)
    if marked.live == 0:
        walk.retire()
    else:
        archiving = walk.stream.archiving()
        bitmap = set_trimmed(walk.trimmed, marked.slots) if archiving else walk.trimmed
        store_marked(walk, marked.data, marked.live, marked.deleted, bitmap)
    return count


def trim_range(txn: WriteTxn, name: bytes, start: tuple[int, int], end: tuple[int, int]) -> int:
    """Trim the entries from `start` to `end`, wherever in the stream they are; return how many.

    Nodes in the range are removed whole. The figures that Redis derives from its counters stay
    right: entries at the front are removed as by XTRIM, and others count as deleted in
    max_deleted_id, so that the lag of a group that has not reached them is unknown, and not wrong.
    """
    stream = txn.find_stream(name)
    if stream is None or stream.record.length == 0:
        return 0
    record = stream.record
    first = record.first_id()
    last = record.last_live_id()
    removed = 0
    highest = start
    walk = NodeWalk(txn, stream)
    found = start <= last and first <= end and walk.seek(start[0], start[1])
    while found and (walk.ms, walk.seq) <= end:
        data = walk.load()
        ids = end_ids(data, walk.ms, walk.seq)
        if start <= ids.first_live and ids.last_live <= end:
            count = int(ids.live)
            highest = ids.last_live
            walk.retire()
        else:
            going = [one for one in live_ids(data, walk.ms, walk.seq) if start <= one <= end]
            count = len(going)
            if count:
                highest = going[-1]
                marked = mark(data, walk.ms, walk.seq, going, 0)
                archiving = stream.archiving()
                bitmap = set_trimmed(walk.trimmed, marked.slots) if archiving else walk.trimmed
                store_marked(walk, marked.data, marked.live, marked.deleted, bitmap)
        removed += count
        found = walk.above(walk.ms, walk.seq)
    if removed:
        if start > first:
            stream.deleted_up_to(highest)
        refresh_ends(txn, stream, first=start <= first, last=last <= end)
    return removed


def store_marked(walk: NodeWalk, data: bytes, live: int, deleted: int, trimmed: bytes) -> None:
    """Store a node that has new tombstones; rewrite it when they outnumber the slots it needs.

    It needs its live slots, and those that the archive will get. The tail is never rewritten:
    Redis counts its tombstones against stream-node-max-entries.
    """
    stored, bitmap = stored_form(walk, data, live, deleted, trimmed)
    walk.store(stored, bitmap)


def stored_form(
    walk: NodeWalk, data: bytes, live: int, deleted: int, trimmed: bytes
) -> tuple[bytes, bytes]:
    """Return the listpack and the trimmed slots that `store_marked` stores."""
    if deleted <= live + 2 * len(trimmed_slots(trimmed)) or walk.on_tail:
        return data, trimmed
    # The last slot stays: its ID is the highest that the node ever held.
    return rewritten_form(walk, data, trimmed, {live + deleted - 1})


def rewritten_form(
    walk: NodeWalk, data: bytes, trimmed: bytes, also: set[int]
) -> tuple[bytes, bytes]:
    """Return the listpack and the trimmed slots of a node without its other tombstones.

    Args:
        also: the numbers of more tombstones that stay.
    """
    old_bits = trimmed_slots(trimmed)
    rewritten = rewrite(data, walk.ms, walk.seq, old_bits | also)
    bits = [slot for slot, old in enumerate(rewritten.kept) if old in old_bits]
    return rewritten.data, set_trimmed(b"", bits)


# --- what becomes of the groups of a stream ------------------------------------------------------

KEEPREF: Final = 0  # deletes entries, leaves pending entries as they are
DELREF: Final = 1  # deletes entries, and their pending entries
ACKED: Final = 2  # deletes entries that every group has read and acknowledged


class References:
    """The groups of a stream, asked about its entries by one command.

    Redis keeps an index from entries to the groups that have them pending. We ask each group
    instead, which costs O(log n) per group: groups are few, and the index would be one more row per
    pending entry.
    """

    def __init__(self, txn: WriteTxn, stream: Stream) -> None:
        self.groups: list[Group] = groups_of(txn, stream)

    def held(self, ms: int, seq: int) -> bool:
        """Return whether a group has not read an entry, or has it pending."""
        for group in self.groups:
            if (ms, seq) > group.last_id() or group.pel.get(ms, seq) is not None:
                return True
        return False

    def drop(self, ms: int, seq: int) -> None:
        """Remove an entry from the pending entries of all groups."""
        for group in self.groups:
            group.ack(ms, seq)
