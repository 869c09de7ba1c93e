"""RDB files: streams come back, other types are passed over and named, damage is refused."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.profile import configured
from redis_parts import comparable, stream_parts
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.rdb import OtherObject, RdbEnd, RdbWriter, StreamObject, read_rdb
from streamkeep.format.redis.stream_dump import (
    NEWEST,
    TARGETS,
)
from streamkeep.format.redis.stream_parts import (
    Node,
    Part,
)
from test_format.made_dumps import REDIS_8_6, pieces, sealed, string, with_messages

# --- files --------------------------------------------------------------------------------------


def rdb(body: bytes, head: bytes = b"REDIS0011") -> bytes:
    """Return an RDB file."""
    return sealed(head + body + b"\xff")


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
    assert found[3] == RdbEnd(11, True, {})


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
        RdbEnd(11, True, {b"redis-ver": b"7.2.0"}),
    ]


def test_a_hash_of_valkey_has_the_number_of_another_type() -> None:
    body = b"\x16" + string(b"h") + b"\x01" + string(b"f") + string(b"v") + bytes(8)
    records = list(read_rdb(io.BytesIO(rdb(body, b"VALKEY080")).read, "test"))
    assert records == [OtherObject(0, b"h", "hash"), RdbEnd(80, True, {})]


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
