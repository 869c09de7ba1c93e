"""Making the lake of one store that of a fleet: its positions move from the log to files.

Rows name their store in every lake, so the entries stay where they are. One commit does it, so a
process that dies before it has changed nothing.
"""

from __future__ import annotations

from streamkeep.pipeline.fleet.pieces import Positions, StreamPosition
from streamkeep.pipeline.fleet.progress_files import POSITIONS
from streamkeep.pipeline.lake.table import FLEET, Lake
from streamkeep.pipeline.storage.numbered import next_version


def turn_into_fleet(table: Lake) -> Lake:
    """Return the lake of one store as that of a fleet.

    Raises:
        LakeConflictError: another job has committed in the meantime; nothing was changed.
    """
    files = table.files()
    rows: dict[tuple[str, int], int] = {}
    for file in files:
        stream = file.store, file.origin.number
        rows[stream] = rows.get(stream, 0) + file.entries
    stores: dict[str, dict[int, StreamPosition]] = {}
    for origin in sorted({file.origin for file in files}):
        done = table.checkpoint(origin.application)
        if done is not None:
            counts = table.counts(origin.application)
            count = rows[origin.store, origin.number]
            added = counts.added or None
            position = StreamPosition(origin.key, done, count, counts.erased, added)
            stores.setdefault(origin.store, {})[origin.number] = position
    versions = {FLEET: 1}
    for store, streams in stores.items():
        version = versions[POSITIONS.application(store)] = next_version(None)
        POSITIONS.write(table.uri, store, version, Positions(streams).as_json())
    return table.commit("fleet", [], origins={file.origin for file in files}, versions=versions)
