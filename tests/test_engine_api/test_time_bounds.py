"""Times bound ranges wherever IDs do, and errors name the parameter and the value."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from cli_runner import lines, run
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock, clock_replaced
from streamkeep.format.core.errors import ArgumentError, InvalidIdError

DAY = 86_400_000
NOON = 1_761_048_000_000  # 2025-10-21T12:00:00Z
IDS = [NOON - DAY, NOON, NOON + 1, NOON + DAY]
TODAY = dt.date(2025, 10, 21)
AT_NOON = dt.datetime(2025, 10, 21, 12, tzinfo=dt.UTC)


@pytest.fixture
def filled(open_store: Callable[..., Store]) -> Store:
    store = open_store(clock=ManualClock(NOON + DAY))
    store.xadd_many("s", [{"n": "1"}] * 4, [f"{ms}-0" for ms in IDS])
    return store


def ms_of(entries: Any) -> list[int]:
    return [int(entry.id.split(b"-")[0]) for entry in entries]


CALLS: dict[str, Callable[[Any, Any], list[int]]] = {
    "xrange": lambda one, at: ms_of(one.xrange("s", at)),
    "xrevrange": lambda one, at: ms_of(one.xrevrange("s", min=at))[::-1],
    "scan": lambda one, at: [entry.stream_id.ms for entry in one.scan("s", at)],
    "history": lambda one, at: ms_of(one.xrange("s", at, history=True)),
}


@pytest.mark.parametrize("name", CALLS)
def test_times_begin_a_range(filled: Store, name: str) -> None:
    call = CALLS[name]
    for start in (AT_NOON, "2025-10-21T12:00", "-24h", "-1d", b"2025-10-21T14:00+02:00"):
        assert call(filled, start) == IDS[1:]
    assert call(filled, TODAY) == IDS[1:]
    assert call(filled, "(2025-10-21T12:00Z") == IDS[2:]
    with filled.snapshot() as snapshot, filled.transaction() as txn:
        assert call(snapshot, AT_NOON) == call(txn, "-1d") == IDS[1:]


def test_times_end_a_range(filled: Store) -> None:
    assert ms_of(filled.xrange("s", "-", AT_NOON)) == IDS[:2]
    assert ms_of(filled.xrange("s", TODAY, "(2025-10-22")) == IDS[1:3]
    assert ms_of(filled.xrevrange("s", "-24h")) == IDS[1::-1]


def test_times_are_where_readers_begin(filled: Store) -> None:
    assert ms_of(filled.follow("s", AT_NOON, block=None)) == IDS[1:]
    ((_, entries),) = filled.xread({"s": "-1d"})
    assert ms_of(entries) == IDS[1:]
    filled.xgroup_create("s", "g", "2025-10-22")
    ((_, entries),) = filled.xreadgroup("g", "c", {"s": ">"})
    assert ms_of(entries) == IDS[3:]
    assert len(filled.xpending_range("s", "g", TODAY, "+", 10)) == 1
    assert not filled.xpending_range("s", "g", "-", TODAY, 10)


def test_times_say_what_stays(filled: Store) -> None:
    assert filled.xtrim("s", minid="-24h", approximate=False) == 1
    assert filled.trim_range("s", AT_NOON, AT_NOON) == 1
    filled.xadd("s", {"n": "2"}, minid=dt.date(2025, 10, 22), approximate=False)
    assert ms_of(filled.xrange("s"))[0] == IDS[3]
    assert filled.archived_segments("s", start=TODAY, end="-1h") == []
    assert filled.drop_segments("s", before=TODAY) == []


def test_errors_name_parameter_and_value(filled: Store) -> None:
    naive = dt.datetime(2025, 10, 21)
    with pytest.raises(ArgumentError, match=r"min is datetime\.datetime\(2025, 10.*has no zone"):
        filled.xrange("s", naive)
    with pytest.raises(ArgumentError, match="end is '2025-02-30'"):
        filled.scan("s", "-", "2025-02-30")
    with pytest.raises(ArgumentError, match="minid is '-2x'"):
        filled.xtrim("s", minid="-2x")
    with pytest.raises(ArgumentError, match=r"the ID of 's' is datetime"):
        filled.xread({"s": naive})
    with pytest.raises(InvalidIdError) as caught:
        filled.xrange("s", max="yesterday")
    assert "max is 'yesterday'; it may also be a time such as" in caught.value.__notes__[-1]


def test_ages_are_arguments_of_the_command_line(filled: Store) -> None:
    path = filled.path
    with clock_replaced(ManualClock(NOON + DAY)):
        found = [line.split()[0] for line in lines("range", path, "s", "-1d", "(-0.5d")]
        assert found == [f"{ms}-0" for ms in IDS[1:3]]
        assert "not a duration such as" in run("range", path, "s", "-2x", status=2).stderr
