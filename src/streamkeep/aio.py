"""The store for asyncio: `store = await streamkeep.aio.open(path)`.

    >>> async with await streamkeep.aio.open("orders.store") as store:
    ...     await store.xadd("orders", {"sku": "7"})
    ...     async for entry in store.follow("orders", "0"):
    ...         print(entry.id, entry.fields)

`AsyncStore` has the methods of `Store`, to be awaited. A thousand tasks may block in `xread` and
`xreadgroup` at once: they take no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypedDict, overload

from typing_extensions import Unpack

from streamkeep import facade
from streamkeep.engine.api.async_commands import AsyncScanEntry
from streamkeep.engine.api.async_store import AsyncPipeline, AsyncStore
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system.owners import Trusted

__all__ = ["AsyncPipeline", "AsyncScanEntry", "AsyncStore", "open"]


class Options(TypedDict, total=False):
    """The options of `streamkeep.open`."""

    sync: Sync
    interval_ms: int
    readonly: bool
    read_durable: bool
    force_recovery: bool
    create: bool
    max_readers: int
    max_store_bytes: int | None
    node_max_bytes: int | None
    node_max_entries: int | None
    archive_every: float | None
    retired_max_bytes: int | None
    trust_owners: Trusted


@overload
async def open(
    path: str | Path, *, decode_responses: Literal[False] = False, **options: Unpack[Options]
) -> AsyncStore[bytes]: ...


@overload
async def open(
    path: str | Path, *, decode_responses: Literal[True], **options: Unpack[Options]
) -> AsyncStore[str]: ...


async def open(
    path: str | Path, *, decode_responses: bool = False, **options: Any
) -> AsyncStore[Any]:
    """Open the store in the directory `path`, with the options of `streamkeep.open`."""
    opening: Callable[..., Any] = facade.open
    store = await asyncio.to_thread(opening, path, decode_responses=decode_responses, **options)
    return AsyncStore(store)
