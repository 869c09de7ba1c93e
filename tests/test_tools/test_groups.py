"""Consumer groups: group, consumer, read --group, info groups; and how add knows producers."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, run

pytestmark = pytest.mark.usefixtures("sound_folder")


@pytest.fixture
def context() -> str:
    """A store with entries 1-0 to 5-0 in `k`, of which the group `g` has read none."""
    with streamkeep.open("s", sync="none") as store:
        store.xadd_many("k", [{"n": n} for n in range(1, 6)], [f"{n}-0" for n in range(1, 6)])
        store.xgroup_create("k", "g", id=0)
    return "s"


def table(*args: str | bytes) -> list[list[str]]:
    """Run a command; return the cells of its table, without headings."""
    return [line.split() for line in lines(*args)[1:]]


# --- group --------------------------------------------------------------------------------------


def test_group_create_starts_at_the_end_unless_told(context: str) -> None:
    result = run("group", "create", context, "k", "new")
    assert (result.stdout, result.stderr) == ("", "")
    run("group", "create", context, "k", "known", "--id", "2-0", "--entries-read", "2")
    assert table("group", "list", context) == [
        ["k", "g", "0", "0", "0-0", "-", "5"],
        ["k", "known", "0", "0", "2-0", "2", "3"],
        ["k", "new", "0", "0", "5-0", "-", "0"],
    ]


def test_group_create_refuses_a_second_one_and_a_missing_stream(context: str) -> None:
    assert run("group", "create", context, "k", "g", status=1).stderr.splitlines() == [
        "streamkeep group create: BUSYGROUP Consumer Group name already exists",
        "next: streamkeep group list s",
    ]
    refused = run("group", "create", context, "x", "g", status=6).stderr
    assert "requires the key to exist" in refused
    run("group", "create", "none", "x", "g", status=6)
    assert not Path("none").exists()
    run("group", "create", "none", "x", "g", "--mkstream")
    assert lines("len", "none", "x") == ["0"]


def test_group_set_id_delivers_again(context: str) -> None:
    read = ("read", context, "k", "--group", "g", "--consumer", "ann", "--noack")
    assert len(lines(*read)) == 5
    assert lines(*read) == []
    run("group", "set-id", context, "k", "g", "3-0", "--entries-read", "3")
    assert table("group", "list", context, "k") == [["k", "g", "1", "0", "3-0", "3", "2"]]
    assert lines(*read) == ["4-0  n=4", "5-0  n=5"]
    run("group", "set-id", context, "k", "g", "0")
    run("group", "set-id", context, "k", "g", "$")
    assert lines(*read) == []


def test_group_remove_names_the_loss_and_asks(context: str) -> None:
    run("read", context, "k", "--group", "g", "--consumer", "ann", "--count", "2")
    result = run("group", "remove", context, "k", "g", input="n\n", status=1)
    assert result.stderr.splitlines()[0] == "'g': 1 consumer, 2 entries pending, read up to 2-0"
    assert "Remove this group of 'k'? [y/N]" in result.stderr
    assert len(table("group", "list", context)) == 1
    assert lines("group", "remove", context, "k", "g", input="y\n") == ["1"]
    result = run("group", "remove", context, "k", "g", status=6)
    assert result.stdout == "0\n"
    assert result.stderr == (
        "streamkeep group remove: no group 'g' of 'k' in s\nnext: streamkeep group list s\n"
    )


def test_group_list_covers_all_streams_or_one(context: str) -> None:
    run("group", "create", context, "other", b"\xff\n", "--mkstream")
    assert [row[:2] for row in table("group", "list", context)] == [
        ["k", "g"],
        ["other", r'"\xff\n"'],
    ]
    assert objects("group", "list", context, "other") == [
        {
            "type": "group",
            "key": "other",
            "name": {"base64": "/wo="},
            "consumers": 0,
            "pending": 0,
            "last_delivered_id": "0-0",
            "entries_read": None,
            "lag": 0,
        },
        {"type": "summary", "command": "group list", "groups": 1},
    ]
    assert run("group", "list", context, "none", status=6).stderr.startswith(
        "streamkeep group list: ERR no such key\nnext: streamkeep streams s"
    )


# --- consumer -----------------------------------------------------------------------------------


def test_consumers_are_created_listed_and_deleted(context: str) -> None:
    assert lines("consumer", "create", context, "k", "g", "bob") == ["1"]
    assert lines("consumer", "create", context, "k", "g", "bob") == ["0"]
    run("read", context, "k", "--group", "g", "--consumer", "ann", "--count", "3")
    ann, bob, summary = objects("consumer", "list", context, "k", "g")
    assert (ann["name"], ann["pending"], bob["name"], bob["pending"]) == ("ann", 3, "bob", 0)
    assert ann["inactive_ms"] >= 0
    assert bob["inactive_ms"] is None
    assert summary == {"type": "summary", "command": "consumer list", "key": "k", "consumers": 2}
    assert [row[:3] for row in table("consumer", "list", context, "k")] == [
        ["g", "ann", "3"],
        ["g", "bob", "0"],
    ]
    assert table("consumer", "list", context, "k", "g")[1][-2:] == ["-", "unknown"]
    assert lines("consumer", "remove", context, "k", "g", "bob") == ["0"]


def test_deleting_a_consumer_asks_only_when_something_is_pending(context: str) -> None:
    run("read", context, "k", "--group", "g", "--consumer", "ann", "--count", "3")
    result = run("consumer", "remove", context, "k", "g", "ann", input="", status=1)
    assert "'ann': 3 entries pending, never to be delivered again" in result.stderr
    assert "next: --yes answers the question" in result.stderr
    assert lines("consumer", "remove", context, "k", "g", "ann", "--yes") == ["3"]
    result = run("consumer", "remove", context, "k", "g", "ann", status=6)
    assert result.stdout == "0\n"
    assert "no consumer 'ann' in group 'g' of 'k'" in result.stderr
    assert lines("pending", context, "k", "g") == ["pending  0"]


@pytest.mark.parametrize(
    "command",
    [
        ("consumer", "create", "s", "k", "none", "ann"),
        ("consumer", "remove", "s", "k", "none", "ann"),
        ("consumer", "list", "s", "k", "none"),
        ("group", "set-id", "s", "k", "none", "0"),
        ("read", "s", "k", "--group", "none", "--consumer", "ann"),
        ("pending", "s", "k", "none"),
        ("nack", "s", "k", "none", "1-0"),
        ("claim", "s", "k", "none", "ann", "1-0"),
        ("autoclaim", "s", "k", "none", "ann", "--min-idle", "0"),
    ],
)
def test_a_missing_group_is_the_error_of_redis(context: str, command: tuple[str, ...]) -> None:
    error, hint = run(*command, status=6).stderr.splitlines()
    assert ": NOGROUP No such " in error
    assert hint == "next: streamkeep group list s"


# --- read ---------------------------------------------------------------------------------------


def test_consumers_share_the_entries_and_see_their_own_again(context: str) -> None:
    as_ann = ("read", context, "k", "--group", "g", "--consumer", "ann")
    as_bob = ("read", context, "k", "--group", "g", "--consumer", "bob")
    assert lines(*as_ann, "--count", "2") == ["1-0  n=1", "2-0  n=2"]
    assert lines(*as_bob) == ["3-0  n=3", "4-0  n=4", "5-0  n=5"]
    assert lines(*as_ann) == []
    assert lines(*as_ann, "--id", "0") == ["1-0  n=1", "2-0  n=2"]
    assert lines(*as_bob, "--id", "3-0", "--count", "1") == ["4-0  n=4"]


def test_history_marks_what_was_deleted(context: str) -> None:
    as_ann = ("read", context, "k", "--group", "g", "--consumer", "ann")
    run(*as_ann, "--count", "2")
    run("delete", context, "k", "1-0")
    assert lines(*as_ann, "--id", "0") == ["1-0  (deleted)", "2-0  n=2"]
    assert objects(*as_ann, "--id", "0")[:2] == [
        {"type": "deleted", "key": "k", "id": "1-0", "time_ms": 1},
        {"type": "entry", "key": "k", "id": "2-0", "time_ms": 2, "fields": [["n", "2"]]},
    ]


def test_noack_leaves_nothing_pending(context: str) -> None:
    assert len(lines("read", context, "k", "--group", "g", "--consumer", "ann", "--noack")) == 5
    assert lines("pending", context, "k", "g") == ["pending  0"]


def test_duplicate_fields_and_bytes_are_delivered_whole(context: str) -> None:
    run("add", context, "k", "a", "1", "b", b"\xff", "a", "2", "--id", "9-0")
    as_ann = ("read", context, "k", "--group", "g", "--consumer", "ann")
    assert lines(*as_ann)[-1] == r'9-0  a=1 b="\xff" a=2'
    found = objects(*as_ann, "--id", "5-0")[0]
    assert found["fields"] == [["a", "1"], ["b", {"base64": "/w=="}], ["a", "2"]]


def test_read_claim_takes_over_and_says_how_it_was_pending(context: str) -> None:
    run("read", context, "k", "--group", "g", "--consumer", "ann", "--count", "2")
    run("claim", context, "k", "g", "ann", "1-0", "--idle", "90s", "--retry-count", "4")
    taken, new, summary = objects(
        *("read", context, "k", "--group", "g", "--consumer", "bob"),
        *("--claim", "1m", "--count", "2"),
    )
    assert (taken["id"], taken["times_delivered"]) == ("1-0", 4)
    assert taken["idle_ms"] >= 90_000
    assert (new["id"], new["times_delivered"], new["idle_ms"]) == ("3-0", 0, 0)
    assert summary["entries"] == 2
    run("claim", context, "k", "g", "bob", "1-0", "--idle", "1h", "--retry-count", "1")
    [line, *others] = lines(
        "read", context, "k", "--group", "g", "--consumer", "cy", "--claim", "1m"
    )
    assert line.startswith("1-0  n=1  (idle 1h")
    assert line.endswith(", delivered 1 time)")
    assert others == ["4-0  n=4", "5-0  n=5"]


def test_several_streams_are_delivered_with_their_keys(context: str) -> None:
    run("group", "create", context, "other", "g", "--mkstream")
    run("add", context, "other", "f", "v", "--id", "7-0")
    read = ("read", context, "k", "other", "--group", "g", "--consumer", "ann")
    assert lines(*read, "--count", "1") == ["k  1-0  n=1", "other  7-0  f=v"]
    assert lines(*read, "--id", ">", "--id", "0") == [
        *(f"k  {n}-0  n={n}" for n in range(2, 6)),
        "other  7-0  f=v",
    ]
    assert objects(*read)[-1] == {
        "type": "summary",
        "command": "read",
        "streams": 0,
        "entries": 0,
    }


def test_limits_over_all_streams(context: str) -> None:
    with streamkeep.open(context, sync="none") as store:
        store.xadd("other", [("f", "1"), ("f", "2")], id="7-0")
        store.xgroup_create("other", "g", id=0)
    plain = ("read", context, "k", "other")
    assert lines(*plain, "--maxcount", "3") == ["k  1-0  n=1", "k  2-0  n=2", "k  3-0  n=3"]
    assert lines(*plain, "--count", "2", "--maxcount", "3")[-1] == "other  7-0  f=1 f=2"
    assert lines(*plain, "--maxsize", "1") == ["k  1-0  n=1"]
    as_ann = (*plain, "--group", "g", "--consumer", "ann")
    assert lines(*as_ann, "--maxsize", "1") == ["k  1-0  n=1"]
    assert len(lines(*as_ann, "--maxcount", "5")) == 5


def test_options_of_read_that_do_not_go_together(context: str) -> None:
    for options, problem in {
        ("--group", "g"): "--group and --consumer must be used together",
        ("--consumer", "ann"): "--group and --consumer must be used together",
        ("--noack",): "--noack, --claim and --dead need --group and --consumer",
        ("--claim", "1s"): "--noack, --claim and --dead need --group and --consumer",
        ("--maxcount", "1", "k"): "a stream is named twice",
    }.items():
        assert problem in run("read", context, "k", *options, status=2).stderr


# --- info ---------------------------------------------------------------------------------------


def test_info_stream_full_shows_groups_consumers_and_what_is_pending(context: str) -> None:
    run("read", context, "k", "--group", "g", "--consumer", "ann", "--count", "3")
    moment = "2024-06-10T07:33:20Z"
    run("claim", context, "k", "g", "ann", "1-0", "2-0", "--time", moment, "--retry-count", "2")
    run("nack", context, "k", "g", "3-0")
    run("consumer", "create", context, "k", "g", "bob")
    text = lines("info", context, "k", "--full", "--count", "1")
    at = text.index(
        "group 'g': last-delivered-id 3-0, entries-read 3, lag 2, 3 pending, 1 of them nacked"
    )
    assert text[at + 1].startswith("  consumer 'ann': 2 pending, seen 20")
    assert text[at + 2 : at + 4] == [f"    1-0  delivered 2 times, last {moment}", "    … 1 more"]
    assert text[at + 4].startswith("  consumer 'bob': 0 pending, seen 20")
    assert text[at + 4].endswith(", active never")
    assert text[at + 5] == "  without owner, for any consumer to claim:"
    assert lines("info", context, "k", "--full", "--count", "0")[-1] == (
        "    3-0  delivered 1 time"
    )
    group = objects("info", context, "k", "--full", "--count", "0")[-2]
    assert group["type"] == "group"
    assert (group["name"], group["pel_count"], group["nacked_count"]) == ("g", 3, 1)
    owned = {"id": "2-0", "delivery_time_ms": 1718004800000, "times_delivered": 2}
    given_back = {"id": "3-0", "delivery_time_ms": None, "times_delivered": 1, "consumer": None}
    assert sorted(group["pending"], key=lambda one: str(one["id"]))[1:] == [
        {**owned, "consumer": "ann"},
        given_back,
    ]
    assert [one["name"] for one in group["consumers"]] == ["ann", "bob"]
    assert group["consumers"][0]["pending"][1] == owned
    assert group["consumers"][1]["active_time_ms"] is None


# --- producers ----------------------------------------------------------------------------------


def test_a_message_that_is_sent_again_is_not_added_again(context: str) -> None:
    send = ("add", context, "k", "--idmp", "till", "4711", "sku", "7")
    first = lines(*send)
    assert lines(*send) == first
    assert lines("add", context, "k", "sku", "8", "--idmp", "till", "4712") != first
    auto = ("add", context, "k", "a", "1", "a", "2", "--idmpauto", "till")
    assert lines(*auto) == lines(*auto)
    assert lines("len", context, "k") == ["8"]
    counters = objects("info", context, "k")[0]
    assert (counters["pids_tracked"], counters["iids_duplicates"]) == (1, 2)


def test_options_of_producers_that_do_not_go_together(context: str) -> None:
    add = ("add", context, "k", "f", "v")
    both = ("--idmp", "p", "i", "--idmpauto", "p")
    assert "cannot be used together" in run(*add, *both, status=2).stderr
    assert "cannot be used with --id" in run(*add, *both[:3], "--id", "9-0", status=2).stderr
    assert "requires 2 arguments" in run(*add, "--idmp", "p", status=2).stderr


def test_config_prints_and_sets_and_asks_before_it_forgets(context: str) -> None:
    assert lines("config", context, "k") == ["idmp-duration  1m40s", "idmp-maxsize   100"]
    assert lines("config", context, "k", "--idmp-duration", "1h")[0] == "idmp-duration  1h"
    run("add", context, "k", "f", "v", "--idmp", "till", "1")
    result = run("config", context, "k", "--idmp-maxsize", "5", input="n\n", status=1)
    assert "'k': 1 message of 1 producer remembered" in result.stderr
    assert lines("config", context, "k", "--idmp-maxsize", "100")[1] == "idmp-maxsize   100"
    assert objects("config", context, "k", "--idmp-maxsize", "5", "--yes") == [
        {
            "type": "summary",
            "command": "config",
            "key": "k",
            "idmp_duration": 3600,
            "idmp_maxsize": 5,
        }
    ]
    assert objects("info", context, "k")[0]["iids_tracked"] == 0
    run("config", context, "k", "--idmp-maxsize", "0", status=2)
