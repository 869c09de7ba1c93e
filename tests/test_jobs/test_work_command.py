"""`streamkeep work` as a process: what it imports, how it stops, and children that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli_runner import run
from patience import PATIENCE_S, wait_until
from streamkeep.jobs import Queue, worker_processes
from streamkeep.jobs.worker_processes import Processes
from streamkeep.recovery import restore_copy
from tiers import slow_but

TASKS = """
import ctypes, os, signal, sys, time
from pathlib import Path
from streamkeep.jobs import Queue, Retry

queue = Queue("jobs.store", backoff="1ms..2ms", sync="none")
mail = Queue("jobs.store", "mail", sync="none")

@queue.task
def note(name):
    Path(name).touch()

@queue.task
def hold(name):
    Path(name).touch()
    time.sleep(3600)

@queue.task(max_runtime="300ms", retries=1)
def hang(name):
    with open(name, "a") as file:
        file.write("x")
    if Path(name).stat().st_size == 1:
        time.sleep(3600)

@queue.task(max_runtime="300ms", retries=0)
def seize(name):
    with open(name, "a") as file:
        file.write("x")
    ctypes.PyDLL(None).sleep(3600)  # it keeps the GIL

@queue.task(retries=0)
def bad(kind):
    if kind == "exit":
        sys.exit(3)
    if kind == "retry":
        raise Retry(after="in 5 minutes")
    raise ValueError("caf\\udce9")

@queue.task
def die(name):
    with open(name, "a") as file:
        file.write("x")
    if Path(name).stat().st_size < 3:
        os._exit(9)

@queue.task(retries=0)
def fork(name):
    begun, begin = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(begin, b"x")
        time.sleep(3600)
    os.read(begun, 1)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM

@queue.task(retries=1000)  # a process that is seen to be too large before it ends ends the attempt
def grow(name):
    with open(name, "a") as file:
        file.write(f"{os.getpid()}\\n")
    queue.ballast = bytearray(os.urandom(1)) * (160 << 20)

@queue.task(retries=0)
def swell(name):
    grow.call(name)
    time.sleep(3600)

@mail.task(name="send")
def send(name):
    Path(name).touch()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of tasks, which is the working directory."""
    (tmp_path / "shop.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("shop", None)


@pytest.fixture
def queue(folder: Path) -> Iterator[Queue]:
    with Queue(folder / "jobs.store", sync="none") as queue:
        yield queue


def put(queue: Queue, task: str, *args: Any) -> Any:
    """Put a job for a task that this process does not have."""
    known = queue.core.tasks.get(task.encode()) or queue.task(name=task)(lambda *args: None)
    return known.delay(*args)


@contextmanager
def worker(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker of the queue `shop:queue`; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streamkeep", "work", "shop:queue", "--log-json", *options],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return the log of a worker that ended well."""
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    return [json.loads(line) for line in log.splitlines()]


def test_what_cannot_be_imported_ends_with_status_2(folder: Path) -> None:
    (folder / "broken_module.py").write_text("import this_is_missing\n")
    for target, problem in (
        ("broken_module:queue", "No module named 'this_is_missing'"),
        ("shop:basket", "has no queue 'basket'"),
        ("shop", "is not MODULE:QUEUE"),
    ):
        assert problem in run("work", target, status=2).stderr
    found = run("work", "shop:queue", "--queues", "post", status=2)
    assert "its queues are default, mail" in found.stderr
    run("work", "shop:queue", "--max-memory", "1G", status=2)


def test_until_idle_runs_what_is_due(folder: Path, queue: Queue) -> None:
    put(queue, "note", "a")
    put(Queue(queue.store, "mail"), "send", "b")
    queue.close()
    said = run("work", "shop:queue", "--until-idle", "--queues", "mail,default").stderr
    assert (folder / "a").exists()
    assert (folder / "b").exists()
    done = [line.split()[3] for line in said.splitlines() if " info done " in line]
    assert done == ["send", "note"]


def test_a_worker_takes_an_asyncio_queue(folder: Path) -> None:
    (folder / "shop.py").write_text(
        "from streamkeep import aio\n"
        "queue = aio.Queue('jobs.store', sync='none')\n"
        "@queue.task\n"
        "async def send(to): return to\n"
    )
    run("queue", "put", "jobs.store", '["ann"]', "--task", "send")
    assert "info done send" in run("work", "shop:queue", "--until-idle").stderr


@pytest.mark.parametrize("option", [["--processes"], ["--asyncio"], ["-c", "2"], ["--reload"]])
def test_until_idle_refuses_what_it_would_ignore(folder: Path, option: list[str]) -> None:
    said = run("work", "shop:queue", "--until-idle", *option, status=2).stderr
    assert "--until-idle runs one job after the other" in said


def test_a_stopped_worker_gives_back_and_a_killed_one_loses_nothing(
    folder: Path, queue: Queue
) -> None:
    put(queue, "hold", "a")
    with worker(folder, "--grace", "10ms") as process:
        wait_until((folder / "a").exists)
        process.send_signal(signal.SIGTERM)
        events = [line["event"] for line in lines_of(process)]
    assert events[0] == "begun"
    assert events[-3:] == ["stopping", "given_back", "ended"]
    (folder / "a").unlink()
    with worker(folder) as process:
        wait_until((folder / "a").exists)
        process.kill()
        process.wait()
        (job,) = queue.get_many(1, timeout=PATIENCE_S)
        assert job.attempt == 1  # neither the stop nor the death was one
        job.done()


def test_a_stop_until_idle_gives_back_what_runs(folder: Path, queue: Queue) -> None:
    put(queue, "hold", "a")
    with worker(folder, "--until-idle") as process:
        wait_until((folder / "a").exists)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    (job,) = queue.get_many(1)
    assert job.taken is not None
    assert (job.taken.deliveries, job.taken.lost) == (1, 0)


def test_children_outlive_jobs_whose_failure_cannot_be_told(folder: Path, queue: Queue) -> None:
    for kind in ("text", "exit", "retry"):
        put(queue, "bad", kind)
        put(queue, "note", kind)
    with worker(folder, "--processes", "-c", "2") as process:
        wait_until(lambda: queue.stats().done == queue.stats().failed == 3)
        process.terminate()
        assert "child_ended" not in [line["event"] for line in lines_of(process)]


@pytest.mark.parametrize("mode", ["--threads", "--processes"])
def test_what_a_handler_forks_ends_at_sigterm(folder: Path, queue: Queue, mode: str) -> None:
    """As a pool of processes ends its own: it waited for them for ever."""
    put(queue, "fork", "a")
    with worker(folder, mode) as process:
        wait_until(lambda: queue.stats().done == 1)
        process.terminate()
        lines_of(process)


def test_the_status_says_that_a_worker_ended_because_of_an_error(folder: Path) -> None:
    program = (
        "import sys; sys.argv = ['streamkeep', 'work', 'shop:queue'];"
        "import streamkeep.jobs.worker as worker\n"
        "def take(*args, **options): raise RuntimeError('of the take')\n"
        "worker.take = take\n"
        "from streamkeep.tools.cli import main; main()"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "the worker ended because of an error: builtins.RuntimeError: of the take" in done.stderr


@pytest.mark.slow
def test_children_that_hang_die_or_grow_are_replaced(folder: Path, queue: Queue) -> None:
    for task in ("hang", "seize", "die", "grow", "grow", "note"):
        put(queue, f"{task}", task)
    with worker(folder, "--processes", "-c", "2", "--max-memory", "150M") as process:
        wait_until(lambda: queue.stats().done == 5)
        wait_until(lambda: queue.stats().failed == 1)
        process.send_signal(signal.SIGINT)
        lines = lines_of(process)
    assert (folder / "hang").read_text() == "xx"
    assert (folder / "die").read_text() == "xxx"
    (letter,) = queue.dead_letters()
    assert (letter.error, letter.deaths) == ("builtins.TimeoutError", 0)
    assert (folder / "seize").read_text() == "x"
    assert len(set((folder / "grow").read_text().split())) >= 2
    ends = sorted(line["status"] for line in lines if line["event"] == "child_ended")
    assert ends.count(9) == 2
    assert 70 in ends
    assert 75 in ends


@pytest.mark.slow
def test_a_job_that_needs_too_much_memory_fails_in_a_new_process_only(
    folder: Path, queue: Queue
) -> None:
    for task in ("note", "swell"):
        put(queue, task, task)
    with worker(folder, "--processes", "--max-memory", "150M") as process:
        wait_until(lambda: queue.stats().failed == 1)
        process.send_signal(signal.SIGINT)
        lines = lines_of(process)
    (letter,) = queue.dead_letters()
    assert (letter.error, letter.attempts, letter.deaths) == ("builtins.MemoryError", 1, 0)
    assert len((folder / "swell").read_text().split()) == 2
    assert [line["event"] for line in lines].count("given_back") == 1
    assert {line["status"] for line in lines if line["event"] == "child_ended"} == {75}


@pytest.mark.parametrize("on_end", [signal.SIG_DFL, signal.SIG_IGN])
def test_children_that_end_together_count_as_one_attempt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_end: signal.Handlers
) -> None:
    """Also if the kernel removes them, and does not say how they ended."""
    begun = tmp_path / "begun"

    def end_at_once(self: Processes, orders: int, events: int) -> int:
        with begun.open("a") as file:
            file.write("x")
        return 1

    monkeypatch.setattr(Processes, "_be_child", end_at_once)
    monkeypatch.setattr(worker_processes, "_LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(worker_processes, "_TICK_S", 0.01)
    former = signal.signal(signal.SIGCHLD, on_end)
    try:
        assert not Processes([Queue(tmp_path / "s")], concurrency=6).run()
    finally:
        signal.signal(signal.SIGCHLD, former)
    assert len(begun.read_text()) > 6 + 3  # it has waited four times


def test_a_child_makes_no_store_in_place_of_one_that_was_moved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker_processes, "_LONGEST_PAUSE_S", 0.1)
    with Queue(tmp_path / "store") as queue:

        @queue.task
        def move() -> None:
            (tmp_path / "store").rename(tmp_path / "elsewhere")

        move.delay()
    assert not Processes([queue]).run()
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_children_end_when_their_parent_is_killed(folder: Path, queue: Queue) -> None:
    put(queue, "hold", "a")
    with worker(folder, "--processes", "--grace", "10ms") as process:
        wait_until((folder / "a").exists)
        process.kill()
        process.wait()
        wait_until(lambda: queue.stats().running == 0)


@pytest.mark.slow
def test_a_worker_starts_again_after_a_change(folder: Path, queue: Queue) -> None:
    with worker(folder, "--reload") as process:
        put(queue, "note", "a")
        wait_until((folder / "a").exists)
        changed = TASKS.replace("Path(name).touch()", "Path(name + '2').touch()", 1)
        (folder / "shop.py").write_text(changed)
        put(queue, "note", "b")

        def came() -> bool:  # the former worker may have taken it
            put(queue, "note", "c")
            time.sleep(0.05)
            return (folder / "c2").exists()

        wait_until(came)
        process.send_signal(signal.SIGHUP)  # as a terminal does that is closed
        process.wait(PATIENCE_S)
        assert not queue.workers()


@pytest.mark.slow
def test_a_worker_below_nohup_goes_on(
    folder: Path, queue: Queue, request: pytest.FixtureRequest
) -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which children inherit
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, former))
    with worker(folder, "--reload") as process:
        put(queue, "note", "a")
        wait_until((folder / "a").exists)
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("mode", slow_but(["--threads", "--processes"], "--processes"))
def test_the_store_is_shipped(folder: Path, queue: Queue, mode: str) -> None:
    """By one shipper, also where each job has its process; what was done last is at the target."""
    with worker(folder, mode, "-c", "3", "--ship", "target") as process:
        wait_until((folder / "target" / "head.json").exists)
        for name in "abc":
            put(queue, "note", name)
        wait_until(lambda: queue.stats().done == 3)
        process.send_signal(signal.SIGTERM)
        lines = lines_of(process)
    assert not [one for one in lines if one["level"] in ("error", "warning")], lines
    assert queue.store.wait_shipped(0)
    restore_copy(folder / "target", folder / "restored")
    with Queue(folder / "restored") as restored:
        assert restored.stats().done == 3


def test_a_killed_shipper_is_replaced(folder: Path, queue: Queue) -> None:
    with worker(folder, "--processes", "--ship", "target") as process:
        wait_until((folder / "target" / "head.json").exists)
        os.kill(shipper_of(process), signal.SIGKILL)
        put(queue, "note", "a")
        wait_until(lambda: queue.stats().done == 1)
        wait_until(lambda: queue.store.wait_shipped(1))
        process.send_signal(signal.SIGTERM)
        lines = lines_of(process)
    assert [one["status"] for one in lines if one["event"] == "child_ended"] == [-signal.SIGKILL]


def shipper_of(process: subprocess.Popen[str]) -> int:
    """Return the child of a worker that ships the store: it is the first one."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return min(map(int, path.read_text().split()))
