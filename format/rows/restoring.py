"""Section 3 of a stream record: the progress of restoring the stream from an archive.

The section names what is being restored and the stream's last ID after the last committed step. A
restore that was interrupted resumes there if it is asked for the same range again. If the stream's
last ID differs, a command has appended to the stream and the restore cannot continue in order. The
section is removed when the restore is complete.
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
        Field("stream_number", "Q", "number of the stream in that store"),
        Field("start_ms", "Q", "first ID asked for"),
        Field("start_seq", "Q", ""),
        Field("end_ms", "Q", "last ID asked for, included"),
        Field("end_seq", "Q", ""),
        Field("last_ms", "Q", "last ID of this stream after the last step"),
        Field("last_seq", "Q", ""),
    ),
)


class Restoring(NamedTuple):
    """The source and the progress of a restore; see `RESTORING_SECTION`."""

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

    def same_source(self, other: Restoring) -> bool:
        """Return whether both restore the same range of the same stream; progress may differ."""
        return self[:6] == other[:6]

    def encode(self) -> bytes:
        """Return the section."""
        return RESTORING_SECTION.struct.pack(*self)


def restoring_of(extension: bytes, where: str) -> Restoring | None:
    """Return the restoring section of a stream record; None if it has none."""
    data = split_sections(extension, where).get(RESTORING)
    if data is None:
        return None
    if len(data) != RESTORING_SECTION.size:
        problem = f"{len(data)} bytes, expected {RESTORING_SECTION.size}"
        raise CorruptionError(where, f"restoring section of {problem}")
    return Restoring(*RESTORING_SECTION.struct.unpack(data))
