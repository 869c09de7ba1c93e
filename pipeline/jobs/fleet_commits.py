"""Commits to the lake of a fleet that change what it has of one store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamkeep.pipeline.fleet.progress_files import (
    next_version,
    read_positions,
    remove_positions,
    store_application,
    write_positions,
)
from streamkeep.pipeline.lake.files import LakeConflictError, LakeFile, Origin
from streamkeep.pipeline.lake.table import Lake


def commit_erased(
    table: Lake,
    origins: Sequence[Origin],
    added: Sequence[LakeFile],
    removed: Sequence[LakeFile],
    gone: Mapping[Origin, int],
    job: str,
) -> Lake:
    """Replace files by those without erased entries, and count the erased ones.

    It conflicts with every other commit of the same store, so a job that has read an entry before
    it was erased cannot add it afterwards.

    Args:
        origins: streams of one store.
        gone: the number of erased entries of each.

    Raises:
        LakeConflictError: another job has committed something of the store; nothing was changed.
    """
    if not origins:
        return table
    store = origins[0].store
    old = table.transaction(store_application(store))
    positions = read_positions(table.uri, store, old)
    for origin, number in gone.items():
        positions = positions.with_rows(origin.number, origin.key, -number, number)
    version = next_version(old)
    write_positions(table.uri, store, version, positions)
    try:
        versions = {store_application(store): version}
        done = table.commit(job, added, removed=removed, origins=origins, versions=versions)
    except LakeConflictError:
        remove_positions(table.uri, store, version)
        raise
    remove_positions(table.uri, store, old)
    return done
