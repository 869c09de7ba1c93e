"""The differences between two stores: streams, entries, groups, pending entries, messages, rows.

The comparison is logical: the division of entries into macro nodes, the numbers of streams and
groups, and tombstones are ignored. Both stores are read from one snapshot each, in the order of
keys and IDs. If both have the same node, it is not decoded, so copies are compared as fast as they
are read; otherwise the entries are merged. Needs memory for one node and one group of each store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

from streamkeep.commands.strings import DEADLINES, FOREVER, deadline_of
from streamkeep.engine.api.command_base import Key
from streamkeep.engine.commands.arguments import to_bytes
from streamkeep.engine.commands.dump import counters_of, group_part, messages_of
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.commands.rows import iter_rows
from streamkeep.engine.tables.group import groups_of
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import MAX, Id
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, read_range
from streamkeep.format.redis.stream_parts import NO_MESSAGES, NOBODY, GroupPart, Messages, Pending
from streamkeep.format.rows.group_records import UNKNOWN
from streamkeep.format.rows.retention import NO_RETENTION
from streamkeep.transfer.stores import AnySource, reading

Name = TypeVar("Name", bytes, tuple[int, int])
Named = TypeVar("Named")
Entry = tuple[int, int, list[bytes]]

FIRST: Final = "first"
SECOND: Final = "second"
BOTH: Final = "both"


class Difference(NamedTuple):
    """One difference.

    Attributes:
        kind: "stream", "counter", "retention", "entry", "group", "consumer", "pending", "zone",
            "messages" or "rows".
        key: name of the stream; with "rows", of the space that a queue or a program has.
        group: name of the group; None for other kinds.
        what: name of the counter, entry ID, range of IDs, name of the consumer, ...
        only: "first" or "second" if only that store has it, else "both".
        first, second: the values in both stores; None if there is no value.
        number: how many consecutive entries or pending entries, or how many rows of the space,
            this difference covers.
    """

    kind: str
    key: bytes
    group: bytes | None
    what: str
    only: str
    first: object = None
    second: object = None
    number: int = 1


def diff(first: AnySource, second: AnySource, key: Key | None = None) -> Iterator[Difference]:
    """Yield all differences between two stores: of streams, in the order of keys, then of rows.

    Args:
        first, second: open stores, snapshots, or paths of stores, which are opened read-only.
        key: compare only this stream.
    """
    with reading(first) as a, reading(second) as b:
        yield from diff_txns(a.txn, b.txn, None if key is None else to_bytes(key, "key"))


def diff_txns(a: Txn, b: Txn, key: bytes | None = None) -> Iterator[Difference]:
    for name, ours, theirs in merged(_keys(a, key), _keys(b, key)):
        if ours is None or theirs is None:
            only = SECOND if ours is None else FIRST
            txn, number = (b, theirs) if ours is None else (a, ours)
            assert number is not None
            length = txn.load_numbered(number, name).record.length
            yield Difference("stream", name, None, "", only, number=length)
        else:
            yield from _diff_stream(
                a, a.load_numbered(ours, name), b, b.load_numbered(theirs, name)
            )
    if key is None:
        yield from _diff_rows(a, b)


def _keys(txn: Txn, key: bytes | None) -> Iterator[tuple[bytes, int]]:
    if key is None:
        yield from iter_keys(txn)
    elif (stream := txn.find_stream(key)) is not None:
        yield key, stream.number


def merged(
    ours: Iterable[tuple[Name, Named]], theirs: Iterable[tuple[Name, Named]]
) -> Iterator[tuple[Name, Named | None, Named | None]]:
    """Merge two ascending sequences by name or ID; None where one side lacks it."""
    left, right = iter(ours), iter(theirs)
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a[0], a[1], None
            a = next(left, None)
        elif a is None or b[0] < a[0]:
            yield b[0], None, b[1]
            b = next(right, None)
        else:
            yield a[0], a[1], b[1]
            a, b = next(left, None), next(right, None)


def _diff_stream(a: Txn, ours: Stream, b: Txn, theirs: Stream) -> Iterator[Difference]:
    key = ours.name
    for kind, left, right in (
        ("counter", counters_of(ours, 0), counters_of(theirs, 0)),
        ("retention", ours.retention() or NO_RETENTION, theirs.retention() or NO_RETENTION),
    ):
        for name, one, other in zip(left._fields, left, right, strict=True):
            if one != other:
                a_shown, b_shown = (
                    str(StreamId(*at)) if isinstance(at, tuple) else at for at in (one, other)
                )
                yield Difference(kind, key, None, name, BOTH, a_shown, b_shown)
    end, other_end = (None if at == FOREVER else at for at in map(deadline_of, (a, b), (key, key)))
    if end != other_end:
        yield Difference("counter", key, None, "deadline", BOTH, end, other_end)
    yield from diff_entries(a, ours, b, theirs)
    groups_a = [(group.record.name, group) for group in groups_of(a, ours)]
    groups_b = [(group.record.name, group) for group in groups_of(b, theirs)]
    for group, of_a, of_b in merged(groups_a, groups_b):
        if of_a is None or of_b is None:
            yield Difference("group", key, group, "", SECOND if of_a is None else FIRST)
        else:
            yield from _diff_group(key, group_part(of_a), group_part(of_b))
    yield from _diff_messages(key, messages_of(a, ours), messages_of(b, theirs))


# --- entries ------------------------------------------------------------------------------------


class _Side:
    """The entries of one stream, node by node."""

    def __init__(self, txn: Txn, stream: Stream) -> None:
        self.walk = NodeWalk(txn, stream)
        self.entries: list[Entry] = []  # entries not compared yet, in reverse order
        self._at(self.walk.first())

    def _at(self, found: bool) -> None:
        self.found, self.data = found, self.walk.load() if found else b""

    @property
    def node(self) -> tuple[int, int, bytes] | None:
        """The next node, if the next entry is its first one."""
        whole = self.found and not self.entries
        return (self.walk.ms, self.walk.seq, self.data) if whole else None

    def step(self) -> None:
        self._at(self.walk.next())

    def peek(self) -> Entry | None:
        while not self.entries and self.found:
            out: list[Any] = []
            everything = Range(0, 0, MAX, MAX, 1 << 62, False, int(PAIRS))
            read_range(self.data, self.walk.ms, self.walk.seq, everything, out)
            self.entries = out[::-1]
            self.step()
        return self.entries[-1] if self.entries else None


class _Run:
    """Consecutive IDs that only one store has, reported as one difference."""

    def __init__(self, key: bytes, kind: str, group: bytes | None = None) -> None:
        self.key = key
        self.kind = kind
        self.group = group
        self.only = ""
        self.count = 0
        self.first: Id = (0, 0)
        self.last: Id = (0, 0)

    def add(self, only: str, one: Id) -> Iterator[Difference]:
        """Add an ID; yield the difference before it if that belongs to the other store."""
        if only != self.only:
            yield from self.end()
            self.only, self.first = only, one
        self.last = one
        self.count += 1

    def end(self) -> Iterator[Difference]:
        if self.count:
            what = str(StreamId(*self.first))
            if self.count > 1:
                what += f" to {StreamId(*self.last)}"
            yield Difference(self.kind, self.key, self.group, what, self.only, number=self.count)
        self.only, self.count = "", 0


def diff_entries(a: Txn, ours: Stream, b: Txn, theirs: Stream) -> Iterator[Difference]:
    """Yield the differences between the entries of two streams, in the order of IDs."""
    key = ours.name
    left, right = _Side(a, ours), _Side(b, theirs)
    run = _Run(key, "entry")
    while True:
        if left.node is not None and left.node == right.node:
            yield from run.end()
            left.step()
            right.step()
            continue
        one, other = left.peek(), right.peek()
        if one is None and other is None:
            break
        if other is None or (one is not None and one[:2] < other[:2]):
            assert one is not None
            yield from run.add(FIRST, one[:2])
            left.entries.pop()
        elif one is None or other[:2] < one[:2]:
            yield from run.add(SECOND, other[:2])
            right.entries.pop()
        else:
            yield from run.end()
            if one[2] != other[2]:
                yield Difference(
                    "entry", key, None, str(StreamId(*one[:2])), BOTH, _pairs(one), _pairs(other)
                )
            left.entries.pop()
            right.entries.pop()
    yield from run.end()


def _pairs(entry: Entry) -> list[tuple[bytes, bytes]]:
    return list(zip(entry[2][0::2], entry[2][1::2], strict=True))


# --- groups and messages ------------------------------------------------------------------------


def _diff_group(key: bytes, ours: GroupPart, theirs: GroupPart) -> Iterator[Difference]:
    name = ours.name
    if ours.last_id != theirs.last_id:
        texts = str(StreamId(*ours.last_id)), str(StreamId(*theirs.last_id))
        yield Difference("group", key, name, "last_delivered_id", BOTH, *texts)
    if ours.entries_read != theirs.entries_read:
        read = [None if one == UNKNOWN else one for one in (ours.entries_read, theirs.entries_read)]
        yield Difference("group", key, name, "entries_read", BOTH, read[0], read[1])
    consumers_a = [(one.name, one) for one in ours.consumers]
    consumers_b = [(one.name, one) for one in theirs.consumers]
    for consumer, left, right in merged(consumers_a, consumers_b):
        what = consumer.decode(errors="backslashreplace")
        if left is None or right is None:
            only = SECOND if left is None else FIRST
            yield Difference("consumer", key, name, what, only)
        elif left != right:
            yield Difference("consumer", key, name, what, BOTH, left[1:], right[1:])
    yield from _diff_pending(key, ours, theirs)
    if ours.zone != theirs.zone:
        zones = (
            [str(StreamId(*one)) for one in ours.zone],
            [str(StreamId(*one)) for one in theirs.zone],
        )
        if sorted(ours.zone) == sorted(theirs.zone):  # otherwise "pending" reports the difference
            yield Difference("zone", key, name, "order", BOTH, *zones)


def _diff_pending(key: bytes, ours: GroupPart, theirs: GroupPart) -> Iterator[Difference]:
    run = _Run(key, "pending", ours.name)
    left, right = (((one[:2], one) for one in part.pending) for part in (ours, theirs))
    for entry_id, a, b in merged(left, right):
        if a is None or b is None:
            yield from run.add(SECOND if a is None else FIRST, entry_id)
            continue
        yield from run.end()
        one, other = _owned(ours, a), _owned(theirs, b)
        if one != other:
            yield Difference("pending", key, ours.name, str(StreamId(*entry_id)), BOTH, one, other)
    yield from run.end()


def _owned(group: GroupPart, one: Pending) -> dict[str, object]:
    owner = None if one.consumer == NOBODY else group.consumers[one.consumer].name
    _, _, _, time, count = one
    return {"consumer": owner, "delivery_time": time, "delivery_count": count}


def _diff_messages(
    key: bytes, ours: Messages | None, theirs: Messages | None
) -> Iterator[Difference]:
    left, right = ours or NO_MESSAGES, theirs or NO_MESSAGES
    for what, member in (
        ("idmp_duration", "duration"), ("idmp_maxsize", "maxsize"),
        ("iids_added", "added"), ("iids_duplicates", "duplicates"),
    ):  # fmt: skip
        one, other = getattr(left, member), getattr(right, member)
        if one != other:
            yield Difference("messages", key, None, what, BOTH, one, other)
    producers_a = [(one.name, one.messages) for one in left.producers]
    producers_b = [(one.name, one.messages) for one in right.producers]
    for producer, ours_of, theirs_of in merged(producers_a, producers_b):
        if ours_of != theirs_of:
            what = "producer " + producer.decode(errors="backslashreplace")
            only = BOTH
            if ours_of is None or theirs_of is None:
                only = SECOND if ours_of is None else FIRST
            counts = len(ours_of or ()), len(theirs_of or ())
            yield Difference("messages", key, None, what, only, *counts)


# --- rows ---------------------------------------------------------------------------------------


def _diff_rows(a: Txn, b: Txn) -> Iterator[Difference]:
    """Yield of each space how many rows only one store has, and how many differ."""
    pairs = merged(iter_rows(a), iter_rows(b))
    for space, rows in groupby(pairs, lambda row: row[0][1 : 1 + row[0][0]]):
        if space == DEADLINES:  # by the numbers of streams; compared with these
            continue
        numbers = Counter(
            SECOND if ours is None else FIRST if theirs is None else BOTH
            for _, ours, theirs in rows
            if ours != theirs
        )
        for only, number in sorted(numbers.items()):
            yield Difference("rows", space, None, "", only, number=number)
