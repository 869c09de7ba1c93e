"""Entries of a node in Redis's protocol, beside a plain encoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.node import ranges
from streamkeep.format.node.node import RESP
from test_format.made_nodes import ALL, Slot, as_pairs, build, read, slots

LONG = [b"", b"x", b"7", b"-4096", b"4095", b"12345678901", b"m" * 63, b"m" * 64, b"m" * 5000]


def plain(entry: tuple[int, int, list[bytes]]) -> bytes:
    """Return an entry in RESP, made without care for speed."""
    ms, seq, flat = entry

    def bulk(text: bytes) -> bytes:
        return b"$%d\r\n%b\r\n" % (len(text), text)

    return b"*2\r\n%b*%d\r\n%b" % (bulk(b"%d-%d" % (ms, seq)), len(flat), b"".join(map(bulk, flat)))


def sent(data: bytes, ms: int, seq: int, newest_first: bool) -> bytes:
    """Return what a range of a node is in RESP."""
    wanted = ranges.Range(*ALL[:5], newest_first, int(RESP))
    ranges.read_range(data, ms, seq, wanted, [])
    assert wanted.sent is not None
    return wanted.sent.data()


@given(slots, st.booleans())
def test_entries_have_the_bytes_of_the_protocol(entries: list[Slot], newest_first: bool) -> None:
    node = build(entries)
    expected = as_pairs(entries)
    assert read(*node) == expected
    if newest_first:
        expected.reverse()
    assert sent(*node, newest_first) == b"".join(map(plain, expected))


@pytest.mark.parametrize("same", [True, False])
def test_sizes_of_ids_and_values(same: bool) -> None:
    ids = [(0, 1), (0, 9), (0, 10), (9, 99), (9, 100), (10, 0), (1718004800000, 0)]
    ids += [(1718004800000, 7), (1718004800000, 1234), (1718004800001, 1234), ((1 << 63) - 1, 5)]
    entries = [
        (one, [b"a" if same or not place % 3 else b"b", LONG[place % 9], b"c", LONG[-place % 9]])
        for place, one in enumerate(ids)
    ]
    assert sent(*build(entries), False) == b"".join(map(plain, as_pairs(entries)))
