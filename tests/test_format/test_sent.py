"""Entries of a node in Redis's protocol, beside a plain encoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.arrow.columns import ColumnWriter
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import ranges
from streamkeep.format.node.node import PAIRS, RESP, SlotCursor, read_header
from streamkeep.format.node.tombstones import mark
from test_format.made_nodes import (
    ALL,
    TOP,
    Slot,
    as_pairs,
    build,
    pairs,
    read,
    slots,
    values,
    wide_ids,
)

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


usual = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3), st.integers(0, 12)) | wide_ids,
        st.tuples(values, values).map(lambda two: [b"a", two[0], b"b", two[1]]) | pairs,
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda slot: slot[0],
).map(sorted)


@given(usual, st.data())
def test_ranges_of_usual_entries_are_those_of_the_other_shapes(
    entries: list[Slot], data: st.DataObject
) -> None:
    ids = [one for one, _ in entries]
    dead = data.draw(st.lists(st.sampled_from(ids), max_size=3, unique=True))
    node, ms, seq = build(entries)
    if 0 < len(dead) < len(ids):
        node = mark(node, ms, seq, sorted(dead), 0).data
    near = st.sampled_from(ids) | st.sampled_from([(0, 0), (3, 5), (TOP, TOP)])
    start, end = data.draw(near), data.draw(near)
    limit = data.draw(st.integers(1, 40))
    expected: list[object] = []
    plainly = ranges.Range(*start, *end, limit, False, int(PAIRS))
    plainly.ids = []
    cursor = SlotCursor(read_header(node, ms, seq))
    more = ranges.read_slots(cursor, plainly, expected)
    wanted = ranges.Range(*start, *end, limit, False, int(RESP))
    wanted.ids = []
    other = SlotCursor(read_header(node, ms, seq))
    assert ranges.read_slots(other, wanted, []) == more
    assert wanted.sent is not None
    assert wanted.sent.data() == b"".join(plain(one) for one in expected)  # type: ignore[arg-type]
    assert (wanted.ids, int(wanted.limit)) == (plainly.ids, int(plainly.limit))
    if wanted.limit == 0:  # a reader goes on from here
        assert (int(other.position), int(other.index)) == (int(cursor.position), int(cursor.index))


@given(usual.filter(lambda entries: len(entries) > 1), st.data())
def test_ids_that_do_not_ascend_are_damage_in_every_shape(
    entries: list[Slot], data: st.DataObject
) -> None:
    """A writer may give such a node a right checksum; no range is then sent in part."""
    at = data.draw(st.integers(1, len(entries) - 1))
    earlier = data.draw(st.integers(0, at - 1))
    (entry_id, _), (_, fields) = entries[earlier], entries[at]
    entries[at] = (entry_id, fields)  # once more, or after a higher one
    node = build(entries)
    for shape in (PAIRS, RESP):
        for newest_first in (False, True):
            with pytest.raises(CorruptionError, match=r"ID \d+-\d+ is out of order"):
                read(*node, (*ALL[:5], newest_first), int(shape))
    with pytest.raises(CorruptionError, match="is out of order"):
        ColumnWriter().add(*node, 0, 0, TOP, TOP)
