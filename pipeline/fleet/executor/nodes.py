"""The entries of pieces, on executors: from segments in an object store, or from a live store."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.engine.system.object_store import open_objects
from streamkeep.engine.tables.remote_archive import CHUNK_BYTES, ChunkCache, RemoteArchive
from streamkeep.engine.tables.segment_files import check_means
from streamkeep.format.core.errors import MissingSegmentError
from streamkeep.format.node.columns import CopiedNode
from streamkeep.pipeline.fleet.pieces import Piece
from streamkeep.pipeline.source.executor.nodes import read_nodes
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.source.stores import reading


def piece_nodes(piece: Piece) -> Iterator[list[CopiedNode]]:
    """Yield the nodes of a piece, ascending; those at its ends may have entries outside of it.

    Raises:
        MissingSegmentError: the segment was replaced since the plan, by an erasure.
    """
    if piece.record is None:
        with reading(piece.path) as store:
            one = Slice(piece.key, piece.number, piece.start, piece.end, piece.size_bytes)
            yield from read_nodes(store, one, piece.source)
        return
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
        yield [(node.ms, node.seq, node.listpack, b"") for node in segment.block(number)]
