"""Retention: how much of a stream stays, and what becomes of the rest. Section 2 of its record.

A stream without the section keeps everything that no command removes, and archives nothing. The
limits hold together: what one of them forbids goes. Trimming by retention is trimming like any
other: with `archive` on, what goes is archived.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.rows.extension import RETENTION, split_sections, with_section

NONE: Final = (1 << 64) - 1  # of a limit: there is none

# Bits of `flags`. Permanent.
_ARCHIVE: Final = 1
_APPROXIMATE: Final = 2
_KEEP: Final = 4
_OVERFLOW: Final = 8
_KNOWN: Final = _ARCHIVE | _APPROXIMATE | _KEEP | _OVERFLOW

RETENTION_SECTION: Final = Layout(
    "retention",
    (
        Field("maxlen", "Q", "most live entries; 2^64-1 in this and the other limits: no limit"),
        Field("max_age_ms", "Q", "how much older than now the time in an ID may be"),
        Field("max_bytes", "Q", "most bytes of all listpacks; one node always stays"),
        Field("archive_max_age_ms", "Q", "how much older than now the last ID of a segment may be"),
        Field("keep_max_bytes", "Q", "bytes of listpacks up to which groups are waited for"),
        Field(
            "flags",
            "I",
            "1: archive; 2: whole nodes only (`~`); 4: wait for groups; 8: beyond keep_max_bytes "
            "trim all the same, rather than refuse entries",
        ),
    ),
)


class Retention(NamedTuple):
    """The retention of one stream; None stands for no limit.

    Attributes:
        maxlen: how many entries stay.
        max_age_ms: how old entries get, by the time in their IDs.
        max_bytes: how much the macro nodes take; whole nodes go, and the newest always stays.
        archive: whether what is trimmed, by whatever command, goes to the archive.
        keep_unacknowledged: whether retention waits until every group has read and acknowledged.
        approximate: whether `maxlen` and `max_age_ms` remove whole nodes only.
        archive_max_age_ms: how old archived entries get; then their segments are dropped.
        keep_max_bytes: how much the nodes may take while groups are waited for.
        when_full: what happens beyond that: "refuse" new entries, or "trim" all the same.
    """

    maxlen: int | None = None
    max_age_ms: int | None = None
    max_bytes: int | None = None
    archive: bool = False
    keep_unacknowledged: bool = False
    approximate: bool = False
    archive_max_age_ms: int | None = None
    keep_max_bytes: int | None = None
    when_full: str = "refuse"

    def encode(self) -> bytes:
        """Return the section."""
        flags = _ARCHIVE * self.archive | _APPROXIMATE * self.approximate
        flags |= _KEEP * self.keep_unacknowledged | _OVERFLOW * (self.when_full == "trim")
        limits = (
            self.maxlen,
            self.max_age_ms,
            self.max_bytes,
            self.archive_max_age_ms,
            self.keep_max_bytes,
        )
        return RETENTION_SECTION.struct.pack(
            *(NONE if limit is None else limit for limit in limits), flags
        )


NO_RETENTION: Final = Retention()


def decode_retention(data: bytes, where: str) -> Retention:
    """Parse the section; raise CorruptionError."""
    if len(data) != RETENTION_SECTION.size:
        raise CorruptionError(where, f"a retention section of {len(data)} bytes")
    *limits, flags = RETENTION_SECTION.struct.unpack(data)
    if flags & ~_KNOWN:
        raise CorruptionError(where, f"retention flags 0x{flags:x}, at most 0x{_KNOWN:x} expected")
    maxlen, max_age_ms, max_bytes, archive_max_age_ms, keep_max_bytes = (
        None if limit == NONE else limit for limit in limits
    )
    return Retention(
        maxlen,
        max_age_ms,
        max_bytes,
        bool(flags & _ARCHIVE),
        bool(flags & _KEEP),
        bool(flags & _APPROXIMATE),
        archive_max_age_ms,
        keep_max_bytes,
        "trim" if flags & _OVERFLOW else "refuse",
    )


def retention_of(extension: bytes, where: str) -> Retention | None:
    """Return what a stream record says of retention; None where it says nothing."""
    data = split_sections(extension, where).get(RETENTION)
    return None if data is None else decode_retention(data, where)


def with_retention(extension: bytes, retention: Retention) -> bytes:
    """Return the extension with this retention.

    Once a stream has the section it stays: it may have been archiving before.
    """
    return with_section(extension, RETENTION, retention.encode())
