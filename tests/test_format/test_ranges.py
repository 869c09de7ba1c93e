"""Ranges of a node's entries in both directions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.node import tombstones
from test_format import made_nodes

TOP = (1 << 64) - 1


@given(
    made_nodes.slots,
    made_nodes.small_ids | made_nodes.wide_ids,
    made_nodes.small_ids | made_nodes.wide_ids,
    st.integers(0, 5),
    st.booleans(),
    st.data(),
)
def test_ranges(
    entries: list[made_nodes.Slot],
    start: tuple[int, int],
    end: tuple[int, int],
    limit: int,
    newest_first: bool,
    data: st.DataObject,
) -> None:
    blob, ms, seq = made_nodes.build(entries)
    dead = data.draw(st.sets(st.sampled_from([entry_id for entry_id, _ in entries])))
    if dead and len(dead) < len(entries):
        blob = tombstones.mark(blob, ms, seq, sorted(dead), 0).data
        entries = [slot for slot in entries if slot[0] not in dead]
    expected = [slot for slot in made_nodes.as_pairs(entries) if start <= slot[:2] <= end]
    if newest_first:
        expected.reverse()
    wanted = (*start, *end, limit, newest_first)
    assert made_nodes.read(blob, ms, seq, wanted) == expected[:limit]
