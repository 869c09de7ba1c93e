"""Queues over HTTP: jobs and dead letters, what is done with them, and pause."""

from __future__ import annotations

import contextlib

import pytest

from http_client import HEADERS, TOKEN, Client
from patience import PATIENCE_S
from streamkeep import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import Queue
from streamkeep.server.access import Access
from streamkeep.server.http import queues
from streamkeep.server.http.app import create_app


@pytest.fixture
def queue(store: Store) -> Queue:
    queue = Queue(store, "mail", retries=0)
    first = queue.put({"to": "dead"})
    with pytest.raises(ValueError, match="no such user"), queue.get(0) as job:
        assert job.id == first.id
        raise ValueError("no such user")
    queue.put({"to": "running"})
    queue.get(0)
    queue.put({"to": "x" * 5000})
    queue.put({"to": "later"}, delay="1h")
    return queue


def test_the_jobs_of_each_state(queue: Queue, client: Client) -> None:
    (row,) = client.get("/queues")["queues"]
    states = ("waiting", "running", "delayed")
    assert [row[state] for state in (*states, "failed")] == [1, 1, 1, 1]
    found = {state: client.get(f"/queues/mail/jobs?state={state}")["jobs"] for state in states}
    assert [len(found[state]) for state in states] == [1, 1, 1]
    waiting, running, delayed = (found[state][0] for state in states)
    assert len(waiting["call"]) == 400
    assert waiting["entry"] == {"key": "mail", "id": waiting["id"]}
    assert running["worker"]
    assert delayed["id"].startswith("job-")
    assert delayed["due_ms"] > 0
    (dead,) = client.get("/queues/mail/letters")["letters"]
    assert dead["message"] == "no such user"
    (worker,) = client.get("/queues/mail/activity")["workers"]
    assert [one["id"] for one in worker["runs"]] == [running["id"]]
    assert client.get("/store/survey")["queues"] == 1


def test_the_tasks_are_named_that_no_worker_knows(queue: Queue, client: Client) -> None:
    queue.purge()
    queue.task(name="former")(lambda: None).delay()
    queue.core.tasks.clear()
    assert queue.run_until_idle() == 0
    assert client.get("/queues/mail/jobs")["stats"]["unknown_tasks"] == {"former": 1}


def test_schedules_are_seen_and_removed(queue: Queue, client: Client) -> None:
    queue.periodic("0 3 * * *", tz="Europe/Berlin", name="nightly")(lambda: None)
    queue.register_periodic()
    (rule,) = client.get("/queues/mail/schedules")["schedules"]
    assert rule.pop("next_ms") > 0
    assert rule == {
        "name": "nightly",
        "task": "nightly",
        "cron": "0 3 * * *",
        "zone": "Europe/Berlin",
        "missed": "skip",
        "last_ms": None,
        "parked": 0,
    }
    done = client.post("/queues/mail/unschedule", json={"ids": ["nightly", "none"]})
    assert done == {"done": ["nightly"]}
    assert client.get("/queues/mail/schedules")["schedules"] == []


def test_jobs_that_have_not_started_are_cancelled(queue: Queue, client: Client) -> None:
    ids = [
        client.get(f"/queues/mail/jobs?state={state}")["jobs"][0]["id"]
        for state in ("waiting", "running", "delayed")
    ]
    done = client.post("/queues/mail/cancel", json={"ids": [*ids, "none"]})
    assert done == {"done": [ids[0], ids[2]]}
    assert queue.stats()[:4] == (0, 1, 0, 1)


def test_dead_letters_are_put_again_and_delayed_jobs_run(queue: Queue, client: Client) -> None:
    letter = client.get("/queues/mail/letters")["letters"][0]["letter"]
    assert client.post("/queues/mail/requeue", json={"ids": [letter]}) == {"done": [letter]}
    assert client.post("/queues/mail/requeue", json={"ids": [letter]}) == {"done": []}
    later = client.get("/queues/mail/jobs?state=delayed")["jobs"][0]["id"]
    assert client.post("/queues/mail/run", json={"ids": [later]}) == {"done": [later]}
    assert queue.stats().failed == 0
    assert len(queue.get_many(9)) == 3


def test_each_job_opens_as_a_call_with_its_entry_and_its_end(queue: Queue, client: Client) -> None:
    fetch = queue.task(name="fetch", retries=0)(lambda url, depth, deep=None: 1 / depth)
    ids = [fetch.delay("http://é", 2, deep=True).id, fetch.delay("x", 0).id]
    queue.run_until_idle()
    done, failed = (client.get(f"/queues/mail/job?job={one}") for one in ids)
    assert (done["state"], done["task"], done["result"]) == ("done", "fetch", "0.5")
    assert failed["message"] == "division by zero"
    assert "Traceback" in failed["traceback"]
    row, _ = client.get("/queues/mail/letters")["letters"]
    letter = client.get(f"/queues/mail/job?letter={row['letter']}")
    assert letter["call"] == 'fetch("x", 0)'
    assert "result" not in letter
    assert letter["traceback"] == failed["traceback"]
    assert dict(map(tuple, letter["pairs"]))["payload"] == '[["x",0],{}]'
    again = queue.put({"n": 1}, retries=1)
    queue.get_many(9)[-1].retry(after="1m", reason="no line")
    (run,) = client.get(f"/queues/mail/job?job={again.id}")["history"]
    assert (run["worker"], run["error"]) == (queue.consumer.decode(), "no line")
    waiting = fetch.delay("http://é", 2, deep=True).id
    shown = client.get(f"/queues/mail/job?job={waiting}")
    assert (shown["state"], shown["call"]) == ("waiting", 'fetch("http://é", 2, deep=true)')
    client.get("/queues/mail/job?job=none", status=404)
    client.get("/queues/mail/job?letter=1-1", status=404)


def test_dead_letters_are_counted_by_reason_and_requeued_or_dropped_together(
    queue: Queue, client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_MOST", 3)
    monkeypatch.setattr(queues, "SEARCH_S", PATIENCE_S)
    tasks = {name: queue.task(name=name, retries=0)(lambda n: n["x"]) for name in ("a", "b")}
    for name in "aaaab":
        clock.ms += 1000
        tasks[name].delay({})
        queue.run_until_idle()
    found = client.get("/queues/mail/letters?reasons=1&task=a")
    (reason,) = found["reasons"]
    assert (reason["task"], reason["reason"], reason["count"]) == ("a", "builtins.KeyError", 4)
    assert (found["complete"], found["count"], found["letters"]) == (True, 4, [])
    page = client.get("/queues/mail/letters?count=2&reason=Key")
    assert [one["task"] for one in page["letters"]] == ["b", "a"]
    rest = client.get(f"/queues/mail/letters?count=3&end={page['next']}")
    assert [one["task"] for one in rest["letters"]] == ["a", "a", "a"]
    last = client.post("/queues/mail/drop", json={"start": str(clock.ms)})
    assert last == {"count": 1, "next": None}
    wanted = {"task": "a", "reason": "KeyError"}
    first = client.post("/queues/mail/requeue", json=wanted)
    assert first["count"] == 3
    after = {**wanted, "start": first["next"]}
    assert client.post("/queues/mail/requeue", json=after) == {"count": 1, "next": None}
    assert [one.message for one in queue.dead_letters()] == ["no such user"]
    clock.ms += 3_600_001  # its result has expired
    assert "result" not in client.get(f"/queues/mail/job?job={queue.dead_letters()[0].job}")
    with contextlib.suppress(TimeoutError):
        queue.drain(0)
    client.post("/queues/mail/requeue", json={}, status=409)
    client.post("/queues/mail/drop", json={"task": 1}, status=400)
    client.post("/queues/mail/drop", json={"start": "yesterday"}, status=400)


def test_a_queue_is_paused_and_resumed(queue: Queue, client: Client) -> None:
    assert client.post("/queues/mail/pause") == {"paused": True}
    assert queue.stats().paused
    assert client.post("/queues/mail/resume") == {"paused": False}
    assert not queue.stats().paused


def test_what_is_wrong_is_named(queue: Queue, client: Client, store: Store) -> None:
    client.get("/queues/none/jobs", status=404)
    client.get("/queues/none/letters", status=404)
    client.get("/queues/%FF/jobs", status=404)
    client.get("/queues/mail/jobs?state=x", status=400)
    client.post("/queues/mail/else", status=404)
    client.post("/queues/mail/cancel", status=400, json={"ids": []})
    reader = Client(create_app(store, Access(TOKEN)), HEADERS)
    reader.post("/queues/mail/pause", status=403)
