"""The plan of a store that a fleet reads live, on the driver: its streams and their history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.model.manifest import iter_segments
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.pipeline.fleet.pieces import Member, Piece, Positions, StreamPosition
from streamkeep.pipeline.options import ARCHIVE, AUTO
from streamkeep.pipeline.source.plan import cut_stream
from streamkeep.pipeline.source.slices import Pin
from streamkeep.pipeline.source.stores import reading

_SLICE_BYTES: Final = 16 << 20


def plan_live(member: Member, before: Positions) -> tuple[list[Piece], Positions]:
    """Return what a store has that a lake lacks, and the positions after it was copied."""
    pieces: list[Piece] = []
    streams = dict(before.streams)
    with reading(member.path) as store, store.snapshot() as snapshot:
        txn = snapshot.txn
        sequence = max([before.sequence, *(one.sequence for one in iter_segments(txn))])
        for number, key, last, source in _streams(txn):
            done = before.end_of(number)
            if last > done:
                pin = Pin(key, number, done.next(), last)
                for one in cut_stream(txn, pin, source, _SLICE_BYTES):
                    pieces.append(
                        Piece(
                            member.store,
                            number,
                            key,
                            one.start,
                            one.end,
                            one.size_bytes,
                            one.entries,
                            path=member.path,
                            source=source,
                        )
                    )
            was = streams.get(number, StreamPosition(key, MIN_ID))
            streams[number] = StreamPosition(key, max(done, last), was.rows, was.erased)
    return pieces, Positions(streams, sequence, member.name, member.labels)


def _streams(txn: Txn) -> Iterator[tuple[int, bytes, StreamId, str]]:
    """Yield number, key, last ID and source of each stream; of deleted ones, what is archived."""
    living = set()
    for key, number in iter_keys(txn):
        living.add(number)
        record = txn.load_numbered(number, key).record
        yield number, key, StreamId(record.last_ms, record.last_seq), AUTO
    gone: dict[int, tuple[bytes, StreamId]] = {}
    for segment in iter_segments(txn):
        if segment.stream_number not in living:
            gone[segment.stream_number] = segment.key, segment.last_id
    for number, (key, last) in sorted(gone.items()):
        yield number, key, last, ARCHIVE
