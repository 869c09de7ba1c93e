"""One stream of the model: macro nodes as lists of slots.

Entries are in macro nodes as in Redis, because users see the difference: `~` trims whole nodes,
LIMIT counts by node, and XINFO STREAM reports their number. A node is a list of slots. The slot of
a deleted entry becomes a tombstone, which is removed only with the node. A node is removed with its
last live entry.

Everything that can be derived is derived, each time it is asked for: length, the ID of the first
entry, the size of a node.

With `rewrites` the model follows the engine where the engine does better than Redis: a node in
which tombstones outnumber live entries is rewritten without them, except for its last slot. The
node that is open for appending is left alone; once it is gone, no node is open until the next
append. Then the number of nodes, and with it what `~` trims, may differ from Redis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from model.groups import Group
from model.sizes import listpack_size
from model.values import ZERO, Entry, Id, Pairs

GIB = 1 << 30


@dataclass
class Slot:
    """The place of an entry in its node; `deleted` makes it a tombstone."""

    id: Id
    pairs: Pairs
    deleted: bool = False


@dataclass
class Node:
    """A macro node: its key is the ID of the first entry ever put into it."""

    key: Id
    fields: list[bytes]  # the names that the first entry had; others share or spell them out
    slots: list[Slot] = field(default_factory=list)

    @property
    def live(self) -> int:
        """The number of live entries."""
        return sum(not slot.deleted for slot in self.slots)

    @property
    def size(self) -> int:
        """The size of the node's listpack in bytes."""
        tombstones = len(self.slots) - self.live
        elements: list[bytes | int] = [self.live, tombstones, len(self.fields), *self.fields, 0]
        for slot in self.slots:
            elements += self._slot_elements(slot)
        return listpack_size(elements)

    def _slot_elements(self, slot: Slot) -> list[bytes | int]:
        names = [name for name, _ in slot.pairs]
        ms_diff = _signed(slot.id[0] - self.key[0])
        seq_diff = _signed(slot.id[1] - self.key[1])
        body: list[bytes | int] = [0, ms_diff, seq_diff]
        if names == self.fields:
            body += [value for _, value in slot.pairs]
        else:
            body.append(len(names))
            body += [text for pair in slot.pairs for text in pair]
        return [*body, len(body)]


def _signed(difference: int) -> int:
    """Return a difference of two unsigned 64-bit numbers as the signed one that is stored."""
    return (difference + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass
class Stream:
    """One stream; see the module for its nodes."""

    rewrites: bool = False
    nodes: list[Node] = field(default_factory=list)
    last_id: Id = ZERO
    max_deleted_id: Id = ZERO
    entries_added: int = 0
    groups: dict[bytes, Group] = field(default_factory=dict)
    idmp_duration: int = 100
    idmp_maxsize: int = 100
    producers: dict[bytes, dict[bytes, Id]] = field(default_factory=dict)
    iids_added: int = 0
    iids_duplicates: int = 0
    open_node: Id | None = None  # the key of the node that was appended to last

    @property
    def length(self) -> int:
        """The number of live entries."""
        return sum(node.live for node in self.nodes)

    @property
    def first_id(self) -> Id:
        """The ID of the first live entry, 0-0 when there is none."""
        return self.nodes[0].slots[_first_live(self.nodes[0])].id if self.nodes else ZERO

    @property
    def last_live_id(self) -> Id:
        """The ID of the last live entry, 0-0 when there is none."""
        entries = self.entries()
        return entries[-1][0] if entries else ZERO

    def entries(self) -> list[Entry]:
        """Return all live entries."""
        return [
            (slot.id, slot.pairs) for node in self.nodes for slot in node.slots if not slot.deleted
        ]

    def get(self, entry_id: Id) -> Pairs | None:
        """Return the pairs of a live entry; None when there is none of this ID."""
        return dict(self.entries()).get(entry_id)

    def append(self, entry_id: Id, pairs: Pairs, max_bytes: int, max_entries: int) -> None:
        """Append an entry, whose ID is above all others, to the last node or to a new one."""
        if max_bytes == 0 or max_bytes > GIB:
            max_bytes = GIB
        if not self.nodes or not _has_room(self.nodes[-1], pairs, max_bytes, max_entries):
            self.nodes.append(Node(entry_id, [name for name, _ in pairs]))
        self.nodes[-1].slots.append(Slot(entry_id, pairs))
        # The engine seals a node that its first entry fills at once.
        full = self.nodes[-1].size >= max_bytes and len(self.nodes[-1].slots) == 1
        self.open_node = None if full else self.nodes[-1].key
        self.last_id = entry_id
        self.entries_added = min(self.entries_added + 1, (1 << 63) - 1)

    def delete(self, ids: list[Id]) -> int:
        """Delete entries, as XDEL does; return how many there were."""
        gone = 0
        for node in list(self.nodes):
            here = [slot for slot in node.slots if slot.id in ids and not slot.deleted]
            for slot in here:
                slot.deleted = True
                self.max_deleted_id = max(self.max_deleted_id, slot.id)
            if here:
                self._after_deletion(node)
            gone += len(here)
        return gone

    def trim(
        self, *, maxlen: int | None, minid: Id, approximate: bool, limit: int, policy: str
    ) -> int:
        """Remove the oldest entries; return how many went.

        Args:
            maxlen: how many entries stay; None to trim by `minid`.
            minid: the lowest ID that stays.
            approximate: only whole nodes go (`~`); other policies than KEEPREF ignore it.
            limit: how many entries may go, counted by whole nodes; 0 for any number.
        """
        removed = 0
        length = self.length
        for node in list(self.nodes):
            live = node.live
            if maxlen is not None and length <= maxlen:
                break
            if limit and removed + live > limit:
                break
            last_slot = node.slots[-1].id
            whole = last_slot < minid if maxlen is None else length - live >= maxlen
            if whole and policy == "KEEPREF":
                self._drop(node)
                removed += live
                length -= live
                continue
            if approximate and policy == "KEEPREF":
                break
            for slot in node.slots:
                if slot.id >= minid if maxlen is None else length <= maxlen:
                    break
                if slot.deleted or (policy == "ACKED" and self.is_referenced(slot.id)):
                    continue
                if policy == "DELREF":
                    self.forget_pending(slot.id)
                slot.deleted = True
                removed += 1
                length -= 1
            if node.live < live:
                self._after_deletion(node)
            if not whole:
                break
        return removed

    def delete_by_policy(self, ids: list[Id], policy: str) -> list[int]:
        """Delete entries as XDELEX does: for each 1 deleted, -1 not there, 2 kept for a group.

        All at once: a node is rewritten for all that goes from it.
        """
        reply = []
        going: list[Id] = []
        for one in ids:
            if policy == "ACKED" and self.is_referenced(one):
                reply.append(2)
                continue
            if policy == "DELREF":
                self.forget_pending(one)
            reply.append(-1 if one in going or self.get(one) is None else 1)
            going.append(one)
        self.delete(going)
        return reply

    def _after_deletion(self, node: Node) -> None:
        """Drop a node without live entries; rewrite one with too many tombstones."""
        live = node.live
        if live == 0:
            self._drop(node)
        elif self.rewrites and node.key != self.open_node and len(node.slots) - live > live:
            last = node.slots[-1]
            node.slots = [slot for slot in node.slots if not slot.deleted or slot is last]

    def _drop(self, node: Node) -> None:
        self.nodes.remove(node)
        if self.open_node == node.key:
            self.open_node = None

    def is_referenced(self, entry_id: Id) -> bool:
        """Say whether a group has not read the entry yet, or has it pending."""
        return any(
            entry_id > group.last_id or entry_id in group.pending for group in self.groups.values()
        )

    def forget_pending(self, entry_id: Id) -> None:
        """Remove the entry from every pending list (DELREF)."""
        for group in self.groups.values():
            group.forget(entry_id)


def _first_live(node: Node) -> int:
    return next(index for index, slot in enumerate(node.slots) if not slot.deleted)


def _has_room(node: Node, pairs: Pairs, max_bytes: int, max_entries: int) -> bool:
    """Say whether Redis would append to this node; it counts raw bytes, before encoding them."""
    raw = sum(len(name) + len(value) for name, value in pairs)
    if node.size + raw >= max_bytes:
        return False
    return max_entries == 0 or len(node.slots) < max_entries
