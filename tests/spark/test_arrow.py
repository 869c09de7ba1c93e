"""Record batches hold what the entries hold, in the types of the schema."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.profile import configured
from streamkeep.arrow import FAILFAST, PERMISSIVE, casts
from streamkeep.arrow import batches as arrow
from streamkeep.arrow.keys import key_of_text, key_text
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ValueMismatchError
from streamkeep.format.node import tombstones
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.pipeline.source.executor import SPARK_TERMS
from test_format import made_nodes
from test_format.made_nodes import Slot

TOP = (1 << 64) - 1


@contextmanager
def limits(entries: int = 1000, size: int = 1 << 20) -> Iterator[None]:
    """Have batches of so many entries and bytes at most."""
    with patch.multiple(arrow, BATCH_ENTRIES=entries, BATCH_BYTES=size):
        yield


def read(
    entries: list[Slot], schema: Any = arrow.DEFAULT_SCHEMA, mode: str = PERMISSIVE, **ends: Any
) -> list[dict[str, Any]]:
    """Return entries as rows, through chunks of two nodes of three entries each."""
    nodes = []
    for at in range(0, len(entries), 3):
        (ms, seq), first = entries[at]
        builder = NodeBuilder(ms, seq, first[0::2])
        for entry_id, pairs in entries[at : at + 3]:
            builder.append(*entry_id, pairs)
        nodes.append((ms, seq, builder.listpack()))
    shape = arrow.RowShape(schema, b"orders", mode)
    chunks = [nodes[at : at + 2] for at in range(0, len(nodes), 2)]
    batches = list(arrow.record_batches(shape, chunks, **ends))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
    return [row for batch in batches for row in batch.to_pylist()]


CALENDAR_MS = 253_402_300_799_999  # the last that Python knows
ids = st.tuples(st.integers(0, CALENDAR_MS), st.integers(0, (1 << 63) - 1))
names = st.sampled_from([b"", b"a", b"b", b"temperature"])
pairs = st.lists(st.tuples(names, st.binary(max_size=8)), min_size=1, max_size=4).map(
    lambda items: [part for item in items for part in item]
)
slots = st.lists(st.tuples(ids, pairs), max_size=12, unique_by=lambda slot: slot[0]).map(sorted)
any_ids = made_nodes.small_ids | made_nodes.wide_ids


@configured(100)
@given(slots, st.integers(1, 20), st.integers(1, 200))
def test_the_default_schema_loses_nothing(
    entries: list[Slot], max_entries: int, max_bytes: int
) -> None:
    with limits(max_entries, max_bytes):
        rows = read(entries)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    for row, ((ms, seq), flat) in zip(rows, entries, strict=True):
        assert (row["stream"], row["id"]) == ("orders", f"{ms}-{seq}")
        assert (row["ms"], row["seq"]) == (ms, seq)
        assert row["ts"] == epoch + dt.timedelta(milliseconds=ms)
        assert [part for pair in row["fields"] for part in pair.values()] == flat


@configured(100)
@given(made_nodes.slots, any_ids, any_ids, st.integers(1, 20), st.integers(1, 200))
def test_a_range_has_all_of_its_entries_and_no_other(
    entries: list[Slot], start: Any, end: Any, max_entries: int, max_bytes: int
) -> None:
    fields = arrow.DEFAULT_SCHEMA.field("fields")
    schema = pa.schema([("id", pa.string()), ("ms", pa.uint64()), ("seq", pa.uint64()), fields])
    with limits(max_entries, max_bytes):
        rows = read(entries, schema, start=StreamId(*start), end=StreamId(*end))
    found = [
        (row["id"], row["ms"], row["seq"], [part for one in row["fields"] for part in one.values()])
        for row in rows
    ]
    inside = [slot for slot in entries if start <= slot[0] <= end]
    assert found == [(str(StreamId(*one)), *one, flat) for one, flat in inside]


@configured(200)
@given(made_nodes.slots, st.integers(1, 20), st.integers(1, 2000), st.booleans())
def test_columns_of_fields_and_a_map_have_the_last_of_each_name(
    entries: list[Slot], max_entries: int, max_bytes: int, with_map: bool
) -> None:
    """Fields come and go from one node to the next."""
    names = [("a", pa.binary()), ("field.b", pa.binary()), ("field.temperature", pa.binary())]
    schema = pa.schema([*names, ("temperature", pa.int64()), ("field.a", pa.int64())])
    if with_map:
        schema = schema.append(pa.field("fields", pa.map_(pa.binary(), pa.binary())))
    convert = casts.converter(pa.int64())
    assert convert is not None
    with limits(max_entries, max_bytes):
        rows = read(entries, schema)
    for row, (_, flat) in zip(rows, entries, strict=True):
        fields = dict(zip(flat[0::2], flat[1::2], strict=True))
        found = row.pop("fields", fields.items())
        assert (len(found), dict(found)) == (len(fields), fields)
        texts = [fields.get(name) for name in (b"a", b"b", b"temperature", b"temperature", b"a")]
        numbers = convert(pa.array(texts[3:], pa.binary())).to_pylist()
        assert list(row.values()) == [*texts[:3], *numbers]


def test_batches_are_bounded_even_inside_of_a_node() -> None:
    builder = NodeBuilder(1, 0, [b"n" * 1000])
    for seq in range(10):
        builder.append(1, seq, [b"n" * 1000, b"v"])
    nodes = [[(1, 0, builder.listpack())]]
    shape = arrow.RowShape(arrow.DEFAULT_SCHEMA, b"s")
    with limits(size=2500):
        sizes = [b.num_rows for b in arrow.record_batches(shape, nodes)]
    assert sizes == [3, 3, 3, 1]
    with limits(entries=4):
        sizes = [b.num_rows for b in arrow.record_batches(shape, nodes)]
        few = list(arrow.record_batches(shape, nodes, StreamId(1, 2), StreamId(1, 7)))
    assert sizes == [4, 4, 2]
    assert [row["seq"] for batch in few for row in batch.to_pylist()] == list(range(2, 8))


def test_deleted_entries_are_in_no_batch() -> None:
    builder = NodeBuilder(1, 0, [b"f"])
    for seq in range(12):
        builder.append(1, seq, [b"f", b"%d" % seq])
    gone = [(1, seq) for seq in (0, 1, 9, 10)]
    data = tombstones.mark(builder.listpack(), 1, 0, gone, 0).data
    shape = arrow.RowShape(pa.schema([("f", pa.int8())]), b"s")
    found = list(arrow.record_batches(shape, [[(1, 0, data)]]))
    rows = [row["f"] for batch in found for row in batch.to_pylist()]
    assert rows == [2, 3, 4, 5, 6, 7, 8, 11]


def values(kind: Any, *texts: bytes, mode: str = PERMISSIVE) -> list[Any]:
    """Return stored values as a column of this type holds them."""
    entries: list[Slot] = [((5, seq), [b"v", text]) for seq, text in enumerate(texts)]
    return [row["v"] for row in read(entries, pa.schema([("v", kind)]), mode)]


UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        (pa.int64(), (b"7", b"-7", b"x", b"", b"1.5", b" 1"), [7, -7, None, None, None, None]),
        (pa.int64(), (b"9223372036854775807", b"9223372036854775808"), [(1 << 63) - 1, None]),
        (pa.int8(), (b"127", b"128", b"-128"), [127, None, -128]),
        (pa.int32(), (b"0x1F",), [None]),
        (pa.uint8(), (b"16", b"0X10"), [16, None]),
        (pa.float64(), (b"1.5", b"1e3", b"-.5", b"1,5", b"3"), [1.5, 1000.0, -0.5, None, 3.0]),
        (pa.float64(), (b"inf", b"-inf", b"0x1p3"), [math.inf, -math.inf, None]),
        (pa.bool_(), (b"true", b"False", b"1", b"0", b"maybe"), [True, False, True, False, None]),
        (pa.string(), ("zoë".encode(), b"\xff", b""), ["zoë", None, ""]),
        (pa.binary(), (b"\xff", b""), [b"\xff", b""]),
        (
            pa.decimal128(6, 2),
            (b"1234.56", b"12345.67", b"1.5", b"abc"),
            [Decimal("1234.56"), None, Decimal("1.50"), None],
        ),
        (pa.decimal128(38, 18), (b"7" * 21, b"7" * 20), [None, Decimal("7" * 20)]),
        (pa.decimal128(38, 0), (b"1" * 40, b"1" * 38, b"+1e37"), [None, int("1" * 38), 10**37]),
        (pa.date32(), (b"2013-01-31", b"2013-02-30", b"x"), [dt.date(2013, 1, 31), None, None]),
        (
            UTC,
            (
                b"2013-01-31T10:00:00Z",
                b"2013-01-31 10:00:00",
                b"2013-01-31T10:00:00.25+01:00",
                b"2013-01-31",
                b"now",
            ),
            [
                dt.datetime(2013, 1, 31, 10, tzinfo=dt.UTC),
                dt.datetime(2013, 1, 31, 10, tzinfo=dt.UTC),
                dt.datetime(2013, 1, 31, 9, 0, 0, 250_000, tzinfo=dt.UTC),
                dt.datetime(2013, 1, 31, tzinfo=dt.UTC),
                None,
            ],
        ),
        (pa.timestamp("us"), (b"2013-01-31 10:00:00",), [dt.datetime(2013, 1, 31, 10)]),
    ],
)
def test_text_becomes_the_type_of_its_column(
    kind: Any, texts: tuple[bytes, ...], expected: list[Any]
) -> None:
    assert values(kind, *texts) == expected
    bad = [text for text, value in zip(texts, expected, strict=True) if value is None]
    if bad:
        with pytest.raises(ValueMismatchError) as error:
            values(kind, *texts, mode=FAILFAST)
        place = f"entry 5-{texts.index(bad[0])}: field 'v' is {bad[0]!r}"
        assert place in str(error.value)


NUMERIC = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
EDGES = [(1 << bits) + d for bits in (0, 7, 12, 15, 16, 23, 24, 31, 32, 53, 63) for d in (-1, 0, 1)]
numeric_text = (
    (st.sampled_from(EDGES) | st.integers(-(1 << 64), 1 << 64)).map(lambda n: b"%d" % n)
    | st.sampled_from(EDGES).map(lambda n: b"%d" % -n)
    | st.sampled_from([b"007", b" 7", b"7.5", b"-0", b"", b"x", b"1e3", b"inf", b"\xff"])
)


@configured(100)
@given(st.sampled_from(NUMERIC), st.lists(st.none() | numeric_text, min_size=1, max_size=12))
def test_stored_integers_become_what_their_text_would(kind: Any, texts: list[bytes | None]) -> None:
    """Integers are taken as they are; nothing shows that they were not made from text."""
    entries: list[Slot] = [
        ((5, seq), [b"other", b"1"] if text is None else [b"v", text])
        for seq, text in enumerate(texts)
    ]
    rows = read(entries, pa.schema([("v", kind), ("field.v", pa.binary())]))
    assert [row["field.v"] for row in rows] == texts
    found = [row["v"] for row in rows]
    convert = casts.converter(kind)
    assert convert is not None
    alone = [convert(pa.array([text], pa.binary()))[0].as_py() for text in texts]
    assert found == alone
    assert [math.copysign(1, x) for x in found if x == 0] == [
        math.copysign(1, x) for x in alone if x == 0
    ]


def test_an_integer_that_its_type_does_not_hold_is_named_and_counted() -> None:
    texts = (b"1", b"x", b"300", b"2")
    with pytest.raises(ValueMismatchError, match=r"entry 5-1: field 'v' is b'x'"):
        values(pa.int8(), *texts, mode=FAILFAST)
    with pytest.raises(ValueMismatchError, match=r"b'300', which is not of the type int8"):
        values(pa.int8(), b"1", b"300", mode=FAILFAST)
    builder = NodeBuilder(5, 0, [b"v"])
    for seq, text in enumerate(texts):
        builder.append(5, seq, [b"v", text])
    builder.append(6, 0, [b"w", b"9"])
    schema = pa.schema([("v", pa.int8()), ("field.v", pa.string()), ("w", pa.int16())])
    shape = arrow.RowShape(schema, b"s")
    (batch,) = arrow.record_batches(shape, [[(5, 0, builder.listpack())]])
    assert batch.column(0).to_pylist() == [1, None, None, 2, None]
    assert batch.column(1).to_pylist() == ["1", "x", "300", "2", None]
    assert batch.column(2).to_pylist() == [None, None, None, None, 9]
    assert shape.mismatched == {"v": 2}


def test_a_column_that_must_not_be_null_says_so() -> None:
    schema = pa.schema([pa.field("missing", pa.string(), nullable=False)])
    with pytest.raises(ValueMismatchError, match="'missing' is declared NOT NULL"):
        read([((1, 1), [b"f", b"v"])], schema)


@pytest.mark.parametrize("big", [(1 << 63, 5), (5, 1 << 63), (TOP, TOP)])
def test_ids_beyond_a_bigint_are_named_and_never_wrap(big: tuple[int, int]) -> None:
    entries: list[Slot] = [((1, 1), [b"f", b"v"]), (big, [b"f", b"v"])]
    name = "ms" if big[0] >= 1 << 63 else "seq"
    with pytest.raises(arrow.IdRangeError, match=rf"entry {big[0]}-{big[1]}: .*column '{name}'"):
        read(entries)
    exact = pa.schema(
        [
            ("id", pa.string()),
            ("ms", pa.decimal128(20, 0)),
            ("seq", pa.decimal128(20, 0)),
            ("f", pa.string()),
        ]
    )
    row = read(entries, exact)[1]
    assert row == {
        "id": str(StreamId(*big)),
        "ms": Decimal(big[0]),
        "seq": Decimal(big[1]),
        "f": "v",
    }
    packed = read(entries, pa.schema([("id", pa.binary())]))[1]["id"]
    assert (int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big")) == big


def test_a_time_beyond_the_calendar_of_microseconds_is_named() -> None:
    with pytest.raises(arrow.IdRangeError, match=r"entry 9223372036854776-0: .*'ts'"):
        read([((9_223_372_036_854_776, 0), [b"f", b"v"])])


def test_text_columns_refuse_what_is_not_utf8() -> None:
    schema = pa.schema([("fields", pa.map_(pa.string(), pa.string()))])
    with pytest.raises(ValueMismatchError, match=r"entry 2-0: b'\\xff' is not UTF-8"):
        read([((1, 0), [b"f", b"v"]), ((2, 0), [b"g", b"v", b"f", b"\xff"])], schema)


KEYS = [b"A", b"", b"at", b"\xff", b"\\xff", b"\\", b"\\\\", b"a\\b", b"\\xfg", b"\xc3\xa9\\x41"]


def test_each_key_has_a_text_of_its_own() -> None:
    texts = [key_text(key) for key in KEYS]
    assert len(set(texts)) == len(KEYS)
    assert [key_of_text(text) for text in texts] == KEYS
    assert (key_text(b"\xff"), key_text(b"\\xff"), key_text(b"a\\b")) == (
        "\\xff",
        "\\\\xff",
        "a\\b",
    )
    with pytest.raises(ValueError, match="is no key: a backslash has to be doubled"):
        key_of_text(r"\x41")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("stream", pa.int64()),
        ("id", pa.int64()),
        ("ms", pa.int32()),
        ("seq", pa.decimal128(19, 0)),
        ("ts", pa.int64()),
        ("fields", pa.string()),
        ("fields", pa.list_(pa.struct([("a", pa.binary()), ("b", pa.binary())]))),
        ("v", pa.list_(pa.binary())),
    ],
)
def test_a_type_that_a_column_cannot_have(name: str, kind: Any) -> None:
    with pytest.raises(arrow.SchemaError, match=f"column '{name}' cannot be"):
        arrow.RowShape(pa.schema([(name, kind)]), b"s")


def test_messages_use_the_words_of_the_program_that_reads() -> None:
    builder = NodeBuilder(5, 0, [b"v"])
    builder.append(5, 0, [b"v", b"x"])
    shape = arrow.RowShape(pa.schema([("v", pa.int64())]), b"s", FAILFAST, terms=SPARK_TERMS)
    with pytest.raises(ValueMismatchError, match=r"of the type bigint; next: mode=PERMISSIVE"):
        list(arrow.record_batches(shape, [[(5, 0, builder.listpack())]]))


def test_values_that_are_json() -> None:
    member = pa.struct([("x", pa.int64()), ("y", pa.string())])
    kind = pa.struct([("a", pa.list_(member)), ("m", pa.map_(pa.string(), pa.float64()))])
    convert = casts.converter(kind)
    assert convert is not None
    texts = [
        b'{"a": [{"x": 1, "y": {"z": 2}}, null], "m": {"k": 1}, "other": 5}',
        b"{}",
        None,
        b"{",
        b"[]",
        b'{"a": [{"x": 1.5}]}',
        b'{"a": [{"x": true}]}',
        b'{"a": [{"x": 99999999999999999999}]}',
        b"\xff",
        b"[" * 100_000,
        b'{"a": [{"y": "cut \\ud83d"}]}',
        b'{"m": {"\\ud83d": 1}}',
        b'{"m": {"k": 1%s}}' % (b"0" * 400),
    ]
    assert convert(pa.array(texts, pa.binary())).to_pylist() == [
        {"a": [{"x": 1, "y": '{"z": 2}'}, None], "m": [("k", 1.0)]},
        {"a": None, "m": None},
        *[None] * 11,
    ]
