"""What programs written for redis-py rely on: errors by other names, flags, numbers as text."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

import streamkeep
from blocked import tickets
from patience import PATIENCE_S, thread_of, wait_until
from streamkeep.engine.api.store import Store

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "redis.md"
ROW = re.compile(r"^\| `redis\.(\w+)` \| `(\w+)` \|", re.MULTILINE)


def table() -> dict[type[Exception], type[Exception]]:
    """Return what docs/reference/redis.md has our class of each class of redis-py to be."""
    return {
        getattr(redis, theirs): getattr(streamkeep, ours)
        for theirs, ours in ROW.findall(DOCS.read_text())
    }


def test_each_error_that_streams_meet_in_redis_py_has_a_name() -> None:
    met = {"RedisError", "DataError", "ResponseError", "ConnectionError", "BusyLoadingError"}
    met |= {"OutOfMemoryError", "ReadOnlyError"}
    assert {kind.__name__ for kind in table()} == met


def test_errors_are_kinds_of_each_other_as_in_redis_py() -> None:
    """Except for a full disk and a read-only store, where no command is at fault."""
    apart = (redis.OutOfMemoryError, redis.ReadOnlyError)
    names = table()
    for one, ours in names.items():
        for other, our_other in names.items():
            if one in apart and other is redis.ResponseError:
                continue
            if issubclass(one, other):
                assert issubclass(ours, our_other), (one, other)
            elif not issubclass(other, one) and other not in apart and one not in apart:
                assert not issubclass(ours, our_other), (one, other)


def test_what_is_wrong_with_the_call_is_no_broken_rule(store: Store) -> None:
    with pytest.raises(ValueError, match="count must be a positive integer, not 0") as caught:
        store.xrange("s", count=0)
    assert isinstance(caught.value, streamkeep.ArgumentError)
    assert not isinstance(caught.value, streamkeep.CommandError)


def test_except_clauses_run_in_the_order_in_which_they_are_written(store: Store) -> None:
    """As those of redis-py do: DataError and ResponseError are siblings."""

    def kind(call: Any) -> str:
        try:
            call()
        except streamkeep.CommandError:
            return "server"
        except streamkeep.ArgumentError:
            return "client"
        return "none"

    assert kind(lambda: store.xread({})) == "client"
    assert kind(lambda: store.xread({"s": ">"})) == "server"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda s: s.xtrim("s", maxlen="many"), "maxlen is 'many'"),
        (lambda s: s.xtrim("s", maxlen=5, limit=-3), "limit is -3"),
        (lambda s: s.xread({"s": 0}, block=1 << 63), "block is 9223372036854775808"),
        (lambda s: s.xrange("s", "5-x"), "got b'5-x', expected ms-seq or ms"),
        (lambda s: s.xadd("s", {"f": 1}, "5-x"), "got b'5-x', expected ms-seq or ms"),
        (lambda s: s.xrange("s", "(" + "9" * 200), "99'..., expected ms-seq"),
        (lambda s: s.xautoclaim("s", "g", "c", "1.5x", "0"), None),
    ],
)
def test_an_error_in_the_words_of_the_server_names_the_argument_in_a_note(
    store: Store, call: Any, named: str | None
) -> None:
    error: Exception
    with pytest.raises((streamkeep.CommandError, streamkeep.ArgumentError)) as caught:
        call(store)
    error = caught.value
    if named is None:
        assert isinstance(error, streamkeep.ArgumentError)
        assert "min_idle_time must be a nonnegative integer, not '1.5x'" in str(error)
    else:
        assert isinstance(error, streamkeep.CommandError)
        assert named in "".join(error.__notes__)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.xadd("s", {"size": None}), "the value of field 'size' is None"),
        (lambda s: s.xadd("s", {None: 1}), "a field is None"),
        (lambda s: s.xlen(None), "name is None"),
        (lambda s: s.xgroup_create("s", True), "groupname is True"),
        (lambda s: s.xread({"s": None}), "an ID is None"),
        (lambda s: s.xread("s"), "not 's'"),
        (lambda s: s.xread([("s", 0), "t"]), "(name, ID) pairs, not 't'"),
        (lambda s: s.xadd("s", {"f": 1}, idmp="p"), "not 'p'"),
        (lambda s: s.xtrim("s", maxlen=1, ref_policy="ALL"), "not 'ALL'"),
        (lambda s: s.xadd("s", "x" * 10_000), "not 'xxx"),
        (lambda s: s.xadd("s", []), "non-empty dict, or (field, value) pairs"),
        (lambda s: s.xadd("s", [("f", "v", "x")]), "pairs"),
        (lambda s: s.xadd_many("s", [{"f": 1}, {"f": 2}], ids=["1-1"]), "2 entries, but 1 ID"),
        (lambda s: s.xadd_many("s", []), "at least one entry"),
    ],
)
def test_an_argument_that_is_refused_is_named(store: Store, call: Any, said: str) -> None:
    with pytest.raises(streamkeep.ArgumentError) as caught:
        call(store)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


def test_flags_may_be_anything_that_is_true_or_false(store: Any) -> None:
    """Compiled code takes nothing but a bool for a bool."""
    flag: Any = 1
    nothing: Any = ""
    assert store.xadd("new", {"f": 1}, nomkstream=flag) is None
    assert store.xadd("s", {"f": 1}, "5-0", maxlen=9, approximate=flag, nomkstream=nothing)
    assert store.xadd("s", [("f", 1)], "6-0", nomkstream=flag, minid=1, approximate=nothing)
    assert store.xtrim("s", maxlen=9, approximate=nothing) == 0
    assert [entry.id for entry in store.scan("s", reverse=flag)] == [b"6-0", b"5-0"]
    assert len(store.xrange("s", history=flag)) == 2
    assert store.xgroup_create("s", "g", "0", mkstream=flag)
    assert store.xreadgroup("g", "c", {"s": ">"}, count=1, noack=flag)[0][1][0].id == b"5-0"
    assert store.xnack("s", "g", "FAIL", "5-0", force=flag) == 1
    assert store.xautoclaim("s", "g", "c", 0, justid=flag) == [b"5-0"]
    assert store.xreadgroup("g", "c", {"s": ">"}, noack=nothing)[0][1][0].id == b"6-0"
    assert next(store.consume("s", "g", "c", noack=flag)).id == b"5-0"
    assert next(store.follow("s", "0", history=flag)).id == b"5-0"
    assert store.xinfo_stream("s", full=flag)["length"] == 2
    assert store.archive(wait=flag).entries == 0
    with store.pipeline(transaction=flag) as pipeline:
        pipeline.xnack("s", "g", "FAIL", "5-0", force=flag).xreadgroup("g", "c", {"s": 0}, noack=1)
        assert pipeline.execute()[0] == 1
    with pytest.raises(streamkeep.ArgumentError, match="force must be a boolean, not 1"):
        store.xclaim("s", "g", "c", 0, ["5-0"], force=flag)  # redis-py, too


@pytest.mark.parametrize("text", ["2", b"2"])
def test_numbers_may_be_text_where_redis_py_sends_them_on(store: Any, text: Any) -> None:
    for seq in range(5):
        store.xadd("s", {"f": seq}, f"5-{seq}")
    assert store.xgroup_create("s", "g", "0", entries_read=text)
    assert store.xinfo_groups("s")[0]["entries-read"] == 2
    assert store.xgroup_setid("s", "g", "0", entries_read=text)
    store.xreadgroup("g", "c", {"s": ">"})
    assert len(store.xpending_range("s", "g", "-", "+", text, idle=b"0")) == 2
    assert len(store.xautoclaim("s", "g", "d", "0", count=text)[1]) == 2
    assert store.xnack("s", "g", "FAIL", "5-0", retrycount=text) == 1
    assert store.xtrim("s", maxlen=text, approximate=False) == 3
    assert store.xadd("s", {"f": 1}, "6-0", maxlen=9, limit=text) == b"6-0"
    assert store.xsetid("s", "6-0", entries_added="9")
    assert len(store.xinfo_stream("s", full=True, count=text)["entries"]) == 2


def test_xautoclaim_gives_its_whole_reply_where_it_is_asked_for(store: Store) -> None:
    for ms in range(1, 5):
        store.xadd("s", {"f": ms}, f"{ms}-0")
    store.xgroup_create("s", "g", "0")
    store.xreadgroup("g", "c", {"s": ">"})
    store.xdel("s", "2-0")
    reply = [b"4-0", [b"1-0", b"3-0"], [b"2-0"]]
    assert store.xautoclaim("s", "g", "d", 0, count=3, justid=True, whole=True) == reply
    assert store.xautoclaim("s", "g", "d", 0, count=3, justid=True) == [b"1-0", b"3-0", b"4-0"]
    cursor, entries, gone = store.xautoclaim("s", "g", "d", 0, count=1, whole=True)
    assert (cursor, [entry.id for entry in entries], gone) == (b"3-0", [b"1-0"], [])


def adding_to_a_reader(store: Store, entry_id: str, number: int) -> threading.Thread:
    """Start a thread that adds an entry as soon as a call waits."""

    def add() -> None:
        wait_until(lambda: tickets(store) > 0)
        store.xadd("s", {"f": number}, entry_id)

    thread = thread_of(add)
    return thread


def test_a_stream_may_be_named_twice_while_a_call_waits(store: Store) -> None:
    store.xadd("s", {"f": 1}, "5-0")
    store.xgroup_create("s", "g")
    thread = adding_to_a_reader(store, "6-0", 2)
    found = store.xread([("s", "$"), ("s", "5-0")], block=int(PATIENCE_S * 1000))
    thread.join()
    assert found == [[b"s", [(b"6-0", {b"f": b"2"})]]] * 2
    store.xreadgroup("g", "c", {"s": ">"})
    thread = adding_to_a_reader(store, "7-0", 3)
    found = store.xreadgroup("g", "c", [("s", ">"), ("s", ">")], block=int(PATIENCE_S * 1000))
    thread.join()
    assert found == [[b"s", [(b"7-0", {b"f": b"3"})]]]
    assert store.xpending("s", "g")["pending"] == 2
