"""The part of `to-lake` on executors: copying pieces into files of the lake."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import pyarrow as pa

from streamkeep.arrow.batches import RowShape, record_batches
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError, UnreachableError
from streamkeep.pipeline.lake.executor import FileWriter, id_at, read_file, without_ids
from streamkeep.pipeline.lake.files import LakeError, LakeFile, Origin
from streamkeep.pipeline.source.executor import nodes_of
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.storage.places import StorageError, file_system
from streamkeep.pipeline.store_fleet.pieces import unpack_group

_OF_ALL: Final = (UnreachableError, StorageError, LakeError)  # not of one stream


@dataclass(frozen=True)
class Task:
    """The pieces that one worker copies.

    Attributes:
        schema: of the entries, serialized.
        groups: of pieces, packed.
        there: files of the lake that may hold entries of late pieces.
    """

    lake: str
    schema: bytes
    groups: tuple[bytes, ...]
    there: tuple[LakeFile, ...] = ()


class NotCopied(NamedTuple):
    """The error of one stream."""

    origin: Origin
    problem: str


def write_pieces(task: Task) -> list[LakeFile | NotCopied]:
    """Write the entries of a task into files of the lake; return the files.

    An error of one stream does not stop the others.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(task.schema))
    system, root = file_system(task.lake)
    pieces: list[Slice] = [piece for text in task.groups for piece in unpack_group(text)]
    done: list[LakeFile | NotCopied] = []
    with nodes_of() as nodes:
        for (origin, _), mine in groupby(pieces, _file_of):
            shape = RowShape(schema, origin.key, beyond="wrap")
            try:
                with FileWriter(system, root, origin, schema) as writer:
                    for piece in mine:
                        unwanted = set(piece.erased)
                        if piece.late:
                            unwanted |= _known(task, piece)
                        for batch in record_batches(shape, nodes(piece), piece.start, piece.end):
                            kept = without_ids(batch, unwanted)
                            if len(kept):
                                writer.add(kept)
                    done += writer.close()
            except _OF_ALL:
                raise
            except StreamkeepError as error:
                done.append(NotCopied(origin, str(error)))
    return done


def _file_of(piece: Slice) -> tuple[Origin, object]:
    """Return what pieces in one file have in common; a late one has files of its own."""
    origin = Origin(piece.store, piece.number, piece.key)
    return origin, piece.start if piece.late else None


def _known(task: Task, piece: Slice) -> set[StreamId]:
    """Return the IDs of a piece that the lake has already."""
    system, root = file_system(task.lake)
    known: set[StreamId] = set()
    for file in task.there:
        mine = (file.store, file.origin.number) == (piece.store, piece.number)
        if mine and file.first <= piece.end and file.last >= piece.start:
            for batch in read_file(system, root, file, ("ms", "seq")):
                ids = (id_at(batch, row) for row in range(len(batch)))
                known.update(one for one in ids if piece.start <= one <= piece.end)
    return known
