"""The batch reader of a fleet: `spark.read.format("streamkeep").option("fleet", URI)`.

The stores, and the versions of their archives, are those at the first query. The manifests are read
where Spark plans, by several threads; a task gets only its own pieces. Everything in segments is
shown, and everything in stores on a path, archived or live.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from streamkeep.arrow.keys import key_text
from streamkeep.format.core.entry import MAX_ID
from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.pipeline.distribution.packing import pack
from streamkeep.pipeline.options import LIVE, OptionError, ReadOptions
from streamkeep.pipeline.source.pins import chosen_keys, pin_between
from streamkeep.pipeline.source.plan import target_of
from streamkeep.pipeline.source.reader import SlicePartition, SliceReader
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.store_fleet.executor import read_manifest
from streamkeep.pipeline.store_fleet.live import plan_live
from streamkeep.pipeline.store_fleet.members import find_members
from streamkeep.pipeline.store_fleet.pieces import Member, Positions, stream_pieces

_AT_ONCE: Final = 32


class FleetReader(SliceReader, DataSourceReader):
    """Plans a read of a fleet, and reads its partitions in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.source == LIVE:
            raise OptionError("a fleet has archives; next: leave out source=live")
        super().__init__(options, schema)

    def partitions(self) -> list[SlicePartition]:
        """Return the partitions: pieces of about equal size, by store, stream and ID."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = list(threads.map(self._pieces_of, find_members(self.options.path)))
        known = {key for _, keys in found for key in keys}
        for key in self.options.keys or ():
            if key not in known:
                where = self.options.path
                raise NoSuchKeyError(f"{where}: no store has a stream {key_text(key)!r}")
        pieces = [one for mine, _ in found for one in self._chosen(mine)]
        total, entries = sum(one.size_bytes for one in pieces), sum(one.entries for one in pieces)
        target = target_of(self.options, total, entries)
        return [SlicePartition(one) for one in pack(pieces, lambda one: one.size_bytes, target)]

    def _pieces_of(self, member: Member) -> tuple[list[Slice], list[bytes]]:
        """Return what a store has, and the keys of its streams."""
        if member.path:
            slices, positions = plan_live(member, Positions(), self.options)
            return slices, [one.key for one in positions.streams.values()]
        member, manifest = read_manifest(member)
        by_stream = manifest.by_stream()
        pieces = [
            piece
            for number, stream in sorted(manifest.streams.items())
            for piece in stream_pieces(member, stream.key, by_stream[number])
        ]
        return pieces, [one.key for one in manifest.streams.values()]

    def _chosen(self, pieces: list[Slice]) -> Iterator[Slice]:
        """Yield what the options ask for: streams by key, and ranges of IDs."""
        keys = set(chosen_keys(self.options, list({one.key for one in pieces}), all_there=False))
        for piece in pieces:
            if piece.key in keys:
                pin = pin_between(self.options, piece.key, piece.number, MAX_ID)
                start, end = max(piece.start, pin.start), min(piece.end, pin.end)
                if start <= end:
                    yield replace(piece, start=start, end=end)
