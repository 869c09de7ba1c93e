"""Workers that die: their jobs go to others at once, and poison is counted by deaths."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import job_workers
from fork_server import forking
from inside import context_of
from job_workers import Worker
from patience import thread_of, wait_until
from streamkeep import Store
from streamkeep.engine.liveness.lease_file import State
from streamkeep.engine.liveness.leases import Leases
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import Job, JobLostError, Queue, take
from streamkeep.jobs.job_calls import leave
from streamkeep.jobs.take_call import Take
from test_jobs.conftest import is_awaited
from test_jobs.test_queue import counts, letters


class Written:
    """Marks of a process that are in no file."""

    def __init__(self) -> None:
        self.marks: list[bytes] = []

    def add(self, mark: bytes) -> int:
        self.marks.append(mark)
        return len(self.marks) - 1

    def remove(self, place: int) -> None:
        self.marks[place] = b""


class Lives:
    """Leases in place of processes: each `get` is that of another process, which then dies."""

    def __init__(self, store: Store[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1
        self._dead: set[int] = set()
        monkeypatch.setattr(store, "_lease", lambda: self.now)
        monkeypatch.setattr(Leases, "state", lambda leases, number: self._state(number))
        monkeypatch.setattr(Leases, "is_dead", lambda leases, number: number in self._dead)
        assert context_of(store).leases is not None
        self._marks: dict[int, Written] = {}
        monkeypatch.setattr(Leases, "marks", lambda leases: self._marks_of(self.now))
        monkeypatch.setattr(Leases, "work_of_the_dead", lambda leases: self._work())
        monkeypatch.setattr(Leases, "forget_work", lambda leases, marks: self._forget(marks))

    def written(self, number: int) -> list[bytes]:
        return self._marks_of(number).marks

    def _marks_of(self, number: int) -> Written:
        return self._marks.setdefault(number, Written())

    def _work(self) -> dict[bytes, int]:
        return {mark: one for one in self._dead for mark in self._marks_of(one).marks if mark}

    def _forget(self, marks: Mapping[bytes, int]) -> None:
        for mark, number in marks.items():
            written = self._marks_of(number)
            written.remove(written.marks.index(mark))

    def _state(self, number: int) -> State:
        return State.DEAD if number in self._dead else State.ALIVE

    def die(self) -> None:
        self._dead.add(self.now)
        self.now += 1


@pytest.fixture
def lives(store: Store[Any], monkeypatch: pytest.MonkeyPatch) -> Lives:
    return Lives(store, monkeypatch)


def test_deaths_are_no_attempts_until_they_are_too_many(queue: Queue, lives: Lives) -> None:
    poison = queue.put("poison", retries=0, key="k")
    queue.put("next", key="k")
    for death in range(5):
        (job,) = queue.get_many(9)
        assert (job.id, job.attempt, job.taken and job.taken.deaths) == (poison.id, 1, death)
        lives.die()
    assert [job.payload for job in queue.get_many(9)] == ["next"]
    (letter,) = letters(queue)
    assert letter.items() >= {
        ("reason", "5 workers died while they ran it"),
        ("deaths", "5"),
        ("attempts", "1"),
    }
    (dead,) = queue.dead_letters()
    assert [(one.worker, one.error) for one in dead.history] == [("", "the worker died")] * 5
    assert not queue.store.row_range("jobs:mails", b"x", b"x\xff")


def test_a_death_counts_for_the_jobs_that_were_begun(queue: Queue, lives: Lives) -> None:
    queue.put_many("abc")
    first, _, _ = queue.get_many(3)
    first.begin()
    lives.die()
    jobs = queue.get_many(3)
    assert [(job.payload, job.attempt, job.taken.deaths) for job in jobs if job.taken] == [
        ("a", 1, 1),
        ("b", 1, 0),
        ("c", 1, 0),
    ]
    jobs[1].done()
    lives.die()  # none was begun by itself, so that the program may have worked on all of them
    jobs = queue.get_many(3)
    assert [(job.payload, job.attempt, job.taken.deaths) for job in jobs if job.taken] == [
        ("a", 1, 2),
        ("c", 1, 1),
    ]
    assert jobs[1].retry(after="1m")
    lives.die()
    (job,) = queue.get_many(3)
    assert job.payload == "a"


def test_jobs_of_one_call_are_begun_by_several_threads(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_many("ab")
    first, second = queue.get_many(2)
    other = Thread(target=second.begin)

    def leave_late(job: Job) -> None:
        other.start()
        other.join(0.05)
        leave(job)

    monkeypatch.setattr("streamkeep.jobs.job.leave", leave_late)
    first.begin()
    other.join()
    assert first._marks
    assert second._marks


def test_a_job_that_expired_and_was_only_taken_has_its_unique_name_no_more(
    queue: Queue, clock: ManualClock, lives: Lives
) -> None:
    queue.put("old", unique="u", expires="1m")
    queue.put("begun")
    queue.get_many(2)[1].begin()
    lives.die()
    queue.get(0).park()
    clock.ms += 60_001
    assert queue.put("new", unique="u").is_new
    assert [job.payload for job in queue.get_many(9)] == ["begun", "new"]


def test_jobs_of_dead_workers_do_not_use_up_the_limit_of_a_queue(
    queue: Queue, lives: Lives
) -> None:
    queue.set_limits(concurrency=2)
    queue.put_many("abc")
    assert len(queue.get_many(9)) == 2
    assert queue.core.read(Take([queue], queue.consumer, 1, None).look) == -1
    lives.die()
    assert queue.core.read(Take([queue], queue.consumer, 1, None).look) == 0
    assert [job.payload for job in take([queue], b"other", 9, timeout=0)] == ["a", "b"]
    assert queue.get_many(9) == []


def test_a_job_that_was_deleted_while_a_worker_had_it_that_died_runs_no_more(
    queue: Queue, lives: Lives
) -> None:
    queue.put_many("ab")
    for job in queue.get_many(2):
        assert queue.store.xdel("mails", job.id) == 1
    lives.die()
    queue.put("c").cancel()
    for _ in range(2):
        assert not queue.drain(0)
        assert queue.core.read(Take([queue], queue.consumer, 1, None).look) == 0
        assert queue.get_many(1) == []
        assert queue.drain(0)
        assert queue.core.read(Take([queue], queue.consumer, 1, None).look) == -1
        queue.resume()
        queue.put("d")
        (job,) = queue.get_many(1)
        lives.die()
        assert queue.store.xdel("mails", job.id) == 1


def test_consumers_of_dead_workers_do_not_pile_up(queue: Queue, lives: Lives) -> None:
    """Each call that takes a job asks all consumers of the group for their leases."""
    queue.put_many("ab")
    queue.put("first", priority="high").cancel()
    for number in range(4):
        (job,) = take([queue], b"worker %d" % number, 1, timeout=0)
        assert job.payload == "a"
        lives.die()
    queue.put("c", priority="high")
    for _ in range(3):
        take([queue], b"last", 1, timeout=0)
    for stream, pending in (("mails", 2), ("mails:high", 1)):
        found = queue.store.xinfo_consumers(stream, "jobs")
        assert [(one["name"], one["pending"]) for one in found] == [(b"last", pending)]


def test_a_job_that_was_lost_leaves_no_mark(queue: Queue, lives: Lives) -> None:
    queue.put_many("abcd")
    jobs = queue.get_many(4)
    lives.die()
    assert len(queue.get_many(4)) == 4
    lost = jobs[3].lost()
    for end in (jobs[0].done, jobs[1].give_back, jobs[2].retry):
        with pytest.raises(JobLostError):
            end()
    assert lost
    assert set(lives.written(1)) == {b""}
    assert b"" not in lives.written(2)


def test_a_death_counts_though_the_take_that_saw_it_was_undone(store: Store, lives: Lives) -> None:
    first, second = Queue(store, "first"), Queue(store, "second")
    first.put("poison")
    for _ in range(2):  # so that the next take begins with this queue again
        assert len(first.get_many(1)) == 1
        lives.die()
    second.put_many("ab", delay=1)
    clock = context_of(store).clock
    assert isinstance(clock, ManualClock)
    clock.ms += 1000
    store.delete("second")
    # The first attempt takes the job of the dead and fails at the missing group. The second one
    # begins with the other queue, and has no room for that job any more.
    jobs = take([first, second], b"consumer", 2, timeout=0)
    assert [job.payload for job in jobs] == ["a", "b"]
    (job,) = first.get_many(1)
    assert job.taken
    assert job.taken.deaths == 2
    assert lives.written(2) == [b""]


def test_a_death_that_was_counted_is_forgotten_though_no_job_was_found(
    queue: Queue, lives: Lives
) -> None:
    queue.put("poison", max_runtime=0)
    for _ in range(4):
        assert len(queue.get_many(1)) == 1
        lives.die()
    assert len(queue.get_many(1)) == 1
    lives.die()
    assert take([queue], queue.consumer, 1, timeout="50ms") == []
    assert letters(queue)[0]["deaths"] == "5"
    assert [lives.written(number) for number in range(1, 6)] == [[b""]] * 5


def test_only_the_poison_of_a_batch_becomes_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Queue(path, sync="none", max_deaths=3) as queue, forking(job_workers.__name__) as server:
        queue.put_many(["first", "poison", "last"])
        for _ in range(3):
            worker = server.fork(Worker(str(path), str(tmp_path / "note"), "batch"))
            assert server.wait(worker) == -signal.SIGKILL
        (job,) = queue.get_many(9)
        assert job.taken
        assert (job.payload, job.attempt, job.taken.deaths, job.taken.lost) == ("last", 1, 0, 3)
        (letter,) = letters(queue)
        assert (letter["payload"], letter["deaths"]) == ('"poison"', "3")
        assert letter["reason"] == "3 workers died while they ran it"
        runs = queue.dead_letters()[0].history
        assert [one.error for one in runs] == ["the worker died"] * 3
        assert len({one.worker for one in runs if one.worker.startswith(socket.gethostname())}) == 3
        assert all(0 < one.begun_ms <= one.ended_ms for one in runs)
        assert queue.stats().done == 1
        assert len(list((path / "leases").iterdir())) == 1  # its own; those of the dead are read


def test_a_run_that_takes_too_long_is_a_failed_attempt(queue: Queue, clock: ManualClock) -> None:
    queue.put("slow", max_runtime="1m", retries=1, backoff=0)
    queue.put("patient", max_runtime="1m", retries=0)
    slow, patient = queue.get_many(2)
    clock.ms += 59_999
    assert queue.get_many(9) == []
    patient.extend()
    patient.extend("2m")
    clock.ms += 2001
    (again,) = queue.get_many(9)
    assert (again.payload, again.attempt, slow.lost(), patient.lost()) == ("slow", 2, True, False)
    again.done()
    patient.done()
    clock.ms += 600_000
    assert (queue.get_many(9), counts(queue)) == ([], (0, 0, 0, 0, 2))
    assert queue.store.row_range("jobs:mails", b"s", b"s\xff" * 9) == []
    queue.put("hangs", max_runtime="1s", retries=0)
    queue.get(0)
    clock.ms += 3001
    assert queue.get_many(9) == []
    assert [letter["error"] for letter in letters(queue)] == ["builtins.TimeoutError"]


def test_a_hang_is_no_death_though_many_rows_of_the_schedule_come_first(
    queue: Queue, clock: ManualClock, lives: Lives
) -> None:
    once, twice = queue.put_many(["hangs"] * 2, max_runtime="1s", backoff=0)
    queue.put_many(range(450), delay="1s", priority="low")
    for retries, job in enumerate((once, twice)):  # a run keeps the policy of its worker
        queue.core.policy = queue.core.policy._replace(retries=retries)
        taken = queue.get(0)
        assert taken.id == job.id
    taken.extend("2s")
    clock.ms += 4001
    lives.die()
    assert queue.get_many(1)[0].payload == 0
    (letter,) = queue.dead_letters()
    assert (letter.job, letter.error, letter.deaths) == (once.id, "builtins.TimeoutError", 0)
    while (taken := queue.get(0)).id != twice.id:
        pass
    assert (taken.attempt, taken.taken and taken.taken.deaths) == (2, 0)
    assert len(twice.history()) == 1


@pytest.mark.parametrize("others", [0, 450])
def test_a_power_loss_is_no_attempt_though_no_worker_ran_until_max_runtime_was_over(
    queue: Queue, clock: ManualClock, lives: Lives, others: int
) -> None:
    """After a boot, no mark says what the processes before it ran."""
    job = queue.put("job", max_runtime="1s", retries=0)
    queue.put_many(range(others), delay="1s", priority="low")
    queue.get(0)
    lives.written(lives.now)[:] = [b""]
    lives.die()
    clock.ms += 3_600_000
    again = queue.get(0)
    assert (again.id, again.attempt, again.taken and again.taken.deaths) == (job.id, 1, 0)
    clock.ms += 2999
    assert not again.lost()
    again.done()


def test_a_killed_worker_wakes_one_that_waits(tmp_path: Path) -> None:
    found: list[Any] = []
    with Queue(tmp_path / "store", sync="none") as queue, forking(job_workers.__name__) as server:
        queue.put("x")
        note = tmp_path / "note"
        worker = server.fork(Worker(str(tmp_path / "store"), str(note), "hold"))
        wait_until(note.exists)
        thread = thread_of(lambda: found.append(queue.get().attempt))
        wait_until(lambda: is_awaited(queue))
        os.kill(worker, signal.SIGKILL)
        thread.join()
        server.wait(worker)
    assert found == [1]


def test_what_a_tool_gave_back_is_due_again_for_the_next_worker(queue: Queue) -> None:
    queue.put_many("abcd")
    jobs = queue.get_many(3)
    assert jobs[2].retry(after="1h")
    queue.store.xnack("mails", "jobs", "FAIL", jobs[0].id)
    assert [job.payload for job in queue.get_many(9)] == ["d"]
    again = Queue(queue.store, "mails")
    assert [(job.payload, job.attempt) for job in again.get_many(9)] == [("a", 2)]
    assert Queue(queue.store, "mails").get_many(9) == []
    assert (again.stats().running, again.stats().retrying) == (3, 1)
