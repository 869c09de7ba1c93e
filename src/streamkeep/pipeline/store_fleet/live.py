"""The plan of a store that a fleet reads live, on the driver: its streams and their history."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.manifest import iter_segments
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.segment.manifest import ADOPTED, SegmentRecord
from streamkeep.pipeline.options import ARCHIVE, AUTO, ReadOptions
from streamkeep.pipeline.source.offsets import Position
from streamkeep.pipeline.source.pins import newest_archived, pin_between
from streamkeep.pipeline.source.plan import counted, cut_stream
from streamkeep.pipeline.source.slices import Pin, Slice
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.tail_export import cut_exported
from streamkeep.pipeline.source.triggers import check_nothing_lost
from streamkeep.pipeline.store_fleet.pieces import (
    Member,
    Positions,
    deleted_streams,
    without_streams,
)

SLICE_BYTES: Final = 8 << 20


def plan_live(
    member: Member,
    before: Positions,
    options: ReadOptions,
    problems: dict[tuple[int, bytes], str] | None = None,
    folder: str | None = None,
) -> tuple[list[Slice], Positions]:
    """Return what a store has that a lake lacks, and the positions after it was copied.

    Args:
        options: which streams are copied, and whether one that has lost entries is.
        problems: gets the error of each stream that cannot be planned, which keeps its position;
            without it, the first error is raised.
        folder: with `tailExport`, that of the nodes that executors cannot reach.
    """
    pieces: list[Slice] = []
    streams = dict(before.streams)
    with reading(member.path) as store, store.snapshot() as snapshot:
        txn = snapshot.txn
        archived: dict[int, SegmentRecord] = {}  # the last segment of each stream
        sequences: dict[int, int] = {}
        late: dict[int, list[SegmentRecord]] = {}
        for one in iter_segments(txn):
            number = one.stream_number
            archived[number] = one
            sequences[number] = max(sequences.get(number, 0), one.sequence)
            was = before.of(number, one.key)
            if one.origin == ADOPTED and one.sequence > was.sequence and one.first_id <= was.end:
                late.setdefault(number, []).append(one)
        living = {number: key for key, number in iter_keys(txn)}
        for number, key, source in _streams(living, archived, options.source):
            if not options.wants(key):
                continue
            was = before.of(number, key)
            added: int | None
            try:
                if source == AUTO and was.end > MIN_ID and options.fail_on_data_loss:
                    position = Position(number, was.end, was.added, was.end, was.added)
                    check_nothing_lost(txn, options, key, position)
                if source == AUTO:
                    record = txn.load_numbered(number, key).record
                    end, added = StreamId(*record.last_id()), record.entries_added
                else:
                    end, added = newest_archived(txn, number), was.added
                mine = []
                how = replace(options, path=member.path, source=source)
                for one in late.get(number, ()):
                    last = min(one.last_id, was.end)
                    pin = Pin(key, number, one.first_id, last, member.store)
                    mine += [replace(new, late=True) for new in _cut(store, txn, pin, how, folder)]
                if end > was.end:
                    pin = pin_between(options, key, number, end)
                    start = max(pin.start, was.end.next())
                    pin = replace(pin, start=start, store=member.store)
                    mine += _cut(store, txn, pin, how, folder)
            except StreamkeepError as error:
                if problems is None:
                    raise
                problems[number, key] = str(error)
                continue
            pieces += mine
            streams[number] = replace(
                was,
                key=key,
                end=max(was.end, end),
                added=added,
                sequence=max(was.sequence, sequences.get(number, 0)),
                gone=was.gone or (source == ARCHIVE and number not in before.streams),
            )
    path = os.path.abspath(member.path)
    positions = Positions(streams, member.name, member.labels, path=path)
    gone = {
        number: text
        for number, text in deleted_streams(before, living).items()
        if options.wants(before.streams[number].key)
    }
    if not options.fail_on_data_loss:
        positions = without_streams(positions, gone)
    elif problems is not None:
        problems |= {(number, before.streams[number].key): text for number, text in gone.items()}
    return pieces, positions


def _cut(
    store: Store[bytes], txn: Txn, pin: Pin, options: ReadOptions, folder: str | None
) -> list[Slice]:
    if folder is not None:
        return cut_exported(store, txn, options, (pin,), SLICE_BYTES, folder)
    return [counted(txn, one) for one in cut_stream(txn, pin, options, SLICE_BYTES)]


def _streams(
    living: Mapping[int, bytes], archived: Mapping[int, SegmentRecord], source: str
) -> Iterator[tuple[int, bytes, str]]:
    """Yield number, key and source of each stream; of deleted ones, what is archived."""
    for number, key in living.items():
        yield number, key, source
    for number, last in sorted(archived.items()):
        if number not in living:
            yield number, last.key, ARCHIVE
