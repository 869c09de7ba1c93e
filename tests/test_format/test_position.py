"""The log position: no bit of its row may flip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.journal.position import POSITION, decode_position, encode_position

u64 = st.integers(0, (1 << 64) - 1)


@given(u64, u64, u64, u64, st.integers(0, 8 * POSITION.size - 1))
def test_a_position_comes_back_and_no_bit_of_it_may_flip(
    file_number: int, offset: int, chain: int, commit_number: int, bit: int
) -> None:
    row = encode_position(file_number, offset, chain, commit_number)
    assert decode_position(row) == (file_number, offset, chain, commit_number)
    flipped = bytearray(row)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="the checksum of the row does not match"):
        decode_position(bytes(flipped))


@pytest.mark.parametrize("size", [0, POSITION.size - 1, POSITION.size + 1])
def test_a_row_of_another_size_is_reported(size: int) -> None:
    with pytest.raises(CorruptionError, match=f"log position of {size} bytes, expected"):
        decode_position(bytes(size))
