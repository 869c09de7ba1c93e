"""The positions of a fleet's stores, in files of the lake that a commit names by a number.

`_positions/<store>/<version>.json` has what the lake holds of a store (`storage.numbered`); the
application `streamkeep/store/<store>` names it.

`streamkeep/head/<store>` has the version of the archive's head that was read. While it is that of
the head, there is nothing new, and neither manifest nor positions are read.
"""

from __future__ import annotations

from typing import Final

from streamkeep.pipeline.storage.numbered import NumberedFiles
from streamkeep.pipeline.store_fleet.pieces import Positions

POSITIONS: Final = NumberedFiles("_positions", "streamkeep/store", "what the lake has of the store")


def head_application(store: str) -> str:
    """Return the application whose version is that of the head that was read."""
    return f"streamkeep/head/{store}"


def read_positions(lake: str, store: str, version: int | None) -> Positions:
    """Return the positions of a version; empty ones for None.

    Raises:
        CorruptionError: the file is missing or damaged.
    """
    if version is None:
        return Positions()
    return POSITIONS.read(lake, store, version, Positions.from_json)
