"""Values and times that no call of a queue can use: each raises an error that names it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streamkeep.format.core.durations import milliseconds
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import NoSuchJobError, Queue
from streamkeep.jobs.options import Backoff, backoff_of

LONE = "a\ud800"
TEXTS = [None, 5, b"x", LONE, [], object()]


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    "option", ["delay", "expires", "max_runtime", "result_ttl", "backoff", "at", "retries"]
)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(10**400, id="above all floats"),
        pytest.param(10**5000, id="above all texts of an int"),
        float("nan"),
        float("inf"),
        -1,
        "soon",
        datetime(2025, 10, 21),
        datetime(1960, 1, 1, tzinfo=UTC),
        [],
    ],
)
def test_a_job_has_times_that_can_come(queue: Queue, option: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=option):
        queue.put("x", **{option: value})
    assert queue.stats().waiting == queue.stats().delayed == 0


@pytest.mark.parametrize("text", TEXTS)
def test_a_name_is_a_text(queue: Queue, tmp_path: Path, text: Any) -> None:
    calls: dict[str, Any] = {
        "name of a queue": lambda: Queue(tmp_path / "q", text),
        "the path of a store": lambda: Queue(text),
        "ID of a job": lambda: queue.job(text),
        "the ID of a job": lambda: queue.cancel(text),
        "ID": lambda: queue.run_now(text),
        "a periodic task": lambda: queue.unschedule(text),
        "a dead letter": lambda: queue.requeue(text),
        "dead letter": lambda: queue.drop_dead(text),
        "cron expression": lambda: queue.periodic(text),
        "time zone": lambda: queue.periodic("* * * * *", tz=text),
    }
    if text is not None:
        calls["name must be"] = lambda: queue.task(name=text)(nothing)
        calls["codec"] = lambda: queue.put("x", codec=text)
    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=name):
            call()
    assert queue.stats().waiting == 0
    assert not queue.core.tasks


def test_objects_of_another_kind_are_named(queue: Queue) -> None:
    calls: dict[str, Any] = {
        "jobs must be": lambda: queue.done_many(["x"]),  # type: ignore[list-item]
        "given twice": lambda: queue.done_many([queue.put("x").queue.get(0)] * 2),
        "a task is made of": lambda: queue.task(5),  # type: ignore[call-overload]
        "limit": lambda: queue.run_until_idle(None),  # type: ignore[arg-type]
    }
    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=name):
            call()


def test_an_id_may_have_any_number_of_digits(queue: Queue) -> None:
    for job_id in ("job-" + "9" * 5000, "9" * 5000 + "-1", "low-1-" + "9" * 5000):
        assert not queue.cancel(job_id)
        with pytest.raises(NoSuchJobError, match="it never was"):
            queue.job(job_id)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (90, 90_000),
        (0.25, 250),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_durations_are_seconds_texts_or_timedeltas(value: Any, ms: int) -> None:
    assert milliseconds(value, "delay") == ms


@pytest.mark.parametrize("value", ["5", True, None, timedelta(-1), "40000d"])
def test_other_durations_are_refused_with_their_name(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"delay must be seconds, .* of 0 to a hundred years"):
        milliseconds(value, "delay")


def test_a_backoff_doubles_up_to_its_longest_wait() -> None:
    backoff = backoff_of("2s..1m")
    assert backoff == Backoff(2000, 60_000)
    for failures, whole in ((1, 2000), (2, 4000), (5, 32_000), (6, 60_000), (2000, 60_000)):
        assert whole / 2 <= backoff.delay_ms(failures) <= whole
    assert backoff_of(str(backoff)) == backoff
    assert backoff_of("5s") == Backoff(5000, 5000)
    with pytest.raises(ArgumentError, match="begin with its shorter wait"):
        backoff_of("1m..2s")
