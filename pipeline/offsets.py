"""How far a streaming read has come: one position per stream, as Spark keeps it in a checkpoint.

    {"orders": {"number": 1, "id": "1718004800000-3", "next": "1718004800000-4"}}

`number` is the stream's number in the store, so that a stream deleted and made again is noticed.
`id` is the last entry read, or where to begin. What else there is tells, later, whether
anything behind it was trimmed before it was read: `next`, the entry that came next; or, when there
was none, `added`, how many entries had ever been added.

Spark takes an offset that is another text for new data. So a position is only ever changed together
with its `id`, and keys are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError


class DataLossError(StreamkeepError):
    """Entries that a streaming read had not come to are gone."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one stream has been read."""

    number: int
    id: StreamId
    next: StreamId | None = None
    added: int | None = None

    def encode(self) -> dict[str, Any]:
        """Return the position as Spark stores it."""
        out: dict[str, Any] = {"number": self.number, "id": str(self.id)}
        if self.next is not None:
            out["next"] = str(self.next)
        if self.added is not None:
            out["added"] = self.added
        return out

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Position:
        """Return the position that Spark has stored."""
        following = data.get("next")
        return cls(
            int(data["number"]),
            StreamId.parse(data["id"]),
            None if following is None else StreamId.parse(following),
            data.get("added"),
        )


BEGINNING = Position(0, MIN_ID)

Positions = dict[bytes, Position]


def encode_offset(positions: Positions) -> dict[str, Any]:
    """Return the offset of a query."""
    return {key_text(key): positions[key].encode() for key in sorted(positions)}


def decode_offset(offset: Mapping[str, Any]) -> Positions:
    """Return the positions of a query."""
    return {key_bytes(name): Position.decode(data) for name, data in offset.items()}


def key_text(key: bytes) -> str:
    """Return a key as JSON holds it; what is not UTF-8 is kept, too."""
    return key.decode("utf-8", "surrogateescape")


def key_bytes(name: str) -> bytes:
    """Return the key of `key_text`."""
    return name.encode("utf-8", "surrogateescape")
