"""Where the parts of a queue are in a store: names of streams, keys of rows, fields of entries.

docs/internals/jobs.md has the same as tables. The keys and the fields are permanent.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Final, Literal, NamedTuple

from streamkeep.engine.liveness.marks import mark_of
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.keys import space_prefix
from streamkeep.format.core.values import utf8

# Streams of a queue end so. A queue with such a name would take and delete what another one keeps.
ENDINGS: Final = (":high", ":low", ":dead")
QUEUES_SPACE: Final = b"jobs"  # one row per queue
GROUP: Final = b"jobs"  # of every stream of a queue
MOST_NAME: Final = 200
MOST_PART: Final = 100  # bytes of a name inside of a key

NORMAL: Final = "normal"
PRIORITIES: Final = ("high", NORMAL, "low")

# What becomes of a job: the words of Python, commands, HTTP and metrics. `unknown`: it has ended,
# and nothing of it was kept; or it never was.
JobState = Literal["waiting", "delayed", "running", "done", "failed", "cancelled", "unknown"]
# What is listed: `parked` is the part of `waiting` whose task no worker has.
ListState = Literal["waiting", "delayed", "running", "done", "failed", "cancelled", "parked"]

# First bytes of row keys.
SETTINGS: Final = b"c"
COUNTERS: Final = b"n"
NUMBERED: Final = b"j"
PLACE: Final = b"i"
SCHEDULE: Final = b"s"
GATE: Final = b"g"
HELD: Final = b"h"
UNIQUE: Final = b"q"
PAST: Final = b"x"
RESULT: Final = b"r"
EXPIRY: Final = b"e"
PERIODIC: Final = b"p"
PARKED: Final = b"u"
MINUTE: Final = b"t"
LATE: Final = b"d"  # a row of the schedule, of a retry that found no room when it was due

# What a row of the schedule is.
DELAYED: Final = b"j"  # number of a job
RETRY: Final = b"r"  # place of an entry
RUNTIME: Final = b"m"  # place of an entry, its delivery count
FIRING: Final = b"p"  # name of a periodic task
POSTPONED: Final = b"p"  # the value of a RETRY that follows no failed attempt

# Fields of an entry.
PAYLOAD: Final = b"payload"
TASK: Final = b"task"
CODEC: Final = b"codec"
ID: Final = b"id"
KEY: Final = b"key"
UNIQUE_NAME: Final = b"unique"
RETRIES: Final = b"retries"
BACKOFF: Final = b"backoff"
MAX_RUNTIME: Final = b"max_runtime"
EXPIRES: Final = b"expires"
RESULT_TTL: Final = b"result_ttl"
CONCURRENCY: Final = b"concurrency"
QUEUED: Final = b"queued"
HEADERS: Final = b"headers"
PRIORITY: Final = b"priority"  # of numbered jobs, and of dead letters
BEGUN: Final = b"begun"  # these of ended jobs
ENDED: Final = b"ended"
WORKER: Final = b"worker"
ATTEMPTS: Final = b"attempts"
HISTORY: Final = b"history"
# Fields that must be numbers or durations; a job without them can be run.
OPTIONS: Final = frozenset(
    (RETRIES, BACKOFF, MAX_RUNTIME, EXPIRES, RESULT_TTL, CONCURRENCY, QUEUED)
)
_MOST_NUMBER: Final = 1 << 53

Fields = dict[bytes, bytes]

_TIME: Final = struct.Struct(">Q")
_PLACE: Final = struct.Struct(">BQQ")
_DELIVERY: Final = struct.Struct(">BQQQ")
_PAST: Final = struct.Struct(">QQ")
_SIZE: Final = struct.Struct(">I")
_COUNTERS: Final = struct.Struct(">12Q")
_LEFT_OVER: Final = struct.Struct(">56xQQ")  # `retrying` and `parked` among the counters
MINUTES: Final = struct.Struct(">QQ")
_MINUTE_MS: Final = 60_000
MOST_DUE: Final = (1 << 63) - 1
_MOST_ATTEMPTS: Final = 10  # that are kept of a job
_MOST_ERROR: Final = 200  # characters of each


def number_of(fields: Fields, name: bytes) -> int:
    """Return the number in a field, 0 without it; raise ValueError for anything else."""
    given = fields.get(name)
    if given is None:
        return 0
    number = int(given)
    if not 0 <= number <= _MOST_NUMBER:
        raise ValueError(f"{name.decode()} is {number}")
    return number


def number_or_0(fields: Fields, name: bytes) -> int:
    """Return the number in a field; 0 for anything else, which another program has put."""
    try:
        return number_of(fields, name)
    except ValueError:
        return 0


class Place(NamedTuple):
    priority: int
    ms: int
    seq: int

    def pack(self) -> bytes:
        return _PLACE.pack(*self)

    @property
    def entry_id(self) -> str:
        return f"{self.ms}-{self.seq}"


PLACE_SIZE: Final = _PLACE.size


def unpack_place(data: bytes) -> Place:
    return Place(*_PLACE.unpack(data[:PLACE_SIZE]))


def place_of(priority: int, entry_id: bytes) -> Place:
    ms, _, seq = entry_id.partition(b"-")
    return Place(priority, int(ms), int(seq))


class Names:
    def __init__(self, name: object) -> None:
        self.name = utf8(name, "the name of a queue")
        self.text = self.name.decode()
        if not 0 < len(self.name) <= MOST_NAME:
            raise ArgumentError(
                f"the name of a queue has 1 to {MOST_NAME} bytes, not {len(self.name)}: {name!r}"
            )
        self.space = b"jobs:" + self.name
        self.prefix: bytes = space_prefix(self.space)  # of the keys of its rows
        self.streams = (self.name + b":high", self.name, self.name + b":low")
        self.dead = self.name + b":dead"
        # Callers wait on this key until a queue is drained.
        self.end_bell = self.space + b"\0end"

    def mark_of(self, place: Place, deliveries: int) -> bytes:
        """Return the mark of a delivery, which says that a process works on it."""
        return mark_of(self.streams[place.priority] + _DELIVERY.pack(*place, deliveries))

    def result_bell(self, job_id: object) -> bytes:
        """Return the key on which callers wait for the result of a job."""
        return self.space + b"\0r" + utf8(job_id, "the ID of a job")


# --- keys of rows -------------------------------------------------------------------------------


def pack_time(ms: int) -> bytes:
    return _TIME.pack(ms)


def unpack_time(data: bytes) -> int:
    return int(_TIME.unpack_from(data)[0])


def due_key(due_ms: int, kind: bytes, reference: bytes) -> bytes:
    return SCHEDULE + _TIME.pack(min(due_ms, MOST_DUE)) + kind + reference


class Due(NamedTuple):
    key: bytes
    due_ms: int
    kind: bytes
    reference: bytes


def parse_due(key: bytes) -> Due:
    """Return what a key of the schedule says, also one under LATE."""
    return Due(key, unpack_time(key[1:9]), key[9:10], key[10:])


def held_prefix(gate: bytes) -> bytes:
    return HELD + bytes((len(gate),)) + gate


def parked_prefix(task: bytes) -> bytes:
    name = short(task)
    return PARKED + bytes((len(name),)) + name


def parked_key(fields: Fields, place: Place) -> bytes:
    return parked_prefix(fields.get(TASK, b"")) + place.pack()


# --- values of rows -----------------------------------------------------------------------------


def pack_fields(fields: Fields) -> bytes:
    parts: list[bytes] = []
    for name, value in fields.items():
        parts += (_SIZE.pack(len(name)), name, _SIZE.pack(len(value)), value)
    return b"".join(parts)


def unpack_fields(data: bytes) -> Fields:
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return dict(zip(parts[::2], parts[1::2], strict=True))


DIED: Final = "the worker died"  # the error of a run that is no attempt


class Attempt(NamedTuple):
    """A run of a job that failed, or whose worker died, and that did not end the job.

    Attributes:
        begun_ms, ended_ms: Unix milliseconds; `begun_ms` is 0 if that is not known. The end of a
            run whose worker died is when another worker took the job.
        error: what was raised, or that the worker died.
    """

    begun_ms: int
    ended_ms: int
    worker: str
    error: str


class Past(NamedTuple):
    """What is kept of the former runs of a job that has not ended.

    Attributes:
        deaths: how many workers died while they ran it.
        lost: how many deliveries ended with the death of a worker.
        history: the last runs, as `parse_history` takes them.
    """

    deaths: int = 0
    lost: int = 0
    history: bytes = b""

    def pack(self) -> bytes:
        return _PAST.pack(self.deaths, self.lost) + self.history

    def after(self, attempt: Attempt) -> Past:
        attempt = attempt._replace(error=attempt.error[:_MOST_ERROR])
        kept = [*parse_history(self.history), attempt][-_MOST_ATTEMPTS:]
        return self._replace(history=json.dumps(kept).encode())


def parse_past(data: bytes | None) -> Past:
    if data is None:
        return Past()
    deaths, lost = _PAST.unpack_from(data)
    return Past(deaths, lost, data[_PAST.size :])


def parse_history(data: bytes) -> list[Attempt]:
    """Return the runs in a field `history`; none if another program has put something else."""
    try:
        found = [Attempt(*one) for one in json.loads(data or b"[]")]
    except (ValueError, TypeError, RecursionError):
        return []
    kinds = [tuple(map(type, one)) for one in found]
    return found if all(one == (int, int, str, str) for one in kinds) else []


def left_over(counters: bytes) -> tuple[int, int]:
    """Return how many jobs wait for a retry, and for a worker that knows their task."""
    if not counters:
        return 0, 0
    retrying, parked = _LEFT_OVER.unpack_from(counters)
    return int(retrying), int(parked)


class Counters:
    """The counters of a queue.

    Attributes:
        over: number and row of a minute that this transaction has found to be over.
    """

    def __init__(self, data: bytes) -> None:
        values = _COUNTERS.unpack(data) if data else (1, *bytes(11))
        self.next_number: int = values[0]
        self.done: int = values[1]  # jobs that ended well
        self.failed: int = values[2]  # attempts that failed
        self.dead: int = values[3]  # dead letters that were made
        self.cancelled: int = values[4]
        self.delayed: int = values[5]  # jobs that wait for their time
        self.held: int = values[6]  # jobs that wait at a gate
        self.retrying: int = values[7]  # pending entries without a consumer that wait for a retry
        self.parked: int = values[8]  # pending entries whose task no worker has known
        self.minute: int = values[9]  # since 1970, in which a job ended or an attempt failed
        self.minute_done: int = values[10]
        self.minute_failed: int = values[11]
        self.over: tuple[int, bytes] | None = None

    def count_done(self, count: int, now_ms: int) -> None:
        self.done += count
        self._turn(now_ms)
        self.minute_done += count

    def count_failed(self, now_ms: int) -> None:
        self.failed += 1
        self._turn(now_ms)
        self.minute_failed += 1

    def _turn(self, now_ms: int) -> None:
        """Begin another minute if it is time; a clock that was set back begins one, too."""
        minute = now_ms // _MINUTE_MS
        if minute != self.minute:
            if self.minute:
                self.over = self.minute, MINUTES.pack(self.minute_done, self.minute_failed)
            self.minute, self.minute_done, self.minute_failed = minute, 0, 0

    def pack(self) -> bytes:
        return _COUNTERS.pack(
            self.next_number,
            self.done,
            self.failed,
            self.dead,
            self.cancelled,
            self.delayed,
            self.held,
            self.retrying,
            self.parked,
            self.minute,
            self.minute_done,
            self.minute_failed,
        )


def short(name: bytes, most: int = MOST_PART) -> bytes:
    """Return a name as a part of a key: the name itself, or its beginning and its BLAKE2b-256."""
    if len(name) <= most:
        return name
    return name[: most - 32] + hashlib.blake2b(name, digest_size=32).digest()


def part_of(text: object, what: str) -> bytes:
    """Return a text as a part of a key.

    Args:
        text: of a program; only its type hints say that it is a str.
        what: names it in the ArgumentError for one that is no text, or not UTF-8.
    """
    return short(utf8(text, what))
