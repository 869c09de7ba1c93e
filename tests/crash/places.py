"""Where each entry of a store is: in a live node, retired, or in a segment; never in two places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from inside import segment_files_of
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import retired_streams
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.manifest import iter_segments
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.tables.scan import rows_with
from streamkeep.engine.tables.segment_files import open_segment
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.id_codec import MAX
from streamkeep.format.core.keys import RETIRED, unpack_node_key
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, read_range
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment.segment import Segment

Id = tuple[int, int]
Fields = tuple[bytes, ...]
Nodes = Iterator[tuple[int, int, bytes]]

LIVE: Final = "live"
RETIRED_ROW: Final = "retired"
SEGMENT: Final = "segment"


class Places:
    """What is where, of every stream that a store has or had.

    Attributes:
        entries: fields of each entry that history shows, by stream number and ID.
        place: where it is: LIVE, RETIRED_ROW or SEGMENT.
    """

    def __init__(self, store: Store[bytes]) -> None:
        self.entries: dict[int, dict[Id, Fields]] = {}
        self.place: dict[int, dict[Id, str]] = {}
        with store.snapshot() as snapshot:
            txn = snapshot.txn
            names = {number: name for name, number in iter_keys(txn)}
            archived = {one.stream_number for one in iter_segments(txn)}
            for number in sorted({*names, *retired_streams(txn), *archived}):
                if number in names:
                    self._take(number, LIVE, live_nodes(txn, number, names[number]))
                self._take(number, RETIRED_ROW, retired_nodes(txn, number))
                for record in iter_segments(txn, number):
                    file = segment_files_of(store).path(record)
                    count = self._take(number, SEGMENT, segment_nodes(open_segment(file)))
                    assert count == record.entries

    def _take(self, number: int, place: str, nodes: Nodes) -> int:
        entries = self.entries.setdefault(number, {})
        places = self.place.setdefault(number, {})
        count = 0
        for ms, seq, data in nodes:
            found: list[Any] = []
            read_range(data, ms, seq, Range(0, 0, MAX, MAX, 1 << 40, False, PAIRS), found)
            for entry_ms, entry_seq, pairs in found:
                one = (entry_ms, entry_seq)
                assert one not in places, f"{one} is {place}, and {places[one]}"
                places[one] = place
                entries[one] = tuple(pairs)
                count += 1
        return count

    def named(self, store: Store[bytes], key: bytes) -> dict[Id, Fields]:
        """Return the history of a stream."""
        with store.snapshot() as snapshot:
            return dict(sorted(self.entries.get(snapshot.txn.stream_number(key), {}).items()))


def live_nodes(txn: Txn, number: int, name: bytes) -> Nodes:
    """Yield what history shows of the live nodes of a stream."""
    stream = txn.load_numbered(number, name)
    walk = NodeWalk(txn, stream)
    found = stream.nodes() > 0 and walk.first()
    while found:
        data = history_form(walk.load(), walk.ms, walk.seq, walk.trimmed)
        if data:
            yield walk.ms, walk.seq, data
        found = walk.next()


def retired_nodes(txn: Txn, number: int) -> Nodes:
    """Yield what history shows of the retired nodes of a stream."""
    for db_key, value in rows_with(txn, RETIRED, b""):
        owner, ms, seq = unpack_node_key(db_key)
        if owner == number and not is_former_name(ms, seq):
            envelope = decode_envelope(value, "retired")
            data = history_form(envelope.listpack, ms, seq, envelope.trimmed)
            if data:
                yield ms, seq, data


def segment_nodes(segment: Segment) -> Nodes:
    for block in range(len(segment.index.blocks)):
        for node in segment.block(block):
            yield node.ms, node.seq, node.listpack


def assert_in_one_place(store: Store[bytes], *, orphans: bool = False) -> Places:
    """Check that each entry is in one place, that history shows it, and that no file is unknown.

    Args:
        orphans: whole segments that no row names may be there, because a user may adopt them.
    """
    places = Places(store)
    with store.snapshot() as snapshot:
        for key in sorted(snapshot.keys()):
            shown = {
                tuple(map(int, bytes(entry.id).split(b"-"))): tuple(
                    part for pair in entry.fields.items() for part in pair
                )
                for entry in snapshot.xrange(key, history=True)
            }
            expected = dict(sorted(places.entries.get(snapshot.txn.stream_number(key), {}).items()))
            assert shown == expected
            assert list(shown) == list(expected)
    named = {store.segment_path(record) for record in store.archived_segments()}
    there = set(store.path.glob("archive/*/*.seg"))
    assert named <= there
    assert orphans or named == there
    assert list(store.path.glob("archive/*/*.tmp")) == []
    return places


def assert_sound_and_in_one_place(store: Store[bytes], *, orphans: bool = False) -> Places:
    """As `assert_in_one_place`; close the store, and run all checks."""
    places = assert_in_one_place(store, orphans=orphans)
    store.close()
    findings = list(recovery.check(store.path))
    expected = {"SK311", "SK312"} if orphans else set()
    assert {one.code for one in findings} <= expected, [str(one) for one in findings]
    return places
