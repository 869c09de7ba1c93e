"""`manage.py streamkeep_worker`: run the tasks of a backend."""

from __future__ import annotations

import logging
import signal
import threading
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils.autoreload import run_with_reloader

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.integrations.django.backend import backend_named
from streamkeep.integrations.django.queues import TaskQueue
from streamkeep.jobs.worker import Worker
from streamkeep.jobs.worker_processes import Processes
from streamkeep.jobs.worker_runs import on_signals


class Command(BaseCommand):
    help = (
        "Runs the tasks of a Streamkeep backend. SIGTERM and Ctrl-C stop it: it takes no more "
        "tasks, lets those that run end within --grace, and gives the rest back, which counts as "
        "no attempt. A second signal stops it at once. If it is killed, its tasks go to another "
        "worker within milliseconds."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--backend", default="default", metavar="ALIAS", help="the name in TASKS (default)"
        )
        parser.add_argument(
            "--queues",
            metavar="NAMES",
            help="work on these queues, separated by commas; by default on QUEUES of the backend",
        )
        parser.add_argument(
            "-c",
            "--concurrency",
            type=int,
            default=1,
            metavar="N",
            help="run this many tasks at a time (1)",
        )
        modes = parser.add_mutually_exclusive_group()
        for mode, text in (
            ("threads", "run them in threads; the default"),
            ("processes", "run each in its own process"),
            ("asyncio", "run them in one event loop, and ordinary functions in threads"),
        ):
            modes.add_argument(
                f"--{mode}", dest="mode", action="store_const", const=mode, help=text
            )
        parser.add_argument(
            "--grace",
            default="30s",
            metavar="DURATION",
            help="how long running tasks may go on after SIGTERM or Ctrl-C (30s)",
        )
        parser.add_argument("--until-idle", action="store_true", help="run what is due, then end")
        parser.add_argument(
            "--reload", action="store_true", help="start again when the code has changed"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _log_somewhere(options["verbosity"])
        queues = _queues(options["backend"], options["queues"])
        if options["until_idle"] and (
            options["mode"] not in (None, "threads") or options["concurrency"] > 1
        ):
            raise CommandError(
                "--until-idle runs one job after the other, in this process; next: leave out "
                "--concurrency and the mode"
            )
        try:
            if options["reload"]:
                if options["mode"] == "processes":
                    raise CommandError("--reload does not go with --processes")
                run_with_reloader(self._run, queues, options)
            else:
                self._run(queues, options)
        except StreamkeepError as error:
            raise CommandError(str(error)) from error

    def _run(self, queues: list[TaskQueue], options: dict[str, Any]) -> None:
        concurrency, grace = options["concurrency"], options["grace"]
        if options["mode"] == "processes":
            connections.close_all()  # children must not share what the parent has open
            pool = Processes(queues, concurrency=concurrency, grace=grace)
            _on_signals(pool.stop)
            if not pool.run():
                raise CommandError(
                    "the processes of the worker ended again and again before they could work; "
                    "next: run it with --threads, and see the log"
                )
            return
        in_loop = options["mode"] == "asyncio"
        for queue in queues:
            queue.core.new_threads = in_loop
        worker = Worker(
            queues, concurrency=concurrency, mode="asyncio" if in_loop else "threads", grace=grace
        )
        if options["until_idle"]:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.default_int_handler)  # gives back, as Ctrl-C
            worker.run_until_idle()
        else:
            _on_signals(worker.stop)
            worker.run()


def _queues(alias: str, names: str | None) -> list[TaskQueue]:
    backend = backend_named(alias)
    wanted = [one.strip() for one in (names or "").split(",") if one.strip()]
    if backend.queues and set(wanted) - backend.queues:
        unknown = ", ".join(sorted(set(wanted) - backend.queues))
        raise CommandError(
            f"TASKS[{alias!r}] has no queue {unknown}; it has {', '.join(sorted(backend.queues))}"
        )
    if not wanted:
        wanted = sorted(backend.queues)
    if not wanted:
        raise CommandError(f"TASKS[{alias!r}] names no QUEUES; next: name them with --queues")
    return [backend.queue(name) for name in dict.fromkeys(wanted)]


def _on_signals(stop: Callable[[], None]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # Django's reloader has the main thread, and its signals
    on_signals(stop)


def _log_somewhere(verbosity: int) -> None:
    """Show the log of the worker on standard error, unless LOGGING of the project shows it."""
    logger = logging.getLogger("streamkeep")
    if logger.hasHandlers() or verbosity < 1 or getattr(settings, "LOGGING", None):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
