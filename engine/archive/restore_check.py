"""The check whether a stream already has the entries of a restore, or the first of them.

A restore cannot write IDs below the last one of a stream. Usually a stream with such IDs has them
from the same restore, which was interrupted, or done by a job that its scheduler runs again. So the
entries are compared, ID by ID and field by field, one node at a time. If the stream has all of
them, or the first of them, and no other between or after these, the restore has nothing to do, or
the rest. Otherwise the first difference is reported. Nothing is written here.

Entries of the stream below the first restored ID and above the last one do not matter. Entries that
the stream has trimmed and archived count as present.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from streamkeep.engine.archive.iterate import ArchivedNode
from streamkeep.engine.commands.history import Unreadable, xrange
from streamkeep.engine.commands.reply_budget import Entries
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import IdTooSmallError
from streamkeep.format.core.id_codec import MAX, Id, next_id
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, read_range

_ALL: Final = 1 << 40


class Compared(NamedTuple):
    """The result of the comparison.

    Attributes:
        entries: the number of entries of the restore that the stream has.
        whole: whether these are all of them.
    """

    entries: int
    whole: bool
    first_id: StreamId | None
    last_id: StreamId | None


def last_id_of(txn: Txn, name: bytes) -> Id | None:
    """Return the last generated ID of a stream; None if it does not exist."""
    stream = txn.find_stream(name)
    return None if stream is None else stream.record.last_id()


def compare(target: Environment, name: bytes, last: Id, nodes: Iterable[ArchivedNode]) -> Compared:
    """Compare the nodes of a restore with its target stream.

    Args:
        last: the last generated ID of the stream.
        nodes: the nodes of the restore, ascending.

    Raises:
        IdTooSmallError: the stream lacks some of the entries below its last ID, or has others.
    """
    count = 0
    first: Id | None = None
    at: Id = (0, 0)
    newest: Id = (0, 0)
    for node in nodes:
        if first is None:
            if node.first_id > last:
                break  # all entries are above the last ID
            first = at = node.first_id
        wanted = _entries(node.data, node.ms, node.seq)
        within = [entry for entry in wanted if entry[:2] <= last]
        there = _stream_entries(target, name, at, node.last_id if within == wanted else last)
        if within != there:
            raise IdTooSmallError(_difference(name, first, last, wanted, there))
        count += len(within)
        if within != wanted:
            return Compared(count, False, StreamId(*first), StreamId(*last))
        newest = node.last_id
        if newest == (MAX, MAX):
            break
        at = next_id(*newest)
    if first is None:
        return Compared(0, False, None, None)
    return Compared(count, True, StreamId(*first), StreamId(*newest))


def _entries(data: bytes, ms: int, seq: int) -> Entries:
    out: Entries = []
    top = (1 << 64) - 1
    read_range(data, ms, seq, Range(0, 0, top, top, _ALL, False, int(PAIRS)), out)
    return out


def _stream_entries(target: Environment, name: bytes, start: Id, end: Id) -> Entries:
    """Return the live and archived entries of a stream from `start` to `end`, both included."""
    while True:
        try:
            return target.read(xrange, name, Range(*start, *end, _ALL, False, int(PAIRS)))
        except Unreadable as error:
            if target.read(error.still_named):
                raise error.error from None


def _difference(name: bytes, first: Id, last: Id, wanted: Entries, there: Entries) -> str:
    """Return a message that names the first difference and what to do."""
    same = 0
    while same < min(len(wanted), len(there)) and wanted[same] == there[same]:
        same += 1
    expected = StreamId(*wanted[same][:2]) if same < len(wanted) else None
    found = StreamId(*there[same][:2]) if same < len(there) else None
    if expected is not None and expected == found:
        difference = f"entry {expected} has other fields there"
    elif expected is not None and (found is None or expected < found):
        difference = f"entry {expected} is missing there"
    else:
        difference = f"there is an entry {found}, which is not one of them"
    return (
        f"the last ID of {name!r} is {StreamId(*last)}, and IDs must rise: entries from "
        f"{StreamId(*first)} on cannot be restored into it, and its entries differ: {difference}; "
        "next: delete the stream, or restore into another one"
    )
