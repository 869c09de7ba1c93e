"""The backend of Django's tasks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections, transaction

from streamkeep.format.core.errors import ArgumentError, StreamkeepError
from streamkeep.integrations.django import interface
from streamkeep.integrations.django.queues import QueueSettings, TaskQueue, queue_of
from streamkeep.integrations.django.records import VALUES, Record, new_id
from streamkeep.integrations.django.records import load as load_record
from streamkeep.integrations.django.results import aware, resolve, result_of, time_of
from streamkeep.jobs.tracing import outgoing

_OWN_OPTIONS = {"path", "enqueue_on_commit", "database", "outbox"}
_OUTBOX_APP = "streamkeep.integrations.django.outbox"
_APP = "streamkeep.integrations.django"


def backend_named(alias: str) -> StreamkeepBackend:
    """Return a backend of the project, for a command.

    Raises:
        CommandError: there is none, or it does not keep its tasks in a store.
    """
    if alias not in interface.task_backends.settings:
        known = ", ".join(sorted(interface.task_backends.settings))
        raise CommandError(f"TASKS has no backend {alias!r}; it has {known}")
    backend = interface.task_backends[alias]
    if not isinstance(backend, StreamkeepBackend):
        kind = type(backend).__name__
        raise CommandError(f"TASKS[{alias!r}] is a {kind}; next: name another with --backend")
    return backend


class StreamkeepBackend(interface.BaseTaskBackend):
    """Keeps tasks in a store, from which `manage.py streamkeep_worker` runs them.

    Members of `OPTIONS`:

        path                the directory of the store; it is made at the first use
        enqueue_on_commit   True: in a transaction of `database`, a task is enqueued when that
                            commits; False: at once
        database            the alias of the database whose commit counts; "default"
        outbox              True: write the task into the table of `django.outbox` in that database,
                            from which `manage.py streamkeep_forward` enqueues it
        retries, backoff    attempts after the first, and the waits before them; 0, "1s..10m"
        result_ttl          how long results are kept; "7d"
        max_runtime         after which an attempt has failed; 0 for no limit
        max_deaths          a task has failed after this many workers died with it; 5
        max_result_bytes    of the arguments of a task, and of its result
        sync                as in `streamkeep.open`; "commit"
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Check the options.

        Raises:
            ImproperlyConfigured: one is missing, unknown or wrong.
        """
        super().__init__(alias, params)
        given = dict(self.options)
        unknown = sorted(given.keys() - _OWN_OPTIONS - set(QueueSettings._fields))
        where = f"TASKS[{alias!r}]['OPTIONS']"
        if unknown:
            known = ", ".join(sorted(_OWN_OPTIONS | set(QueueSettings._fields)))
            raise ImproperlyConfigured(f"{where}: unknown {', '.join(unknown)}; known: {known}")
        path = given.pop("path", None)
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise ImproperlyConfigured(
                f"{where} must have 'path', the directory of the store, not {path!r}; next: add "
                "'path': BASE_DIR / 'tasks.store'"
            )
        self.path = str(path)
        self.enqueue_on_commit = bool(given.pop("enqueue_on_commit", True))
        self.database = str(given.pop("database", "default"))
        self.uses_outbox = bool(given.pop("outbox", False))
        if self.uses_outbox:
            self._check_table(where)
        self._settings = QueueSettings(**given)
        try:
            self.queue("default")
        except ArgumentError as error:
            raise ImproperlyConfigured(f"{where}: {error}") from error

    def _check_table(self, where: str) -> None:
        """Raise ImproperlyConfigured if another backend uses the same table for another store."""
        for alias, params in interface.task_backends.settings.items():
            other = params.get("OPTIONS", {})
            if (
                other.get("outbox")
                and other.get("database", "default") == self.database
                and not self.keeps_in(str(other.get("path") or self.path))
            ):
                raise ImproperlyConfigured(
                    f"{where} and TASKS[{alias!r}] have an outbox in the database "
                    f"{self.database!r}, and different stores; rows of a table go into one store; "
                    "next: give both the same 'path', or one of them another 'database'"
                )

    def keeps_in(self, path: str) -> bool:
        """Return whether the store of this backend is the one at a path."""
        return os.path.realpath(path) == os.path.realpath(self.path)

    def queue(self, name: str) -> TaskQueue:
        """Return the queue under a name, which this process shares."""
        return queue_of(self.path, name, self._settings)

    # --- the interface --------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task; durable on return, or, in a transaction of the database, after it.

        Raises:
            InvalidTask: the task does not fit this backend.
            PayloadError, ArgumentError, QueueFullError, QueueDrainingError: nothing was enqueued.
        """
        self.validate_task(task)
        result = interface.TaskResult(
            task=task,
            id=new_id(),
            status=interface.TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        record = Record(
            task.queue_name,
            task.module_path,
            self.alias,
            priority=int(task.priority),
            run_after="" if task.run_after is None else task.run_after.isoformat(),
            enqueued=time.time_ns() // 1_000_000,
            args=result.args,
            kwargs=result.kwargs,
        )
        moment: datetime | None = None if task.run_after is None else aware(task.run_after)
        later = not self.uses_outbox and self.enqueue_on_commit
        later = later and connections[self.database].in_atomic_block
        # A task that cannot be put is refused here, where its caller is, and not after the commit:
        # an error of its hook would keep Django from running those of other tasks.
        enqueue = self.queue(record.queue).prepare(result.id, record, moment, later=later)
        put = partial(self._put, result, record, enqueue)
        if self.uses_outbox:
            self._write_row(result, record)
        elif later:
            transaction.on_commit(put, using=self.database)
        else:
            put()
        return result

    def _put(self, result: Any, record: Record, enqueue: Callable[[], None]) -> None:
        record.enqueued = time.time_ns() // 1_000_000  # that of the commit
        enqueue()
        self._show_enqueued(result, record)

    def _write_row(self, result: Any, record: Record) -> None:
        from streamkeep.integrations.django.outbox.models import OutboxRow

        message = {"id": result.id, **json.loads(record.encode())}
        if headers := outgoing(None):
            message["headers"] = headers  # the trace of the caller, not of the forwarder
        rows = OutboxRow.objects.using(self.database)
        rows.create(stream="", payload=json.dumps(message, ensure_ascii=False))
        self._show_enqueued(result, record)

    def _show_enqueued(self, result: Any, record: Record) -> None:
        object.__setattr__(result, "enqueued_at", time_of(record.enqueued))
        interface.task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task as it is now.

        Raises:
            TaskResultDoesNotExist: there is no such task, or its result has expired.
            ImportError: this program does not have the task.
        """
        with self.queue("default").store.snapshot() as snapshot:
            record = load_record(snapshot.as_bytes(), str(result_id))
            if record is not None and record.backend == self.alias:
                record = resolve(snapshot, record)
        if record is None or record.backend != self.alias:
            raise interface.TaskResultDoesNotExist(result_id)
        return result_of(str(result_id), record)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Report a store that cannot be opened, and an application that is not installed."""
        found: list[checks.CheckMessage] = list(super().check(**kwargs))
        if not apps.is_installed(_APP):
            found.append(
                checks.Warning(
                    f"TASKS[{self.alias!r}] needs an application for its worker",
                    hint=f"Add {_APP!r} to INSTALLED_APPS.",
                    id="streamkeep.W001",
                )
            )
        if self.uses_outbox and not apps.is_installed(_OUTBOX_APP):
            found.append(
                checks.Error(
                    f"TASKS[{self.alias!r}] has 'outbox', and there is no table for it",
                    hint=f"Add {_OUTBOX_APP!r} to INSTALLED_APPS, and run migrate.",
                    id="streamkeep.E002",
                )
            )
        if Path(self.path).exists():
            try:
                self.queue("default").store.row_get(VALUES.space, b"v")
            except (StreamkeepError, OSError) as error:
                found.append(
                    checks.Error(
                        f"TASKS[{self.alias!r}]: {error}",
                        hint="Set OPTIONS['path'] to the directory of a store, or to a new one.",
                        id="streamkeep.E001",
                    )
                )
        return found
