"""Celery with real workers, and in a fork."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, canvas
from kombu import Connection

import streamkeep
from patience import PATIENCE_S, thread_of, wait_until
from stopped import child_of, status_of
from streamkeep.format.core.errors import StoreError
from streamkeep.integrations.address import parse_address
from streamkeep.integrations.celery import stores
from streamkeep.jobs import take
from test_integrations.celery_queues import jobs_of, poison, publish
from test_integrations.crew import Crew, lines
from tiers import slow_but

APPLICATION = """
import os, time
from celery import Celery
import streamkeep.integrations.celery

URL = "streamkeep:///" + os.path.abspath("s")
app = Celery("app", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 2
app.conf.task_reject_on_worker_lost = True
app.conf.broker_transport_options = {"max_deaths": 2}

def note(name, what):
    with open(name, "a") as log:
        log.write(f"{what}\\n")

@app.task
def add(one, two):
    return one + two

@app.task
def total(numbers):
    return sum(numbers)

@app.task(acks_late=True)
def work(number, seconds=0.05):
    note("started", number)
    time.sleep(seconds)
    note("ended", number)
    return number

@app.task(bind=True, max_retries=3)
def fails_twice(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries

@app.task
def fails():
    raise KeyError("expected")

@app.task(acks_late=True)
def dies():
    note("started", "dies")
    os.kill(os.getpid(), 9)

@app.task(acks_late=True)
def hangs():
    note("started", "hangs")
    time.sleep(600)
"""


class Workers(Crew):
    """Celery workers in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._count = 0
        (folder / "application.py").write_text(APPLICATION)

    def work(self, *options: str, module: str = "application") -> subprocess.Popen[str]:
        self._count += 1
        log = self.folder / f"w{self._count}.log"
        names = ("-n", f"w{self._count}@here", "-f", str(log))
        one = self.start(
            "celery", "-A", module, "worker", "-c", "2", "-l", "info", *names, *options
        )
        wait_until(lambda: " ready." in "".join(lines(log)) or one.poll() is not None)
        assert one.poll() is None, self.log.read_text()
        return one


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Workers]:
    one = Workers(tmp_path)
    with one:
        yield one


@pytest.fixture
def sent(url: str) -> Iterator[Callable[..., Any]]:
    app = Celery("app", broker=url, backend=url, set_as_current=False)
    yield lambda name, *args, **how: app.signature(f"application.{name}", args=args, **how)
    app.close()


@pytest.mark.parametrize("pool", slow_but(["prefork", "solo"], "solo"))
def test_a_death_counts_for_the_messages_that_were_begun(
    crew: Workers, url: str, sent: Callable[..., Any], tmp_path: Path, pool: str
) -> None:
    """The worker has fetched all of them; its pool has begun the first one."""
    for name in ("hangs", *["work"] * 5):
        sent(name, *[7] * (name == "work")).delay()
    options = ("-P", pool, "-c", "1", "--prefetch-multiplier", "9")
    queue = jobs_of(url, "celery")
    inspect = sent("hangs").app.control.inspect(timeout=PATIENCE_S, limit=1)
    started = []
    for _ in range(2):
        worker = crew.work(*options)
        started.append("hangs")
        wait_until(lambda: lines(tmp_path / "started") == started)
        wait_until(lambda: queue.stats().running == 6)
        if pool == "prefork":  # whose child has written the line before the worker knows of it
            wait_until(lambda: any((inspect.active() or {}).values()))
        crew.kill(worker)
    crew.work(*options)
    wait_until(lambda: lines(tmp_path / "ended") == ["7"] * 5)
    assert lines(tmp_path / "started") == [*started, *["7"] * 5]
    [letter] = queue.dead_letters()
    assert (letter.task, letter.deaths) == ("application.hangs", 2)
    assert letter.reason == "2 workers died while they ran it"


@pytest.mark.slow
def test_a_worker_runs_what_celery_offers(
    crew: Workers, url: str, sent: Callable[..., Any], tmp_path: Path
) -> None:
    worker = crew.work("-E")

    def add(*args: int) -> Any:
        return sent("add", *args)

    assert add(1, 2).delay().get(timeout=PATIENCE_S) == 3
    chain, group, chord = canvas.chain, canvas.group, canvas.chord
    assert chain(add(1, 2), add(3), add(4)).delay().get(timeout=PATIENCE_S) == 10
    assert group(add(n, n) for n in range(9)).delay().get(timeout=PATIENCE_S) == [*range(0, 18, 2)]
    inner = group(add(1), chain(add(2), group(add(3), add(4))))
    with pytest.raises(KeyError, match="expected"):
        chain(sent("fails"), group(add(1), add(2))).delay().get(timeout=PATIENCE_S)
    last = sent("add", 1, 10, immutable=True)
    assert chain(add(1, 0), inner, last).delay().get(timeout=PATIENCE_S) == 11
    whole = chord([add(n, 1) for n in range(9)], sent("total"))
    assert whole.delay().get(timeout=PATIENCE_S) == 45
    assert sent("fails_twice").delay().get(timeout=PATIENCE_S) == 2
    began = time.monotonic()
    assert add(1, 1).apply_async(countdown=1).get(timeout=PATIENCE_S) == 2
    assert time.monotonic() - began >= 1
    app = add().app
    [reply] = app.control.ping(timeout=PATIENCE_S, limit=1)
    assert reply == {"w1@here": {"ok": "pong"}}
    app.control.revoke("revoked", reply=True, timeout=PATIENCE_S, limit=1)
    revoked = add(1, 1).apply_async(task_id="revoked", countdown=0.1)
    with pytest.raises(Exception, match="revoked"):
        revoked.get(timeout=PATIENCE_S)
    long = sent("work", 1, 600).delay()
    inspect = app.control.inspect(timeout=PATIENCE_S, limit=1)
    wait_until(lambda: [one["id"] for one in inspect.active()["w1@here"]] == [long.id])
    app.control.revoke(long.id, terminate=True)
    with pytest.raises(Exception, match=r"revoked|terminated"):
        long.get(timeout=PATIENCE_S)
    events: list[str] = []
    with app.connection() as listener:
        receiver = app.events.Receiver(
            listener, handlers={"*": lambda event: events.append(event["type"])}
        )
        listening = thread_of(lambda: receiver.capture(limit=None, timeout=None))
        while "task-succeeded" not in events:  # it sees those from when it began to listen
            add(1, 1).delay().get(timeout=PATIENCE_S)
        receiver.should_stop = True
        add(1, 1).delay()
        listening.join()
    poison = sent("dies").delay()  # five workers die with it
    wait_until(lambda: lines(tmp_path / "started").count("dies") >= 2)
    app.control.revoke(poison.id, terminate=True)
    assert add(2, 2).delay().get(timeout=PATIENCE_S) == 4
    assert app.control.broadcast("shutdown") is None
    assert worker.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_shutdowns_end_tasks_or_return_them(
    crew: Workers, url: str, sent: Callable[..., Any], tmp_path: Path
) -> None:
    queue = jobs_of(url, "celery")
    first = crew.work()
    warm = sent("work", 1, 2).delay()
    wait_until(lambda: "1" in lines(tmp_path / "started"))
    crew.stop(first, signal.SIGTERM)
    assert warm.get(timeout=PATIENCE_S) == 1
    assert queue.stats().running == 0
    second = crew.work()
    cold = sent("work", 2, 30).delay()
    # Celery cancels what its pool has reported as begun.
    inspect = cold.app.control.inspect(timeout=PATIENCE_S, limit=1)
    wait_until(lambda: any(inspect.active().values()))
    crew.stop(second, signal.SIGQUIT)
    assert queue.stats().running == 0
    assert "2" not in lines(tmp_path / "ended")
    crew.work()
    wait_until(lambda: lines(tmp_path / "started").count("2") == 2)
    cold.revoke(terminate=True)


def test_workers_whose_children_idle_recover_the_store_after_a_failed_sync(
    crew: Workers, url: str, sent: Callable[..., Any]
) -> None:
    workers = [crew.work() for _ in range(2)]
    assert [one.get(timeout=PATIENCE_S) for one in [sent("work", 1).delay() for _ in range(8)]]
    poison(stores.shared(parse_address(url)))
    with suppress(StoreError):  # it has no last checkpoint
        stores.close_all()
    logs = [crew.folder / f"w{number}.log" for number in (1, 2)]
    wait_until(lambda: all("".join(lines(log)).count("Connected to") == 2 for log in logs))
    assert sent("add", 1, 2).delay().get(timeout=PATIENCE_S) == 3
    for worker in workers:
        crew.stop(worker)


def test_a_forked_child_opens_the_store_for_itself(app: Celery, url: str) -> None:
    app.backend.store_result("a", 1, "SUCCESS")

    def work() -> None:
        app.backend.store_result("b", 2, "SUCCESS")
        publish(Connection(url), 1)

    assert status_of(child_of(work)) == 0
    assert app.backend.get_result("b") == 2
    [job] = take([jobs_of(url)], jobs_of(url).consumer, 1, timeout=0)
    job.done()
    with streamkeep.open(parse_address(url).path) as store:
        assert store.xinfo_groups("tasks")
