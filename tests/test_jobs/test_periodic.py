"""Periodic tasks: each time fires once, and missed times as the rule says."""

from __future__ import annotations

import logging
from datetime import datetime
from unittest.mock import Mock
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from streamkeep import ArgumentError, Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import Queue, current_job, known_tasks, periodic, take
from streamkeep.jobs.listing import unknown_tasks
from streamkeep.jobs.periodic import Missed, next_time

MINUTE = 60_000


def ms(text: str, zone: str = "Europe/Berlin") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("cron", "after", "times"),
    [
        ("0 3 * * *", "2026-03-28T12:00", ["2026-03-29T03:00", "2026-03-30T03:00"]),
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00", "2026-03-30T02:30"]),
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25T02:30", "2026-10-26T02:30"]),
        ("*/15 8-9 1 * mon", "2026-06-01T08:50", ["2026-06-01T09:00", "2026-06-01T09:15"]),
    ],
)
def test_times_follow_the_zone_and_its_changes(cron: str, after: str, times: list[str]) -> None:
    now = ms(after)
    for time in times:
        now = next_time(cron, "Europe/Berlin", now)
        assert now == ms(time)


@pytest.mark.parametrize("since", ["2026-10-23T12:00", "2026-10-25T01:00"])
def test_a_job_for_missed_times_has_the_last_one(
    queue: Queue, clock: ManualClock, since: str
) -> None:
    """Also at 2:20 for the second time, when 2:30 has been."""
    clock.ms = ms(since)
    queue.periodic("30 2 * * *", tz="Europe/Berlin", missed="once", name="nightly")(print)
    queue.register_periodic()
    clock.ms = ms("2026-10-25T02:20") + 3_600_000
    [job] = queue.get_many(2)
    assert int(job.fields[b"scheduled"]) == ms("2026-10-25T02:30")
    assert queue.schedules()[0].next_ms == ms("2026-10-26T02:30")


@pytest.mark.parametrize(
    ("cron", "zone", "problem"),
    [
        ("0 3 * *", "UTC", "5 fields"),
        ("0 0 3 * * *", "UTC", "5 fields"),
        ("61 3 * * *", "UTC", "is wrong"),
        ("0 0 30 2 *", "UTC", "is wrong|never"),
        ("0 3 * * *", "Mars/Base", "no time zone"),
    ],
)
def test_a_wrong_rule_is_refused_where_it_is_written(
    queue: Queue, cron: str, zone: str, problem: str
) -> None:
    with pytest.raises(ArgumentError, match=problem):
        queue.periodic(cron, tz=zone)
    for option, wrong in (("missed", "never"), ("args", 5), ("args", "ann"), ("kwargs", [1])):
        with pytest.raises(ArgumentError, match=option):
            queue.periodic("* * * * *", **{option: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("cron", "ahead_ms"), [("* * * * *", 10**11), ("0 3 * * *", 2 * 10**8)])
def test_a_worker_that_starts_repairs_a_rule_that_fired_when_the_clock_was_far_ahead(
    queue: Queue, clock: ManualClock, cron: str, ahead_ms: int
) -> None:
    queue.periodic(cron, name="often")(print)
    right_ms = clock.ms
    for wrong_ms, fires in ((ahead_ms, True), (3_600_000, False)):
        clock.ms = right_ms + wrong_ms
        queue.register_periodic()
        clock.ms = queue.schedules()[0].next_ms
        assert [job.task for job in queue.get_many(1)] == ["often"]
        clock.ms -= wrong_ms
        queue.register_periodic()
        next_ms = next_time(cron, "UTC", clock.ms if fires else clock.ms + wrong_ms)
        assert queue.schedules()[0].next_ms == next_ms
        right_ms = clock.ms = next_ms
        assert len(queue.get_many(9)) == 1


def test_each_time_fires_once_however_many_workers_run(store: Store, clock: ManualClock) -> None:
    workers = [Queue(store, "nightly") for _ in range(3)]
    ran: list[int] = []
    for worker in workers:

        @worker.periodic("*/5 * * * *", kwargs={"step": 2})
        def report(step: int) -> None:
            ran.append(clock.ms)
            assert step == 2

        worker.register_periodic()
        worker.register_periodic()
    clock.ms = start = clock.ms // (5 * MINUTE) * 5 * MINUTE
    for _ in range(20):
        clock.ms += MINUTE
        for worker in workers:
            worker.run_until_idle()
    assert ran == [start + 5 * MINUTE * number for number in range(1, 5)]
    (rule,) = workers[0].schedules()
    last_ms = start + 20 * MINUTE
    assert (rule.name, rule.task, rule.next_ms, rule.last_ms) == (
        "report",
        "report",
        start + 25 * MINUTE,
        last_ms,
    )
    workers[0].periodic("0 0 * * *", name="report", kwargs={"step": 2})(report)
    workers[0].register_periodic()
    assert workers[0].schedules()[0].last_ms == last_ms


@pytest.mark.parametrize("of_task", [True, False])  # or of its function
def test_a_rule_has_options_of_its_own(queue: Queue, clock: ManualClock, of_task: bool) -> None:
    @queue.task(expires="1h")
    def report() -> None: ...

    given = report if of_task else report.call
    queue.periodic("*/5 * * * *", expires="1m")(given)
    queue.periodic("*/5 * * * *", name="low", priority="low", retries=9)(report)
    with pytest.raises(ArgumentError, match="concurrency is an option of the task 'report' itself"):
        queue.periodic("* * * * *", name="third", concurrency=1)(report)
    with pytest.raises(ArgumentError, match="the rule of 'report' has times, and no delay"):
        queue.periodic("* * * * *", name="third")(report.options(delay="1m"))
    queue.register_periodic()
    clock.ms = queue.schedules()[0].next_ms
    first, low = queue.get_many(3)
    assert (first.priority, low.priority, low.fields[b"retries"]) == ("normal", "low", b"9")
    assert int(first.fields[b"expires"]) == clock.ms + MINUTE
    assert int(low.fields[b"expires"]) == clock.ms + 60 * MINUTE


def test_a_function_that_is_declared_again_has_the_same_rule(queue: Queue) -> None:
    def report() -> None: ...

    found = []
    for retries in (9, 9, 8):  # as when its module is loaded again, and then changed
        queue.periodic("* * * * *", priority="low", retries=retries, concurrency=2)(report)
        found.append(queue.core.rules["report"])
    assert found[0] == found[1]
    assert found[2].fields == {**found[0].fields, b"retries": b"8"}


@pytest.mark.parametrize("drained", [False, True])  # while no worker ran, or with workers
@pytest.mark.parametrize(("missed", "jobs"), [("skip", 0), ("once", 1), ("all", 12)])
def test_missed_times_are_made_up_for_as_the_rule_says(
    queue: Queue, clock: ManualClock, missed: Missed, jobs: int, drained: bool
) -> None:
    clock.ms = clock.ms // (60 * MINUTE) * 60 * MINUTE
    start = clock.ms

    @queue.periodic("*/5 * * * *", missed=missed)
    def report() -> None: ...

    queue.register_periodic()
    if drained:
        queue.drain(0)
    clock.ms += 62 * MINUTE
    if drained:
        for _ in range(2):
            queue.register_periodic()
            assert queue.run_until_idle() == 0
        assert queue.drain(0)
        queue.resume()
    assert queue.run_until_idle() == jobs
    clock.ms += 3 * MINUTE
    assert queue.run_until_idle() == 1
    assert queue.schedules()[0].next_ms == start + 70 * MINUTE


def test_a_rule_is_replaced_and_removed(queue: Queue, clock: ManualClock) -> None:
    @queue.periodic("*/5 * * * *")
    def report() -> None: ...

    queue.register_periodic()
    queue.periodic("0 * * * *")(report.call)
    queue.register_periodic()
    (rule,) = queue.schedules()
    assert rule.cron == "0 * * * *"
    schedule = queue.store.row_range("jobs:mails", b"s", b"s\xff" * 20)
    assert len(schedule) == 1
    assert (queue.unschedule("report"), queue.unschedule("report")) == (True, False)
    clock.ms += 60 * MINUTE
    assert queue.run_until_idle() == 0
    assert queue.store.row_range("jobs:mails", b"s", b"s\xff" * 20) == []


@pytest.mark.parametrize("cron", ["0 3 * * *", "30 3 * * *"])
def test_a_missed_time_is_made_up_for_by_the_rule_that_replaces_its_own(
    queue: Queue, clock: ManualClock, cron: str
) -> None:
    @queue.periodic("0 3 * * *", missed="once", args=["old"])
    def report(text: str) -> str:
        return text

    queue.register_periodic()
    clock.ms += 24 * 60 * MINUTE
    queue.periodic(cron, missed="once", args=["new"])(report.call)
    queue.register_periodic()
    assert (queue.run_until_idle(), queue.run_until_idle()) == (1, 0)
    assert queue.job(queue.jobs("done")[0].id).result() == "new"


@pytest.mark.parametrize(("missed", "jobs"), [("skip", 1), ("once", 1), ("all", 2)])
def test_a_worker_without_the_time_zone_of_a_rule_leaves_it_to_others(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture, missed: Missed, jobs: int
) -> None:
    @queue.periodic("* * * * *", tz="Europe/Berlin", missed=missed)
    def report() -> None:
        scheduled.append(int(current_job().fields[b"scheduled"]))

    scheduled: list[int] = []
    queue.register_periodic()
    queue.put(1)
    clock.ms = planned_ms = queue.schedules()[0].next_ms
    caplog.set_level(logging.WARNING, "streamkeep.jobs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(periodic, "ZoneInfo", Mock(side_effect=ZoneInfoNotFoundError))
        assert [job.payload for job in queue.get_many(2)] == [1]
    assert "not put here: there is no time zone 'Europe/Berlin'" in caplog.text
    clock.ms += MINUTE
    assert queue.run_until_idle() == jobs
    assert scheduled == [planned_ms, planned_ms + MINUTE][:jobs]
    clock.ms += MINUTE
    assert queue.run_until_idle() == 1


@pytest.mark.parametrize(("missed", "most"), [("skip", 1), ("once", 1), ("all", 1000)])
def test_a_renamed_task_puts_no_jobs_for_ever(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture, missed: Missed, most: int
) -> None:
    @queue.periodic("* * * * *", missed=missed)
    def former() -> None: ...

    queue.register_periodic()
    del queue.core.tasks[b"former"]
    caplog.set_level(logging.WARNING, "streamkeep.jobs")
    known = known_tasks([queue])
    for _ in range(14):
        clock.ms += 60_000 * most // 10 + 60_000
        take([queue], queue.consumer, 5000, timeout=0, known=known)
    stats = queue.stats()
    assert (stats.running, stats.parked, stats.waiting) == (0, stats.waiting, stats.parked)
    assert most <= stats.parked <= most + 200
    assert "'former' of the queue 'mails' is not put again: jobs of it wait" in caplog.text
    assert queue.core.read(lambda one: unknown_tasks(one, queue.core.names)) == {
        "former": stats.parked
    }
    [rule] = queue.schedules()
    assert rule.next_ms > clock.ms

    @queue.periodic("* * * * *", missed=missed, name="former")
    def again() -> None: ...

    assert queue.run_until_idle() == stats.parked
    clock.ms += 60_000
    assert queue.run_until_idle() == 1
