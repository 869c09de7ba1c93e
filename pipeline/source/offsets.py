"""The progress of a streaming read: one position per stream, which Spark stores in its checkpoint.

    {"orders": {"number": 1, "id": "1718004800000-3", "next": "1718004800000-4"}}

`number` is the stream's number in the store, which shows whether the stream was deleted and created
again. `id` is the last entry read, or where to begin. The rest shows later whether entries after
`id` were trimmed before they were read: `next` is the entry that followed, and if there was none,
`added` is the number of entries ever added. `first` is the first entry of a stream that the query
met in this batch, and that therefore has no earlier position.

Spark takes a changed text of an offset for new data. So a position changes only together with its
`id`, and keys are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeep.format.core.entry import MIN_ID, StreamId


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a read in one stream."""

    number: int
    id: StreamId
    next: StreamId | None = None
    added: int | None = None
    first: StreamId | None = None

    def encode(self) -> dict[str, Any]:
        """Return the position as Spark stores it."""
        out: dict[str, Any] = {"number": self.number, "id": str(self.id)}
        if self.next is not None:
            out["next"] = str(self.next)
        if self.added is not None:
            out["added"] = self.added
        if self.first is not None:
            out["first"] = str(self.first)
        return out

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Position:
        """Return the position that Spark has stored."""
        ids = {name: StreamId.parse(data[name]) for name in ("next", "first") if name in data}
        return cls(int(data["number"]), StreamId.parse(data["id"]), added=data.get("added"), **ids)


BEGINNING = Position(0, MIN_ID)

Positions = dict[bytes, Position]


def encode_offset(positions: Positions) -> dict[str, Any]:
    """Return the offset of a query."""
    return {key_text(key): positions[key].encode() for key in sorted(positions)}


def decode_offset(offset: Mapping[str, Any]) -> Positions:
    """Return the positions of a query."""
    return {key_bytes(name): Position.decode(data) for name, data in offset.items()}


def key_text(key: bytes) -> str:
    """Return a key as text for JSON; bytes that are not UTF-8 are preserved."""
    return key.decode("utf-8", "surrogateescape")


def key_bytes(name: str) -> bytes:
    """Return the key from the text of `key_text`."""
    return name.encode("utf-8", "surrogateescape")
