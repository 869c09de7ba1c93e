"""A stream that is being restored from an archive: section 3 of its record, until it is whole.

The section says what is being restored, and how far it has come: the stream's last ID when the
last step was committed. Whoever finds it and asks for the same again goes on there. A stream whose
last ID is another one was appended to meanwhile, and cannot be finished in order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.rows.extension import RESTORING, split_sections

RESTORING_SECTION: Final = Layout(
    "restoring",
    (
        Field("store_uuid", "16s", "the store that the archive belongs to"),
        Field("stream_number", "Q", "the stream there"),
        Field("start_ms", "Q", "first ID asked for"),
        Field("start_seq", "Q", ""),
        Field("end_ms", "Q", "last ID asked for, included"),
        Field("end_seq", "Q", ""),
        Field("last_ms", "Q", "last ID of this stream after the last step"),
        Field("last_seq", "Q", ""),
    ),
)


class Restoring(NamedTuple):
    """What is being restored into a stream, and how far; see `RESTORING_SECTION`."""

    store_uuid: bytes
    stream_number: int
    start_ms: int
    start_seq: int
    end_ms: int
    end_seq: int
    last_ms: int = 0
    last_seq: int = 0

    @property
    def start(self) -> tuple[int, int]:
        """First ID asked for."""
        return self.start_ms, self.start_seq

    def same_as(self, other: Restoring) -> bool:
        """Say whether the other one restores the same, however far it has come."""
        return self[:6] == other[:6]

    def encode(self) -> bytes:
        """Return the section."""
        return RESTORING_SECTION.struct.pack(*self)


def restoring_of(extension: bytes, where: str) -> Restoring | None:
    """Return what is being restored into a stream; None for nothing."""
    data = split_sections(extension, where).get(RESTORING)
    if data is None:
        return None
    if len(data) != RESTORING_SECTION.size:
        raise CorruptionError(where, f"a restoring section of {len(data)} bytes")
    return Restoring(*RESTORING_SECTION.struct.unpack(data))
