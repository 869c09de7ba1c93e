"""The backend of Django's tasks beside `django-tasks-db` on SQLite; both sync each commit.

Each runs in a process of its own, in turns, and the best turn counts. SQLite has a write-ahead log,
which is its fastest mode, and `synchronous=FULL`, so that a commit survives a power loss. What
`run` means: a worker takes each task, runs it, and stores its result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.common import Report, scratch

_OURS: Final = "streamkeep"
_OTHER: Final = "django-tasks-db, SQLite"


def run(report: Report, *, quick: bool) -> None:
    """Measure both."""
    missing = [name for name in ("django", "django_tasks_db") if find_spec(name) is None]
    if missing:
        report.note(f"skipped: {', '.join(missing)} is not installed")
        return
    count = 100 if quick else 1000
    best: dict[str, dict[str, float]] = {_OURS: {}, _OTHER: {}}
    for _ in range(1 if quick else 3):
        for name, rates in best.items():
            with scratch() as folder:
                command = [sys.executable, "-m", "benchmarks.django_queue", name, str(folder)]
                done = subprocess.run(
                    [*command, str(count)], check=True, stdout=subprocess.PIPE, text=True
                )
            for call, rate in json.loads(done.stdout.splitlines()[-1]).items():
                rates[call] = max(rate, rates.get(call, 0))
    for call in ("enqueue", "run"):
        report.section(f"{call}, one process, durable")
        for name, rates in best.items():
            report.figure(name, rates[call], "tasks/s")
        report.figure("  against it", best[_OURS][call] / best[_OTHER][call], "times", least=1)


def _measure(name: str, folder: Path, count: int) -> dict[str, float]:
    import django
    from django.conf import settings
    from django.core.management import call_command

    own: dict[str, Any] = {
        "BACKEND": "streamkeep.integrations.django.StreamkeepBackend",
        "OPTIONS": {"path": folder / "store"},
    }
    other: dict[str, Any] = {"BACKEND": "django_tasks_db.DatabaseBackend"}
    pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
    settings.configure(
        USE_TZ=True,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": folder / "db.sqlite3",
                "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": pragmas},
            }
        },
        INSTALLED_APPS=["streamkeep.integrations.django", "django_tasks_db"],
        TASKS={"default": own if name == _OURS else other},
        LOGGING={"version": 1, "root": {"level": "ERROR"}},
    )
    django.setup()
    call_command("migrate", verbosity=0)
    from benchmarks.django_tasks import nothing

    nothing.enqueue(0)
    begun = time.perf_counter()
    for number in range(count):
        nothing.enqueue(number)
    enqueued = time.perf_counter()
    if name == _OURS:
        call_command("streamkeep_worker", "--until-idle", verbosity=0)
    else:
        call_command("db_worker", "--batch", "--interval=0", "--no-startup-delay", verbosity=0)
    ended = time.perf_counter()
    return {"enqueue": count / (enqueued - begun), "run": (count + 1) / (ended - enqueued)}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
