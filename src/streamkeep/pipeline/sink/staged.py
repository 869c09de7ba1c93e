"""Staged files, through which rows of Spark become entries of a store: what they are.

Tasks cannot share a transaction. So they write their rows into files, and the driver applies all
files in one transaction. A task does most of the work: it converts and sorts rows and makes macro
nodes. The driver decodes nodes and appends a million entries per second.

A staged file is an Arrow file, and each of its rows is a macro node with the key of its stream. If
the store gives the IDs, the nodes hold the entries in the order of the rows, under consecutive
numbers. If the rows have IDs, they ascend within a *run*, which is a range of batches of the file;
runs of one stream are merged when they are applied. Staged files are useless after the transaction,
and the folder of a job is removed as a whole.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from streamkeep.format.core.errors import StreamkeepError

SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.binary()),
        pa.field("ms", pa.uint64()),
        pa.field("seq", pa.uint64()),
        pa.field("node", pa.binary()),
    ]
)


class StagedFileMissingError(StreamkeepError):
    """The driver cannot find a file that a task has staged."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of one stream in a staged file: the batches from `first` to before `last`."""

    key: bytes
    first: int
    last: int
    entries: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged file of one task.

    Attributes:
        location: URI or path of the file; empty if there were no rows.
        with_ids: the entries have their own IDs.
    """

    location: str
    runs: tuple[Run, ...]
    with_ids: bool


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's cyclic collector, which would search millions of lists in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
