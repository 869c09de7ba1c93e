"""The demo in examples/flights: its workers, its data, and the names of its modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import group_steps
import streamkeep
from streamkeep import recovery

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory; every store in it must be sound when the test ends."""
    monkeypatch.chdir(tmp_path)
    yield
    for data in tmp_path.glob("*/data.mdb"):
        assert [str(finding) for finding in recovery.check(data.parent)] == []


def test_a_worker_finishes_the_pending_entries_of_another_one() -> None:
    with streamkeep.open("s", decode_responses=True) as store:
        flights = [{"distance": "100", "air_time": "20"}, {"distance": "9"}] * 700
        ids = store.xadd_many("flights", flights)
        store.xgroup_create("flights", group_steps.GROUP, id=0)
        store.xreadgroup(group_steps.GROUP, "ann", {"flights": ">"}, count=300)
        assert group_steps.pending_of(store, "flights", "ann") == 300
        group_steps.work("s", "flights", "bob", 0)
        results = [entry.fields for entry in store.scan(group_steps.RESULTS)]
        assert sorted(one["of"] for one in results) == sorted(ids)
        assert [one.get("mph") for one in results].count("300") == 700
        [group] = store.xinfo_groups("flights")
        assert (group["pending"], group["lag"]) == (0, 0)


def test_a_worker_leaves_alone_what_another_one_claimed() -> None:
    with streamkeep.open("s", decode_responses=True) as store:
        store.xadd_many("flights", [{"distance": "9"}] * 3, ids=["1-0", "2-0", "3-0"])
        store.xgroup_create("flights", group_steps.GROUP, id=0)
        [[_, entries]] = store.xreadgroup(group_steps.GROUP, "ann", {"flights": ">"})
        store.xclaim("flights", group_steps.GROUP, "bob", 0, ["2-0"])
        with store.transaction() as txn:
            group_steps.finish(txn, "flights", "ann", entries)
        assert [entry.fields["of"] for entry in store.scan(group_steps.RESULTS)] == ["1-0", "3-0"]
        assert group_steps.pending_of(store, "flights", "bob") == 1
        assert store.xpending("flights", group_steps.GROUP)["pending"] == 1


def test_no_module_of_an_example_hides_a_package() -> None:
    """`python examples/flights` puts that folder first on the path of imports."""
    names = {path.stem for path in EXAMPLES.rglob("*.py")} - {"__main__"}
    assert names
    installed = [path for path in sys.path if path.endswith("-packages")]
    assert not names & sys.stdlib_module_names
    assert [name for name in names if PathFinder.find_spec(name, installed)] == []
