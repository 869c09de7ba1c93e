"""Values and times that no call can use, or that bound a range: errors name them."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from cli_runner import lines, run
from conftest import ROOT
from stores import Open
from streamkeep import ArgumentError, Store, jobs, recovery, transfer
from streamkeep.engine.system.clock import ManualClock, clock_replaced
from streamkeep.engine.system.files import path_of
from streamkeep.format.core.errors import InvalidIdError
from streamkeep.format.core.values import as_given, whole

LONE = "a\ud800"
HUGE = pytest.param(10**5000, id="huge")  # Python prints no int of so many digits


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sync", "often"),
        ("interval", 0),
        ("interval", 2**80),
        ("interval", None),
        ("max_readers", 0),
        ("max_readers", 10**9),
        ("max_readers", 1.5),
        ("max_readers", True),
        ("max_store_bytes", 5),
        ("max_store_bytes", 2**80),
        ("max_store_bytes", float("inf")),
        ("max_store_bytes", "1G"),
        ("node_max_bytes", -1),
        ("node_max_bytes", 1.5),
        ("node_max_entries", 1 << 40),
        ("node_max_entries", "10"),
        ("archive_every", 1e308),
        ("archive_every", float("nan")),
        ("archive_every", "5"),
        ("retired_max_bytes", -1),
        ("retired_max_bytes", 5),
        ("trust_owners", None),
        ("trust_owners", b"root"),
        ("trust_owners", ["a\0b"]),
        ("trust_owners", [LONE]),
        ("trust_owners", "no such user"),
        ("trust_owners", True),
        ("group", 2**40),
        ("group", [1]),
        ("group", LONE),
        ("group", "no such group"),
        ("group", "9" * 50),
    ],
)
def test_an_option_that_no_store_can_have_creates_none(
    tmp_path: Path, option: str, value: Any
) -> None:
    with pytest.raises(ArgumentError, match=option):
        streamkeep.open(tmp_path / "store", **{option: value})
    assert not os.listdir(tmp_path)


def test_a_node_needs_one_limit(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"cannot both be 0.*next: give one of them"):
        streamkeep.open(tmp_path / "store", node_max_bytes=0, node_max_entries=0)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("path", [None, 5, b"store", "", "a\0b", LONE, []])
def test_a_path_that_no_file_can_have_is_refused(store: Store, path: Any) -> None:
    def archive() -> object:
        store.xadd("k", {"a": 1})
        store.set_retention("k", archive=True)
        store.xtrim("k", maxlen=0, approximate=False)
        return store.archive(to=path)

    calls: list[Callable[[], object]] = [
        lambda: streamkeep.open(path),
        lambda: list(store.adopt_segments(path)),
        lambda: list(store.export_segments(path)),
        *([] if path is None else [archive]),
        lambda: recovery.ship(store, path),
        lambda: recovery.backup(store, path),
        lambda: recovery.restore(store.path, path),
        lambda: list(recovery.check(path)),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match="path"):
            call()
    assert store.remote_archive() is None


def test_segments_are_not_exported_to_a_file(store: Store, tmp_path: Path) -> None:
    store.set_retention("k", archive=True)
    store.xadd("k", {"a": 1})
    store.xtrim("k", maxlen=0, approximate=False)
    store.archive()
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(streamkeep.StoreError, match=r"file: .*next: "):
        list(store.export_segments(file))
    assert file.read_text() == "mine"


@pytest.mark.parametrize("text", [LONE, HUGE])
def test_what_has_no_form_as_bytes_is_refused_by_name(store: Store, text: Any) -> None:
    store.xgroup_create("k", "g", mkstream=True)
    calls: dict[str, Callable[[], object]] = {
        "name": lambda: store.xadd(text, {"a": 1}),
        "a field": lambda: store.xadd("k", {text: 1}),
        "the value of field 'a'": lambda: store.xadd("k", {"a": text}),
        "an ID": lambda: store.xadd("k", {"a": 1}, id=text),
        "groupname": lambda: store.xgroup_create("k", text),
        "consumername": lambda: store.xgroup_createconsumer("k", "g", text),
        "the value of field 'b' in where": lambda: store.find_remains("k", {"b": text}),
        "space": lambda: store.row_put(text, b"key", b"value"),
    }
    for parameter, call in calls.items():
        with pytest.raises(ArgumentError, match=f"{parameter} is .*next: give it as bytes"):
            call()
    assert store.keys() == [b"k"]
    assert store.xlen("k") == 0


@pytest.mark.parametrize("timeout", [-1, "x", None, float("nan"), float("inf"), HUGE])
def test_an_erasure_that_cannot_wait_deletes_nothing(store: Store, timeout: Any) -> None:
    entry_id = store.xadd("k", {"a": 1})
    with pytest.raises(ArgumentError, match="timeout must be seconds"):
        store.erase("k", entry_id, timeout=timeout)
    assert store.xlen("k") == 1


def test_objects_of_another_kind_are_named(store: Store) -> None:
    calls: dict[str, Any] = {
        "when": lambda one: store.apply_when(lambda txn: [1], one),
        "wake_on": lambda one: store.read_when(lambda view: [1], [one]),
        "from_store": lambda one: store.restore_archive("k", from_store=one),
        "server": lambda one: store.dump("k", one),
        "key": lambda one: store.restore_archive(one),
        "columns": lambda one: store.to_arrow("k", columns=one[0]),
        "a column": lambda one: store.to_arrow("k", columns=[LONE]),
        "types": lambda one: store.to_arrow("k", columns=["a"], types=one),
    }
    for parameter, call in calls.items():
        with pytest.raises(ArgumentError, match=parameter):
            call(["x"])
    assert store.keys() == []


def test_a_message_shows_any_value(tmp_path: Path) -> None:
    assert as_given(10**5000) == "a huge int"
    assert as_given("x" * 100).endswith("...")
    assert path_of(tmp_path, "path") == path_of(str(tmp_path), "path") == tmp_path
    assert path_of("\udcff", "path").name == "\udcff"  # a byte that is not UTF-8, as Python has it
    assert whole(0, "n", 0) == 0
    with pytest.raises(ArgumentError, match=r"n must be a whole number from 0 to 4,6.* not 9223"):
        whole(1 << 63, "n", 0)


def test_durations_are_seconds_texts_or_timedeltas(store: Store) -> None:
    for age in (604_800, "7d", timedelta(days=7)):
        found = store.set_retention("k", max_age=age, archive_max_age=age)
        assert (found.max_age_ms, found.archive_max_age_ms) == (604_800_000, 604_800_000)
    found = store.set_retention("k", max_age=-1)
    assert (found.max_age_ms, found.archive_max_age_ms) == (None, 604_800_000)
    with pytest.raises(ArgumentError, match="max_age must be seconds, a timedelta, or a text"):
        store.set_retention("k", max_age="week")


# --- times bound ranges wherever IDs do, and errors name the parameter and the value --------------

DAY = 86_400_000
NOON = 1_761_048_000_000  # 2025-10-21T12:00:00Z
IDS = [NOON - DAY, NOON, NOON + 1, NOON + DAY]
TODAY = dt.date(2025, 10, 21)
AT_NOON = dt.datetime(2025, 10, 21, 12, tzinfo=dt.UTC)


@pytest.fixture
def filled(open_store: Open) -> Store:
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


# --- user types -----------------------------------------------------------------------------------

PROGRAMS = "\n".join(
    (ROOT / "tests" / name).read_text() for name in ("user_program.py", "user_queue.py")
)
API = ROOT / "docs" / "reference" / "api"
# For tools: what is in a file of a store.
TOOLS = re.compile(r"inspect_\w+|parse_time")
# Only for adapters, which a page of the API does not show.
KINDS: list[type] = [streamkeep.Store, jobs.Queue, jobs.Job, jobs.Task, jobs.Worker]


def hidden(kind: type) -> str:
    """Return an expression for the names of a class that its page leaves out."""
    page = (API / "queue.md").read_text()
    found = re.search(rf"::: streamkeep\.jobs\.{kind.__name__}\n((?: .*\n)*)", page)
    filters = re.findall(r'"!\^\((.*?)\)\$"', found[1]) if found else []
    return "|".join(["_.*", *filters])


def names(kind: type) -> Iterator[str]:
    left_out = re.compile(hidden(kind))
    for name, value in inspect.getmembers(kind):
        if not left_out.fullmatch(name) and (callable(value) or isinstance(value, property)):
            yield name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_public_method_is_in_a_program(kind: type) -> None:
    found = [*names(kind)]
    assert len(found) > 1
    assert [name for name in found if not re.search(rf"\.{name}\b", PROGRAMS)] == []


@pytest.mark.parametrize("module", [recovery, transfer], ids=lambda module: module.__name__)
def test_every_public_function_is_in_a_program(module: object) -> None:
    found = [name for name in module.__all__ if not name[0].isupper() and not TOOLS.fullmatch(name)]  # type: ignore[attr-defined]
    assert [name for name in found if not re.search(rf"\.{name}\b", PROGRAMS)] == []
