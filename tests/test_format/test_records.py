"""The stream record: its table, and records that no store writes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core.errors import (
    CorruptionError,
)
from streamkeep.format.rows import records

TOP = (1 << 64) - 1


def test_the_stream_record_is_what_its_table_says() -> None:
    record = records.StreamRecord(0, 0)
    names = [field.name for field in records.STREAM_RECORD.fields]
    for place, name in enumerate(names, start=1):
        setattr(record, name, place)
    record.flags = records.REOPEN
    values = [*range(1, len(names)), records.REOPEN]
    record.extension = b"later"
    data = record.encode()
    assert records.STREAM_RECORD.struct.unpack_from(data) == tuple(values)
    assert len(data) == record.size()
    again = records.decode_stream_record(data, "here")
    assert [getattr(again, name) for name in names] == values
    assert again.extension == b"later"
    assert again.encode() == data


def test_stream_records_that_no_store_writes_are_refused() -> None:
    record = records.StreamRecord(0, 0)
    record.flags = 2
    with pytest.raises(CorruptionError, match="flags 0x2"):
        records.decode_stream_record(record.encode(), "here")
    record.length = -1
    with pytest.raises(CorruptionError, match="length -1"):
        record.encode()


def test_records_hold_the_highest_numbers() -> None:
    record = records.StreamRecord((1 << 32) - 1, (1 << 32) - 1)
    record.last_ms = record.last_seq = record.entries_added = TOP
    again = records.decode_stream_record(record.encode(), "here")
    assert (again.last_ms, again.entries_added, again.node_max_bytes) == (TOP, TOP, (1 << 32) - 1)


@given(st.binary(max_size=12))
def test_hostile_rows_give_our_error(body: bytes) -> None:
    for decode in (
        records.decode_number,
        records.decode_key_row,
        records.decode_garbage,
        records.decode_stream_record,
    ):
        with contextlib.suppress(CorruptionError):
            decode(body, "here")
