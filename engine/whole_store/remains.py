"""Searching every node of a stream for fields: what an erasure has to erase, and its proof.

The search reads live nodes, retired nodes and the blocks of segments, with the slots that deletes
and trims have left in them, also of deleted streams that had the key. So it finds entries that no
command returns any more, as long as their bytes are in a node.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.archive.erase import archived_under
from streamkeep.engine.commands.history import Live, Retired, Source, archived_of, ascending
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.id_codec import MAX, Id
from streamkeep.format.node.node import SlotCursor, read_header
from streamkeep.format.node.where import Where

_STEP_BYTES: Final = 8 << 20  # of nodes that are read in one snapshot


def find_remains(
    environment: Environment, name: bytes, wanted: dict[bytes, list[bytes]]
) -> list[Id]:
    """Return the IDs of the entries that match, ascending, each once."""
    found: set[Id] = set()
    for number in environment.read(archived_under, name):
        start: Id | None = (0, 0)
        while start is not None:
            ids, start = environment.read_history(_find, name, number, start, wanted)
            found.update(ids)
    return sorted(found)


def _find(
    txn: Txn, name: bytes, number: int, start: Id, wanted: dict[bytes, list[bytes]]
) -> tuple[list[Id], Id | None]:
    """Search some megabytes of nodes; return what matches, and where the next search begins."""
    where = Where(wanted)
    found: list[Id] = []
    room = _STEP_BYTES
    sources: list[Source] = [Retired(txn, number), *archived_of(txn, number)]
    stream = txn.find_stream(name)
    if stream is not None and stream.number == number and stream.nodes():
        sources.append(Live(txn, stream))
    for source in ascending(sources, start, (MAX, MAX)):
        if room <= 0:
            return found, (source.ms, source.seq)
        data = source.raw()
        room -= len(data)
        cursor = SlotCursor(read_header(data, source.ms, source.seq))
        while cursor.next():
            if where.matches(cursor):
                found.append(cursor.id())
            cursor.skip_fields()
    return found, None
