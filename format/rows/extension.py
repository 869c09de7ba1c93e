"""The extension of a stream record: optional sections with settings that most streams lack.

It follows the fixed part of the record. Each section is a tag (u8), a size (u16) and that many
bytes. A missing section means the defaults. Sections with an unknown tag are kept unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER, check_number
from streamkeep.format.core.layout import Field, Layout

IDEMPOTENCE: Final = 1
RETENTION: Final = 2  # `format/rows/retention.py`

SECTION_HEAD: Final = Layout(
    "section head", (Field("tag", "B", "kind of section"), Field("size", "H", "bytes that follow"))
)
_HEAD: Final = SECTION_HEAD.struct


def split_sections(extension: bytes, where: str) -> dict[int, bytes]:
    sections: dict[int, bytes] = {}
    at = 0
    while at < len(extension):
        if at + _HEAD.size > len(extension):
            raise CorruptionError(where, "a section of the stream record is truncated")
        tag, size = _HEAD.unpack_from(extension, at)
        at += _HEAD.size
        if at + size > len(extension) or tag in sections:
            problem = "is repeated" if tag in sections else "is truncated"
            raise CorruptionError(where, f"section {tag} of the stream record {problem}")
        sections[tag] = extension[at : at + size]
        at += size
    return sections


def join_sections(sections: dict[int, bytes]) -> bytes:
    """Return the encoded sections, ascending by tag."""
    return b"".join(_HEAD.pack(tag, len(data)) + data for tag, data in sorted(sections.items()))


def with_section(extension: bytes, tag: int, data: bytes) -> bytes:
    sections = split_sections(extension, "stream record")
    sections[tag] = data
    return join_sections(sections)


def without_section(extension: bytes, tag: int) -> bytes:
    sections = split_sections(extension, "stream record")
    sections.pop(tag, None)
    return join_sections(sections)


_U64: Final = 1 << 64

DEFAULT_DURATION: Final = 100
DEFAULT_MAXSIZE: Final = 100
MAX_DURATION: Final = 86_400  # seconds
MAX_MAXSIZE: Final = 10_000


@dataclass
class Idempotence:
    """Settings and counters of idempotent XADD; see `IDEMPOTENCE_SECTION`."""

    number: Annotated[int, "Q", "prefix of its rows in the three tables; 0: no rows yet"] = 0
    duration: Annotated[int, "I", "idmp-duration, in seconds"] = DEFAULT_DURATION
    maxsize: Annotated[int, "I", "idmp-maxsize, per producer"] = DEFAULT_MAXSIZE
    next_producer: Annotated[int, "I", "number of the next producer, from 1 on"] = 1
    producers: Annotated[int, "I", "pids-tracked"] = 0
    tracked: Annotated[int, "Q", "iids-tracked"] = 0
    added: Annotated[int, "Q", "iids-added"] = 0
    duplicates: Annotated[int, "Q", "iids-duplicates"] = 0
    swept: Annotated[int, "I", "producer whose expired messages were removed last"] = 0

    def encode(self) -> bytes:
        """Return the section.

        Raises:
            CorruptionError: a counter fell below zero, because it had been wrong before.
        """
        if min(self.producers, self.tracked) < 0:
            problem = f"{self.producers} producers with {self.tracked} messages"
            raise CorruptionError("stream record", f"{problem}; run `streamkeep repair`")
        self.added %= _U64  # RESTORE may have set both counters to 2^64 - 1
        self.duplicates %= _U64
        return IDEMPOTENCE_SECTION.struct.pack(*vars(self).values())


IDEMPOTENCE_SECTION: Final = Layout.of("idempotence", Idempotence)


def idempotence_of(extension: bytes, where: str) -> Idempotence:
    """Return the idempotence section of a stream record; the defaults if it has none."""
    data = split_sections(extension, where).get(IDEMPOTENCE)
    if data is None:
        return Idempotence()
    found = Idempotence(*IDEMPOTENCE_SECTION.unpack(data, where))
    check_number(max(found.number, found.tracked), LAST_NUMBER, where)
    check_number(max(found.producers, found.swept), LAST_MEMBER, where)
    return found
