"""Stores and segment files as the source opens them, on the driver and on executors.

Each use opens a store read-only, which takes 3 ms, and closes it again. Spark keeps its Python
workers for the whole session. A store that stays open in one would hold a lock, and would read the
old file after a user has replaced the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from streamkeep.engine.api.store import Store
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.errors import MissingSegmentError, StreamkeepError
from streamkeep.format.segment.segment import Segment
from streamkeep.pipeline.options import ARCHIVE
from streamkeep.pipeline.source.stream_nodes import StreamNodes, stream_numbered
from streamkeep.pipeline.storage.places import file_system, is_uri, reaching

DATA_FILE: Final = "data.mdb"
STORE_FILES: Final = (DATA_FILE, "steady")  # a store that has lost the first is one, damaged


class StreamReplacedError(StreamkeepError):
    """A stream was deleted after a read of it was planned, or its store was exchanged."""


def reading(path: str | Path) -> Store[bytes]:
    """Open a store for reading, for the length of a block."""
    return Store(path, readonly=True, create=False)


def stream_nodes(txn: Txn, key: bytes, number: int, source: str) -> StreamNodes:
    """Return the nodes of the stream of a pin or slice, whatever its key is now.

    Raises:
        StreamReplacedError: the stream was deleted, and nothing of it remains.
    """
    stream = stream_numbered(txn, number, key)
    if stream is None and source != ARCHIVE:
        raise StreamReplacedError(
            f"stream {key!r} was deleted after this read was planned; next: load() the DataFrame "
            "again"
        )
    return StreamNodes(txn, number, stream, source)


def is_folder(path: str) -> bool:
    """Return whether a path is a folder of segments and not a store; a URI always is."""
    is_store = any(os.path.exists(f"{path}/{name}") for name in STORE_FILES)
    return is_uri(path) or (os.path.isdir(path) and not is_store)


@contextmanager
def open_segment(root: str, path: str) -> Iterator[Segment]:
    """Open a segment of a folder in a `with` block; its index remains usable after the block.

    Args:
        path: relative to the folder.
    """
    system, base = file_system(root)
    where = f"segment {path}"
    try:
        with reaching(root):
            file: Any = system.open_input_file(f"{base.rstrip('/')}/{path}")
    except FileNotFoundError:
        raise MissingSegmentError(
            where, f"it is no longer in {root}; next: load() the DataFrame again"
        ) from None
    with file:
        yield Segment.open(lambda offset, size: file.read_at(size, offset), file.size(), where)
