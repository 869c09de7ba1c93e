"""Rows: keys, checksums, and the records of streams, groups, producers and checkpoints."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments import TOP, nodes_of, opened, some, write
from streamkeep.format.core import checksum, keys
from streamkeep.format.core.errors import ChecksumError, CorruptionError
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER
from streamkeep.format.core.layout import Layout
from streamkeep.format.journal.checkpoint import SLOT, CheckpointSlot, decode_slot
from streamkeep.format.journal.position import POSITION, decode_position, encode_position
from streamkeep.format.lmdb_file.meta_page import META_SIZE, decode_meta_page, meta_page_for
from streamkeep.format.node import envelope
from streamkeep.format.rows import group_records, producers, records
from streamkeep.format.rows.extension import (
    join_sections,
    split_sections,
    with_section,
    without_section,
)
from streamkeep.format.rows.meta_rows import (
    FollowingRow,
    StandbyRow,
    decode_following,
    decode_standby,
)
from streamkeep.format.rows.nacks import ORDERS, OWNED
from streamkeep.format.rows.producers import Message, Producer
from streamkeep.format.rows.records import is_safe_path
from streamkeep.format.segment import manifest
from test_format.made_journal import flipped, sixteen, u32, u64
from test_format.made_segments import ids


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


# --- checksums of rows: each flipped bit, another key and another table are reported --------------


def test_every_flipped_bit_of_a_row_is_reported() -> None:
    db_key, body = keys.name_key(b"", b"orders"), records.encode_key_row(3, b"orders")
    value = checksum.with_checksum(keys.KEYS, db_key, body)
    assert checksum.row_body(keys.KEYS, db_key, value, "here") == body
    for bit in range(len(value) * 8):
        bad = flipped(value, bit)
        with pytest.raises(ChecksumError):
            checksum.row_body(keys.KEYS, db_key, bad, "here")


def test_a_row_under_another_key_or_in_another_table_is_reported() -> None:
    value = checksum.with_checksum(keys.META, b"epoch", records.encode_number(1))
    for table, db_key in ((keys.KEYS, b"epoch"), (keys.META, b"epocg"), (keys.META, b"epoc")):
        with pytest.raises(ChecksumError):
            checksum.row_body(table, db_key, value, "here")


# --- the stream record: its table, and records that no store writes -------------------------------


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
    assert len(data) == records.STREAM_RECORD.size + len(record.extension)
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


# --- the group record: its table, and records that no store writes --------------------------------


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


def vars_of(group: group_records.GroupRecord) -> list[object]:
    """Return everything that a group's row says, compiled or not."""
    names = [field.name for field in group_records.GROUP_RECORD.fields][:-1]
    return [getattr(group, name) for name in [*names, "inline_nacks", "name"]]


# --- sections of a stream record: unknown ones stay, damaged ones are reported --------------------

sections = st.dictionaries(st.integers(0, 255), st.binary(max_size=40), max_size=5)


@given(sections)
def test_sections_come_back_in_the_order_of_their_tags(wanted: dict[int, bytes]) -> None:
    found = split_sections(join_sections(wanted), "here")
    assert found == wanted
    assert list(found) == sorted(wanted)


@given(sections, st.integers(0, 255), st.binary(max_size=40))
def test_a_section_is_set_and_removed_and_the_others_stay(
    before: dict[int, bytes], tag: int, data: bytes
) -> None:
    extension = with_section(join_sections(before), tag, data)
    assert split_sections(extension, "here") == before | {tag: data}
    before.pop(tag, None)
    assert split_sections(without_section(extension, tag), "here") == before


@given(sections.filter(bool), st.data())
def test_a_section_that_is_cut_off_is_reported(
    wanted: dict[int, bytes], draw: st.DataObject
) -> None:
    whole = join_sections(wanted)
    cut = draw.draw(st.integers(1, len(whole) - 1))
    ends = {len(join_sections(dict(sorted(wanted.items())[:n]))) for n in range(len(wanted))}
    if cut in ends:
        assert len(split_sections(whole[:cut], "here")) < len(wanted)
        return
    with pytest.raises(CorruptionError, match="is truncated"):
        split_sections(whole[:cut], "here")


def test_a_section_that_is_repeated_is_reported() -> None:
    with pytest.raises(CorruptionError, match="section 7 of the stream record is repeated"):
        split_sections(join_sections({7: b"x"}) * 2, "here")


# --- rows of producers and of their messages ------------------------------------------------------

names = st.binary(max_size=20)


@given(st.integers(0, LAST_MEMBER), st.integers(0, LAST_NUMBER), st.integers(0, LAST_NUMBER), names)
def test_producers_come_back(number: int, tracked: int, next_order: int, name: bytes) -> None:
    producer = Producer(number, tracked, next_order)
    assert producers.decode_producer(producer.encode(name), "here") == (producer, name)


@given(u64, u64, st.integers(0, LAST_NUMBER), names)
def test_messages_come_back_from_both_tables(ms: int, seq: int, order: int, iid: bytes) -> None:
    message = Message(ms, seq, order, iid)
    assert producers.decode_message(message.encode(), "here") == message
    key = producers.order_key(5, 6, order)
    assert producers.unpack_order_key(key) == (5, 6, order)
    assert producers.decode_ordered(key, message.encode(), "here") == message
    with pytest.raises(CorruptionError, match=f"message with order {order}, expected"):
        producers.decode_ordered(producers.order_key(5, 6, order ^ 1), message.encode(), "here")


def test_a_count_below_zero_is_not_written() -> None:
    with pytest.raises(CorruptionError, match="-1 tracked messages; run `streamkeep repair`"):
        Producer(1, -1, 0).encode(b"p")


@given(st.binary(max_size=19))
def test_rows_that_are_too_short_are_reported(body: bytes) -> None:
    with pytest.raises(CorruptionError, match=f"message row of {len(body)} bytes"):
        producers.decode_message(body, "here")
    with pytest.raises(CorruptionError, match=r"LMDB key: \d+ bytes, expected 20"):
        producers.unpack_order_key(body)


@given(st.lists(st.tuples(names, names), max_size=5))
def test_the_id_made_of_a_content_does_not_depend_on_the_order_of_its_pairs(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    def flat(some: list[tuple[bytes, bytes]]) -> list[bytes]:
        return [part for pair in some for part in pair]

    assert producers.content_iid(flat(pairs)) == producers.content_iid(flat(pairs[::-1]))


def test_the_id_made_of_a_content_depends_on_where_a_field_ends() -> None:
    one, other = producers.content_iid([b"ab", b"c"]), producers.content_iid([b"a", b"bc"])
    assert one != other
    assert len(one) == len(other) == 16


# --- rows about segments and erasures -------------------------------------------------------------

numbers = st.integers(0, LAST_NUMBER)
paths = st.text("abc.%-", min_size=1, max_size=10).filter(lambda text: text not in (".", ".."))
file_records = st.builds(
    lambda numbers, first, last, epoch, origin, path, key: manifest.SegmentRecord._make(
        (
            numbers[0],
            *min(first, last),
            *max(first, last),
            1 + numbers[1] // 2,
            *numbers[2:9],
            epoch,
            origin,
            path,
            key,
        )
    ),
    st.lists(numbers, min_size=9, max_size=9),
    ids,
    ids,
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 2),
    st.lists(paths, min_size=1, max_size=3).map("/".join),
    st.binary(max_size=80),
)


@given(file_records)
def test_manifest_rows_come_back(record: manifest.SegmentRecord) -> None:
    body = record.encode()
    assert manifest.decode_segment_record(record.db_key(), body, "row") == record
    for size in range(manifest.SEGMENT_RECORD.size + len(record.path.encode())):
        with pytest.raises(CorruptionError):
            manifest.decode_segment_record(record.db_key(), body[:size], "row")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", "a\0b"])
def test_paths_that_leave_the_archive_are_refused(path: str) -> None:
    assert not is_safe_path(path)
    record = manifest.record_of(opened(write(nodes_of(some(5)))), path, 0)
    with pytest.raises(CorruptionError, match="leads out of the archive"):
        manifest.decode_segment_record(record.db_key(), record.encode(), "row")


def test_manifest_rows_that_make_no_sense_are_refused() -> None:
    data = write(nodes_of(some(5)))
    record = manifest.record_of(opened(data), "7-o/x.seg", 0)
    assert (record.size_bytes, record.entries) == (len(data), 5)
    assert record.checksum == opened(data).checksum
    wrong: tuple[dict[str, Any], ...] = ({"entries": 0}, {"origin": 3}, {"last_ms": 1})
    for change in wrong:
        bad = record._replace(**change)
        with pytest.raises(CorruptionError):
            manifest.decode_segment_record(bad.db_key(), bad.encode(), "row")


@given(u64)
def test_erasures_come_back(time_ms: int) -> None:
    assert manifest.decode_erasure(manifest.encode_erasure(time_ms), "row") == time_ms
    with pytest.raises(CorruptionError):
        manifest.decode_erasure(manifest.encode_erasure(time_ms)[1:], "row")


# --- slots of checkpoints: each flipped bit is reported -------------------------------------------

slots = st.builds(
    CheckpointSlot,
    *(u32, u64, sixteen, sixteen, u64, u64, u64, u64, u64),
    st.binary(min_size=META_SIZE, max_size=META_SIZE),
)


@given(slots, st.integers(0, 8 * SLOT.size - 1), st.integers(0, SLOT.size - 1))
def test_a_slot_comes_back_and_no_bit_of_it_may_flip(
    slot: CheckpointSlot, bit: int, size: int
) -> None:
    data = slot.encode()
    assert decode_slot(data) == decode_slot(data + b"more") == slot
    assert decode_slot(flipped(data, bit)) is None
    assert decode_slot(data[:size]) is None


# --- the log position: no bit of its row may flip -------------------------------------------------


@given(u64, u64, u64, u64, st.integers(0, 8 * POSITION.size - 1))
def test_a_position_comes_back_and_no_bit_of_it_may_flip(
    file_number: int, offset: int, chain: int, commit_number: int, bit: int
) -> None:
    row = encode_position(file_number, offset, chain, commit_number)
    assert decode_position(row) == (file_number, offset, chain, commit_number)
    bad = flipped(row, bit)
    with pytest.raises(CorruptionError, match="the checksum of the row does not match"):
        decode_position(bad)


@pytest.mark.parametrize("size", [0, POSITION.size - 1, POSITION.size + 1])
def test_a_row_of_another_size_is_reported(size: int) -> None:
    with pytest.raises(CorruptionError, match=f"log position of {size} bytes, expected"):
        decode_position(bytes(size))


# --- lMDB's meta pages, as recovery writes them ---------------------------------------------------


@given(u32, u64, st.integers(0, 1))
def test_a_meta_page_says_its_place_and_commit(size: int, commit: int, place: int) -> None:
    raw = bytearray(META_SIZE)
    struct.pack_into("<I", raw, 16, 0xBEEFC0DE)
    page = decode_meta_page(meta_page_for(bytes(raw), place, commit))
    assert page is not None
    assert page.commit_number == commit
    assert int.from_bytes(page.data[:8], "little") == place


# --- layouts print themselves as tables for the format page ---------------------------------------


def test_layouts_print_as_tables() -> None:
    table = records.STREAM_RECORD.table().splitlines()
    assert len(table) == len(records.STREAM_RECORD.fields) + 2
    assert "| `last_ms` | u64 | last_generated_id: never decreases |" in table
    assert records.STREAM_RECORD.offset("last_seq") == 16
    assert isinstance(envelope.ENVELOPE, Layout)
    with pytest.raises(KeyError):
        envelope.ENVELOPE.offset("nothing")


@pytest.mark.parametrize(
    ("row", "decode"),
    [
        (StandbyRow("file:///c", "1", 2, 3), decode_standby),
        (FollowingRow("redis://h", match=("*",), skipped={"SET": 1}), decode_following),
    ],
)
def test_a_row_of_json_has_the_types_that_are_written(
    row: StandbyRow | FollowingRow, decode: Callable[[bytes, str], object]
) -> None:
    members = row._asdict()
    assert decode(json.dumps(members).encode(), "row") == row
    for name, value in members.items():
        others: list[Any] = [None, [5], {"a": []}, 5, "x", 1.5, True, 1 << 64]
        for other in others:
            if type(other) is not type(value) or other == 1 << 64:
                with pytest.raises(CorruptionError):
                    decode(json.dumps({**members, name: other}).encode(), "row")
