"""`pending`, and what `add` and `trim` leave pending."""

from __future__ import annotations

import pytest

import streamkeep
from cli_runner import lines, objects, reply, run
from streamkeep.tools.commands import stream_cmds

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
    found = [summary[name] for name in ("pending", "min_id", "max_id", "unowned")]
    assert found == [4, "1-0", "4-0", 0]


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
    reply(context, "XCLAIM", "k", "g", "ann", "0", "2-0", "IDLE", str(2 * 3_600_000))
    reply(context, "XNACK", "k", "g", "FAIL", "IDS", "1", "4-0")
    assert list(held("--idle", "1h")) == ["2-0", "4-0"]
    rows = lines("pending", context, "k", "g", "--idle", "1h")[1:]
    assert rows[0].split()[:4] == ["2-0", "ann", "2h", "2"]
    assert rows[1].split() == ["4-0", "-", "-", "1"]


def test_pending_goes_on_beyond_one_batch(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_cmds, "_BATCH", 3)
    monkeypatch.setattr(stream_cmds, "LISTED", 2)
    assert list(held("--count", "0")) == ["1-0", "2-0", "3-0", "4-0"]
    found = objects("pending", context, "k", "g", "--start", "-")
    assert [one["id"] for one in found[:-1]] == ["1-0", "2-0"]
    assert (found[-1]["entries"], found[-1]["more"]) == (2, True)
    assert objects("pending", context, "k", "g", "--count", "4")[-1]["more"] is False


def test_trim_and_add_obey_the_policy(context: str) -> None:
    reply(context, "XACK", "k", "g", "1-0")
    result = run("trim", context, "k", "--maxlen", "0", "--exact", "--acked")
    assert result.stdout == "1 entry removed\n"
    assert "a group has not read or acknowledged them" in result.stderr
    run("add", context, "k", "n", "7", "--id", "7-0", "--maxlen", "5", "--exact", "--delref")
    assert list(held()) == ["3-0", "4-0"]
    run("add", context, "k", "n", "8", "--id", "8-0", "--maxlen", "5", "--exact", "--keepref")
    assert list(held()) == ["3-0", "4-0"]
    assert lines("range", context, "k")[0] == "4-0  n=4"
    problem = run("add", context, "k", "f", "v", "--acked", status=2).stderr
    assert "--acked needs --maxlen or --minid" in problem


def test_a_missing_group_is_the_error_of_redis(context: str) -> None:
    error, hint = run("pending", context, "k", "none", status=6).stderr.splitlines()
    assert ": NOGROUP No such " in error
    assert hint == "next: streamkeep exec s XINFO GROUPS k"
