"""Every finding code: what it means, how bad it is, what to do.

Codes are permanent: SK0 the store, SK1 streams, SK2 groups, SK3 the archive.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamkeep.recovery.findings import Finding, Severity


class Kind(NamedTuple):
    """One kind of finding."""

    severity: Severity
    meaning: str
    advice: str


_REBUILD: Final = "repair rebuilds it without loss"
_SALVAGE: Final = "repair keeps what is readable and says what is lost"

CATALOGUE: Final[dict[str, Kind]] = {
    "SK001": Kind(
        Severity.ERROR,
        "a row cannot be decoded, or its checksum is wrong",
        _SALVAGE,
    ),
    "SK002": Kind(
        Severity.ERROR,
        "a row of `meta` is missing or damaged",
        _REBUILD,
    ),
    "SK011": Kind(
        Severity.WARNING,
        "two names lead to the same stream",
        _REBUILD,
    ),
    "SK012": Kind(
        Severity.ERROR,
        "a name leads to a stream that has no record",
        _SALVAGE,
    ),
    "SK013": Kind(
        Severity.WARNING,
        "a stream record has no name",
        _SALVAGE,
    ),
    "SK015": Kind(
        Severity.WARNING,
        "garbage of a stream that still exists",
        _REBUILD,
    ),
    "SK101": Kind(
        Severity.WARNING,
        "the length is not the number of live entries",
        _REBUILD,
    ),
    "SK102": Kind(
        Severity.WARNING,
        "first_id is not the ID of the first live entry",
        _REBUILD,
    ),
    "SK103": Kind(
        Severity.WARNING,
        "last live ID is not the ID of the last live entry",
        _REBUILD,
    ),
    "SK104": Kind(
        Severity.ERROR,
        "an ID is above last_generated_id: XADD may repeat it",
        _REBUILD,
    ),
    "SK105": Kind(
        Severity.WARNING,
        "entries_added is below the length",
        _REBUILD,
    ),
    "SK106": Kind(
        Severity.WARNING,
        "max_deleted_id is above last_generated_id",
        _REBUILD,
    ),
    "SK107": Kind(
        Severity.WARNING,
        "number or size of the sealed nodes is wrong",
        _REBUILD,
    ),
    "SK108": Kind(
        Severity.WARNING,
        "the number of tombstones is wrong",
        _REBUILD,
    ),
    "SK110": Kind(
        Severity.ERROR,
        "a macro node is damaged",
        _SALVAGE,
    ),
    "SK111": Kind(
        Severity.ERROR,
        "IDs do not rise from one macro node to the next",
        _SALVAGE,
    ),
    "SK112": Kind(
        Severity.WARNING,
        "a macro node of a stream that does not exist",
        _SALVAGE,
    ),
    "SK113": Kind(
        Severity.WARNING,
        "a slot is marked as trimmed, but is no tombstone",
        _REBUILD,
    ),
    "SK114": Kind(
        Severity.ERROR,
        "a macro node stands in the wrong place",
        _SALVAGE,
    ),
}


def finding(code: str, where: str, problem: str) -> Finding:
    """Return a finding with the severity that the catalogue gives its code."""
    return Finding(code, CATALOGUE[code].severity, where, problem)
