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
from math import inf
from shutil import rmtree
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming import datasource
from pyspark.sql.types import StructType

from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import NoSuchGroupError
from streamkeep.pipeline.options import LIVE, ReadOptions
from streamkeep.pipeline.source import offsets, triggers
from streamkeep.pipeline.source.losses import DataLossError, new_notes, noted_losses
from streamkeep.pipeline.source.offsets import Positions
from streamkeep.pipeline.source.pins import absent_keys
from streamkeep.pipeline.source.plan import plan_store
from streamkeep.pipeline.source.reader import SlicePartition, SliceReader
from streamkeep.pipeline.source.slices import Pin
from streamkeep.pipeline.source.stores import reading
from streamkeep.pipeline.source.stream_nodes import stream_numbered
from streamkeep.pipeline.source.triggers import TriggerStream
from streamkeep.pipeline.storage.places import new_folder, remove_folder


def set_group_positions(store: Store[bytes], group: bytes, positions: Positions) -> None:
    """Set last_delivered_id and entries_read of the group on each stream; make missing groups.

    XINFO GROUPS then shows the lag in live entries, as for any group.
    """
    for key, position in positions.items():
        with store.snapshot() as snapshot:
            stream = snapshot.txn.find_stream(key)
            if stream is None or stream.number != position.number:
                continue
            entries_left = TriggerStream(snapshot.txn, stream, LIVE).entries_after(position.id)
            read = stream.record.entries_added - entries_left
        try:
            store.xgroup_setid(key, group, str(position.id), entries_read=read)
        except NoSuchGroupError:
            store.xgroup_create(key, group, str(position.id), entries_read=read)


_log = logging.getLogger(__name__)


def _up_to(bound: offsets.Positions, positions: offsets.Positions) -> offsets.Positions:
    """Return positions, advanced to those of a bound."""
    newest = dict(positions)
    for key, end in bound.items():
        start = positions.get(key, offsets.BEGINNING)
        if end.id > start.id or end.number != start.number:
            newest[key] = end
    return newest


class StreamkeepStreamReader(
    SliceReader, DataSourceStreamReader, datasource.SupportsTriggerAvailableNow
):
    """Plans micro-batches on the driver, and reads their partitions in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # The store, and where availableNow ends.
        self._bound: tuple[str, offsets.Positions] | None = None
        self._planned: offsets.Positions = {}
        self._start: offsets.Positions = {}
        self._lost: dict[tuple[bytes, int, StreamId], int] = {}  # found by the driver, after an ID
        self._notes = new_notes()
        self._group_store: Store[bytes] | None = None
        self._exports: list[tuple[dict[str, Any], str]] = []  # of unfinished batches

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_group_store": None}  # tasks do not write the group

    # --- offsets ----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins.

        Raises:
            DataLossError: it is to begin at an ID, and entries from there on were trimmed.
        """
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            positions = triggers.first_positions(snapshot.txn, self.options)
            for key, position in positions.items():
                error = triggers.start_gone(snapshot.txn, self.options, key, position.number)
                if error is not None:
                    self._lose(offsets.BEGINNING, error)
            for sentence in absent_keys(self.options, dict(keys.iter_keys(snapshot.txn))):
                _log.warning(
                    "%s (the query reads it from its beginning once it is there)", sentence
                )
            offset = offsets.encode_offset(store.uuid, positions)
        _log.info("a new query on %s begins at %s", self.options.path, offset)
        return offset

    def getDefaultReadLimit(self) -> datasource.ReadLimit:
        if self.options.max_entries is not None:
            return datasource.ReadMaxRows(self.options.max_entries)
        if self.options.max_bytes is not None:
            return datasource.ReadMaxBytes(self.options.max_bytes)
        return datasource.ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: datasource.ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        was, positions = offsets.decode_offset(start)
        budget = triggers.Budget()
        if not isinstance(limit, datasource.ReadAllAvailable):
            most = self.options.max_entries, self.options.max_bytes
            budget = triggers.Budget(*(inf if one is None else one for one in most))
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            txn = snapshot.txn
            positions, losses = triggers.resumed(
                txn, self.options, was or store.uuid, store.uuid, positions
            )
            for position, error in losses:
                self._lose(position, error)
            if self._bound is not None and self._bound[0] != store.uuid:
                self._bound = store.uuid, triggers.newest_positions(txn, self.options, {})
            bound = None
            if self._bound is not None:
                bound = triggers.under_present_keys(txn, self.options, self._bound[1])
            if budget != triggers.Budget():
                newest = triggers.limited_positions(txn, self.options, positions, budget, bound)
            elif bound is None:
                newest = triggers.newest_positions(txn, self.options, positions)
            else:
                newest = _up_to(bound, positions)
            self._start, self._planned = positions, newest
            return offsets.encode_offset(store.uuid, newest)

    def _lose(self, position: offsets.Position, error: DataLossError) -> None:
        """Raise an error about lost entries, or count and log it, as the options say."""
        if self.options.fail_on_data_loss:
            raise error
        loss = error.key, position.number, position.id  # which may be found again
        if self._lost.get(loss) != error.lost:
            _log.warning("%s", error)
        self._lost[loss] = error.lost

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present end of the streams, where the query will end."""
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            self._bound = store.uuid, triggers.newest_positions(snapshot.txn, self.options, {})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the lag of the query, which `lastProgress` shows as latestOffset."""
        lost = noted_losses(self._notes)
        for (key, _, _), count in self._lost.items():
            lost[key] += count
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            return triggers.report(snapshot.txn, self.options, self._start, self._planned, lost)

    # --- one micro-batch --------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SlicePartition]:
        folder = None
        if self.options.tail_export is not None:
            folder = new_folder(self.options.tail_export)
            self._exports.append((end, folder))
        with reading(self.options.path) as store, store.snapshot() as snapshot:
            pins = self._pins(store.uuid, snapshot.txn, start, end)
            parts = plan_store(store, snapshot.txn, self.options, pins, folder)
        return [SlicePartition(part, self._notes) for part in parts]

    def _pins(
        self, store: str, txn: Txn, start: dict[str, Any], end: dict[str, Any]
    ) -> tuple[Pin, ...]:
        """Return the ranges between two offsets; raise or log if entries in them are lost."""
        was, begins = offsets.decode_offset(start)
        planned, ends = offsets.decode_offset(end)
        known = {one.number: one for one in begins.values() if was == planned}
        pins = []
        for key, last in ends.items():
            met = last.number not in known
            first = offsets.Position(last.number, MIN_ID, 0, next=last.first)
            begin = known.get(last.number, first)
            stream = stream_numbered(txn, last.number, key)
            if stream is None or store != planned:
                if last.id > begin.id:
                    self._lose(begin, triggers.batch_gone(key, begin, last))
                continue
            try:
                triggers.check_same_stream(txn, key, last)
                if not met or last.first is not None:  # else all was lost before it was met
                    triggers.check_nothing_trimmed(txn, self.options, key, begin)
            except DataLossError as error:
                self._lose(begin, error)
            if last.id > begin.id:
                pins.append(Pin(key, last.number, begin.id.next(), last.id, planned))
        return tuple(pins)

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
        if self._group_store is None:
            self._group_store = Store(self.options.path, sync="none", create=False, lease=False)
        store, positions = offsets.decode_offset(end)
        if self._group_store.uuid == store:
            set_group_positions(self._group_store, group, positions)

    def stop(self) -> None:
        self._remove_exports(len(self._exports))
        rmtree(self._notes, ignore_errors=True)
        if self._group_store is not None:
            self._group_store.close()
            self._group_store = None

    def _remove_exports(self, count: int) -> None:
        for _, folder in self._exports[:count]:
            remove_folder(folder)
        del self._exports[:count]
