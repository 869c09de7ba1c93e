"""What the manifest of an archive under a URI says of each stream, also of deleted ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamkeep.engine.commands.keys import former_name, iter_keys
from streamkeep.engine.tables.manifest import iter_erasures, iter_segments
from streamkeep.engine.tables.scan import rows_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.id_codec import MAX
from streamkeep.format.core.keys import NODES, RETIRED, pack_number, unpack_node_key
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment import remote
from streamkeep.format.segment.manifest import SegmentRecord


def streams_of(
    txn: Txn, before: remote.Manifest, removed: Sequence[remote.Removed]
) -> tuple[dict[int, remote.RemoteStream], list[SegmentRecord]]:
    """Return what the manifest will say of each stream, and the segments of the archive.

    If segments are complete up to an ID, they hold every entry up to and including it. So a reader
    that has copied everything up to that ID never needs to look below it again, except for segments
    that were adopted later.

    Args:
        removed: noted ranges; where one has no end, IDs in it may have been given out again.
    """
    records = list(iter_segments(txn))
    names = {number: name for name, number in iter_keys(txn)}
    # Where the manifest was lost, a stream that is gone may have sealed segments alone.
    keys = {one.record.stream_number: one.record.key for one in before.segments}
    keys.update((record.stream_number, record.key) for record in records)
    keys.update((number, stream.key) for number, stream in before.streams.items())
    found = {}
    for number in sorted({*keys, *names}):
        erased = tuple(StreamId(*one) for one, _ in iter_erasures(txn, number, (0, 0), (MAX, MAX)))
        if number in names:
            record = txn.load_numbered(number, names[number]).record
            complete = last = StreamId(record.last_ms, record.last_seq)
            added, length = record.entries_added, record.length
        else:
            last, added, length = MIN_ID, 0, 0
            complete = max(
                (one.last_id for one in records if one.stream_number == number), default=MIN_ID
            )
        for one in _first_unarchived(txn, number, names.get(number)):
            complete = min(complete, one.previous() if one > MIN_ID else one)
        earlier = before.streams.get(number)
        if earlier is not None:
            below = [
                one.first.previous()
                for one in removed
                if one.number == number and one.last >= earlier.complete_to
            ]
            complete = max(complete, min([earlier.complete_to, *below]))
        key = names.get(number, former_name(txn, number))
        key = keys.get(number, b"") if key is None else key
        found[number] = remote.RemoteStream(
            number, key, number in names, last, added, length, complete, erased
        )
    return found, records


def _first_unarchived(txn: Txn, number: int, name: bytes | None) -> Iterator[StreamId]:
    """Yield IDs such that no segment is needed for any lower ID: of the first nodes without one.

    A live node may have entries that were trimmed and not archived, even before its first live one.
    """
    for table in (NODES, RETIRED):
        for db_key, _ in rows_with(txn, table, pack_number(number)):
            _, ms, seq = unpack_node_key(db_key)
            if not is_former_name(ms, seq):
                yield StreamId(ms, seq)
                break
    if name is not None:
        tail = txn.load_numbered(number, name)
        if tail.has_tail():
            yield StreamId(tail.tail_ms, tail.tail_seq)
