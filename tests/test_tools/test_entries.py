"""Commands on entries: add, range, tail, trim."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, reply, run

pytestmark = pytest.mark.usefixtures("sound_folder")


def fill(count: int, key: str = "k", path: str = "s") -> None:
    """Store entries 1-0, 2-0, ... with one field."""
    with streamkeep.open(path, sync="none") as store:
        ids = [f"{n}-0" for n in range(1, count + 1)]
        store.xadd_many(key, [{"n": str(n)} for n in range(1, count + 1)], ids)


def test_add_takes_ids_from_the_clock_or_numbers_them_within_a_millisecond() -> None:
    assert lines("add", "s", "k", "f", "v", "--id", "5-*") == ["5-0"]
    assert lines("add", "s", "k", "f", "v", "--id", "5-*") == ["5-1"]
    [new_id] = lines("add", "s", "k", "f", "v")
    assert int(new_id.split("-")[0]) > 1_700_000_000_000


@pytest.mark.parametrize("pairs", [("a", "1"), ("a", "1", "a", "2")])
def test_add_trims_whether_or_not_fields_repeat(pairs: tuple[str, ...]) -> None:
    fill(10)
    run("add", "s", "k", *pairs, "--maxlen", "3", "--exact")
    assert reply("s", "XLEN", "k") == 3
    run("add", "s", "k", *pairs, "--minid", "10", "--exact")
    assert lines("range", "s", "k")[0] == "10-0  n=10"


@pytest.mark.parametrize("pairs", [("a", "1"), ("a", "1", "a", "2")])
def test_add_with_nomkstream_makes_no_stream(pairs: tuple[str, ...]) -> None:
    fill(1)
    result = run("add", "s", "new", *pairs, "--nomkstream", status=6)
    assert result.stdout == ""
    assert result.stderr == ("streamkeep add: no stream 'new' in s\nnext: streamkeep streams s\n")
    missing = run("add", "none", "new", *pairs, "--nomkstream", status=6)
    assert missing.stdout == ""
    assert "next: correct the path" in missing.stderr  # not the command again
    assert not Path("none").exists()


def test_add_takes_numbers_below_zero_and_anything_behind_two_dashes_as_values() -> None:
    run("add", "s", "k", "temp", "-5.3", "x", "-.5", "--id", "1-0", "y", "-", "z", "-1")
    run("add", "--id", "2-0", "s", "k", "--", "--id", "-x")
    assert lines("range", "s", "k") == ["1-0  temp=-5.3 x=-.5 y=- z=-1", "2-0  --id=-x"]


def test_an_empty_name_is_no_store() -> None:
    assert "the name is empty" in run("add", "", "k", "f", "v", status=2).stderr
    assert list(Path().iterdir()) == []


def test_redis_errors_are_status_1_with_the_line_of_redis() -> None:
    fill(5)
    result = run("add", "s", "k", "f", "v", "--id", "3-0", status=1)
    assert result.stdout == ""
    assert result.stderr == (
        "streamkeep add: ERR The ID specified in XADD is equal or smaller than the target stream "
        "top item\nnext: streamkeep info s k\n"
    )
    assert "ERR Invalid stream ID" in run("range", "s", "k", "x", status=1).stderr


def test_a_message_that_is_sent_again_is_not_added_again() -> None:
    send = ("add", "s", "k", "--idmp", "till", "4711", "sku", "7")
    first = lines(*send)
    assert lines(*send) == first
    assert lines("add", "s", "k", "sku", "8", "--idmp", "till", "4712") != first
    auto = ("add", "s", "k", "a", "1", "a", "2", "--idmpauto", "till")
    assert lines(*auto) == lines(*auto)
    assert reply("s", "XLEN", "k") == 3
    counters = objects("info", "s", "k")[0]
    assert (counters["pids_tracked"], counters["iids_duplicates"]) == (1, 2)


def test_range_takes_ids_ends_and_counts() -> None:
    fill(5)
    assert lines("range", "s", "k", "2", "3") == ["2-0  n=2", "3-0  n=3"]
    assert lines("range", "s", "k", "(2", "+", "--count", "1") == ["3-0  n=3"]
    assert lines("range", "s", "k", "-", "(2-0") == ["1-0  n=1"]
    assert lines("range", "s", "k", "--reverse", "--count", "2") == ["5-0  n=5", "4-0  n=4"]
    assert lines("range", "s", "k", "-", "(3-0", "--reverse") == ["2-0  n=2", "1-0  n=1"]
    run("range", "s", "k", "--count", "0", status=2)


def test_tail_prints_the_last_entries_oldest_first() -> None:
    fill(600)
    assert lines("tail", "s", "k", "-n", "2") == ["599-0  n=599", "600-0  n=600"]
    assert lines("tail", "s", "k", "-n2") == lines("tail", "s", "-n", "2", "k")
    assert len(lines("tail", "s", "k")) == 10
    assert lines("tail", "s", "k", "-n1000") == lines("range", "s", "k")
    assert lines("tail", "s", "k", "--count", "600") == lines("range", "s", "k")
    assert lines("tail", "s", "k", "--count", "599") == lines("range", "s", "k")[1:]


def test_json_prints_one_object_per_line_and_a_summary() -> None:
    fill(2)
    assert lines("range", "s", "k", "--json") == [
        '{"type":"entry","id":"1-0","time_ms":1,"fields":[["n","1"]]}',
        '{"type":"entry","id":"2-0","time_ms":2,"fields":[["n","2"]]}',
        '{"type":"summary","command":"range","key":"k","entries":2}',
    ]
    assert objects("tail", "s", "k", "-n", "1")[0]["id"] == "2-0"
    assert objects("range", "s", "k", "--reverse")[-1]["command"] == "range"
    assert objects("range", "s", "none", status=6)[-1]["entries"] == 0


def test_binary_arguments_are_taken_as_they_are_and_shown_escaped() -> None:
    run("add", "s", b"\xff\xfe", b"\x80f", "a\nb", "ü", "Grüße", "sp", "two words", "--id", "1-0")
    [text] = lines("range", "s", b"\xff\xfe")
    assert text == r'1-0  "\x80f"="a\nb" ü=Grüße sp="two words"'
    assert r'no stream "\xff" in s' in run("range", "s", b"\xff", status=6).stderr


def test_quoted_input_is_what_text_shows() -> None:
    with streamkeep.open("s", sync="none") as store:
        store.xadd(b"a\0b", [(b'"', b"\\")], id="1-0")
    assert lines("range", "s", "--quoted-input", r'"a\x00b"') == [r'1-0  "\""=\ '.rstrip()]
    run("range", "s", r'"a\x00b"', status=6)
    run("add", "s", r'"\"\\\n\r\t\a\b\x41 "', "f", "v", "--quoted-input", "--id", "1-0")
    assert objects("streams", "s")[0]["key"] == '"\\\n\r\t\a\bA '
    for wrong in ('"', '"a', r'"\q"', r'"\x0"', '"a"b"'):
        assert wrong in run("range", "s", "--quoted-input", wrong, status=2).stderr


def test_a_huge_value_is_printed_whole() -> None:
    with streamkeep.open("s", sync="none") as store:
        store.xadd("k", {"f": b"x" * 2_000_000, "g": b"\xff" * 1000}, id="1-0")
    [text] = lines("range", "s", "k")
    assert text == f'1-0  f={"x" * 2_000_000} g="{chr(92)}xff' + r"\xff" * 999 + '"'
    assert len(objects("range", "s", "k")[0]["fields"][0][1]) == 2_000_000


def test_trim_exact_trims_to_the_entry() -> None:
    fill(10)
    assert lines("trim", "s", "k", "--maxlen", "7", "--exact") == ["3 entries removed"]
    assert lines("trim", "s", "k", "--minid", "9", "--exact") == ["5 entries removed"]
    assert lines("range", "s", "k") == ["9-0  n=9", "10-0  n=10"]
    run("add", "s", "k", "n", "11")
    assert lines("trim", "s", "k", "--older-than", "1h", "--exact") == ["2 entries removed"]
    for limit in ("--minid", "--maxlen"):
        result = run("trim", "s", "k", "--older-than", "1h", limit, "1", status=2)
        assert f"{limit} cannot be used with --older-than" in result.stderr


def test_trim_approximate_says_that_more_is_left() -> None:
    fill(10)
    for option in (("--maxlen", "7"), ("--minid", "5-0")):
        result = run("trim", "s", "k", *option)
        assert result.stdout == "0 entries removed\n"
        assert "--exact" in result.stderr
    assert run("trim", "s", "k", "--maxlen", "10").stderr == ""
    assert run("trim", "s", "k", "--minid", "1-0").stderr == ""


def test_trim_removes_whole_nodes_up_to_its_limit() -> None:
    fill(2000)
    result = run("trim", "s", "k", "--maxlen", "10", "--limit", "1000")
    assert 0 < int(result.stdout.removesuffix(" entries removed\n")) <= 1000
    assert "see --limit; --exact" in result.stderr
    for more in ((), ("--limit", "0")):  # 10,000 without it, which these do not reach
        result = run("trim", "s", "k", "--maxlen", "10", *more)
        assert "--exact" in result.stderr
        assert "see --limit" not in result.stderr
    assert "is required" in run("trim", "s", "k", status=2).stderr


def test_reading_commands_do_not_change_the_data_file() -> None:
    fill(300)
    fill(3, key="other")

    def digest() -> str:
        return hashlib.sha256(Path("s/data.mdb").read_bytes()).hexdigest()

    before, status = digest(), Path("s/data.mdb").stat()
    for args in (
        ("exec", "s", "XREAD", "STREAMS", "k", "other", "0", "0"),
        ("range", "s", "k"),
        ("range", "s", "k", "--reverse", "--json"),
        ("tail", "s", "k"),
        ("info", "s", "k"),
        ("streams", "s"),
        ("stat", "s"),
        ("stat", "s", "k", "--json"),
    ):
        run(*args)
        assert digest() == before, args
    assert Path("s/data.mdb").stat().st_mtime_ns == status.st_mtime_ns
    names = sorted(path.name for path in Path("s").iterdir())
    assert names == ["data.mdb", "journal", "lock.mdb", "steady", "waiters"]


def test_damage_is_status_4_after_what_could_be_read() -> None:
    with streamkeep.open("s", sync="none") as store:
        entries = [{"n": f"value-{n:04}."} for n in range(2000)]
        store.xadd_many("k", entries, [f"{n}-0" for n in range(1, 2001)])
    data = bytearray(Path("s/data.mdb").read_bytes())
    assert data.count(b"value-1500.") == 1
    data[data.index(b"value-1500.")] ^= 1
    Path("s/data.mdb").write_bytes(data)
    result = run("range", "s", "k", status=4)
    assert result.stderr.startswith("streamkeep range: macro node ")
    assert result.stdout.startswith("1-0  n=value-0000.\n")
    assert "value-1500" not in result.stdout
    Path("s/data.mdb").unlink()
