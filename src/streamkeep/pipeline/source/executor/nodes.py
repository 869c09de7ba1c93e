"""The nodes of a slice, read on an executor: from a store, or from a file of segments.

A read transaction keeps all pages of its snapshot from being reused, and a task may take minutes.
So nodes are copied in chunks, each in a short transaction. That is correct because entries never
change: an ID below the pinned end exists, or was deleted or trimmed. A node keeps its key even when
it moves to the archive, so the next chunk begins above the last key.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from streamkeep.arrow.columns import CopiedNode
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.history import Unreadable
from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import (
    CHUNK_BYTES,
    ChunkCache,
    RemoteArchive,
    check_means,
)
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StoreError, StreamkeepError
from streamkeep.pipeline.options import AUTO, ReadOptions
from streamkeep.pipeline.source.loss_notes import note_loss
from streamkeep.pipeline.source.losses import DataLossError, lost_since_plan
from streamkeep.pipeline.source.segment_files import DATA_FILE, open_segment
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.source.stores import StreamReplacedError, reading, stream_nodes
from streamkeep.pipeline.source.stream_nodes import Tally
from streamkeep.pipeline.storage.places import check_reached, unreachable

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 2 << 20
_COPIES: Final = 8  # parts of a chunk, after each of which the clock is checked
_CHUNK_S: Final = 0.05
_MOST_RENEWALS: Final = 100


def complete_nodes(
    store: Store[bytes], one: Slice, options: ReadOptions, notes: str = ""
) -> Iterator[list[CopiedNode]]:
    """Yield the nodes of a slice, and compare what came with what was planned.

    If `failOnDataLoss` is off, missing entries are counted in the log, and for the driver.

    Args:
        notes: the folder for the driver; "" if it has none.

    Raises:
        DataLossError: entries that the plan counted are gone.
        StreamReplacedError: another stream, or another store, is there now.
    """
    tally = Tally(one.start, one.end)
    replaced: str | None = None
    try:
        if one.store not in ("", store.uuid):
            raise StreamReplacedError(
                f"{store.path}: store {one.store} was there when this read was planned, and now "
                f"store {store.uuid} is; next: load() the DataFrame again"
            )
        for nodes in read_nodes(store, one, options.source):
            if one.planned is not None:
                tally.add(nodes)
            yield nodes
    except StreamReplacedError as error:
        if options.fail_on_data_loss:
            raise
        replaced = str(error)
    if one.planned is None:
        return
    came = tally.result()
    if came.entries >= one.planned.entries:
        return
    with store.snapshot() as snapshot:
        lost = replaced or lost_since_plan(snapshot.txn, one, *came)
    if lost is None:
        return
    if options.fail_on_data_loss:
        raise DataLossError(lost, one.key)
    _log.warning("%s", lost.partition("; next:")[0])
    if notes:
        note_loss(notes, one, one.planned.entries - came.entries)


def read_nodes(store: Store[bytes], one: Slice, source: str = AUTO) -> Iterator[list[CopiedNode]]:
    """Yield the nodes of a slice, ascending, in chunks."""
    after: StreamId | None = None
    renewals = 0
    while True:
        try:
            nodes, after = _copy_nodes(store, one, source, after)
        except Unreadable as error:
            renewals += 1
            with store.snapshot() as snapshot:
                if renewals > _MOST_RENEWALS or error.still_named(snapshot.txn):
                    raise error.error from None
            continue  # the segment was erased or dropped; the newest manifest has the change
        yield nodes
        if after is None:
            return


def _copy_nodes(
    store: Store[bytes], one: Slice, source: str, after: StreamId | None
) -> tuple[list[CopiedNode], StreamId | None]:
    """Return a chunk of the nodes of a slice, and its last key; None at the end."""
    nodes: list[CopiedNode] = []
    size = 0
    deadline = time.monotonic() + _CHUNK_S
    with store.snapshot() as snapshot:
        stream = stream_nodes(snapshot.txn, one.key, one.number, source)
        for copied in stream.chunks(one.start, one.end, after, _CHUNK_BYTES // _COPIES):
            nodes += [node for node in copied if node[2]]
            size += sum(len(node[2]) for node in copied)
            if size >= _CHUNK_BYTES or time.monotonic() > deadline:
                return nodes, StreamId(*copied[-1][:2])
    return nodes, None


def read_file(root: str, one: Slice) -> Iterator[list[CopiedNode]]:
    """Yield the nodes of a slice that names its file, one block at a time."""
    assert one.segment is not None
    assert one.blocks is not None
    with open_segment(root, one.segment) as segment:
        for number in range(*one.blocks):
            yield [(node.ms, node.seq, node.listpack) for node in segment.block(number)]


def read_exported(one: Slice) -> Iterator[list[CopiedNode]]:
    """Yield the nodes of a slice of `cut_exported`, which says where its segment is.

    Raises:
        MissingSegmentError: the file is not there.
        UnreachableError: the object store does not answer.
    """
    if one.published is None:
        yield from read_file("", one)
        return
    uri, record = one.published
    assert one.blocks is not None
    archive = RemoteArchive(open_objects(uri), one.store)
    segment = archive.open(record, cache=ChunkCache(4 * CHUNK_BYTES))
    check_means(record, segment)
    for number in range(*one.blocks):
        yield [(node.ms, node.seq, node.listpack) for node in segment.block(number)]


@contextmanager
def nodes_of(
    options: ReadOptions, notes: str = ""
) -> Iterator[Callable[[Slice], Iterator[list[CopiedNode]]]]:
    """Provide, in a `with` block, a function that yields the nodes of a slice in chunks.

    Args:
        notes: a folder for the numbers of lost entries; "" for none.

    Raises:
        NotOnExecutorError: this host does not have what the driver has under the path.
    """
    with ExitStack() as stack:
        store: Store[bytes] | None = None

        def nodes(one: Slice) -> Iterator[list[CopiedNode]]:
            nonlocal store
            if options.tail_export is not None:
                return read_exported(one)
            if one.segment is not None:
                check_reached(options.path, "folder of segments")
                return read_file(options.path, one)
            if store is None:
                try:
                    store = stack.enter_context(reading(options.path))
                except StreamkeepError as error:
                    # Without its data file a store may be damaged, but here it is only elsewhere.
                    there = os.path.exists(f"{options.path}/{DATA_FILE}")
                    if there and not isinstance(error, StoreError):
                        raise
                    why = str(error).partition("; next:")[0]
                    raise unreachable(options.path, "store", why) from error
            return complete_nodes(store, one, options, notes)

        yield nodes
