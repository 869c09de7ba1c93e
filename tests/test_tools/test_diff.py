"""diff: what two stores differ in, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, run
from dumped_stores import fill
from streamkeep import transfer
from streamkeep.commands.strings import set_deadline

pytestmark = pytest.mark.usefixtures("sound_folder")


def test_diff_names_each_difference() -> None:
    fill("a")
    fill("b")
    with streamkeep.open("b") as store:
        store.xdel("k", "20-0", "21-0", "23-0")
        store.xadd("new", {"x": 1})
        store.xack("k", "g", "10-0", "11-0")
        store.xclaim("k", "g", "c9", 0, ["12-0"], retrycount=7, time=1000)
        store.xgroup_destroy("k", "idle")
        store.xgroup_setid("k", "g", "70-0")
        store.delete("limited")
        store.xadd("limited", {"a": 2}, id="1-0")
        store.xnack("k", "g", "FAIL", "3-0")
    result = run("diff", "a", "b", status=7)
    found = result.stdout.splitlines()
    assert "- stream 'k' entries 20-0 to 21-0 (2)" in found
    assert "- stream 'k' entry 23-0" in found
    assert "+ stream 'new': 1 entry" in found
    assert "! stream 'limited' entry 1-0: a=1 against a=2" in found
    assert "- stream 'k' group 'idle'" in found
    assert "- stream 'k' group 'g' pending 10-0 to 11-0 (2)" in found
    assert "! stream 'k' group 'g' last_delivered_id: 67-0 against 70-0" in found
    assert "! stream 'k' group 'g' zone order: 3-0 2-0 against 2-0 3-0" in found
    assert any(
        line.startswith("! stream 'k' group 'g' pending 12-0: 'c1', 1 time") for line in found
    )
    assert f"{len(found)} differences" in result.stderr
    as_json = [json.loads(line) for line in lines("diff", "a", "b", "--json", status=7)]
    assert len(as_json) == len(found) + 1
    assert as_json[-1] == {
        "type": "summary",
        "command": "diff",
        "differences": len(found),
        "same": False,
    }
    assert len(lines("diff", "a", "b", "-n", "2", status=7)) == 2
    assert lines("diff", "a", "b", "limited", status=7) == [
        "! stream 'limited' entry 1-0: a=1 against a=2"
    ]


def test_diff_of_streams_that_are_cut_differently() -> None:
    for name, limit in (("a", 3), ("b", 7)):
        with streamkeep.open(name, node_max_entries=limit, sync="none") as store:
            for number in range(100):
                store.xadd("k", {"n": number}, id=f"{number + 1}-0")
    assert lines("diff", "a", "b") == []
    with streamkeep.open("b") as store:
        store.xtrim("k", maxlen=97, approximate=False)
    assert lines("diff", "a", "b", status=7)[-1] == "- stream 'k' entries 1-0 to 3-0 (3)"


def test_diff_compares_the_deadlines_of_streams_whatever_their_numbers_are() -> None:
    for name, keys, ending in (("a", "xy", b"x"), ("b", "yx", b"x"), ("c", "yx", b"y")):
        with streamkeep.open(name) as store, store.transaction() as transaction:
            for key in keys:
                transaction.xadd(key, {"a": 1}, id="1-0")
            set_deadline(transaction.txn, ending, 1 << 42)
    assert lines("diff", "a", "b") == []
    assert lines("diff", "b", "c", status=7) == [
        "! stream 'x' deadline: 2109-05-15T07:35:11Z against none",
        "! stream 'y' deadline: none against 2109-05-15T07:35:11Z",
    ]
    assert len(lines("diff", "b", "c", "x", status=7)) == 1
    with streamkeep.open("b") as b, streamkeep.open("c") as c:
        found = list(transfer.diff(b, c, "x"))
        assert [(one.what, one.first, one.second) for one in found] == [("deadline", 1 << 42, None)]
        with b.snapshot() as of_b:
            assert list(transfer.diff(of_b, Path("c"), "x")) == found
    with pytest.raises(streamkeep.ArgumentError, match="a snapshot or a path is expected"):
        list(transfer.diff("b", 5))  # type: ignore[arg-type]


def test_diff_counts_the_rows_that_differ_in_each_space() -> None:
    for name, values in (("a", (b"same", b"old", b"gone")), ("b", (b"same", b"new"))):
        with streamkeep.open(name) as store:
            for number, value in enumerate(values):
                store.row_put("space", str(number).encode(), value)
            store.row_put(name, b"row", b"")
    assert lines("diff", "a", "b", status=7) == [
        "- rows of 'a' (1)",
        "+ rows of 'b' (1)",
        "! rows of 'space' (1)",
        "- rows of 'space' (1)",
    ]
    found = [json.loads(line) for line in lines("diff", "a", "b", "--json", status=7)]
    assert found[2] == {"type": "rows", "key": "space", "only": "both", "count": 1}
    run("diff", "a", "a")
