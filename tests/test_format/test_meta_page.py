"""LMDB's meta pages, as recovery writes them."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.lmdb_file.meta_page import META_SIZE, decode_meta_page, meta_page_for
from test_format.made_journal import u32, u64


@given(u32, u64, st.integers(0, 1))
def test_a_meta_page_says_its_place_and_commit(size: int, commit: int, place: int) -> None:
    raw = bytearray(META_SIZE)
    struct.pack_into("<I", raw, 16, 0xBEEFC0DE)
    page = decode_meta_page(meta_page_for(bytes(raw), place, commit))
    assert page is not None
    assert page.commit_number == commit
    assert int.from_bytes(page.data[:8], "little") == place
