"""LZF, which Redis compresses long strings with."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.lzf import decompress


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
