"""Values that no call can use: each raises an error that names it, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from streamkeep import ArgumentError, Store
from streamkeep.engine.system.files import path_of
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
        ("trust_owners", True),
        ("group", 2**40),
        ("group", [1]),
        ("group", LONE),
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

    calls = [
        lambda: streamkeep.open(path),
        lambda: list(store.adopt_segments(path)),
        lambda: list(store.export_segments(path)),
        *([] if path is None else [archive]),
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


def test_durations_are_seconds_texts_or_timedeltas(store: Store) -> None:
    for age in (604_800, "7d", timedelta(days=7)):
        found = store.set_retention("k", max_age=age, archive_max_age=age)
        assert (found.max_age_ms, found.archive_max_age_ms) == (604_800_000, 604_800_000)
    found = store.set_retention("k", max_age=-1)
    assert (found.max_age_ms, found.archive_max_age_ms) == (None, 604_800_000)
    with pytest.raises(ArgumentError, match="max_age must be seconds, a timedelta, or a text"):
        store.set_retention("k", max_age="week")
