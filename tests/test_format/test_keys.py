"""Keys of rows: order, length, and the permanent numbers of tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core import keys
from streamkeep.format.core.errors import (
    CorruptionError,
)


@given(st.binary(max_size=20), st.sampled_from([b"", b"12345678"]))
def test_short_names_sort_as_they_are(name: bytes, prefix: bytes) -> None:
    assert keys.name_key(prefix, name) == prefix + b"\0" + name


@pytest.mark.parametrize("size", [509, 510, 511, 512, 65536])
def test_names_of_any_length_fit_an_lmdb_key(size: int) -> None:
    db_key = keys.name_key(b"", b"n" * size)
    assert len(db_key) <= keys.MAX_DB_KEY
    assert db_key != keys.name_key(b"", b"n" * size + b"m")
    assert db_key != keys.name_key(b"", b"n" * (size - 1) + b"m")


def test_keys_of_the_wrong_size_give_our_error() -> None:
    for data in (b"", b"1234567", b"123456789", b"x" * 23, b"x" * 25):
        with pytest.raises(CorruptionError):
            keys.unpack_node_key(data)
        with pytest.raises(CorruptionError):
            keys.unpack_number(data)


def test_the_numbers_of_tables_are_permanent() -> None:
    assert {number: table.name for number, table in keys.TABLES.items()} == {
        0: "meta",
        1: "keys",
        2: "streams",
        3: "nodes",
        4: "groups",
        5: "consumers",
        6: "pel",
        7: "consumer_pel",
        8: "pel_order",
        9: "producers",
        10: "idempotency",
        11: "idempotency_order",
        13: "garbage",
        14: "retired",
        15: "segments",
        17: "erasures",
        18: "rows",
        19: "names",
    }
