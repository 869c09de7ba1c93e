"""Slots of checkpoints: each flipped bit is reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.journal.checkpoint import SLOT, CheckpointSlot, decode_slot
from streamkeep.format.lmdb_file.meta_page import META_SIZE
from test_format.made_journal import flipped, sixteen, u32, u64

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
