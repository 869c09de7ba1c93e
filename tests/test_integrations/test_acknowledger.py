"""Acknowledgements while the store cannot commit; the error of a room without its extra."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import streamkeep
from failing import failing
from inside import journal_of
from patience import PATIENCE_S, wait_until
from streamkeep.format.core.errors import RecoveryNeededError, StoreFullError
from streamkeep.integrations import acknowledger
from streamkeep.integrations.acknowledger import Acknowledger, unreadable
from streamkeep.integrations.extras import missing
from streamkeep.jobs import Queue
from streamkeep.jobs.core import Core
from streamkeep.jobs.handler_errors import return_job

FULL: Final = StoreFullError("the disk is full")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setattr(acknowledger, "_AGAIN_S", 0.001)
    with Queue(tmp_path / "s", sync="none") as queue:
        queue.put_many("ab")
        yield queue


def test_an_acknowledgement_is_tried_again_until_the_store_has_room(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Queue, "done_many", failing([FULL] * 3, Queue.done_many))
    acknowledging = Acknowledger()
    job, later = queue.get_many(2)
    for _ in range(2):
        acknowledging.add(job)
    wait_until(lambda: job.ended)
    acknowledging.add(later)
    acknowledging.close()
    assert later.ended
    assert caplog.text.count("the disk is full") == 1


def test_an_acknowledgement_closes_a_store_that_must_be_recovered_between_its_attempts(
    queue: Queue, tmp_path: Path
) -> None:
    other = streamkeep.open(tmp_path / "s")
    job = queue.get(0)
    journal_of(other).control.poison()
    acknowledging = Acknowledger()
    acknowledging.add(job)
    acknowledging.close()
    wait_until(lambda: queue.core.opened is None)
    with suppress(RecoveryNeededError):
        other.close()
    wait_until(lambda: job.ended)
    assert queue.stats().done == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_ends_while_the_store_is_full_and_acknowledges_if_it_lives_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """The framework may only have closed a channel, and go on with the next one."""
    room = threading.Event()

    def until_room() -> Iterator[Exception]:
        while not room.is_set():
            yield FULL

    monkeypatch.setattr(Queue, "done_many", failing(until_room(), Queue.done_many))
    acknowledging, job = Acknowledger(), queue.get(0)
    if when == "before":
        acknowledging.add(job)
    acknowledging.close()
    if when == "after":
        acknowledging.add(job)
    else:
        assert "1 acknowledged messages wait for the store" in caplog.text
    assert not job.ended
    room.set()
    wait_until(lambda: job.ended)


def test_a_job_that_cannot_be_ended_does_not_stop_the_loop_that_took_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.get(0)
    monkeypatch.setattr(Core, "apply", failing([FULL] * 2, Core.apply))
    unreadable(job, "Kombu", ValueError("no"))
    return_job(job)
    assert caplog.text.count("the disk is full") == 2
    assert not job.ended


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
