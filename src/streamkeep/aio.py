"""The store for asyncio: `store = await streamkeep.aio.open(path)`.

    >>> async with await streamkeep.aio.open("orders.store") as store:
    ...     await store.xadd("orders", {"sku": "7"})
    ...     async for entry in store.follow("orders", "0"):
    ...         print(entry.id, entry.fields)

`AsyncStore` has the methods of `Store`, to be awaited. A thousand tasks may block in `xread` and
`xreadgroup` at once: they take no threads. `Queue` is the queue of `streamkeep.jobs`.
"""

import asyncio
from importlib import import_module
from inspect import signature

from streamkeep import facade
from streamkeep.engine.api.async_commands import AsyncScanEntry
from streamkeep.engine.api.async_store import AsyncPipeline, AsyncStore

__all__ = ["AsyncPipeline", "AsyncScanEntry", "AsyncStore", "Queue", "open"]  # noqa: F822


def __getattr__(name):
    """Load the queue when it is first used."""
    if name == "Queue":
        return import_module("streamkeep.jobs.async_queue").AsyncQueue
    raise AttributeError(f"module 'streamkeep.aio' has no attribute {name!r}")


async def open(path, **options):
    """Open the store in the directory `path`, with the options of `streamkeep.open`."""
    return AsyncStore(await asyncio.to_thread(facade.open, path, **options))


open.__signature__ = signature(facade.open).replace(return_annotation=AsyncStore)
