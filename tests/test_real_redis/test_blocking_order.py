"""Blocked readers on a real server and on the engine: who is woken by what, and gets what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from blocked import BLOCKED, Callers
from model.steps import Failed
from patience import wait_until
from real_redis.server import RealRedis, running_redis
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import CommandError

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    """A server for all scenarios."""
    with running_redis() as connection:
        yield connection


class Read(NamedTuple):
    """XREAD BLOCK 0."""

    streams: dict[str, str]
    most: int | None = None

    def words(self) -> list[str | int]:
        count: list[str | int] = ["COUNT", self.most] if self.most else []
        return ["XREAD", *count, "BLOCK", 0, "STREAMS", *self.streams, *self.streams.values()]

    def on_store(self, store: Store) -> Any:
        return store.xread(self.streams, count=self.most, block=0)


class Group(NamedTuple):
    """XREADGROUP BLOCK 0."""

    group: str
    consumer: str
    streams: dict[str, str]
    most: int | None = None

    def words(self) -> list[str | int]:
        count: list[str | int] = ["COUNT", self.most] if self.most else []
        who: list[str | int] = ["XREADGROUP", "GROUP", self.group, self.consumer, *count]
        return [*who, "BLOCK", 0, "STREAMS", *self.streams, *self.streams.values()]

    def on_store(self, store: Store) -> Any:
        return store.xreadgroup(self.group, self.consumer, self.streams, count=self.most, block=0)


def run(target: Any, line: str) -> None:
    """Run one command of a scenario on the store or on a transaction."""
    match line.split():
        case ["XADD", key, new_id]:
            target.xadd(key, {"f": "v"}, id=new_id)
        case ["XADD", key, new_id, "MAXLEN"]:
            target.xadd(key, {"f": "v"}, id=new_id, maxlen=0, approximate=False)
        case ["DEL", key]:
            target.delete(key)
        case ["RENAME", source, key]:
            target.rename(source, key)
        case ["CREATE", key, group, last_id]:
            target.xgroup_create(key, group, id=last_id, mkstream=True)
        case ["DESTROY", key, group]:
            target.xgroup_destroy(key, group)
        case ["SETID", key, group, last_id]:
            target.xgroup_setid(key, group, last_id)
        case ["DELCONSUMER", key, group, consumer]:
            target.xgroup_delconsumer(key, group, consumer)
        case ["XSETID", key, last_id]:
            target.xsetid(key, last_id)
        case ["XDEL", key, one]:
            target.xdel(key, one)
        case _:
            raise AssertionError(line)


def words_of(line: str) -> list[str]:
    """Return the same command for a server."""
    match line.split():
        case ["XADD", key, new_id]:
            return ["XADD", key, new_id, "f", "v"]
        case ["XADD", key, new_id, "MAXLEN"]:
            return ["XADD", key, "MAXLEN", "0", new_id, "f", "v"]
        case ["CREATE", key, group, last_id]:
            return ["XGROUP", "CREATE", key, group, last_id, "MKSTREAM"]
        case ["DESTROY" | "SETID" | "DELCONSUMER", *_] as words:
            return ["XGROUP", *words]
        case words:
            return words


class Scenario(NamedTuple):
    """What is there, who blocks in which order, and what happens; a list is one transaction."""

    before: list[str]
    clients: list[Read | Group]
    actions: list[str | list[str]]


G = partial(Group, "g")
NEW = {"s": ">"}

SCENARIOS = {
    "every XREAD gets a new entry": Scenario(
        [], [Read({"s": "$"}), Read({"s": "0"}), Read({"t": "$"})], ["XADD s 1-1"]
    ),
    "$ is what it was when the wait began": Scenario(
        ["XADD s 5-0"], [Read({"s": "$"}), Read({"s": "9-0"})], ["XADD s 6-0", "XADD s 10-0"]
    ),
    "$ of a missing key is 0-0": Scenario([], [Read({"s": "$"})], ["XADD s 0-1"]),
    "several streams, one has something": Scenario(
        ["XADD t 1-1"], [Read({"s": "$", "t": "$"}), Read({"t": "$", "u": "$"})], ["XADD t 2-0"]
    ),
    "a transaction is seen whole": Scenario(
        # 7.0: of several streams only the one that woke; later the whole command runs again.
        [],
        [Read({"s": "$", "t": "$"})],
        [["XADD s 1-1", "XADD s 1-2"]],
    ),
    "the consumer that waits longest gets the entry": Scenario(
        ["CREATE s g $"], [G("a", NEW), G("b", NEW), G("c", NEW)], ["XADD s 1-1"]
    ),
    "one after the other": Scenario(
        ["CREATE s g $"], [G("a", NEW), G("b", NEW), G("c", NEW)], ["XADD s 1-1", "XADD s 2-1"]
    ),
    "with COUNT 1 each takes one": Scenario(
        ["CREATE s g $"],
        [G("a", NEW, 1), G("b", NEW, 1), G("c", NEW, 1)],
        ["XADD s 1-1", "XADD s 1-2"],
    ),
    "each group has its queue, and XREAD sees all": Scenario(
        ["CREATE s g $", "CREATE s h $"],
        [G("a", NEW), Group("h", "a", NEW), Read({"s": "$"}), G("b", NEW), Group("h", "b", NEW)],
        ["XADD s 1-1"],
    ),
    "a consumer of several streams": Scenario(
        ["CREATE s g $", "CREATE t g $"],
        [G("a", {"s": ">", "t": ">"}), G("b", {"t": ">"}), G("c", NEW)],
        ["XADD t 1-1", "XADD s 1-1"],
    ),
    "a group that is set ahead": Scenario(
        ["CREATE s g $"], [G("a", NEW), G("b", NEW)], ["SETID s g 5-0", "XADD s 4-0", "XADD s 6-0"]
    ),
    "SETID back does not wake": Scenario(
        ["XADD s 1-1", "CREATE s g $"], [G("a", NEW)], ["SETID s g 0"]
    ),
    "XSETID and XDEL do not wake": Scenario(
        ["XADD s 1-1", "CREATE s g $"],
        [G("a", NEW), Read({"s": "$"})],
        ["XSETID s 9-0", "XDEL s 1-1"],
    ),
    "a group is destroyed": Scenario(
        ["CREATE s g $", "CREATE s h $"],
        [G("a", NEW), G("b", NEW), Group("h", "a", NEW), Read({"s": "$"})],
        ["DESTROY s g"],
    ),
    "the key is deleted": Scenario(
        ["XADD s 1-1", "CREATE s g $"], [G("a", NEW), G("b", NEW), Read({"s": "$"})], ["DEL s"]
    ),
    "XREAD waits on for a key that was deleted": Scenario(
        ["XADD s 5-0"], [Read({"s": "$"})], ["DEL s", "XADD s 3-0", "XADD s 6-0"]
    ),
    "a stream is renamed to the key": Scenario(
        ["XADD t 7-0", "CREATE t g 0"], [Read({"s": "0"}), Read({"s": "9"})], ["RENAME t s"]
    ),
    "a stream is renamed to the key and brings the group": Scenario(
        ["CREATE s g $", "XADD t 7-0", "CREATE t g 0"], [G("a", NEW)], ["RENAME t s"]
    ),
    "another stream is renamed to the key": Scenario(
        ["CREATE s g $", "CREATE t h $"], [G("a", NEW), Read({"s": "$"})], ["RENAME t s"]
    ),
    "the key is renamed": Scenario(
        ["CREATE s g $"], [G("a", NEW), Read({"s": "$"})], ["RENAME s t"]
    ),
    "a deleted consumer stays blocked, and comes back": Scenario(
        ["CREATE s g $"], [G("a", NEW), G("b", NEW)], ["DELCONSUMER s g a", "XADD s 1-1"]
    ),
}


def plain(result: Any) -> Any:
    """Return a result of the store as a server sends it; an error as its first word."""
    if isinstance(result, CommandError):
        return "error"
    if result == BLOCKED or not result:
        return BLOCKED
    return [
        [
            name,
            [[one.id, [part for pair in one.fields.items() for part in pair]] for one in entries],
        ]
        for name, entries in result
    ]


def ask(server: RealRedis, *words: str | int) -> Any:
    """Run a command on a server."""
    return server.call(*(word.encode() if isinstance(word, str) else word for word in words))


def on_engine(store: Store, scenario: Scenario) -> list[Any]:
    """Play a scenario on the store."""
    for line in scenario.before:
        run(store, line)
    callers = Callers(store)
    for client in scenario.clients:
        callers.start(partial(client.on_store, store))
    for action in scenario.actions:
        if isinstance(action, str):
            run(store, action)
        else:
            with store.transaction() as txn:
                for line in action:
                    run(txn, line)
        callers.settle()  # a server serves the clients before it takes the next command
    return callers.end()


def on_server(server: RealRedis, scenario: Scenario) -> list[Any]:
    """Play it on a server, each client with a connection of its own."""
    ask(server, "FLUSHALL")
    for line in scenario.before:
        assert not isinstance(ask(server, *words_of(line)), Failed)
    clients: list[tuple[RealRedis, int]] = []
    for number, client in enumerate(scenario.clients, start=1):
        connection = RealRedis(Path(server._connection.path))
        clients.append((connection, ask(connection, "CLIENT", "ID")))
        connection._connection.send_command(*client.words())
        wait_until(lambda number=number: blocked_clients(server) == number)  # type: ignore[misc]
    for action in scenario.actions:
        if isinstance(action, str):
            assert not isinstance(ask(server, *words_of(action)), Failed)
        else:
            ask(server, "MULTI")
            for line in action:
                ask(server, *words_of(line))
            ask(server, "EXEC")
    replies: list[Any] = []
    for connection, number in clients:
        ask(server, "CLIENT", "UNBLOCK", number)
        reply = connection._reply()
        replies.append("error" if isinstance(reply, Failed) else reply or BLOCKED)
        connection.close()
    return replies


def blocked_clients(server: RealRedis) -> int:
    """Return how many clients of a server are blocked."""
    lines = ask(server, "INFO", "clients").decode().splitlines()
    return int(next(line for line in lines if line.startswith("blocked_clients:")).split(":")[1])


@pytest.mark.parametrize("name", SCENARIOS)
def test_who_gets_what(server: RealRedis, open_store: Callable[..., Store], name: str) -> None:
    scenario = SCENARIOS[name]
    ours = [plain(result) for result in on_engine(open_store(), scenario)]
    assert ours == on_server(server, scenario)
