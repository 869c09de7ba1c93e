"""Segment files in any storage that pyarrow reaches, for the driver and for executors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from streamkeep.format.core.errors import MissingSegmentError
from streamkeep.format.segment.segment import Segment
from streamkeep.pipeline.storage.places import file_system, is_uri, reaching

DATA_FILE: Final = "data.mdb"


def is_folder(path: str) -> bool:
    """Return whether a path is a folder of segments and not a store; a URI always is."""
    return is_uri(path) or (os.path.isdir(path) and not os.path.exists(f"{path}/{DATA_FILE}"))


@contextmanager
def open_segment(root: str, path: str) -> Iterator[Segment]:
    """Open a segment of a folder in a `with` block; its index remains usable after the block.

    Args:
        path: relative to the folder; with root "", the full path.
    """
    if not root:
        root, _, path = path.rpartition("/")
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
