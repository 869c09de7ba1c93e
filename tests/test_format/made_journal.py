"""A small store's journal, and helpers that flip bits."""

from __future__ import annotations

from hypothesis import strategies as st

u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
sixteen = st.binary(min_size=16, max_size=16)


def flipped(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)
