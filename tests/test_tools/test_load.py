"""load: CSV and JSON Lines into a stream."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, reply, run
from streamkeep.transfer import load_file as loading

pytestmark = pytest.mark.usefixtures("sound_folder")


def write(name: str, text: str | bytes) -> str:
    """Write a file, gzip where its name says so; return the name."""
    data = text.encode() if isinstance(text, str) else text
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return name


def load(name: str, text: str | bytes, *options: str, status: int = 0) -> str:
    """Load a file with this text into `k`; return the messages."""
    return run("load", "s", "k", write(name, text), *options, status=status).stderr


def stored(key: str = "k") -> list[list[list[str]]]:
    return [one["fields"] for one in objects("range", "s", key)[:-1]]


def ids() -> list[str]:
    return [line.split()[0] for line in lines("range", "s", "k")]


@pytest.mark.parametrize("name", ["a.csv", "a.CSV.gz", "a.tsv", "a.tsv.gz"])
def test_csv_names_its_fields_in_the_first_line(name: str) -> None:
    text = 'sku,note\n7,"two, words"\n8,\n\n9,"line\nbreak"\n'
    if ".tsv" in name:
        text = text.replace(",", "\t").replace("two\t", "two,")
    assert f"{name}: 3 entries into 'k', " in load(name, text)
    assert stored() == [
        [["sku", "7"], ["note", "two, words"]],
        [["sku", "8"], ["note", ""]],
        [["sku", "9"], ["note", "line\nbreak"]],
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            b"\xef\xbb\xbff,f,\xff\r\n1,2,\x80\r\n",
            [[["f", "1"], ["f", "2"], [{"base64": "/w=="}, {"base64": "gA=="}]]],
        ),
        ('a,b\r1,2\r"3\r4",5\r', [[["a", "1"], ["b", "2"]], [["a", "3\r4"], ["b", "5"]]]),
        ("a\n" + "x" * 5_000_000 + "\n", [[["a", "x" * 5_000_000]]]),
    ],
    ids=["bytes, a BOM and two columns of one name", "carriage returns", "a long cell"],
)
def test_csv_may_have(text: str | bytes, found: object) -> None:
    load("a.csv", text)
    assert stored() == found


def test_json_members_become_fields_without_losing_a_digit() -> None:
    load(
        "a.jsonl",
        '\ufeff{"s":"x y","n":1.10,"i":123456789012345678901,"e":-1E+5,"t":true,"z":null}\n'
        '\n  {"o": {"b": [1.50, "ü\\n", {}, []], "a": null}, "s": "", "": "e"}  \n'
        '{"d":"1","d":"2"}\n',
    )
    first = "s=x y,n=1.10,i=123456789012345678901,e=-1E+5,t=true,z=null"
    assert stored() == [
        [pair.split("=") for pair in first.split(",")],
        [["o", '{"b":[1.50,"ü\\n",{},[]],"a":null}'], ["s", ""], ["", "e"]],
        [["d", "1"], ["d", "2"]],
    ]


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
    run("load", "s", "copy", write("a.jsonl", text))
    assert run("range", "s", "copy", "--json").stdout == text.replace('"key":"k"', '"key":"copy"')
    back = run("range", "s", "k", "--reverse", "--json").stdout
    assert "is not above" in run("load", "s", "r", "--format", "jsonl", input=back, status=1).stderr
    run("load", "s", "r", "--format", "jsonl", "--sort", input=back)
    assert stored("r") == stored("k")


def test_events_of_type_entry_and_summary_are_ordinary_rows() -> None:
    load("a.jsonl", '{"type":"entry","amount":5}\n{"type":"summary","entries":5}\n')
    assert len(stored()) == 2


def test_any_name_will_do_with_a_format() -> None:
    load("a.txt", "n\n1\n", "--format", "csv")
    run("load", "s", "k", "--format", "jsonl", input='{"n":"2"}')
    run("load", "s", "k", "-", "--format", "tsv", input=gzip.compress(b"n\tm\n3\t4\n"))
    assert stored() == [[["n", "1"]], [["n", "2"]], [["n", "3"], ["m", "4"]]]
    told = run("load", "s", "-", "--format", "jsonl", input='{"n":"2"}', status=1).stderr
    assert "name the stream that these rows go to" in told


def test_a_file_without_rows_creates_no_store() -> None:
    for name, text in (("a.csv", ""), ("b.csv", "a,b\n"), ("c.jsonl", "\n\n"), ("d.csv.gz", "")):
        assert load(name, text) == f"{name}: no entries\n"
    assert not Path("s").exists()


def entry(id: str, fields: str = '[["a","b"]]') -> str:
    return f'{{"type":"entry","id":{id},"fields":{fields}}}'


# What the parser reads, and what writes it again cannot: both have limits of their own.
DEEP = 850 if sys.version_info < (3, 12) else 5000


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
        ('{"a":' + "[" * DEEP + "]" * DEEP + "}", "nested too deeply"),
        (entry('"5"'), "'5' is not a complete ID"),
        (entry("5"), "'id' is not a string"),
        (entry('"5-5"', "[]"), "[field, value] pairs"),
        (entry('"5-5"', '["ab"]'), "[field, value] pairs"),
        (entry('"5-5"', '[["a"]]'), "[field, value] pairs"),
        (entry('"5-5"', '[["a",1]]'), "expected a string or"),
        (entry('"5-5"', '[["a",{"base64":"%"}]]'), "invalid base64"),
        (entry('"5-99999999999999999999"'), "highest ID"),
        (entry('"0-0"'), "ID 0-0 is not above "),
    ],
)
def test_a_malformed_json_line_is_named(text: str, problem: str) -> None:
    told = load("a.jsonl", '{"a":"b"}\n\n' + text + "\n", "--batch", "1", status=1)
    first = told.splitlines()[0]
    assert first.startswith("streamkeep load: a.jsonl line 3: ")
    assert problem in first
    assert first.endswith("; 1 entry stored, up to line 1")
    assert len(stored()) == 1


TIMED = "n,at\n1,{}\n"


@pytest.mark.parametrize(
    ("name", "text", "options", "problem"),
    [
        ("a.csv", "a,b\n1,2\n1\n", "", "line 3: 1 cell, but line 1 names 2"),
        ("a.csv", "a,b\n1,2,3\n", "", "line 2: 3 cells, but line 1 names 2"),
        ("a.csv", 'a\n"1\n2"\n"3"4\n', "", "line 4: not CSV: "),
        ("a.csv", 'a\n1\n"2\n3\n', "", "line 3: not CSV: unexpected end of data"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16"), "", "line 1: UTF-16 text"),
        ("a.jsonl", "a,b\n1,2\n".encode("utf-16"), "", "next: iconv"),
        ("a.jsonl", b'{"a":"\xff"}\n', "", "line 1: not UTF-8 at byte 6"),
        ("a.json", '{\n  "a": 1\n}\n', "", "next: one object per line"),
        ("a.json", '[{"a": 1}]', "", "next: `jq -c '.[]' FILE`"),
        ("a.csv", TIMED.format(""), "--time at", "line 2: column 'at': no time"),
        ("a.csv", TIMED.format("yesterday"), "--time at", "line 2: column 'at': "),
        ("a.jsonl", '{"at":null}\n', "--time at", "is null"),
        ("a.jsonl", '{"at":[1]}\n', "--time at", "is an array"),
        ("a.jsonl", '{"at":true}\n', "--time at", "is true or false"),
        ("a.jsonl", '{"at":1,"a":2}\n', "--time on", "no member 'on'; there are at, a"),
        ("a.csv", "id,v\n8,a\n", "--id id", "not a complete ID"),
        ("a.csv", "a,b,b\n1,2,3\n", "--time at", "line 1: no column 'at'; there are a, b, b"),
        ("a.csv", "a,b,b\n1,2,3\n", "--id b", "2 columns are called 'b'"),
        ("a.csv", "n\n1\n", "--sort", "line 2: sorting needs a time or an ID"),
        ("a.jsonl", '{"a":"b"}\n' + entry('"5-5"'), "", "line 2: ERR"),
    ],
)
def test_what_cannot_be_taken_is_named_and_nothing_is_stored(
    name: str, text: str | bytes, options: str, problem: str
) -> None:
    told = load(name, text, *options.split(), status=1)
    assert told.startswith(f"streamkeep load: {name} line ")
    assert problem in told
    assert "; nothing was stored" in told
    assert not Path("s").exists()


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
    told = load(name, text.replace("LONG", "b" * 200) + end, "--max-line", "100", status=1)
    assert f"line {line}: longer than 100 B, the limit of a line" in told
    assert "next: --max-line 200 takes lines twice as long" in told
    if "LONG" in text:
        run("load", "s", "k", name, "--max-line", "1k")
        assert len(stored()) == 2


def test_a_line_as_long_as_the_limit_is_taken() -> None:
    for name in ("a.csv", "a.csv.gz"):
        load(name, "a\n" + "b" * 99 + "\n" + "c" * 99 + "\n", "--max-line", "100")


def test_a_damaged_gzip_file_is_named() -> None:
    whole = gzip.compress("".join(f'{{"n":"{n * 7919}"}}\n' for n in range(5000)).encode())
    told = load("cut.jsonl", whole[:-2000], status=1)
    assert "the gzip file is damaged or cut off" in told
    broken = bytearray(whole)
    broken[len(whole) // 2 : len(whole) // 2 + 50] = b"\xff" * 50
    load("broken.jsonl", bytes(broken), status=1)
    told = load("header.jsonl", whole[:5], status=1)
    assert "the gzip file is damaged or cut off" in told


@pytest.mark.parametrize(
    ("text", "unit", "ms"), [("2024-06-10T09:33:20+02:00", "iso", 1718004800000), ("7999", "us", 7)]
)
def test_times_become_ids(text: str, unit: str, ms: int) -> None:
    load("a.csv", f"n,at\n1,{text}\n2,{text}\n", "--time", "at", "--time-unit", unit)
    assert ids() == [f"{ms}-0", f"{ms}-1"]
    assert stored()[0] == [["n", "1"], ["at", text]]


def test_json_times_are_strings_or_numbers_and_a_column_can_hold_complete_ids() -> None:
    load("a.csv", "id,v\n5-1,a\n5-2,b\n7-0,c\n", "--id", "id")
    text = '{"at":1718004800.25,"a":1}\n{"at":"2024-06-10T07:33:21Z"}\n'
    load("a.jsonl", text, "--time", "at")
    assert ids() == ["5-1", "5-2", "7-0", "1718004800250-0", "1718004801000-0"]


def test_rows_out_of_order_are_refused_by_line_and_sorted_on_request() -> None:
    text = "n,at\n1,2024-06-10\n2,2024-06-12\n3,2024-06-11\n4,2024-06-10\n"
    assert load("a.csv", text, "--time", "at", status=1).splitlines() == [
        "streamkeep load: a.csv line 4: 2024-06-11T00:00:00Z is before 2024-06-12T00:00:00Z, the "
        "row before; IDs must rise; nothing was stored",
        "next: --sort puts the file in order",
    ]
    load("a.csv", text, "--time", "at", "--sort")
    assert [fields[0][1] for fields in stored()] == ["1", "4", "3", "2"]


def test_rows_older_than_the_stream_are_refused_also_when_sorted() -> None:
    run("add", "s", "k", "f", "v", "--id", "1718004800000-5")
    text = "n,at\n1,2024-06-10T07:33:21Z\n2,2024-06-10T07:33:19Z\n"
    told = load("a.csv", text, "--time", "at", "--sort", status=1)
    assert "line 3: 2024-06-10T07:33:19Z is before 2024-06-10T07:33:20Z, the last ID of 'k'" in told
    assert reply("s", "XLEN", "k") == 1
    load("a.csv", "n,at\n1,2024-06-10T07:33:20Z\n", "--time", "at")
    assert ids()[1] == "1718004800000-6"


def test_from_line_counts_the_lines_of_a_csv_file() -> None:
    load("a.csv", 'n\n1\n"2\n2"\n3\n', "--from-line", "4")
    assert stored() == [[["n", "3"]]]


def test_large_entries_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "BATCH_BYTES", 1000)
    told = load("a.jsonl", f'{{"n":"{"x" * 600}"}}\n' * 5 + "oops\n", status=1)
    assert "4 entries stored, up to line 4" in told
    assert "next: --from-line 5 continues after them" in told


def test_progress_goes_to_standard_error_only() -> None:
    write("a.csv", "n\n" + "1\n" * 3000)
    result = run("load", "s", "k", "a.csv", "--progress")
    assert result.stdout == ""
    assert "a.csv" in result.stderr
    assert "3,000 entries" in result.stderr
    result = run("load", "s", "k", "--format", "csv", "--progress", input="n\n1\n")
    assert "standard input" in result.stderr
    assert json.loads(run("load", "s", "k", "a.csv", "--json", "--no-progress").stdout)
