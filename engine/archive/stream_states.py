"""What a remote manifest says of each stream: counters, and how far its segments are complete.

If segments are complete up to an ID, they hold every entry up to and including it. So a reader that
has copied everything up to that ID never needs to look below it again, except for
segments that were adopted later.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.manifest import iter_erasures, iter_segments
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.scan import rows_with
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.id_codec import MAX
from streamkeep.format.core.keys import NODES, RETIRED, pack_number, unpack_node_key
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.remote import Manifest, RemoteStream


def streams_of(txn: Txn, before: Manifest) -> tuple[dict[int, RemoteStream], list[SegmentRecord]]:
    """Return what the manifest will say of each stream, and the segments of the archive."""
    records = list(iter_segments(txn))
    names = {number: name for name, number in iter_keys(txn)}
    keys = {number: stream.key for number, stream in before.streams.items()}
    keys.update((record.stream_number, record.key) for record in records)
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
            complete = max(complete, earlier.complete_to)
        key = names.get(number, keys.get(number, b""))
        found[number] = RemoteStream(
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
