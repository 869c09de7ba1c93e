"""Types of async_methods.py, made from the sources: `make docs`."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Generic, Literal

import duckdb
import pandas
import polars
import pyarrow

from streamkeep.engine.api.admin_commands import AdminCommands, PathLike
from streamkeep.engine.api.command_base import (
    Condition,
    Id,
    Key,
    RangeId,
)
from streamkeep.engine.api.follow import Stop
from streamkeep.engine.api.frame_commands import Columns, Errors, Repeated, Types
from streamkeep.engine.archive import adopt, archiver, restore, segments, upkeep
from streamkeep.engine.store.durability import Durability
from streamkeep.engine.system.progress import Progress
from streamkeep.format.core.entry import DeliveredEntry, Entry, StreamId, Text
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.remote import RemoteSetting
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, Segment

class AsyncMethods(Generic[Text]):
    """The other methods of the store, as coroutines."""

    _store: AdminCommands[Text]

    async def durability(self) -> Durability: ...
    async def sync(self) -> None: ...
    async def maintain(self) -> upkeep.MaintenanceReport: ...
    async def archive(
        self,
        *,
        wait: bool = True,
        options: archiver.ArchiveOptions = archiver.DEFAULT_OPTIONS,
        progress: Progress | None = None,
        to: PathLike | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        seal: bool = False,
    ) -> archiver.ArchiveReport: ...
    async def remote_archive(self) -> RemoteSetting | None: ...
    async def archived_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: RangeId = "-",
        end: RangeId = "+",
    ) -> list[SegmentRecord]: ...
    async def archived_streams(self) -> list[segments.ArchivedStream]: ...
    async def open_segment(self, record: SegmentRecord) -> Segment: ...
    def verify_archive(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        progress: Progress | None = None,
    ) -> AsyncIterator[segments.Verified]: ...
    async def restore_archive(
        self,
        key: Key,
        source: Key | None = None,
        *,
        from_store: AsyncMethods[bytes] | AsyncMethods[str] | None = None,
        stream_number: int | None = None,
        start: RangeId = "-",
        end: RangeId = "+",
        progress: Progress | None = None,
    ) -> restore.RestoreReport: ...
    def adopt_segments(
        self,
        *paths: PathLike,
        key: Key | None = None,
        progress: Progress | None = None,
        max_block_bytes: int = MAX_BLOCK_BYTES,
    ) -> AsyncIterator[adopt.Adopted]: ...
    def export_segments(
        self,
        folder: PathLike,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: RangeId = "-",
        end: RangeId = "+",
        progress: Progress | None = None,
    ) -> AsyncIterator[Path]: ...
    async def drop_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        before: RangeId | None = None,
    ) -> list[SegmentRecord]: ...
    async def erase(
        self, key: Key, *ids: Id, timeout: float = 60.0, progress: Progress | None = None
    ) -> int: ...
    async def find_remains(self, key: Key, where: Condition) -> list[StreamId]: ...
    def follow(
        self,
        key: Key,
        start: RangeId = "$",
        *,
        count: int | None = 100,
        block: int | None = 0,
        stop: Stop | None = None,
        history: bool = False,
    ) -> AsyncIterator[Entry[Text]]: ...
    def consume(
        self,
        key: Key,
        groupname: Key,
        consumername: Key,
        *,
        count: int | None = 10,
        block: int | None = 0,
        claim_min_idle_time: int | None = None,
        noack: bool = False,
        stop: Stop | None = None,
        claim: Literal["dead"] | None = None,
    ) -> AsyncIterator[DeliveredEntry[Text]]: ...
    async def to_arrow(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
    ) -> pyarrow.Table: ...
    async def to_arrow_batches(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
        rows: int = 65536,
    ) -> pyarrow.RecordBatchReader: ...
    async def to_pandas(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
    ) -> pandas.DataFrame: ...
    async def to_polars(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
    ) -> polars.DataFrame: ...
    async def to_duckdb(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> duckdb.DuckDBPyRelation: ...
    async def from_arrow(
        self,
        key: Key,
        data: object,
        *,
        id_column: str | None = None,
        columns: Columns | None = None,
    ) -> int: ...
