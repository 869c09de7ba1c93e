"""Acknowledgements while the store cannot commit; the error of a room without its extra."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import pytest

import streamkeep
from inside import journal_of
from patience import PATIENCE_S, wait_until
from streamkeep.format.core.errors import RecoveryNeededError, StoreFullError
from streamkeep.integrations import acknowledger
from streamkeep.integrations.acknowledger import Acknowledger, unreadable
from streamkeep.integrations.extras import missing
from streamkeep.jobs import Queue, take
from streamkeep.jobs.running import return_job


class Job:
    """A job of a queue that is full for some calls."""

    name = "tasks"
    id = "1"

    def __init__(self, failures: int) -> None:
        self.queue = self.core = self
        self.ended = False
        self.failures = failures
        self.calls = 0

    def usable(self, failed: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def done_many(self, jobs: list[Any]) -> None:
        self._call()
        self.at_once = len(jobs)
        for one in jobs:
            one.ended = True

    def fail(self, reason: str) -> None:
        self._call()

    def give_back(self, *, delivered: bool = False) -> None:
        self._call()

    def _call(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise StoreFullError("the disk is full")


def add(to: Acknowledger, job: Any) -> None:
    to.add(job)


def test_an_acknowledgement_is_tried_again_until_the_store_has_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acknowledger, "_AGAIN_S", 0.001)
    acknowledging, job = Acknowledger(), Job(failures=3)
    for _ in range(2):
        add(acknowledging, job)
    while not job.ended:
        pass
    later = Job(failures=0)
    add(acknowledging, later)
    acknowledging.close()
    assert (later.ended, job.at_once) == (True, 1)
    assert caplog.text.count("the disk is full") == 1


def test_an_acknowledgement_closes_a_store_that_must_be_recovered_between_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledger, "_AGAIN_S", 0.001)
    queue, other = Queue(tmp_path / "s"), streamkeep.open(tmp_path / "s")
    queue.put(1)
    [job] = take([queue], queue.consumer, 1)
    journal_of(other).control.poison()
    acknowledging = Acknowledger()
    acknowledging.add(job)
    acknowledging.close()
    wait_until(lambda: queue.core.opened is None)
    with suppress(RecoveryNeededError):
        other.close()
    wait_until(lambda: job.ended)
    assert queue.stats().done == 1
    queue.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_ends_while_the_store_is_full_and_acknowledges_if_it_lives_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """The framework may only have closed a channel, and go on with the next one."""
    monkeypatch.setattr(acknowledger, "_AGAIN_S", 0.001)
    acknowledging, job = Acknowledger(), Job(failures=1_000_000)
    if when == "before":
        add(acknowledging, job)
    acknowledging.close()
    if when == "after":
        add(acknowledging, job)
    else:
        assert "1 acknowledged messages wait for the store" in caplog.text
    assert not job.ended
    job.failures = 0
    wait_until(lambda: job.ended)


def test_a_job_that_cannot_be_ended_does_not_stop_the_loop_that_took_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job: Any = Job(failures=2)
    unreadable(job, "Kombu", ValueError("no"))
    return_job(job)
    assert job.calls == 2
    assert caplog.text.count("the disk is full") == 2


# --- the error of a room whose extra is not installed ---------------------------------------------

ROOMS: Final = {
    "asgi": "starlette",
    "celery": "celery",
    "django": "django",
    "dramatiq": "dramatiq",
    "prometheus": "prometheus_client",
    "sqlalchemy": "sqlalchemy",
    "taskiq": "taskiq",
}
# Imports everything that each room offers, where none of their peers is installed.
BARE: Final = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from importlib import import_module
for room in ("asgi", "celery", "django", "dramatiq", "prometheus", "sqlalchemy", "taskiq"):
    try:
        found = import_module(f"streamkeep.integrations.{room}")
        for name in found.__all__:
            getattr(found, name)
    except ImportError as error:
        print(error)
"""


def test_the_error_names_the_install() -> None:
    error = missing("celery", ModuleNotFoundError("No module named 'kombu'", name="kombu"))
    assert isinstance(error, ImportError)
    assert error.name == "kombu"
    assert str(error) == (
        "streamkeep.integrations.celery needs the extra `celery` (No module named 'kombu'); "
        "next: pip install 'streamkeep[celery]'"
    )


def test_each_room_names_its_extra_where_its_peer_is_missing() -> None:
    command = [sys.executable, "-c", BARE, *ROOMS.values(), "kombu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    told = done.stdout.splitlines()
    assert [line.split()[0] for line in told] == [f"streamkeep.integrations.{one}" for one in ROOMS]
    for line, room in zip(told, ROOMS, strict=True):
        assert f"needs the extra `{room}`" in line
        assert f"next: pip install 'streamkeep[{room}]'" in line
