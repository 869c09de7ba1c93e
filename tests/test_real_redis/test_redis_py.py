"""The same Python calls on redis-py with a real server, and on a store.

What redis-py refuses with a DataError, or by raising a ValueError of its own, is an ArgumentError
here; what the server refuses is a CommandError in the server's words; all else has the same result.
The calls are made on an empty key, on a stream, and on a stream with a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import redis

import streamkeep
from real_redis.server import running_redis
from tiers import pairs_of, slow_but

pytestmark = pytest.mark.redis

BEYOND = 1 << 63
# What a caller may pass where a number is expected.
NUMBERS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 5, BEYOND - 1, BEYOND, -BEYOND, -BEYOND - 1, 1 << 70),
    *(1.0, 1.5, -0.5, float("nan"), float("inf")),
    *("0", "1", "10", "-1", "-0", "007", "+5", " 5", "5 ", "1_0", "", "x", "0x10", "9" * 19),
    *(b"1", b"10", b"-1", b"", bytearray(b"7"), [], {}, object()),
)
IDS: tuple[Any, ...] = (
    *(None, True, 0, 5, -1, 1.5, BEYOND, 1 << 64, "0", "5", "5-0", "5-1", "0-0", "$", ">", "+"),
    *("-", "*", "(5", "(5-0", "(", "(-", "5-*", "x", "", "5-", "-5", "5-x", "1-2-3", " 5", "+5"),
    *("05-00", b"5-0", b"$", "5" * 130, f"{(1 << 64) - 1}-{(1 << 64) - 1}", [], object()),
)
# As a server of 7.0 knows them.
OLD_IDS = [one for one in IDS if one != "+"]
SPANS = [one for one in NUMBERS if type(one) is not int or one != BEYOND - 1]
# redis-py drops a number of these types, and sends nothing; here they are refused.
NOT_DROPPED = [one for one in NUMBERS if type(one) not in (list, dict, object)]
NAMES: tuple[Any, ...] = (None, True, b"", "", 5, 1.5, [], object(), memoryview(b"s"))
FLAGS: tuple[Any, ...] = (True, False, 1, 0, None, "yes", "", [], [0], 2.5)
POLICIES: tuple[Any, ...] = (None, "KEEPREF", "keepref", "", "ALL", b"KEEPREF", 1, True)

Call = Callable[[Any, Any], Any]


class Outcome(NamedTuple):
    """How a call ended: in a value, or in an error of the client or of the server."""

    kind: str
    value: Any


def on_redis(client: redis.Redis, call: Call, value: Any) -> Outcome:
    try:
        return Outcome("result", call(client, value))
    except redis.ResponseError as error:
        return Outcome("server", str(error))
    except (redis.DataError, ValueError, TypeError, OverflowError) as error:
        return Outcome("client", str(error))


def on_store(store: Any, call: Call, value: Any) -> Outcome:
    """Return what a store makes of it; no error but these two comes out."""
    try:
        return Outcome("result", call(store, value))
    except streamkeep.CommandError as error:
        return Outcome("server", str(error))
    except streamkeep.ArgumentError as error:
        return Outcome("client", str(error))


FIELDS = {"f": "v"}
GROUP = ("s", "g")
READER = ("g", "c")

# What is called, and with which values. `r` is a client of redis-py, or a store.
CALLS: dict[str, tuple[Sequence[Any], Call]] = {
    "xadd id": (IDS, lambda r, v: done(r.xadd("s", FIELDS, v))),
    "xadd maxlen": (NUMBERS, lambda r, v: r.xadd("s", FIELDS, "9-9", maxlen=v, approximate=False)),
    "xadd minid": (IDS, lambda r, v: r.xadd("s", FIELDS, "9-9", minid=v, approximate=False)),
    "xadd limit": (NUMBERS, lambda r, v: r.xadd("s", FIELDS, "9-9", maxlen=2, limit=v)),
    "xadd limit alone": (NUMBERS, lambda r, v: r.xadd("s", FIELDS, "9-9", limit=v)),
    "xadd exact limit": (
        NUMBERS,
        lambda r, v: r.xadd("s", FIELDS, "9-9", minid=1, approximate=False, limit=v),
    ),
    "xadd nomkstream": (FLAGS, lambda r, v: r.xadd("new", FIELDS, "9-9", nomkstream=v)),
    "xadd approximate": (FLAGS, lambda r, v: r.xadd("s", FIELDS, "9-9", maxlen=9, approximate=v)),
    "xadd fields": (
        ({}, None, [], "x", {"f": None}, {None: "v"}, {"f": True}, {"f": 1.5}, {"": ""}, {1: b""}),
        lambda r, v: r.xadd("s", v, "9-9"),
    ),
    "xadd name": (NAMES, lambda r, v: r.xadd(v, FIELDS, "9-9")),
    "xtrim maxlen": (NUMBERS, lambda r, v: r.xtrim("s", maxlen=v, approximate=False)),
    "xtrim minid": (IDS, lambda r, v: r.xtrim("s", minid=v, approximate=False)),
    "xtrim limit": (NUMBERS, lambda r, v: r.xtrim("s", maxlen=100, limit=v)),
    "xtrim exact limit": (
        NUMBERS,
        lambda r, v: r.xtrim("s", maxlen=100, approximate=False, limit=v),
    ),
    "xtrim approximate": (FLAGS, lambda r, v: r.xtrim("s", maxlen=100, approximate=v)),
    "xlen": (NAMES, lambda r, v: r.xlen(v)),
    "xdel": (IDS, lambda r, v: r.xdel("s", v)),
    "xdel of nothing": ((0,), lambda r, v: r.xdel("s")),
    "xack": (IDS, lambda r, v: r.xack(*GROUP, v)),
    "xack of nothing": ((0,), lambda r, v: r.xack(*GROUP)),
    "xrange min": (IDS, lambda r, v: r.xrange("s", min=v)),
    "xrange max": (IDS, lambda r, v: r.xrange("s", max=v)),
    "xrange count": (NUMBERS, lambda r, v: r.xrange("s", count=v)),
    "xrevrange min": (IDS, lambda r, v: r.xrevrange("s", min=v)),
    "xrevrange max": (IDS, lambda r, v: r.xrevrange("s", max=v)),
    "xrevrange count": (NUMBERS, lambda r, v: r.xrevrange("s", count=v)),
    "xread id": (OLD_IDS, lambda r, v: r.xread({"s": v})),
    "xread name": (NAMES, lambda r, v: r.xread({v: "0"}) if v != [] else r.xread({"s": v})),
    "xread count": (NUMBERS, lambda r, v: r.xread({"s": 0}, count=v)),
    "xread block": (
        [one for one in SPANS if type(one) is not int or one],  # 0 waits without limit
        lambda r, v: r.xread({"s": 0}, block=v),
    ),
    "xread streams": (({}, None, "s", 5), lambda r, v: r.xread(v)),
    "xreadgroup id": (OLD_IDS, lambda r, v: r.xreadgroup(*READER, {"s": v})),
    "xreadgroup count": (NUMBERS, lambda r, v: r.xreadgroup(*READER, {"s": ">"}, count=v)),
    "xreadgroup block": (SPANS, lambda r, v: r.xreadgroup(*READER, {"s": ">"}, block=v)),
    "xreadgroup noack": (FLAGS, lambda r, v: r.xreadgroup(*READER, {"s": ">"}, noack=v)),
    "xreadgroup streams": (({}, None, "s", 5), lambda r, v: r.xreadgroup(*READER, v)),
    "xreadgroup group": (NAMES, lambda r, v: r.xreadgroup(v, "c", {"s": ">"})),
    "xgroup_create id": (IDS, lambda r, v: r.xgroup_create("s", "h", v)),
    "xgroup_create entries_read": (NUMBERS, lambda r, v: r.xgroup_create("s", "h", entries_read=v)),
    "xgroup_create mkstream": (FLAGS, lambda r, v: r.xgroup_create("new", "h", mkstream=v)),
    "xgroup_setid id": (IDS, lambda r, v: r.xgroup_setid(*GROUP, v)),
    "xgroup_setid entries_read": (
        NUMBERS,
        lambda r, v: r.xgroup_setid(*GROUP, "5", entries_read=v),
    ),
    "xgroup_createconsumer": (NAMES, lambda r, v: r.xgroup_createconsumer(*GROUP, v)),
    "xgroup_delconsumer": (NAMES, lambda r, v: r.xgroup_delconsumer(*GROUP, v)),
    "xgroup_destroy": (NAMES, lambda r, v: r.xgroup_destroy("s", v)),
    "xpending_range min": (IDS, lambda r, v: ids_of(r.xpending_range(*GROUP, v, "+", 5))),
    "xpending_range max": (IDS, lambda r, v: ids_of(r.xpending_range(*GROUP, "-", v, 5))),
    "xpending_range count": (
        [one for one in NOT_DROPPED if not isinstance(one, bytearray)],
        lambda r, v: ids_of(r.xpending_range(*GROUP, "-", "+", v)),
    ),
    "xpending_range idle": (
        NOT_DROPPED,
        lambda r, v: done(r.xpending_range(*GROUP, "-", "+", 5, idle=v)),
    ),
    "xpending_range of nothing": (
        (None, 5, -1, True),
        lambda r, v: r.xpending_range(*GROUP, None, None, None, idle=v),
    ),
    "xclaim idle": (NUMBERS, lambda r, v: done(r.xclaim(*GROUP, "d", v, ["5-0"]))),
    "xclaim message_ids": (
        (None, [], (), "5-0", {"5-0"}, ["5-0"], ("5-0", 5), [None], ["x"], [b"5-0", "9-9"]),
        lambda r, v: r.xclaim(*GROUP, "d", 0, v),
    ),
    "xclaim idle option": (NUMBERS, lambda r, v: r.xclaim(*GROUP, "d", 0, ["5-0"], idle=v)),
    "xclaim time": (NUMBERS, lambda r, v: r.xclaim(*GROUP, "d", 0, ["5-0"], time=v)),
    "xclaim retrycount": (NUMBERS, lambda r, v: r.xclaim(*GROUP, "d", 0, ["5-0"], retrycount=v)),
    "xclaim force": (FLAGS, lambda r, v: r.xclaim(*GROUP, "d", 0, ["7-0"], force=v)),
    "xclaim justid": (FLAGS, lambda r, v: r.xclaim(*GROUP, "d", 0, ["5-0"], justid=v)),
    "xautoclaim idle": (NUMBERS, lambda r, v: done(r.xautoclaim(*GROUP, "d", v))),
    "xautoclaim start": (IDS, lambda r, v: r.xautoclaim(*GROUP, "d", 0, v)),
    "xautoclaim count": (NOT_DROPPED, lambda r, v: r.xautoclaim(*GROUP, "d", 0, count=v)),
    "xautoclaim justid": (FLAGS, lambda r, v: r.xautoclaim(*GROUP, "d", 0, justid=v)),
    "xinfo_stream": (NAMES, lambda r, v: r.xinfo_stream(v)["length"]),
    "xinfo_groups": (NAMES, lambda r, v: r.xinfo_groups(v)),
    "delete": (NAMES, lambda r, v: r.delete(v)),
    "delete of nothing": ((0,), lambda r, v: r.delete()),
    "unlink of nothing": ((0,), lambda r, v: r.unlink()),
    "exists of nothing": ((0,), lambda r, v: r.exists()),
    "rename": (NAMES, lambda r, v: r.rename("s", v)),
    "renamenx": (NAMES, lambda r, v: r.renamenx("none", v)),
}
# A server of 7.0 does not know the commands; these answers are those of redis-py itself.
CLIENT_ONLY: dict[str, tuple[Sequence[Any], Call]] = {
    "xadd ref_policy": (POLICIES, lambda r, v: r.xadd("s", FIELDS, "9-9", ref_policy=v)),
    "xtrim ref_policy": (POLICIES, lambda r, v: r.xtrim("s", maxlen=9, ref_policy=v)),
    "xackdel ref_policy": (POLICIES, lambda r, v: r.xackdel(*GROUP, 5, ref_policy=v)),
    "xdelex ref_policy": (POLICIES, lambda r, v: r.xdelex("s", 5, ref_policy=v)),
    "xackdel of nothing": ((0,), lambda r, v: r.xackdel(*GROUP)),
    "xdelex of nothing": ((0,), lambda r, v: r.xdelex("s")),
    "xnack of nothing": ((0,), lambda r, v: r.xnack(*GROUP, "FAIL")),
    "xnack mode": (("FAIL", "fail", None, 1), lambda r, v: r.xnack(*GROUP, v, 5)),
    "xnack retrycount": (
        (None, 0, 1, -1, 5),
        lambda r, v: r.xnack(*GROUP, "FAIL", 5, retrycount=v),
    ),
    "xnack force": (FLAGS, lambda r, v: r.xnack(*GROUP, "FAIL", 5, force=v)),
    "xread max_count": (NUMBERS, lambda r, v: r.xread({"s": 0}, count=2, max_count=v)),
    "xread max_size": (NUMBERS, lambda r, v: r.xread({"s": 0}, max_size=v)),
    "xreadgroup max_count": (NUMBERS, lambda r, v: r.xreadgroup(*READER, {"s": 0}, max_count=v)),
    "xreadgroup claim": (
        NUMBERS,
        lambda r, v: r.xreadgroup(*READER, {"s": ">"}, claim_min_idle_time=v),
    ),
    "xadd idmp": (
        (("p",), ["p", "i"], "pi", ("p", None), (None, "i"), ("p", "i")),
        lambda r, v: done(r.xadd("s", FIELDS, idmp=v)),
    ),
    "xadd idmp and id": (("*", "9-9", "9-*"), lambda r, v: r.xadd("s", FIELDS, v, idmp=("p", "i"))),
    "xadd both": ((None, "p"), lambda r, v: r.xadd("s", FIELDS, idmp=("p", "i"), idmpauto=v)),
    "xcfgset": (
        [one for one in NUMBERS if not isinstance(one, int) or one <= 300],
        lambda r, v: r.xcfgset("s", v),
    ),
}


def done(result: Any) -> None:
    """Drop a result that depends on the time."""


def ids_of(rows: list[dict[str, Any]]) -> list[Any]:
    """Return what rows of XPENDING say, without how long ago that was."""
    return [(row["message_id"], row["consumer"], row["times_delivered"]) for row in rows]


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with running_redis() as server:
        socket = server._connection.path
        with redis.Redis(unix_socket_path=socket, protocol=2) as client:
            yield client


def fill(target: Any) -> None:
    """Make a stream with a group that has one entry pending, and one to read."""
    target.xadd("s", {"a": "1"}, "5-0")
    target.xgroup_create("s", "g", "0")
    target.xreadgroup("g", "c", {"s": ">"})
    target.xadd("s", {"b": "2"}, "7-0")


SITUATIONS: dict[str, Callable[[Any], None]] = {"missing": lambda target: None, "group": fill}


@pytest.fixture(scope="module", params=slow_but(["none", "commit"], "commit"))
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A store that all tests use, in either sync mode."""
    with streamkeep.open(tmp_path_factory.mktemp("api") / "store", sync=request.param) as store:
        yield store


def begin(target: Any, situation: str) -> None:
    """Make the stream `s` as a situation has it, and no other."""
    names = target.keys()
    if names:
        target.delete(*names)
    SITUATIONS[situation](target)


def differences(
    client: redis.Redis, store: Any, name: str, situation: str
) -> Iterator[tuple[Any, Outcome, Outcome]]:
    """Yield each value of a call that ends differently: the value, and both outcomes."""
    values, call = (CALLS | CLIENT_ONLY)[name]
    for value in values:
        outcomes = []
        for target, run in ((client, on_redis), (store, on_store)):
            begin(target, situation)
            outcomes.append(run(target, call, value))
        theirs, ours = outcomes
        if name in CLIENT_ONLY:  # an older server refuses what a newer one takes
            alike = (theirs.kind == "client") == (ours.kind == "client")
        else:
            alike = theirs.kind == ours.kind and (theirs.kind == "client" or theirs == ours)
        if not alike:
            yield value, theirs, ours


@pytest.mark.parametrize(("name", "situation"), pairs_of([*CALLS, *CLIENT_ONLY], SITUATIONS))
def test_a_call_ends_as_with_redis_py(
    client: redis.Redis, store: Any, name: str, situation: str
) -> None:
    assert list(differences(client, store, name, situation)) == []


def sent(client: redis.Redis, *words: Any) -> Any:
    """Return redis-py's result of a command given as words."""
    run: Callable[..., Any] = client.execute_command
    return run(*words)


TWICE = [
    [("s", "0"), ("s", "5-0")],
    [("s", "0"), ("none", "0"), ("s", "0")],
    [("s", "$"), ("s", "0"), ("s", "$")],
]


@pytest.mark.parametrize("streams", TWICE)
@pytest.mark.parametrize("count", [None, 1])
def test_xread_answers_a_stream_as_often_as_it_is_named(
    client: redis.Redis, store: Any, streams: list[tuple[str, str]], count: int | None
) -> None:
    """Which redis-py cannot ask for: its argument is a dict."""
    begin(client, "group")
    begin(store, "group")
    words = [name for name, _ in streams] + [one for _, one in streams]
    options = [] if count is None else ["COUNT", count]
    theirs = sent(client, "XREAD", *options, "STREAMS", *words)
    assert theirs == store.xread(streams, count=count) == store.xread(tuple(streams), count=count)


@pytest.mark.parametrize("ids", [(">", ">"), ("0", "0"), (">", "0"), ("0", ">"), ("5-0", ">")])
@pytest.mark.parametrize("noack", [False, True])
def test_xreadgroup_answers_a_stream_that_is_named_twice(
    client: redis.Redis, store: Any, ids: tuple[str, str], noack: bool
) -> None:
    begin(client, "group")
    begin(store, "group")
    for _ in range(2):
        options = ["NOACK"] if noack else []
        words = ["GROUP", "g", "c", "COUNT", 1, *options, "STREAMS", "s", "s", *ids]
        theirs = sent(client, "XREADGROUP", *words)
        ours = store.xreadgroup("g", "c", [("s", one) for one in ids], count=1, noack=noack)
        assert theirs == ours
        assert ids_of(client.xpending_range("s", "g", "-", "+", 9)) == ids_of(
            store.xpending_range("s", "g", "-", "+", 9)
        )
        assert client.xinfo_groups("s")[0]["lag"] == store.xinfo_groups("s")[0]["lag"]
