"""Envelopes, records, keys and checksums: layout, round trips, and every flipped bit."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core import checksum, keys
from streamkeep.format.core.errors import (
    ChecksumError,
    CorruptionError,
    MissingSegmentError,
    NoSuchGroupError,
    NoSuchKeyError,
)
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER
from streamkeep.format.core.layout import Layout
from streamkeep.format.node import envelope
from streamkeep.format.rows import group_records, records
from streamkeep.format.rows.nacks import ORDERS, OWNED

TOP = (1 << 64) - 1
u64 = st.integers(0, TOP)
numbers = st.integers(0, LAST_NUMBER)
LISTPACK = bytes.fromhex("4c000000")


@given(numbers, u64, u64, st.integers(0, (1 << 32) - 1), u64, st.binary(max_size=30), st.binary())
def test_envelopes_survive(
    number: int, ms: int, seq: int, epoch: int, commit: int, record: bytes, data: bytes
) -> None:
    value = envelope.encode_envelope(number, ms, seq, epoch, commit, record, data, b"\x05")
    found = envelope.decode_envelope(value, "here")
    assert (found.number, found.ms, found.seq) == (number, ms, seq)
    assert (found.epoch, found.commit_number) == (epoch, commit)
    assert (found.record, found.listpack, found.trimmed) == (record, data, b"\x05")
    assert len(value) == envelope.OVERHEAD + len(record) + len(data) + 1


def test_the_header_is_what_its_table_says() -> None:
    value = envelope.encode_envelope(1, 2, 3, 4, 5, b"record", b"listpack", b"")
    fields = envelope.ENVELOPE.struct.unpack_from(value)
    assert fields == (b"SKN", 1, len(value), 1, 2, 3, 4, 5, 6, 0, 8)


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


def test_the_group_record_is_what_its_table_says() -> None:
    group = group_records.GroupRecord(b"a name", 1, 2, 3)
    names = [field.name for field in group_records.GROUP_RECORD.fields][:-1]
    for place, name in enumerate(names, start=1):
        setattr(group, name, place)
    group.inline_nacks = b"nacks"
    body = group.encode()
    values = (*range(1, len(names) + 1), len(group.inline_nacks))
    assert group_records.GROUP_RECORD.struct.unpack_from(body) == values
    assert vars_of(group_records.decode_group(body, "here")) == vars_of(group)
    tops = {"number": LAST_NUMBER, "last_ms": TOP, "next_order": ORDERS, "consumers": LAST_MEMBER}
    for name, top in tops.items():
        setattr(group, name, top)
    group.entries_read = group_records.UNKNOWN
    group.inline_nacks = b"n" * 0x7FFF
    assert vars_of(group_records.decode_group(group.encode(), "here")) == vars_of(group)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", LAST_NUMBER + 1),
        ("next_order", ORDERS + 1),
        ("last_order_time", OWNED),
        ("consumers", LAST_MEMBER + 1),
    ],
)
def test_group_records_that_no_store_writes_are_refused(name: str, value: int) -> None:
    group = group_records.GroupRecord(b"a name", 1, 2, 3)
    setattr(group, name, value)
    with pytest.raises(CorruptionError):
        group_records.decode_group(group.encode(), "here")


def test_stream_records_that_no_store_writes_are_refused() -> None:
    record = records.StreamRecord(0, 0)
    record.flags = 2
    with pytest.raises(CorruptionError, match="flags 0x2"):
        records.decode_stream_record(record.encode(), "here")
    record.length = -1
    with pytest.raises(CorruptionError, match="length -1"):
        record.encode()


def vars_of(group: group_records.GroupRecord) -> list[object]:
    """Return everything that a group's row says, compiled or not."""
    names = [field.name for field in group_records.GROUP_RECORD.fields][:-1]
    return [getattr(group, name) for name in [*names, "inline_nacks", "name"]]


def test_records_hold_the_highest_numbers() -> None:
    record = records.StreamRecord((1 << 32) - 1, (1 << 32) - 1)
    record.last_ms = record.last_seq = record.entries_added = TOP
    again = records.decode_stream_record(record.encode(), "here")
    assert (again.last_ms, again.entries_added, again.node_max_bytes) == (TOP, TOP, (1 << 32) - 1)


def test_every_flipped_bit_of_an_envelope_is_reported() -> None:
    record = records.StreamRecord(4096, 100).encode()
    value = envelope.encode_envelope(7, 1526919030474, 55, 1, 9, record, LISTPACK * 5, b"\x01")
    for bit in range(len(value) * 8):
        bad = bytearray(value)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            envelope.decode_envelope(bytes(bad), "here")


@given(st.binary(max_size=200))
def test_hostile_envelopes_with_a_right_checksum(content: bytes) -> None:
    value = content + checksum.digest64(content)
    with pytest.raises(CorruptionError):
        envelope.decode_envelope(value, "here")


def test_envelope_lengths_must_add_up() -> None:
    header = envelope.ENVELOPE.struct.pack(b"SKN", 1, 60, 1, 2, 3, 4, 5, 0, 0, 4_000_000_000)
    value = header + checksum.digest64(header)
    with pytest.raises(CorruptionError, match="do not add up"):
        envelope.decode_envelope(value, "here")


def test_every_flipped_bit_of_a_row_is_reported() -> None:
    db_key, body = keys.name_key(b"", b"orders"), records.encode_key_row(3, b"orders")
    value = checksum.seal_row(keys.KEYS, db_key, body)
    assert checksum.open_row(keys.KEYS, db_key, value, "here") == body
    for bit in range(len(value) * 8):
        bad = bytearray(value)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            checksum.open_row(keys.KEYS, db_key, bytes(bad), "here")


def test_a_row_under_another_key_or_in_another_table_is_reported() -> None:
    value = checksum.seal_row(keys.META, b"epoch", records.encode_number(1))
    for table, db_key in ((keys.KEYS, b"epoch"), (keys.META, b"epocg"), (keys.META, b"epoc")):
        with pytest.raises(ChecksumError):
            checksum.open_row(table, db_key, value, "here")


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
    }


@given(st.lists(st.integers(0, 300)))
def test_trimmed_slots_survive_the_bitmap(slots: list[int]) -> None:
    bitmap = envelope.set_trimmed(b"", slots)
    assert envelope.trimmed_slots(bitmap) == set(slots)
    assert bitmap[-1:] != b"\0"


def test_corruption_errors_survive_pickling() -> None:
    error = MissingSegmentError("segment", "gone", offset=3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is MissingSegmentError
    assert (again.where, again.problem, again.offset) == ("segment", "gone", 3)
    assert str(again) == "segment: gone at byte 3"


def test_errors_know_the_line_of_a_redis_server() -> None:
    assert NoSuchKeyError("no such key").redis_error == "ERR no such key"
    text = "NOGROUP No such consumer group 'g' for key name 'k'"
    assert NoSuchGroupError(text).redis_error == text


def test_layouts_print_as_tables() -> None:
    table = records.STREAM_RECORD.table().splitlines()
    assert len(table) == len(records.STREAM_RECORD.fields) + 2
    assert "| 8 | 8 | `last_ms` | u64 | last_generated_id: never decreases |" in table
    assert records.STREAM_RECORD.offset("last_seq") == 16
    assert isinstance(envelope.ENVELOPE, Layout)
    with pytest.raises(KeyError):
        envelope.ENVELOPE.offset("nothing")
