"""The plan of a batch read: pinned ranges, cut into slices and packed to partitions.

Runs on the driver. Slices are much smaller than partitions, so that partitions have about the same
size.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from streamkeep.engine.api.store import Store
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.distribution.packing import pack, partition_bytes
from streamkeep.pipeline.options import LIVE, ReadOptions
from streamkeep.pipeline.source.losses import DataLossError, lost_since_plan
from streamkeep.pipeline.source.pins import pin_streams
from streamkeep.pipeline.source.segment_folder import cut_folder, list_segments, pin_folder
from streamkeep.pipeline.source.slices import Count, Pin, Slice, join
from streamkeep.pipeline.source.stores import StreamReplacedError, is_folder, reading, stream_nodes
from streamkeep.pipeline.source.tail_export import cut_exported
from streamkeep.pipeline.source.triggers import start_gone
from streamkeep.pipeline.storage.places import new_folder, sweep

_log = logging.getLogger(__name__)


def pin_now(options: ReadOptions) -> tuple[Pin, ...]:
    """Return the ranges of a batch read, fixed at this moment."""
    if is_folder(options.path):
        return pin_folder(options)
    with reading(options.path) as store, store.snapshot() as snapshot:
        txn = snapshot.txn
        pins = pin_streams(txn, options)
        for pin in pins if options.source != LIVE else ():  # who reads live entries wants no others
            error = start_gone(txn, options, pin.key, pin.number)
            if error is not None and options.fail_on_data_loss:
                raise error
            if error is not None:
                _log.warning("%s", error)
        return tuple(
            replace(pin, store=store.uuid, planned=_count(txn, pin, options.source)) for pin in pins
        )


def plan_pins(options: ReadOptions, pins: tuple[Pin, ...]) -> list[tuple[Slice, ...]]:
    """Return the partitions of the pinned ranges."""
    if is_folder(options.path):
        segments = list_segments(options.path)
        whole = cut_folder(options.path, segments, pins, None)
        total, entries = sum(one.size_bytes for one in whole), sum(one.entries for one in whole)
        target = target_of(options, total, entries)
        slices = cut_folder(options.path, segments, pins, max(1, target // 8))
        return packed(slices, target, options)
    with reading(options.path) as store, store.snapshot() as snapshot:
        for pin in pins:
            check_pin(snapshot.txn, store.uuid, pin, options)
        return plan_store(store, snapshot.txn, options, pins)


def plan_store(
    store: Store[bytes],
    txn: Txn,
    options: ReadOptions,
    pins: tuple[Pin, ...],
    folder: str | None = None,
) -> list[tuple[Slice, ...]]:
    """Return the partitions of the pinned ranges of a store.

    Args:
        txn: in which the caller has seen that nothing of the ranges is lost: what is trimmed later
            is missed by the tasks.
        folder: with `tailExport`, the folder for nodes that executors cannot reach; by default a
            new one.
    """
    there = [pin for pin in pins if pin.start <= pin.end]
    nodes = ((stream_nodes(txn, pin.key, pin.number, options.source), pin) for pin in there)
    total = sum(stream.size_bytes(pin.start, pin.end) for stream, pin in nodes)
    entries = sum(pin.planned.entries for pin in pins if pin.planned is not None)
    target = target_of(options, total, entries)
    size = max(1, target // 8)
    if options.tail_export is None:
        slices = [one for pin in pins for one in cut_stream(txn, pin, options, size)]
        parts = packed(slices, target, options)
        return [tuple(counted(txn, one) for one in part) for part in parts]
    sweep(options.tail_export)
    folder = folder or new_folder(options.tail_export)
    slices = cut_exported(store, txn, options, pins, size, folder)
    _log.info("entries outside of segments of %s: exported to %s", options.path, folder)
    return packed(slices, target, options)


def target_of(options: ReadOptions, total: int, entries: int) -> int:
    """Return how many bytes of `total` a partition should have, also with a limit of entries."""
    target = partition_bytes(total, min_partitions=options.min_partitions)
    if options.max_records is None or not entries:
        return target
    # Of so many entries of the mean size: `packed` can only leave slices apart.
    return max(1, min(target, options.max_records * total // entries))


def check_pin(txn: Txn, store: str, pin: Pin, options: ReadOptions) -> None:
    """Raise or log an error if entries are gone since the range was fixed.

    Raises:
        DataLossError: they were trimmed.
        StreamReplacedError: another stream, or another store, is there now.
    """
    if pin.planned is None:
        return
    if pin.store != store:
        raise StreamReplacedError(
            f"{options.path}: store {pin.store} was there when the DataFrame was loaded, and now "
            f"store {store} is; next: load() the DataFrame again"
        )
    there = _count(txn, pin, options.source)
    if there.entries >= pin.planned.entries:
        return
    lost = lost_since_plan(txn, pin, *there)
    if lost is None:
        return
    if options.fail_on_data_loss:
        raise DataLossError(lost, pin.key, pin.planned.entries - there.entries)
    _log.warning("%s", lost)


def _count(txn: Txn, one: Pin | Slice, source: str) -> Count:
    if one.start > one.end:
        return Count(0, 0)
    return stream_nodes(txn, one.key, one.number, source).count(one.start, one.end)


def packed(slices: list[Slice], target: int, options: ReadOptions) -> list[tuple[Slice, ...]]:
    """Return slices as partitions of about `target` bytes, with neighbours joined."""
    most = options.max_records

    def is_full(group: list[Slice], following: Slice) -> bool:
        return most is not None and sum(one.entries for one in (*group, following)) > most

    least = options.min_partitions or 1
    partitions = pack(slices, lambda one: one.size_bytes, target, least=least, is_full=is_full)
    return [join(part) for part in partitions]


def counted(txn: Txn, one: Slice) -> Slice:
    """Return a slice with the number of its entries, which its task compares with what it reads."""
    return replace(one, planned=_count(txn, one, one.source))


def cut_stream(txn: Txn, pin: Pin, options: ReadOptions, slice_bytes: int) -> list[Slice]:
    """Return a pinned range as slices of about `slice_bytes`, cut between nodes."""
    if pin.start > pin.end:
        return []
    parts: list[tuple[StreamId, StreamId, int, int]] = []
    start, size, entries, any_there = pin.start, 0, 0, False
    stream = stream_nodes(txn, pin.key, pin.number, options.source)
    for mark in stream.marks(pin.start, pin.end, slice_bytes):
        if size and size + mark.size_bytes // 2 > slice_bytes and mark.id > start:
            parts.append((start, mark.id.previous(), size, entries))
            start, size, entries = mark.id, 0, 0
        size += mark.size_bytes
        entries += mark.entries
        any_there = True
    if any_there:
        parts.append((start, pin.end, size, entries))
    strict = options.fail_on_data_loss
    return [
        Slice(pin.key, pin.number, *part, pin.store, options.path, options.source, strict=strict)
        for part in parts
    ]
