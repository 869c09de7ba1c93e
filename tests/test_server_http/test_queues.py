"""Queues over HTTP: the jobs of each state, cancel and pause."""

from __future__ import annotations

import pytest

from http_client import HEADERS, TOKEN, Client
from streamkeep import Store
from streamkeep.jobs import Queue
from streamkeep.server.access import Access
from streamkeep.server.http.app import create_app


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue with a job of each state."""
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
    states = ("waiting", "running", "delayed", "dead")
    assert [row[state] for state in states] == [1, 1, 1, 1]
    found = {state: client.get(f"/queues/mail/jobs?state={state}")["jobs"] for state in states}
    assert [len(found[state]) for state in states] == [1, 1, 1, 1]
    waiting, running, delayed, dead = (found[state][0] for state in states)
    assert waiting["payload_bytes"] > 5000 > len(waiting["payload"])
    assert running["worker"]
    assert delayed["id"].startswith("job-")
    assert delayed["due_ms"] > 0
    assert dead["message"] == "no such user"
    assert client.get("/store/survey")["queues"] == 1


def test_the_tasks_are_named_that_no_worker_knows(queue: Queue, client: Client) -> None:
    queue.purge()
    queue.task(name="former")(lambda: None).delay()
    queue.core.tasks.clear()
    assert queue.run_until_idle() == 0
    assert client.get("/queues/mail/jobs")["stats"]["unknown_tasks"] == {"former": 1}


def test_jobs_that_have_not_started_are_cancelled(queue: Queue, client: Client) -> None:
    ids = [
        client.get(f"/queues/mail/jobs?state={state}")["jobs"][0]["id"]
        for state in ("waiting", "running", "delayed")
    ]
    done = client.post("/queues/mail/cancel", json={"ids": [*ids, "none"]})
    assert done == {"done": [ids[0], ids[2]]}
    assert queue.stats()[:4] == (0, 1, 0, 1)


def test_dead_letters_are_put_again_and_delayed_jobs_run(queue: Queue, client: Client) -> None:
    letter = client.get("/queues/mail/jobs?state=dead")["jobs"][0]["letter"]
    assert client.post("/queues/mail/requeue", json={"ids": [letter]}) == {"done": [letter]}
    assert client.post("/queues/mail/requeue", json={"ids": [letter]}) == {"done": []}
    later = client.get("/queues/mail/jobs?state=delayed")["jobs"][0]["id"]
    assert client.post("/queues/mail/run", json={"ids": [later]}) == {"done": [later]}
    assert queue.stats().dead == 0
    assert len(queue.get_many(9)) == 3


def test_a_queue_is_paused_and_resumed(queue: Queue, client: Client) -> None:
    assert client.post("/queues/mail/pause") == {"paused": True}
    assert queue.stats().paused
    assert client.post("/queues/mail/resume") == {"paused": False}
    assert not queue.stats().paused


def test_what_is_wrong_is_named(queue: Queue, client: Client, store: Store) -> None:
    client.get("/queues/none/jobs", status=404)
    client.get("/queues/%FF/jobs", status=404)
    client.get("/queues/mail/jobs?state=x", status=400)
    client.post("/queues/mail/else", status=404)
    client.post("/queues/mail/cancel", status=400, json={"ids": []})
    reader = Client(create_app(store, Access(TOKEN)), HEADERS)
    reader.post("/queues/mail/pause", status=403)
