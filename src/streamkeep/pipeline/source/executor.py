"""The entries of slices, read and decoded on an executor: from a store, or from a segment.

A read transaction keeps all pages of its snapshot from being reused, and a task may take minutes.
So nodes are copied in chunks, each in a short transaction. That is correct because entries never
change: an ID below the pinned end exists, or was deleted or trimmed. A node keeps its key even when
it moves to the archive, so the next chunk begins above the last key.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamkeep.arrow.batches import RowShape, Terms, record_batches
from streamkeep.arrow.columns import CopiedNode
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.history import Unreadable
from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import MissingSegmentError, StoreError, StreamkeepError
from streamkeep.format.segment.segment import Segment
from streamkeep.pipeline.source import stores
from streamkeep.pipeline.source.losses import DataLossError, lost_since_plan, note_loss
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.source.stores import StreamReplacedError
from streamkeep.pipeline.source.stream_nodes import Tally
from streamkeep.pipeline.storage.places import check_reached, unreachable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Nodes = Iterator[list[CopiedNode]]

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 2 << 20
_COPIES: Final = 8  # parts of a chunk, after each of which the clock is checked
_CHUNK_S: Final = 0.05
_MOST_RENEWALS: Final = 100


def _name_of_type(kind: pa.DataType) -> str:
    names = {"int64": "bigint", "int32": "int", "int16": "smallint", "int8": "tinyint"}
    text = str(kind).replace("decimal128", "decimal")
    return "timestamp" if text.startswith("timestamp") else names.get(text, text)


SPARK_TERMS: Final = Terms(
    _name_of_type,
    "mode=PERMISSIVE makes it null",
    "with .schema(...)",
    "array<struct<field:binary,value:binary>>",
)


def read_slices(
    schema: StructType, slices: tuple[Slice, ...], mode: str, notes: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of slices as record batches.

    Args:
        mode: what becomes of values that are not of their type; see `RowShape`.
        notes: a folder for the numbers of lost entries; "" for none.
    """
    from pyspark import TaskContext
    from pyspark.sql.pandas.types import to_arrow_schema

    if TaskContext.get() is not None:
        freeze_imports()
    target = to_arrow_schema(schema, timezone="UTC")
    with nodes_of(notes) as nodes:
        for one in slices:
            shape = RowShape(
                target, one.key, mode, store=one.store, number=one.number, terms=SPARK_TERMS
            )
            yield from record_batches(shape, nodes(one), one.start, one.end)
            for column, count in shape.mismatched.items():
                _log.warning(
                    "store %s stream %r: %d values of column %r are not of its type and became "
                    "null",
                    one.store,
                    one.key,
                    count,
                    column,
                )


@cache
def freeze_imports() -> None:
    """Exclude all present objects from Python's cyclic collector; once per process.

    Spark keeps its workers, and makes each of them collect garbage after every task. Visiting all
    imported modules would take 30 ms, during which the next task waits.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def nodes_of(notes: str = "") -> Iterator[Callable[[Slice], Nodes]]:
    """Provide, in a `with` block, a function that yields the nodes of a slice, ascending.

    Nodes at the ends may have entries outside of the slice. One live store is open at a time.

    Args:
        notes: a folder for the numbers of lost entries; "" for none.

    Raises:
        NotOnExecutorError: this host does not have what the driver has under a path.
        MissingSegmentError: a segment was replaced since the plan, by an erasure.
        UnreachableError: the object store does not answer.
    """
    with ExitStack() as stack:
        opened: tuple[str, Store[bytes]] | None = None

        def nodes(one: Slice) -> Nodes:
            nonlocal opened
            if one.record is not None:
                return _published(one)
            if one.segment is not None:
                return read_file(one)
            if opened is None or opened[0] != one.path:
                stack.close()
                opened = one.path, stack.enter_context(_on_this_host(one.path))
            return complete_nodes(opened[1], one, notes)

        yield nodes


def _on_this_host(path: str) -> Store[bytes]:
    """Open a store that the driver has under a path."""
    try:
        return stores.reading(path)
    except StreamkeepError as error:
        # Without its data file a store may be damaged, but here it is only elsewhere.
        if os.path.exists(f"{path}/{stores.DATA_FILE}") and not isinstance(error, StoreError):
            raise
        raise unreachable(path, "store", str(error).partition("; next:")[0]) from error


# --- segments -------------------------------------------------------------------------------------


def read_file(one: Slice) -> Nodes:
    """Yield the nodes of a slice that names its file, one block at a time."""
    assert one.segment is not None
    check_reached(one.path, "folder of segments")
    with stores.open_segment(one.path, one.segment) as segment:
        yield from _blocks(segment, one)


def _published(one: Slice) -> Nodes:
    assert one.record is not None
    archive = RemoteArchive(open_objects(one.path), one.store)
    try:
        segment = archive.segment(one.record, sealed=one.sealed)
    except MissingSegmentError as error:
        raise MissingSegmentError(
            error.where,
            "it was replaced after the plan; next: run the job again, or load() the DataFrame",
        ) from None
    yield from _blocks(segment, one)


def _blocks(segment: Segment, one: Slice) -> Nodes:
    for number in range(segment.seek(*one.start), segment.seek_last(*one.end) + 1):
        yield [(node.ms, node.seq, node.listpack) for node in segment.block(number)]


# --- live stores ----------------------------------------------------------------------------------


def complete_nodes(store: Store[bytes], one: Slice, notes: str = "") -> Nodes:
    """Yield the nodes of a slice, and compare what came with what was planned.

    If it is not `strict`, missing entries are counted in the log, and for the driver.

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
        for nodes in read_nodes(store, one):
            if one.planned is not None:
                tally.add(nodes)
            yield nodes
    except StreamReplacedError as error:
        if one.strict:
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
    if one.strict:
        raise DataLossError(lost, one.key)
    _log.warning("%s", lost.partition("; next:")[0])
    if notes:
        note_loss(notes, one, one.planned.entries - came.entries)


def read_nodes(store: Store[bytes], one: Slice) -> Nodes:
    """Yield the nodes of a slice, ascending, in chunks."""
    after: StreamId | None = None
    renewals = 0
    while True:
        try:
            nodes, after = _copy_nodes(store, one, after)
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
    store: Store[bytes], one: Slice, after: StreamId | None
) -> tuple[list[CopiedNode], StreamId | None]:
    """Return a chunk of the nodes of a slice, and its last key; None at the end."""
    nodes: list[CopiedNode] = []
    size = 0
    deadline = time.monotonic() + _CHUNK_S
    with store.snapshot() as snapshot:
        stream = stores.stream_nodes(snapshot.txn, one.key, one.number, one.source)
        for copied in stream.chunks(one.start, one.end, after, _CHUNK_BYTES // _COPIES):
            nodes += [node for node in copied if node[2]]
            size += sum(len(node[2]) for node in copied)
            if size >= _CHUNK_BYTES or time.monotonic() > deadline:
                return nodes, StreamId(*copied[-1][:2])
    return nodes, None
