"""Lengths and strings of RDB files, in every encoding."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.rdb_values import Source, crc64, put_length
from test_format.made_dumps import pieces

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
