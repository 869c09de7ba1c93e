"""The progress of a streaming read: one position per stream, which Spark stores in its checkpoint.

    {"store": "3f0c...", "streams": {"orders": {
        "number": 1, "id": "1718004800000-3", "read": 4, "last": "1718004800000-9", "added": 10,
        "next": "1718004800000-4"}}}

`id` is the last entry read, or where to begin. The rest shows later whether something was lost:

- `store` is the store's UUID, and `number` that of the stream in it. They differ if another store
  is at the path now, or if the stream was deleted and created again.
- `last` and `added` are the stream's last generated ID, and how many entries were ever added to it.
  Neither ever falls, unless an older copy of the store was put back, or XSETID set them.
- `next` is the entry that followed; without it, everything there was read.
- `read` is how many of the entries that were ever added come up to `id`. It is exact without
  `next`; with it, it may lack entries that were deleted by ID.
- `first` is the first entry of a stream that the query met in this batch, and that therefore has no
  earlier position.

Spark takes a changed text of an offset for new data. So a position changes only together with its
`id`, or when a loss was reported, and keys are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamkeep.arrow.keys import key_of_text, key_text
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import StreamkeepError


class OffsetError(StreamkeepError):
    """The offset in a checkpoint is not one that this version writes."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a read in one stream; the head of the module says what each part is.

    `read`, `last` and `added` are None if they are not known, as for some streams of a lake.
    """

    number: int
    id: StreamId
    read: int | None = None
    last: StreamId | None = None
    added: int | None = None
    next: StreamId | None = None
    first: StreamId | None = None

    @property
    def unread(self) -> int:
        """How many entries after it were there, as far as is known."""
        return 0 if self.read is None or self.added is None else max(0, self.added - self.read)

    def encode(self) -> dict[str, Any]:
        ids = {"id": self.id, "last": self.last, "next": self.next, "first": self.first}
        counts = {"number": self.number, "read": self.read, "added": self.added}
        texts = {name: None if one is None else str(one) for name, one in ids.items()}
        return {name: one for name, one in {**counts, **texts}.items() if one is not None}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Position:
        ids = {
            name: StreamId.parse(data[name]) if name in data else None for name in ("next", "first")
        }
        return cls(
            data["number"],
            StreamId.parse(data["id"]),
            data["read"],
            StreamId.parse(data["last"]),
            data["added"],
            **ids,
        )


BEGINNING = Position(0, MIN_ID)

Positions = dict[bytes, Position]


def encode_offset(store: str, positions: Positions) -> dict[str, Any]:
    """Return the offset of a query on a store; {} if there are no streams."""
    streams = {key_text(key): positions[key].encode() for key in sorted(positions)}
    return {"store": store, "streams": streams} if streams else {}


def decode_offset(offset: Mapping[str, Any]) -> tuple[str, Positions]:
    """Return the UUID of the store, "" if there are no streams, and the positions of a query.

    Raises:
        OffsetError: an earlier version, or another program, has written the offset.
    """
    if not offset:
        return "", {}
    try:
        streams = offset["streams"].items()
        return offset["store"], {key_of_text(name): Position.decode(one) for name, one in streams}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise OffsetError(
            f"the checkpoint has the offset {str(offset)[:200]}, of another version of this "
            "program: it lacks what shows whether entries were lost; next: begin with a new "
            "checkpoint, and with startingOffsets after the last entries that were read"
        ) from error
