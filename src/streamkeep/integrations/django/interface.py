# ruff: noqa: F401  # other modules use these names
"""What is used of `django.tasks`, or, where Django has none, of the backport `django-tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkeep.integrations.extras import missing

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    try:
        import django
    except ImportError as error:
        raise missing("django", error) from error

    if django.VERSION >= (6, 0):
        from django.tasks import task, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    else:
        try:
            from django_tasks import task, task_backends
        except ImportError as error:
            raise missing("django", error) from error
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
