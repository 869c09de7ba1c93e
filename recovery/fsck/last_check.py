"""The file `last_check` in the folder of a store: when fsck last looked, and what it found.

One JSON object. It is only for people to know; no other part of the store depends on it, and it is
not synced. A check writes it in place of that of the check before, where it may write at all.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from streamkeep.engine.store.place import find_folder
from streamkeep.engine.store.survey import CHECK_FILE
from streamkeep.format.core.errors import StoreError

_MOST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class LastCheck:
    """A check that has run to its end.

    Attributes:
        time_ms: its end, in Unix milliseconds.
        commit: the newest commit that it saw.
        errors, warnings: how many findings it had.
        quick: it read the entries of only some nodes.
    """

    time_ms: int
    commit: int
    errors: int
    warnings: int
    quick: bool

    def damaged(self) -> bool:
        """Return whether the store was damaged."""
        return self.errors + self.warnings > 0


def note_check(
    store: str | os.PathLike[str], commit: int, errors: int, warnings: int, *, quick: bool
) -> None:
    """Note a check of the whole store that ends now; do nothing where that cannot be written."""
    now = time.time_ns() // 1_000_000
    text = json.dumps(asdict(LastCheck(now, commit, errors, warnings, quick)))
    with suppress(OSError, StoreError):  # such as on read-only media
        folder = find_folder(Path(store).absolute())
        if folder is not None:
            with os.fdopen(folder.replace(CHECK_FILE), "w") as file:
                file.write(text + "\n")


def last_check(store: str | os.PathLike[str]) -> LastCheck | None:
    """Return the last check that was noted; None if there was none, or the file is damaged."""
    with suppress(OSError, StoreError, ValueError, TypeError, RecursionError):
        folder = find_folder(Path(store).absolute())
        if folder is not None:
            found = LastCheck(**json.loads(folder.read(CHECK_FILE, _MOST_BYTES)))
            numbers = (found.time_ms, found.commit, found.errors, found.warnings)
            if all(type(one) is int and one >= 0 for one in numbers):
                return found
    return None
