"""How adapters end jobs: acknowledged from a thread, many in one commit; returned; unreadable.

A worker does not wait until an acknowledgement is on disk: what was acknowledged while the former
commit was on its way to the disk is ended in the next one. A process that is killed before runs
those jobs again, as if it had been killed a moment earlier.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.jobs import Job, JobLostError

log = logging.getLogger("streamkeep.integrations")


class Acknowledger:
    """Ends jobs that were acknowledged, many in one commit."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, job: Job) -> None:
        """Acknowledge a message: soon, or before this returns if the channel is closed."""
        with self._condition:
            if not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="streamkeep-ack", daemon=True
                    )
                    self._thread.start()
                self._waiting.append(job)
                self._condition.notify_all()
                return
        end([job])

    def flush(self) -> None:
        """Return when all that was acknowledged is committed."""
        with self._condition:
            while self._waiting or self._busy:
                self._condition.wait()

    def close(self) -> None:
        """Commit all that was acknowledged, and end the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._closed:
                    self._condition.wait()
                if not self._waiting:
                    return
                jobs = list(self._waiting)
                self._waiting.clear()
                self._busy = True
            try:
                end(jobs)
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()


def give_back(job: Job) -> None:
    """Return a job that has not ended to its queue, unless another worker has it by now."""
    if job.ended:
        return
    try:
        job.give_back()
    except JobLostError as error:
        log.warning("%s", error)


def unreadable(job: Job, framework: str, error: Exception) -> None:
    """Make a job a dead letter, because its framework cannot read the message in it."""
    log.error(
        "job %s of %r is a dead letter: %s cannot read it: %r",
        job.id,
        job.queue.name,
        framework,
        error,
    )
    job.fail(f"{framework} cannot read it: {error!r}"[:1000])


def end(jobs: list[Job]) -> None:
    """End jobs, those of one queue in one transaction; log those that are not this worker's."""
    by_queue: dict[str, list[Job]] = {}
    for job in jobs:
        if not job.ended:
            by_queue.setdefault(job.queue.name, []).append(job)
    for its in by_queue.values():
        try:
            its[0].queue.done_many(its)
        except JobLostError as error:
            if len(its) == 1:
                log.warning("%s", error)
            else:
                for one in its:
                    end([one])
        except StreamkeepError as error:  # it stays pending, and runs again
            log.error("cannot acknowledge %d messages: %s", len(its), error)
