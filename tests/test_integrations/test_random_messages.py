"""Random lives of messages in each broker: none is lost, and none comes after its end.

A message is a number. It waits, is held, or has ended; the figures of the queue say so after each
step. Consumers are closed and opened again, and forked children are killed with what they took.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from conftest import assert_sound
from patience import wait_until
from stopped import child_of, die, status_of
from streamkeep.jobs import Queue
from streamkeep.jobs.layout import TASK
from streamkeep.jobs.putting import put_all
from tiers import daily_or_all

MANY: Final = 1_000_000  # deaths, for none of which a message is a dead letter


class Dramatiq:
    """A broker with a consumer, as the other two have it.

    Attributes:
        held: the messages that were taken and have not ended, by their numbers.
        prefetch: how many there may be; 0 for no limit.
        keeps: whether they stay with this process when the consumer is closed.
        ends: how they may end.
    """

    keeps, ends = True, ("ack", "ack", "nack", "requeue")

    def __init__(self, path: Path, prefetch: int) -> None:
        import dramatiq

        from streamkeep.integrations.dramatiq import StreamkeepBroker

        self.prefetch, self.held = prefetch, dict[int, Any]()
        self.broker = StreamkeepBroker(path, middleware=[], max_deaths=MANY)
        actor = dramatiq.actor(print, actor_name="work", queue_name="tasks", broker=self.broker)
        self.send = actor.send
        self.queue = self.broker.queue("tasks")
        self.consumer = self.broker.consume("tasks", prefetch, timeout=0)
        self.purge = lambda: self.broker.flush("tasks")
        self.close, self.leave = self.consumer.close, self.broker.close

    def take(self) -> int | None:
        message = next(self.consumer)
        if message is None:
            return None
        self.held[message.args[0]] = message
        return int(message.args[0])

    def end(self, number: int, how: str) -> None:
        message: Any = self.held.pop(number)
        getattr(self.consumer, how)([message] if how == "requeue" else message)


class Kombu:
    keeps, ends = False, ("ack", "ack", "reject", "requeue")

    def __init__(self, path: Path, prefetch: int) -> None:
        from kombu import Connection, Consumer

        from test_integrations.celery_queues import jobs_of, publish, tasks

        self.prefetch, self.held = prefetch, dict[int, Any]()
        url, options = f"streamkeep:///{path}", {"max_deaths": MANY}
        self.connection = Connection(url, transport_options=options)
        self.channel = self.connection.channel()
        self.channel.basic_qos(0, prefetch, False)
        self.taken: list[Any] = []
        note = [lambda body, message: self.taken.append(message)]
        self.consumer = Consumer(self.channel, [tasks()], callbacks=note)
        self.consumer.consume()
        self.queue: Queue = jobs_of(url)
        self.send = lambda number: publish(self.connection, number)
        self.purge = lambda: self.channel.queue_purge("tasks")

    def take(self) -> int | None:
        try:
            self.connection.drain_events(timeout=0.02)
        except TimeoutError:
            return None
        message = self.taken.pop()
        self.held[message.payload] = message
        return int(message.payload)

    def end(self, number: int, how: str) -> None:
        getattr(self.held.pop(number), how)()

    def close(self) -> None:
        self.consumer.cancel()
        self.channel.close()

    def leave(self) -> None:
        from streamkeep.integrations.celery.stores import close_all

        self.connection.close()
        close_all()


class Taskiq:
    keeps, ends, prefetch = True, ("ack",), 0

    def __init__(self, path: Path, prefetch: int) -> None:
        from taskiq import AsyncBroker

        from streamkeep.integrations.taskiq import StreamkeepBroker

        AsyncBroker.global_task_registry = {}
        self.held: dict[int, Any] = {}
        self.broker = StreamkeepBroker(path, "tasks", max_deaths=MANY)
        self.broker.register_task(lambda number: number, task_name="work")
        self.queue = self.broker.queue()
        self.loop, self.pid = asyncio.Runner(), os.getpid()
        self.loop.run(self.broker.startup())
        self.listener: Any = None
        self.purge = self.queue.purge

    def send(self, number: int) -> None:
        from taskiq import BrokerMessage

        names: dict[str, Any] = {"task_id": "", "task_name": "work", "labels": {}}
        data = json.dumps({**names, "args": [number], "kwargs": {}}).encode()
        sending = self.broker.kick(BrokerMessage(message=data, **names))
        in_child = os.getpid() != self.pid  # which may not use the loop of its parent
        asyncio.run(sending) if in_child else self.loop.run(sending)

    def take(self) -> int | None:
        self.listener = self.listener or self.broker.listen()
        try:
            message = self.loop.run(asyncio.wait_for(anext(self.listener), 0.02))
        except TimeoutError:
            self.listener = None
            return None
        number = int(self.broker.formatter.loads(message.data).args[0])
        self.held[number] = message
        return number

    def end(self, number: int, how: str) -> None:
        self.loop.run(self.held.pop(number).ack())

    def close(self) -> None:
        if self.listener is not None:
            self.loop.run(self.listener.aclose())
            self.listener = None

    def leave(self) -> None:
        self.loop.run(self.broker.shutdown())
        self.loop.close()


PEERS: Final[dict[str, Any]] = {"dramatiq": Dramatiq, "kombu": Kombu, "taskiq": Taskiq}


class World:
    """A queue, a consumer of it, and how its messages should be.

    Attributes:
        open: those that wait, or are held by this process.
        unsure: those that ended, unless that was cut off: they come again, or never.
        ended: how many ended for sure, by how.
    """

    def __init__(self, kind: Any, path: Path, seed: int) -> None:
        self.rng, self.kind, self.path = random.Random(seed), kind, path
        self.sent = 0
        self.open: set[int] = set()
        self.unsure: set[int] = set()
        self.ended = dict.fromkeys(kind.ends, 0)
        self.peer = self.another()

    def another(self) -> Any:
        return self.kind(self.path, self.rng.choice([1, 5, 20, 20]))

    def send(self) -> None:
        """Send with the broker of this process; at times in a forked child."""
        self.open.add(self.sent)
        if self.rng.random() < 0.05:
            assert status_of(child_of(lambda: self.peer.send(self.sent))) == 0
        else:
            self.peer.send(self.sent)
        self.sent += 1

    def take(self) -> None:
        number = self.peer.take()
        if number is not None:
            self.note_taken(number)
            assert len(self.peer.held) <= (self.peer.prefetch or self.sent)

    def note_taken(self, number: int) -> None:
        assert number in self.open | self.unsure, f"{number} has ended"
        self.unsure.discard(number)
        self.open.add(number)

    def end(self, how: str = "") -> None:
        if self.peer.held:
            number = self.rng.choice(list(self.peer.held))
            how = how or self.rng.choice(self.kind.ends)
            self.peer.end(number, how)
            if how != "requeue":
                self.open.remove(number)
                self.ended[how] += 1

    def purge(self) -> None:
        """Remove what nobody has; what the consumer has fetched in advance still comes."""
        self.peer.purge()
        gone = self.open.difference(self.peer.held)
        self.open, self.unsure = self.open - gone, self.unsure | gone

    def close(self) -> None:
        """Close the consumer: what it had fetched in advance goes back. Open another."""
        self.peer.close()
        who = self.peer.queue.core.consumer.decode()
        running = [job for job in self.peer.queue.jobs("running") if job.worker == who]
        assert len(running) == (len(self.peer.held) if self.kind.keeps else 0)
        while self.kind.keeps and self.peer.held:
            self.end(self.kind.ends[-1])
        self.peer.leave()
        self.peer = self.another()

    def kill(self) -> None:
        """Have a child take and end some messages, and be killed."""
        notes, seed = self.path.with_name("notes"), self.rng.getrandbits(32)
        notes.write_text("")
        status_of(child_of(lambda: self._live_and_die(notes, random.Random(seed))))
        for line in notes.read_text().splitlines():
            what, number = json.loads(line)
            self.note_taken(number)
            if what != "take":
                self.open.discard(number)
                self.unsure.add(number)

    def _live_and_die(self, notes: Path, rng: random.Random) -> None:
        peer = self.kind(self.path, 20)

        def note(*what: Any) -> None:
            with notes.open("a") as file:
                file.write(json.dumps(what) + "\n")

        for _ in range(rng.randint(1, 12)):
            number = peer.take()
            if number is not None:
                note("take", number)
            if peer.held and rng.random() < 0.5:
                number, how = rng.choice(list(peer.held)), rng.choice(self.kind.ends[:3])
                note("end", number)
                peer.end(number, how)
        if rng.random() < 0.3:
            peer.close()
        die()

    def check(self) -> None:
        """Compare with the figures, which a thread of the broker may have to bring up to date."""

        def fits() -> bool:
            found = self.peer.queue.stats()
            ended = found.done + found.buried + found.cancelled
            assert found.waiting + found.running + found.delayed + ended == self.sent
            sure = self.ended["ack"], sum(self.ended.values()) - self.ended["ack"]
            assert ended <= sum(sure) + len(self.unsure)
            return bool(found.done >= sure[0] and found.buried >= sure[1])

        wait_until(fits)

    def finish(self) -> None:
        def is_empty() -> bool:
            self.take()
            self.end("ack")
            found = self.peer.queue.stats()
            return not (found.waiting or found.running or found.delayed)

        wait_until(is_empty)
        self.check()
        assert not self.open, "messages that never came"
        self.close()
        self.peer.close()
        self.peer.queue.close()
        self.peer.leave()


@pytest.mark.parametrize("seed", range(daily_or_all(1, 20)))
@pytest.mark.parametrize("name", PEERS)
def test_no_message_is_lost_and_none_comes_after_its_end(
    tmp_path: Path, name: str, seed: int
) -> None:
    pytest.importorskip(name)
    world = World(PEERS[name], tmp_path / "store", seed)
    steps: list[Callable[[], None]] = [world.send] * 8 + [world.take] * 6 + [world.end] * 5
    steps += [world.close] * 3 + [world.kill]
    for _ in range(60):
        world.rng.choice(steps)()
        if world.rng.random() < 0.02:
            world.purge()
        world.check()
    world.finish()
    assert_sound(tmp_path / "store")


@pytest.mark.parametrize("name", PEERS)
def test_what_a_framework_cannot_read_becomes_a_dead_letter(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    peer = PEERS[name](tmp_path / "store", 5)
    put_all(peer.queue.core, [(b'{"body": "of another version"}', {})], {TASK: b"work"})
    peer.send(2)
    wait_until(lambda: peer.take() == 2)
    [letter] = peer.queue.dead_letters()
    assert "cannot read it" in letter.reason
    peer.end(2, "ack")
    for close in (peer.close, peer.queue.close, peer.leave):
        close()
