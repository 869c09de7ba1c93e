"""The transport of Celery: messages, exchanges, mailboxes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Producer, Queue

import streamkeep
from blocked import tickets
from failing import failing
from patience import PATIENCE_S, wait_until
from stopped import child_of, status_of
from streamkeep.format.core.errors import ArgumentError, StoreError, StoreFullError
from streamkeep.integrations.address import parse_address
from streamkeep.integrations.celery import intake, stores, workers
from streamkeep.integrations.celery.topology import SPACE, Topology
from streamkeep.jobs import QueueFullError, queue_names
from test_integrations.celery_queues import jobs_of, poison, publish, tasks
from test_integrations.crew import lines


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as one:
        yield one


class Inbox:
    """A consumer that collects messages."""

    def __init__(
        self, connection: Connection, *queues: Queue, prefetch: int = 0, **options: Any
    ) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.messages: list[Any] = []
        self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(
            self.channel, queues or [tasks()], callbacks=[self._note], **options
        )
        self.consumer.consume()

    def _note(self, body: Any, message: Any) -> None:
        self.messages.append(message)

    def wait(self, count: int) -> list[Any]:
        """Wait for `count` messages; return their bodies."""
        while len(self.messages) < count:
            self.connection.drain_events(timeout=PATIENCE_S)
        return [one.payload for one in self.messages]

    def close(self) -> None:
        self.consumer.cancel()
        self.channel.close()


def test_a_message_whose_worker_died_is_marked_as_redelivered(url: str) -> None:
    with Connection(url) as connection:
        publish(connection, 1)
    stores.close_all()
    assert status_of(child_of(lambda: Inbox(Connection(url)).wait(1))) == 0
    with Connection(url) as connection:
        publish(connection, 2)
        inbox = Inbox(connection)
        inbox.wait(2)
        flags = {one.payload: one.delivery_info["redelivered"] for one in inbox.messages}
        assert flags == {1: True, 2: False}
        inbox.close()


def test_a_returned_message_is_redelivered_and_a_rejected_one_a_dead_letter(
    connection: Connection, url: str
) -> None:
    publish(connection, 1)
    inbox = Inbox(connection)
    inbox.wait(1)
    inbox.messages[0].requeue()
    inbox.wait(2)
    assert [one.delivery_info["redelivered"] for one in inbox.messages] == [False, True]
    inbox.close()  # returns it
    again = Inbox(connection)
    again.wait(1)
    assert again.messages[0].delivery_info["redelivered"] is True
    assert jobs_of(url).stats().failed_attempts == 0
    again.messages[0].reject()
    again.close()
    [letter] = jobs_of(url).dead_letters()
    assert letter.reason == "the worker rejected it"
    assert jobs_of(url).stats().running == 0


def test_a_connection_to_a_store_that_is_gone_ends_and_the_next_has_the_one_in_its_place(
    url: str,
) -> None:
    path = parse_address(url).path
    connection = Connection(url)
    publish(connection, 1)
    inbox = Inbox(connection)
    inbox.wait(1)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(connection.recoverable_connection_errors, match="deleted or moved"):
        inbox.wait(2)
    connection.collect()  # as Celery does
    with pytest.raises(connection.recoverable_connection_errors, match="no such store"):
        publish(connection, 2)
    streamkeep.open(path).close()
    publish(connection, 2)
    assert Inbox(connection).wait(1) == [2]
    connection.release()


def test_an_acknowledgement_leaves_a_store_that_is_gone_to_the_connection(url: str) -> None:
    """It declares its queues in the store in its place; messages to them would be dropped."""
    path, events = parse_address(url).path, Exchange("events", "topic")
    mail = Queue("mail", events, routing_key="mail.#")
    connection = Connection(url)
    publish(connection, 1, queue=mail)
    inbox = Inbox(connection, mail)
    inbox.wait(1)
    path.rename(path.with_name("elsewhere"))
    inbox.messages[0].ack()
    with pytest.raises(connection.recoverable_connection_errors, match="deleted or moved"):
        inbox.wait(2)
    connection.collect()
    streamkeep.open(path).close()
    again = Inbox(connection, mail)
    publish(connection, 2, queue=Queue("", events, routing_key="mail.x"))
    assert again.wait(1) == [2]
    connection.release()


def test_a_connection_whose_store_was_closed_ends(url: str) -> None:
    """By another connection, because the store is gone: this one has queues to declare, too."""
    connection = Connection(url)
    inbox = Inbox(connection)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.01)
    shared = stores.shared(parse_address(url))
    wait_until(lambda: tickets(shared.opened.store) > 0)  # before that, it would open it again
    shared.close()
    with pytest.raises(connection.recoverable_connection_errors, match="closed"):
        inbox.wait(1)
    connection.release()


def test_a_full_disk_is_told_once_for_each_way_to_take_messages(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(intake, "_AGAIN_S", 0.001)
    full = [StoreFullError("the disk is full")] * 9
    for name in ("take", "messages_after"):
        monkeypatch.setattr(intake, name, failing(full, getattr(intake, name)))
    with Connection(url) as connection:
        box = mailbox("a", Exchange("control", "fanout"))
        inbox = Inbox(connection, tasks(), box)
        publish(connection, 1)
        publish(connection, 2, queue=box)
        assert sorted(inbox.wait(2)) == [1, 2]
    told = [one.getMessage() for one in caplog.records]
    assert told.count("cannot take messages: the disk is full; trying again") == 1
    assert told.count("cannot read passing queues: the disk is full; trying again") == 1


def test_one_message_is_taken_without_a_consumer(connection: Connection, url: str) -> None:
    publish(connection, {"two": "ü"}, 2)
    bound = tasks()(connection.channel())
    first, second = bound.get(), bound.get(no_ack=True)
    assert (first.payload, second.payload, bound.get()) == ({"two": "ü"}, 2, None)
    first.ack()
    bound.channel.close()
    assert jobs_of(url).stats().done == 2


def test_priorities_are_those_of_redis(connection: Connection) -> None:
    for priority in (9, 5, 0):
        publish(connection, priority, priority=priority)
    inbox = Inbox(connection)
    assert inbox.wait(3) == [0, 5, 9]
    inbox.close()


def test_a_message_for_later_stays_in_the_store(connection: Connection, url: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    publish(connection, 1, headers={"eta": later.isoformat()})
    publish(connection, 2, headers={"eta": (later - timedelta(days=1)).isoformat()})
    publish(connection, 3, headers={"eta": "tomorrow"})  # as other programs may write it
    assert (jobs_of(url).stats().delayed, jobs_of(url).stats().waiting) == (1, 2)
    for value in (False, "no"):  # a text comes from the environment of the program
        with Connection(url, transport_options={"hold_eta": value}) as held_by_workers:
            publish(held_by_workers, 4, headers={"eta": later.isoformat()})
    assert jobs_of(url).stats().waiting == 4
    assert tasks()(connection.channel()).purge() == 5
    assert jobs_of(url).stats()._asdict() | {"waiting": 0, "delayed": 0} == (
        jobs_of(url).stats()._asdict()
    )


@pytest.mark.parametrize(
    ("option", "value", "good"),
    [("max_deaths", "x", "5"), ("max_deaths", 0, 5), ("hold_eta", "never", "True")],
)
def test_a_wrong_option_is_named(url: str, option: str, value: object, good: object) -> None:
    with Connection(url, transport_options={option: good}) as connection:
        publish(connection, 1)
    wrong = Connection(url, transport_options={option: value})
    with wrong, pytest.raises(ArgumentError, match=f"{option} must be .* not {value!r}"):
        publish(wrong, 2)


def test_a_queue_that_is_full_takes_a_retry(connection: Connection, url: str) -> None:
    publish(connection, 1)
    jobs_of(url).set_limits(max_length=1)
    publish(connection, 2, headers={"task": "work", "retries": 1})
    assert jobs_of(url).stats().waiting == 2
    with pytest.raises(QueueFullError):
        publish(connection, 3, headers={"task": "work", "retries": 0})


def test_a_message_that_has_expired_is_a_dead_letter(connection: Connection, url: str) -> None:
    publish(connection, 1, expiration=0.001)
    publish(connection, 2, expiration=3600)
    time.sleep(0.002)
    assert Inbox(connection).wait(1) == [2]
    assert len(jobs_of(url).dead_letters()) == 1


def test_the_second_url_of_a_failover_is_a_store(url: str) -> None:
    with Connection(["streamkeep:////proc/none", url]) as connection:
        publish(connection, 1)
    assert jobs_of(url).stats().waiting == 1


def test_a_program_that_ends_gives_back_what_it_has(connection: Connection, url: str) -> None:
    """Also if it does not close its connection; five such ends are no five deaths."""
    publish(connection, 1)
    program = [
        "from kombu import Connection",
        "import streamkeep.integrations.celery",
        "message = Connection(sys.argv[1]).SimpleQueue('tasks').get(timeout=60)",
    ]
    lines = "import sys; " + "; ".join(program)
    ended = subprocess.run([sys.executable, "-c", lines, url], stderr=subprocess.PIPE, check=True)
    assert (ended.stderr, jobs_of(url).stats().retrying) == (b"", 1)


def test_a_purge_removes_what_a_worker_gave_back(connection: Connection, url: str) -> None:
    publish(connection, *range(3))
    inbox = Inbox(connection, prefetch=3)
    inbox.wait(2)
    inbox.close()
    assert tasks()(connection.channel()).queue_declare().message_count == 3
    assert tasks()(connection.channel()).purge() == 3
    stats = jobs_of(url).stats()
    assert (stats.waiting, stats.retrying, stats.cancelled) == (0, 0, 3)
    assert Inbox(connection).consumer is not None
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.05)


def test_one_message_of_a_mailbox_is_taken_without_a_consumer(
    connection: Connection, url: str
) -> None:
    box = mailbox("box", Exchange("e", "direct"), "k")(connection.channel())
    box.declare()
    assert box.get() is None
    publish(connection, 1, 2, queue=mailbox("box", Exchange("e", "direct"), "k"))
    assert [box.get(no_ack=True).payload, box.get().payload, box.get()] == [1, 2, None]
    assert "box" not in queue_names(jobs_of(url).store)


def test_a_message_of_a_task_that_the_worker_does_not_have_waits(
    connection: Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("test", set_as_current=False)
    app.task(name="known")(lines)
    monkeypatch.setattr(workers, "_apps", [app])
    publish(connection, 1, headers={"task": "of the next version"})
    publish(connection, 2, headers={"task": "known"})
    publish(connection, 3)
    inbox = Inbox(connection)
    assert inbox.wait(2) == [2, 3]
    assert jobs_of(url).stats().parked == 1
    inbox.close()
    app.task(name="of the next version")(lines)
    newer = Inbox(connection)
    assert sorted(newer.wait(3)) == [1, 2, 3]
    newer.close()


def mailbox(name: str, exchange: Exchange, routing_key: str = "") -> Queue:
    return Queue(name, exchange, routing_key=routing_key, auto_delete=True, durable=False)


def test_fanout_and_topics_reach_all_that_listen_in_any_connection(
    connection: Connection, url: str
) -> None:
    control, events = Exchange("control", "fanout"), Exchange("events", "topic")
    with Connection(url) as other:
        first = Inbox(connection, mailbox("a", control), mailbox("e", events, "task.#"))
        second = Inbox(other, mailbox("b", control), no_ack=True)
        publish(connection, "task", queue=Queue("", events, routing_key="task.sent"))
        publish(connection, "worker", queue=Queue("", events, routing_key="worker.online"))
        publish(connection, "stop", queue=Queue("", control))
        assert sorted(first.wait(2)) == ["stop", "task"]
        assert second.wait(1) == ["stop"]
        Producer(other).publish("done", exchange="events", routing_key="task.done")
        assert "done" in first.wait(3)  # of a program that has not declared the exchange
        first.messages[0].ack()
        first.close()
        publish(connection, "again", queue=Queue("", control))
        assert second.wait(2) == ["stop", "again"]
        second.close()


def test_a_mailbox_of_a_store_that_is_gone_ends_its_connection(url: str) -> None:
    path, control = parse_address(url).path, Exchange("control", "fanout")
    with Connection(url) as connection:
        inbox = Inbox(connection, mailbox("a", control))
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(connection.recoverable_connection_errors, match="deleted or moved"):
            inbox.wait(1)
    with suppress(StoreError):  # it has no last checkpoint
        stores.close_all()


def test_a_connection_ends_all_of_its_threads_after_a_failed_sync(url: str) -> None:
    with Connection(url) as connection:
        inbox = Inbox(connection, tasks(), mailbox("a", Exchange("control", "fanout")))
        publish(connection, 1)
        inbox.wait(1)
        poison(stores.shared(parse_address(url)))
    with suppress(StoreError):  # it has no last checkpoint
        stores.close_all()
    names = {"streamkeep-take", "streamkeep-read"}
    wait_until(lambda: names.isdisjoint(one.name for one in threading.enumerate()))
    assert inbox.channel.closed
    stores.close_all()  # a thread that was just looking may have opened it again


def test_a_store_that_a_thread_opens_again_is_closed_with_the_others(url: str) -> None:
    held = stores.shared(parse_address(url))
    held.connect()
    stores.close_all()
    held.connect()
    stores.close_all()
    assert held.opened.opened is None


def test_workers_that_follow_each_other_in_a_process_have_one_watch() -> None:
    def start_two() -> None:
        stores.watch()
        stores.watch()
        assert len([one for one in threading.enumerate() if one.name == "streamkeep-watch"]) == 1

    assert status_of(child_of(start_two)) == 0


def test_a_forked_child_reads_mailboxes_of_its_own(connection: Connection, url: str) -> None:
    """As a caller of remote control does that was forked after a call of its parent."""
    control = Exchange("control", "fanout")
    parent = Inbox(connection, mailbox("a", control))

    def read() -> None:
        child = Inbox(connection, mailbox("b", control))
        publish(connection, 1, queue=mailbox("b", control))
        assert child.wait(1) == [1]

    assert status_of(child_of(read)) == 0
    assert parent.wait(1) == [1]
    parent.close()


def test_a_mailbox_has_no_messages_of_its_former_reader(connection: Connection, url: str) -> None:
    control = Exchange("control", "fanout")
    first = Inbox(connection, mailbox("a", control))
    first.close()
    publish(connection, "shutdown", queue=Queue("", control))
    with Connection(url) as restarted:
        second = Inbox(restarted, mailbox("a", control))
        publish(connection, "ping", queue=Queue("", control))
        assert second.wait(1) == ["ping"]
        second.close()


def test_mailboxes_without_a_reader_are_deleted(url: str) -> None:
    opened = stores.shared(parse_address(url)).opened
    topology = Topology(opened)
    topology.declare_passing("gone", 0)
    topology.bind("events", "#", "^.*?$", "gone")
    topology.pass_on(["gone"], {"n": 1})
    assert topology.table("events") == [("#", "^.*?$", "gone")]
    old = b"\0" * 15 + b"\1"
    opened.apply(lambda txn: txn.row_put(SPACE, b"pgone", old))
    assert topology.table("events") == []
    topology.declare_passing("new", 0)
    assert [key for key, _ in opened.store.row_range(SPACE)] == [b"pnew"]
    assert opened.store.keys() == []
    topology.keep(["gone"], {"gone": [("events", "#", "^.*?$")]})  # it was stopped for long
    assert topology.table("events") == [("#", "^.*?$", "gone")]


def test_a_deleted_queue_has_no_binding_and_no_waiting_messages(
    connection: Connection, url: str
) -> None:
    publish(connection, 1)
    bound = tasks()(connection.channel())
    assert bound.queue_declare(passive=True).message_count == 1
    bound.delete()
    assert bound.channel.get_table("tasks") == []
    assert jobs_of(url).stats().waiting == 0


@pytest.mark.parametrize("wrong", ["streamkeep://localhost/jobs", "streamkeep://"])
def test_a_wrong_url_is_refused(wrong: str) -> None:
    with pytest.raises(ArgumentError, match="names a host"):
        Connection(wrong).connect()
    with pytest.raises(ArgumentError, match="names a host"):
        Celery("test", backend=wrong).backend.get("a")
