"""Pending entries and reference policies: ack, nack, pending, claim, autoclaim, del, trim."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamkeep
from cli_runner import lines, objects, run
from streamkeep.tools.commands import pending_cmds

MOST = str((1 << 63) - 1)


pytestmark = pytest.mark.usefixtures("sound_folder")


@pytest.fixture
def context() -> str:
    """A store with entries 1-0 to 6-0 in `k`; of group `g`, ann has 1 to 3 pending, bob 4."""
    with streamkeep.open("s", sync="none") as store:
        store.xadd_many("k", [{"n": n} for n in range(1, 7)], [f"{n}-0" for n in range(1, 7)])
        store.xgroup_create("k", "g", id=0)
        store.xreadgroup("g", "ann", {"k": ">"}, count=3)
        store.xreadgroup("g", "bob", {"k": ">"}, count=1)
    return "s"


def held(*options: str) -> dict[str, tuple[str | None, int]]:
    """Return who has each pending entry, and how often it was delivered."""
    found = objects("pending", "s", "k", "g", *(options or ("--count", "0")))
    return {one["id"]: (one["consumer"], one["times_delivered"]) for one in found[:-1]}


# --- ack ----------------------------------------------------------------------------------------


def test_ack_prints_how_many_were_pending(context: str) -> None:
    assert lines("ack", context, "k", "g", "1-0", "4-0", "5-0", "1-0") == ["2"]
    assert list(held()) == ["2-0", "3-0"]
    assert objects("ack", context, "k", "g", "2-0") == [
        {"type": "summary", "command": "ack", "count": 1, "deleted": 0, "kept": 0}
    ]


def test_ack_of_a_missing_group_says_so(context: str) -> None:
    for key, group in (("k", "none"), ("none", "g")):
        result = run("ack", context, key, group, "1-0", status=6)
        assert result.stdout == "0\n"
        assert result.stderr == (
            f"streamkeep ack: no group '{group}' of '{key}' in s\nnext: streamkeep group list s\n"
        )


def test_ids_of_which_none_is_there_have_the_status_of_what_is_missing(context: str) -> None:
    assert lines("ack", context, "k", "g", "9-0", status=6) == ["0"]
    assert lines("nack", context, "k", "g", "9-0", status=6) == ["0"]
    assert lines("delete", context, "k", "9-0", status=6) == ["0"]
    assert lines("delete", context, "k", "9-0", "5-0") == ["1"]


def test_ack_takes_what_read_prints(context: str) -> None:
    read = ("read", context, "k", "--group", "g", "--consumer", "ann", "--id", "0")
    assert lines("ack", context, "k", "g", "-", input=run(*read, "--count", "1").stdout) == ["1"]
    run("delete", context, "k", "2-0")
    assert "deleted" in run(*read, "--json").stdout
    assert lines("ack", context, "k", "g", "-", input=run(*read, "--json").stdout) == ["2"]
    rest = run("pending", context, "k", "g", "--count", "0", "--json").stdout
    assert lines("ack", context, "k", "g", "-", input=rest) == ["1"]
    assert lines("ack", context, "k", "g", "-", input="\n") == ["0"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("x", "x is not an entry ID"),
        ("1-", "1- is not an entry ID"),
        ("k  1-0  n=1", "k is not an entry ID"),
        ("{", "not JSON: "),
        ('{"type":"stream"}', "the object has no member id"),
        ('{"key":"other","id":"1-0"}', "an entry of 'other', not of 'k'"),
    ],
)
def test_a_bad_line_acknowledges_nothing(context: str, line: str, problem: str) -> None:
    result = run("ack", context, "k", "g", "-", input=f"1-0\n\n{line}\n", status=1)
    assert result.stderr.startswith(f"streamkeep ack: standard input line 3: {problem}")
    assert result.stderr.endswith("; nothing was done\n")
    assert len(held()) == 4
    assert "give no other ID" in run("ack", context, "k", "g", "-", "1-0", status=2).stderr


def test_ack_delete_obeys_the_policy(context: str) -> None:
    run("group", "create", context, "k", "slow", "--id", "1-0")
    result = run("ack", context, "k", "g", "1-0", "2-0", "9-0", "--delete", "--acked")
    assert result.stdout == "2\n"
    assert result.stderr == "1 entry kept: a group has not read or acknowledged them\n"
    assert lines("range", context, "k")[0] == "2-0  n=2"
    assert objects("ack", context, "k", "g", "2-0", "3-0", "--delete") == [
        {"type": "id", "id": "2-0", "result": "not pending"},
        {"type": "id", "id": "3-0", "result": "deleted"},
        {"type": "summary", "command": "ack", "count": 1, "deleted": 1, "kept": 0},
    ]
    run("read", context, "k", "--group", "slow", "--consumer", "cy")
    run("ack", context, "k", "g", "4-0", "--delete", "--delref")
    assert lines("pending", context, "k", "slow")[:3] == [
        "pending  3",
        "from     2-0",
        "to       6-0",
    ]
    assert "--acked needs --delete" in run("ack", "s", "k", "g", "1", "--acked", status=2).stderr


# --- nack ---------------------------------------------------------------------------------------


def test_nack_gives_entries_back_and_counts_as_told(context: str) -> None:
    assert lines("nack", context, "k", "g", "1-0", "9-0") == ["1"]
    run("nack", context, "k", "g", "2-0", "--silent")
    run("nack", context, "k", "g", "3-0", "--fatal")
    run("nack", context, "k", "g", "4-0", "--retry-count", "7")
    assert lines("nack", context, "k", "g", "5-0", "6-0", status=6) == ["0"]
    assert lines("nack", context, "k", "g", "5-0", "--force") == ["1"]
    assert held() == {
        "1-0": (None, 1),
        "2-0": (None, 0),
        "3-0": (None, int(MOST)),
        "4-0": (None, 7),
        "5-0": (None, 0),
    }
    assert lines("pending", context, "k", "g")[-1] == "-               5"
    assert objects("pending", context, "k", "g")[-1]["unowned"] == 5
    assert lines("nack", context, "k", "g", "-", input="1-0\n") == ["1"]


# --- pending ------------------------------------------------------------------------------------


def test_pending_prints_a_summary(context: str) -> None:
    assert lines("pending", context, "k", "g") == [
        "pending  4",
        "from     1-0",
        "to       4-0",
        "",
        "consumer  pending",
        "ann             3",
        "bob             1",
    ]
    ann, _, summary = objects("pending", context, "k", "g")
    assert ann == {"type": "consumer", "key": "k", "group": "g", "name": "ann", "pending": 3}
    assert summary == {
        "type": "summary",
        "command": "pending",
        "key": "k",
        "pending": 4,
        "min_id": "1-0",
        "max_id": "4-0",
        "unowned": 0,
    }


def test_pending_lists_entries_by_id(context: str) -> None:
    result = run("pending", context, "k", "g", "--start", "2-0", "--count", "1")
    heading, row = result.stdout.splitlines()
    assert heading.split() == ["id", "consumer", "idle", "delivered"]
    assert row.split()[:2] == ["2-0", "ann"]
    assert result.stderr == "next: --start '(2-0' continues\n"
    assert list(held("--start", "(2-0", "--end", "3-0")) == ["3-0"]
    assert list(held("--consumer", "bob")) == ["4-0"]
    assert held("--consumer", "none") == {}
    assert run("pending", context, "k", "g", "--end", "0-1").stdout == ""


def test_pending_filters_by_idle_time(context: str) -> None:
    run("claim", context, "k", "g", "ann", "2-0", "--idle", "2h")
    run("nack", context, "k", "g", "4-0")
    assert list(held("--idle", "1h")) == ["2-0", "4-0"]
    rows = lines("pending", context, "k", "g", "--idle", "1h")[1:]
    assert rows[0].split()[:4] == ["2-0", "ann", "2h", "2"]
    assert rows[1].split() == ["4-0", "-", "-", "1"]


def test_pending_goes_on_beyond_one_batch(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_cmds, "_BATCH", 3)
    monkeypatch.setattr(pending_cmds, "LISTED", 2)
    assert list(held("--count", "0")) == ["1-0", "2-0", "3-0", "4-0"]
    found = objects("pending", context, "k", "g", "--start", "-")
    assert [one["id"] for one in found[:-1]] == ["1-0", "2-0"]
    assert found[-1] == {
        "type": "summary",
        "command": "pending",
        "key": "k",
        "entries": 2,
        "more": True,
    }
    assert objects("pending", context, "k", "g", "--count", "4")[-1]["more"] is False


# --- claim --------------------------------------------------------------------------------------


def test_claim_prints_what_changed_hands(context: str) -> None:
    run("add", context, "k", "a", "1", "a", "2", "--id", "7-0")
    ids = ("1-0", "5-0", "7-0")
    assert lines("claim", context, "k", "g", "bob", *ids) == ["1-0  n=1"]
    assert lines("claim", context, "k", "g", "bob", "7-0", "--force") == ["7-0  a=1 a=2"]
    assert lines("claim", context, "k", "g", "bob", "2-0", "--min-idle", "1h") == []
    assert objects("claim", context, "k", "g", "bob", "3-0", "--justid") == [
        {"type": "id", "id": "3-0", "time_ms": 3},
        {"type": "summary", "command": "claim", "key": "k", "entries": 1},
    ]
    assert lines("claim", context, "k", "g", "cy", "-", "--justid", input="4-0\n") == ["4-0"]
    assert held() == {
        "1-0": ("bob", 2),
        "2-0": ("ann", 1),
        "3-0": ("bob", 1),
        "4-0": ("cy", 1),
        "7-0": ("bob", 2),
    }


def test_claim_sets_what_it_is_told(context: str) -> None:
    moment = "2024-06-10T07:33:20Z"
    run("claim", context, "k", "g", "bob", "1-0", "--retry-count", "9", "--time", moment)
    run("claim", context, "k", "g", "bob", "2-0", "--time", "1718004800001", "--last-id", "6-0")
    group = objects("info", context, "k", "--full")[-2]
    times = {one["id"]: one["delivery_time_ms"] for one in group["pending"]}
    assert (times["1-0"], times["2-0"]) == (1718004800000, 1718004800001)
    assert held()["1-0"] == ("bob", 9)
    assert group["last_delivered_id"] == "6-0"
    both = ("--idle", "1ms", "--time", "1")
    assert "cannot be used" in run("claim", "s", "k", "g", "b", "1", *both, status=2).stderr
    assert "not a time" in run("claim", "s", "k", "g", "b", "1", "--time", "x", status=2).stderr


def test_claim_drops_what_was_deleted(context: str) -> None:
    run("delete", context, "k", "1-0")
    assert lines("claim", context, "k", "g", "bob", "1-0", "2-0") == ["2-0  n=2"]
    assert "1-0" not in held()


# --- autoclaim ----------------------------------------------------------------------------------


def test_autoclaim_says_where_to_go_on_and_what_is_gone(context: str) -> None:
    run("delete", context, "k", "2-0", "3-0")
    result = run("autoclaim", context, "k", "g", "cy", "--min-idle", "0", "--count", "1")
    assert result.stdout == "1-0  n=1\n"
    assert result.stderr == "next: --start 2-0 continues\n"
    result = run("autoclaim", context, "k", "g", "cy", "--min-idle", "0", "--start", "2-0")
    assert result.stdout == "4-0  n=4\n"
    assert result.stderr == "deleted from the stream, no longer pending: 2-0 3-0\n"
    assert held() == {"1-0": ("cy", 2), "4-0": ("cy", 2)}


def test_autoclaim_of_ids_says_where_to_go_on_and_what_is_gone(context: str) -> None:
    run("delete", context, "k", "1-0")
    claim = ("autoclaim", context, "k", "g", "cy", "--min-idle", "0", "--count", "2", "--justid")
    result = run(*claim)
    assert result.stdout == "2-0\n"
    assert result.stderr == (
        "deleted from the stream, no longer pending: 1-0\nnext: --start 3-0 continues\n"
    )
    assert objects(*claim, "--start", "3-0")[-1]["cursor"] == "0-0"


def test_autoclaim_as_json(context: str) -> None:
    run("delete", context, "k", "1-0")
    found = objects("autoclaim", context, "k", "g", "cy", "--min-idle", "0", "--count", "2")
    assert [(one["type"], one.get("id")) for one in found] == [
        ("entry", "2-0"),
        ("deleted", "1-0"),
        ("summary", None),
    ]
    assert found[-1] == {
        "type": "summary",
        "command": "autoclaim",
        "key": "k",
        "entries": 1,
        "deleted": 1,
        "cursor": "3-0",
    }


def test_autoclaim_leaves_alone_what_is_not_idle(context: str) -> None:
    run("claim", context, "k", "g", "ann", "3-0", "--idle", "2h")
    claim = ("autoclaim", context, "k", "g", "cy", "--min-idle", "1h", "--justid")
    assert lines(*claim) == ["3-0"]
    assert objects(*claim) == [
        {
            "type": "summary",
            "command": "autoclaim",
            "key": "k",
            "entries": 0,
            "deleted": 0,
            "cursor": "0-0",
        }
    ]
    assert held()["3-0"] == ("cy", 2)  # one for each of the others: --justid does not count
    assert "--min-idle or --dead is required" in run(*claim[:5], status=2).stderr


# --- reference policies -------------------------------------------------------------------------


def results(*args: str, status: int = 0) -> dict[str, Any]:
    """Run del with --json; return what became of each ID."""
    return {one["id"]: one["result"] for one in objects("delete", *args, status=status)[:-1]}


def test_dead_takes_what_processes_had_that_ended_and_no_more(context: str) -> None:
    with streamkeep.open("s", sync="none") as store:
        store.xadd("k", {"n": 7})
        store.xreadgroup("g", "eve", {"k": ">"}, count=1)  # 5-0, of a process that lives
        found = run("autoclaim", "s", "k", "g", "cat", "--dead", "--count", "2")
        assert [line.split()[0] for line in found.stdout.splitlines()] == ["1-0", "2-0"]
        found = run("read", "s", "k", "--group", "g", "--consumer", "dan", "--dead")
        rows = [line.split()[0] for line in found.stdout.splitlines()]
        assert rows[:3] == ["3-0", "4-0", "6-0"]
        assert store.xpending("k", "g")["consumers"] == [
            {"name": b"cat", "pending": 2},
            {"name": b"dan", "pending": 4},
            {"name": b"eve", "pending": 1},
        ]
    run("autoclaim", "s", "k", "g", "cat", status=2)
    run("read", "s", "k", "--dead", status=2)
    options = ("--group", "g", "--consumer", "dan", "--dead", "--claim", "1s")
    run("read", "s", "k", *options, status=2)


def test_del_obeys_the_policy(context: str) -> None:
    run("ack", context, "k", "g", "1-0")
    assert results(context, "k", "1-0", "2-0", "6-0", "0-1", "--acked") == {
        "1-0": "deleted",
        "2-0": "kept",
        "6-0": "kept",
        "0-1": "absent",
    }
    result = run("delete", context, "k", "2-0", "6-0", "--acked")
    assert result.stdout == "0\n"
    assert result.stderr == "2 entries kept: a group has not read or acknowledged them\n"
    assert results(context, "k", "2-0") == {"2-0": "deleted"}
    assert results(context, "k", "3-0", "--delref") == {"3-0": "deleted"}
    assert list(held()) == ["2-0", "4-0"]
    assert results("s", "none", "1-0", status=6) == {"1-0": "absent"}
    assert lines("delete", context, "k", "-", input="4-0\n5-0\n") == ["2"]


def test_trim_and_add_obey_the_policy(context: str) -> None:
    run("ack", context, "k", "g", "1-0")
    result = run("trim", context, "k", "--maxlen", "0", "--exact", "--acked")
    assert result.stdout == "1\n"
    assert "a group has not read or acknowledged them" in result.stderr
    run("add", context, "k", "n", "7", "--id", "7-0", "--maxlen", "5", "--exact", "--delref")
    assert list(held()) == ["3-0", "4-0"]
    run("add", context, "k", "n", "8", "--id", "8-0", "--maxlen", "5", "--exact", "--keepref")
    assert list(held()) == ["3-0", "4-0"]
    assert lines("range", context, "k")[0] == "4-0  n=4"
    problem = run("add", context, "k", "f", "v", "--acked", status=2).stderr
    assert "--acked needs --maxlen or --minid" in problem


def test_json_of_a_delivered_entry_loads_again(context: str) -> None:
    entries = run("read", context, "k", "--group", "g", "--consumer", "cy", "--json").stdout
    run("load", "copy", "k", "--format", "jsonl", input=entries)
    assert lines("range", "copy", "k") == ["5-0  n=5", "6-0  n=6"]
    assert json.loads(entries.splitlines()[-1])["entries"] == 2
