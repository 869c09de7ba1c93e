"""Frames hold what the entries hold, and say where they cannot; rows become the same entries."""

from __future__ import annotations

import datetime as dt
import logging
import math
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkeep
from inside import segment_files_of
from model.profile import configured
from stores import Open, open_at
from streamkeep.engine.api import frame_commands
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.format.core.errors import (
    ArgumentError,
    IdTooSmallError,
    MissingPackageError,
    StoreError,
    ValueMismatchError,
)

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

COUNT = 300


@pytest.fixture
def archived(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of which 1 to 100 are in segments, 101 to 200 retired, the rest live."""
    store = open_store(node_max_entries=10, node_max_bytes=0)
    monkeypatch.setattr(frame_commands, "_CHUNK_BYTES", 3000)
    store.set_retention("s", archive=True)
    store.xadd_many(
        "s",
        [{"n": number, "pad": "x" * 60} for number in range(1, COUNT + 1)],
        [f"{number}-0" for number in range(1, COUNT + 1)],
    )
    store.xtrim("s", minid="101", approximate=False)
    store.archive(options=ArchiveOptions(target_bytes=3000, block_bytes=1000))
    store.xtrim("s", minid="205", approximate=False)
    return store


def numbers(table: Any) -> list[int]:
    found: list[int] = table.column("n").to_pylist()
    return found


text = st.text("ab\u00e9", max_size=3).map(str.encode)
pair = st.tuples(st.sampled_from([b"", b"a", b"id", b"ts", b"field.x"]), text | st.binary())
entries = st.lists(st.lists(pair, min_size=1, max_size=4), min_size=1, max_size=12)


@configured(30)
@given(entries)
def test_pairs_come_and_go_without_loss(tmp_path_factory: Any, many: list[list[Any]]) -> None:
    with open_at(tmp_path_factory.mktemp("frames") / "store", node_max_entries=3) as store:
        store.xadd_many("s", many)
        table = store.to_arrow("s", columns=["id", "ts", "ms", "seq", "stream", "fields"])
        table.validate(full=True)
        rows = table.to_pylist()
        for row, entry in zip(rows, store.xrange("s"), strict=True):
            assert row["id"].encode() == entry.id
            assert [tuple(one.values()) for one in row["fields"]] == entry.pairs
        assert store.from_arrow("copy", table.drop_columns("stream"), id_column="id") == len(many)
        assert store.xrange("copy") == store.xrange("s")
        copied = [one.pairs for one in store.xrange("copy")]
        assert copied == [one.pairs for one in store.xrange("s")]


@configured(30)
@given(entries)
def test_columns_are_the_fields_or_an_error_says_why(
    tmp_path_factory: Any, many: list[list[Any]]
) -> None:
    with open_at(tmp_path_factory.mktemp("frames") / "store", node_max_entries=3) as store:
        store.xadd_many("s", many)
        repeated = any(len(dict(one)) < len(one) for one in many)
        as_bytes = {name: bytes for name in ("", "a", "field.id", "field.ts", "field.field.x")}
        wanted = ["id", *as_bytes]
        if repeated:
            with pytest.raises(ValueMismatchError, match=r"entry \d+-\d+: field '.*' occurs more"):
                store.to_arrow("s", columns=wanted, types=as_bytes)
        table = store.to_arrow("s", columns=wanted, types=as_bytes, repeated="last")
        for row, entry in zip(table.to_pylist(), store.xrange("s"), strict=True):
            assert row["id"].encode() == entry.id
            for name in as_bytes:
                assert row[name] == entry.fields.get(name.removeprefix("field.").encode())
        found = store.to_arrow("s", types=as_bytes, repeated="last")
        assert {*found.column_names} == {"id", "ts", *as_bytes}


@pytest.mark.parametrize("types", [{}, {"stream": bytes}])
def test_a_key_that_is_not_utf_8_comes_back(store: Store, types: dict[str, Any]) -> None:
    store.xadd(b"\xff", {"a": 1})
    frame = store.to_arrow(b"\xff", columns=["stream", "id", "a"], types=types)
    store.delete(b"\xff")
    assert store.from_arrow(b"\xff", frame, id_column="id") == 1


def test_without_columns_each_field_is_one_and_text(store: Store) -> None:
    store.xadd("s", {"sku": "7", "count": 2}, id="1761004800000-0")
    store.xadd("s", {"sku": "", "ts": "x", b"fields": "y"}, id="1761004800001-5")
    table = store.to_arrow("s")
    assert table.schema == pa.schema(
        [
            ("id", pa.string()),
            ("ts", pa.timestamp("ms", tz="UTC")),
            ("sku", pa.string()),
            ("count", pa.string()),
            ("field.ts", pa.string()),
            ("field.fields", pa.string()),
        ]
    )
    moment = dt.datetime(2025, 10, 21, tzinfo=dt.UTC)
    first, second = (list(row.values()) for row in table.to_pylist())
    assert first == ["1761004800000-0", moment, "7", "2", None, None]
    later = moment + dt.timedelta(milliseconds=1)
    assert second == ["1761004800001-5", later, "", None, "x", "y"]
    only = store.to_arrow("s", "1761004800001", columns=[b"sku", "nothing"])
    assert only.to_pydict() == {"sku": [""], "nothing": [None]}
    assert store.to_arrow("missing").column_names == ["id", "ts"]
    assert store.to_arrow("missing", types={"n": int}).schema.field("n").type == pa.int64()


def test_types_are_named_by_class_by_text_or_by_arrow(store: Store) -> None:
    pytest.importorskip("pandas")  # Python's own times have no nanoseconds
    when = "2025-10-21T07:33:20.5Z"
    store.xadd("s", {"i": "-7", "f": "1e3", "b": "true", "d": "2025-10-21", "t": when, "x": "1.5"})
    types = {
        "i": int,
        "f": float,
        "b": bool,
        "d": dt.date,
        "t": "timestamp[ns]",
        "x": "decimal(6, 2)",
        "ts": pa.timestamp("ns", tz="UTC"),
        "fields": str,
    }
    row = store.to_arrow("s", columns=list(types), types=types).to_pylist()[0]
    assert row["i"] == -7
    assert row["f"] == 1000.0
    assert row["b"] is True
    assert row["d"] == dt.date(2025, 10, 21)
    assert row["x"] == Decimal("1.50")
    assert row["fields"][0] == {"field": "i", "value": "-7"}
    assert str(row["t"]).startswith("2025-10-21 07:33:20.500000")
    assert row["ts"].value // 1_000_000 == int(store.xrange("s")[0].id.split(b"-")[0])
    unsigned = (1 << 64) - 1
    store.xadd("u", {"n": unsigned}, id=f"{unsigned}-{unsigned}")
    row = store.to_arrow("u", columns=["ms", "seq", "n"], types={"n": "uint64"}).to_pylist()[0]
    assert list(row.values()) == [unsigned] * 3
    with pytest.raises(streamkeep.StreamkeepError, match="too large for column 'ts'"):
        store.to_arrow("u")
    assert store.to_arrow("u", columns=["ts"], errors="null").to_pylist() == [{"ts": None}]


def test_half_of_an_id_and_a_time_are_null_only_where_their_column_cannot_hold_them(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    late = 300_000_000_000_000  # in the year 11476
    store.xadd("s", {"a": 1}, id=f"{late}-1")
    store.xadd("s", {"a": 1}, id=f"{(1 << 63) + 1}-18446744073709551615")
    table = store.to_arrow(
        "s", columns=["ms", "seq", "ts"], types={"ms": int, "seq": int}, errors="null"
    )
    assert table["ts"].cast(pa.int64()).to_pylist() == [late, None]
    assert (table["ms"].to_pylist(), table["seq"].to_pylist()) == ([late, None], [1, None])
    assert all(f"1 values of column {one!r}" in caplog.text for one in ("ms", "seq", "ts"))
    with pytest.raises(streamkeep.StreamkeepError, match="too large for column 'ms'"):
        store.to_arrow("s", columns=["ms"], types={"ms": int})


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ("x", int, "b'x', which is not of the type int64"),
        ("300", "int8", "b'300', which is not of the type int8"),
        (b"\xff", str, r"b'\\xff', which is not of the type string"),
        ("1.5", int, r"b'1\.5', which is not of the type int64"),
        (
            "2025-10-21T00:00:00.0001Z",
            "timestamp[ms]",
            r"b'.*', which is not of the type timestamp",
        ),
        ("9999-12-31", "timestamp[ns]", "b'9999-12-31', which is not of the type timestamp"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_or_null(
    store: Store, value: Any, kind: Any, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.xadd("s", {"v": value}, id="5-1")
    with pytest.raises(ValueMismatchError, match=f"stream b's' entry 5-1: field 'v' is {shown}"):
        store.to_arrow("s", columns=["v"], types={"v": kind})
    with caplog.at_level(logging.WARNING, "streamkeep"):
        table = store.to_arrow("s", columns=["v"], types={"v": kind}, errors="null")
    assert table.to_pylist() == [{"v": None}]
    assert "1 values of column 'v' are not of its type and became null" in caplog.text


def test_wrong_arguments_are_named(store: Store) -> None:
    store.xadd("s", {"a": 1, b"\xff": 2})
    calls: list[tuple[dict[str, Any], str]] = [
        ({"columns": ["a", "a"]}, "columns names 'a' twice"),
        ({"columns": "abc"}, "columns must be a list of names, not 'abc'"),
        ({"columns": [b"\xff"]}, r"column b'\\xff' is not UTF-8"),
        ({"columns": ["a"], "types": {"b": int}}, "types has 'b', which is not one of"),
        ({"columns": ["a"], "types": {"a": "intt"}}, r"types\['a'\]: 'intt' is not a type"),
        ({"columns": ["a"], "types": {"a": "list<int>"}}, "is not a type"),
        ({"types": 5}, "types must be a dict of columns and types, not 5"),
        ({"columns": ["id"], "types": {"id": int}}, "column 'id' cannot be int64"),
        ({"columns": ["a"], "errors": "ignore"}, "errors must be one of raise, null"),
        ({"columns": ["a"], "repeated": "first"}, "repeated must be one of raise, last"),
        ({"columns": ["a"], "start": "nowhere"}, "Invalid stream ID"),
    ]
    for options, message in calls:
        with pytest.raises(streamkeep.StreamkeepError, match=message):
            store.to_arrow("s", **options)
    with pytest.raises(ValueMismatchError, match=r"field b'\\xff' is not UTF-8, .*columns="):
        store.to_arrow("s")
    with pytest.raises(ArgumentError, match="rows must be a positive integer"):
        store.to_arrow_batches("s", columns=["a"], rows=0)


def test_names_without_number_do_not_become_columns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkeep.arrow import frames

    monkeypatch.setattr(frames, "MOST_COLUMNS", 10)
    store.xadd_many("s", [{f"user:{number}": 1} for number in range(20)])
    with pytest.raises(ArgumentError, match=r"more than the 10 .* next: columns= chooses"):
        store.to_arrow("s")


def test_batches_are_bounded_in_rows_and_cells(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkeep.arrow import frames

    store.xadd_many("s", [{"n": number} for number in range(100)])
    sizes = [len(one) for one in store.to_arrow_batches("s", columns=["n"], rows=30)]
    assert sizes == [30, 30, 30, 10]
    monkeypatch.setattr(frames, "_MOST_CELLS", 40)
    sizes = [len(one) for one in store.to_arrow_batches("s", columns=["n", "id"])]
    assert sizes == [20] * 5


def test_history_is_in_frames_on_request(archived: Store) -> None:
    types = {"n": int}
    whole = archived.to_arrow("s", columns=["n"], types=types, history=True)
    assert numbers(whole) == list(range(1, COUNT + 1))
    assert numbers(archived.to_arrow("s", types=types)) == list(range(205, COUNT + 1))
    part = archived.to_arrow("s", "95", "(207-0", types=types, history=True)
    assert numbers(part) == list(range(95, 207))
    with archived.snapshot() as snapshot:
        assert numbers(snapshot.to_arrow("s", types=types, history=True)) == numbers(whole)
    with archived.transaction() as txn:
        txn.xadd("s", {"n": COUNT + 1}, id=f"{COUNT + 1}-0")
        found = txn.to_arrow("s", types=types, history=True)
        assert numbers(found) == list(range(1, COUNT + 2))
        assert numbers(txn.to_arrow("s", "300", types=types)) == [COUNT, COUNT + 1]


def test_a_reader_of_history_sees_each_entry_once_while_the_archive_changes(
    archived: Store,
) -> None:
    reader = archived.to_arrow_batches("s", columns=["n"], types={"n": int}, history=True, rows=20)
    seen: list[int] = []
    for turn, batch in enumerate(reader):
        seen += batch.column("n").to_pylist()
        if turn == 1:
            archived.archive(options=ArchiveOptions(target_bytes=2000, block_bytes=700))
            segment_files_of(archived).close()
        if turn == 2:
            archived.xtrim("s", minid="280", approximate=False)
            archived.xadd("s", {"n": 0}, id="900-0")
        if turn == 3:
            archived.archive()
            segment_files_of(archived).close()
    assert seen == list(range(1, COUNT + 1))


def test_history_ends_with_the_last_entry_at_the_time_of_the_call(archived: Store) -> None:
    archived.xadd("s", {"n": COUNT + 1})  # begins a node
    reader = archived.to_arrow_batches("s", columns=["n"], types={"n": int}, history=True, rows=20)
    seen = reader.read_next_batch().column("n").to_pylist()
    archived.xadd_many("s", [{"n": 0}] * 1000)  # the first ones get into that node
    seen += [number for batch in reader for number in batch.column("n").to_pylist()]
    assert seen == list(range(1, COUNT + 2))


def test_a_frame_of_live_entries_is_of_one_moment(archived: Store) -> None:
    reader = archived.to_arrow_batches("s", columns=["n"], types={"n": int}, rows=20)
    seen = reader.read_next_batch().column("n").to_pylist()
    archived.xtrim("s", maxlen=0, approximate=False)
    archived.delete("s")
    seen += [number for batch in reader for number in batch.column("n").to_pylist()]
    assert seen == list(range(205, COUNT + 1))


def test_a_snapshot_that_ends_ends_its_frames(archived: Store) -> None:
    with archived.snapshot() as snapshot:
        reader = snapshot.to_arrow_batches("s", columns=["n"], rows=10)
        reader.read_next_batch()
    with pytest.raises(StoreError, match="has ended"):
        reader.read_all()


def test_pandas_keeps_large_numbers_beside_missing_ones(store: Store) -> None:
    pandas = pytest.importorskip("pandas")
    large = (1 << 53) + 1
    store.xadd_many(
        "s", [{"n": large, "ok": "true"}, {"x": "1"}], ["1761004800000-0", "+"][:0] or None
    )
    frame = store.to_pandas("s", columns=["n", "ok", "x"], types={"n": int, "ok": bool, "x": float})
    assert str(frame["n"].dtype) == "Int64"
    assert str(frame["ok"].dtype) == "boolean"
    assert frame["n"][0] == large
    assert frame["n"].isna().tolist() == [False, True]
    assert math.isnan(frame["x"][0])
    assert store.from_arrow("copy", frame) == 2
    assert [one.fields for one in store.xrange("copy")] == [
        {b"n": b"%d" % large, b"ok": b"true"},
        {b"x": b"1.0"},
    ]
    with pytest.raises(ArgumentError, match="cannot take: Duplicate column names found"):
        store.from_arrow("copy", pandas.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ArgumentError, match=r"cannot take: .*column a with type complex128"):
        store.from_arrow("copy", pandas.DataFrame({"a": [1j]}))


def test_polars_and_arrow_have_the_same_frame(store: Store) -> None:
    polars = pytest.importorskip("polars")
    store.xadd_many("s", [{"n": 1, "t": "2025-10-21"}, {"n": 2}])
    frame = store.to_polars("s", types={"n": int, "t": "datetime"})
    assert frame.to_arrow().num_rows == 2
    assert frame["n"].sum() == 3
    assert frame.schema["ts"] == polars.Datetime("ms", "UTC")
    assert store.from_arrow("copy", frame, columns=["n", "t"]) == 2
    fields = [one.fields for one in store.xrange("copy")]
    assert fields == [{b"n": b"1", b"t": b"2025-10-21T00:00:00Z"}, {b"n": b"2"}]
    categories = frame.select(c=polars.Series(["zoë", "x"], dtype=polars.Categorical))
    assert store.from_arrow("c", categories) == 2
    assert store.xrange("c")[0].fields == {b"c": "zoë".encode()}
    objects = polars.DataFrame({"o": polars.Series([object()], dtype=polars.Object)})
    with pytest.raises(ArgumentError, match="cannot take: Polars has only addresses"):
        store.from_arrow("c", objects)


def test_a_relation_of_duckdb_reads_the_stream_at_each_query(archived: Store) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        relation = archived.to_duckdb(
            "s", columns=["n", "ts"], types={"n": int}, history=True, connection=connection
        )
        total = sum(range(1, COUNT + 1))
        for _ in range(2):
            assert relation.aggregate("sum(n), count(*)").fetchall() == [(total, COUNT)]
        archived.xadd("s", {"n": 1000}, id="1000-0")
        assert relation.aggregate("sum(n)").fetchall() == [(total + 1000,)]
        archived.xadd("s", {"n": "many"}, id="1001-0")
        with pytest.raises(duckdb.Error, match="entry 1001-0: field 'n' is b'many'"):
            relation.fetchall()
        with archived.transaction() as txn:
            txn.xadd("t", {"n": 7})
            found = txn.to_duckdb("t", columns=["n"], connection=connection)
            assert found.fetchall() == [("7",)]


def test_a_missing_package_is_named_with_its_install(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, method in (
        ("polars", store.to_polars),
        ("duckdb", store.to_duckdb),
        ("pandas", store.to_pandas),
        ("pyarrow", store.to_arrow),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        extra = "arrow" if package == "pyarrow" else package
        with pytest.raises(MissingPackageError, match=rf"needs {package}, .*\[{extra}\]"):
            method("s")
    with pytest.raises(ImportError):
        store.from_arrow("s", None)


def test_rows_become_entries_as_xadd_would_store_them(store: Store) -> None:
    moment = dt.datetime(2025, 10, 21, 7, 33, 20, 500_000)
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int16()),
            "f": pa.array([0.1, math.inf]),
            "half": pa.array([0.1, None], pa.float64()).cast(pa.float16()),
            "b": pa.array([True, None]),
            "t": pa.array([moment, None], pa.timestamp("us")),
            "z": pa.array(
                [moment.replace(tzinfo=dt.UTC), None], pa.timestamp("us", "Europe/Paris")
            ),
            "d": pa.array([dt.date(2025, 10, 21), None]),
            "x": pa.array([Decimal("1.50"), None]),
            "raw": pa.array([b"\xff\0", None], pa.large_binary()),
            "field.field.s": pa.array(["zo\u00eb", ""]).dictionary_encode(),
            "none": pa.nulls(2),
        }
    )
    assert store.from_arrow("s", table) == 2
    first, second = store.xrange("s")
    assert first.fields == {
        b"i": b"1",
        b"f": b"0.1",
        b"half": b"0.0999755859375",
        b"b": b"true",
        b"t": b"2025-10-21T07:33:20.5",
        b"z": b"2025-10-21T07:33:20.5Z",
        b"d": b"2025-10-21",
        b"x": b"1.50",
        b"raw": b"\xff\0",
        b"field.s": "zo\u00eb".encode(),
    }
    assert second.fields == {b"f": b"inf", b"field.s": b""}


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_binary(), pa.binary(16)])
def test_a_text_of_16_bytes_is_not_taken_for_the_halves_of_an_id(store: Store, kind: Any) -> None:
    ids = [f"1718004800000-{number}" for number in (10, 11, 12)]
    table = pa.table({"id": pa.array([one.encode() for one in ids]).cast(kind), "n": [1, 2, 3]})
    assert store.from_arrow("s", table, id_column="id") == 3
    assert [entry.id.decode() for entry in store.xrange("s")] == ids


@pytest.mark.parametrize("names", [("field", "value"), ("value", "field"), ("value", "key")])
def test_a_pair_is_told_by_the_names_of_its_members(store: Store, names: tuple[str, str]) -> None:
    pair = {one: "1" if one == "value" else "a" for one in names}
    kind = pa.list_(pa.struct([pa.field(one, pa.string()) for one in names]))
    store.from_arrow("s", pa.table({"fields": pa.array([[pair]], kind)}))
    assert store.xrange("s")[0].pairs == [(b"a", b"1")]
    other = pa.table({"fields": [[{"a": "1", "b": "2"}]]})
    with pytest.raises(ArgumentError, match="not a list of structs of field and value"):
        store.from_arrow("s", other)


def test_rows_that_cannot_be_entries_are_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkeep.arrow import rows

    monkeypatch.setattr(rows, "STEP", 2)
    table = pa.table({"id": ["1-0", "2-0", "3-0"], "a": ["x", "y", None]})
    with pytest.raises(ArgumentError, match="row 2 has no field") as caught:
        store.from_arrow("s", table, id_column="id")
    assert caught.value.__notes__ == ["the 2 rows before are stored; continue with row 2"]
    assert store.xlen("s") == 2
    with pytest.raises(IdTooSmallError):
        store.from_arrow("s", table.slice(0, 2), id_column="id")
    with pytest.raises(ArgumentError), store.transaction() as txn:
        txn.from_arrow("whole", table, id_column="id")
    assert not store.exists("whole")
    frame = pa.table({"id": ["1-0"], "ms": [2], "a": ["x"]})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (frame, {"id_column": "id"}, "row 0: 'ms' is 2, which is not that of the ID 1-0"),
        (frame, {"id_column": "nr"}, "data has no column 'nr'"),
        (frame, {"columns": ["b"]}, "data has no column 'b'"),
        (frame, {"id_column": "ms"}, "the column 'ms' of IDs is int64, not text"),
        (frame, {"id_column": "a"}, "row 0: 'a' is b'x', which is not an ID"),
        (pa.table({"l": [[1]]}), {}, "the column 'l' is list<.*>, which is no text"),
        (pa.table({"t": pa.array([1 << 62], pa.timestamp("s"))}), {}, "'t' has 46116860184273879"),
        (pa.table({"d": pa.array([10**9], pa.date32())}), {}, "'d' has 1000000000 as date32"),
        (
            pa.table({"fields": [[("a", "b")]], "c": [1]}, schema=None),
            {},
            "not a list of structs|also",
        ),
        ([1, 2], {}, "data must be a table, .* not list"),
        (pa.table({}), {}, "data has no column that becomes a field"),
    ]
    for data, options, message in cases:
        with pytest.raises(ArgumentError, match=message):
            store.from_arrow("other", data, **options)
    assert not store.exists("other")


async def test_frames_of_tasks(open_store: Open, tmp_path: Any) -> None:
    async with await streamkeep.aio.open(tmp_path / "a", decode_responses=True) as store:
        assert await store.from_arrow("s", pa.table({"n": [1, 2, 3]})) == 3
        assert numbers(await store.to_arrow("s", types={"n": int})) == [1, 2, 3]
        reader = await store.to_arrow_batches("s", columns=["n"])
        assert reader.read_all().num_rows == 3
