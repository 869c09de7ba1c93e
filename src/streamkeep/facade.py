"""`streamkeep.open`: where a store begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, overload

from streamkeep.engine.api import Store, Sync


@overload
def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    create: bool = True,
    decode_responses: Literal[False] = False,
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
) -> Store[bytes]: ...


@overload
def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    create: bool = True,
    decode_responses: Literal[True],
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
) -> Store[str]: ...


def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    create: bool = True,
    decode_responses: bool = False,
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
) -> Store[Any]:
    """Open the store in the directory `path`, creating it when there is none.

    Args:
        sync: when a writing call returns. "commit": when its change is on disk. "interval" and
            "none": when it is committed; a crash of the process loses nothing, a power cut may.
        interval_ms: how often "interval" syncs, in milliseconds.
        readonly: open without write access; works on read-only media. Implies not creating.
        create: make the store when it does not exist; otherwise NotAStoreError.
        decode_responses: return str instead of bytes, decoded from UTF-8, as in redis-py.
        max_readers: how many readers, of all processes, the store has slots for.
        max_store_bytes: limit of the store's data file; None for none. At the limit, appends raise
            StoreFullError, and deleting still works.
        node_max_bytes, node_max_entries: limits of the macro nodes of streams that are created from
            now on, by Redis's rule (stream-node-max-bytes, -entries). None for ours: nodes fill
            pages.

    Raises:
        NotAStoreError: the path holds something else; it is untouched.
        FormatVersionError: written by a newer version; it is untouched.
        StoreError: no permission, no file locks, or open in this process in another mode.
    """
    return Store(
        path,
        sync=sync,
        interval_ms=interval_ms,
        readonly=readonly,
        create=create,
        decode_responses=decode_responses,
        max_readers=max_readers,
        max_store_bytes=max_store_bytes,
        node_max_bytes=node_max_bytes,
        node_max_entries=node_max_entries,
    )
