"""The options of jobs and tasks, each declared once: keywords of `put`, `options`, `task` and more.

An option that is left out, or None, means what the task says, or else the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from streamkeep.jobs.times import Backoff, Duration

Errors = type[BaseException] | tuple[type[BaseException], ...]


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


NO_OPTIONS: Final = Options()
_OF_A_JOB: Final = SharedOptions.__annotations__.keys() | Options.__annotations__.keys()
_OF_A_TASK: Final = SharedOptions.__annotations__.keys() | TaskOptions.__annotations__.keys()


def check_options(options: Options) -> Options:
    """Return the options of a job that are given; raise TypeError for an unknown one."""
    _check_names(options, _OF_A_JOB, "a job")
    return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]  # mypy sees no keys in items()


def check_task_options(options: TaskOptions) -> TaskOptions:
    """Return the options of a task that are given; raise TypeError for an unknown one."""
    _check_names(options, _OF_A_TASK, "a task")
    return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]  # mypy sees no keys in items()


def _check_names(options: Mapping[str, Any], known: set[str], what: str) -> None:
    for name in options:
        if name not in known:
            raise TypeError(
                f"{what} has no option {name!r}; its options: {', '.join(sorted(known))}"
            )
