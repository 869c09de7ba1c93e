"""The options of jobs and tasks, each declared once: keyword, field of an entry, check and default.

An option that is left out, or None, means what the task says, or else the queue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypedDict

from streamkeep.format.core.durations import LONGEST_MS, Duration, milliseconds
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given, utf8, whole
from streamkeep.jobs import layout
from streamkeep.jobs.layout import Fields, number_of

# --- durations, times and backoffs, as programs write them: "5m", 90, timedelta, "2s..10m" -------

_FACTOR: Final = 2.0


def unix_ms(value: datetime, name: str) -> int:
    """Return an aware datetime in Unix milliseconds; raise ArgumentError for any other value."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ArgumentError(f"{name} must be a datetime with a time zone, not {as_given(value)}")
    found = round(value.timestamp() * 1000)
    if not 0 <= found <= 2 * LONGEST_MS:
        raise ArgumentError(f"{name} must be between 1970 and 2170, not {value!r}")
    return found


class Backoff(NamedTuple):
    """How long a job waits before its next attempt: twice as long each time, with jitter."""

    first_ms: int
    most_ms: int

    def delay_ms(self, failures: int) -> int:
        """Return the wait after this many failed attempts, at random between half of it and all."""
        whole = min(self.first_ms * _FACTOR ** min(max(failures - 1, 0), 60), self.most_ms)
        return round(whole * random.uniform(0.5, 1.0))

    def __str__(self) -> str:
        return f"{self.first_ms}ms..{self.most_ms}ms"


def backoff_of(value: str | Duration | Backoff) -> Backoff:
    """Return a backoff: "2s..10m" from two seconds up to ten minutes; one duration for a fixed one.

    Raises:
        ArgumentError: it is something else.
    """
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str) and ".." in value:
        first, _, most = value.partition("..")
        found = Backoff(milliseconds(first, "backoff"), milliseconds(most, "backoff"))
        if found.first_ms > found.most_ms:
            raise ArgumentError(f"backoff must begin with its shorter wait, not {value!r}")
        return found
    fixed = milliseconds(value, "backoff")
    return Backoff(fixed, fixed)


DEFAULT_BACKOFF: Final = "1s..10m"


# --- options ------------------------------------------------------------------------------------

Errors = type[BaseException] | tuple[type[BaseException], ...]

DEFAULT_RESULT_TTL_MS: Final = 3_600_000


class SharedOptions(TypedDict, total=False):
    """Options of one job, or of all jobs of a task; `Queue.put` describes them."""

    key: str | None
    unique: str | None
    priority: str | None
    retries: int | None
    backoff: str | Duration | Backoff | None
    max_runtime: Duration | None
    result_ttl: Duration | None
    expires: Duration | datetime | None


class Options(SharedOptions, total=False):
    """Options of one job; `Queue.put` describes them."""

    delay: Duration | None
    at: datetime | None
    headers: Mapping[str, str] | None
    codec: str | None


class TaskOptions(SharedOptions, total=False):
    """Options of a task; `Queue.task` describes them."""

    name: str | None
    retry_on: Errors
    give_up_on: Errors
    concurrency: int


OF_A_JOB: Final = SharedOptions.__annotations__.keys() | Options.__annotations__.keys()
_OF_A_TASK: Final = SharedOptions.__annotations__.keys() | TaskOptions.__annotations__.keys()
_PutWith = Literal["key", "unique", "priority", "expires"]
PUT_WITH: Final[tuple[_PutWith, ...]] = ("key", "unique", "priority", "expires")  # others: policy


class Policy(NamedTuple):
    """The options of a job for its end.

    Attributes:
        retries: how many attempts may follow the first.
        max_runtime_ms: 0 for no limit.
        result_ttl_ms: how long the result is kept; 0 for not at all.
        max_deaths: the number of workers that died while they ran it that makes it a dead letter.
        concurrency: how many jobs of its task may run at a time; 0 for no limit.
    """

    retries: int = 3
    backoff: Backoff = backoff_of(DEFAULT_BACKOFF)
    max_runtime_ms: int = 0
    result_ttl_ms: int = DEFAULT_RESULT_TTL_MS
    max_deaths: int = 5
    concurrency: int = 0

    def of_job(self, fields: Fields) -> Policy:
        """Return the policy of a job: this one, with the options in its fields.

        Raises:
            ValueError, ArgumentError: another program has put something else into them.
        """
        changes: dict[str, Any] = {}
        for _, field, member, _ in _IN_FIELDS:
            if field in fields:
                changes[member] = (
                    backoff_of(fields[field].decode())
                    if field == layout.BACKOFF
                    else number_of(fields, field)
                )
        return self._replace(**changes) if changes else self

    def with_options(self, options: Mapping[str, Any]) -> Policy:
        """Return this one with the options that are given; raise ArgumentError for a wrong one."""
        return self._replace(
            **{
                member: check(options[name], name)
                for name, _, member, check in _IN_FIELDS
                if options.get(name) is not None
            }
        )

    def pack(self) -> list[int]:
        return [self.retries, *self.backoff, *self[2:5]]

    @staticmethod
    def unpack(values: list[int]) -> Policy:
        return Policy(values[0], Backoff(values[1], values[2]), *values[3:6])


# The options that an entry carries and `Policy` has: the keyword, the field, the member, and what
# makes that member of a value that a program gives. The text of the member is in the field.
_Check = Callable[[Any, str], Any]
_IN_FIELDS: Final[tuple[tuple[str, bytes, str, _Check], ...]] = (
    ("retries", layout.RETRIES, "retries", partial(whole, least=0)),
    ("backoff", layout.BACKOFF, "backoff", lambda value, name: backoff_of(value)),
    ("max_runtime", layout.MAX_RUNTIME, "max_runtime_ms", milliseconds),
    ("result_ttl", layout.RESULT_TTL, "result_ttl_ms", milliseconds),
)


def fields_of(options: Mapping[str, Any]) -> Fields:
    """Return the fields of an entry for its options; raise ArgumentError for a wrong one."""
    return {
        field: str(check(options[name], name)).encode()
        for name, field, _, check in _IN_FIELDS
        if options.get(name) is not None
    }


def check_options(options: Options) -> Options:
    """Return the options of a job that are given; raise TypeError for an unknown one."""
    return _given(options, OF_A_JOB, "a job")  # type: ignore[return-value]  # of known names


def check_task_options(options: TaskOptions) -> TaskOptions:
    """Return the options of a task that are given; raise TypeError for an unknown one."""
    return _given(options, _OF_A_TASK, "a task")  # type: ignore[return-value]  # of known names


def _given(options: Mapping[str, Any], known: set[str], what: str) -> dict[str, Any]:
    for name in options:
        if name not in known:
            raise TypeError(
                f"{what} has no option {name!r}; its options: {', '.join(sorted(known))}"
            )
    if options.get("name") is not None:
        utf8(options["name"], "name")
    return {name: value for name, value in options.items() if value is not None}


def check_priority(priority: str | None) -> int:
    """Return the number of a priority; raise ArgumentError if there is none of that name."""
    found = layout.NORMAL if priority is None else priority
    if found not in layout.PRIORITIES:
        raise ArgumentError(f"priority must be one of {layout.PRIORITIES}, not {priority!r}")
    return layout.PRIORITIES.index(found)
