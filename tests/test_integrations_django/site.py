"""A project for processes: settings from the environment, a worker, and a web application.

SHOP_STORE, SHOP_DATABASE    where the store and the database are
SHOP_OLD                     this is the former version, which has no task `sent_later`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings

settings.configure(
    USE_TZ=True,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["SHOP_DATABASE"],
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 60},
        }
    },
    INSTALLED_APPS=["streamkeep.integrations.django", "streamkeep.integrations.django.outbox"],
    TASKS={
        "default": {
            "BACKEND": "streamkeep.integrations.django.StreamkeepBackend",
            "OPTIONS": {
                "path": os.environ["SHOP_STORE"],
                "retries": 20,
                "backoff": "1ms..20ms",
                "max_deaths": 1000,
                "outbox": "SHOP_OUTBOX" in os.environ,
            },
        }
    },
)

import django  # noqa: E402

django.setup()

from test_integrations_django import kill_tasks  # noqa: E402

if "SHOP_OLD" in os.environ:
    del kill_tasks.sent_later


def application(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
    """Enqueue a task, and answer its ID."""
    result = kill_tasks.sent.enqueue(-1)
    start("200 OK", [("Content-Type", "text/plain")])
    return [result.id.encode()]


if "SHOP_PRELOAD" in os.environ:
    kill_tasks.sent.enqueue(-1)  # so that the store is open when the web server forks

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
