"""Deleted entries of a node: marks, rewriting, and counts that change their width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.node import check, node, ranges, tombstones
from test_format.made_nodes import (
    Slot,
    build,
    read,
    slots,
    small_ids,
)

TOP = (1 << 64) - 1


@given(slots, st.lists(small_ids, min_size=1, max_size=8, unique=True).map(sorted))
def test_marking_finds_exactly_the_live_ids(
    entries: list[Slot], ids: list[tuple[int, int]]
) -> None:
    data, ms, seq = build(entries)
    present = {entry_id for entry_id, _ in entries}
    marked = tombstones.mark(data, ms, seq, ids, 0)
    assert marked.ids == [one for one in ids if one in present]
    assert marked.live == len(entries) - len(marked.ids)
    assert all(one <= max(present) for one in ids[: marked.consumed - 1])
    again = tombstones.mark(marked.data, ms, seq, ids, 0)
    assert again.ids == []
    assert again.data == marked.data
    for entry_id in present:
        alive = ranges.has_live(marked.data, ms, seq, *entry_id)
        assert alive == (entry_id not in ids)


@given(slots, st.integers(0, 12), small_ids)
def test_marking_the_oldest(entries: list[Slot], budget: int, last: tuple[int, int]) -> None:
    data, ms, seq = build(entries)
    marked = tombstones.mark_oldest(data, ms, seq, budget, *last, set())
    expected = [entry_id for entry_id, _ in entries if entry_id <= last][:budget]
    assert marked.ids == expected
    assert marked.slots == list(range(len(expected)))


@given(slots, st.data())
def test_rewriting_drops_tombstones_and_keeps_the_rest(
    entries: list[Slot], data: st.DataObject
) -> None:
    blob, ms, seq = build(entries)
    ids = [entry_id for entry_id, _ in entries]
    dead = sorted(data.draw(st.sets(st.sampled_from(ids), max_size=len(ids) - 1)))
    if dead:
        blob = tombstones.mark(blob, ms, seq, dead, 0).data
    rewritten = tombstones.rewrite(blob, ms, seq, set())
    assert read(rewritten.data, ms, seq) == read(blob, ms, seq)
    kept = [number for number, one in enumerate(ids) if one not in dead or number == len(ids) - 1]
    assert rewritten.kept == kept
    before, after = node.end_ids(blob, ms, seq), check.validate(rewritten.data, ms, seq)
    assert after.last_slot == before.last_slot
    assert node.tombstone_slots(rewritten.data, ms, seq) == (
        {len(kept) - 1} if dead and dead[-1] == ids[-1] else set()
    )


def test_a_count_that_changes_its_width_shifts_the_node() -> None:
    entries: list[Slot] = [((1, number), [b"f", b"v"]) for number in range(5000)]
    data, ms, seq = build(entries)
    for count in (4990, 4000, 200, 100):
        ids = [(1, number) for number in range(5000 - count)]
        data = tombstones.mark(data, ms, seq, ids, 0).data
        assert check.validate(data, ms, seq).live == count
