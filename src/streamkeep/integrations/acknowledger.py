"""How adapters end jobs: acknowledged from a thread, many in one commit; unreadable.

A worker does not wait until an acknowledgement is on disk: what was acknowledged while the former
commit was on its way to the disk is ended in the next one. A process that is killed before runs
those jobs again, as if it had been killed a moment earlier.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from streamkeep.format.core.errors import RecoveryNeededError, StreamkeepError
from streamkeep.jobs import Job, JobLostError

log = logging.getLogger("streamkeep.integrations")

_AGAIN_S: Final = 1.0  # after an error of the store


class Acknowledger:
    """Ends jobs that were acknowledged, many in one commit.

    While the store cannot commit, for example because the disk is full, the jobs wait here: they
    stay pending with this process, and no other one runs them as long as it lives. That is so after
    `close`, too: a framework closes a channel because of such an error, and opens another.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._closed = False
        self._failing = False
        self._refused = False  # by the store, since this was closed
        self._thread: threading.Thread | None = None

    def add(self, job: Job) -> None:
        """Acknowledge a message: soon, or before this returns if the channel is closed."""
        left = self._end([job]) if self._closed else [job]
        if left:
            with self._condition:
                self._waiting.extend(left)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="streamkeep-ack", daemon=True
                    )
                    self._thread.start()
                self._condition.notify_all()

    def close(self) -> None:
        """Commit all that was acknowledged, and end the thread, once the store can."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._thread is None or self._refused)
            if self._waiting:
                log.error(
                    "%d acknowledged messages wait for the store; they run again if this process "
                    "ends before it can",
                    len(self._waiting),
                )

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._failing:
                    self._condition.wait_for(lambda: self._closed and not self._refused, _AGAIN_S)
                self._condition.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    self._thread = None
                    self._condition.notify_all()
                    return
                jobs = list(self._waiting)
                self._waiting.clear()
                last = self._closed
            left = self._end(jobs)
            with self._condition:
                self._failing, self._refused = bool(left), last and bool(left)
                self._waiting.extendleft(reversed(left))
                self._condition.notify_all()

    def _end(self, jobs: list[Job]) -> list[Job]:
        """End jobs, those of one queue in one transaction; return those that the store kept."""
        by_queue: dict[str, list[Job]] = {}
        for job in dict.fromkeys(jobs):  # a framework may acknowledge one twice
            if not job.ended:
                by_queue.setdefault(job.queue.name, []).append(job)
        left: list[Job] = []
        for its in by_queue.values():
            try:
                # No process may have it open when it is recovered. The loop sees one that is gone,
                # and has to set up its queues in the next.
                with its[0].queue.core.usable((RecoveryNeededError,)):
                    its[0].queue.done_many(its)
            except JobLostError as error:
                if len(its) == 1:
                    log.warning("%s", error)
                else:
                    for one in its:
                        left.extend(self._end([one]))
            except Exception as error:  # the thread must go on
                if not self._failing:
                    log.error("cannot acknowledge %d messages, trying again: %s", len(its), error)
                left.extend(its)
        return left


def unreadable(job: Job, framework: str, error: Exception) -> None:
    """Make a job a dead letter, because its framework cannot read the message in it."""
    log.error(
        "job %s of %r is a dead letter: %s cannot read it: %r",
        job.id,
        job.queue.name,
        framework,
        error,
    )
    try:
        job.fail(f"{framework} cannot read it: {error!r}"[:1000])
    except StreamkeepError as problem:  # the jobs that were taken with it must not wait for it
        log.error("job %s stays with this process until it ends: %s", job.id, problem)
