"""What of a store is new for a lake: pieces of streams, each entry in one, and positions."""

from __future__ import annotations

import json

from streamkeep.format.core.entry import StreamId
from streamkeep.format.segment.manifest import ADOPTED, ARCHIVED, SegmentRecord
from streamkeep.format.segment.remote import Manifest, RemoteSegment, RemoteStream
from streamkeep.pipeline.store_fleet.pieces import (
    Member,
    Positions,
    StreamPosition,
    new_pieces,
    pack_groups,
    stream_pieces,
    unpack_group,
    without_erased,
)


def segment(
    first: int, last: int, *, sealed: bool = False, origin: int = ARCHIVED, sequence: int = 1
) -> RemoteSegment:
    record = SegmentRecord(
        1, first, 0, last, 0, last - first + 1, 1, 9, 90, 7, sequence, 0, 0, 1, origin, "p", b"k"
    )
    return RemoteSegment(record, sealed)


MEMBER = Member("u", "n", {}, uri="file:///x", version=3)


def ranges(segments: list[RemoteSegment]) -> list[tuple[int, int, bool]]:
    return [
        (piece.start.ms, piece.end.ms, piece.sealed)
        for piece in stream_pieces(MEMBER, b"k", segments)
    ]


def test_archived_segments_come_before_sealed_ones() -> None:
    found = list(
        stream_pieces(MEMBER, b"k", [segment(1, 9, sealed=True), segment(4, 6), segment(8, 20)])
    )
    assert [(piece.start, piece.end, piece.sealed) for piece in found] == [
        (StreamId(1, 0), StreamId(4, 0).previous(), True),
        (StreamId(4, 0), StreamId(6, 0), False),
        (StreamId(6, 1), StreamId(8, 0).previous(), True),
        (StreamId(8, 0), StreamId(20, 0), False),
    ]


def test_of_overlapping_sealed_segments_each_entry_comes_once() -> None:
    found = list(
        stream_pieces(MEMBER, b"k", [segment(1, 5, sealed=True), segment(1, 9, sealed=True)])
    )
    assert [(piece.start.ms, piece.end.ms) for piece in found] == [(1, 9)]
    assert ranges([segment(1, 5, sealed=True), segment(3, 9, sealed=True)])[-1][1] == 9


def manifest(complete: int, *segments: RemoteSegment) -> Manifest:
    stream = RemoteStream(1, b"k", True, StreamId(99, 0), 9, 9, StreamId(complete, 0))
    return Manifest({1: stream}, segments)


def test_entries_above_a_gap_wait_until_the_gap_is_filled() -> None:
    pieces, positions = new_pieces(MEMBER, manifest(5, segment(1, 5), segment(8, 9)), Positions())
    assert [(piece.start.ms, piece.end.ms) for piece in pieces] == [(1, 5)]
    assert positions.end_of(1) == StreamId(5, 0)
    pieces, _ = new_pieces(MEMBER, manifest(9, segment(1, 5), segment(6, 9)), positions)
    assert [(piece.start, piece.end.ms) for piece in pieces] == [(StreamId(6, 0), 9)]


def test_a_segment_that_was_adopted_below_the_position_is_not_missed() -> None:
    _, positions = new_pieces(MEMBER, manifest(9, segment(5, 9)), Positions())
    late = segment(1, 3, origin=ADOPTED, sequence=2)
    pieces, after = new_pieces(MEMBER, manifest(9, late, segment(5, 9)), positions)
    assert [(piece.start.ms, piece.end.ms, piece.late) for piece in pieces] == [(1, 3, True)]
    assert new_pieces(MEMBER, manifest(9, late, segment(5, 9)), after)[0] == []


def test_positions_and_groups_survive_their_transport() -> None:
    streams = {7: StreamPosition(b"\xff", StreamId((1 << 64) - 1, 5), 3, 1, 6, 9)}
    positions = Positions(streams, "n", {"a": "b"}, 5)
    assert positions.absent == 2
    assert Positions.from_json(json.loads(json.dumps(positions.as_json()))) == positions
    pieces = list(stream_pieces(MEMBER, b"k", [segment(1, 2), segment(3, 4)]))
    assert [one for _, packed in pack_groups(pieces) for one in unpack_group(packed)] == pieces


def test_pieces_name_the_erased_ids_of_their_range() -> None:
    pieces = list(stream_pieces(MEMBER, b"k", [segment(1, 4), segment(5, 9), segment(10, 12)]))
    gone = tuple(StreamId(ms, 0) for ms in (0, 4, 5, 9, 13))
    found = list(without_erased(pieces, {1: gone, 2: (StreamId(11, 0),)}))
    assert [[one.ms for one in piece.erased] for piece in found] == [[4], [5, 9], []]
    assert list(without_erased(pieces, {})) == pieces
