"""The folder `lost+found/`: data that a repair could not put back, with an index of the reasons.

    index.jsonl      one object per item: what it is, where it was, why it is here
    entries.jsonl    entries, one per line, as `streamkeep load` reads them: stream, ID, fields
    values/          other bytes as they were found, one file each, named by the index

Names, fields and values have the form of `format/core/json_form.py`. The store does not use the
folder; the user may remove it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Any, Final

from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.json_form import JsonBytes, json_bytes, json_object, json_pairs
from streamkeep.format.node.check import Slot
from streamkeep.recovery.fsck.store import LOST_AND_FOUND

_MAX_VALUES: Final = 10_000  # files; further values are only listed in the index


class LostAndFound:
    """The folder; it is created when the first item is kept."""

    def __init__(self, store: Folder) -> None:
        self.store = store
        self.items = 0
        self._values = 0
        self._files: dict[str, IO[str]] = {}

    def keep_entries(
        self, why: str, stream: bytes | None, number: int, slots: Iterable[Slot], **more: Any
    ) -> int:
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
                **({} if stream is None else {"key": json_bytes(stream)}),
                stream_number=number,
                id=identifier,
                fields=json_pairs(fields),
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
        """Write the bytes of an item that could not be read or put back."""
        name = None
        if self._values < _MAX_VALUES:
            self._values += 1
            name = f"values/{self._values:06d}.bin"
            with self._open(name, "wb") as file:
                file.write(value)
        self._index(what=what, why=why, size_bytes=len(value), file=name, **more)

    def close(self) -> None:
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
        name = f"{LOST_AND_FOUND}/{name}"
        try:
            self.store.make_folder(name.rpartition("/")[0])
            return os.fdopen(self.store.replace(name), mode, encoding=encoding)
        except OSError as error:
            raise translate_os(error) from error


def _name(stream: bytes | None) -> JsonBytes | None:
    return None if stream is None else json_bytes(stream)
