"""load of tables: CSV and Parquet files with streams, IDs and fields in columns."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

import pyarrow as pa
from pyarrow import parquet

import streamkeep
from cli_runner import lines, run
from dumped_stores import differences, keys_of

pytestmark = pytest.mark.usefixtures("sound_folder")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_one_stream_of_a_table_can_be_appended(kind: str) -> None:
    for number, key in enumerate(("a", "b", "a", "b\xff")):
        run("add", "s", key, f"n{key}", str(number), "--id", f"{number}-1")
    table = f"all.{kind}"
    run("dump", "s", "--output", table)
    result = run("load", "u", "nix", table, status=1)
    assert f"{table}: no stream 'nix' in it; there is 'a', 'b', 'b\xff'" in result.stderr
    assert not Path("u").exists()
    assert "1 entry into 'b'" in run("load", "u", "b", table).stderr
    assert lines("range", "u", "b") == ["1-1  nb=1"]
    assert "2 entries into 'a'" in run("load", "u", "a", table, "--batch", "1").stderr
    assert lines("range", "u", "a") == ["0-1  na=0", "2-1  na=2"]
    assert "is not above" in run("load", "u", "a", table, status=1).stderr


def test_a_table_that_only_looks_like_a_dump_is_named_by_its_columns() -> None:
    Path("a.csv").write_text("stream,id,at\nx,1-0,2024-06-10\ny,2-0,2024-06-11\n")
    run("load", "s", "k", "a.csv", "--time", "at")
    assert lines("range", "s", "k")[0] == "1717977600000-0  stream=x id=1-0 at=2024-06-10"
    assert "no stream 'k'" in run("load", "t", "k", "a.csv", "--id", "id", status=1).stderr
    run("load", "t", "y", "a.csv", "--id", "id")
    assert lines("range", "t", "y") == ["2-0  at=2024-06-11"]


def test_csv_of_entries_without_a_value_comes_back() -> None:
    run("add", "s", "k", "a", "", "b", "", "--id", "1-0")
    run("add", "s", "k", "a", "1", "b", "", "--id", "2-0")
    run("add", "s", "other", "c", "3", "--id", "3-0")
    run("dump", "s", "k", "--output", "a.csv")
    run("load", "t", "a.csv")
    assert lines("range", "t", "k") == ['1-0  a="" b=""', "2-0  a=1"]
    run("load", "u", "k", "a.csv")
    assert differences("t", "u") == []
    run("dump", "s", "--field", "c", "--output", "c.csv")
    run("load", "v", "c.csv")
    assert lines("range", "v", "k") == ['1-0  c=""', '2-0  c=""']


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stream,id,a\nk,1-0,x\nk,1-0,y\n", "line 3: the ID is not above the one before it"),
        ("a,b\n1,2\n", "the first columns are a, b, not stream, id"),
        ("stream,id,a\nk,1,x\n", "'1' is not a complete ID"),
        ("stream,id,a\nk,1-0\n", "2 cells, but line 1 names 3"),
        ("stream,id,a\nk,1-0,xyz\nk,2-0,x", "line 3: the dump is cut off"),
        ("stream,id\nk,1-0\n", "line 2: an entry without fields"),
        ("", "an empty file"),
    ],
)
def test_a_table_that_is_none(text: str, problem: str) -> None:
    Path("a.csv").write_text(text)
    result = run("load", "s", "a.csv", status=1)
    assert problem in result.stderr
    assert "nothing was loaded" in result.stderr or "without fields" in result.stderr


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("ms", [1, None], "row 2: ms None and seq 0 are no ID"),
        ("seq", [1, -2], "row 2: ms 2 and seq -2 are no ID"),
        ("ms", [1.0, 2.5], "row 1: the column 'ms' is double, not whole numbers"),
        ("seq", ["1", "2"], "row 1: the column 'seq' is string, not whole numbers"),
        ("id", ["1-1", None], "row 2: the ID None is not text"),
        ("id", [1, 2], "row 1: the ID 1 is not text"),
        ("stream", ["a", None], "row 2: None is neither text nor bytes"),
    ],
)
def test_parquet_columns_that_are_no_ids(column: str, values: list[object], problem: str) -> None:
    pairs = pa.array([[("a", "b")]] * 2, pa.map_(pa.string(), pa.string()))
    columns = {"stream": ["k", "k"], "ms": [1, 2], "seq": [0, 0], "fields": pairs, column: values}
    parquet.write_table(pa.table(columns), "a.parquet")
    assert problem in run("load", "s", "a.parquet", status=1).stderr


@pytest.mark.parametrize("column", ["stream", "id", "fields"])
def test_parquet_with_two_columns_of_one_name(column: str) -> None:
    columns = {
        "stream": pa.array(["k"]),
        "id": pa.array(["1-1"]),
        "fields": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
    }
    names = [*columns, column]
    parquet.write_table(pa.table([columns[name] for name in names], names=names), "a.parquet")
    assert f"two columns '{column}'" in run("load", "s", "a.parquet", status=1).stderr


def test_parquet_of_large_lists_is_read() -> None:
    pair = pa.struct([("field", pa.large_string()), ("value", pa.large_string())])
    columns = {"id": ["1-1"], "fields": pa.array([[("a", "b")]], pa.large_list(pair))}
    parquet.write_table(pa.table(columns), "a.parquet")
    run("load", "s", "k", "a.parquet")
    with streamkeep.open("s", readonly=True) as store:
        assert store.xrange("k") == [(b"1-1", {b"a": b"b"})]


def test_parquet_of_a_frame_names_each_key(tmp_path: Path) -> None:
    """As Spark writes it: a key that is not UTF-8 was loaded as a text of backslashes."""
    with streamkeep.open(tmp_path / "s") as store:
        store.xadd(b"\xff", {"a": 1})
        frame = store.to_arrow(b"\xff", columns=["stream", "id", "fields"])
    parquet.write_table(frame, "a.parquet")
    run("load", "t", "a.parquet")
    assert keys_of("t") == [b"\xff"]


def test_parquet_of_others_goes_into_a_stream() -> None:
    maps = pa.array([[("a", "1")], [("b", "2"), ("c", "3")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"ms": [5, 6], "seq": [0, 1], "fields": maps})
    parquet.write_table(table, "a.parquet")
    assert "no column 'stream'" in run("load", "s", "a.parquet", status=1).stderr
    run("load", "s", "k", "a.parquet")
    assert lines("range", "s", "k") == ["5-0  a=1", "6-1  b=2 c=3"]
    Path("b.parquet").write_bytes(b"PAR1 nothing")
    assert "not a Parquet file" in run("load", "s", "k", "b.parquet", status=1).stderr
    parquet.write_table(pa.table({"x": [1]}), "c.parquet")
    assert "columns 'id' and 'fields' are needed" in run("load", "s", "c.parquet", status=1).stderr
