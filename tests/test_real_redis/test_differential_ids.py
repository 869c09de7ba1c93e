"""Text that may be an ID, and patterns of names: streamkeep reads them as a real server does."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model import MAX, id_text
from model.profile import configured
from model.steps import Failed
from real_redis.compare import begin
from real_redis.server import Argument, RealRedis, running_redis
from stores import open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError

pytestmark = pytest.mark.redis

# The stream that ranges are asked of: IDs at every border that a parser may miss by one.
BORDERS = [0, 1, 2, 4, 5, 6, 9, 10, 55, 127, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, MAX - 1, MAX]
SPREAD = sorted({(ms, seq) for ms in BORDERS for seq in BORDERS} - {(0, 0)})

TABLE = [
    *[b"5-1", b"5", b"5-0", b"0", b"0-0", b"0-1", b"00", b"05-01", b"01-002"],
    *[b"+5-1", b"5-+1", b"++5", b"+", b"+2-1", b"5-+7", b"+-1", b"5-+"],
    *[b" 5-1", b"5 -1", b"5- 1", b"5-1 ", b"\t5-\n1", b"\v5-\f\r1", b"\xa05-1", b" ", b"5- "],
    *[b"", b"-", b"5-", b"-5", b"--", b"5--1", b"5--0", b"5- -1", b"5- -0", b"-0", b"5-1-2"],
    *[b"5--9223372036854775808", b"5--9223372036854775809", b"5--18446744073709551615"],
    *[b"5- -18446744073709551615", b"5- -18446744073709551616", b"5--18446744073709551616"],
    *[b"0x5", b"5x", b"x", b"5-x", b"5.0", b"1e3", b"5-1x", b"\xb5", b"\xd9\xa5"],
    *[b"(", b"(-", b"(+", b"((5", b"(5", b"(5-1", b"(0-0", b"(0", b"( 5", b"(5-", b"()", b"(\x00"],
    *[b"5\x00", b"5-1\x00", b"5\x00-1", b"\x005", b"-\x00x", b"+\x00x", b"(5\x00x", b"(-\x00"],
    *[b"*", b"5-*", b"*-1", b"*-*", b"5-**", b"5- *", b"5-*\x00x", b"*\x00x", b"(*", b"5*"],
    *[b"$", b">", b"$\x00x", b">\x00x", b"$5", b"> "],
    *[b"%d" % (MAX - 1), b"%d" % MAX, b"%d" % (MAX + 1), b"%d-%d" % (MAX, MAX), b"0%d" % MAX],
    *[b"5-%d" % (MAX + 1), b"%d-0" % (1 << 63), b"%d" % ((1 << 63) - 1), b"(%d-%d" % (MAX, MAX)],
    *[b"0" * size + b"5" for size in (19, 20, 21, 125, 126, 127, 128)],
    *[b"5-" + b"0" * size + b"1" for size in (123, 124, 125, 126)],
    *[b"(" + b"0" * size + b"5" for size in (125, 126, 127)],
    *[b" " * size + b"5" for size in (126, 127)],
    *[b"5\x00" + b"x" * size for size in (124, 125, 126)],
    *[word + b"\x00" + b"x" * 200 for word in (b"*", b"$", b">", b"-", b"+")],
]

PARTS = st.sampled_from(
    [
        *[b"-", b"-", b"-", b"0", b"1", b"5", b"(", b"+", b" ", b"\t", b"\n", b"\x00"],
        *[b"*", b"$", b">", b"x", b"\xff", b"00", b"%d" % MAX, b"%d" % (MAX + 1)],
        *[b"%d" % (1 << 63), b"%d" % ((1 << 63) - 1), b"0" * 60, b"0" * 120, b" " * 100],
    ]
)
# A server knows no ages: the methods of a store take "-5h" where it says that the ID is invalid.
AGE = re.compile(rb"\(?-[0-9.]+[a-zA-Z]")
TEXTS = st.one_of(
    st.lists(PARTS, max_size=6).map(b"".join),
    st.tuples(st.sampled_from(TABLE), PARTS, st.integers(0, 130)).map(
        lambda three: three[0][: three[2]] + three[1] + three[0][three[2] :]
    ),
).filter(lambda text: not AGE.match(text))


class LogPosition(NamedTuple):
    """A place where a command takes an ID."""

    name: str
    words: Callable[[bytes], list[Argument]]
    call: Callable[[Store, bytes], Any]


PLACES = [
    LogPosition(
        "XADD",
        lambda text: [b"XADD", b"new", text, b"f", b"v"],
        lambda store, text: store.xadd("new", {"f": "v"}, id=text),
    ),
    LogPosition(
        "XSETID",
        lambda text: [b"XSETID", b"empty", text],
        lambda store, text: store.xsetid("empty", text),
    ),
    LogPosition(
        "XRANGE start",
        lambda text: [b"XRANGE", b"spread", text, b"+"],
        lambda store, text: store.xrange("spread", min=text),
    ),
    LogPosition(
        "XRANGE end",
        lambda text: [b"XRANGE", b"spread", b"-", text],
        lambda store, text: store.xrange("spread", max=text),
    ),
    LogPosition(
        "XREVRANGE",
        lambda text: [b"XREVRANGE", b"spread", text, text],
        lambda store, text: store.xrevrange("spread", max=text, min=text),
    ),
    LogPosition(
        "XREAD",
        lambda text: [b"XREAD", b"STREAMS", b"spread", text],
        lambda store, text: store.xread({"spread": text}),
    ),
    LogPosition(
        "XDEL",
        lambda text: [b"XDEL", b"spread", b"3-3", text],
        lambda store, text: store.xdel("spread", "3-3", text),
    ),
    LogPosition(
        "XTRIM",
        lambda text: [b"XTRIM", b"missing", b"MINID", text],
        lambda store, text: store.xtrim("missing", minid=text, approximate=False),
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    """A server with a stream whose IDs are spread over the borders."""
    with running_redis() as server:
        begin(server, 4096, 100)
        fill(server)
        yield server


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """A store with the same stream."""
    with (
        tempfile.TemporaryDirectory(prefix="streamkeep-") as folder,
        open_at(folder + "/store", clock=ManualClock(0)) as store,
    ):
        store.xadd_many("spread", [{"f": "v"}] * len(SPREAD), ids=map(id_text, SPREAD))
        yield store


def ids_of(answer: Any) -> Any:
    """Return the IDs of an answer, which tell enough, for streams differ in nothing else."""
    if isinstance(answer, list):
        return [ids_of(item) for item in answer]
    if isinstance(answer, tuple):
        return answer[0]
    return answer


def server_answer(server: RealRedis, place: LogPosition, text: bytes) -> Any:
    answer = server.call(*place.words(text))
    if isinstance(answer, Failed):
        return answer
    if place.name == "XREAD":
        return [[key, [entry[0] for entry in entries]] for key, entries in answer or []]
    return [entry[0] for entry in answer] if isinstance(answer, list) else answer


def store_answer(store: Store, place: LogPosition, text: bytes) -> Any:
    try:
        return ids_of(place.call(store, text))
    except CommandError as error:
        return Failed(error.redis_error)


def both_answers(
    server: RealRedis, store: Store, place: LogPosition, text: bytes
) -> tuple[Any, Any]:
    """Return what streamkeep and the server make of a text in one place."""
    visible = text.split(b"\0")[0]
    if place.name == "XREAD" and visible == b"+":
        return None, None  # 7.0: XREAD does not know `+`
    theirs = server_answer(server, place, text)
    ours = store_answer(store, place, text)
    if place.name == "XADD":
        assert server.call(b"DEL", b"new") == int(not isinstance(theirs, Failed))
        store.delete("new")
        if visible == b"*":  # their time is not ours
            return type(ours), type(theirs)
    if place.name == "XSETID" and theirs == b"OK" and ours is True:
        theirs = server.call(b"XINFO", b"STREAM", b"empty")[7]
        ours = store.xinfo_stream("empty")["last-generated-id"]
    if place.name == "XDEL":
        restore(server, store)
    return ours, theirs


def restore(server: RealRedis, store: Store) -> None:
    """Put back into the streams what was deleted."""
    if server.call(b"XLEN", b"spread") != len(SPREAD):
        server.call(b"DEL", b"spread")
        fill(server)
    if store.xlen("spread") != len(SPREAD):
        store.delete("spread")
        store.xadd_many("spread", [{"f": "v"}] * len(SPREAD), ids=map(id_text, SPREAD))


def fill(server: RealRedis) -> None:
    server.call_all([[b"XADD", b"spread", id_text(one), b"f", b"v"] for one in SPREAD])


@pytest.fixture(autouse=True)
def empty_stream(server: RealRedis, store: Store) -> None:
    """A stream without entries, whose last ID may be set to anything."""
    for step in ((b"XADD", b"empty", b"0-1", b"f", b"v"), (b"XTRIM", b"empty", b"MAXLEN", 0)):
        server.call(*step)
    if not store.exists("empty"):
        store.xadd("empty", {"f": "v"}, id="0-1")
        store.xtrim("empty", maxlen=0)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_texts_are_the_same_ids_or_the_same_errors(
    server: RealRedis, store: Store, place: LogPosition
) -> None:
    answers = {text: both_answers(server, store, place, text) for text in TABLE}
    assert {text: both for text, both in answers.items() if both[0] != both[1]} == {}


@configured(400)
@given(place=st.sampled_from(PLACES), text=TEXTS)
def test_any_text_is_the_same_id_or_the_same_error(
    server: RealRedis, store: Store, place: LogPosition, text: bytes
) -> None:
    ours, theirs = both_answers(server, store, place, text)
    assert ours == theirs


NAMES = [
    *b"a b ab abc a-c ] [ \\ ^ * ? - \xff".split(b" "),
    *(b"a\n", b"", b"aaaaabaaaac", b"abcabcabc", b"a" * 1100),
]
PATTERN_PARTS = st.sampled_from(
    [b"a", b"b", b"c", b"?", b"[", b"]", b"^", b"-", b"\\", b"\xff", b"\n", b"[a-c]", b"[^a]"]
    + [b"*"] * 5
)


@configured(400)
@given(pattern=st.lists(PATTERN_PARTS, min_size=1, max_size=9).map(b"".join))
@example(b"[a-]")
@example(b"[\\a-c]")
@example(b"[c-a]")
@example(b"[a")
@example(b"[]")
@example(b"[^]")
@example(b"a\\")
@example(b"[\\]]")
@example(b"*")
@example(b"**")
@example(b"*a" * 1000)
@example(b"*a" * 1000 + b"*")
@example(b"*a" * 1001)
@example(b"*a" * 1001 + b"*")
def test_a_pattern_matches_the_same_names(server: RealRedis, store: Store, pattern: bytes) -> None:
    named = {*NAMES, b"spread", b"empty"}
    for name in named - {b"spread", b"empty"}:
        if not store.exists(name):
            store.xadd(name, {"f": "v"})
            server.call(b"XADD", name, b"*", b"f", b"v")
    theirs = sorted(server.call(b"KEYS", pattern))
    assert store.keys(pattern) == theirs
    assert list(store.scan_iter(match=pattern)) == theirs
