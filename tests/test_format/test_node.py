"""Macro nodes: Redis's annotated dump, range reads, tombstones, rewriting, and damage."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from streamkeep.format.core.entry import Entry
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import check, node, ranges, tombstones
from streamkeep.format.node.builder import NodeBuilder, builder_from, encode_nodes
from streamkeep.format.node.columns import ColumnWriter

TOP = (1 << 64) - 1
Bounds = tuple[int, int, int, int, int, bool]  # of `ranges.Range`, without its shape
ALL: Bounds = (0, 0, TOP, TOP, 1 << 40, False)

Slot = tuple[tuple[int, int], list[bytes]]

# The macro node of the annotated DUMP of Redis 8.6: Sara (live), Bob (deleted), msg hi (live).
REDIS_NODE = bytes.fromhex(
    "4c000000 1900 0201 0101 0201 846e616d6505 816e02 0001"
    "0201 0001 0001 845361726105 0701 0501"
    "0301 0001 0101 83426f6204 c12c02 0501"
    "0001 1a01 dfc902 0101 836d736704 82686903 0601 ff"
)
REDIS_KEY = (1526919030474, 55)

small_ids = st.tuples(st.integers(0, 5), st.integers(0, 5))
wide_ids = st.tuples(
    st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, TOP - 1, TOP]) | st.integers(0, TOP),
    st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, TOP - 1, TOP]) | st.integers(0, TOP),
)
names = st.sampled_from([b"", b"a", b"b", b"temperature"])
values = st.binary(max_size=12) | st.integers(-(1 << 63), 1 << 63).map(lambda n: b"%d" % n)
pairs = st.lists(st.tuples(names, values), min_size=1, max_size=4).map(
    lambda items: [part for item in items for part in item]
)
slots = st.lists(
    st.tuples(small_ids | wide_ids, pairs), min_size=1, max_size=12, unique_by=lambda slot: slot[0]
).map(sorted)


def build(entries: list[Slot]) -> tuple[bytes, int, int]:
    """Return the listpack of these entries, and its key."""
    (ms, seq), first = entries[0]
    builder = NodeBuilder(ms, seq, first[0::2])
    for entry_id, fields in entries:
        builder.append(*entry_id, fields)
    return builder.listpack(), ms, seq


def read(data: bytes, ms: int, seq: int, wanted: Bounds = ALL, shape: int = 0) -> Any:
    """Return what `read_range` gives for one node."""
    out: list[object] = []
    ranges.read_range(data, ms, seq, ranges.Range(*wanted, shape), out)
    return out


def as_pairs(entries: list[Slot]) -> list[tuple[int, int, list[bytes]]]:
    return [(*entry_id, fields) for entry_id, fields in entries]


def test_a_node_is_byte_for_byte_what_redis_writes() -> None:
    data, ms, seq = build(
        [
            (REDIS_KEY, [b"name", b"Sara", b"n", b"7"]),
            ((1526919030474, 56), [b"name", b"Bob", b"n", b"300"]),
            ((1526919030500, 0), [b"msg", b"hi"]),
        ]
    )
    marked = tombstones.mark(data, ms, seq, [(1526919030474, 56)], 0)
    assert marked.data == REDIS_NODE
    assert (marked.live, marked.deleted, marked.slots) == (2, 1, [1])


def test_a_node_of_redis_is_read() -> None:
    assert read(REDIS_NODE, *REDIS_KEY, shape=node.ENTRY) == [
        Entry(b"1526919030474-55", {b"name": b"Sara", b"n": b"7"}),
        (b"1526919030500-0", {b"msg": b"hi"}),
    ]
    text = read(REDIS_NODE, *REDIS_KEY, shape=node.TEXT)
    assert text[1] == ("1526919030500-0", {"msg": "hi"})
    assert node.peek_counts(REDIS_NODE[:26]) == (2, 1)
    ids = check.validate(REDIS_NODE, *REDIS_KEY)
    assert ids.first_live == REDIS_KEY
    assert ids.last_live == ids.last_slot == (1526919030500, 0)


@given(slots)
def test_what_is_appended_is_read_back(entries: list[Slot]) -> None:
    data, ms, seq = build(entries)
    assert read(data, ms, seq) == as_pairs(entries)
    check.validate(data, ms, seq)


@given(slots, st.integers(0, 11))
def test_a_builder_goes_on_where_stored_bytes_end(entries: list[Slot], cut: int) -> None:
    data, ms, seq = build(entries)
    head, _, _ = build(entries[: max(1, cut)])
    builder = builder_from(head, ms, seq)
    for entry_id, fields in entries[max(1, cut) :]:
        builder.append(*entry_id, fields)
    assert builder.listpack() == data
    assert builder.size() == len(data)


@given(
    slots, small_ids | wide_ids, small_ids | wide_ids, st.integers(0, 5), st.booleans(), st.data()
)
def test_ranges(
    entries: list[Slot],
    start: tuple[int, int],
    end: tuple[int, int],
    limit: int,
    newest_first: bool,
    data: st.DataObject,
) -> None:
    blob, ms, seq = build(entries)
    dead = data.draw(st.sets(st.sampled_from([entry_id for entry_id, _ in entries])))
    if dead and len(dead) < len(entries):
        blob = tombstones.mark(blob, ms, seq, sorted(dead), 0).data
        entries = [slot for slot in entries if slot[0] not in dead]
    expected = [slot for slot in as_pairs(entries) if start <= slot[:2] <= end]
    if newest_first:
        expected.reverse()
    wanted = (*start, *end, limit, newest_first)
    assert read(blob, ms, seq, wanted) == expected[:limit]


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


def test_a_builder_takes_an_entry_back_that_does_not_fit() -> None:
    builder = NodeBuilder(1, 0, [b"f"])
    assert builder.append_within(1, 0, [b"f", b"x" * 50], 100)
    before = builder.listpack()
    assert not builder.append_within(1, 1, [b"f", b"x" * 50], 100)
    assert builder.listpack() == before


def test_batches_become_nodes_of_bounded_size() -> None:
    entries = [(1, number, [b"f", b"value %d" % number]) for number in range(1000)]
    nodes = encode_nodes(entries, 400)
    assert all(len(data) <= 400 for _, _, data in nodes)
    assert [entry for ms, seq, data in nodes for entry in read(data, ms, seq)] == entries
    huge = [(2, 0, [b"f", b"x" * 1000]), (2, 1, [b"f", b"y"])]
    assert [len(data) <= 400 for _, _, data in encode_nodes(huge, 400)] == [False, True]


# --- damage -------------------------------------------------------------------------------------


def everything(data: bytes, ms: int, seq: int) -> None:
    """Run all that reads or changes a node; only our error may come out."""
    calls = (
        lambda: check.validate(data, ms, seq),
        lambda: read(data, ms, seq),
        lambda: read(data, ms, seq, shape=node.ENTRY),
        lambda: read(data, ms, seq, (0, 0, TOP, TOP, 3, True)),
        lambda: node.end_ids(data, ms, seq),
        lambda: node.live_ids(data, ms, seq),
        lambda: tombstones.mark(data, ms, seq, [(1, 1), (1526919030474, 56)], 0),
        lambda: tombstones.mark_oldest(data, ms, seq, 3, TOP, TOP, set()),
        lambda: tombstones.rewrite(data, ms, seq, set()),
        lambda: builder_from(data, ms, seq).append(TOP, TOP, [b"f", b"v"]),
        lambda: node.peek_counts(data[:26]),
        lambda: ColumnWriter().add(data, ms, seq, 0, 0, TOP, TOP, b"\xff"),
        lambda: ColumnWriter([b"a", b"name"], [b"name"], False).add(data, ms, seq, 0, 0, TOP, TOP),
    )
    for call in calls:
        try:
            call()
        except CorruptionError:
            continue


def test_every_flipped_bit_gives_our_error_or_a_result() -> None:
    for bit in range(len(REDIS_NODE) * 8):
        bad = bytearray(REDIS_NODE)
        bad[bit // 8] ^= 1 << bit % 8
        everything(bytes(bad), *REDIS_KEY)


def test_every_truncation_gives_our_error() -> None:
    for size in range(len(REDIS_NODE)):
        with pytest.raises(CorruptionError):
            check.validate(REDIS_NODE[:size], *REDIS_KEY)
        everything(REDIS_NODE[:size], *REDIS_KEY)


@configured(200)
@given(st.binary(max_size=80), st.tuples(st.integers(0, TOP), st.integers(0, TOP)))
@example(b"", (0, 0))
def test_hostile_elements(elements: bytes, key: tuple[int, int]) -> None:
    size = 6 + len(elements) + 1
    data = size.to_bytes(4, "little") + b"\xff\xff" + elements + b"\xff"
    everything(data, *key)


@configured(150)
@given(slots, st.randoms(use_true_random=False))
def test_damaged_nodes(entries: list[Slot], rng: random.Random) -> None:
    data, ms, seq = build(entries)
    bad = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(bad))
        match rng.randrange(3):
            case 0:
                bad[at] = rng.randrange(256)
            case 1:
                del bad[at : at + rng.randint(1, 5)]
                bad = bad or bytearray(b"x")
            case _:
                bad[at:at] = rng.randbytes(rng.randint(1, 5))
    if rng.random() < 0.8:  # so that damage after the header is reached
        bad[0:4] = len(bad).to_bytes(4, "little")
    everything(bytes(bad), ms, seq)


STRUCTURE = {
    "flags above 3": ("0201 0001 0001 845361726105", "0701 0001 0001 845361726105"),
    "an lp-count that is wrong": ("0701 0501 0301", "0701 0601 0301"),
    "a live count that is wrong": ("1900 0201 0101 0201", "1900 0301 0001 0201"),
    "an ID that does not rise": ("0301 0001 0101 83426f6204", "0301 0001 0001 83426f6204"),
    "a master that does not end": ("816e02 0001", "816e02 0101"),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_validation_finds(name: str) -> None:
    before, after = (bytes.fromhex(text) for text in STRUCTURE[name])
    assert REDIS_NODE.count(before) == 1
    with pytest.raises(CorruptionError):
        check.validate(REDIS_NODE.replace(before, after), *REDIS_KEY)


def test_a_field_count_of_billions_allocates_nothing() -> None:
    elements = bytes.fromhex("0101 0001 f3ffffff7f05")
    data = (6 + len(elements) + 1).to_bytes(4, "little") + b"\x03\x00" + elements + b"\xff"
    with pytest.raises(CorruptionError):
        check.validate(data, 1, 1)
