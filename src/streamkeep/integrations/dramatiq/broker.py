"""The broker: messages of dramatiq as jobs of queues of a store.

A message that a worker has is pending with its process. It stays pending, however long the actor
runs; if the process dies, another worker gets it at once. A delayed message stays in the store
until its time, so no consumer of delay queues has anything to do.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any, Final

from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import current_millis, dq_name, q_name
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
from dramatiq.logging import get_logger
from dramatiq.message import Message

from streamkeep.engine.api.views import Sync
from streamkeep.format.core.errors import ArgumentError, StoreClosedError, StoreError
from streamkeep.integrations.acknowledger import Acknowledger, unreadable
from streamkeep.integrations.address import parse_address
from streamkeep.integrations.dramatiq.results import StreamkeepBackend
from streamkeep.jobs import Job, JobLostError, Queue, take
from streamkeep.jobs.dead_letters import purge_all
from streamkeep.jobs.handler_errors import FOR_GOOD, STORE_FAILS, text_of
from streamkeep.jobs.layout import PRIORITIES, TASK
from streamkeep.jobs.options import Options
from streamkeep.jobs.putting import put_all

_CODEC: Final = "bytes"
_MOST_AT_ONCE: Final = 100
_AGAIN_S: Final = 1.0  # after the store refused what follows a message


class StreamkeepBroker(Broker):
    """A dramatiq broker on a store.

    Options of a message, or of an actor: `broker_priority` ("high", "normal" or "low") is the order
    in which the store serves messages; dramatiq's own `priority` orders what a worker has fetched.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        middleware: list[Any] | None = None,
        namespace: str = "dramatiq",
        max_deaths: int = 5,
        sync: Sync | None = None,
    ) -> None:
        """Name a store; it is opened at the first use, in each process.

        Args:
            path: the directory of the store, which is made if need be, or a URL
                `streamkeep:////path`.
            namespace: applications with different namespaces have different queues.
            max_deaths: a message that this many workers ran when they died is a dead letter.
            sync: when a change is durable; see `streamkeep.open`. By default, what was enqueued or
                acknowledged is on disk.
        """
        self._declared: dict[str, Queue] = {}  # before the middleware asks for them
        self._ending = threading.local()  # `message`: that middleware ends, in each thread
        super().__init__(middleware=middleware)
        self.address = parse_address(path, sync)
        self.namespace = namespace
        self.actor_options |= {"broker_priority"}
        self._max_deaths = max_deaths

    def queue(self, queue_name: str = "default") -> Queue:
        """Return a queue of the store: its dead letters, its limits, its figures.

        Raises:
            QueueNotFound: it was not declared.
        """
        try:
            return self._declared[q_name(queue_name)]
        except KeyError:
            raise QueueNotFound(queue_name) from None

    # --- queues ---------------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; it is made when it is first used."""
        if queue_name in self._declared:
            return
        self.emit_before("declare_queue", queue_name)
        self._declared[queue_name] = Queue(
            self.address.path,
            f"{self.namespace}.{queue_name}",
            codec=_CODEC,
            max_deaths=self._max_deaths,
            sync=self.address.sync,
        )
        self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        return set(self._declared)

    def flush(self, queue_name: str) -> None:
        """Remove the messages of a queue that no worker has, also delayed ones."""
        purge_all(self.queue(queue_name))

    def flush_all(self) -> None:
        for name in self._declared:
            self.flush(name)

    def join(self, queue_name: str, *, interval: int = 10, timeout: int | None = None) -> None:
        """Wait until all messages of a queue were processed; for tests.

        Args:
            interval, timeout: in milliseconds.

        Raises:
            QueueJoinTimeout: they were not in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        queue = self.queue(queue_name)
        while True:
            stats = queue.stats()
            if not (stats.waiting or stats.running or stats.delayed):
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def close(self) -> None:
        """Close the store; a later use opens it again."""
        with ExitStack() as stack:
            for queue in self._declared.values():
                stack.callback(queue.close)

    # --- messages -------------------------------------------------------------------------------

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Tell the middleware; the death of this process counts for a message from its start on."""
        job = getattr(args[0], "streamkeep_job", None) if signal == "process_message" else None
        if job is not None:
            job.begin()
        super().emit_before(signal, *args, **kwargs)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Tell the middleware, which may enqueue what follows a message: a retry, a pipeline."""
        if signal != "process_message":
            super().emit_after(signal, *args, **kwargs)
            return
        self._ending.message = args[0]
        try:
            super().emit_after(signal, *args, **kwargs)
        finally:
            self._ending.message = None

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Enqueue a message; it is on disk when this returns (`sync="commit"`).

        Args:
            delay: milliseconds. The store keeps the message until then.

        Raises:
            QueueNotFound: its queue was not declared.
            QueueFullError, QueueDrainingError: nothing was enqueued. A message that follows
                another one, as its retry, is enqueued in any case.
        """
        former = getattr(self._ending, "message", None)
        try:
            queue = self.queue(message.queue_name)
            if delay is not None:
                eta = current_millis() + delay
                message = message.copy(queue_name=dq_name(message.queue_name), options={"eta": eta})
            self.emit_before("enqueue", message, delay)
            wait = max(delay or 0, 0) / 1000  # a time that is past is now, as with other brokers
            options = Options(codec=_CODEC, priority=self._priority_of(message), delay=wait)
            data = message.copy(queue_name=q_name(message.queue_name)).encode()
            common = {TASK: message.actor_name.encode()}
            put_all(queue.core, [(data, options)], common, always=former is not None)
        except Exception as error:  # dramatiq logs it, and acknowledges the former one
            if former is not None:
                former.streamkeep_unsent = error
            raise
        self.emit_after("enqueue", message, delay)
        return message

    def _priority_of(self, message: Message[Any]) -> str:
        chosen = message.options.get("broker_priority")
        if chosen is None and message.actor_name in self.actors:
            chosen = self.actors[message.actor_name].options.get("broker_priority")
        if chosen not in (None, *PRIORITIES):
            raise ArgumentError(f"broker_priority must be one of {PRIORITIES}, not {chosen!r}")
        return chosen or "normal"

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Return a consumer of a queue.

        Args:
            prefetch: how many messages it may have that are not acknowledged.
            timeout: how many milliseconds it waits for a message before it yields None.
        """
        return StreamkeepConsumer(self, self.queue(queue_name), prefetch, timeout)


class StreamkeepConsumer(Consumer):
    """Takes messages of one queue; `ack` and `nack` may be called by any thread."""

    def __init__(self, broker: StreamkeepBroker, queue: Queue, prefetch: int, timeout: int) -> None:
        self._log = get_logger(__name__, type(self))
        self._broker = broker
        self._queue = queue
        self._prefetch = max(1, prefetch)
        self._timeout_s = max(timeout, 0) / 1000
        self._lock = threading.Lock()
        self._held: deque[MessageProxy] = deque()
        self._room = threading.Condition(self._lock)
        self._acknowledger = Acknowledger()
        self._count = 0  # messages that were taken and have not ended
        self._closed = False

    def __next__(self) -> MessageProxy | None:
        if not self._held:
            self._take()
        return self._held.popleft() if self._held else None

    def _take(self) -> None:
        # Several at once: what is fetched keeps the threads busy while a quarter of it is replaced.
        enough = max(1, self._prefetch // 4)
        with self._room:
            self._room.wait_for(lambda: self._prefetch - self._count >= enough, self._timeout_s)
            room = min(self._prefetch - self._count, _MOST_AT_ONCE)
        if room <= 0 or self._closed:
            return
        try:
            jobs = take(
                [self._queue],
                self._queue.consumer,
                room,
                timeout=self._timeout_s,
                known={self._queue.name: frozenset(map(str.encode, list(self._broker.actors)))},
                stop=lambda: self._closed,
                begins=False,
            )
        except StoreError as error:
            # What has closed it, such as the consumer of another queue, has one in its place.
            if isinstance(error, FOR_GOOD) and not isinstance(error, StoreClosedError):
                with suppress(StoreError):  # it cannot have a last checkpoint
                    self._broker.close()
                for one in self._broker.middleware:  # results keep the store open, too
                    if isinstance(backend := getattr(one, "backend", None), StreamkeepBackend):
                        with suppress(StoreError):
                            backend.close()
            raise ConnectionClosed(error) from error
        for job in jobs:
            self._open(job)

    def _open(self, job: Job) -> None:
        """Hold the message of a job; one that cannot be read becomes a dead letter."""
        try:
            message: Message[Any] = Message.decode(job.payload)
        except Exception as error:
            unreadable(job, "dramatiq", error)
            return
        message.options.pop("eta", None)  # the store has waited for it
        proxy = MessageProxy(message)
        proxy.streamkeep_job = job
        with self._lock:
            self._count += 1
        self._held.append(proxy)

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge a message: soon, together with others; see `Acknowledger`."""
        unsent = getattr(message, "streamkeep_unsent", None)
        if unsent is None:
            self._end(message, self._acknowledger.add)
        elif isinstance(unsent, STORE_FAILS):
            self._end(message, lambda job: job.postpone(_AGAIN_S))
        else:  # such as a payload that is too large: it would run again for ever
            self._fail(message, "what follows it cannot be enqueued", unsent)

    def nack(self, message: MessageProxy) -> None:
        """Make a message a dead letter of its queue."""
        self._fail(message, "it failed", getattr(message, "_exception", None))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Return messages to their queue at once."""
        for message in messages:
            self._end(message, lambda job: job.give_back())

    def close(self) -> None:
        """Return the messages that were taken and not yielded; commit what was acknowledged."""
        self._closed = True
        self._acknowledger.close()
        while self._held:
            self.requeue([self._held.popleft()])

    def _fail(self, message: MessageProxy, problem: str, error: Exception | None) -> None:
        told = "" if error is None else f": {type(error).__name__}: {text_of(error)}"
        self._end(message, lambda job: job.fail((problem + told)[:1000]))

    def _end(self, message: MessageProxy, how: Any) -> None:
        job: Job = message.streamkeep_job
        try:
            how(job)
        except JobLostError as error:
            self._log.warning("%s", error)
        except StoreError as error:
            raise ConnectionClosed(error) from error
        with self._room:
            self._count -= 1
            self._room.notify()
