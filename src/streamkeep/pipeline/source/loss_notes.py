"""Notes of tasks about entries that they found lost, for the driver of a streaming query.

Spark gives a source in Python no way back from a task to the driver. A live store is read only on
the host of its driver, so a task that goes on without lost entries (`failOnDataLoss=false`) leaves
a file there, and the progress of the next batch has the number. A task that runs again replaces its
note.

The folder is made by the first note, and removed when the query ends. Its name has the number of
the process that plans the query, so that a later query removes the folders of processes that died.
For the driver and for executors.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from shutil import rmtree
from typing import Final

import xxhash

from streamkeep.pipeline.source.slices import Slice

_log = logging.getLogger(__name__)

_PREFIX: Final = "streamkeep-losses-"


def new_notes() -> str:
    """Return the path of a folder for the notes of one query; it does not exist yet.

    Removes the folders of queries whose process has died.
    """
    place = Path(tempfile.gettempdir())
    for path in place.glob(f"{_PREFIX}*"):
        process = path.name.removeprefix(_PREFIX).partition("-")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            remove_notes(str(path))
        except (ValueError, OverflowError, PermissionError):
            continue  # of another user, who may have given it any name
    return str(place / f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex}")


def note_loss(folder: str, one: Slice, lost: int) -> None:
    """Note the number of entries of a slice that are lost. The log has the rest."""
    text = f"{one.key.hex()} {one.number} {one.start} {one.end}"
    name = xxhash.xxh3_64_hexdigest(text.encode())
    try:
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        (Path(folder) / name).write_text(json.dumps([one.key.hex(), lost]))
    except OSError as error:
        _log.warning("%s: the progress of the query will lack a loss: %s", folder, error)


def noted_losses(folder: str) -> Counter[bytes]:
    """Return the number of lost entries of each stream."""
    found = Counter[bytes]()
    for path in Path(folder).glob("*"):
        try:
            key, lost = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # a task is writing it; the next report has it
        found[bytes.fromhex(key)] += lost
    return found


def remove_notes(folder: str) -> None:
    """Remove the notes of a query that has ended."""
    rmtree(folder, ignore_errors=True)
