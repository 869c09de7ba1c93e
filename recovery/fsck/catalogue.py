"""Every finding code: what it means, how bad it is, what to do.

Codes are permanent: SK0 the store, SK1 streams, SK2 groups and what is pending,
SK25 and up: idempotent XADD, SK3 the archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.recovery.fsck.findings import Finding, Severity


class Kind(NamedTuple):
    """One kind of finding."""

    severity: Severity
    meaning: str
    advice: str


_REBUILD: Final = "`streamkeep repair STORE --output NEW` rebuilds it without loss"
_SALVAGE: Final = (
    "`streamkeep repair STORE --output NEW` saves what is readable and says what is lost"
)

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
    "SK003": Kind(
        Severity.ERROR,
        "a meta page of `data.mdb` is damaged, or the file cannot be read",
        _SALVAGE,
    ),
    "SK004": Kind(
        Severity.ERROR,
        "a page of `data.mdb` is damaged",
        _SALVAGE,
    ),
    "SK005": Kind(
        Severity.ERROR,
        "a page of `data.mdb` is used twice, or used and free",
        _SALVAGE,
    ),
    "SK006": Kind(
        Severity.WARNING,
        "pages of `data.mdb` are neither used nor free: room that is lost",
        _REBUILD,
    ),
    "SK007": Kind(
        Severity.WARNING,
        "LMDB's counters of a table are wrong",
        _REBUILD,
    ),
    "SK008": Kind(
        Severity.WARNING,
        "a sub-database that the format does not have",
        _REBUILD,
    ),
    "SK009": Kind(
        Severity.ERROR,
        "a sub-database is missing",
        _SALVAGE,
    ),
    "SK010": Kind(
        Severity.ERROR,
        "the name of a stream stands under the key of another name",
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
    "SK014": Kind(
        Severity.ERROR,
        "a counter of `meta` would give a number again that is in use",
        _REBUILD,
    ),
    "SK015": Kind(
        Severity.WARNING,
        "garbage of a stream that still exists",
        _REBUILD,
    ),
    "SK020": Kind(
        Severity.ERROR,
        "there is no checkpoint: a power loss could not be recovered from",
        _REBUILD,
    ),
    "SK021": Kind(
        Severity.WARNING,
        "one of the two checkpoints is damaged",
        "the next checkpoint replaces it: open the store for writing once, and check again",
    ),
    "SK022": Kind(
        Severity.NOTE,
        "the store needs recovery, as after a power loss",
        "open the store for writing once: that recovers it; then check again",
    ),
    "SK023": Kind(
        Severity.ERROR,
        "the checkpoint is that of another store",
        _REBUILD,
    ),
    "SK024": Kind(
        Severity.ERROR,
        "the journal breaks off before its end: a recovery would lose what follows",
        _SALVAGE,
    ),
    "SK025": Kind(
        Severity.NOTE,
        "something that is no file of a store stands in its folder",
        "move it elsewhere if you know it; nothing of the store depends on it",
    ),
    "SK026": Kind(
        Severity.WARNING,
        "`data.mdb` lacks commits that the journal holds, though the machine was not booted: the "
        "system has lost pages that it had not written, or the files were copied in use",
        "open the store for writing once: that replays them; then check again, and look for errors "
        "of the disk in the system's log",
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
    "SK201": Kind(
        Severity.ERROR,
        "an entry is pending for a consumer that does not exist",
        _SALVAGE,
    ),
    "SK202": Kind(
        Severity.ERROR,
        "a group stands under the key of another name",
        _REBUILD,
    ),
    "SK203": Kind(
        Severity.WARNING,
        "a group of a stream that does not exist",
        _SALVAGE,
    ),
    "SK204": Kind(
        Severity.ERROR,
        "two groups have the same number",
        _SALVAGE,
    ),
    "SK205": Kind(
        Severity.WARNING,
        "garbage of a group that still exists",
        _REBUILD,
    ),
    "SK206": Kind(
        Severity.WARNING,
        "consumers or pending entries of a group that does not exist",
        _SALVAGE,
    ),
    "SK207": Kind(
        Severity.WARNING,
        "the number of pending entries is wrong",
        _REBUILD,
    ),
    "SK208": Kind(
        Severity.WARNING,
        "the number of pending entries that nobody owns is wrong",
        _REBUILD,
    ),
    "SK209": Kind(
        Severity.WARNING,
        "the number of consumers is wrong",
        _REBUILD,
    ),
    "SK210": Kind(
        Severity.WARNING,
        "the number of pending entries of a consumer is wrong",
        _REBUILD,
    ),
    "SK211": Kind(
        Severity.ERROR,
        "a NACK page is damaged",
        _SALVAGE,
    ),
    "SK212": Kind(
        Severity.ERROR,
        "IDs do not rise from one NACK page to the next",
        _SALVAGE,
    ),
    "SK213": Kind(
        Severity.ERROR,
        "NACKs stand in the row of their group, and in pages as well",
        _SALVAGE,
    ),
    "SK214": Kind(
        Severity.WARNING,
        "a NACK is sorted into the order of delivery by a wrong time",
        _REBUILD,
    ),
    "SK215": Kind(
        Severity.WARNING,
        "the update counter of a group is not above that of a NACK",
        _REBUILD,
    ),
    "SK216": Kind(
        Severity.WARNING,
        "entries_read is below -1",
        _REBUILD,
    ),
    "SK221": Kind(
        Severity.ERROR,
        "a consumer stands under the key of another name",
        _REBUILD,
    ),
    "SK222": Kind(
        Severity.WARNING,
        "name and number of a consumer do not lead to each other",
        _REBUILD,
    ),
    "SK223": Kind(
        Severity.WARNING,
        "the number of a consumer would be given again",
        _REBUILD,
    ),
    "SK231": Kind(
        Severity.WARNING,
        "a NACK page is missing in `pel_order`",
        _REBUILD,
    ),
    "SK232": Kind(
        Severity.WARNING,
        "a row of `pel_order` names no page by its earliest NACK",
        _REBUILD,
    ),
    "SK233": Kind(
        Severity.WARNING,
        "a NACK page is missing in `consumer_pel`",
        _REBUILD,
    ),
    "SK234": Kind(
        Severity.WARNING,
        "a row of `consumer_pel` names no page with NACKs of its consumer",
        _REBUILD,
    ),
    "SK251": Kind(
        Severity.ERROR,
        "a producer stands under the key of another name",
        _REBUILD,
    ),
    "SK252": Kind(
        Severity.WARNING,
        "name and number of a producer do not lead to each other",
        _REBUILD,
    ),
    "SK253": Kind(
        Severity.WARNING,
        "the number of a producer would be given again",
        _REBUILD,
    ),
    "SK254": Kind(
        Severity.WARNING,
        "pids-tracked is not the number of producers",
        _REBUILD,
    ),
    "SK255": Kind(
        Severity.WARNING,
        "iids-tracked is not the number of messages",
        _REBUILD,
    ),
    "SK256": Kind(
        Severity.WARNING,
        "the number of messages of a producer is wrong",
        _REBUILD,
    ),
    "SK257": Kind(
        Severity.WARNING,
        "a producer has no messages, or more than idmp-maxsize",
        _REBUILD,
    ),
    "SK258": Kind(
        Severity.ERROR,
        "a message stands under the key of another one",
        _REBUILD,
    ),
    "SK259": Kind(
        Severity.WARNING,
        "`idempotency` and `idempotency_order` do not agree",
        _REBUILD,
    ),
    "SK260": Kind(
        Severity.WARNING,
        "the next message of a producer would get an order that is in use",
        _REBUILD,
    ),
    "SK261": Kind(
        Severity.WARNING,
        "messages of a producer that does not exist",
        _SALVAGE,
    ),
    "SK262": Kind(
        Severity.ERROR,
        "two streams keep their messages under the same number",
        _SALVAGE,
    ),
    "SK263": Kind(
        Severity.WARNING,
        "garbage of messages that a stream still remembers",
        _REBUILD,
    ),
    "SK264": Kind(
        Severity.WARNING,
        "producers or messages of a stream that does not exist",
        _SALVAGE,
    ),
    "SK301": Kind(
        Severity.ERROR,
        "a segment file that the manifest names is missing",
        "`streamkeep archive adopt STORE FILE` takes a copy of it back; " + _SALVAGE,
    ),
    "SK302": Kind(
        Severity.ERROR,
        "a segment file is damaged",
        "put a copy of the file in its place; " + _SALVAGE,
    ),
    "SK303": Kind(
        Severity.ERROR,
        "a file holds another segment than the manifest says",
        "put the right file in its place; " + _SALVAGE,
    ),
    "SK304": Kind(
        Severity.ERROR,
        "two segments of a stream overlap",
        _SALVAGE,
    ),
    "SK305": Kind(
        Severity.ERROR,
        "archived, retired and live nodes of a stream overlap",
        _SALVAGE,
    ),
    "SK306": Kind(
        Severity.ERROR,
        "a retired node is damaged, or has nothing that was trimmed",
        _SALVAGE,
    ),
    "SK307": Kind(
        Severity.WARNING,
        "a row of the manifest differs from what its file says",
        _REBUILD,
    ),
    "SK308": Kind(
        Severity.WARNING,
        "two rows of the manifest have the same sequence",
        _REBUILD,
    ),
    "SK309": Kind(
        Severity.WARNING,
        "the archive is of a stream whose number would be given again",
        _REBUILD,
    ),
    "SK310": Kind(
        Severity.ERROR,
        "a segment has an entry that was erased",
        "`streamkeep erase STORE KEY ID` erases it again",
    ),
    "SK311": Kind(
        Severity.NOTE,
        "a file below `archive/` that no row of the manifest names",
        "`streamkeep archive adopt STORE FILE` takes a segment in; else it may be removed",
    ),
    "SK312": Kind(
        Severity.NOTE,
        "a segment that was not finished",
        "nothing; whoever works on the archive next removes it",
    ),
    "SK313": Kind(
        Severity.ERROR,
        "a segment file is named by the manifest and listed as garbage",
        "`streamkeep archive export STORE FOLDER` saves the file before the store is opened again",
    ),
}


def finding(code: str, where: str, problem: str) -> Finding:
    """Return a finding with the severity that the catalogue gives its code."""
    return Finding(code, CATALOGUE[code].severity, where, problem)


def guarded(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of one check; damage that it meets is one more, and ends it."""
    try:
        yield from findings
    except CorruptionError as error:
        yield finding("SK001", error.where, error.problem)
