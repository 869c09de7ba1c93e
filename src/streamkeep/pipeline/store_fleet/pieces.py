"""The values of a fleet's read: members, pieces of streams, and positions.

A *piece* is a slice that one segment, or a live store, holds. The pieces of a stream do not
overlap, so each entry is in one. An archived segment comes before a sealed one, since
the archive has the newer copy: an erasure or a deletion between the two is seen there.

The positions of a store say, for each stream, up to which ID a lake has everything.
"""

from __future__ import annotations

import os
import pickle
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.core.json_form import from_json, json_bytes
from streamkeep.format.segment.manifest import ADOPTED
from streamkeep.format.segment.remote import Head, Manifest, RemoteSegment, parts_of
from streamkeep.pipeline.distribution.packing import pack
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.storage.numbered import NumberedFiles

_GO_ON: Final = "--no-fail-on-data-loss (fail_on_data_loss=False) goes on without them"
NO_HEAD: Final = (
    "has no head: it was removed, or the first run of the archiver did not finish; next: run the "
    "archiver of that store again"
)
GROUP_BYTES: Final = 64 << 20  # pieces that travel together


# `_positions/<store>/<version>.json` has what a lake holds of a store; the application
# `streamkeep/store/<store>` names it.
POSITIONS: Final = NumberedFiles("_positions", "streamkeep/store", "what the lake has of the store")


class FleetError(StreamkeepError):
    """A fleet has no stores, or stores that cannot be told apart, or that have lost their head."""


@dataclass(frozen=True)
class Member:
    """One store of a fleet.

    Attributes:
        uri: under which its archive is published; "" for nowhere.
        path: of the store, if it is read live; "" if its archive is read.
        version: of its head, if the archive is read.
        segments: their number, for dividing the work.
        sealed_ms: Unix time up to which all entries are in segments; None if they never were.
    """

    store: str
    name: str
    labels: dict[str, str]
    uri: str = ""
    path: str = ""
    version: int = 0
    segments: int = 0
    sealed_ms: int | None = None

    @classmethod
    def archived(cls, head: Head, uri: str) -> Member:
        what = (str(head.store), head.name, head.labels, uri, "")
        return cls(*what, head.version, head.segments, head.sealed_ms)


@dataclass(frozen=True)
class StreamPosition:
    """What a lake has of one stream.

    Attributes:
        end: everything up to this ID was copied.
        rows: how many entries were copied, and not erased from the lake since.
        erased: how many entries were erased from the lake.
        added: how many entries were ever added to the stream, if all of them are up to `end`; None
            if that is not known.
        sequence: the highest sequence of its segments that were planned.
        gone: it was deleted, and a run went on although nobody knows which entries it had then.
    """

    key: bytes
    end: StreamId
    rows: int = 0
    erased: int = 0
    added: int | None = None
    sequence: int = 0
    gone: bool = False

    @property
    def absent(self) -> int:
        """Return how many entries were deleted or trimmed before they could be copied."""
        return 0 if self.added is None else max(0, self.added - self.rows - self.erased)


@dataclass(frozen=True)
class Positions:
    """What a lake has of one store.

    Attributes:
        sealed_ms: of the member when it was read.
        path: where it was last read live, absolute; "" if it never was.
        gone: another store is there, and a run went on although nobody knows what it had then.
    """

    streams: dict[int, StreamPosition] = field(default_factory=dict)
    name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    sealed_ms: int | None = None
    path: str = ""
    gone: bool = False

    def as_json(self) -> dict[str, Any]:
        streams = [
            [number, json_bytes(one.key), str(one.end), *astuple(one)[2:]]
            for number, one in sorted(self.streams.items())
        ]
        told = {"name": self.name, "labels": self.labels, "sealed_ms": self.sealed_ms}
        return {"streams": streams, **told, "path": self.path, "gone": self.gone}

    @classmethod
    def from_json(cls, members: dict[str, Any]) -> Positions:
        streams = {
            number: StreamPosition(from_json(key), StreamId.parse(end), *rest)
            for number, key, end, *rest in members["streams"]
        }
        place = members.get("path", ""), members.get("gone", False)  # older lakes lack them
        return cls(streams, members["name"], members["labels"], members["sealed_ms"], *place)

    def end_of(self, number: int) -> StreamId:
        """Return up to which ID everything of a stream was copied; 0-0 for nothing."""
        found = self.streams.get(number)
        return MIN_ID if found is None else found.end

    @property
    def absent(self) -> int:
        """Return how many entries were gone before they could be copied, as far as is known."""
        return sum(one.absent for one in self.streams.values())

    def of(self, number: int, key: bytes) -> StreamPosition:
        """Return the position of a stream; that of its beginning if nothing of it was copied."""
        return self.streams.get(number, StreamPosition(key, MIN_ID))

    def with_rows(self, number: int, key: bytes, rows: int, erased: int = 0) -> Positions:
        """Return the positions with more rows of a stream, or fewer."""
        one = self.of(number, key)
        one = replace(one, rows=one.rows + rows, erased=one.erased + erased)
        return replace(self, streams={**self.streams, number: one})


def read_positions(lake: str, store: str, version: int | None) -> Positions:
    """Return the positions of a version; empty ones for None.

    Raises:
        CorruptionError: the file is missing or damaged.
    """
    if version is None:
        return Positions()
    return POSITIONS.read(lake, store, version, Positions.from_json)


# --- deleted streams, and replaced stores ---------------------------------------------------------


def replaced_stores(copied: Mapping[str, Positions], members: Iterable[Member]) -> dict[str, str]:
    """Return a sentence about each store of a lake in whose place another one is, by UUID.

    Only the path shows it: the store itself is not there to be compared with what was copied. A
    store that is among the members was moved.
    """
    there = {os.path.abspath(one.path): one.store for one in members if one.path}
    known = {one.store for one in members}
    return {
        store: f"it was at {was.path} when it was copied, and store {there[was.path]} is there "
        f"now; entries that it got since then are lost, if there were any; next: {_GO_ON}"
        for store, was in sorted(copied.items())
        if was.path in there and store not in known and not was.gone
    }


def deleted_streams(before: Positions, living: Mapping[int, bytes]) -> dict[int, str]:
    """Return a sentence about each stream of a lake that its store has no more, by number.

    The store does not record what a deleted stream had. So entries that it got since it was copied
    may be lost, until a run is told to go on.

    Args:
        living: the keys of the streams of the store, by number.
    """
    keys = set(living.values())
    return {
        number: f"it was deleted{' and created again' if was.key in keys else ''} after it was "
        f"copied up to {was.end}; entries that it got since then are lost, if there were any; "
        f"next: {_GO_ON}"
        for number, was in before.streams.items()
        if number not in living and not was.gone
    }


def streams_gone_back(before: Positions, manifest: Manifest) -> dict[int, str]:
    """Return a sentence about each stream that has less than was copied of it, by number."""
    found = {}
    for number, was in before.streams.items():
        now = manifest.streams.get(number)
        if now is None or not now.exists:
            continue
        if now.last_id < was.end or now.entries_added < (was.added or 0):
            found[number] = (
                f"it has gone back in time: it was copied up to {was.end}, and now ends at "
                f"{now.last_id}, with {now.entries_added} entries added; perhaps an older copy of "
                "the store was put back. Entries that it got since are not copied if their IDs are "
                f"not above {was.end}; next: {_GO_ON}"
            )
    return found


def without_streams(positions: Positions, numbers: Iterable[int]) -> Positions:
    """Return positions in which streams are noted as gone."""
    gone = {one: replace(positions.streams[one], gone=True) for one in numbers}
    return replace(positions, streams={**positions.streams, **gone})


# --- pieces of streams ----------------------------------------------------------------------------


def new_pieces(
    member: Member,
    manifest: Manifest,
    before: Positions,
    chosen: Callable[[bytes], bool] = lambda key: True,
) -> tuple[list[Slice], Positions]:
    """Return what a manifest has that a lake lacks, and the positions after it was copied.

    Entries above the ID up to which a stream is complete are left for later: the store may still
    publish lower ones.

    Args:
        chosen: whether the stream with a key is copied; others keep their positions.
    """
    by_stream = manifest.by_stream()
    pieces: list[Slice] = []
    streams = dict(before.streams)
    for number, stream in sorted(manifest.streams.items()):
        if not chosen(stream.key):
            continue
        was = before.of(number, stream.key)
        done = was.end
        segments = by_stream[number]
        for piece in stream_pieces(member, stream.key, segments):
            end = min(piece.end, stream.complete_to)
            record = piece.record
            assert record is not None
            late = record.origin == ADOPTED and record.sequence > was.sequence
            start = piece.start if late else max(piece.start, done.next())
            if start <= end:
                late = late and start <= done
                if late or (start, end) != (piece.start, piece.end):
                    piece = replace(piece, start=start, end=end, late=late)
                pieces.append(piece)
        whole = stream.exists and stream.complete_to == stream.last_id
        streams[number] = replace(
            was,
            key=stream.key,
            end=max(done, stream.complete_to),
            added=stream.entries_added if whole else was.added,
            sequence=max([was.sequence, *(one.record.sequence for one in segments)]),
            gone=was.gone or not (stream.exists or number in before.streams),
        )
    told = (member.name, member.labels, member.sealed_ms)
    return pieces, Positions(streams, *told, before.path, before.gone)


def stream_pieces(member: Member, key: bytes, segments: Sequence[RemoteSegment]) -> Iterator[Slice]:
    """Yield all entries of a stream's segments as pieces, ascending and without overlaps."""
    for first, last, one in parts_of(segments):
        yield replace(whole_segment(member, key, one), start=first, end=last)


def whole_segment(member: Member, key: bytes, one: RemoteSegment) -> Slice:
    record, number = one.record, one.record.stream_number
    size, place = (record.raw_bytes, record.entries), (member.store, member.uri)
    ends = (record.first_id, record.last_id)
    return Slice(key, number, *ends, *size, *place, record=record, sealed=one.sealed)


def without_erased(
    pieces: Iterable[Slice], erased: Mapping[int, tuple[StreamId, ...]]
) -> Iterator[Slice]:
    """Yield pieces of a store that name the IDs that were erased from the lake."""
    for one in pieces:
        ids = erased.get(one.number, ())
        inside = ids[bisect_left(ids, one.start) : bisect_right(ids, one.end)]
        yield replace(one, erased=inside) if inside else one


# --- pieces on the way ----------------------------------------------------------------------------


def pack_groups(pieces: Iterable[Any], group_bytes: int = GROUP_BYTES) -> list[tuple[int, bytes]]:
    """Return what has a `size_bytes` in groups for transport: (bytes, the group, packed)."""
    return [
        (sum(one.size_bytes for one in group), zlib.compress(pickle.dumps(group), 1))
        for group in pack([*pieces], lambda piece: piece.size_bytes, group_bytes)
    ]


def unpack_group(packed: bytes) -> tuple[Any, ...]:
    found: tuple[Any, ...] = pickle.loads(zlib.decompress(packed))
    return found
