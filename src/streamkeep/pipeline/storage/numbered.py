"""JSON files beside a Delta table, one per store, that a commit of the table names by a number.

`<folder>/<store>/<version>.json`. The transaction of the table sets an application of the store to
that version, so the file counts if and only if the commit was made. Versions rise by random steps,
so that two jobs never write the same file. Files of old versions are removed after a commit.

The names of the folders begin with an underscore, which hides them from other readers of the table,
and from vacuum. Needs neither Spark nor delta-rs, so that executors can read the files.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow.fs as pafs

from streamkeep.format.core.errors import CorruptionError
from streamkeep.pipeline.storage.places import file_system, reaching, read_bytes, write_bytes

_STEP_BITS: Final = 31

T = TypeVar("T")


def next_version(version: int | None) -> int:
    """Return a version that no other job takes."""
    return (version or 0) + 1 + secrets.randbits(_STEP_BITS)


@dataclass(frozen=True)
class NumberedFiles:
    """The files about one subject.

    Attributes:
        folder: below the lake.
        prefix: of the applications whose versions name the files.
        subject: what the files say, for errors.
    """

    folder: str
    prefix: str
    subject: str

    def application(self, store: str) -> str:
        """Return the application whose version names the file of a store."""
        return f"{self.prefix}/{store}"

    def stores(self, lake: str) -> set[str]:
        """Return the stores that have files, of any version."""
        system, root = file_system(lake)
        with reaching(lake):
            found = system.get_file_info(
                pafs.FileSelector(f"{root}/{self.folder}", allow_not_found=True)
            )
        return {one.base_name for one in found if one.type == pafs.FileType.Directory}

    def read(self, lake: str, store: str, version: int, decode: Callable[[Any], T]) -> T:
        """Return what the JSON in the file of a version means.

        Raises:
            CorruptionError: the file is missing or damaged.
        """
        path = self._path(store, version)
        try:
            return decode(json.loads(read_bytes(lake, path)))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(
                f"{lake}/{path}",
                f"it says {self.subject}, and cannot be read ({error}); next: restore the file, or "
                "make the lake again",
            ) from None

    def write(self, lake: str, store: str, version: int, value: object) -> None:
        """Write the file of a version, before the commit that names it."""
        write_bytes(lake, self._path(store, version), json.dumps(value).encode())

    def remove(self, lake: str, store: str, version: int | None) -> None:
        """Remove the file of a version that no commit names any more; None if there was none."""
        if version is None:
            return
        system, root = file_system(lake)
        with suppress(FileNotFoundError), reaching(lake):
            system.delete_file(f"{root}/{self._path(store, version)}")

    def _path(self, store: str, version: int) -> str:
        return f"{self.folder}/{store}/{version:020d}.json"
