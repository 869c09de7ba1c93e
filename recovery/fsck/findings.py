"""Findings: one problem at one place each; and every code, with severity, meaning and advice.

Codes are permanent: SK0 the store, SK1 streams, SK2 groups and pending entries, SK25 and SK26
idempotent XADD, SK3 the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError


class Severity(IntEnum):
    """The severity of a finding."""

    NOTE = 0  # for information; nothing is damaged
    WARNING = 1  # derived data is wrong; repair rebuilds it without loss
    ERROR = 2  # primary data is damaged


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem at one place. `code` is permanent; `CATALOGUE` explains it.

    Attributes:
        elsewhere: it is of what only the object store of the archive has: the folder of the store,
            and a copy of that, may be whole.
    """

    code: str
    severity: Severity
    where: str
    problem: str
    elsewhere: bool = False

    def __str__(self) -> str:
        return f"{self.severity.name.lower()} {self.code}: {self.where}: {self.problem}"

    def as_json(self) -> dict[str, Any]:
        return {
            "type": "finding",
            "code": self.code,
            "severity": self.severity.name.lower(),
            "where": self.where,
            "problem": self.problem,
        }


def quoted(name: bytes) -> str:
    """Return a name as findings show it: as quoted text if it is printable UTF-8, else as bytes."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return repr(name)
    return repr(text) if text.isprintable() else repr(name)


class Kind(NamedTuple):
    """One kind of finding."""

    severity: Severity
    meaning: str
    advice: str


NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR
REBUILD: Final = "`streamkeep repair STORE --output NEW` rebuilds it without loss"
SALVAGE: Final = (
    "`streamkeep repair STORE --output NEW` saves what is readable and lists what is lost"
)


def _reopened(what: str) -> str:
    return f"open the store for writing once, which {what}; then check again"


_KINDS: Final[tuple[tuple[str, Severity, str, str], ...]] = (
    # the store
    ("SK001", ERROR, "a row cannot be decoded, or its checksum is wrong", SALVAGE),
    ("SK002", ERROR, "a row of `meta` is missing or damaged", REBUILD),
    ("SK003", ERROR, "a meta page of `data.mdb` is damaged, or the file is unreadable", SALVAGE),
    ("SK004", ERROR, "a page of `data.mdb` is damaged", SALVAGE),
    ("SK005", ERROR, "a page of `data.mdb` is used twice, or used and free", SALVAGE),
    ("SK006", WARNING, "pages of `data.mdb` are neither used nor free: lost space", REBUILD),
    ("SK007", WARNING, "LMDB's counters of a table are wrong", REBUILD),
    ("SK008", WARNING, "`data.mdb` has a sub-database that no format version has", REBUILD),
    ("SK009", ERROR, "a sub-database is missing", SALVAGE),
    ("SK010", ERROR, "a row with the name of a stream has the key of another name", REBUILD),
    ("SK011", WARNING, "two names refer to the same stream", REBUILD),
    ("SK012", ERROR, "a name refers to a stream that has no record", SALVAGE),
    ("SK013", WARNING, "a stream record has no name in `keys`", SALVAGE),
    ("SK014", ERROR, "a counter of `meta` would give a number that is in use", REBUILD),
    ("SK015", WARNING, "the nodes of an existing stream are listed as garbage", REBUILD),
    ("SK016", WARNING, "the name of a stream is missing or another one in `names`", REBUILD),
    ("SK020", ERROR, "there is no checkpoint, without which recovery is impossible", REBUILD),
    (
        "SK021",
        WARNING,
        "one of the two checkpoints is damaged",
        _reopened("writes a new checkpoint"),
    ),
    ("SK022", NOTE, "the store needs recovery, as after a power loss", _reopened("recovers it")),
    ("SK023", ERROR, "the checkpoint belongs to another store", REBUILD),
    (
        "SK024",
        ERROR,
        "the journal has a gap or damage, and commits after it that were made cannot be recovered",
        SALVAGE + "; or open the store with `force_recovery`, which loses these commits",
    ),
    (
        "SK025",
        NOTE,
        "the folder of the store contains an unknown file",
        "move the file elsewhere if you know it; the store does not need it",
    ),
    (
        "SK026",
        NOTE,
        "`data.mdb` lacks commits that the journal has: a process was killed, the kernel lost "
        "unwritten pages, or the files were copied while in use",
        _reopened("replays the commits"),
    ),
    (
        "SK027",
        WARNING,
        "the journal is damaged; `data.mdb` has its commits, but a power loss would take them",
        _reopened("makes a new checkpoint"),
    ),
    (
        "SK028",
        ERROR,
        "`data.mdb` and the journal have different rows; recovery takes those of the journal",
        'keep a copy of the store; `force_recovery="data.mdb"` takes the rows of `data.mdb`',
    ),
    # streams
    ("SK101", WARNING, "the length differs from the number of live entries", REBUILD),
    ("SK102", WARNING, "first_id is not the ID of the first live entry", REBUILD),
    ("SK103", WARNING, "last live ID is not the ID of the last live entry", REBUILD),
    ("SK104", ERROR, "an ID is above last_generated_id, so XADD may give it again", REBUILD),
    ("SK105", WARNING, "entries_added is below the length", REBUILD),
    ("SK106", WARNING, "max_deleted_id is above last_generated_id", REBUILD),
    ("SK107", WARNING, "the number or the size of the sealed nodes is wrong", REBUILD),
    ("SK108", WARNING, "the number of tombstones is wrong", REBUILD),
    ("SK110", ERROR, "a macro node is damaged", SALVAGE),
    ("SK111", ERROR, "the IDs of a macro node are not above those of the node before", SALVAGE),
    ("SK112", WARNING, "a macro node belongs to a stream that does not exist", SALVAGE),
    ("SK113", WARNING, "a slot is marked as trimmed but is not a tombstone", REBUILD),
    ("SK114", ERROR, "a macro node has the key of another node or stream", SALVAGE),
    # groups and pending entries
    ("SK201", ERROR, "an entry is pending for a consumer that does not exist", SALVAGE),
    ("SK202", ERROR, "a row with the name of a group has the key of another name", REBUILD),
    ("SK203", WARNING, "a group belongs to a stream that does not exist", SALVAGE),
    ("SK204", ERROR, "two groups have the same number", SALVAGE),
    ("SK205", WARNING, "the rows of an existing group are listed as garbage", REBUILD),
    ("SK206", WARNING, "consumers or NACKs belong to a group that does not exist", SALVAGE),
    ("SK207", WARNING, "the number of pending entries is wrong", REBUILD),
    ("SK208", WARNING, "the number of unowned pending entries is wrong", REBUILD),
    ("SK209", WARNING, "the number of consumers is wrong", REBUILD),
    ("SK210", WARNING, "the number of pending entries of a consumer is wrong", REBUILD),
    ("SK211", ERROR, "a NACK page is damaged", SALVAGE),
    ("SK212", ERROR, "the IDs of a NACK page are not above those of the page before", SALVAGE),
    ("SK213", ERROR, "a group has NACKs both in its own row and in pages", SALVAGE),
    ("SK214", WARNING, "a NACK has a wrong time in its order of delivery", REBUILD),
    ("SK215", WARNING, "the update counter of a group is not above that of a NACK", REBUILD),
    ("SK216", WARNING, "entries_read is below -1", REBUILD),
    ("SK221", ERROR, "a row with the name of a consumer has the key of another name", REBUILD),
    ("SK222", WARNING, "name and number of a consumer contradict each other", REBUILD),
    ("SK223", WARNING, "the number of a consumer would be given again", REBUILD),
    ("SK224", WARNING, "a lease belongs to no consumer, or to deliveries to come", REBUILD),
    ("SK231", WARNING, "`pel_order` has no row for a NACK page", REBUILD),
    ("SK232", WARNING, "a row of `pel_order` does not name a page by its earliest NACK", REBUILD),
    ("SK233", WARNING, "`consumer_pel` has no row for a NACK page and one of its owners", REBUILD),
    ("SK234", WARNING, "a row of `consumer_pel` names a page without its consumer", REBUILD),
    # idempotent XADD
    ("SK251", ERROR, "a row with the name of a producer has the key of another name", REBUILD),
    ("SK252", WARNING, "name and number of a producer contradict each other", REBUILD),
    ("SK253", WARNING, "the number of a producer would be given again", REBUILD),
    ("SK254", WARNING, "pids-tracked differs from the number of producers", REBUILD),
    ("SK255", WARNING, "iids-tracked differs from the number of messages", REBUILD),
    ("SK256", WARNING, "the number of messages of a producer is wrong", REBUILD),
    ("SK257", WARNING, "a producer has no messages, or more than idmp-maxsize", REBUILD),
    ("SK258", ERROR, "a row of a message has the key of another message", REBUILD),
    ("SK259", WARNING, "`idempotency` and `idempotency_order` contradict each other", REBUILD),
    ("SK260", WARNING, "a producer's next message would get an order that is in use", REBUILD),
    ("SK261", WARNING, "messages belong to a producer that does not exist", SALVAGE),
    ("SK262", ERROR, "two streams store their messages under the same number", SALVAGE),
    ("SK263", WARNING, "messages that a stream still tracks are listed as garbage", REBUILD),
    ("SK264", WARNING, "producers or messages belong to a stream that does not exist", SALVAGE),
    # the archive
    (
        "SK301",
        ERROR,
        "a segment file that the manifest names is missing",
        "`streamkeep archive adopt STORE FILE` restores it from a copy; " + SALVAGE,
    ),
    ("SK302", ERROR, "a segment file is damaged", "replace the file with a sound copy; " + SALVAGE),
    (
        "SK303",
        ERROR,
        "a file contains another segment than the manifest says",
        "replace it with the right file; " + SALVAGE,
    ),
    ("SK304", ERROR, "two segments of a stream overlap", SALVAGE),
    ("SK305", ERROR, "archived, retired and live nodes of a stream overlap", SALVAGE),
    ("SK306", ERROR, "a retired node is damaged, or none of its entries was trimmed", SALVAGE),
    ("SK307", WARNING, "a row of the manifest differs from its segment file", REBUILD),
    ("SK308", WARNING, "two rows of the manifest have the same sequence", REBUILD),
    ("SK309", WARNING, "the number of an archived stream would be given again", REBUILD),
    (
        "SK310",
        ERROR,
        "a segment contains an erased entry",
        "`streamkeep erase STORE KEY ID` erases it again",
    ),
    (
        "SK311",
        NOTE,
        "no row of the manifest names a file below `archive/`",
        "`streamkeep archive adopt STORE FILE` adds a segment to the archive; otherwise remove it",
    ),
    (
        "SK312",
        NOTE,
        "a segment file was not finished",
        "nothing to do: the next archiver removes it",
    ),
    (
        "SK313",
        ERROR,
        "the manifest names a segment file that is listed as garbage",
        "`streamkeep archive export STORE FOLDER` saves the file before the store is opened again",
    ),
    (
        "SK314",
        WARNING,
        "the object store of the archive does not answer; what is only there was not checked",
        "check the network and the credentials, then run fsck again",
    ),
    (
        "SK315",
        WARNING,
        "the archive in the object store is not what the store last wrote there",
        "`streamkeep archive run STORE`, for a sealed segment with `--seal`, writes it again, or "
        "says what to do",
    ),
    (
        "SK316",
        NOTE,
        "another copy of the store, or this one later, has published to the archive",
        "nothing to do for a backup; a restored one publishes elsewhere: `streamkeep archive run "
        "STORE --to URI`",
    ),
    (
        "SK317",
        WARNING,
        "a folder below `archive/` cannot be listed; files in it that no row names are not known",
        "look at the disk and at the rights of the folder, then run fsck again",
    ),
)
CATALOGUE: Final[dict[str, Kind]] = {
    code: Kind(severity, meaning, advice) for code, severity, meaning, advice in _KINDS
}


def finding(code: str, where: str, problem: str, *, elsewhere: bool = False) -> Finding:
    """Return a finding with the severity of its code."""
    return Finding(code, CATALOGUE[code].severity, where, problem, elsewhere)


def guarded(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of one check. A CorruptionError ends the check and becomes a finding."""
    try:
        yield from findings
    except CorruptionError as error:
        yield finding("SK001", error.where, error.problem)


class Progress:
    """The progress of a check, in steps: a step is a page of LMDB's trees, or a macro node.

    Attributes:
        total: number of steps; 0 until it is known.
        done: steps completed.
        size_bytes: size of all pages that the store uses.
        streams, nodes: how many were checked.
        commit_number: the commit as of which the store is checked; 0 if it is unknown.
    """

    def __init__(self, moved: Callable[[Progress], None] | None = None) -> None:
        self.total = 0
        self.done = 0
        self.size_bytes = 0
        self.streams = 0
        self.nodes = 0
        self.commit_number = 0
        self._moved = moved

    def begin(self, steps: int) -> None:
        self.total = steps
        self.advance(0)

    def advance(self, steps: int) -> None:
        """Add completed steps, and report the progress."""
        self.done += steps
        if self._moved is not None:
            self._moved(self)


class Scope:
    """Options of the checks: `quick` reads only some entries, `progress` receives the progress."""

    def __init__(self, quick: bool = False, progress: Progress | None = None) -> None:
        self.quick = quick
        self.progress = progress or Progress()
