"""What a repair lost: its report; and the folder `lost+found/`, for what it could not put back.

    index.jsonl      one object per item: what it is, where it was, why it is here
    entries.jsonl    entries, one per line, as `streamkeep load` reads them: stream, ID, fields
    values/          other bytes as they were found, one file each, named by the index

Names, fields and values have the form of `format/core/json_form.py`. The store does not use the
folder; the user may remove it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any, Final

from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.json_form import json_bytes, json_object, json_pairs
from streamkeep.format.humanize import entries_text
from streamkeep.format.node.check import Slot
from streamkeep.recovery.fsck.findings import quoted
from streamkeep.recovery.fsck.store import LOST_AND_FOUND

_MAX_VALUES: Final = 10_000  # files; further values are only listed in the index
_MAX_RANGES: Final = 20  # listed per stream

IdRange = tuple[StreamId, StreamId | None]  # first ID included, second excluded; None: no end


@dataclass(slots=True)
class StreamLoss:
    """The losses of one stream.

    Attributes:
        entries: number of lost live entries; None if it is unknown.
        ranges: ranges of IDs of the lost live entries.
        archived: number of lost archived or trimmed entries; None if it is unknown. The notes have
            their ranges.
        unverified: entries that were kept although the checksum of their node does not match.
        moved: entries in lost+found: they may have been deleted before, or their IDs are in use.
        notes: other losses as text.
    """

    number: int
    name: bytes | None
    entries: int | None = 0
    ranges: list[IdRange] = field(default_factory=list)
    archived: int | None = 0
    unverified: int = 0
    moved: int = 0
    notes: list[str] = field(default_factory=list)

    def any(self) -> bool:
        return self.entries != 0 or self.unverified > 0 or self.moved > 0 or bool(self.notes)

    def lines(self) -> list[str]:
        where = f"stream {self.number}" if self.name is None else f"stream {quoted(self.name)}"
        found: list[str] = []
        if self.entries != 0:
            unknown = "an unknown number of entries"
            count = unknown if self.entries is None else entries_text(self.entries)
            ranges = ", ".join(range_text(one) for one in self.ranges[:_MAX_RANGES])
            if len(self.ranges) > _MAX_RANGES:
                ranges += f", and {len(self.ranges) - _MAX_RANGES} more ranges"
            found.append(f"lost: {where}: {count}" + (f", {ranges}" if ranges else ""))
        if self.unverified:
            found.append(
                f"unverified: {where}: {entries_text(self.unverified)} from damaged nodes; the "
                "values may be wrong"
            )
        if self.moved:
            found.append(
                f"moved to lost+found: {where}: {entries_text(self.moved)}; see index.jsonl there "
                "for the reasons"
            )
        found += [f"lost: {where}: {note}" for note in self.notes]
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "type": "loss",
            "stream": None if self.name is None else json_bytes(self.name),
            "stream_number": self.number,
            "entries": self.entries,
            "ranges": [
                {"start": str(start), "before": None if end is None else str(end)}
                for start, end in self.ranges
            ],
            "archived_entries": self.archived,
            "unverified_entries": self.unverified,
            "moved_entries": self.moved,
            "notes": self.notes,
        }


def range_text(one: IdRange) -> str:
    start, end = one
    return f"from {start} on" if end is None else f"from {start} up to but not including {end}"


@dataclass(slots=True)
class Report:
    """The report of a repair.

    Attributes:
        corrected: number of values in which one damaged byte was corrected, also of those that the
            journal deletes afterwards.
        recovered: number of macro nodes that were found without their tree.
        stale: number of old copies that were ignored.
        streams: losses by stream number.
        other: losses that belong to no stream.
    """

    corrected: int = 0
    recovered: int = 0
    stale: int = 0
    streams: dict[int, StreamLoss] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)

    def stream(self, number: int) -> StreamLoss:
        """Return the losses of a stream; the caller adds to them."""
        return self.streams.setdefault(number, StreamLoss(number, None))

    def lost_anything(self) -> bool:
        return bool(self.other) or any(one.any() for one in self.streams.values())

    def lines(self) -> list[str]:
        found = [line for _, one in sorted(self.streams.items()) for line in one.lines()]
        return found + [f"lost: {text}" for text in self.other]


# --- lost+found ---------------------------------------------------------------------------------


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
        kept = list(slots)
        key = None if stream is None else json_bytes(stream)
        for slot in kept:
            fields = list(zip(slot.pairs[0::2], slot.pairs[1::2], strict=True))
            self._write(
                "entries.jsonl",
                type="entry",
                **({} if key is None else {"key": key}),
                stream_number=number,
                id=f"{slot.ms}-{slot.seq}",
                fields=json_pairs(fields),
                why=why,
            )
        if kept:
            self._index(
                what="entries",
                why=why,
                stream=key,
                stream_number=number,
                entries=len(kept),
                first_id=f"{kept[0].ms}-{kept[0].seq}",
                last_id=f"{kept[-1].ms}-{kept[-1].seq}",
                file="entries.jsonl",
                **more,
            )
        return len(kept)

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
        """Close the files; they are on disk then, as the new store is at its end."""
        for file in self._files.values():
            file.close()
        if self.items:
            os.sync()  # of thousands of files at once

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
        self.store.make_folder(name.rpartition("/")[0])
        return os.fdopen(self.store.replace(name), mode, encoding=encoding)
