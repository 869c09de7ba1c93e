"""`lost+found/`: what a repair could not put back, with an index that says why.

    index.jsonl      one object per item: what it is, where it comes from, why it is here
    entries.jsonl    entries, one per line: stream, ID, fields and values in order
    values/          other bytes as they were found, a file each, named by the index

Names, fields and values are in the form of `format/core/json_form.py`. Nothing here belongs to
the store any more; the folder may be removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Any, Final

from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.json_form import JsonBytes, json_bytes, json_object, json_pairs
from streamkeep.format.node.check import Slot
from streamkeep.recovery.fsck.files import LOST_AND_FOUND

_MOST_VALUES: Final = 10_000  # files; further bytes are only named in the index


class LostAndFound:
    """The folder, made when the first item comes."""

    def __init__(self, store: Folder) -> None:
        self.store = store
        self.items = 0
        self._values = 0
        self._files: dict[str, IO[str]] = {}

    def keep_entries(
        self, why: str, stream: bytes | None, number: int, slots: Iterable[Slot], **more: Any
    ) -> int:
        """Keep entries; return how many there were."""
        first = last = ""
        count = 0
        for slot in slots:
            identifier = f"{slot.ms}-{slot.seq}"
            first, last = first or identifier, identifier
            count += 1
            pairs = slot.pairs
            fields = list(zip(pairs[0::2], pairs[1::2], strict=True))
            self._write(
                "entries.jsonl",
                type="entry",
                stream=_name(stream),
                stream_number=number,
                id=identifier,
                pairs=json_pairs(fields),
                why=why,
            )
        if count:
            self._index(
                what="entries",
                why=why,
                stream=_name(stream),
                stream_number=number,
                entries=count,
                first_id=first,
                last_id=last,
                file="entries.jsonl",
                **more,
            )
        return count

    def keep_value(self, what: str, why: str, value: bytes, **more: Any) -> None:
        """Keep bytes that could not be read, or have no place."""
        name = None
        if self._values < _MOST_VALUES:
            self._values += 1
            name = f"values/{self._values:06d}.bin"
            with self._open(name, "wb") as file:
                file.write(value)
        self._index(what=what, why=why, size_bytes=len(value), file=name, **more)

    def close(self) -> None:
        """Close its files."""
        for file in self._files.values():
            file.close()

    def _index(self, **members: Any) -> None:
        self.items += 1
        self._write("index.jsonl", **members)

    def _write(self, name: str, **members: Any) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = self._open(name, "w", encoding="ascii")
        file.write(json_object(members) + "\n")

    def _open(self, name: str, mode: str, encoding: str | None = None) -> IO[Any]:
        """Create a file."""
        name = f"{LOST_AND_FOUND}/{name}"
        try:
            self.store.make_folder(name.rpartition("/")[0])
            return os.fdopen(self.store.replace(name), mode, encoding=encoding)
        except OSError as error:
            raise translate_os(error) from error


def _name(stream: bytes | None) -> JsonBytes | None:
    return None if stream is None else json_bytes(stream)
