"""The Spark data source `streamkeep`: streaming reads.

A micro-batch is a range of IDs per stream. `latestOffset` chooses it, and Spark writes it into its
checkpoint before anything is read. Reading a range again gives the same entries, so a failed or
interrupted batch is simply read again. No consumer group takes part: the store holds nothing of a
query's progress, two queries do not disturb each other, and no entry is lost with a task.

With `groupName`, the progress is copied to a group, for users of XINFO GROUPS: its
last_delivered_id and entries_read are set when Spark reports a batch as finished, at the beginning
of the next one. The group is written and never read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from streamkeep.format.core.entry import MIN_ID
from streamkeep.pipeline.distribution.quick_ack import QuickAck
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.group_positions import set_group_positions
from streamkeep.pipeline.source.loss_notes import new_notes, noted_losses, remove_notes
from streamkeep.pipeline.source.losses import DataLossError
from streamkeep.pipeline.source.offsets import (
    BEGINNING,
    Position,
    Positions,
    decode_offset,
    encode_offset,
)
from streamkeep.pipeline.source.plan import plan_pins
from streamkeep.pipeline.source.reader import SlicePartition, check_schema, read_partition
from streamkeep.pipeline.source.slices import Pin
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.triggers import (
    Budget,
    batch_gone,
    check_nothing_lost,
    deleted_streams,
    first_positions,
    limited_positions,
    newest_positions,
    report,
)
from streamkeep.pipeline.storage.folders import new_folder, remove_folder

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.pipeline.source.slices import Pin

_log = logging.getLogger(__name__)


class StreamkeepStreamReader(QuickAck, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, and reads their partitions in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._bound: Positions | None = None  # where a query with availableNow ends
        self._planned: Positions = {}
        self._start: Positions = {}
        self._lost = Counter[bytes]()  # found by the driver; a loss of unknown size counts as one
        self._notes = new_notes()
        self._group_store: Store[bytes] | None = None
        self._exports: list[tuple[dict[str, Any], str]] = []  # of unfinished batches
        check_schema(schema, options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_group_store": None}  # tasks do not write the group

    # --- offsets ----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins."""
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            positions = first_positions(snapshot.txn, self.options)
        offset = encode_offset(positions)
        _log.info("a new query on %s begins at %s", self.options.path, offset)
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a trigger from the options."""
        if self.options.max_entries is not None:
            return ReadMaxRows(self.options.max_entries)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        positions = self._start = decode_offset(start)
        budget = Budget(None, None)
        if not isinstance(limit, ReadAllAvailable):
            budget = Budget(self.options.max_entries, self.options.max_bytes)
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            if budget == Budget(None, None):
                newest = self._newest(snapshot.txn, positions)
            else:
                newest = limited_positions(
                    snapshot.txn, self.options, positions, budget, self._bound
                )
            for error in deleted_streams(snapshot.txn, positions):
                self._lose(error)
                newest.pop(error.key, None)
        self._planned = newest
        return encode_offset(newest)

    def _lose(self, error: DataLossError) -> None:
        """Raise an error about lost entries, or count and log it, as the options say."""
        if self.options.fail_on_data_loss:
            raise error
        self._lost[error.key] += 1 if error.lost is None else error.lost
        _log.warning("%s", error)

    def _newest(self, txn: Any, positions: Positions) -> Positions:
        if self._bound is None:
            return newest_positions(txn, self.options, positions)
        newest = dict(positions)
        for key, end in self._bound.items():
            start = positions.get(key, BEGINNING)
            if end.id > start.id or end.number != start.number:
                newest[key] = end
        return newest

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present end of the streams, where the query will end."""
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            self._bound = newest_positions(snapshot.txn, self.options, {})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the lag of the query, which `lastProgress` shows as latestOffset."""
        lost = self._lost + noted_losses(self._notes)
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            return report(snapshot.txn, self.options, self._start, self._planned, lost)

    # --- one micro-batch --------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SlicePartition]:
        """Return the partitions of a micro-batch."""
        pins = self._pins(decode_offset(start), decode_offset(end))
        folder = None
        if self.options.tail_export is not None:
            folder = new_folder(self.options.tail_export)
            self._exports.append((end, folder))
        parts = plan_pins(self.options, pins, folder)
        return [SlicePartition(part, self._notes) for part in parts]

    def _pins(self, start: Positions, end: Positions) -> tuple[Pin, ...]:
        """Return the ranges between two offsets; raise or log if entries in them are lost."""
        pins = []
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            for key, last in end.items():
                position = start.get(key, BEGINNING)
                if position.number == 0 and last.first is not None:
                    position = Position(last.number, MIN_ID, last.first)
                try:
                    check_nothing_lost(snapshot.txn, self.options, key, position)
                except DataLossError as error:
                    self._lose(error)
                begin = MIN_ID if position.number != last.number else position.id
                stream = snapshot.txn.find_stream(key)
                if last.id <= begin:
                    continue
                if stream is not None and stream.number == last.number:
                    pins.append(Pin(key, last.number, begin.next(), last.id, store.uuid))
                elif position.number in (0, last.number):
                    self._lose(batch_gone(key, begin, last))
        return tuple(pins)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the entries of a partition as record batches."""
        return read_partition(self.options, self.schema, partition)

    # --- after a micro-batch ----------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Set the group to a finished batch, and remove the files that were exported for it."""
        for at, (last, _) in enumerate(self._exports):
            if last == end:
                self._remove_exports(at + 1)
                break
        group = self.options.group
        if group is None:
            return
        from streamkeep.engine.api.store import Store

        if self._group_store is None:
            self._group_store = Store(self.options.path, sync="none", create=False, lease=False)
        set_group_positions(self._group_store, group, decode_offset(end))

    def stop(self) -> None:
        """Remove exported files and notes, and close the store of the group."""
        self._remove_exports(len(self._exports))
        remove_notes(self._notes)
        if self._group_store is not None:
            self._group_store.close()
            self._group_store = None

    def _remove_exports(self, count: int) -> None:
        for _, folder in self._exports[:count]:
            remove_folder(folder)
        del self._exports[:count]
