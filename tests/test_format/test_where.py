"""Conditions on fields: the same entries as a filter in Python, wherever they are stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_runner import lines, objects, run
from model.profile import configured
from stores import Open, open_at
from streamkeep.engine.api import read_commands
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.format.core.errors import ArgumentError

names = st.sampled_from(["a", "b", ""])
values = st.sampled_from(["", "1", "01", "-7", "x" * 70, "4611686018427387904"])
entry = st.lists(st.tuples(names, values), min_size=1, max_size=4)
condition = st.dictionaries(names, st.lists(values, min_size=1, max_size=2), min_size=1, max_size=2)


@configured(40)
@given(st.lists(entry, min_size=1, max_size=20), condition, st.integers(1, 7), st.booleans())
def test_a_scan_yields_what_matches(
    tmp_path_factory: Any,
    entries: list[Any],
    where: dict[str, list[str]],
    examined: int,
    reverse: bool,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_commands, "_EXAMINED", examined)
        patch.setattr(read_commands, "_SCAN_BATCH", 2)
        path = tmp_path_factory.mktemp("where") / "store"
        with open_at(path, node_max_entries=5, decode_responses=True) as store:
            store.xadd_many("s", entries)
            store.xdel("s", store.xrange("s")[0].id)
            expected = [
                one
                for one in store.xrange("s")
                if all(
                    any((field, value) in one.pairs for value in wanted)
                    for field, wanted in where.items()
                )
            ]
            for history in (False, True):
                found = list(store.scan("s", where=where, reverse=reverse, history=history))
                assert found == (expected[::-1] if reverse else expected)


@pytest.fixture
def archived(open_store: Open) -> Store:
    """A store whose entries are in segments, retired, live and deleted; a third is of user 1."""
    store = open_store(node_max_entries=7, node_max_bytes=0)
    store.set_retention("s", archive=True)
    rows: list[dict[str, Any]] = []
    for number in range(90):
        rows.append({"user": number % 3, "mail": f"user-{number % 3}@x.org"})
    store.xadd_many("s", rows, [f"{number + 1}-0" for number in range(90)])
    store.xtrim("s", minid=31, approximate=False)
    store.archive(options=ArchiveOptions(target_bytes=2000, block_bytes=700))
    store.xtrim("s", minid=61, approximate=False)
    store.xdel("s", "62-0", "65-0")
    return store


def test_remains_are_found_everywhere_and_erased(archived: Store) -> None:
    ids = archived.find_remains("s", {"user": 1})
    assert [one.ms for one in ids] == list(range(2, 91, 3))
    assert len(list(archived.scan("s", where={"user": 1}, history=True))) == 28
    assert archived.erase("s", *ids) == 28
    assert archived.find_remains("s", {"mail": "user-1@x.org"}) == []
    assert len(archived.find_remains("s", {"user": [0, 2]})) == 60
    assert archived.find_remains("missing", {"user": 1}) == []


def test_wrong_conditions_are_named(store: Store) -> None:
    for where, message in (
        ({}, "where must be a non-empty dict"),
        ("a=1", "where must be a non-empty dict"),
        ({"a": []}, "where has no value for the field 'a'"),
        ({"a": None}, "the value of field 'a' in where"),
    ):
        with pytest.raises(ArgumentError, match=message):
            store.scan("s", where=where)  # type: ignore[arg-type]


def test_conditions_on_the_command_line(archived: Store) -> None:
    path = archived.path
    found = lines("range", path, "s", "--history", "--where", "user=2", "--count", "2")
    assert [line.split()[0] for line in found] == ["3-0", "6-0"]
    both = lines("range", path, "s", "--where", "user=2", "--where", "mail=user-0@x.org", status=0)
    assert both == []
    assert "is not FIELD=VALUE" in run("range", path, "s", "--where", "user", status=2).stderr
    run("erase", path, "s", "1-0", "--where", "user=1", status=2)
    assert objects("erase", path, "s", "--where", "user=1", "--yes")[-1]["count"] == 28
    assert lines("erase", path, "s", "--where", "user=1", "--yes") == ["0"]
    assert archived.find_remains("s", {"user": 1}) == []
