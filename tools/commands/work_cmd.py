"""`work`: run the handlers of a queue."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click

from streamkeep.tools.base import opening
from streamkeep.tools.base.arguments import Flags, Ms, Number, SizeBytes
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit, Failure, as_json

if TYPE_CHECKING:
    from streamkeep.jobs.queue import Queue

_LOOK_S: Final = 0.5
_SKIPPED: Final = {"node_modules", "__pycache__", "site-packages"}
_RELOADING: Final = "STREAMKEEP_RELOADING"

Mode = Annotated[
    str,
    Flags(
        {
            "THREADS": "Run them in threads. The default.",
            "PROCESSES": "Run each in its own process.",
            "ASYNCIO": "Run them in one event loop.",
        }
    ),
]


@command()
def work(
    target: str,
    concurrency: Annotated[int, Number(1, 1000)] = 1,
    mode: Mode | None = None,
    queues: str | None = None,
    grace: Ms = 30_000,
    max_memory: SizeBytes = -1,
    reload: bool = False,
    log_json: bool = False,
    until_idle: bool = False,
    ship: str | None = None,
) -> None:
    """Take jobs of a queue and run their handlers.

    MODULE is imported from the working directory, or from where Python finds it; QUEUE is the name
    of a `streamkeep.jobs.Queue` in it.

    SIGTERM and Ctrl-C stop the worker: it takes no more jobs, lets those that run end within
    --grace, and gives the rest back at once, which counts as no attempt. A second signal stops it
    now. If it is killed, its jobs go to another worker within milliseconds.

    A job that runs longer than its `max_runtime` has failed. With --processes its process is
    killed. A thread cannot be killed: it is abandoned, and the log says so.

    A job that brings a new process above --max-memory has failed. If that process has run other
    jobs before, the job is given back, which counts as no attempt.

    Examples:
      streamkeep work shop.tasks:queue
      streamkeep work shop.tasks:queue -c 4 --processes --max-memory 500M
      streamkeep work shop.tasks:queue --queues mail,thumbnails --asyncio -c 100

    Args:
        target (MODULE:QUEUE):
        concurrency (-c): Run this many jobs at a time.
        queues (NAMES): Work on these queues of the module, by name, separated by commas, instead of
            QUEUE.
        grace: How long running jobs may go on after SIGTERM or Ctrl-C.
        max_memory (SIZE): Replace a process that has more memory, during a job or after it; only
            with --processes.
        reload: Start again when a .py file below . has changed.
        log_json: Log one JSON object per line.
        until_idle: Run what is due, one job after the other, then end.
        ship (TARGET): Keep a copy of the store in a folder or a bucket, as `streamkeep ship` does;
            with --processes, in one more process.
    """
    chosen = (mode or "threads").lower()
    if max_memory >= 0 and chosen != "processes":
        raise click.UsageError("--max-memory needs --processes, which replaces a process")
    if until_idle and (chosen != "threads" or concurrency > 1 or reload):
        raise click.UsageError(
            "--until-idle runs one job after the other, in this process, and ends; leave out -c, "
            "--reload and the mode"
        )
    if reload and os.environ.pop(_RELOADING, None) is None:
        _work_again_and_again()
        return
    found = _queues(target, queues)
    from streamkeep.jobs.worker_runs import on_signals

    with _log_to_stderr(log_json or as_json()):
        if chosen == "processes":
            from streamkeep.jobs.worker_processes import Processes

            pool = Processes(
                found,
                concurrency=concurrency,
                grace=grace / 1000,
                max_memory=max(0, max_memory),
                beside=None if ship is None else partial(_shipping, found, ship),
            )
            on_signals(pool.stop)
            if not pool.run():
                raise Failure(
                    "the processes of the worker ended again and again before they could work",
                    hint="see the log above; --threads shows the error in one process",
                )
            return
        from streamkeep.jobs.worker import Worker

        worker = Worker(
            found,
            concurrency=concurrency,
            mode="asyncio" if chosen == "asyncio" else "threads",
            grace=grace / 1000,
        )
        with _shipping(found, ship):
            if until_idle:
                signal.signal(signal.SIGTERM, signal.default_int_handler)  # gives back, as Ctrl-C
                worker.run_until_idle()
            else:
                on_signals(worker.stop)
                worker.run()
        for queue in found:
            queue.close()


@contextmanager
def _shipping(queues: list[Queue], target: str | None) -> Iterator[None]:
    """Keep a copy of the store of the queues, if a target is named."""
    if target is None:
        yield
        return
    from streamkeep.recovery import shipping

    if len({queue.store.uuid for queue in queues}) > 1:
        raise click.UsageError("--ship needs queues of one store")
    with shipping(queues[0].store, target):
        yield


# --- the log ------------------------------------------------------------------------------------


@contextmanager
def _log_to_stderr(json: bool) -> Iterator[None]:
    from streamkeep.jobs.worker_log import JsonFormatter, TextFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


# --- the module ---------------------------------------------------------------------------------


def _queues(target: str, names: str | None) -> list[Queue]:
    from streamkeep.jobs.async_queue import AsyncQueue
    from streamkeep.jobs.queue import Queue

    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"{target!r} is not MODULE:QUEUE, such as shop.tasks:queue")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module: Any = import_module(module_name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module_name
        if not as_json() and not is_missing:
            click.echo(traceback.format_exc().rstrip(), err=True)
        raise Failure(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}",
            hint="correct the module, or run the command in the directory that contains it",
            status=Exit.USAGE,
        ) from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    found = found.queue if isinstance(found, AsyncQueue) else found
    has = {name: one for name, one in vars(module).items() if isinstance(one, (Queue, AsyncQueue))}
    if not isinstance(found, Queue):
        raise Failure(
            f"{module_name!r} has no queue {attribute!r}",
            hint=f"it has {', '.join(sorted(has))}"
            if has
            else "make one with streamkeep.jobs.Queue",
            status=Exit.USAGE,
        )
    if names is None:
        return [found]
    known = {one.name: one.queue if isinstance(one, AsyncQueue) else one for one in has.values()}
    known[found.name] = found
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    missing = [name for name in wanted if name not in known]
    if missing or not wanted:
        raise Failure(
            f"{module_name!r} has no queue of the name {', '.join(missing) or names!r}",
            hint=f"its queues are {', '.join(sorted(known))}",
            status=Exit.USAGE,
        )
    return [known[name] for name in dict.fromkeys(wanted)]


# --- again after changes ------------------------------------------------------------------------


def _work_again_and_again() -> None:
    """Run this command as a child, and again whenever a source file has changed."""
    stops: list[int] = []
    child: list[subprocess.Popen[bytes]] = []

    def stop() -> None:
        stops.append(1)
        if child:
            child[0].send_signal(signal.SIGTERM)

    opening.on_signals(stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, lambda number, frame: stop())  # which the child does not get
    while not stops:
        before = _sources()
        # A session of its own: the terminal sends Ctrl-C to this process only.
        child[:] = [
            subprocess.Popen(
                [sys.executable, "-m", "streamkeep", *sys.argv[1:]],
                env={**os.environ, _RELOADING: "1"},
                start_new_session=True,
            )
        ]
        while child[0].poll() is None:
            time.sleep(_LOOK_S)
            if not stops and _sources() != before:
                click.echo("a source file has changed; the worker starts again", err=True)
                child[0].send_signal(signal.SIGTERM)
                child[0].wait()
        while not stops and child[0].returncode and _sources() == before:
            time.sleep(_LOOK_S)  # it failed, such as for an error in the module


def _sources() -> dict[str, int]:
    """Return when each .py file below the working directory was written."""
    found: dict[str, int] = {}
    for folder, folders, names in os.walk("."):
        folders[:] = [one for one in folders if one not in _SKIPPED and not one.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                with suppress(OSError):
                    found[str(path)] = path.stat().st_mtime_ns
    return found
