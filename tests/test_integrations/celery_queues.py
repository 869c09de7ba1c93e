"""Queues of Celery and their messages, for tests."""

from __future__ import annotations

from typing import Any

from kombu import Connection, Exchange, Producer, Queue

from inside import journal_of
from streamkeep.integrations.address import parse_address
from streamkeep.integrations.celery import stores
from streamkeep.jobs import Queue as JobQueue

TASKS = Exchange("tasks", "direct")


def tasks(name: str = "tasks", **options: Any) -> Queue:
    return Queue(name, TASKS, routing_key=name, **options)


def jobs_of(url: str, name: str = "tasks") -> JobQueue:
    return stores.shared(parse_address(url)).queue(name, 5)


def publish(connection: Connection, *bodies: Any, queue: Queue | None = None, **how: Any) -> None:
    with connection.channel() as channel:
        to = queue or tasks()
        producer = Producer(channel)
        for body in bodies:
            producer.publish(
                body, exchange=to.exchange, routing_key=to.routing_key, declare=[to], **how
            )


def poison(shared: stores.Shared) -> None:
    """Have a store as it is after a failed sync."""
    journal_of(shared.opened.store).control.poison()
