"""Checksums of rows: each flipped bit, another key and another table are reported."""

from __future__ import annotations

import pytest

from streamkeep.format.core import checksum, keys
from streamkeep.format.core.errors import (
    ChecksumError,
)
from streamkeep.format.rows import records


def test_every_flipped_bit_of_a_row_is_reported() -> None:
    db_key, body = keys.name_key(b"", b"orders"), records.encode_key_row(3, b"orders")
    value = checksum.with_checksum(keys.KEYS, db_key, body)
    assert checksum.row_body(keys.KEYS, db_key, value, "here") == body
    for bit in range(len(value) * 8):
        bad = bytearray(value)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            checksum.row_body(keys.KEYS, db_key, bytes(bad), "here")


def test_a_row_under_another_key_or_in_another_table_is_reported() -> None:
    value = checksum.with_checksum(keys.META, b"epoch", records.encode_number(1))
    for table, db_key in ((keys.KEYS, b"epoch"), (keys.META, b"epocg"), (keys.META, b"epoc")):
        with pytest.raises(ChecksumError):
            checksum.row_body(table, db_key, value, "here")
