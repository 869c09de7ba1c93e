"""`streamkeep queue`: what it prints, and what it changes."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from cli_runner import below, lines, objects, run
from streamkeep.jobs import Queue, take
from streamkeep.tools.cli import main
from test_tools.test_help import examples


def queue_of(path: Path) -> Queue:
    return Queue(path, sync="none")


def bury(path: Path, reason: str, unique: str | None = None) -> str:
    with queue_of(path) as queue:
        queue.put({"to": "ann"}, unique=unique)
        (job,) = queue.get_many(1)
        job.fail(reason)
        return job.id


def test_a_job_is_put_shown_and_cancelled(path: Path) -> None:
    (job,) = lines("queue", "put", path, '{"to": "ann"}', "--key", "ann")
    (shown,) = objects("queue", "show", path, job)
    assert (shown["state"], shown["key"], shown["payload"]) == ("waiting", "ann", '{"to":"ann"}')
    assert "state        waiting" in lines("queue", "show", path, job)
    (put,) = objects("queue", "put", path, '["ann"]', "--task", "send", "--delay", "1h")
    delayed, summary = objects("queue", "status", path)
    assert (delayed["waiting"], delayed["delayed"], summary["queues"]) == (1, 1, 1)
    assert lines("queue", "retry", path, put["job"]) == []
    assert lines("queue", "cancel", path, job) == []
    run("queue", "cancel", path, job, status=6)
    run("queue", "show", path, "9-9", status=6)
    heading, row = lines("queue", "status", path)
    assert heading.split()[:6] == ["queue", "waiting", "parked", "running", "delayed", "failed"]
    assert row.split()[0] == "default"


def test_jobs_are_listed_by_state(path: Path) -> None:
    failed = bury(path, "no paper")
    with queue_of(path) as queue:
        waiting, running = queue.put({"to": "bob"}), queue.put({"to": "cid"}, priority="high")
        delayed, gone = queue.put(1, delay="1h"), queue.put(2)
        assert queue.cancel(gone.id)
        (taken,) = queue.get_many(1)
        assert taken.id == running.id
        expected = {
            "waiting": [waiting.id],
            "running": [running.id],
            "delayed": [delayed.id],
            "failed": [failed],
            "cancelled": [gone.id],
            "done": [],
            "parked": [],
        }
        for state, ids in expected.items():
            *found, summary = objects("queue", "jobs", path, state)
            assert ([one["job"] for one in found], summary["jobs"]) == (ids, len(ids))
            assert {one["state"] for one in found} <= {state}
        heading, row = lines("queue", "jobs", path)
        assert heading.split()[:3] == ["job", "call", "queued"]
        assert row.split()[:2] == [waiting.id, '{"to":"bob"}']
        heading, row = lines("queue", "jobs", path, "running")
        assert row.split()[-1] == queue.consumer.decode()
        taken.done("ok")
    assert objects("queue", "jobs", path, "done", "-n", "1")[0]["job"] == running.id
    assert lines("queue", "jobs", path, "done", "-n", "1")[0].split()[0] == "job"
    run("queue", "jobs", path, "pending", status=2)


def test_dead_letters_are_listed_put_again_and_dropped(path: Path) -> None:
    first, second = bury(path, "no paper"), bury(path, "no ink")
    *letters, summary = objects("queue", "dead", path)
    assert [one["job"] for one in letters] == [first, second]
    assert summary["letters"] == 2
    assert "no ink" in lines("queue", "dead", path, "--reason", "ink")[1]
    assert objects("queue", "show", path, first)[0]["state"] == "failed"
    run("queue", "requeue", path, status=2)
    assert lines("queue", "requeue", path, "--reason", "ink") == ["1 job requeued"]
    assert lines("queue", "dead", path, "--drop", "--yes") == ["1 dead letter removed"]
    found = run("queue", "requeue", path, second, first, first, status=6)
    assert f"not requeued: job {second} is waiting; job {first} is failed" in found.stderr
    assert objects("queue", "status", path)[0]["failed"] == 0


def test_a_standby_shows_its_queues(path: Path) -> None:
    job = bury(path, "no paper")
    run("ship", path, "copy", "--once")
    run("standby", "copy", "standby", "--once")
    for words in ("dead", f"show {job}", "jobs failed", "status --queue default", "schedules"):
        name, *others = words.split()
        assert lines("queue", name, "standby", *others) or name == "schedules"


def test_dead_letters_that_stay_are_counted(path: Path) -> None:
    _, second = bury(path, "no paper", unique="x"), bury(path, "no paper", unique="x")
    told = "1 job requeued; 1 stayed: another job has their unique name"
    assert lines("queue", "requeue", path, "--all") == [told]
    found = run("queue", "requeue", path, second, status=6)
    assert f"job {second} is failed; what failed stays if its unique name is" in found.stderr


@pytest.mark.parametrize("state", ["waiting", "done"])
def test_a_letter_with_the_id_of_another_job_is_left_alone(path: Path, state: str) -> None:
    with queue_of(path) as queue:
        job = queue.put({"to": "bob"}, result_ttl="1h").id
        if state == "done":
            queue.get(0).done("sent")
        letter = {"job": "1-1", "payload": "{}", "from": "normal", "reason": "no ink"}
        queue.core.store.xadd("default:dead", letter, id=job)
    assert objects("queue", "show", path, job)[0]["state"] == state
    run("queue", "retry", path, job, status=6)
    assert [one["job"] for one in objects("queue", "dead", path)[:-1]] == ["1-1"]
    assert objects("queue", "show", path, "1-1")[0]["state"] == "failed"


def test_the_status_names_tasks_that_no_worker_knows(path: Path) -> None:
    with queue_of(path) as queue:
        for _ in range(2):
            queue.task(name="former")(lambda: None).delay()
            queue.core.tasks.clear()
        assert queue.run_until_idle() == 0
    found = run("queue", "status", path)
    line = "queue 'default': 2 jobs wait for a worker that has the task 'former'; next: start one"
    assert line in found.stderr
    assert line in run("status", path, status=8).stdout
    status, _ = objects("queue", "status", path)
    assert (status["parked"], status["unknown_tasks"]) == (2, {"former": 2})


def test_a_failed_job_is_shown_with_its_traceback_and_times(path: Path) -> None:
    with Queue(path, sync="none", retries=0) as queue:

        @queue.task
        def fetch(url: str, depth: int = 1) -> None:
            raise OSError("no route")

        job = fetch.delay("http://ä", depth=2)
        queue.run_until_idle()
    shown = lines("queue", "show", path, job.id)
    assert 'call         fetch("http://ä", depth=2)' in shown
    assert "state        failed" in shown
    assert next(one for one in shown if one.startswith("ended  ")).endswith("Z")
    assert shown[-1] == "OSError: no route"
    assert "Traceback (most recent call last):" in shown
    (found,) = objects("queue", "show", path, job.id)
    assert (found["attempts"], found["traceback"][:9]) == (1, "Traceback")


def test_schedules_are_listed_and_removed(path: Path) -> None:
    with queue_of(path) as queue:
        queue.periodic("0 3 * * *", name="nightly")(lambda: None)
        queue.register_periodic()
        queue.task(name="nightly")(queue.core.tasks.pop(b"nightly").call).delay()
        queue.core.tasks.clear()
        queue.run_until_idle()
    heading, row = lines("queue", "schedules", path)
    assert heading.split() == ["schedule", "task", "cron", "zone", "missed", "last", "next"]
    assert row.split()[1:-1] == ["nightly", "0", "3", "*", "*", "*", "UTC", "skip", "-"]
    rule, summary = objects("queue", "schedules", path)
    assert (rule["cron"], rule["last_ms"], summary["schedules"]) == ("0 3 * * *", None, 1)
    command = f"streamkeep queue schedules {path} --queue default --remove nightly"
    assert f"or `{command}`" in run("queue", "status", path).stderr
    assert lines(*shlex.split(command)[1:]) == ["the schedule 'nightly' was removed"]
    run(*shlex.split(command)[1:], status=6)


def test_the_only_queue_needs_no_name(path: Path) -> None:
    with Queue(path, "crawl", sync="none") as queue:
        job = queue.put(1).id
        assert objects("queue", "show", path, job)[0]["queue"] == "crawl"
        assert "page 1" not in lines("queue", "put", path, "2")
        assert queue.stats().waiting == 2
        Queue(queue.store, "mails").put(1)
        found = run("queue", "dead", path, "--task", "x", status=2).stderr
        assert "has several queues: crawl, mails" in found
        hint = "next: name one with --queue"
        assert hint in found
        other = run("queue", "dead", path, "--queue", "mail", "--task", "x", status=6).stderr
        assert hint in other


def test_control(path: Path) -> None:
    run("queue", "put", path, "1")
    assert objects("queue", "pause", path)[0]["paused"] is True
    assert objects("queue", "status", path)[0]["paused"] is True
    run("queue", "resume", path)
    assert "1 job" in run("queue", "drain", path, "--timeout", "0", status=8).stderr
    assert lines("queue", "purge", path, "--yes") == ["1 job removed"]
    run("queue", "drain", path)
    assert "draining" in lines("queue", "status", path)[1]
    run("queue", "put", path, "1", status=1)


def test_a_purge_asks_for_no_job_that_it_leaves(path: Path) -> None:
    with queue_of(path) as queue:
        queue.put(1).queue.get(0).retry(after="1h")
        queue.put(2).queue.get(0).retry(after=0)
        assert take([queue], queue.consumer, 1, known={queue.name: []}, timeout=0) == []
        assert queue.stats().parked == 1
    assert lines("queue", "purge", path) == ["0 jobs removed"]


def test_bad_input_changes_nothing(path: Path) -> None:
    run("queue", "status", path, status=6)
    assert "not JSON" in run("queue", "put", path, "{", status=2).stderr
    assert not path.exists()
    run("queue", "put", path, "1")
    run("queue", "put", path, "1", "--task", "send", status=2)
    found = run("queue", "pause", path, "--queue", "mail", status=6)
    assert "its queues are default" in found.stderr


def test_the_examples_work(tmp_path: Path) -> None:
    for command in below(below(main)["queue"]).values():
        path = tmp_path / "jobs.store"
        with queue_of(path) as queue:
            jobs = queue.put_many(range(18), delay="1h")
            queue.run_now(jobs[-1].id)
            (job,) = queue.get_many(1)
            job.fail("no paper")
            Queue(queue.store, "mail").pause()
            queue.periodic("0 3 * * *", name="nightly")(lambda: None)
            queue.register_periodic()
        for example in examples(command):
            run(*shlex.split(example)[1:])
        shutil.rmtree(path)
