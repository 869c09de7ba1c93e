"""load: CSV and JSON Lines into a stream."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, reply, run
from streamkeep.transfer.loading import append

pytestmark = pytest.mark.usefixtures("sound_folder")


def write(name: str, text: str | bytes) -> str:
    """Write a file, gzip where its name says so; return the name."""
    data = text.encode() if isinstance(text, str) else text
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return name


def stored(key: str = "k") -> list[list[list[str]]]:
    """Return the fields of all entries."""
    return [one["fields"] for one in objects("range", "s", key)[:-1]]


# --- CSV ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.CSV.gz", "a.tsv", "a.tsv.gz"])
def test_csv_names_its_fields_in_the_first_line(name: str) -> None:
    text = 'sku,note\n7,"two, words"\n8,\n\n9,"line\nbreak"\n'
    if ".tsv" in name:
        text = text.replace(",", "\t").replace("two\t", "two,")
    Path(name).write_bytes(gzip.compress(text.encode()) if "gz" in name else text.encode())
    result = run("load", "s", "k", name)
    assert result.stdout == ""
    assert f"{name}: 3 entries into 'k', " in result.stderr
    assert stored() == [
        [["sku", "7"], ["note", "two, words"]],
        [["sku", "8"], ["note", ""]],
        [["sku", "9"], ["note", "line\nbreak"]],
    ]


def test_drop_empty_leaves_out_empty_cells_and_rows() -> None:
    write("a.csv", "a,b\n1,\n,\n,2\n")
    run("load", "s", "k", "a.csv", "--drop-empty")
    assert stored() == [[["a", "1"]], [["b", "2"]]]
    write("a.jsonl", "{}")
    run("load", "s", "k", "a.jsonl", "--drop-empty", status=2)


def test_csv_keeps_bytes_a_bom_and_duplicate_columns_apart() -> None:
    write("a.csv", b"\xef\xbb\xbff,f,\xff\r\n1,2,\x80\r\n")
    run("load", "s", "k", "a.csv")
    assert stored() == [[["f", "1"], ["f", "2"], [{"base64": "/w=="}, {"base64": "gA=="}]]]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a,b\n1,2\n1\n", 3, "1 cell, but line 1 names 2"),
        ("a,b\n1,2,3\n", 2, "3 cells, but line 1 names 2"),
        ('a\n"1\n2"\n"3"4\n', 4, "not CSV: "),
        ('a\n1\n"2\n3\n', 3, "not CSV: unexpected end of data"),
    ],
)
def test_a_malformed_csv_line_is_named(text: str, line: int, problem: str) -> None:
    write("a.csv", text)
    result = run("load", "s", "k", "a.csv", status=1)
    assert f"streamkeep load: a.csv line {line}: {problem}" in result.stderr
    assert "; nothing was stored" in result.stderr
    assert not Path("s").exists()


def test_utf_16_is_named() -> None:
    for name in ("a.csv", "a.jsonl"):
        write(name, "a,b\n1,2\n".encode("utf-16"))
        result = run("load", "s", "k", name, status=1)
        assert f"{name} line 1: UTF-16 text" in result.stderr
        assert "next: iconv" in result.stderr


def test_a_long_csv_cell_is_an_entry() -> None:
    write("a.csv", "a\n" + "x" * 5_000_000 + "\n")
    run("load", "s", "k", "a.csv")
    assert len(stored()[0][0][1]) == 5_000_000


# --- JSON Lines ---------------------------------------------------------------------------------


def test_json_members_become_fields_without_losing_a_digit() -> None:
    write(
        "a.jsonl",
        '\ufeff{"s":"x y","n":1.10,"i":123456789012345678901,"e":-1E+5,'
        '"t":true,"f":false,"z":null}\n'
        '\n  {"o": {"b": [1.50, "ü\\n", {}, []], "a": null}, "s": "", "": "e"}  \n'
        '{"d":"1","d":"2"}\n',
    )
    run("load", "s", "k", "a.jsonl")
    assert stored() == [
        [
            ["s", "x y"],
            ["n", "1.10"],
            ["i", "123456789012345678901"],
            ["e", "-1E+5"],
            ["t", "true"],
            ["f", "false"],
            ["z", "null"],
        ],
        [["o", '{"b":[1.50,"ü\\n",{},[]],"a":null}'], ["s", ""], ["", "e"]],
        [["d", "1"], ["d", "2"]],
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON: Expecting property name"),
        ("a,b", "not JSON: Expecting value at column 1"),
        ("[1]", "an array, but an object is expected"),
        ("1", "a number, but an object"),
        ('"x"', "a string, but an object"),
        ("null", "null, but an object"),
        ("{}", "an object without members"),
        ('{"a":NaN}', "NaN is not JSON"),
        ('{"a":"\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ('{"type":"entry","id":"5","fields":[["a","b"]]}', "'5' is not a complete ID"),
        ('{"type":"entry","id":5,"fields":[["a","b"]]}', "'id' is not a string"),
        ('{"type":"entry","id":"5-5","fields":[]}', "[field, value] pairs"),
        ('{"type":"entry","id":"5-5","fields":["ab"]}', "[field, value] pairs"),
        ('{"type":"entry","id":"5-5","fields":[["a"]]}', "[field, value] pairs"),
        ('{"type":"entry","id":"5-5","fields":[["a",1]]}', "expected a string or"),
        ('{"type":"entry","id":"5-5","fields":[["a",{"base64":"%"}]]}', "invalid base64"),
        ('{"type":"entry","id":"5-99999999999999999999","fields":[["a","b"]]}', "highest ID"),
        ('{"type":"entry","id":"0-0","fields":[["a","b"]]}', "ID 0-0 is not above "),
    ],
)
def test_a_malformed_json_line_is_named(text: str, problem: str) -> None:
    write("a.jsonl", '{"a":"b"}\n\n' + text + "\n")
    result = run("load", "s", "k", "a.jsonl", "--batch", "1", status=1)
    first = result.stderr.splitlines()[0]
    assert first.startswith("streamkeep load: a.jsonl line 3: ")
    assert problem in first
    assert first.endswith("; 1 entry stored, up to line 1")
    assert len(stored()) == 1


def test_bytes_that_are_not_utf_8_are_no_json() -> None:
    write("a.jsonl", b'{"a":"\xff"}\n')
    assert "line 1: not UTF-8 at byte 6" in run("load", "s", "k", "a.jsonl", status=1).stderr


def test_pretty_printed_json_gets_a_hint() -> None:
    write("a.json", '{\n  "a": 1\n}\n')
    assert "next: one object per line" in run("load", "s", "k", "a.json", status=1).stderr
    write("a.json", '[{"a": 1}]')
    assert "next: `jq -c '.[]' FILE`" in run("load", "s", "k", "a.json", status=1).stderr


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.jsonl", '{"a":"b"}\n{"a":"LONG"}', 2),
        ("a.csv", "a\nb\nLONG", 3),
        ("a.csv", 'a\nb\n"' + "x\n" * 200 + '"', 3),
        ("a.csv", "a\nb\n" + "," * 200, 3),
        ("a.csv", "a" + ",a" * 200, 1),
    ],
)
def test_a_line_beyond_the_limit_names_itself_and_the_option(
    name: str, text: str, line: int, end: str
) -> None:
    write(name, text.replace("LONG", "b" * 200) + end)
    told = run("load", "s", "k", name, "--max-line", "100", status=1).stderr
    assert f"line {line}: longer than 100 B, the limit of a line" in told
    assert "next: --max-line 200 takes lines twice as long" in told
    if "LONG" in text:
        run("load", "s", "k", name, "--max-line", "1k")
        assert len(stored()) == 2


def test_a_line_as_long_as_the_limit_is_taken() -> None:
    for name in ("a.csv", "a.csv.gz"):
        write(name, "a\n" + "b" * 99 + "\n" + "c" * 99 + "\n")
        run("load", "s", "k", name, "--max-line", "100")


def test_carriage_returns_end_lines_of_csv() -> None:
    write("a.csv", 'a,b\r1,2\r"3\r4",5\r')
    run("load", "s", "k", "a.csv")
    assert stored() == [[["a", "1"], ["b", "2"]], [["a", "3\r4"], ["b", "5"]]]


# --- what range --json prints -------------------------------------------------------------------


def test_what_range_prints_as_json_loads_back_equal() -> None:
    pairs = [
        [(b"a", b"1"), (b"a", b"2")],
        [(b"\xff", b"\0\x80"), (b"", b"")],
        [("ü".encode(), "\n\u2028".encode())],
    ]
    with streamkeep.open("s", sync="none") as store:
        for number, one in enumerate(pairs, start=1):
            store.xadd("k", one, id=f"{number}-{number}")
    text = run("range", "s", "k", "--json").stdout
    write("a.jsonl", text)
    run("load", "s", "copy", "a.jsonl")
    assert run("range", "s", "copy", "--json").stdout == text.replace('"key":"k"', '"key":"copy"')
    run("load", "s", "reversed", "--format", "jsonl", input=text, status=0)
    back = run("range", "s", "k", "--reverse", "--json").stdout
    assert "is not above" in run("load", "s", "r", "--format", "jsonl", input=back, status=1).stderr
    run("load", "s", "r", "--format", "jsonl", "--sort", input=back)
    assert stored("r") == stored("k")


def test_events_of_type_entry_and_summary_are_ordinary_rows() -> None:
    write("a.jsonl", '{"type":"entry","amount":5}\n{"type":"summary","entries":5}\n')
    run("load", "s", "k", "a.jsonl")
    assert len(stored()) == 2


# --- IDs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "unit", "ms"),
    [
        ("2024-06-10T07:33:20Z", "auto", 1718004800000),
        ("2024-06-10 07:33:20.1239", "auto", 1718004800123),
        ("2024-06-10T09:33:20+02:00", "iso", 1718004800000),
        ("2024-06-10", "auto", 1717977600000),
        ("20240610", "iso", 1717977600000),
        ("1718004800", "auto", 1718004800000),
        ("1718004800.5", "auto", 1718004800500),
        ("1718004800123", "auto", 1718004800123),
        ("1718004800123456", "auto", 1718004800123),
        ("1.718004800123e12", "auto", 1718004800123),
        ("100000000", "auto", 100000000000),
        ("7", "s", 7000),
        ("7.0009", "s", 7000),
        ("7", "ms", 7),
        ("7999", "us", 7),
        (" 1718004800 ", "s", 1718004800000),
    ],
)
def test_times_become_ids(text: str, unit: str, ms: int) -> None:
    write("a.csv", f"n,at\n1,{text}\n2,{text}\n")
    run("load", "s", "k", "a.csv", "--time", "at", "--time-unit", unit)
    assert [line.split()[0] for line in lines("range", "s", "k")] == [f"{ms}-0", f"{ms}-1"]
    assert stored()[0] == [["n", "1"], ["at", text]]


@pytest.mark.parametrize(
    ("text", "unit", "problem"),
    [
        ("", "auto", "no time"),
        ("yesterday", "auto", "is not a time"),
        ("yesterday", "ms", "is not a number of ms"),
        ("1718004800", "iso", "is not a time"),
        ("20240610", "auto", "may be several times; its unit must be given"),
        ("1718004800123456789", "auto", "may be several times"),
        ("-5", "auto", "is before 1970"),
        ("1969-12-31", "auto", "is before 1970"),
        ("1e30", "ms", "is beyond the highest"),
    ],
)
def test_what_is_no_time_is_named(text: str, unit: str, problem: str) -> None:
    write("a.csv", f"n,at\n1,{text}\n")
    result = run("load", "s", "k", "a.csv", "--time", "at", "--time-unit", unit, status=1)
    assert "a.csv line 2: column 'at': " in result.stderr
    assert problem in result.stderr


def test_json_times_are_strings_or_numbers() -> None:
    write("a.jsonl", '{"at":1718004800.25,"a":1}\n{"at":"2024-06-10T07:33:21Z"}\n')
    run("load", "s", "k", "a.jsonl", "--time", "at")
    ids = [line.split()[0] for line in lines("range", "s", "k")]
    assert ids == ["1718004800250-0", "1718004801000-0"]
    for value, problem in (
        ("null", "is null"),
        ("[1]", "is an array"),
        ("true", "is true or false"),
    ):
        write("b.jsonl", f'{{"at":{value}}}\n')
        assert problem in run("load", "s", "x", "b.jsonl", "--time", "at", status=1).stderr
    assert (
        "no member 'on'; there are at, a"
        in run("load", "s", "x", "a.jsonl", "--time", "on", status=1).stderr
    )


def test_a_column_can_hold_complete_ids() -> None:
    write("a.csv", "id,v\n5-1,a\n5-2,b\n7-0,c\n")
    run("load", "s", "k", "a.csv", "--id", "id")
    assert [line.split()[0] for line in lines("range", "s", "k")] == ["5-1", "5-2", "7-0"]
    write("a.csv", "id,v\n8,a\n")
    assert "not a complete ID" in run("load", "s", "k", "a.csv", "--id", "id", status=1).stderr


def test_a_column_that_is_missing_or_ambiguous_is_named() -> None:
    write("a.csv", "a,b,b\n1,2,3\n")
    result = run("load", "s", "k", "a.csv", "--time", "at", status=1)
    assert "line 1: no column 'at'; there are a, b, b" in result.stderr
    result = run("load", "s", "k", "a.csv", "--id", "b", status=1)
    assert "2 columns are called 'b'" in result.stderr


def test_rows_out_of_order_are_refused_by_line_and_sorted_on_request() -> None:
    write("a.csv", "n,at\n1,2024-06-10\n2,2024-06-12\n3,2024-06-11\n4,2024-06-10\n")
    result = run("load", "s", "k", "a.csv", "--time", "at", status=1)
    assert result.stderr.splitlines() == [
        "streamkeep load: a.csv line 4: 2024-06-11T00:00:00Z is before 2024-06-12T00:00:00Z, the "
        "row before; IDs must rise; nothing was stored",
        "next: --sort puts the file in order",
    ]
    run("load", "s", "k", "a.csv", "--time", "at", "--sort")
    assert [fields[0][1] for fields in stored()] == ["1", "4", "3", "2"]


def test_rows_older_than_the_stream_are_refused_also_when_sorted() -> None:
    run("add", "s", "k", "f", "v", "--id", "1718004800000-5")
    write("a.csv", "n,at\n1,2024-06-10T07:33:21Z\n2,2024-06-10T07:33:19Z\n")
    result = run("load", "s", "k", "a.csv", "--time", "at", "--sort", status=1)
    assert "line 3: 2024-06-10T07:33:19Z is before 2024-06-10T07:33:20Z, the last ID of 'k'" in (
        result.stderr
    )
    assert reply("s", "XLEN", "k") == 1
    write("a.csv", "n,at\n1,2024-06-10T07:33:20Z\n")
    run("load", "s", "k", "a.csv", "--time", "at")
    assert lines("range", "s", "k")[1].startswith("1718004800000-6  ")


def test_sort_needs_something_to_sort_by() -> None:
    write("a.csv", "n\n1\n")
    assert (
        "line 2: sorting needs a time or an ID"
        in run("load", "s", "k", "a.csv", "--sort", status=1).stderr
    )


def test_an_id_that_the_store_refuses_names_its_batch() -> None:
    write("a.jsonl", '{"a":"b"}\n{"type":"entry","id":"5-5","fields":[["a","b"]]}\n')
    result = run("load", "s", "k", "a.jsonl", status=1)
    assert "a.jsonl line 1: this or a later line up to 2: ERR The ID specified in XADD" in (
        result.stderr
    )
    assert "nothing was stored" in result.stderr


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fifty_thousand_lines_in_batches() -> None:
    text = "".join(f'{{"n":{n},"at":{1718004800000 + n // 7}}}\n' for n in range(50_000))
    write("a.jsonl.gz", text)
    [summary] = objects("load", "s", "k", "a.jsonl.gz", "--time", "at", "--sync", "none")
    assert summary.pop("duration_ms") >= 0
    assert summary == {
        "type": "summary",
        "command": "load",
        "key": "k",
        "file": "a.jsonl.gz",
        "entries": 50_000,
        "first_id": "1718004800000-0",
        "last_id": "1718004807142-5",
    }
    found = lines("range", "s", "k")
    assert found[0] == "1718004800000-0  n=0 at=1718004800000"
    assert found[-1] == "1718004807142-5  n=49999 at=1718004807142"
    assert reply("s", "XLEN", "k") == 50000


def test_a_bad_line_costs_its_batch_only_and_says_how_to_go_on() -> None:
    good = "".join(f'{{"n":{n}}}\n' for n in range(2500))
    write("a.jsonl", good + "oops\n" + '{"n":2500}\n')
    result = run("load", "s", "k", "a.jsonl", status=1)
    assert result.stderr.splitlines() == [
        "streamkeep load: a.jsonl line 2501: not JSON: Expecting value at column 1; "
        "2,000 entries stored, up to line 2000",
        "next: --from-line 2001 continues after them",
    ]
    assert reply("s", "XLEN", "k") == 2000
    write("a.jsonl", good + '{"n":2500}\n')
    run("load", "s", "k", "a.jsonl", "--from-line", "2001")
    assert [fields[0][1] for fields in stored()] == [str(n) for n in range(2501)]


def test_from_line_counts_the_lines_of_a_csv_file() -> None:
    write("a.csv", 'n\n1\n"2\n2"\n3\n')
    run("load", "s", "k", "a.csv", "--from-line", "4")
    assert stored() == [[["n", "3"]]]


def test_large_entries_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "BATCH_BYTES", 1000)
    write("a.jsonl", f'{{"n":"{"x" * 600}"}}\n' * 5 + "oops\n")
    result = run("load", "s", "k", "a.jsonl", status=1)
    assert "4 entries stored, up to line 4" in result.stderr


def test_a_file_without_rows_creates_no_store() -> None:
    for name, text in (("a.csv", ""), ("b.csv", "a,b\n"), ("c.jsonl", "\n\n"), ("d.csv.gz", "")):
        write(name, text)
        assert run("load", "s", "k", name).stderr == f"{name}: no entries\n"
    assert not Path("s").exists()


def test_a_damaged_gzip_file_is_named() -> None:
    whole = gzip.compress("".join(f'{{"n":"{n * 7919}"}}\n' for n in range(5000)).encode())
    write("cut.jsonl", whole[:-2000])
    result = run("load", "s", "k", "cut.jsonl", status=1)
    assert "the gzip file is damaged or cut off here" in result.stderr
    broken = bytearray(whole)
    broken[len(whole) // 2 : len(whole) // 2 + 50] = b"\xff" * 50
    write("broken.jsonl", bytes(broken))
    run("load", "s", "other", "broken.jsonl", status=1)


def test_the_sync_mode_is_the_stores() -> None:
    write("a.csv", "n\n1\n")
    for sync in ("commit", "interval", "none"):
        run("load", "s", sync, "a.csv", "--sync", sync)
        assert reply("s", "XLEN", sync) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-"], "add --format"),
        ([], "add --format"),
        (["a.txt"], "add --format"),
        (["missing.csv"], "does not exist"),
        (["a.txt", "--format", "xml"], "--format"),
        (["a.txt", "--format", "csv", "--time", "a", "--id", "b"], "cannot be used together"),
        (["a.txt", "--format", "csv", "--time-unit", "s"], "--time-unit needs --time"),
        (["a.txt", "--format", "csv", "--batch", "0"], "--batch"),
    ],
)
def test_a_wrong_command_line_is_status_2(args: list[str], message: str) -> None:
    write("a.txt", "n\n1\n")
    assert message in run("load", "s", "k", *args, status=2).stderr
    assert not Path("s").exists()


def test_any_name_will_do_with_a_format() -> None:
    write("a.txt", "n\n1\n")
    run("load", "s", "k", "a.txt", "--format", "csv")
    run("load", "s", "k", "--format", "jsonl", input='{"n":"2"}')
    run("load", "s", "k", "-", "--format", "tsv", input=gzip.compress(b"n\tm\n3\t4\n"))
    assert stored() == [[["n", "1"]], [["n", "2"]], [["n", "3"], ["m", "4"]]]


def test_progress_goes_to_standard_error_only() -> None:
    write("a.csv", "n\n" + "1\n" * 3000)
    result = run("load", "s", "k", "a.csv", "--progress")
    assert result.stdout == ""
    assert "a.csv" in result.stderr
    assert "3,000 entries" in result.stderr
    result = run("load", "s", "k", "--format", "csv", "--progress", input="n\n1\n")
    assert "standard input" in result.stderr
    assert json.loads(run("load", "s", "k", "a.csv", "--json", "--no-progress").stdout)
