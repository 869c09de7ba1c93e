"""The threads of a channel, one that takes jobs and one that reads passing queues, and their bell.

The loop of the worker never waits for the store. It says how many messages it has room for, and
`JobIntake` takes that many in one transaction, or sleeps until there are some.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
import weakref
from collections import deque
from contextlib import suppress
from queue import Empty
from typing import Any, Final, NamedTuple

from kombu.utils.json import loads

from streamkeep.format.core.errors import StoreError
from streamkeep.integrations.acknowledger import unreadable
from streamkeep.integrations.celery.topology import REFRESH_S, Topology, messages_after, stream_of
from streamkeep.integrations.celery.workers import known_tasks
from streamkeep.integrations.values import OpenedStore
from streamkeep.jobs import Job, Queue, take
from streamkeep.jobs.handler_errors import FOR_GOOD
from streamkeep.jobs.worker_log import Told
from streamkeep.jobs.worker_runs import Alarm

log = logging.getLogger("streamkeep.celery")

_AGAIN_S: Final = 1.0  # after an error of the store
MOST_AT_ONCE: Final = 100


class Arrived(NamedTuple):
    """A message that was taken from a queue and is to be delivered.

    Attributes:
        channel: the channel that consumes the queue.
        message: as Kombu's virtual transports have it.
        job: what is to be acknowledged; None for a message of a passing queue.
    """

    channel: Any
    queue: str
    message: dict[str, Any]
    job: Job | None


# What a forked child has of its parent, whose threads it has not.
_inherited: Final[weakref.WeakSet[Bell | PassingIntake]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for one in list(_inherited):
        one.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


class Bell(Alarm):
    """Messages that have arrived, and a descriptor that is readable while there may be some.

    Or an error, which the loop raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrived: deque[Arrived] = deque()
        self.failure: Exception | None = None  # of a store that must be opened again
        _inherited.add(self)

    def leave_to_parent(self) -> None:
        """In a forked child: have a descriptor of its own, which no ring of the parent reads."""
        if self.handle >= 0:
            self.close()
            super().__init__()
        self.arrived.clear()


class JobIntake:
    """Takes jobs for a channel while it has room."""

    def __init__(self, channel: Any, bell: Bell) -> None:
        self._channel = channel
        self._bell = bell
        self._condition = threading.Condition()
        self._queues: list[Queue] = []
        self._room = 0
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="streamkeep-take", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether it waits to be asked for messages."""
        return not self._busy and not self._room

    def ask(self, queues: list[Queue], room: int) -> None:
        """Take up to `room` jobs of these queues, once."""
        with self._condition:
            self._queues, self._room = queues, room
            self._condition.notify()

    def stop(self) -> None:
        """End a wait, and return when none is under way; its jobs have arrived."""
        with self._condition:
            self._room = 0
            while self._busy:
                self._queues[0].store.ask_stops()
                self._condition.wait(0.05)

    def close(self) -> None:
        self.stop()
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        told = Told(log, "cannot take messages: %s; trying again")
        while True:
            with self._condition:
                while not self._room and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                queues, room = self._queues, self._room
                self._busy = True
            try:
                self._take(queues, room)
                told.over()
            except FOR_GOOD as error:
                self._bell.failure = error  # for the loop, which connects again
            except Exception as error:
                told.tell(error)
                threading.Event().wait(_AGAIN_S)
            finally:
                with self._condition:
                    self._busy = False
                    self._room = 0
                    self._condition.notify_all()
                self._bell.ring()

    def _take(self, queues: list[Queue], room: int) -> None:
        known = known_tasks()
        jobs = take(
            queues,
            queues[0].consumer,
            room,
            known=None if known is None else {queue.name: known for queue in queues},
            stop=lambda: not self._room,
            begins=known is None,
        )
        arrived = [one for one in (opened(self._channel, job) for job in jobs) if one is not None]
        self._bell.arrived.extend(arrived)


def opened(channel: Any, job: Job) -> Arrived | None:
    """Return the message of a job; one that cannot be read becomes a dead letter."""
    try:
        message = loads(job.payload.decode())
        properties = message["properties"]
        tag = f"{job.queue.name}/{job.id}/{job.taken.deliveries if job.taken else 0}"
        properties["delivery_tag"] = tag
        properties["delivery_info"]["redelivered"] = bool(job.taken and job.taken.deliveries > 1)
        return Arrived(channel, job.queue.name, message, job)
    except Exception as error:
        unreadable(job, "Kombu", error)
        return None


class PassingIntake:
    """Reads the passing queues of a transport."""

    def __init__(self, topology: Topology, opened: OpenedStore, bell: Bell) -> None:
        self._topology = topology
        self._opened = opened
        self._bell = bell
        self._channels: dict[str, Any] = {}  # of Kombu, by the queue that they read
        self._positions: dict[str, str] = {}
        self._bindings: dict[str, list[tuple[str, str, str]]] = {}
        self._poke = b"kombu-poke:" + uuid.uuid4().hex.encode()
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        _inherited.add(self)

    def leave_to_parent(self) -> None:
        """In a forked child: read what the child consumes, in a thread of its own."""
        self._lock = threading.Lock()
        self._thread = None
        self._channels.clear()

    def declare(self, queue: str, position: str) -> None:
        """Note up to which message a queue that was declared is to be skipped."""
        with self._lock:
            self._positions.setdefault(queue, position)

    def bind(self, queue: str, exchange: str, routing_key: str, pattern: str) -> None:
        """Note a binding, which is made again if the queue is deleted while this process stops."""
        self._bindings.setdefault(queue, []).append((exchange, routing_key, pattern))

    def consume(self, channel: Any, queue: str) -> None:
        with self._lock:
            self._positions.setdefault(queue, "0-0")
            self._channels[queue] = channel
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="streamkeep-read", daemon=True
                )
                self._thread.start()
                return
        self._wake()

    def get(self, queue: str) -> dict[str, Any]:
        """Return the next message of a queue at once; raise Empty if there is none."""
        self._topology.keep([queue], self._bindings)
        with self._lock:
            after = self._positions.get(queue, "0-0")
            found = self._opened.read(lambda one: messages_after(one, queue, after, 1))
            if not found:
                raise Empty
            [(self._positions[queue], message)] = found
            return message

    def cancel(self, queue: str) -> None:
        with self._lock:
            self._channels.pop(queue, None)

    def forget(self, queue: str) -> None:
        with self._lock:
            self._channels.pop(queue, None)
            self._positions.pop(queue, None)
            self._bindings.pop(queue, None)

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            with suppress(StoreError):  # it ends when the store that fails is closed
                self._wake()
                self._thread.join()

    def _wake(self) -> None:
        self._opened.store.apply(lambda txn: txn.wake(self._poke), sync="none")

    def _run(self) -> None:
        told = Told(log, "cannot read passing queues: %s; trying again")
        while not self._closed:
            try:
                self._read()
                told.over()
            except FOR_GOOD as error:
                # Its positions are not those of another store in its place.
                self._bell.failure = error  # for the loop, which connects again
                self._bell.ring()
                return
            except Exception as error:
                if not self._closed:
                    told.tell(error)
                    threading.Event().wait(_AGAIN_S)

    def _read(self) -> None:
        with self._lock:
            channels = dict(self._channels)
            positions = {queue: self._positions[queue] for queue in channels}
        if channels:
            self._topology.keep(list(channels), self._bindings)

        def look(snapshot: Any) -> list[Any]:
            found: list[Any] = [
                (queue, position, message)
                for queue in channels
                for position, message in messages_after(snapshot, queue, positions[queue])
            ]
            with self._lock:
                changed = self._closed or self._channels != channels
            return found or ([None] if changed else [])

        bells = [self._poke, *(stream_of(queue) for queue in channels)]
        for one in self._opened.read_when(look, bells, round(REFRESH_S * 1000)):
            if one is not None:
                queue, position, message = one
                with self._lock:
                    if queue in self._positions:
                        self._positions[queue] = position
                self._bell.arrived.append(Arrived(channels[queue], queue, message, None))
        self._bell.ring()
