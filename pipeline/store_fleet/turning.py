"""Lakes of one store, as earlier versions made them: the positions of streams are in the log.

- `streamkeep/<store>/<number>/ms` and `.../seq` are the position of a stream: their versions are
  the halves of its last ID, as signed numbers of the same bits.
- `.../added`, `.../absent` and `.../erased` are its counts up to that position: entries that were
  ever added, those of them that were gone before they could be copied, and those that were erased
  from the lake. The number of rows is the first less the other two.

The first job that commits moves the positions into files. Rows name their store in every lake, so
the entries stay where they are. One commit does it, so a process that dies before it has changed
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.lake.files import LakeFile, Origin, unsigned
from streamkeep.pipeline.lake.table import FLEET, Lake
from streamkeep.pipeline.storage.numbered import next_version
from streamkeep.pipeline.store_fleet.pieces import Positions, StreamPosition
from streamkeep.pipeline.store_fleet.progress_files import POSITIONS, read_positions


def positions_of(table: Lake, store: str, files: Iterable[LakeFile]) -> Positions:
    """Return what a lake has of a store, in either form."""
    if table.is_fleet:
        return read_positions(table.uri, store, table.transaction(POSITIONS.application(store)))
    origins = sorted({file.origin for file in files if file.store == store})
    found = {one.number: _in_log(table, one) for one in origins}
    return Positions({number: one for number, one in found.items() if one is not None})


def _in_log(table: Lake, origin: Origin) -> StreamPosition | None:
    prefix = f"streamkeep/{origin.store}/{origin.number}"
    ms, seq, added, absent, erased = (
        table.transaction(f"{prefix}/{name}") for name in ("ms", "seq", "added", "absent", "erased")
    )
    if ms is None or seq is None:
        return None
    rows = (added or 0) - (absent or 0) - (erased or 0)
    end = StreamId(unsigned(ms), unsigned(seq))
    return StreamPosition(origin.key, end, rows, erased or 0, added)


def turn(table: Lake) -> Lake:
    """Return a lake whose positions are in files.

    Raises:
        LakeConflictError: another job has committed in the meantime; nothing was changed.
    """
    files = () if table.is_fleet else table.files()
    if not files:
        return table  # the first commit of a new lake says that they are in files
    versions = {FLEET: 1}
    for store in sorted({file.store for file in files}):
        version = versions[POSITIONS.application(store)] = next_version(None)
        positions = positions_of(table, store, files)
        POSITIONS.write(table.uri, store, version, positions.as_json())
    return table.commit("to-lake", [], origins={file.origin for file in files}, versions=versions)
