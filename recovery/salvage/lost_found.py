"""`lost+found/`: what a repair could not put back, with an index that says why.

    index.jsonl      one object per item: what it is, where it comes from, why it is here
    entries.jsonl    entries, one per line: stream, ID, fields and values in order
    values/          other bytes as they were found, a file each, named by the index

Names, fields and values are strings where they are UTF-8, else `{"base64": ...}`. Nothing here
belongs to the store any more; the folder may be removed.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from typing import IO, Any, Final

from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
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
            flat = zip(pairs[0::2], pairs[1::2], strict=True)
            self._write(
                "entries.jsonl",
                type="entry",
                stream=as_json(stream),
                stream_number=number,
                id=identifier,
                pairs=[[as_json(field), as_json(value)] for field, value in flat],
                why=why,
            )
        if count:
            self._index(
                what="entries",
                why=why,
                stream=as_json(stream),
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
        file.write(json.dumps(members, separators=(",", ":")) + "\n")

    def _open(self, name: str, mode: str, encoding: str | None = None) -> IO[Any]:
        """Create a file."""
        name = f"{LOST_AND_FOUND}/{name}"
        try:
            self.store.make_folder(name.rpartition("/")[0])
            return os.fdopen(self.store.replace(name), mode, encoding=encoding)
        except OSError as error:
            raise translate_os(error) from error


def as_json(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as JSON holds them without loss."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
