"""Stores as the source opens them, on the driver and on executors.

Each use opens the store read-only, which takes 3 ms, and closes it again. Spark keeps its Python
workers for the whole session. A store that stays open in one would hold a lock, and would read the
old file after a user has replaced the store.
"""

from __future__ import annotations

from pathlib import Path

from streamkeep.engine.api.store import Store
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.options import ARCHIVE
from streamkeep.pipeline.source.stream_nodes import StreamNodes


class StreamReplacedError(StreamkeepError):
    """A stream was deleted after a read of it was planned, or its store was exchanged."""


def reading(path: str | Path) -> Store[bytes]:
    """Open a store for reading, for the length of a block."""
    return Store(path, readonly=True, create=False)


def stream_nodes(txn: Txn, key: bytes, number: int, source: str) -> StreamNodes:
    """Return the nodes of the stream of a pin or slice.

    Raises:
        StreamReplacedError: the stream was deleted, and nothing of it remains.
    """
    stream = txn.find_stream(key)
    if stream is not None and stream.number == number:
        return StreamNodes(txn, number, stream, source)
    if source == ARCHIVE:
        return StreamNodes(txn, number, None, source)
    raise StreamReplacedError(
        f"stream {key!r} was deleted or renamed after this read was planned; next: load() the "
        "DataFrame again"
    )
