"""Opening a Delta table at its newest version, also if the storage lists an older one.

A commit is a file with the next number in the folder of the log, and a table is opened by a listing
of that folder. Some storages list an older state of it for a while.
"""

from __future__ import annotations

from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from streamkeep.pipeline.lake.files import wait_after
from streamkeep.pipeline.storage.places import StorageError, file_system, log_settings, reaching

_LISTINGS: Final = 12  # tries for one that has the newest version: about seven seconds


def newest_table(place: str) -> DeltaTable | None:
    """Return a Delta table at its newest version; None if there is none.

    Some storages list an older state of the log for a while. A job that took it for the newest one
    would remove files that a later version names. So the next version is looked up by its name.

    Raises:
        StorageError: the storage cannot be reached, or keeps listing an older state.
    """
    version = -1
    for tries in range(_LISTINGS):
        if tries:
            wait_after(tries - 1)
        table = table_at(place)
        version = -1 if table is None else int(table.version())
        if not _has_version(place, version + 1):
            return table
    raise StorageError(
        f"{place}: the storage has version {version + 1} of the log, and does not list it; next: "
        "run the job again, later"
    )


def table_at(place: str, version: int | None = None) -> DeltaTable | None:
    """Return a Delta table at the version that the listing of its log gives; None for no table."""
    try:
        with reaching(place):
            return DeltaTable(place, version=version, storage_options=log_settings(place))
    except TableNotFoundError:
        return None


def _has_version(place: str, version: int) -> bool:
    """Return whether the log of a table has a version, by its name and not by a listing."""
    system, root = file_system(place)
    try:
        with reaching(place), system.open_input_file(f"{root}/_delta_log/{version:020d}.json"):
            return True
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise StorageError(
            f"{place}: its folder _delta_log may not be read ({error}); next: ask its owner"
        ) from error
