"""What a repair did: what it rebuilt, what it put right, and exactly what was lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.json_form import json_bytes
from streamkeep.recovery.fsck.findings import quoted

_SHOWN_RANGES: Final = 20

IdRange = tuple[StreamId, StreamId | None]  # from the first on, to before the second; None: the end


@dataclass(slots=True)
class StreamLoss:
    """What one stream has lost.

    Attributes:
        entries: how many; None when nobody knows.
        ranges: where they were.
        unverified: entries that were kept although the checksum of their node does not hold.
        moved: entries that went to lost+found: they may have been deleted, or have no place.
        notes: other losses, in words.
    """

    number: int
    name: bytes | None
    entries: int | None = 0
    ranges: list[IdRange] = field(default_factory=list)
    unverified: int = 0
    moved: int = 0
    notes: list[str] = field(default_factory=list)

    def any(self) -> bool:
        """Say whether there is anything to tell."""
        return self.entries != 0 or self.unverified > 0 or self.moved > 0 or bool(self.notes)

    def lines(self) -> list[str]:
        """Return the losses as text, one per line."""
        where = f"stream {self.number}" if self.name is None else f"stream {quoted(self.name)}"
        found: list[str] = []
        if self.entries != 0:
            count = "entries" if self.entries is None else f"{self.entries:,} entries"
            if self.entries == 1:
                count = "1 entry"
            ranges = ", ".join(shown_range(one) for one in self.ranges[:_SHOWN_RANGES])
            if len(self.ranges) > _SHOWN_RANGES:
                ranges += f", and {len(self.ranges) - _SHOWN_RANGES} more ranges"
            found.append(f"lost: {where}: {count}" + (f", {ranges}" if ranges else ""))
        if self.unverified:
            found.append(
                f"unverified: {where}: {self.unverified:,} entries were kept whose checksum "
                "does not hold; their values may be wrong"
            )
        if self.moved:
            count = "1 entry is" if self.moved == 1 else f"{self.moved:,} entries are"
            found.append(
                f"moved: {where}: {count} in lost+found: deleted before, perhaps, or without a "
                "place; its index says why"
            )
        found += [f"lost: {where}: {note}" for note in self.notes]
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the losses as a JSON object."""
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


def shown_range(one: IdRange) -> str:
    """Return a range of IDs as text."""
    start, end = one
    return f"from {start} on" if end is None else f"from {start} to before {end}"


class Report:
    """What a repair did.

    Attributes:
        rebuilt: derived data that was wrong and is right now, without loss: what, and how often.
        mended: values with one damaged byte that was found and put right.
        recovered: macro nodes that the tree did not lead to, and that were found in their pages.
        stale: old copies that were passed over.
        streams: losses, by number of the stream.
        other: losses that belong to no stream.
    """

    def __init__(self) -> None:
        self.rebuilt: dict[str, int] = {}
        self.mended = 0
        self.recovered = 0
        self.stale = 0
        self.streams: dict[int, StreamLoss] = {}
        self.other: list[str] = []

    def stream(self, number: int) -> StreamLoss:
        """Return what a stream has lost, to be added to."""
        found = self.streams.get(number)
        if found is None:
            found = self.streams[number] = StreamLoss(number, None)
        return found

    def rebuild(self, what: str, count: int = 1) -> None:
        """Note that derived data was wrong, and has been rebuilt."""
        self.rebuilt[what] = self.rebuilt.get(what, 0) + count

    def lost_anything(self) -> bool:
        """Say whether anything was lost."""
        return bool(self.other) or any(one.any() for one in self.streams.values())

    def lines(self) -> list[str]:
        """Return the losses as text, in the order of the streams."""
        found = [line for _, one in sorted(self.streams.items()) for line in one.lines()]
        return found + [f"lost: {text}" for text in self.other]
