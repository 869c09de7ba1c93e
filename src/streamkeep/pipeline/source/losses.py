"""Entries that were removed before they were read: what is a loss, and what can be known about it.

Trimming removes the oldest entries, node by node, and an exact trim removes the oldest entries of
one more node. XDEL marks entries as deleted, and removes a node with its last entry. The store does
not record which entries were trimmed, only the highest ID that was ever deleted (max_deleted_id).
So three facts distinguish missing entries:

- An ID above max_deleted_id that is missing was trimmed.
- If the node that held an entry is still there, no trim has passed it. What is missing in it was
  deleted, or was trimmed from its head; if an entry further ahead was deleted, the two look alike.
- A whole node that is missing was trimmed, or all of its entries were deleted. That counts as lost,
  because a loss that is not reported would be worse than a report of deletions.

Used by the driver, which compares positions, and by tasks, which compare what they read with what
was planned.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from shutil import rmtree
from typing import Final

import xxhash

from streamkeep.engine.tables.manifest import erased_ids
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.node.node import end_ids
from streamkeep.pipeline.options import LIVE
from streamkeep.pipeline.source.slices import Pin, Slice
from streamkeep.pipeline.source.stream_nodes import StreamNodes, stream_numbered

_log = logging.getLogger(__name__)

ADVICE = (
    "next: failOnDataLoss=false continues with the remaining entries. Archiving the stream "
    "prevents such a loss"
)


class DataLossError(StreamkeepError):
    """Entries were removed before they were read.

    Attributes:
        key: of their stream.
        lost: their number, as far as it is known; at least 1.
    """

    def __init__(self, message: str, key: bytes = b"", lost: int = 1) -> None:
        super().__init__(message)
        self.key = key
        self.lost = lost


class WentBackError(DataLossError):
    """A stream has fewer entries, or a lower last ID, than it once had."""


def node_remains(nodes: StreamNodes, entry: StreamId) -> bool:
    for ms, seq, load in nodes.nodes(entry, entry, None):
        data = load()
        if data and (ms, seq) <= entry <= end_ids(data, ms, seq).last_slot:
            return True
    return False


def lost_since_plan(txn: Txn, one: Slice | Pin, came: int, whole: int) -> str | None:
    """Return a sentence about entries of a range that are lost; None if they were deleted.

    Args:
        came: the number of entries that were read, fewer than planned.
        whole: the number of nodes from which they came.
    """
    assert one.planned is not None
    entries, nodes = one.planned
    stream = stream_numbered(txn, one.number, one.key)
    if stream is not None:
        live = StreamNodes(txn, one.number, stream, LIVE)
        deleted = stream.record.max_deleted_id()
        known = deleted > MIN_ID and deleted >= one.start
        known = known or bool(erased_ids(txn, one.number, one.start, one.end))
        if known and (whole >= nodes or node_remains(live, one.start)):
            return None  # entries of nodes that remain were deleted by ID
    return (
        f"stream {one.key!r}: {entries - came} of the {entries} entries from {one.start} to "
        f"{one.end} were trimmed after the read was planned, and before they were read; {ADVICE}"
    )


# --- notes for the driver -------------------------------------------------------------------------
#
# Notes of tasks about entries that they found lost, for the driver of a streaming query.
#
# Spark gives a source in Python no way back from a task to the driver. A live store is read only on
# the host of its driver, so a task that goes on without lost entries (failOnDataLoss=false) leaves
# a file there, and the progress of the next batch has the number. A task that runs again replaces
# its note.
#
# The folder is made by the first note, and removed when the query ends. Its name has the number of
# the process that plans the query, so that a later query removes those of processes that died.

_PREFIX: Final = "streamkeep-losses-"


def new_notes() -> str:
    """Return the path of a folder for the notes of one query; it does not exist yet.

    Removes the folders of queries whose process has died.
    """
    place = Path(tempfile.gettempdir())
    for path in place.glob(f"{_PREFIX}*"):
        process = path.name.removeprefix(_PREFIX).partition("-")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            rmtree(path, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue  # of another user, who may have given it any name
    return str(place / f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex}")


def note_loss(folder: str, one: Slice, lost: int) -> None:
    """Note the number of entries of a slice that are lost. The log has the rest."""
    text = f"{one.key.hex()} {one.number} {one.start} {one.end}"
    name = xxhash.xxh3_64_hexdigest(text.encode())
    try:
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        (Path(folder) / name).write_text(json.dumps([one.key.hex(), lost]))
    except OSError as error:
        _log.warning("%s: the progress of the query will lack a loss: %s", folder, error)


def noted_losses(folder: str) -> Counter[bytes]:
    """Return the number of lost entries of each stream."""
    found = Counter[bytes]()
    for path in Path(folder).glob("*"):
        try:
            key, lost = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # a task is writing it; the next report has it
        found[bytes.fromhex(key)] += lost
    return found
