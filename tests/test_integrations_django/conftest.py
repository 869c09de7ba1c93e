"""Django for the tests: settings without a project, and a store for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

django = pytest.importorskip("django")

from django.conf import settings  # noqa: E402
from django.test import override_settings  # noqa: E402

from streamkeep import recovery  # noqa: E402

BACKEND = "streamkeep.integrations.django.StreamkeepBackend"

if not settings.configured:
    settings.configure(
        SECRET_KEY="of the tests",
        DEBUG=False,
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            "streamkeep.integrations.django",
            "streamkeep.integrations.django.outbox",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        ROOT_URLCONF="test_integrations_django.urls",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"path": "/nonexistent/tasks.store"}}},
    )
    django.setup()

Configure = Callable[..., AbstractContextManager[None]]
QueueWith = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Return a function that gives a block a backend with options."""

    def change(queues: list[str] | None = None, **options: Any) -> Any:
        chosen = {"path": tmp_path / "tasks.store", **options}
        tasks = {"BACKEND": BACKEND, "OPTIONS": chosen, "QUEUES": queues or ["default"]}
        return override_settings(TASKS={"default": tasks})

    return change


@pytest.fixture
def queue_with(configure: Configure) -> QueueWith:
    """Return a function that gives a block the queue of a backend with options."""

    @contextmanager
    def open_queue(**options: Any) -> Iterator[Any]:
        from streamkeep.integrations.django.interface import task_backends

        with configure(**options):
            queue = task_backends["default"].queue("default")
            yield queue
            queue.close()

    return open_queue


@pytest.fixture
def backend(configure: Configure, tmp_path: Path) -> Iterator[Any]:
    """The backend of one test; its store must be sound at the end."""
    from streamkeep.integrations.django.interface import task_backends

    with configure():
        found = task_backends["default"]
        yield found
        found.queue("default").close()
    store = tmp_path / "tasks.store"
    if store.exists():
        assert [str(one) for one in recovery.check(store)] == []


@pytest.fixture(scope="session")
def _outbox_table(tmp_path_factory: pytest.TempPathFactory) -> None:
    from django.core.management import call_command
    from django.db import connections

    # A file: the forwarder of the outbox has a connection of its own.
    connections["default"].settings_dict["NAME"] = tmp_path_factory.mktemp("db") / "db.sqlite3"
    call_command("migrate", "streamkeep_outbox", verbosity=0)


@pytest.fixture
def database(_outbox_table: None) -> Iterator[None]:
    """The database, with the table of the outbox, which is empty at the end."""
    from django.db import connections

    from streamkeep.integrations.django.outbox.models import OutboxRow

    yield
    OutboxRow.objects.all().delete()
    connections.close_all()  # Python 3.13 warns of one that is left to the collector


@pytest.fixture
def all_tables(database: None) -> Iterator[None]:
    """The database with the tables of all applications; what a test has written is removed."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    yield
    call_command("flush", verbosity=0, interactive=False)
