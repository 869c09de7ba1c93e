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
from real_redis.shown import caller
from streamkeep.commands.command_table import find
from streamkeep.commands.replies import plain
from streamkeep.engine.api.store import Store
from streamkeep.engine.store.command import wait
from streamkeep.format.core.errors import CommandError
from streamkeep.format.node.node import PAIRS
from streamkeep.server.resp.turn import run_one

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    with running_redis() as connection:
        yield connection


class Scenario(NamedTuple):
    """What is there, who blocks in which order, and what happens; a list is one transaction."""

    before: list[str]
    clients: list[str]
    actions: list[str | list[str]]


def read(*streams: str) -> str:
    """Return XREAD that waits for streams, each `key id`."""
    return _waits("XREAD", *streams)


def take(consumer: str, *keys: str, group: str = "g", most: int = 0) -> str:
    count = f" COUNT {most}" if most else ""
    return _waits(f"XREADGROUP GROUP {group} {consumer}{count}", *(f"{key} >" for key in keys))


def _waits(begin: str, *streams: str) -> str:
    keys, ids = zip(*(stream.split() for stream in streams), strict=True)
    return " ".join([begin, "BLOCK 0 STREAMS", *keys, *ids])


SCENARIOS = {
    "every XREAD gets a new entry": Scenario(
        [], [read("s $"), read("s 0"), read("t $")], ["XADD s 1-1 f v"]
    ),
    "$ is what it was when the wait began": Scenario(
        ["XADD s 5-0 f v"], [read("s $"), read("s 9-0")], ["XADD s 6-0 f v", "XADD s 10-0 f v"]
    ),
    "$ of a missing key is 0-0": Scenario([], [read("s $")], ["XADD s 0-1 f v"]),
    "several streams, one has something": Scenario(
        ["XADD t 1-1 f v"], [read("s $", "t $"), read("t $", "u $")], ["XADD t 2-0 f v"]
    ),
    "a transaction is seen whole": Scenario(
        # 7.0: of several streams only the one that woke; later the whole command runs again.
        [],
        [read("s $", "t $")],
        [["XADD s 1-1 f v", "XADD s 1-2 f v"]],
    ),
    "the consumer that waits longest gets the entry": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM"],
        [take("a", "s"), take("b", "s"), take("c", "s")],
        ["XADD s 1-1 f v"],
    ),
    "one after the other": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM"],
        [take("a", "s"), take("b", "s"), take("c", "s")],
        ["XADD s 1-1 f v", "XADD s 2-1 f v"],
    ),
    "with COUNT 1 each takes one": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM"],
        [take("a", "s", most=1), take("b", "s", most=1), take("c", "s", most=1)],
        ["XADD s 1-1 f v", "XADD s 1-2 f v"],
    ),
    "each group has its queue, and XREAD sees all": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE s h $ MKSTREAM"],
        [
            take("a", "s"),
            take("a", "s", group="h"),
            read("s $"),
            take("b", "s"),
            take("b", "s", group="h"),
        ],
        ["XADD s 1-1 f v"],
    ),
    "a consumer of several streams": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE t g $ MKSTREAM"],
        [take("a", "s", "t"), take("b", "t"), take("c", "s")],
        ["XADD t 1-1 f v", "XADD s 1-1 f v"],
    ),
    "a group that is set ahead": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM"],
        [take("a", "s"), take("b", "s")],
        ["XGROUP SETID s g 5-0", "XADD s 4-0 f v", "XADD s 6-0 f v"],
    ),
    "XGROUP SETID back does not wake": Scenario(
        ["XADD s 1-1 f v", "XGROUP CREATE s g $ MKSTREAM"], [take("a", "s")], ["XGROUP SETID s g 0"]
    ),
    "XSETID and XDEL do not wake": Scenario(
        ["XADD s 1-1 f v", "XGROUP CREATE s g $ MKSTREAM"],
        [take("a", "s"), read("s $")],
        ["XSETID s 9-0", "XDEL s 1-1"],
    ),
    "a group is destroyed": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE s h $ MKSTREAM"],
        [take("a", "s"), take("b", "s"), take("a", "s", group="h"), read("s $")],
        ["XGROUP DESTROY s g"],
    ),
    "the key is deleted": Scenario(
        ["XADD s 1-1 f v", "XGROUP CREATE s g $ MKSTREAM"],
        [take("a", "s"), take("b", "s"), read("s $")],
        ["DEL s"],
    ),
    "XREAD waits on for a key that was deleted": Scenario(
        ["XADD s 5-0 f v"], [read("s $")], ["DEL s", "XADD s 3-0 f v", "XADD s 6-0 f v"]
    ),
    "a stream is renamed to the key": Scenario(
        ["XADD t 7-0 f v", "XGROUP CREATE t g 0 MKSTREAM"],
        [read("s 0"), read("s 9")],
        ["RENAME t s"],
    ),
    "a stream is renamed to the key and brings the group": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM", "XADD t 7-0 f v", "XGROUP CREATE t g 0 MKSTREAM"],
        [take("a", "s")],
        ["RENAME t s"],
    ),
    "another stream is renamed to the key": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE t h $ MKSTREAM"],
        [take("a", "s"), read("s $")],
        ["RENAME t s"],
    ),
    "the key is renamed": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM"], [take("a", "s"), read("s $")], ["RENAME s t"]
    ),
    "a deleted consumer stays blocked, and comes back": Scenario(
        ["XGROUP CREATE s g $ MKSTREAM"],
        [take("a", "s"), take("b", "s")],
        ["XGROUP DELCONSUMER s g a", "XADD s 1-1 f v"],
    ),
}


def on_engine(store: Store, scenario: Scenario) -> list[Any]:
    call = caller(store)
    for line in scenario.before:
        call(*line.encode().split())
    callers = Callers(store)
    for client in scenario.clients:
        words = client.encode().split()
        parse = find(words).parse
        assert parse is not None
        callers.start(partial(store._run, wait(parse(words, int(PAIRS)).call, 0)))
    for action in scenario.actions:
        if isinstance(action, str):
            call(*action.encode().split())
        else:
            with store.transaction() as transaction:
                for words in (line.encode().split() for line in action):
                    run_one(transaction.txn, find(words), words, False)
        callers.settle()  # a server serves the clients before it takes the next command
    return ["error" if isinstance(one, CommandError) else plain(one) for one in callers.end()]


def on_server(server: RealRedis, scenario: Scenario) -> list[Any]:
    """Play it on a server, each client with a connection of its own."""

    def call(line: str) -> Any:
        found = server.call(*line.split())
        assert not isinstance(found, Failed)
        return found

    for line in ("FLUSHALL", *scenario.before):
        call(line)
    clients: list[tuple[RealRedis, int]] = []
    for number, client in enumerate(scenario.clients, start=1):
        connection = RealRedis(Path(server._connection.path))
        clients.append((connection, connection.call("CLIENT", "ID")))
        connection._connection.send_command(*client.split())
        told = b"blocked_clients:%d\r\n" % number
        wait_until(lambda told=told: told in call("INFO clients"))  # type: ignore[misc]
    for action in scenario.actions:
        for line in [action] if isinstance(action, str) else ["MULTI", *action, "EXEC"]:
            call(line)
    replies: list[Any] = []
    for connection, number in clients:
        call(f"CLIENT UNBLOCK {number}")
        reply = connection._reply()
        replies.append("error" if isinstance(reply, Failed) else reply or BLOCKED)
        connection.close()
    return replies


@pytest.mark.parametrize("name", SCENARIOS)
def test_who_gets_what(server: RealRedis, open_store: Callable[..., Store], name: str) -> None:
    assert on_engine(open_store(), SCENARIOS[name]) == on_server(server, SCENARIOS[name])
