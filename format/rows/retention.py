"""Section 2 of a stream record: retention, the limits beyond which a stream is trimmed.

A stream without the section is trimmed by commands only, and nothing is archived. All limits apply
at once: an entry beyond any of them is trimmed. With `archive` set, trimmed entries are archived,
whether retention or a command trimmed them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.rows.extension import RETENTION, split_sections, with_section

NONE: Final = (1 << 64) - 1  # stored for a limit that is not set

# Bits of `flags`. Permanent.
_ARCHIVE: Final = 1
_APPROXIMATE: Final = 2
_KEEP: Final = 4
_OVERFLOW: Final = 8
_DELETED: Final = 16
_FOLLOWS: Final = 32
_KNOWN: Final = 63

RETENTION_SECTION: Final = Layout(
    "retention",
    (
        Field("maxlen", "Q", "most live entries; 2^64-1 in this and the other limits: no limit"),
        Field("max_age_ms", "Q", "maximum age of an entry, by the time in its ID"),
        Field("max_bytes", "Q", "most bytes of all listpacks; the newest node always stays"),
        Field("archive_max_age_ms", "Q", "maximum age of a segment, by the time in its last ID"),
        Field("keep_max_bytes", "Q", "bytes of listpacks up to which trimming waits for groups"),
        Field(
            "flags",
            "I",
            "1: archive; 2: whole nodes only (`~`); 4: wait for groups; 8: above keep_max_bytes "
            "trim instead of refusing entries; 16: archive what is deleted, too; 32: the stream "
            "follows that of a Redis server",
        ),
    ),
)


class Retention(NamedTuple):
    """The retention of one stream; a limit of None is not set.

    Attributes:
        maxlen: maximum number of live entries.
        max_age_ms: maximum age of entries in milliseconds, by the time in their IDs.
        max_bytes: maximum size of all macro nodes; whole nodes are trimmed, never the newest.
        archive: whether trimmed entries are archived, also those that a command trims.
        keep_unacknowledged: whether retention waits until every group has read and acknowledged.
        approximate: whether `maxlen` and `max_age_ms` trim whole nodes only.
        archive_max_age_ms: maximum age of a segment in milliseconds; older ones are dropped.
        keep_max_bytes: maximum size of the macro nodes while retention waits for groups.
        when_full: what happens above `keep_max_bytes`: "refuse" new entries, or "trim" the stream.
        archive_deleted: whether `archive` is for deleted entries, too: by XDEL, or with the stream.
        follows: whether the stream follows that of a Redis server (`streamkeep follow`).
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
    archive_deleted: bool = False
    follows: bool = False

    def encode(self) -> bytes:
        flags = _ARCHIVE * self.archive | _APPROXIMATE * self.approximate
        flags |= _KEEP * self.keep_unacknowledged | _OVERFLOW * (self.when_full == "trim")
        flags |= _DELETED * self.archive_deleted | _FOLLOWS * self.follows
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
    *limits, flags = RETENTION_SECTION.unpack(data, where)
    if flags & ~_KNOWN:
        raise CorruptionError(where, f"retention flags 0x{flags:x}, expected at most 0x{_KNOWN:x}")
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
        bool(flags & _DELETED),
        bool(flags & _FOLLOWS),
    )


def retention_of(extension: bytes, where: str) -> Retention | None:
    """Return the retention section of a stream record; None if it has none."""
    data = split_sections(extension, where).get(RETENTION)
    return None if data is None else decode_retention(data, where)


def with_retention(extension: bytes, retention: Retention) -> bytes:
    """Return the extension with this retention.

    The section is kept even with the defaults: it shows that the stream may have archived before.
    """
    return with_section(extension, RETENTION, retention.encode())
