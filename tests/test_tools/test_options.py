"""What commands have in common: times as IDs, options that exclude each other, JSON, no debris."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

import streamkeep
from cli_runner import leaves, lines, objects, reply, run

DAY = 1_717_977_600_000  # 2024-06-10
IDS = [f"{DAY - 1}-0", f"{DAY}-0", f"{DAY}-5", f"{DAY + 1}-0", f"{DAY + 86_400_000}-0"]


@pytest.fixture(autouse=True)
def _folder() -> None:
    """A store `s` with entries around the begin of a day, and a group that has read none."""
    with streamkeep.open("s", sync="none") as store:
        store.xadd_many("k", [{"n": n} for n in range(len(IDS))], IDS)
        store.xgroup_create("k", "g", "0")


def ids(*args: str) -> list[str]:
    return [line.split()[0] for line in lines(*args)]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("2024-06-10", "+", IDS[1:]),
        ("2024-06-10T00:00", "+", IDS[1:]),
        ("2024-06-10T02:00:00.001+02:00", "+", IDS[3:]),
        ("(2024-06-10", "+", IDS[3:]),  # all of that millisecond is left out
        ("-", "2024-06-10", IDS[:3]),
        ("-", "(2024-06-10T00:00:00Z", IDS[:1]),
        ("2024-06-10", "(2024-06-11", IDS[1:4]),
    ],
)
def test_a_time_bounds_a_range(start: str, end: str, found: list[str]) -> None:
    assert ids("range", "s", "k", start, end) == found
    assert ids("range", "s", "k", start, end, "--reverse") == found[::-1]
    dumped = lines("dump", "s", "k", "--format", "csv", "--start", start, "--end", end)
    assert [line.split(",")[1] for line in dumped[1:]] == found
    reply("s", "XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">")
    bounds = ("--start", start, "--end", end)
    pending = lines("pending", "s", "k", "g", *bounds, "--json")
    assert [line for line in pending if "summary" not in line and '"id"' in line] != []
    assert len(pending) - 1 == len(found)
    assert objects("trim", "s", "k", "--range", start, end)[0]["count"] == len(found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("range s k (2024-06-31", "2024-06-31"),
        ("range s k 1969-12-31", "1969-12-31"),
        ("range s k 2024-06-10T25", "is not a time"),
        ("trim s k --maxlen 1 --delref --acked", "--delref and --acked cannot"),
        ("trim s k --maxlen 1 --acked --keepref", "--acked and --keepref"),
        ("add s k a b --exact", "--exact needs --maxlen or --minid"),
        ("trim s k --range - + --exact", "--exact cannot be used with --range"),
        ("trim s k --range - + --acked", "--acked cannot be used with --range"),
        ("spark to-lake s lake --every 9s", "--every needs --follow"),
        ("ship s copy --forget --renew", "--renew cannot be used with --forget"),
        ("ship s copy --hold none", "--hold is a size"),
        ("ship restore copy n --at -2h --commit 1", "--commit cannot be"),
        ("standby redis://h n --every 9s", "--every is for a copy"),
        ("follow redis://h s --detach --match x", "--match cannot be used"),
        ("fsck s --explain SK201", "STORE cannot be used with --explain"),
        ("dump s k --node 1-0 --start 1", "--start is for entries"),
        ("dump s k --group g --count 1", "--count is for entries"),
        ("dump s --checkpoint s/steady", "STORE does not go with a file"),
        ("add new k f", "fields and values come in pairs"),
        ("add new k * f v", "--id, and * is the default"),
        ("add new k", "Missing argument 'FIELD VALUE...'"),
        ("add new k f v --idd 1", "--idd"),
        ("add new k f v --id", "requires an argument"),
        ("add new k f -v", ". A value that begins with a dash goes after --."),
        ("add new k f v --maxlen 1 --minid 1", "cannot be used together"),
        ("add new k f v --limit 1", "--limit needs --maxlen or --minid"),
        ("add new k f v --maxlen 1 --exact --limit 1", "cannot be used with --exact"),
        ("add new k f v --maxlen -1", "--maxlen"),
        ("add new k f v --minid 2024-13-01", "is not a time"),
        ("load new k -", "add --format"),
        ("load new k", "add --format"),
        ("load new k a.txt", "add --format"),
        ("load new k missing.csv", "does not exist"),
        ("load new k x.resp --format resp", "does not exist"),
        ("load new k a.txt --format xml", "--format"),
        ("load new k a.txt --format csv --time-unit s", "--time-unit needs --time"),
        ("load new k a.txt --format csv --batch 0", "--batch"),
        ("load new a b c", "at most KEY and FILE"),
        ("load new", "Missing argument"),
        ("dump s --format rdb --start 1", "are not for rdb"),
        ("dump s --field a", "--field is for csv"),
        ("dump s --json", "needs --output"),
        ("dump s --output x.xml", "the name does not give the format; choose one of text, jsonl"),
    ],
)
def test_a_wrong_command_line_is_status_2_and_creates_nothing(words: str, message: str) -> None:
    Path("a.txt").write_text("n\n1\n")
    assert message in run(*words.split(), status=2).stderr
    assert not Path("new").exists()


def test_one_of_several_flags_may_stand_twice() -> None:
    trim = ("trim", "s", "k", "--exact", "--maxlen", "4")
    assert lines(*trim, "--acked", "--acked") == ["0 entries removed"]
    assert lines(*trim, "--delref") == ["1 entry removed"]


def test_every_count_has_a_short_name() -> None:
    found = 0
    for path, command in leaves():
        for param in command.params:
            if "--count" in param.opts:
                assert "-n" in param.opts, path
                found += 1
    assert found >= 5
    assert lines("range", "s", "k", "-n1", "--show-time") == [
        f"{IDS[0]}  2024-06-09T23:59:59Z  n=0"
    ]


def test_a_count_may_be_larger_than_any_machine_counts() -> None:
    for words in ("range s k", "tail s k", "diff s s", "pending s k g"):
        assert "Traceback" not in run(*words.split(), "-n", str(2**64)).stderr


def test_tail_of_no_entries_prints_none() -> None:
    assert lines("tail", "s", "k", "-n", "0") == []
    assert objects("tail", "s", "k", "--count", "0")[0]["entries"] == 0
    assert "no stream 'nix'" in run("tail", "s", "nix", "-n", "0", status=6).stderr


def test_what_prints_one_number_has_json_too() -> None:
    def summary(*args: str, status: int = 0) -> dict[str, object]:
        [one] = objects(*args, status=status)
        assert one.pop("type") == "summary"
        assert one.pop("command") in (args[0], " ".join(args[:2]))
        return one

    assert summary("trim", "s", "k", "--maxlen", "4", "--exact") == {"count": 1}
    assert summary("trim", "s", "k", "--range", "-", "(2024-06-11") == {"count": 3}
    new = f"{DAY + 86_400_001}-0"
    assert summary("add", "s", "k", "a", "b", "--id", new) == {"key": "k", "id": new}
    assert summary("add", "s", "nix", "a", "b", "--nomkstream", status=6) == {
        "key": "nix",
        "id": None,
    }


def test_a_store_is_created_also_where_nothing_temporary_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tempfile.TemporaryDirectory", Mock(side_effect=OSError(28, "No space left on device"))
    )
    assert lines("add", "new", "k", "a", "b", "--id", "1-0") == ["1-0"]


def test_a_command_that_creates_a_store_runs_once() -> None:
    run("add", "new", "k", "a", "b", "--idmpauto", "p", "--id", "*")
    counters = objects("info", "new", "k")[0]
    assert (counters["entries_added"], counters["iids_duplicates"]) == (1, 0)


def test_a_missing_stream_has_one_status_whatever_the_command_prints() -> None:
    for args in (("range",), ("tail",), ("trim", "--maxlen", "1"), ("erase", "1-0", "--yes")):
        told = run(args[0], "s", "nix", *args[1:], status=6).stderr
        assert "'nix'" in told, args
        assert "next: streamkeep " in told, args
    for args in (("info",), ("stat",), ("dump",)):
        assert "no such key: 'nix'" in run(*args, "s", "nix", status=6).stderr
    told = run("archive", "restore", "s", "new", "--source", "nix", status=6).stderr
    assert "no such key: 'nix'" in told


def test_a_target_that_exists_is_status_3() -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    run("dump", "s", "--output", "full/file", status=3)
    run("repair", "s", "--output", "full", status=3)
    run("backup", "s", "full", status=3)


def test_a_damaged_file_of_no_store_names_no_store() -> None:
    Path("a.seg").write_bytes(b"x")
    assert "next:" not in run("dump", "--segment", "a.seg", status=4).stderr


def test_diff_names_the_store_that_is_not_there() -> None:
    for stores in (("s", "nix"), ("nix", "s")):
        told = run("diff", *stores, status=6).stderr
        assert "next: correct the path; `streamkeep create nix`" in told
    run("add", "t", "other", "a", "b")
    told = run("diff", "s", "t", "nokey", status=6).stderr
    assert re.search(r"no stream 'nokey', neither in s nor in t\nnext: .* streams s$", told[:-1])
    assert lines("diff", "s", "t", "other", status=7) == ["+ stream 'other': 1 entry"]


def test_diff_does_not_guess_which_store_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "streamkeep.tools.commands.diff_cmd.differences",
        Mock(side_effect=streamkeep.ChecksumError("macro node 5-0", "wrong checksum")),
    )
    run("add", "t", "k", "a", "b")
    told = run("diff", "s", "t", status=4).stderr
    assert "next: streamkeep fsck s; streamkeep fsck t" in told
