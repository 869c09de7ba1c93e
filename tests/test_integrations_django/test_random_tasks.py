"""Random lives of Django's tasks: none is lost or made up, and each result says what happened.

Tasks are enqueued by several backends, in transactions of two databases that commit or are undone,
in whole or in part. They run here and in forked children, which are killed in a task or after one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings

from conftest import assert_sound
from patience import wait_until
from stopped import child_of, die, status_of
from streamkeep.integrations.django import interface
from test_integrations_django import shop_tasks
from test_integrations_django.conftest import BACKEND
from tiers import daily_or_all

COMMON: Final = {"retries": 1, "backoff": "1ms..2ms", "max_deaths": 1_000_000}
BACKENDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # the store, and options
    "default": ("one", {}),
    "at_once": ("one", {"enqueue_on_commit": False}),
    "outbox": ("one", {"outbox": True}),
    "other": ("two", {"database": "other"}),
}
QUEUES: Final = ["default", "mail"]
DATABASES: Final = ["default", "other"]
ENDS: Final = ("works", "works", "works", "fails", "fails_first", "dies")


class Undo(Exception):
    """A transaction is undone."""


class Sent:
    """A task, and what may be known of it.

    Attributes:
        alias, queue: where it is.
        rank: of its priority; 0 runs first.
        when: its time: past, soon, far (it does not come), or empty for none.
        how: what it does.
        state: "open" (in a transaction), "row" (of the outbox), "there", or "never".
    """

    def __init__(self, number: int, result: Any, how: str, rank: int, when: str) -> None:
        self.number, self.result, self.how, self.rank, self.when = number, result, how, rank, when
        self.alias, self.queue = result.backend, result.task.queue_name
        self.state = "open"


class World:
    def __init__(self, folder: Path, seed: int) -> None:
        self.rng, self.folder = random.Random(seed), folder
        self.notes = folder / "notes"
        self.tasks: list[Sent] = []
        self.blocks: list[tuple[str, list[Sent]]] = []  # transactions that are open, by database

    def enqueue(self) -> None:
        alias, queue = self.rng.choice(list(BACKENDS)), self.rng.choice(QUEUES)
        priority, how = self.rng.choice([-7, 0, 0, 7]), self.rng.choice(ENDS)
        when = self.rng.choice(["", "", "", "past", "soon", "far"])
        after = {"past": -5, "soon": 0.01, "far": 3600}.get(when)
        moment = None if after is None else datetime.now(UTC) + timedelta(seconds=after)
        task = shop_tasks.live.using(
            backend=alias, queue_name=queue, priority=priority, run_after=moment
        )
        number = len(self.tasks)
        result = task.enqueue(number, how=how)
        sent = Sent(number, result, how, (priority < 0) - (priority > 0) + 1, when)
        self.tasks.append(sent)
        database = BACKENDS[alias][1].get("database", "default")
        around = [tasks for name, tasks in self.blocks if name == database]
        if alias == "at_once" or not around:
            sent.state = "row" if alias == "outbox" else "there"
        else:
            around[-1].append(sent)

    def transact(self) -> None:
        """Enqueue in a transaction, perhaps in one of it, or in one of the other database."""
        database = self.rng.choice(DATABASES)
        tasks: list[Sent] = []
        try:
            with transaction.atomic(using=database):
                self.blocks.append((database, tasks))
                try:
                    for _ in range(self.rng.randint(1, 4)):
                        inner = len(self.blocks) < 3 and self.rng.random() < 0.3
                        self.transact() if inner else self.enqueue()
                finally:
                    self.blocks.pop()
                if self.rng.random() < 0.5:
                    raise Undo
        except Undo:
            for sent in tasks:
                sent.state = "never"
            return
        around = [outer for name, outer in self.blocks if name == database]
        if around:
            around[-1] += tasks
            return
        for sent in tasks:
            sent.state = "row" if sent.alias == "outbox" else "there"

    def forward(self) -> None:
        call_command("streamkeep_forward", "--until-idle", backend="outbox", stderr=StringIO())
        for sent in self.tasks:
            if sent.state == "row":
                sent.state = "there"

    def queues(self) -> Iterator[Any]:
        for alias in ("default", "other"):  # of each store; the others have the same queues
            for name in QUEUES:
                yield interface.task_backends[alias].queue(name)

    def run(self) -> None:
        """Run some; of those that wait for no time and begin now, the urgent ones first."""
        before = self.told()
        self._run(self.rng.randint(1, 5), dies=False)
        first = [self.tasks[one] for one in self.told() if one not in before]
        ranks = [one.rank for one in first if not one.when]
        assert ranks == sorted(ranks)

    def kill(self) -> None:
        """Have a child run some, and be killed: in a task that dies, or after the last one."""
        seed = self.rng.getrandbits(32)

        def live() -> None:
            self.rng.seed(seed)
            self._run(self.rng.randint(1, 5), dies=True)
            die()

        status_of(child_of(live))

    def _run(self, count: int, *, dies: bool) -> None:
        shop_tasks.deadly = dies
        with noting(self.notes):
            self.rng.choice(list(self.queues())).run_until_idle(count)

    def told(self) -> dict[int, list[str]]:
        """Return what is known of each task: that it began, and how its attempts ended."""
        found: dict[int, list[str]] = {}
        for line in self.notes.read_text().splitlines() if self.notes.exists() else ():
            number, what = json.loads(line)
            found.setdefault(number, []).append(what)
        return found

    def check(self) -> None:
        told = self.told()
        for sent in self.tasks:
            said = told.get(sent.number, [])
            backend = interface.task_backends[sent.alias]
            if sent.state in ("never", "row"):
                assert not said, f"{sent.number} ran"
                with pytest.raises(interface.TaskResultDoesNotExist):
                    backend.get_result(sent.result.id)
                continue
            found = backend.get_result(sent.result.id)
            assert found.enqueued_at is not None
            assert (found.args, found.kwargs) == ([sent.number], {"how": sent.how})
            assert found.task == sent.result.task
            self._check_status(sent, found, said)

    def _check_status(self, sent: Sent, found: Any, said: list[str]) -> None:
        began, ended = said.count("began"), [one for one in said if one != "began"]
        where = f"{sent.number}, which {sent.how}: {found.status} after {said}"
        assert sent.when != "far" or not said, where
        failures, success = [one.exception_class for one in found.errors], found.status
        if ended:
            assert success == ended[-1], where
            assert said[-1] in ended, f"{where}: it ran after its end"
        if success == "READY":
            assert found.attempts == len(failures) <= began, where
        elif success == "SUCCESSFUL":
            assert found.return_value == sent.number * 2, where
            assert found.enqueued_at <= found.started_at <= found.last_attempted_at, where
            assert found.last_attempted_at <= found.finished_at, where
            assert sent.how != "fails", where
            assert began > len(failures), where
            assert len(failures) == (sent.how == "fails_first"), where
        elif success == "FAILED":
            assert (sent.how, failures) == ("fails", [ValueError] * 2), where
            assert found.errors[1].traceback.endswith(f"ValueError: {sent.number}\n")
        else:  # its worker died, and no other has taken it
            assert (success, sent.how, said[-1]) == ("RUNNING", "dies", "began"), where
        others = success in ("SUCCESSFUL", "RUNNING")
        assert len(found.worker_ids) == len(failures) + others, where

    def finish(self) -> None:
        self.forward()

        def is_empty() -> bool:
            for one in self.queues():
                with noting(self.notes):
                    shop_tasks.deadly = False
                    one.run_until_idle()
            stats = [one.stats() for one in self.queues()]
            far = sum(sent.when == "far" and sent.state == "there" for sent in self.tasks)
            left = sum(one.waiting + one.running + one.retrying + one.delayed for one in stats)
            return bool(left == far)

        wait_until(is_empty)
        self.check()
        for sent in self.tasks:
            if sent.state == "there" and sent.when != "far":
                found = interface.task_backends[sent.alias].get_result(sent.result.id)
                assert found.is_finished, f"{sent.number} never ran"


@contextmanager
def noting(notes: Path) -> Iterator[None]:
    """Have each beginning of a task, and each end, noted in a file."""

    def note(number: int, what: str) -> None:
        with notes.open("a") as file:
            file.write(json.dumps([number, what]) + "\n")

    def ended(sender: Any, task_result: Any, **rest: Any) -> None:
        note(task_result.args[0], str(task_result.status))

    shop_tasks.note = note
    interface.task_finished.connect(ended)
    try:
        yield
    finally:
        interface.task_finished.disconnect(ended)


@pytest.fixture
def databases(database: None, tmp_path: Path) -> Iterator[None]:
    name = tmp_path / "other.sqlite3"  # Django does not close one in memory
    connections.settings["other"] = {**connections.settings["default"], "NAME": name}
    try:
        yield
    finally:
        connections["other"].close()
        del connections.settings["other"], connections["other"]


@pytest.mark.parametrize("seed", range(daily_or_all(1, 20)))
def test_no_task_is_lost_and_each_result_says_what_happened(
    tmp_path: Path, databases: None, seed: int
) -> None:
    chosen = {
        alias: {
            "BACKEND": BACKEND,
            "QUEUES": QUEUES,
            "OPTIONS": {"path": tmp_path / store, **COMMON, **options},
        }
        for alias, (store, options) in BACKENDS.items()
    }
    with override_settings(TASKS=chosen):
        world = World(tmp_path, seed)
        steps: list[Callable[[], None]] = [world.enqueue] * 3 + [world.transact] * 8
        steps += [world.run] * 4 + [world.kill] * 3 + [world.forward]
        for _ in range(daily_or_all(20, 40)):
            world.rng.choice(steps)()
            world.check()
        world.finish()
        for alias in BACKENDS:
            for name in QUEUES:
                interface.task_backends[alias].queue(name).close()
    for store in ("one", "two"):
        assert_sound(tmp_path / store)
