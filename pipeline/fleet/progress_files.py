"""The positions of a fleet's stores, in files of the lake that a commit names by a number.

`_positions/<store>/<version>.json` has what the lake holds of a store. The transaction of the table
sets `streamkeep/store/<store>` to that version, so the file counts if and only if the commit was
made. Versions rise by random steps, so that two jobs never write the same file. Files of old
versions are removed after a commit.

`streamkeep/head/<store>` has the version of the archive's head that was read. While it is that of
the head, there is nothing new, and neither manifest nor positions are read.

Needs neither Spark nor delta-rs, so that executors can read positions.
"""

from __future__ import annotations

import secrets

from streamkeep.format.core.errors import CorruptionError
from streamkeep.pipeline.fleet.pieces import Positions
from streamkeep.pipeline.storage.places import check_written, file_system, make_folder, reaching

_FOLDER = "_positions"  # names with an underscore are hidden from other readers, and from vacuum
_STEP_BITS = 31


def store_application(store: str) -> str:
    """Return the application whose version names the positions of a store."""
    return f"streamkeep/store/{store}"


def head_application(store: str) -> str:
    """Return the application whose version is that of the head that was read."""
    return f"streamkeep/head/{store}"


def next_version(version: int | None) -> int:
    """Return a version that no other job takes."""
    return (version or 0) + 1 + secrets.randbits(_STEP_BITS)


def read_positions(lake: str, store: str, version: int | None) -> Positions:
    """Return the positions of a version; empty ones for None.

    Raises:
        CorruptionError: the file is missing or damaged.
    """
    if version is None:
        return Positions()
    system, root = file_system(lake)
    path = _path(store, version)
    try:
        with reaching(lake), system.open_input_file(f"{root}/{path}") as source:
            return Positions.decode(source.readall())
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise CorruptionError(
            f"{lake}/{path}",
            f"it says what the lake has of the store, and cannot be read ({error}); next: restore "
            "the file, or make the lake again",
        ) from None


def write_positions(lake: str, store: str, version: int, positions: Positions) -> None:
    """Write the positions of a version, before the commit that names it."""
    system, root = file_system(lake)
    path = f"{root}/{_path(store, version)}"
    with reaching(lake):
        make_folder(system, path.rpartition("/")[0])
        data = positions.encode()
        with system.open_output_stream(path, compression=None) as out:
            out.write(data)
    check_written(lake, system, path, len(data))


def remove_positions(lake: str, store: str, version: int | None) -> None:
    """Remove the positions of a version that no commit names any more."""
    if version is None:
        return
    system, root = file_system(lake)
    try:
        with reaching(lake):
            system.delete_file(f"{root}/{_path(store, version)}")
    except FileNotFoundError:
        return


def _path(store: str, version: int) -> str:
    return f"{_FOLDER}/{store}/{version:020d}.json"
