"""Envelopes of nodes: header, checksums, lengths, and the bitmap of trimmed slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core import checksum
from streamkeep.format.core.errors import (
    ChecksumError,
    CorruptionError,
)
from streamkeep.format.core.keys import LAST_NUMBER
from streamkeep.format.node import envelope
from streamkeep.format.rows import records

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


@given(st.lists(st.integers(0, 300)))
def test_trimmed_slots_survive_the_bitmap(slots: list[int]) -> None:
    bitmap = envelope.set_trimmed(b"", slots)
    assert envelope.trimmed_slots(bitmap) == set(slots)
    assert bitmap[-1:] != b"\0"
