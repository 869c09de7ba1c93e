"""The transport of Kombu: channels whose messages are jobs of a store.

A message that a worker has is pending with its process, in the store. There is no visibility
timeout: as long as the process lives, the message stays with it; when the process dies, another
worker gets the message at once. What the process has in memory only counts its own room.

docs/integrations/celery.md has the options, and what differs from Redis and RabbitMQ.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from contextlib import suppress
from datetime import datetime
from queue import Empty
from typing import Any, Final

from celery.utils.serialization import strtobool
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps

import streamkeep
from streamkeep.format.core.errors import ArgumentError, StoreError
from streamkeep.format.core.values import whole
from streamkeep.integrations.acknowledger import Acknowledger
from streamkeep.integrations.address import SCHEME, parse_address
from streamkeep.integrations.celery import intake
from streamkeep.integrations.celery.stores import CODEC, Shared, shared
from streamkeep.integrations.celery.topology import Binding, Topology
from streamkeep.integrations.celery.workers import known_tasks
from streamkeep.jobs import Job, JobLostError, Queue, take
from streamkeep.jobs.dead_letters import purge_all
from streamkeep.jobs.handler_errors import return_job
from streamkeep.jobs.layout import TASK
from streamkeep.jobs.options import Options
from streamkeep.jobs.putting import put_all

_MOST_URGENT: Final = 2  # of the priorities 0 to 9, where 0 is served first, as with Redis
_LEAST_NORMAL: Final = 5
_LOOK_S: Final = 0.5


class QoS(virtual.QoS):
    """The messages that a channel has; they are pending in the store."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._pid = os.getpid()
        self.jobs: dict[str, Job] = {}

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message: soon, together with others; see `Acknowledger`."""
        job = self.jobs.pop(delivery_tag, None)
        super().ack(delivery_tag)
        if job is not None:
            self.channel.acknowledger.add(job)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message to its queue at once, or make it a dead letter."""
        job = self.jobs.pop(delivery_tag, None)
        super().ack(delivery_tag)
        if job is None:
            return
        if requeue:
            return_job(job, delivered=True)
            return
        with suppress(JobLostError):  # another worker has it
            job.fail("the worker rejected it")

    def restore_unacked(self) -> list[Any]:
        """Return all messages that were not acknowledged to their queues."""
        self._flush()
        self._delivered.clear()
        while self.jobs:
            _, job = self.jobs.popitem()
            return_job(job, delivered=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return messages when the channel is closed, or the process ends; not in a fork."""
        self._on_collect.cancel()
        if self._pid == os.getpid() and not self._delivered.restored:
            self.restore_unacked()
            self._delivered.restored = True


class Channel(virtual.Channel):
    """A channel of a store.

    Attributes:
        max_deaths: a message is a dead letter after this many workers died with it.
        hold_eta: a message with an `eta` stays in the store until then, instead of in the memory
            of a worker.
    """

    QoS = QoS
    supports_fanout = True
    max_deaths = 5
    hold_eta = True
    from_transport_options = (*virtual.Channel.from_transport_options, "max_deaths", "hold_eta")

    def __init__(self, connection: Transport, **options: Any) -> None:
        self.shared: Shared = connection.shared
        self.topology: Topology = connection.topology
        self.bell: intake.Bell = connection.bell
        self.acknowledger = Acknowledger()
        self._intake: intake.JobIntake | None = None
        self._got: Job | None = None  # what `_get` has taken; None for one of a passing queue
        self._passing_names: set[str] = set()
        self._no_ack: set[str] = set()
        self._pid = os.getpid()
        super().__init__(connection, **options)
        most = self.max_deaths  # a text in the configuration may be a number, too
        self.max_deaths = whole(int(most) if str(most).isdecimal() else most, "max_deaths", 1)
        try:
            self.hold_eta = strtobool(self.hold_eta)
        except TypeError:
            raise ArgumentError(f"hold_eta must be True or False, not {self.hold_eta!r}") from None
        _channels.add(self)

    def jobs_of(self, queue: str) -> Queue:
        return self.shared.queue(queue, self.max_deaths)

    # --- declaring ------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a queue under their names in AMQP."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **kwargs)
        return prepared

    def _new_queue(
        self,
        queue: str,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if auto_delete or exclusive:
            expires_ms = int((arguments or {}).get("x-expires") or 0)
            position = self.topology.declare_passing(queue, expires_ms)
            self._passing_names.add(queue)
            self.connection.passing.declare(queue, position)
        else:
            self.jobs_of(queue).core.set_up()

    def _is_passing(self, queue: str) -> bool:
        return queue in self._passing_names or self.topology.is_passing(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        names = streamkeep.jobs.queue_names(self.shared.opened.store)
        return queue in names or self._is_passing(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        self.topology.bind(exchange, routing_key, pattern, queue)
        if queue in self._passing_names:
            self.connection.passing.bind(queue, exchange, routing_key, pattern or "")

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **_: Any,
    ) -> None:
        self.state.binding_delete(queue, exchange, routing_key)
        self.topology.unbind(exchange or "amq.direct", routing_key, queue)

    def get_table(self, exchange: str) -> list[Binding]:
        return self.topology.table(exchange)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """Return the type of an exchange; that of another program is known by its patterns."""
        if exchange not in self.state.exchanges:
            default = "topic" if any(one for _, one, _ in self.get_table(exchange)) else default
        return super().typeof(exchange, default)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Remove the bindings of a queue and the messages that wait in it."""
        if if_empty and self._size(queue):
            return
        passing = self._is_passing(queue)
        self.topology.delete(queue)
        self.state.queue_bindings_delete(queue)
        if passing:
            self._passing_names.discard(queue)
            self.connection.passing.forget(queue)
        else:
            self._purge(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Keep the queue of replies for the next call; it is deleted once it is old."""

    # A retry of the queue is here a message that a worker had and gave back: Celery sends its own
    # retries as new messages. So it waits as the others do.

    def _size(self, queue: str) -> int:
        if self._is_passing(queue):
            return 0
        found = self.jobs_of(queue).stats()
        return found.waiting + found.retrying

    def _purge(self, queue: str) -> int:
        if self._is_passing(queue):
            return 0
        return purge_all(self.jobs_of(queue))

    # --- publishing -----------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        if self._is_passing(queue):
            self.topology.pass_on([queue], message)
            return
        headers = message.get("headers") or {}
        options = Options(priority=self._priority_of(message), codec=CODEC)
        eta = _time_of(headers.get("eta")) if self.hold_eta else None
        if eta is not None:
            options["at"] = eta
        if expiration := message["properties"].get("expiration"):
            options["expires"] = int(expiration) / 1000
        common = {TASK: str(headers["task"]).encode()} if headers.get("task") else {}
        payloads = [(dumps(message).encode(), options)]
        put_all(self.jobs_of(queue).core, payloads, common, always=bool(headers.get("retries")))

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any
    ) -> None:
        queues = {queue for _, _, queue in self.get_table(exchange)}
        passing = [queue for queue in queues if self._is_passing(queue)]
        if passing:
            self.topology.pass_on(passing, message)
        for queue in queues.difference(passing):
            self._put(queue, message)

    def _priority_of(self, message: dict[str, Any]) -> str:
        number = self._get_message_priority(message)
        if number <= _MOST_URGENT:
            return "high"
        return "normal" if number <= _LEAST_NORMAL else "low"

    # --- consuming ------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if self._is_passing(queue):
            self._passing_names.add(queue)
            self.connection.passing.consume(self, queue)
        else:
            self.jobs_of(queue).core.set_up()
            self._stop_intake()
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming a queue; messages that have arrived for it go back."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        if queue in self._passing_names:
            self.connection.passing.cancel(queue)
        else:
            self._stop_intake()
            self.connection.return_arrived(self, queue)

    def ask(self) -> None:
        """Have messages taken as far as there is room, unless that is under way."""
        if self.closed or self._pid != os.getpid():  # in a fork, its consumers are the parent's
            return
        if self._intake is not None and not self._intake.is_idle:
            return
        queues = [one for one in self._active_queues if one not in self._passing_names]
        if not queues or self.bell.arrived or not self.qos.can_consume():
            return
        if self._intake is None:
            self._intake = intake.JobIntake(self, self.bell)
        room = self.qos.can_consume_max_estimate()
        most = intake.MOST_AT_ONCE if room is None else min(room, intake.MOST_AT_ONCE)
        names = list(dict.fromkeys(queues))
        self._intake.ask([self.jobs_of(name) for name in names], max(1, most))

    def _stop_intake(self) -> None:
        if self._intake is not None:
            self._intake.stop()

    def deliver(self, one: intake.Arrived) -> bool:
        """Deliver a message to its consumer; return False if there is none any more."""
        callback = self.connection._callbacks.get(one.queue)
        if self.closed or callback is None or one.queue not in self._active_queues:
            if one.job is not None:
                return_job(one.job)
            return False
        if one.job is not None:
            self._note(one.job, one.message, one.queue in self._no_ack)
        callback(one.message)
        return True

    def _note(self, job: Job, message: dict[str, Any], no_ack: bool) -> None:
        if no_ack:
            self.acknowledger.add(job)
        else:
            self.qos.jobs[message["properties"]["delivery_tag"]] = job

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Take one message at once, for `basic_get`."""
        if self._is_passing(queue):
            self._got = None
            passing: intake.PassingIntake = self.connection.passing
            return passing.get(queue)
        jobs = self.jobs_of(queue)
        known = known_tasks()
        names = None if known is None else {jobs.name: known}
        jobs.core.set_up()
        for job in take([jobs], jobs.consumer, 1, timeout=0, known=names):
            one = intake.opened(self, job)
            if one is not None:
                self._got = job
                return one.message
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and self._got is not None:
            self._note(self._got, message._raw, no_ack)
        return message

    def close(self) -> None:
        """Return what was not acknowledged to its queue; commit what was."""
        if self._pid != os.getpid():
            self.closed = True  # in a fork: it is the parent's
            return
        if not self.closed:
            if self._intake is not None:
                self._intake.close()
            if self.connection is not None:
                self.connection.return_arrived(self)
            self.acknowledger.close()
        super().close()


_channels: Final[weakref.WeakSet[Channel]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Return what programs have that end without closing their connections.

    Kombu does so when `multiprocessing` ends, and by then the stores are closed.
    """
    for one in list(_channels):
        with suppress(StoreError):
            one.close()


AnyChannel = Channel  # a transport has an attribute of the name


class Transport(virtual.Transport):
    """The transport `streamkeep:////path`."""

    Channel = Channel
    can_parse_url = True
    driver_type = SCHEME
    driver_name = SCHEME
    connection_errors = (*virtual.Transport.connection_errors, StoreError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        # Of one URL, Kombu leaves the whole; of the alternates for a failover, its parts.
        self.address = parse_address(client.hostname or f"{SCHEME}:///{client.virtual_host}")
        self.shared = shared(self.address)
        self.topology = Topology(self.shared.opened)
        self.bell = intake.Bell()
        self.passing = intake.PassingIntake(self.topology, self.shared.opened, self.bell)
        self._loop: Any = None
        self._timer: Any = None

    def driver_version(self) -> str:
        return streamkeep.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL as it is: it has no password."""
        return uri

    def establish_connection(self) -> Transport:
        self.shared.connect()
        super().establish_connection()
        return self

    # --- delivering -----------------------------------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages from the loop of a worker."""
        self._loop = loop
        loop.add_reader(self.bell.handle, self._on_ring)
        loop.on_tick.add(self._ask)
        # The loop looks for a shutdown after each event, and a signal is no event.
        self._timer = loop.call_repeatedly(_LOOK_S, self._ask)

    def _on_ring(self) -> None:
        self.bell.silence()
        while self._deliver_one():
            pass
        self._ask()

    def _ask(self) -> None:
        for channel in list(self.channels):
            channel.ask()

    def _deliver_one(self) -> bool:
        """Deliver the next message; return False if none has arrived."""
        while self.bell.arrived:
            one = self.bell.arrived.popleft()
            if one.channel.deliver(one):
                return True
        if self.bell.failure is not None:
            raise self.bell.failure
        return False

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message; wait for it; raise socket.timeout if there was none in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_one():
            self._ask()
            if self.bell.arrived:
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self.bell.wait(left)
            self.bell.silence()

    def return_arrived(self, channel: AnyChannel, queue: str | None = None) -> None:
        """Return messages that have arrived and were not delivered, of a channel or a queue."""
        for one in list(self.bell.arrived):
            if one.channel is channel and queue in (None, one.queue):
                self.bell.arrived.remove(one)
                if one.job is not None:
                    return_job(one.job)

    def close_connection(self, connection: Any) -> None:
        """Close all channels; the store stays open for other connections of the process."""
        if self._loop is not None:
            self._timer.cancel()
            self._loop.on_tick.discard(self._ask)
            self._loop.remove(self.bell.handle)
            self._loop = None
        try:
            self.passing.close()
            super().close_connection(connection)
        finally:
            self.bell.close()


def _time_of(eta: Any) -> datetime | None:
    """Return the time in the header `eta`, if it says which one in which zone."""
    if not isinstance(eta, str):
        return None
    try:
        found = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
