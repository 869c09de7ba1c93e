"""A project for processes: settings from the environment, and its commands.

SHOP_STORE, SHOP_DATABASE    where the store and the database are
"""

from __future__ import annotations

import os
import sys

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

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
