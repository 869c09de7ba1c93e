"""Asked for a second time: is what a restore would write there already?

A restore into a stream that has its first ID, or a higher one, cannot write. Mostly that is a
restore that was done before, by a job that runs again because nobody told its scheduler. So the
entries are compared, ID by ID and field by field, a node at a time: where the stream has all of
them, and nothing else between, there is nothing to do; where it differs, the first difference is
named. Nothing is written in either case.

What the stream has below the first entry to be restored, and above the last, is left aside: a
restore says nothing about that. What it has trimmed and archived counts as there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from streamkeep.engine.archive.iterate import ArchivedNode
from streamkeep.engine.commands.history import Unreadable, xrange
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import IdTooSmallError
from streamkeep.format.core.id_codec import next_id
from streamkeep.format.node.node import PAIRS, Range, read_range

Id = tuple[int, int]

_ALL: Final = 1 << 40


class Compared(NamedTuple):
    """What is there of a restore.

    Attributes:
        entries: that the stream has, all those of the restore; 0: it may begin.
    """

    entries: int
    first_id: StreamId | None
    last_id: StreamId | None


def last_id_of(txn: Txn, name: bytes) -> Id | None:
    """Return the last generated ID of a stream; None when it does not exist."""
    stream = txn.find_stream(name)
    return None if stream is None else (stream.record.last_ms, stream.record.last_seq)


def compare(target: Environment, name: bytes, last: Id, nodes: Iterable[ArchivedNode]) -> Compared:
    """Compare the nodes of a restore with the stream it would write to.

    Args:
        last: the last generated ID of the stream.
        nodes: of the restore, ascending.

    Raises:
        IdTooSmallError: the stream lacks entries, or has others.
    """
    count = 0
    first: Id | None = None
    at: Id = (0, 0)
    for node in nodes:
        if first is None:
            if node.first_id > last:
                return Compared(0, None, None)  # all of it is above: it may come in
            first = at = node.first_id
        wanted = _entries(node.data, node.ms, node.seq)
        there = _stream_entries(target, name, at, node.last_id)
        if wanted != there:
            raise IdTooSmallError(_difference(name, first, last, count, wanted, there))
        count += len(wanted)
        at = next_id(*node.last_id)
        newest = node.last_id
    if first is None:
        return Compared(0, None, None)
    return Compared(count, StreamId(*first), StreamId(*newest))


def _entries(data: bytes, ms: int, seq: int) -> list[Any]:
    out: list[Any] = []
    top = (1 << 64) - 1
    read_range(data, ms, seq, Range(0, 0, top, top, _ALL, False, int(PAIRS)), out)
    return out


def _stream_entries(target: Environment, name: bytes, start: Id, end: Id) -> list[Any]:
    """Return what a stream has from `start` to `end`, both included, live or archived."""
    while True:
        try:
            return target.read(xrange, name, Range(*start, *end, _ALL, False, int(PAIRS)))
        except Unreadable as error:
            if target.read(error.still_named):
                raise error.error from None


def _difference(
    name: bytes, first: Id, last: Id, count: int, wanted: list[Any], there: list[Any]
) -> str:
    """Say what the first difference is, and what to do."""
    same = 0
    while same < min(len(wanted), len(there)) and wanted[same] == there[same]:
        same += 1
    count += same
    expected = StreamId(*wanted[same][:2]) if same < len(wanted) else None
    found = StreamId(*there[same][:2]) if same < len(there) else None
    if expected is not None and expected > last and count:
        return (
            f"{name!r} has the first {count} of the entries already, up to {StreamId(*last)}; to "
            f"add the others, restore from {expected} on"
        )
    if expected is not None and expected == found:
        what = f"entry {expected} has other fields there"
    elif expected is not None and (found is None or expected < found):
        what = f"entry {expected} is not there"
    else:
        what = f"there is an entry {found}, which is none of them"
    return (
        f"{name!r} goes up to {StreamId(*last)}: restoring from {StreamId(*first)} on would break "
        f"the order of its IDs, and what it has is not the same: {what}; delete the stream, or "
        "restore into another one"
    )
