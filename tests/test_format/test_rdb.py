"""RDB files and RESP: streams come back, the rest is passed over and named, damage is refused."""

from __future__ import annotations

import io
import shlex
import struct
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from redis_parts import comparable, stream_parts
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.lzf import decompress
from streamkeep.format.redis.rdb import OtherObject, RdbEnd, RdbWriter, StreamObject, read_rdb
from streamkeep.format.redis.rdb_values import Source, crc64, put_length
from streamkeep.format.redis.resp import encode_command, read_commands, split_line
from streamkeep.format.redis.stream_dump import NEWEST, TARGETS
from streamkeep.format.redis.stream_parts import Node, Part
from test_format.made_dumps import REDIS_8_6, pieces, sealed, string, with_messages
from test_format.made_journal import flipped

# --- files --------------------------------------------------------------------------------------


def rdb(body: bytes, head: bytes = b"REDIS0011") -> bytes:
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
        damaged = flipped(whole, bit)
        with pytest.raises(CorruptionError):
            for record in read_rdb(io.BytesIO(damaged).read, "test"):
                if isinstance(record, StreamObject):
                    list(record.parts)


# --- lengths and strings of RDB files, in every encoding ------------------------------------------

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
        (b"\xc3\x06\x0b\x01ab\xe0\x00\x01", b"abababababa"),
        (b"\x40\x05hello", b"hello"),
        (b"\x80\x00\x00\x00\x01a", b"a"),
    ]:
        source = Source.of(data, "test")
        assert source.string() == text
        assert source.ends()
        skipping = Source.of(data, "test")
        skipping.skip_string()
        assert skipping.ends()


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


# --- LZF, which Redis compresses long strings with ------------------------------------------------


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


# --- commands in RESP and as plain lines ----------------------------------------------------------

words = st.lists(st.binary(max_size=20), min_size=1, max_size=5)


def commands_of(data: bytes) -> list[tuple[int, list[bytes]]]:
    return list(read_commands(io.BytesIO(data).read, "here"))


@given(st.lists(words, max_size=5))
def test_commands_come_back_with_their_offsets(wanted: list[list[bytes]]) -> None:
    encoded = [encode_command(*one) for one in wanted]
    offsets = [len(b"".join(encoded[:at])) for at in range(len(encoded))]
    assert commands_of(b"".join(encoded)) == list(zip(offsets, wanted, strict=True))


@given(words, st.data())
def test_a_command_that_is_cut_off_is_reported(one: list[bytes], draw: st.DataObject) -> None:
    whole = encode_command(*one)
    cut = draw.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(CorruptionError, match="here"):
        commands_of(whole[:cut])


def test_text_and_numbers_are_encoded() -> None:
    assert encode_command("XLEN", b"\xff", 12) == b"*3\r\n$4\r\nXLEN\r\n$1\r\n\xff\r\n$2\r\n12\r\n"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"*x\r\n", "expected a number up to 1048576"),
        (b"*1048577\r\n", "expected a number up to 1048576"),
        (b"*1\r\n+OK\r\n", r"found b'\+OK', expected a string"),
        (b"*1\r\n$536870913\r\n", "expected a number up to 536870912"),
        (b"*1\r\n$1\r\nab\r\n", "longer or shorter than its length says"),
    ],
)
def test_what_is_not_resp_is_reported(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        commands_of(data)


def test_plain_lines_are_commands_and_empty_ones_are_not() -> None:
    assert commands_of(b'\r\nXADD s * note "two words"\n\nPING\r\n') == [
        (2, [b"XADD", b"s", b"*", b"note", b"two words"]),
        (29, [b"PING"]),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (rb'"a\n\x41\"\\"', [b'a\nA"\\']),
        (rb"'it\'s' '\n'", [b"it's", rb"\n"]),
        (b'"" x', [b"", b"x"]),
        (rb'"\xg1"', [b"xg1"]),
    ],
)
def test_quotes_are_those_of_redis_cli(line: bytes, expected: list[bytes]) -> None:
    assert split_line(line, "here", 0) == expected


@pytest.mark.parametrize("line", [b'"open', b"'open", b'"a"b', rb'"a\"'])
def test_quotes_that_are_not_closed_are_reported(line: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"here: .*quote is not closed.* at byte 9"):
        split_line(line, "here", 9)


@given(st.lists(st.text("abc", min_size=1, max_size=4), max_size=4))
def test_words_without_quotes_are_split_as_a_shell_does(wanted: list[str]) -> None:
    line = " ".join(map(shlex.quote, wanted))
    assert split_line(line.encode(), "here", 0) == [one.encode() for one in wanted]
