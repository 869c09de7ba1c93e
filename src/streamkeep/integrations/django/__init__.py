"""Django: a backend of `django.tasks`, its worker, and its pages in the admin.

    TASKS = {
        "default": {
            "BACKEND": "streamkeep.integrations.django.StreamkeepBackend",
            "OPTIONS": {"path": BASE_DIR / "tasks.store"},
        }
    }
    INSTALLED_APPS = [..., "streamkeep.integrations.django"]

`python manage.py streamkeep_worker` runs the tasks. From the bottom up:

    interface   what is used of `django.tasks`, or of its backport for Django 5.2
    records     what is kept of each task: arguments, attempts, result
    queues      the queue of the project, which runs tasks as Django defines it
    backend     the backend
    models, admin, apps, management    the application: pages and the command

The backend needs no table. `django.outbox` is an application of its own, which has one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamkeep.integrations.django.backend import StreamkeepBackend
    from streamkeep.integrations.django.interface import task

__all__ = ["StreamkeepBackend", "task"]  # `task` is the decorator of `django.tasks`


def __getattr__(name: str) -> Any:
    # At first use: Django imports this package before its own models are ready.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    interface = import_module(
        f"{__name__}.interface"
    )  # without Django, its error names the install
    if name == "task":
        return interface.task
    from streamkeep.integrations.django.backend import StreamkeepBackend

    return StreamkeepBackend
