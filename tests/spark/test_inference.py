"""Columns that are inferred from a sample of entries."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pyspark.sql.types import StructType

from streamkeep.engine.api.store import Store
from streamkeep.pipeline.data_source import StreamkeepSource
from streamkeep.pipeline.options import OptionError
from streamkeep.pipeline.source.inference import type_of_texts


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-20", "0"], "bigint"),
        (["1", "2.5"], "double"),
        (["1e3", ".5"], "double"),
        (["9223372036854775808"], "double"),
        (["007", "1"], "string"),
        (["true", "FALSE"], "boolean"),
        (["2024-06-10"], "date"),
        (["2024-06-10", "2024-06-10T07:33:20Z"], "timestamp"),
        (["", ""], "string"),
        (["1", ""], "bigint"),
        (["1", "x"], "string"),
        ([".", "-"], "string"),
        ([b"\xff", "x"], "binary"),
        (['{"a": 1}', '{"b": [1, 2.5]}'], "struct<a:bigint,b:array<double>>"),
        (['{"a": null}', '{"a": {"b": true}}'], "struct<a:struct<b:boolean>>"),
        (['{"a": null}', "{}"], "string"),
        (['{"a": 1}', '{"a": "x"}'], "struct<a:string>"),
        (["[]", '["x"]'], "array<string>"),
        (["{broken"], "string"),
        (["[" * 100_000], "string"),
        (['{"a": 1}', "1"], "string"),
    ],
)
def test_the_narrowest_type_of_all_values(values: list[str | bytes], expected: str) -> None:
    raw = [one if isinstance(one, bytes) else one.encode() for one in values]
    assert type_of_texts(raw).simpleString() == expected


def columns_of(source: StreamkeepSource) -> str:
    return source.schema().simpleString()


def test_fields_become_columns(open_store: Callable[..., Store[bytes]]) -> None:
    store = open_store("s.store")
    store.xadd_many(
        "orders",
        [
            {"sku": f"s{n}", "price": str(n / 2), "id": "7", "at": json.dumps({"x": n, "y": "z"})}
            for n in range(100)
        ],
    )
    store.xadd("orders", {"SKU": "twice", b"\xff": "x", "late": "1"})
    options = {"path": str(store.path), "subscribe": "orders", "inferSchema": "true"}
    source = StreamkeepSource(options)
    assert columns_of(source) == (
        "struct<stream:string,id:string,ms:bigint,seq:bigint,ts:timestamp,sku:string,price:double,"
        "field.id:bigint,at:struct<x:bigint,y:string>,late:bigint>"
    )
    wanted = StructType([one for one in source.schema() if one.name in ("sku", "at", "field.id")])
    reader = source.reader(wanted)
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    assert rows[99] == {"sku": "s99", "field.id": 7, "at": {"x": 99, "y": "z"}}
    assert rows[100]["at"] is None
    few = StreamkeepSource({**options, "sampleEntries": "2", "fieldsAs": "map"})
    assert "fields:map<string,string>" in columns_of(few)
    assert "late:bigint" in columns_of(few)


def test_what_cannot_be_inferred_says_so() -> None:
    with pytest.raises(OptionError, match="inferSchema"):
        StreamkeepSource({"path": "x", "subscribe": "s", "sampleEntries": "5"})
    with pytest.raises(OptionError, match=r"\.schema"):
        StreamkeepSource({"fleet": "x", "inferSchema": "true"})
