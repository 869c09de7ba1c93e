"""The broker: messages of taskiq as jobs of queues of a store.

A message that a worker has is pending with its process. It stays pending, however long the task
runs, until taskiq acknowledges it; if the process dies, another worker gets it at once. The name of
the task is the `task` of the job, so that a message of a task that a worker does not have waits for
a worker that has it, instead of being lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.views import Sync
from streamkeep.format.core.errors import ArgumentError
from streamkeep.integrations.acknowledger import unreadable
from streamkeep.integrations.address import parse_address
from streamkeep.jobs import Job, JobLostError, Queue
from streamkeep.jobs.async_queue import atake
from streamkeep.jobs.handler_errors import FOR_GOOD, STORE_FAILS, return_job
from streamkeep.jobs.layout import PRIORITIES, TASK
from streamkeep.jobs.options import Options, check_options
from streamkeep.jobs.worker_log import Told

# --- pace -----------------------------------------------------------------------------------------
#
# How many jobs a worker takes at once: as many as it has lately begun within a moment.
#
# One transaction for each job costs a fast worker time. A slow worker must not hold jobs that
# others could run. So the number follows the pace of the worker: it doubles as long as jobs are
# begun faster than they are taken, and it is one where a job takes long.

MOMENT_S: Final = 0.05
HELD_S: Final = 1.0  # a job that was taken but not started within this time is returned
MOST: Final = 100


class Pace:
    """The pace at which one worker begins jobs."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._taken = 0
        self._taken_at = 0.0

    def wanted(self) -> int:
        """Return how many jobs to take now; all that were taken before have begun."""
        if not self._taken:
            return 1
        seconds = max(time.monotonic() - self._taken_at, 1e-6)
        within_moment = int(self._taken * MOMENT_S / seconds)
        return max(1, min(within_moment, 2 * self._taken, self._most))

    def took(self, count: int) -> None:
        """Note how many were taken, now."""
        self._taken = count
        self._taken_at = time.monotonic()

    def until_late(self) -> float:
        """Return in how many seconds those that were taken and have not begun are to go back."""
        return max(0.0, self._taken_at + HELD_S - time.monotonic())


log = logging.getLogger("streamkeep.taskiq")

_AGAIN_S: Final = 1.0  # after an error of the store

_CODEC: Final = "bytes"


class StreamkeepBroker(AsyncBroker):
    """A taskiq broker on a store.

    Labels of a task, or of `kicker().with_labels(...)`:

    - `delay`: seconds, or a text such as "5m"; the task starts then, not before. It is stored.
    - `priority`: "high", "normal", "low"; or a number: above 0 is high, below 0 is low.
    - `queue_name`: another queue than that of the broker.
    - `order_key`: tasks of one key run one at a time, in the order in which they were sent.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        queue_name: str = "taskiq",
        *,
        queues: Iterable[str] = (),
        max_deaths: int = 5,
        sync: Sync | None = None,
        result_backend: AsyncResultBackend[Any] | None = None,
        task_id_generator: Callable[[], str] | None = None,
    ) -> None:
        """Name a store; it is opened by `startup`, in each process.

        Args:
            path: the directory of the store, which is made if need be, or a URL
                `streamkeep:////path`.
            queue_name: the queue that tasks are sent to, and that workers listen to.
            queues: further queues that workers listen to.
            max_deaths: a task that this many workers had begun when they died is a dead letter.
            sync: when a change is durable; see `streamkeep.open`. By default, what was sent or
                acknowledged is on disk.
        """
        super().__init__(task_id_generator=task_id_generator)
        if result_backend is not None:
            self.with_result_backend(result_backend)
        self.address = parse_address(path, sync)
        self.queue_name = queue_name
        self._options: dict[str, Any] = {
            "codec": _CODEC,
            "max_deaths": max_deaths,
            "sync": self.address.sync,
        }
        self._queues: dict[str, Queue] = {}
        self._listened = list(dict.fromkeys([queue_name, *queues]))
        for name in self._listened:
            self.queue(name)

    def queue(self, name: str | None = None) -> Queue:
        """Return a queue of the store: its dead letters, its limits, its figures.

        Args:
            name: by default the queue of the broker.
        """
        chosen = self.queue_name if name is None else name
        if chosen not in self._queues:
            self._queues[chosen] = Queue(self.address.path, chosen, **self._options)
        return self._queues[chosen]

    async def startup(self) -> None:
        await super().startup()
        for name in self._listened:
            await asyncio.to_thread(self.queue(name).core.set_up)

    async def shutdown(self) -> None:
        await super().shutdown()
        for one in self._queues.values():
            await one.core.aio.close()

    # --- sending ------------------------------------------------------------------------------

    async def kick(self, message: BrokerMessage) -> None:
        """Send a message; it is on disk when this returns (`sync="commit"`).

        Raises:
            ArgumentError: a label has a wrong value; nothing was sent.
            QueueFullError, QueueDrainingError: nothing was sent. A retry is sent in any case.
        """
        labels = message.labels
        name = labels.get("queue_name") or self.queue_name
        queue = self.queue(str(name))
        key = labels.get("order_key")
        options = Options(
            delay=_delay_of(labels.get("delay")),
            priority=_priority_of(labels.get("priority")),
            key=None if key is None else str(key),
        )
        common = {TASK: message.task_name.encode()}
        payloads = [(message.message, check_options(options))]
        # Without it, a message that failed stays with this worker, and a requeued one is lost.
        is_retry = not {"_retries", "X-Taskiq-requeue"}.isdisjoint(labels)
        told = Told(log, f"a retry of {message.task_name} is sent when the store can: %s")
        while True:
            try:
                await queue.core.aio.put_prepared(payloads, common, always=is_retry)
                return
            except STORE_FAILS as error:
                if not is_retry or isinstance(error, FOR_GOOD):
                    raise
                told.tell(error)
                await asyncio.sleep(_AGAIN_S)

    # --- working ------------------------------------------------------------------------------

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield messages, one at a time, as the receiver asks for them.

        A message that was taken when the receiver stops goes to another worker at once.
        """
        queues = [self.queue(name) for name in self._listened]
        for one in queues:
            await asyncio.to_thread(one.core.set_up)
        store: AsyncStore[Any] = AsyncStore(queues[0].store)
        pace = Pace()
        held: deque[Job] = deque()
        returning: asyncio.Task[None] | None = None
        told = Told(log, "cannot take messages: %s; trying again")
        try:
            while True:
                if not held:
                    try:
                        known = frozenset(map(str.encode, self.get_all_tasks()))
                        taking = atake(
                            store,
                            queues,
                            queues[0].consumer,
                            pace.wanted(),
                            known={queue.name: known for queue in queues},
                            begins=False,
                        )
                        held.extend(await taking)
                    except FOR_GOOD:
                        raise  # only another opening of the store helps, by a new process
                    except STORE_FAILS as error:  # taskiq would cancel the tasks that run
                        told.tell(error)
                        await asyncio.sleep(_AGAIN_S)
                        continue
                    told.over()
                    pace.took(len(held))
                    if len(held) > 1 and (returning is None or returning.done()):
                        returning = asyncio.create_task(_return_held(held, pace))
                while held:
                    job = held.popleft()
                    message = await self._message_of(job)
                    if message is not None:
                        job.begin()  # the death of this process counts for it from now on
                        yield message
        finally:
            if returning is not None:
                returning.cancel()
            while held:
                await asyncio.to_thread(return_job, held.popleft())

    async def _message_of(self, job: Job) -> AckableMessage | None:
        """Return the message of a job; one that taskiq cannot read becomes a dead letter."""
        try:
            data = job.payload
            self.formatter.loads(data)
        except Exception as error:
            await asyncio.to_thread(unreadable, job, "taskiq", error)
            return None
        return AckableMessage(data=data, ack=self._ack_of(job))

    def _ack_of(self, job: Job) -> Callable[[], Awaitable[None]]:
        async def ack() -> None:
            told = Told(log, f"job {job.id} is acknowledged when the store can: %s")
            while not job.ended:
                try:
                    await job.queue.core.aio.done_jobs([job])
                except JobLostError as error:
                    log.warning("%s", error)
                    return
                except FOR_GOOD:
                    raise
                except STORE_FAILS as error:  # such as a full disk: its task must not run again
                    told.tell(error)
                    await asyncio.sleep(_AGAIN_S)

        return ack


async def _return_held(held: deque[Job], pace: Pace) -> None:
    """Return jobs that were taken together with others, and that the receiver does not begin."""
    while held:
        await asyncio.sleep(pace.until_late())
        if held and pace.until_late() <= 0:
            await asyncio.to_thread(return_job, held.popleft())


def _delay_of(label: Any) -> float | str | None:
    """Return the label `delay`: seconds, or a text such as "5m"."""
    if label is None or label == "":
        return None
    if isinstance(label, bool) or not isinstance(label, (int, float, str)):
        raise ArgumentError(f"the label delay must be seconds or a text like '5m', not {label!r}")
    try:
        return float(label)
    except ValueError:
        return str(label)


def _priority_of(label: Any) -> str | None:
    """Return the label `priority` as one of the queue's priorities."""
    if label is None or label == "" or label in PRIORITIES:
        return label or None
    try:
        number = int(label)
    except (TypeError, ValueError):
        problem = f"the label priority must be one of {PRIORITIES} or a number, not {label!r}"
        raise ArgumentError(problem) from None
    return "high" if number > 0 else "low" if number < 0 else "normal"
