"""The report of a repair: what was corrected, and what was lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import entries_text
from streamkeep.recovery.fsck.findings import quoted

_MAX_RANGES: Final = 20  # listed per stream

IdRange = tuple[StreamId, StreamId | None]  # first ID included, second excluded; None: no end


@dataclass(slots=True)
class StreamLoss:
    """The losses of one stream.

    Attributes:
        entries: number of lost entries; None if it is unknown.
        ranges: ranges of IDs of the lost entries.
        unverified: entries that were kept although the checksum of their node does not match.
        moved: entries in lost+found: they may have been deleted before, or their IDs are in use.
        notes: other losses as text.
    """

    number: int
    name: bytes | None
    entries: int | None = 0
    ranges: list[IdRange] = field(default_factory=list)
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
            "unverified_entries": self.unverified,
            "moved_entries": self.moved,
            "notes": self.notes,
        }


def range_text(one: IdRange) -> str:
    start, end = one
    return f"from {start} on" if end is None else f"from {start} up to but not including {end}"


class Report:
    """The report of a repair.

    Attributes:
        corrected: number of values in which one damaged byte was corrected.
        recovered: number of macro nodes that were found without their tree.
        stale: number of old copies that were ignored.
        streams: losses by stream number.
        other: losses that belong to no stream.
    """

    def __init__(self) -> None:
        self.corrected = 0
        self.recovered = 0
        self.stale = 0
        self.streams: dict[int, StreamLoss] = {}
        self.other: list[str] = []

    def stream(self, number: int) -> StreamLoss:
        """Return the losses of a stream; the caller adds to them."""
        found = self.streams.get(number)
        if found is None:
            found = self.streams[number] = StreamLoss(number, None)
        return found

    def lost_anything(self) -> bool:
        return bool(self.other) or any(one.any() for one in self.streams.values())

    def lines(self) -> list[str]:
        found = [line for _, one in sorted(self.streams.items()) for line in one.lines()]
        return found + [f"lost: {text}" for text in self.other]
