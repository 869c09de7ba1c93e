"""MAXSIZE of XREADGROUP over several streams, as Redis 8.10.2 was seen to answer.

Each entry below has 31 bytes in Redis's protocol, the head of a stream 11, the end of its list 4.
"""

from __future__ import annotations

from typing import Any

import pytest

from streamkeep.engine.api.store import Store

Position = dict[str, str]


@pytest.fixture
def filled(store: Store[Any]) -> Store[Any]:
    """Three streams of five entries, with a group each."""
    for name in "abe":
        for number in range(1, 6):
            store.xadd(name, {"f": "v"}, id=f"{number}-1")
        store.xgroup_create(name, "g", 0)
    return store


def read(store: Store[Any], streams: Position, size: int, count: int | None = None) -> Any:
    """Return how many entries of each stream came."""
    found = store.xreadgroup("g", "c", streams, max_size=size, count=count)
    return {name.decode(): len(entries) for name, entries in found}


def consumers(store: Store[Any], name: str) -> int:
    return len(store.xinfo_consumers(name, "g"))


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (57, 1), (58, 2), (88, 2), (89, 3)])
def test_an_empty_history_leaves_room_for_an_entry(
    filled: Store[Any], size: int, expected: int
) -> None:
    assert read(filled, {"a": "0", "b": ">"}, size) == {"a": 0, "b": expected}


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (72, 1), (73, 2), (103, 2), (104, 3)])
def test_two_empty_histories_leave_room_for_an_entry(
    filled: Store[Any], size: int, expected: int
) -> None:
    assert read(filled, {"a": "0", "e": "0", "b": ">"}, size) == {"a": 0, "e": 0, "b": expected}


@pytest.mark.parametrize("position", [">", "0"])
def test_no_consumer_comes_to_be_where_the_size_was_used_up_before(
    filled: Store[Any], position: str
) -> None:
    assert read(filled, {"a": ">", "b": position}, 77, 2) == {"a": 2}
    assert (consumers(filled, "a"), consumers(filled, "b")) == (1, 0)
    filled.xgroup_setid("a", "g", 0)
    assert read(filled, {"a": ">", "b": position}, 78, 2) == {"a": 2, "b": 0}
    assert consumers(filled, "b") == 1


def test_a_stream_whose_head_uses_up_the_size_is_there_without_entries(
    filled: Store[Any],
) -> None:
    assert read(filled, {"a": ">", "b": ">"}, 78, 2) == {"a": 2, "b": 0}
    filled.xgroup_setid("a", "g", 0)
    assert read(filled, {"a": ">", "b": ">"}, 89, 2) == {"a": 2, "b": 1}


def test_a_message_that_is_recorded_counts_as_added(store: Store[Any]) -> None:
    added = store.xadd("s", {"f": "v"})  # now: of an old entry, a message has expired
    for _ in range(2):
        assert store.xidmprecord("s", "p", "i", added) == b"OK"
        info = store.xinfo_stream("s")
        assert (info["iids-tracked"], info["iids-added"], info["iids-duplicates"]) == (1, 1, 0)
