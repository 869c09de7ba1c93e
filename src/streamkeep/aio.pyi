"""Types of aio.py, made from the sources: `make docs`."""

from pathlib import Path
from typing import Literal, overload

from streamkeep.engine.api.async_commands import AsyncScanEntry
from streamkeep.engine.api.async_store import AsyncPipeline, AsyncStore
from streamkeep.engine.api.views import Sync
from streamkeep.engine.crash_recovery.state import WayName
from streamkeep.engine.system.modes import Group
from streamkeep.engine.system.owners import Trusted
from streamkeep.jobs.async_queue import AsyncQueue as Queue

__all__ = ["AsyncPipeline", "AsyncScanEntry", "AsyncStore", "Queue", "open"]

@overload
async def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    read_durable: bool = False,
    force_recovery: WayName | None = None,
    create: bool = True,
    decode_responses: Literal[False] = False,
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
    archive_every: float | None = None,
    retired_max_bytes: int | None = None,
    trust_owners: Trusted = (),
    mode: int | None = None,
    group: Group | None = None,
    lease: bool = True,
) -> AsyncStore[bytes]: ...
@overload
async def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    read_durable: bool = False,
    force_recovery: WayName | None = None,
    create: bool = True,
    decode_responses: Literal[True],
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
    archive_every: float | None = None,
    retired_max_bytes: int | None = None,
    trust_owners: Trusted = (),
    mode: int | None = None,
    group: Group | None = None,
    lease: bool = True,
) -> AsyncStore[str]: ...
@overload
async def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    read_durable: bool = False,
    force_recovery: WayName | None = None,
    create: bool = True,
    decode_responses: bool,
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
    archive_every: float | None = None,
    retired_max_bytes: int | None = None,
    trust_owners: Trusted = (),
    mode: int | None = None,
    group: Group | None = None,
    lease: bool = True,
) -> AsyncStore[bytes] | AsyncStore[str]: ...
