"""What a worker says: a line per job in the log.

A `Report` receives each event. The text of a line is for people; with JSON, each line is an
object with `time`, `level`, `event`, and members that depend on the event.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from streamkeep.jobs.handler_errors import text_of

if TYPE_CHECKING:
    from streamkeep.jobs.queue import Queue
    from streamkeep.jobs.running import Outcome
    from streamkeep.jobs.worker_runs import Run

log = logging.getLogger("streamkeep.worker")

_LEVELS: Final = {"done": logging.INFO, "failed": logging.ERROR}


class Told:
    """Logs why something is tried again: once, until there is another cause, or it is over."""

    def __init__(self, to: logging.Logger, text: str) -> None:
        self._log, self._text = to, text
        self._last: str | None = None

    def tell(self, error: Exception) -> None:
        if str(error) != self._last:  # a full disk would fill the log, too
            self._log.error(self._text, error)
        self._last = str(error)

    def over(self) -> None:
        self._last = None


class Report:
    """What a worker reports: it logs each event."""

    abandons = "its thread is abandoned"

    def begun(self, queues: Sequence[Queue], concurrency: int, mode: str) -> None:
        names = [queue.name for queue in queues]
        text = f"worker begins: queue {', '.join(names)}, {concurrency} at a time, {mode}"
        more = {"queues": names, "concurrency": concurrency, "mode": mode}
        _say(logging.INFO, text, event="begun", **more)

    def started(self, run: Run) -> None:
        """A handler begins."""

    def extended(self, run: Run) -> None:
        """`Job.extend` has moved the end of a run."""

    def waits(self, run: Run, error: Exception) -> None:
        """A handler has ended, and the store cannot take the end of its job yet."""
        log.error("job %s is ended as soon as the store can: %s", run.job.id, error)

    def ran(self, run: Run, outcome: Outcome) -> None:
        """A handler has ended, and its job was ended or retried."""
        level = _LEVELS.get(outcome.state, logging.WARNING)
        if not log.isEnabledFor(level):
            return
        text = f"{outcome.state} {_named(run)} in {outcome.seconds * 1000:.1f} ms"
        members = _members(run)
        if run.attempt > 1:
            text += f", attempt {run.attempt}"
        if outcome.error is not None:
            kind = type(outcome.error).__name__
            message = text_of(outcome.error)
            text += f": {kind}: {message}"
            members |= {"error": kind, "message": message}
        _say(level, text, event=outcome.state, seconds=round(outcome.seconds, 6), **members)

    def too_long(self, run: Run) -> None:
        """A handler runs longer than its limit, and is abandoned."""
        text = f"ran longer than its max_runtime; {self.abandons}, and this attempt has failed"
        _say_of(run, logging.ERROR, text, "too_long")

    def given_back(self, run: Run) -> None:
        """A job was given back, since the worker stops."""
        text = "did not end in time and was given back; this was no attempt"
        _say_of(run, logging.WARNING, text, "given_back")

    def too_large(self, used: int, limit: int) -> None:
        """The process has more memory than it may, and stops."""
        text = f"this process has {used:,} bytes of memory, {limit:,} are allowed; it ends"
        _say(logging.WARNING, text, event="too_large", used_bytes=used, limit_bytes=limit)

    def stopping(self, running: int, grace_s: float) -> None:
        text = f"worker stops; {running} running jobs have {grace_s:g} s to end"
        _say(logging.INFO, text, event="stopping", running=running, grace_seconds=grace_s)

    def ended(self) -> None:
        _say(logging.INFO, "worker has ended", event="ended")


def _named(run: Run) -> str:
    job = run.job
    return f"{run.task or 'job'} {job.id} of {job.queue.name}"


def _members(run: Run) -> dict[str, Any]:
    job = run.job
    return {"queue": job.queue.name, "job": job.id, "task": run.task, "attempt": run.attempt}


def _say_of(run: Run, level: int, text: str, event: str) -> None:
    seconds = round(time.monotonic() - run.begun, 3)
    _say(level, f"{_named(run)} {text}", event=event, seconds=seconds, **_members(run))


def _say(level: int, text: str, **members: Any) -> None:
    log.log(level, "%s", text, extra={"streamkeep": members})


# --- formats ------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z warning text`, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time_of(record)} {record.levelname.lower()} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
        }
        line |= getattr(record, "streamkeep", {"event": "log"})
        line["text"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"
