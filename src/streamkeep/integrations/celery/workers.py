"""The Celery worker of this process: which tasks it has, and which messages it has begun.

A message of another task stays in its queue for a worker that has it, such as one of the next
version of the application. Without this, Celery would reject the message.

The death of a worker counts for the messages whose tasks its pool had begun, not for those that it
had fetched in advance.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery.signals import worker_init, worker_process_init
from celery.worker.request import Request

from streamkeep.integrations.celery import stores

_apps: list[Any] = []  # of the worker that runs in this process


def follow() -> None:
    """Note the application of a worker when it starts."""
    worker_init.connect(_note, weak=False, dispatch_uid="streamkeep")
    worker_process_init.connect(stores.watch, weak=False, dispatch_uid="streamkeep")


def _note(sender: Any, **_: Any) -> None:
    _apps[:] = [sender.app]


def _follow_requests() -> None:
    """Have each message begun when the pool accepts its task.

    Celery sends no signal then to the process that has the messages: `task_prerun` is for the child
    that runs the task. Each pool calls this method, of a subclass, too.
    """
    accept = Request.on_accepted

    def on_accepted(self: Any, pid: int, time_accepted: float) -> None:
        qos = getattr(self.message.channel, "qos", None)
        job = getattr(qos, "jobs", {}).get(self.message.delivery_tag)
        if job is not None:
            job.begin()
        accept(self, pid, time_accepted)

    Request.on_accepted = on_accepted


_follow_requests()


def known_tasks() -> Collection[bytes] | None:
    """Return the names of its tasks, and the empty one of other messages; None for all."""
    if not _apps:
        return None
    return frozenset([b"", *(name.encode() for name in _apps[0].tasks)])
