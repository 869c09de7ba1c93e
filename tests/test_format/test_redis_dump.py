"""Streams as Redis writes them: values, payloads, RDB files, LZF."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from redis_parts import comparable, stream_parts
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.node.listpack import encode
from streamkeep.format.node.listpack_check import convert_backlens, validate
from streamkeep.format.redis import stream_dump
from streamkeep.format.redis.crc64 import crc64
from streamkeep.format.redis.lzf import decompress
from streamkeep.format.redis.rdb import OtherObject, RdbEnd, RdbWriter, StreamObject, read_rdb
from streamkeep.format.redis.rdb_values import Source, put_length, put_string
from streamkeep.format.redis.stream_dump import (
    NEWEST,
    TARGETS,
    UNOWNED_LOSS,
    Losses,
    read_payload,
    write_payload,
)
from streamkeep.format.redis.stream_parts import (
    NOBODY,
    ConsumerPart,
    Counters,
    GroupPart,
    Messages,
    Node,
    Part,
    Pending,
)

# DUMP of Redis 8.6.3: two live entries and a tombstone, a group with one pending entry.
REDIS_8_6 = bytes.fromhex(
    "1a011000000163837766ca0000000000000037404c4c000000190002010101020184"
    "6e616d6505816e0200010201000100018453617261050701050103010001010183426f6204c12c02050100011a01"
    "dfc9020101836d7367048268690306 01ff0281000001638377 66e40081000001638377 66ca3781000001638377"
    "66ca380301016781000001638377 66ca3781ffffffffffffffff01000001638377 66ca0000000000000037"
    "3e8973faa10100000101 01633e8973faa10100003e8973faa101000001000001638377 66ca0000000000000037"
    "40644064000000 0d00fafd509cb0e468f4".replace(" ", "")
)


def payload(parts: list[Part], server: str = NEWEST) -> bytes:
    """Return the payload of a stream."""
    nodes = sum(isinstance(part, Node) for part in parts)
    return write_payload(parts, nodes, TARGETS[server], Losses())


def sealed(body: bytes) -> bytes:
    """Return a body with the checksum that belongs to it."""
    return body + crc64(body).to_bytes(8, "little")


def with_messages(parts: list[Part]) -> list[Part]:
    """Return parts with the messages that newer types always have."""
    if any(isinstance(part, Messages) for part in parts):
        return parts
    return [*parts, Messages(100, 100, [], 0, 0)]


# --- payloads -----------------------------------------------------------------------------------


def test_a_payload_of_redis_8_6_is_read_and_written_byte_by_byte() -> None:
    parts = list(read_payload(REDIS_8_6, "test"))
    node, counters, group, messages = parts
    assert isinstance(node, Node)
    assert node.ids is not None
    assert (node.ms, node.seq, node.ids.deleted) == (1526919030474, 55, 1)
    assert counters == Counters(
        2, (1526919030500, 0), (1526919030474, 55), (1526919030474, 56), 3, 1
    )
    assert group == GroupPart(
        b"g",
        (1526919030474, 55),
        -1,
        [ConsumerPart(b"c", 1795203238206, 1795203238206)],
        [Pending(1526919030474, 55, 0, 1795203238206, 1)],
        [],
    )
    assert messages == Messages(100, 100, [], 0, 0)
    assert payload(parts, "8.6") == REDIS_8_6


@given(stream_parts())
@configured(200)
def test_the_newest_type_gives_back_what_was_written(parts: list[Part]) -> None:
    back = list(read_payload(payload(parts), "test"))
    assert comparable(back) == comparable(with_messages(parts))


@given(stream_parts(), st.sampled_from(sorted(TARGETS)))
@configured(100)
def test_every_type_keeps_what_it_has_place_for(parts: list[Part], server: str) -> None:
    target = TARGETS[server]
    losses = Losses()
    nodes = sum(isinstance(part, Node) for part in parts)
    data = write_payload(parts, nodes, target, losses)
    assert data[0] == target.kind
    back = list(read_payload(data, "test"))
    for before, after in zip(parts, back, strict=False):
        if isinstance(before, Node):
            assert comparable([before]) == comparable([after])
        elif isinstance(before, Counters):
            kept = before if target.kind > 15 else (*before[:2], None, None, None, *before[5:])
            assert after == kept
        elif isinstance(before, GroupPart):
            assert isinstance(after, GroupPart)
            assert [one[:2] for one in after.pending] == [one[:2] for one in before.pending]
            assert [one[4] for one in after.pending] == [one[4] for one in before.pending]
            assert after.zone == (before.zone if target.kind == 27 else [])
            if before.zone and target.kind < 27:
                assert losses[UNOWNED_LOSS] >= len(before.zone)
                assert after.consumers[-1].name.startswith(b"nobody")
            assert after.entries_read == (None if target.kind == 15 else before.entries_read)


@given(stream_parts(), st.data())
@configured(150)
def test_every_flipped_bit_of_a_payload_is_reported(parts: list[Part], data: st.DataObject) -> None:
    whole = payload(parts)
    for _ in range(20):
        bit = data.draw(st.integers(0, len(whole) * 8 - 1))
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            list(read_payload(bytes(damaged), "test"))


@given(stream_parts(), st.data())
@configured(300)
def test_a_damaged_payload_under_a_right_checksum_is_refused_or_sound(
    parts: list[Part], data: st.DataObject
) -> None:
    body = bytearray(payload(parts)[:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0x81, 0xC0, 0xC3, 0xF0, 0xFF]))
    with_checksum = sealed(bytes(body[:-2]) + b"\x0f\x00")
    try:
        back = list(read_payload(with_checksum, "test"))
    except CorruptionError:
        return
    again = list(read_payload(payload(back), "test"))  # what was taken can be written
    assert comparable(again) == comparable(with_messages(back))


@given(st.binary(max_size=60), st.sampled_from([15, 19, 21, 26, 27]))
@configured(500)
@example(bytes([0x81]) + b"\xff" * 8, 15)
@example(bytes([1, 0xC3, 1, 0x81]) + b"\xff" * 8, 21)
@example(bytes([1, 16]) + bytes(16) + bytes([0x81]) + b"\x7f" * 8, 21)
@example(bytes([0, 0, 0, 0, 0, 0, 0, 0, 0]) + bytes([0x81]) + b"\xff" * 8, 19)
def test_no_bytes_make_anything_but_a_clear_error(body: bytes, kind: int) -> None:
    with suppress(CorruptionError):
        list(read_payload(sealed(bytes([kind]) + body + b"\x09\x00"), "test"))


@pytest.mark.parametrize("cut", range(0, len(REDIS_8_6) - 11, 7))
def test_a_payload_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(CorruptionError):
        list(read_payload(sealed(REDIS_8_6[:cut] + b"\x0d\x00"), "test"))
    with pytest.raises(CorruptionError):
        list(read_payload(REDIS_8_6[:cut], "test"))


def test_a_payload_without_a_checksum_is_taken_and_a_newer_one_is_not() -> None:
    assert list(read_payload(REDIS_8_6[:-8] + bytes(8), "test"))
    with pytest.raises(CorruptionError, match="RDB version 16, expected at most 15"):
        list(read_payload(sealed(REDIS_8_6[:-10] + b"\x10\x00"), "test"))
    with pytest.raises(CorruptionError, match="type 0 is not a stream"):
        list(read_payload(sealed(b"\x00\x01a\x0d\x00"), "test"))
    with pytest.raises(CorruptionError, match="bytes after the end"):
        list(read_payload(sealed(REDIS_8_6[:-10] + b"\x00\x0d\x00"), "test"))


def entry_node(ms: int, seq: int = 0) -> Node:
    """Return a node of one entry."""
    builder = NodeBuilder(ms, seq, [b"f"])
    builder.append(ms, seq, [b"f", b"v"])
    return Node(ms, seq, builder.listpack())


GROUP = GroupPart(
    b"g",
    (1, 0),
    1,
    [ConsumerPart(b"a", 5), ConsumerPart(b"b", 5)],
    [Pending(1, 0, 0, 5, 1), Pending(2, 0, NOBODY, 0, 1)],
    [(2, 0)],
)
COUNTERS = Counters(1, (1, 0), (1, 0), (0, 0), 1, 0)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([entry_node(1), COUNTERS._replace(length=2)], "the length is 2"),
        ([entry_node(2), COUNTERS], "last_generated_id 1-0 is below the entry 2-0"),
        ([entry_node(1), COUNTERS._replace(max_deleted_id=(2, 0))], "max_deleted_id 2-0 is above"),
        ([entry_node(1), COUNTERS._replace(entries_added=0)], "entries_added is 0"),
        ([entry_node(1), entry_node(1), COUNTERS], "macro node 1-0 is out of order"),
        ([COUNTERS._replace(length=0, groups=2), GROUP, GROUP], "group b'g' is repeated"),
        (
            [
                COUNTERS._replace(length=0, groups=1),
                GROUP._replace(consumers=[ConsumerPart(b"a", 5)] * 2),
            ],
            "consumer b'a' is repeated",
        ),
        (
            [COUNTERS._replace(length=0, groups=1), GROUP._replace(zone=[])],
            "the pending entry 2-0 has no consumer",
        ),
        (
            [COUNTERS._replace(length=0, groups=1), GROUP._replace(zone=[(2, 0), (1, 0)])],
            "two consumers own 1-0",
        ),
        (
            [COUNTERS._replace(length=0, groups=1), GROUP._replace(zone=[(2, 0), (3, 0)])],
            "a consumer owns 3-0, which is not pending",
        ),
        (
            [
                COUNTERS._replace(length=0, groups=1),
                GROUP._replace(pending=[Pending(1, 0, 0, -1, 1)], zone=[]),
            ],
            "the delivery time of 1-0 is -1",
        ),
        (
            [
                COUNTERS._replace(length=0, groups=1),
                GROUP._replace(pending=list(GROUP.pending)[::-1]),
            ],
            "the pending entry 1-0 is out of order",
        ),
        ([COUNTERS._replace(length=0), Messages(0, 100, [], 0, 0)], "idmp-duration is 0"),
        ([COUNTERS._replace(length=0), Messages(1, 10001, [], 0, 0)], "idmp-maxsize is 10001"),
    ],
)
def test_what_contradicts_itself_is_refused(parts: list[Part], problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        list(read_payload(payload(parts), "test"))


def test_a_node_without_live_entries_as_redis_7_0_leaves_them_is_passed_over() -> None:
    builder = NodeBuilder(1, 0, [b"f"])
    builder.append(1, 0, [b"f", b"v"])
    data = bytearray(builder.listpack())
    data[6], data[8] = 0, 1  # counts of live entries and of tombstones
    data[data.index(bytes([2, 1, 0, 1, 0, 1]), 10)] |= 1
    dead = Node(1, 0, bytes(data))
    back = list(
        read_payload(payload([dead, entry_node(2), COUNTERS._replace(last_id=(2, 0))]), "t")
    )
    assert [part[:2] for part in back if isinstance(part, Node)] == [(2, 0)]


# --- primitives ---------------------------------------------------------------------------------


@given(st.integers(0, (1 << 64) - 1))
@example(63)
@example(64)
@example(16383)
@example(16384)
@example(1 << 32)
def test_lengths_come_back(number: int) -> None:
    out = bytearray()
    put_length(out, number)
    assert Source.of(bytes(out), "test").length() == number


def test_strings_are_read_in_every_encoding() -> None:
    for data, text in [
        (b"\xc0\x85", b"-123"),
        (b"\xc1\x00\x80", b"-32768"),
        (b"\xc2\xff\xff\xff\x7f", b"2147483647"),
        (b"\xc3\x05\x0a\x01ab\xc0\x01", b"abababab" + b"ab"),
        (b"\x40\x05hello", b"hello"),
        (b"\x80\x00\x00\x00\x01a", b"a"),
    ]:
        if data[0] == 0xC3:
            data = b"\xc3\x06\x0a\x01ab\xe0\x00\x01"[:2] + b"\x0b" + b"\x01ab\xe0\x00\x01"
            text = b"abababababa"
        source = Source.of(data, "test")
        assert source.string() == text
        assert source.ends()
        skipping = Source.of(data, "test")
        skipping.skip_string()
        assert skipping.ends()


def pieces(data: bytes, size: int) -> Callable[[int], bytes]:
    """Return a `read` that gives `size` bytes at a time."""
    stream = io.BytesIO(data)
    return lambda wanted: stream.read(min(wanted, size))


@given(st.binary(max_size=300), st.integers(1, 50), st.lists(st.integers(0, 90), min_size=1))
def test_a_source_in_pieces_gives_the_same_bytes_and_checksum(
    data: bytes, size: int, takes: list[int]
) -> None:
    source = Source(pieces(data, size), "test")
    taken = b""
    for take in [*takes, len(data)]:
        taken += source.take(min(take, len(data) - len(taken)))
        assert source.checksum() == crc64(taken)
        assert source.offset == len(taken)
    assert taken == data


def test_a_length_that_promises_too_much_takes_no_memory() -> None:
    source = Source.of(b"\x81" + b"\x00\x00\x00\x00\x7f\xff\xff\xff" + b"x" * 10, "test")
    with pytest.raises(CorruptionError, match="truncated: expected 2147483647 bytes, found 10"):
        source.string()
    with pytest.raises(CorruptionError, match="a string of 2147483649 bytes"):
        Source.of(b"\x81" + struct.pack(">Q", (1 << 31) + 1), "test").string()


def test_crc_of_redis() -> None:
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    assert crc64(b"56789", crc64(b"1234")) == 0xE9C6D914C4B8D9CA


@pytest.mark.parametrize(
    ("data", "size", "text"),
    [
        (b"\x00a", 1, b"a"),
        (b"\x00a\x20\x00", 4, b"aaaa"),
        (b"\x00a\xe0\xff\x00", 265, b"a" * 265),
        (b"\x02abc\x60\x02", 8, b"abcabcab"),
    ],
)
def test_lzf(data: bytes, size: int, text: bytes) -> None:
    assert decompress(data, size, "test") == text


@given(st.binary(max_size=40), st.integers(0, 4000))
@example(b"\x05ab", 6)
@example(b"\x20", 3)
@example(b"\xe0\x01", 12)
@example(b"\x20\x05", 3)
def test_lzf_never_gives_more_than_was_promised(data: bytes, size: int) -> None:
    with suppress(CorruptionError):
        assert len(decompress(data, size, "test")) == size


def test_both_generations_of_backlens() -> None:
    for size in (16378, 16377, 16379, 2097146):
        older = encode([b"a", b"x" * size, b"7", b"y" * size, b"z"])
        newer = convert_backlens(older, True)
        assert validate(newer) == validate(older) == 5
        assert len(older) - len(newer) == (2 if size in (16378, 2097146) else 0)
        assert convert_backlens(newer, False) == older
        assert convert_backlens(newer, True) is newer


# --- files --------------------------------------------------------------------------------------


def rdb(body: bytes, head: bytes = b"REDIS0011") -> bytes:
    """Return an RDB file."""
    return sealed(head + body + b"\xff")


def string(text: bytes) -> bytes:
    """Return a string as a file stores it."""
    out = bytearray()
    put_string(out, text)
    return bytes(out)


# An object of every type that is no stream: its value.
OBJECTS = {
    0: string(b"v"),
    1: b"\x02" + string(b"a") + string(b"b"),
    2: b"\x01" + b"\xc0\x07",
    3: b"\x03" + string(b"a") + b"\x031.5" + string(b"b") + b"\xfd" + string(b"c") + b"\xfe",
    4: b"\x01" + string(b"f") + string(b"v"),
    5: b"\x01" + string(b"a") + bytes(8),
    7: b"\x81"
    + bytes(8)
    + b"\x01\x05\x02\x40\x50\x03"
    + bytes(4)
    + b"\x04"
    + bytes(8)
    + b"\x05"
    + string(b"x")
    + b"\x00",
    9: string(b"zipmap"),
    10: string(b"ziplist"),
    11: string(b"intset"),
    12: string(b"ziplist"),
    13: string(b"ziplist"),
    14: b"\x01" + string(b"ziplist"),
    16: string(b"listpack"),
    17: string(b"listpack"),
    18: b"\x02\x01" + string(b"plain") + b"\x02" + string(b"listpack"),
    20: string(b"listpack"),
    22: b"\x01\x05" + string(b"f") + string(b"v"),
    23: string(b"listpack"),
    24: bytes(8) + b"\x01\x05" + string(b"f") + string(b"v"),
    25: bytes(8) + string(b"listpack"),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_other_type_is_passed_over_and_named(kind: int) -> None:
    value = REDIS_8_6[1:-10]
    body = b"\xfe\x03" + bytes([kind]) + string(b"other") + OBJECTS[kind]
    body += b"\xfc" + (99).to_bytes(8, "little") + b"\x1a" + string(b"s") + value
    body += bytes([kind]) + string(b"again") + OBJECTS[kind]
    found: list[object] = []
    keys: list[bytes] = []
    for record in read_rdb(io.BytesIO(rdb(body)).read, "test"):
        if not isinstance(record, RdbEnd):
            assert record.database == 3
            keys.append(record.key)
        if isinstance(record, StreamObject):
            found.append((*record[:3], len(list(record.parts))))
        else:
            found.append(record)
    assert keys == [b"other", b"s", b"again"]
    assert found[1] == (3, b"s", 99, 4)
    assert found[3] == RdbEnd(11, True)


def test_opcodes_are_read_and_what_they_lose_is_named() -> None:
    body = b"\xfa" + string(b"redis-ver") + string(b"7.2.0") + b"\xfe\x00\xfb\x01\x00"
    body += b"\xf5" + string(b"#!lua") + b"\xf4\x01\x02\x03"
    body += b"\xf7\x81" + bytes(8) + b"\x02\x01\x05" + string(b"x") + b"\x00"
    body += (
        b"\xf8\x05\xf9\x07\xfd" + (5).to_bytes(4, "little") + b"\x00" + string(b"k") + b"\xc0\x01"
    )
    assert list(read_rdb(io.BytesIO(rdb(body)).read, "test")) == [
        OtherObject(0, b"", "function library"),
        OtherObject(0, b"", "data of a module"),
        OtherObject(0, b"k", "string"),
        RdbEnd(11, True),
    ]


def test_a_hash_of_valkey_has_the_number_of_another_type() -> None:
    body = b"\x16" + string(b"h") + b"\x01" + string(b"f") + string(b"v") + bytes(8)
    records = list(read_rdb(io.BytesIO(rdb(body, b"VALKEY080")).read, "test"))
    assert records == [OtherObject(0, b"h", "hash"), RdbEnd(80, True)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"PK\x03\x04 not this", "not an RDB file: begins with"),
        (b"REDIS00xx", "not an RDB file"),
        (b"REDIS0016\xff" + bytes(8), "RDB version 16, expected at most 15"),
        (b"REDIS0011", "truncated: expected another byte at byte 9"),
        (b"REDIS0011\xff\x01\x00\x00\x00\x00\x00\x00\x00", "CRC-64 is 0000000000000001"),
        (rdb(b"") + b"x", "bytes after the end of the RDB file"),
        (rdb(b"\x1c" + b"\x01k" + b"\x00"), "unknown object type 28"),
        (rdb(b"\xf3\x01"), "unknown opcode 0xf3"),
        (rdb(b"\x00\x01k"), "a string of|expected|not the first byte"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        list(read_rdb(io.BytesIO(data).read, "test"))


@given(st.lists(st.tuples(st.binary(max_size=5), stream_parts()), max_size=3), st.integers(1, 9999))
@configured(50)
def test_a_file_gives_back_its_streams(streams: list[tuple[bytes, list[Part]]], size: int) -> None:
    writer = RdbWriter(TARGETS[NEWEST])
    data = writer.begin(len(streams))
    for key, parts in streams:
        nodes = sum(isinstance(part, Node) for part in parts)
        data += b"".join(writer.stream(key, parts, nodes))
    data += writer.end()
    assert not writer.losses
    found = []
    for record in read_rdb(pieces(data, size), "test"):
        if isinstance(record, StreamObject):
            found.append((record.key, comparable(list(record.parts))))
    assert found == [(key, comparable(with_messages(parts))) for key, parts in streams]


@given(stream_parts(), st.data())
@configured(100)
def test_every_flipped_bit_of_a_file_is_reported(parts: list[Part], data: st.DataObject) -> None:
    writer = RdbWriter(TARGETS[NEWEST])
    nodes = sum(isinstance(part, Node) for part in parts)
    whole = writer.begin(1) + b"".join(writer.stream(b"k", parts, nodes)) + writer.end()
    for _ in range(10):
        bit = data.draw(st.integers(0, len(whole) * 8 - 1))
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            for record in read_rdb(io.BytesIO(damaged).read, "test"):
                if isinstance(record, StreamObject):
                    list(record.parts)


def test_the_types_are_those_of_redis() -> None:
    assert stream_dump.STREAM_TYPES == (15, 19, 21, 26, 27)
