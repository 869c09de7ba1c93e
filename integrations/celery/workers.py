"""Which tasks the Celery worker of this process has.

A message of another task stays in its queue for a worker that has it, such as one of the next
version of the application. Without this, Celery would reject the message.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery.signals import worker_init

_apps: list[Any] = []  # of the worker that runs in this process


def follow() -> None:
    """Note the application of a worker when it starts."""
    worker_init.connect(_note, weak=False, dispatch_uid="streamkeep")


def _note(sender: Any, **_: Any) -> None:
    _apps[:] = [sender.app]


def known_tasks() -> Collection[bytes] | None:
    """Return the names of its tasks, and the empty one of other messages; None for all."""
    if not _apps:
        return None
    return frozenset([b"", *(name.encode() for name in _apps[0].tasks)])
