"""What happens to a job that fails, and how long it may run: options of the task, or of the job."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from streamkeep.jobs.layout import BACKOFF, MAX_RUNTIME, RESULT_TTL, RETRIES, Fields, number_of
from streamkeep.jobs.times import DEFAULT_BACKOFF, Backoff, backoff_of

DEFAULT_RETRIES: Final = 3
DEFAULT_RESULT_TTL_MS: Final = 3_600_000
DEFAULT_MAX_DEATHS: Final = 5


class Policy(NamedTuple):
    """The options of a job for its end.

    Attributes:
        retries: how many attempts may follow the first.
        max_runtime_ms: 0 for no limit.
        result_ttl_ms: how long the result is kept; 0 for not at all.
        max_deaths: the number of workers that died while they ran it that makes it a dead letter.
    """

    retries: int = DEFAULT_RETRIES
    backoff: Backoff = DEFAULT_BACKOFF
    max_runtime_ms: int = 0
    result_ttl_ms: int = DEFAULT_RESULT_TTL_MS
    max_deaths: int = DEFAULT_MAX_DEATHS

    def of_job(self, fields: Fields) -> Policy:
        """Return the policy of a job: this one, with the options in its fields.

        Raises:
            ValueError, ArgumentError: another program has put something else into them.
        """
        changes: dict[str, Any] = {}
        if RETRIES in fields:
            changes["retries"] = number_of(fields, RETRIES)
        if BACKOFF in fields:
            changes["backoff"] = backoff_of(fields[BACKOFF].decode())
        if MAX_RUNTIME in fields:
            changes["max_runtime_ms"] = number_of(fields, MAX_RUNTIME)
        if RESULT_TTL in fields:
            changes["result_ttl_ms"] = number_of(fields, RESULT_TTL)
        return self._replace(**changes) if changes else self

    def pack(self) -> list[int]:
        """Return it for JSON."""
        return [*self[:1], *self.backoff, *self[2:]]

    @staticmethod
    def unpack(values: list[int]) -> Policy:
        """Return what `pack` made."""
        return Policy(values[0], Backoff(values[1], values[2]), *values[3:6])
