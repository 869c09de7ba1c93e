"""Lines of text that a real server and the engine must have in common: errors and help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import streamkeep
from real_redis.server import RealRedis, running_redis
from streamkeep.engine.api.store import Store

NAMES = [
    *(b"plain", b"", b"a\0b", b"\0", b"a\xffb", "größe".encode(), b"two\r\nlines\n"),
    *(b"quotes'\"\\", b"tab\t\x1b[31m", b"x" * 300),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    with running_redis() as running:
        running.call(b"XADD", b"s", b"1-1", b"f", b"v")
        running.call(b"XGROUP", b"CREATE", b"s", b"g", b"0")
        yield running


def error_of(call: Callable[[], Any]) -> str:
    """Return the line of Redis that a call fails with."""
    with pytest.raises(streamkeep.CommandError) as caught:
        call()
    return caught.value.redis_error


@pytest.mark.parametrize("name", NAMES)
def test_names_in_error_lines_are_those_of_a_server(
    server: RealRedis, store: Store[Any], name: bytes
) -> None:
    store.xadd("s", {"f": "v"}, id="1-1")
    store.xgroup_create("s", "g", 0)
    told = [
        error_of(lambda: store.xgroup_setid("s", name, 0)),
        error_of(lambda: store.xinfo_consumers("s", name)),
        error_of(lambda: store.xpending("s", name)),
        error_of(lambda: store.xreadgroup(name, "c", {"s": ">"})),
        error_of(lambda: store.xreadgroup("g", "c", {name: ">"})),
        error_of(lambda: store.xclaim("s", "g", "c", 0, [name])),
    ]
    answers = [
        server.call(b"XGROUP", b"SETID", b"s", name, b"0"),
        server.call(b"XINFO", b"CONSUMERS", b"s", name),
        server.call(b"XPENDING", b"s", name),
        server.call(b"XREADGROUP", b"GROUP", name, b"c", b"STREAMS", b"s", b">"),
        server.call(b"XREADGROUP", b"GROUP", b"g", b"c", b"STREAMS", name, b">"),
        server.call(b"XCLAIM", b"s", b"g", b"c", b"0", name),
    ]
    assert told == [answer.text for answer in answers]


def test_help_is_that_of_a_server(server: RealRedis, store: Store[Any]) -> None:
    for command, lines in ((b"XGROUP", store.xgroup_help()), (b"XINFO", store.xinfo_help())):
        answer = [line.decode() for line in server.call(command, b"HELP")]
        assert lines == [line.replace("Prints this", "Print this") for line in answer]
