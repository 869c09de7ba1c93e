"""Tasks of the tests."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from streamkeep.integrations.django.interface import TaskContext
from streamkeep.jobs import Retry, current_job

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def add(one: int, other: int = 0) -> int:
    return one + other


@task
async def add_later(one: int, other: int = 0) -> int:
    await asyncio.sleep(0)
    return one + other


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
def leave() -> None:
    raise SystemExit("leaving")


class BareRetry(Retry):
    """It has no attributes."""

    def __init__(self) -> None: ...


@task
def raise_bare_retry() -> None:
    raise BareRetry


@task
def return_object() -> object:
    return object()


@task
def return_much(size: int) -> str:
    return "x" * size


@task(takes_context=True)
def look(context: TaskContext, one: str) -> list[Any]:
    result = context.task_result
    return [result.id, result.status, context.attempt, result.args, one]


@task
def nap(seconds: float) -> None:
    time.sleep(seconds)


@task
def append_with_result(name: str) -> str:
    """Append to a stream in the transaction that ends the job."""
    current_job().transaction.xadd("names", {"name": name})
    return name


note: Any = None
deadly = False


@task
def live(number: int, how: str) -> int:
    """Note that it begins, and end as it was told."""
    note(number, "began")
    if how == "dies" and deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fails" or (how == "fails_first" and current_job().attempt == 1):
        raise ValueError(number)
    return number * 2
