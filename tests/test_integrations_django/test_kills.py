"""Workers and forwarders of a project, killed at random.

`test_integrations/test_examples.py` has two versions of a program, and web servers that fork.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction

from patience import wait_until
from streamkeep.integrations.django.interface import task_backends
from test_integrations_django import kill_tasks
from test_integrations_django.conftest import Configure

SITE = Path(__file__).with_name("site.py")
SECONDS = 60


class Site:
    """The processes of a project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "db.sqlite3"
        self.environ = {
            **os.environ,
            "SHOP_STORE": str(folder / "tasks.store"),
            "SHOP_DATABASE": str(self.database),
            "PYTHONPATH": os.pathsep.join([str(SITE.parents[1]), os.environ.get("PYTHONPATH", "")]),
            "STREAMKEEP_PURE": "1",
        }
        self.running: list[subprocess.Popen[bytes]] = []
        self.kills = 0

    def start(self, *arguments: str) -> None:
        """Start a command of the project."""
        self.running.append(
            subprocess.Popen(
                [sys.executable, str(SITE), *arguments],
                env=self.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        """Kill a command with its children."""
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()
        self.running.remove(one)
        self.kills += 1

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *error: object) -> None:
        for one in list(self.running):
            self.kill(one)


@pytest.fixture
def site_database(tmp_path: Path) -> Any:
    """Let this process use the database of the project."""
    connection = connections["default"]
    former = connection.settings_dict["NAME"], connection.settings_dict["OPTIONS"]
    connection.close()
    connection.settings_dict["NAME"] = tmp_path / "db.sqlite3"
    connection.settings_dict["OPTIONS"] = {"timeout": 60}
    call_command("migrate", verbosity=0)
    yield
    connection.close()
    connection.settings_dict["NAME"], connection.settings_dict["OPTIONS"] = former


def effects(backend: Any) -> Counter[int]:
    """Return how often each number took effect."""
    store = backend.queue("default").store
    return Counter(int(entry.fields[b"number"]) for entry in store.scan("effects"))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("outbox", [False, True], ids=["on commit", "outbox"])
def test_every_task_takes_effect_once_though_workers_are_killed(
    tmp_path: Path, configure: Configure, site_database: None, outbox: bool
) -> None:
    modes = [["-c", "2"], ["-c", "2", "--processes"], ["-c", "3", "--asyncio"]]
    results: dict[int, Any] = {}
    with configure(outbox=outbox), Site(tmp_path) as site:
        backend = task_backends["default"]
        commands = [["streamkeep_worker", *mode] for mode in modes]
        if outbox:
            commands.append(["streamkeep_forward", "--every", "10ms"])
        for command in commands:
            site.start(*command)
        deadline = time.monotonic() + SECONDS
        number = 0
        while time.monotonic() < deadline or site.kills < 5:
            for _ in range(random.randint(1, 20)):
                number += 1
                try:
                    with transaction.atomic():
                        result = kill_tasks.sent.enqueue(number)
                        if random.random() < 0.2:
                            raise ZeroDivisionError
                    results[number] = result
                except ZeroDivisionError:
                    pass
            time.sleep(random.expovariate(5))
            if random.random() < 0.3:
                at = random.randrange(len(commands))
                command = commands[at]
                site.kill(site.running[at])
                commands.pop(at)
                commands.append(command)
                site.start(*command)
        wait_until(lambda: len(effects(backend)) >= len(results))
        wait_until(lambda: backend.queue("default").stats().running == 0)
        assert effects(backend) == Counter(results.keys())
        for number, result in results.items():
            found = backend.get_result(result.id)
            assert (found.status, found.return_value) == ("SUCCESSFUL", number)
        assert backend.queue("default").dead_letters() == []
        assert site.kills >= 5
        backend.queue("default").close()
