"""The values that say what is read: a pinned range of a stream, and the slices that it is cut into.

A *slice* is a range of IDs of one stream, with its size in bytes. Other modules cut small slices in
order of ID, from the nodes of a live store, from a manifest, or from the blocks of large segments.
`plan` packs them to partitions of about equal size, in order: a partition holds neighbouring
slices, so its entries ascend, and a stream that is read with one partition is in order.

The driver makes slices and sends them to executors. This module needs neither Spark nor LMDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.options import AUTO

if TYPE_CHECKING:
    from streamkeep.format.segment.manifest import SegmentRecord


class Count(NamedTuple):
    """The number of entries in a range, and of the nodes that have some of them."""

    entries: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Pin:
    """The range to read of one stream, fixed when the DataFrame is made; both IDs are included."""

    key: bytes
    number: int
    start: StreamId
    end: StreamId
    store: str = ""  # its UUID
    planned: Count | None = None  # what there was in a store when the range was fixed


@dataclass(frozen=True, slots=True)
class Slice:
    """The entries of one stream from `start` to `end`, both included, and where they are.

    Attributes:
        number: of the stream in its store; a stream that was deleted and created again has another.
        size_bytes: about how many bytes a read takes.
        entries: about how many entries there are; 0 if unknown.
        store: the UUID of the store.
        path: of the store that is read live; of the folder of `segment`; or the URI under which
            archives are, for `record`.
        source: what of a live store is read; see `StreamNodes`.
        segment: the file that holds all of them, relative to the folder.
        record: the row of the segment in an object store that holds all of them.
        sealed: that segment is one of the live entries.
        planned: what a live store had when the read was planned; None for a file, which either is
            complete or gives an error.
        strict: raise an error if some of that is gone, instead of counting it.
        late: its segment was adopted after its range was copied, so a lake may have some of it.
        erased: IDs of the range that were erased from the lake.
    """

    key: bytes
    number: int
    start: StreamId
    end: StreamId
    size_bytes: int
    entries: int = 0
    store: str = ""
    path: str = ""
    source: str = AUTO
    segment: str | None = None
    record: SegmentRecord | None = None
    sealed: bool = False
    planned: Count | None = None
    strict: bool = True
    late: bool = False
    erased: tuple[StreamId, ...] = ()


def join(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Return the slices of a partition, with neighbours in one place joined."""
    joined: list[Slice] = []
    for one in slices:
        last = joined[-1] if joined else None
        if last is not None and _continues(last, one):
            size, entries = last.size_bytes + one.size_bytes, last.entries + one.entries
            joined[-1] = replace(last, end=one.end, size_bytes=size, entries=entries)
        else:
            joined.append(one)
    return tuple(joined)


def _continues(last: Slice, one: Slice) -> bool:
    """Return whether `one` directly follows `last` in the same place."""
    places = [
        (part.store, part.number, part.key, part.path, part.segment, part.record)
        for part in (last, one)
    ]
    in_file = one.segment is not None or one.record is not None
    return places[0] == places[1] and (in_file or last.end.next() == one.start)
