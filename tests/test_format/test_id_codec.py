"""IDs as text, packed bytes and bit patterns."""

from __future__ import annotations

import pickle

from hypothesis import example, given
from hypothesis import strategies as st

from streamkeep.format.core import id_codec
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId

TOP = (1 << 64) - 1
u64 = st.integers(0, TOP) | st.sampled_from([0, 1, (1 << 62), (1 << 63) - 1, 1 << 63, TOP])


@given(u64, u64)
def test_ids_survive_text_and_bytes(ms: int, seq: int) -> None:
    one = StreamId(ms, seq)
    assert StreamId.parse(str(one)) == one
    assert StreamId.parse(bytes(one)) == one
    assert id_codec.unpack_id(id_codec.pack_id(ms, seq)) == one
    assert pickle.loads(pickle.dumps(one)) == one


@given(u64, u64, u64, u64)
def test_packed_ids_sort_as_ids_do(ms: int, seq: int, other_ms: int, other_seq: int) -> None:
    lower = (ms, seq) < (other_ms, other_seq)
    packed = id_codec.pack_id(ms, seq) < id_codec.pack_id(other_ms, other_seq)
    bits = id_codec.bits
    patterns = id_codec.below(bits(ms), bits(seq), bits(other_ms), bits(other_seq))
    assert lower == packed == patterns


@given(u64, u64)
@example(0, TOP)
@example(TOP, 0)
@example((1 << 63) - 1, 1 << 63)
@example(1 << 63, 0)
def test_bit_patterns_add_and_subtract_modulo_2_64(value: int, base: int) -> None:
    difference = id_codec.subtract(id_codec.bits(value), id_codec.bits(base))
    assert -(1 << 63) <= difference < 1 << 63
    assert (difference - (value - base)) % (1 << 64) == 0
    assert id_codec.unsigned(id_codec.add(id_codec.bits(base), difference)) == value


def test_the_neighbours_of_an_id() -> None:
    assert StreamId(5, TOP).next() == (6, 0)
    assert StreamId(6, 0).previous() == (5, TOP)
    assert MAX_ID.next() == MIN_ID
    assert str(StreamId(5, 7)) == "5-7"
