"""Which processes have a store open, as far as the system shows them to this user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.format.core.json_form import json_bytes


def processes_with(store: Path) -> list[dict[str, Any]]:
    """Return the other processes of this user that have the data file open."""
    try:
        wanted = os.stat(store / DATA_FILE)
    except OSError:
        return []  # opening the store says what is wrong
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name == str(os.getpid()) or not _has_open(folder, wanted):
                continue
            name = (folder / "comm").read_bytes().rstrip(b"\n")
        except OSError:
            continue  # it has ended, or belongs to another user
        found.append({"process": int(folder.name), "name": json_bytes(name)})
    return sorted(found, key=lambda one: int(one["process"]))


def _has_open(folder: Path, wanted: os.stat_result) -> bool:
    for link in (folder / "fd").iterdir():
        try:
            one = link.stat()
        except OSError:
            continue
        if (one.st_dev, one.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False
