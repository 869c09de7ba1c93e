"""The entries of pieces, on executors: from segments in an object store, or from a live store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from streamkeep.arrow.columns import CopiedNode
from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import (
    CHUNK_BYTES,
    ChunkCache,
    RemoteArchive,
    check_means,
)
from streamkeep.format.core.errors import MissingSegmentError
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor.nodes import nodes_of
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.store_fleet.pieces import Piece

Nodes = Iterator[list[CopiedNode]]


@contextmanager
def nodes_of_pieces() -> Iterator[Callable[[Piece], Nodes]]:
    """Provide, in a `with` block, a function that yields the nodes of a piece, ascending.

    Nodes at the ends may have entries outside of the piece. One live store is open at a time.

    Raises:
        DataLossError: entries that the plan counted were trimmed since.
        MissingSegmentError: the segment was replaced since the plan, by an erasure.
        NotOnExecutorError: this host does not have a store under the path that the driver has.
    """
    with ExitStack() as stack:
        reader: tuple[ReadOptions, Callable[[Slice], Nodes]] | None = None

        def nodes(piece: Piece) -> Nodes:
            nonlocal reader
            if piece.live is None:
                return _in_segment(piece)
            options = piece.live.options
            if reader is None or reader[0] != options:
                stack.close()
                reader = options, stack.enter_context(nodes_of(options))
            return reader[1](piece.live.part)

        yield nodes


def _in_segment(piece: Piece) -> Nodes:
    assert piece.record is not None
    archive = RemoteArchive(open_objects(piece.uri), piece.store)
    try:
        segment = archive.open(piece.record, sealed=piece.sealed, cache=ChunkCache(4 * CHUNK_BYTES))
    except MissingSegmentError as error:
        raise MissingSegmentError(
            error.where, "it was replaced after the plan; next: run the job again"
        ) from None
    check_means(piece.record, segment)
    last = segment.seek_last(*piece.end)
    for number in range(segment.seek(*piece.start), last + 1):
        yield [(node.ms, node.seq, node.listpack) for node in segment.block(number)]
