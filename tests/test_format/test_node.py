"""Macro nodes: Redis's annotated dump, range reads, tombstones, rewriting, and damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from streamkeep.arrow.columns import ColumnWriter, FieldNames
from streamkeep.format.core import checksum
from streamkeep.format.core.entry import Entry
from streamkeep.format.core.errors import ChecksumError, CorruptionError
from streamkeep.format.core.keys import LAST_NUMBER
from streamkeep.format.node import check, envelope, node, ranges, tombstones
from streamkeep.format.node.builder import NodeBuilder, builder_from, encode_nodes
from streamkeep.format.node.node import PAIRS, RESP, SlotCursor, read_header
from streamkeep.format.node.tombstones import mark
from streamkeep.format.rows import records
from test_format.made_journal import flipped
from test_format.made_nodes import (
    ALL,
    REDIS_KEY,
    REDIS_NODE,
    TOP,
    Slot,
    as_pairs,
    build,
    pairs,
    read,
    slots,
    small_ids,
    values,
    wide_ids,
    with_counts,
)


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
        lambda: ColumnWriter().add(data, ms, seq, 0, 0, TOP, TOP),
        lambda: ColumnWriter([b"a", b"name"], [b"name"], False).add(data, ms, seq, 0, 0, TOP, TOP),
    )
    for call in calls:
        try:
            call()
        except CorruptionError:
            continue


def test_every_flipped_bit_gives_our_error_or_a_result() -> None:
    for bit in range(len(REDIS_NODE) * 8):
        bad = flipped(REDIS_NODE, bit)
        everything(bad, *REDIS_KEY)


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


# --- building nodes: appends, limits, and going on where stored bytes end -------------------------


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


@given(slots, st.integers(0, 11))
def test_a_builder_goes_on_where_stored_bytes_end(entries: list[Slot], cut: int) -> None:
    data, ms, seq = build(entries)
    head, _, _ = build(entries[: max(1, cut)])
    builder = builder_from(head, ms, seq)
    for entry_id, fields in entries[max(1, cut) :]:
        builder.append(*entry_id, fields)
    assert builder.listpack() == data
    assert builder.size() == len(data)
    assert read(data, ms, seq) == as_pairs(entries)
    check.validate(data, ms, seq)


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


# --- ranges of a node's entries in both directions ------------------------------------------------


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


# --- checking every byte of a node: damage gives our error and takes no memory --------------------

STRUCTURE = {
    "num-elements that are wrong": ("4c000000 1900", "4c000000 1a00"),
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


@pytest.mark.parametrize(
    "elements",
    [
        "0101 0001 f3ffffff7f05",
        # Of a slot: in 64 bits, twice this is the lp-count that follows, less 4.
        "0101 0001 0101 816602 0001 0001 0001 0001 f4000000000000004009 f4040000000000008009",
    ],
)
def test_a_field_count_of_billions_allocates_nothing(elements: str) -> None:
    body = bytes.fromhex(elements) + b"\xff"
    data = (6 + len(body)).to_bytes(4, "little") + b"\xff\xff" + body
    with pytest.raises(
        CorruptionError, match=r"a string|the number of fields is 4611686018427387904"
    ):
        check.validate(data, 1, 1)


@given(slots, st.data())
def test_a_node_that_is_read_to_its_end_has_as_many_slots_as_it_counts(
    entries: list[Slot], draws: st.DataObject
) -> None:
    """A writer may give wrong counts a right checksum; no decoder then returns all entries."""
    whole, ms, seq = build(entries)
    dead = draws.draw(st.integers(0, len(entries) - 1))
    whole = tombstones.mark(whole, ms, seq, [one for one, _ in entries[:dead]] or [(0, 0)], 0).data
    right = node.peek_counts(whole[:26])
    counts = st.tuples(st.integers(0, 15), st.integers(0, 15))
    wrong = draws.draw(counts.filter(lambda both: both != right))
    data = with_counts(whole, *wrong)
    expected = (
        f"macro node {ms}-{seq}: the master entry counts {wrong[0]} live and {wrong[1]} deleted "
        f"slots, found {right[0]} and {right[1]} "
    )
    bounds = [(*ALL[:5], newest_first) for newest_first in (False, True)]
    calls: tuple[Callable[[], object], ...] = (
        lambda: ColumnWriter().add(data, ms, seq, 0, 0, TOP, TOP),
        lambda: ColumnWriter([b"a"], [b"b"], False).add(data, ms, seq, 0, 0, TOP, TOP),
        lambda: FieldNames().add_nodes([(ms, seq, data)], 0, 0, TOP, TOP),
        *(partial(read, data, ms, seq, one, int(PAIRS)) for one in bounds),
        *(partial(read, data, ms, seq, one, int(RESP)) for one in bounds),
        lambda: node.end_ids(data, ms, seq),
        lambda: list(node.slots(data, ms, seq)),
        lambda: tombstones.rewrite(data, ms, seq, set()),
        lambda: check.validate(data, ms, seq),
    )
    for call in calls:
        with pytest.raises(CorruptionError, match=expected):
            call()


# --- deleted entries of a node: marks, rewriting, and counts that change their width --------------


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
    last = data.draw(st.sets(st.just(len(ids) - 1)))
    rewritten = tombstones.rewrite(blob, ms, seq, last)
    assert read(rewritten.data, ms, seq) == read(blob, ms, seq)
    kept = [number for number, one in enumerate(ids) if one not in dead or number in last]
    assert rewritten.kept == kept
    assert check.validate(rewritten.data, ms, seq).last_slot == ids[kept[-1]]
    assert node.tombstone_slots(rewritten.data, ms, seq) == (
        {len(kept) - 1} if last and ids[-1] in dead else set()
    )


def test_a_count_that_changes_its_width_shifts_the_node() -> None:
    entries: list[Slot] = [((1, number), [b"f", b"v"]) for number in range(5000)]
    data, ms, seq = build(entries)
    for count in (4990, 4000, 200, 100):
        ids = [(1, number) for number in range(5000 - count)]
        data = tombstones.mark(data, ms, seq, ids, 0).data
        assert check.validate(data, ms, seq).live == count


# --- envelopes of nodes: header, checksums, lengths, and the bitmap of trimmed slots --------------

u64 = st.integers(0, TOP)
numbers = st.integers(0, LAST_NUMBER)
LISTPACK = bytes.fromhex("4c000000")


@given(numbers, u64, u64, st.integers(0, (1 << 32) - 1), u64, st.binary(max_size=30), st.binary())
def test_envelopes_survive(
    number: int, ms: int, seq: int, epoch: int, commit: int, record: bytes, data: bytes
) -> None:
    value = envelope.encode_envelope(number, ms, seq, epoch, commit, record, data, b"\x05")
    found = envelope.decode_envelope(value, "here")
    assert (found.number, found.ms, found.seq) == (number, ms, seq)
    assert (found.epoch, found.commit_number) == (epoch, commit)
    assert (found.record, found.listpack, found.trimmed) == (record, data, b"\x05")
    assert len(value) == envelope.OVERHEAD + len(record) + len(data) + 1


def test_the_header_is_what_its_table_says() -> None:
    value = envelope.encode_envelope(1, 2, 3, 4, 5, b"record", b"listpack", b"")
    fields = envelope.ENVELOPE.struct.unpack_from(value)
    assert fields == (b"SKN", 1, len(value), 1, 2, 3, 4, 5, 6, 0, 8)


def test_every_flipped_bit_of_an_envelope_is_reported() -> None:
    record = records.StreamRecord(4096, 100).encode()
    value = envelope.encode_envelope(7, 1526919030474, 55, 1, 9, record, LISTPACK * 5, b"\x01")
    for bit in range(len(value) * 8):
        bad = flipped(value, bit)
        with pytest.raises(ChecksumError):
            envelope.decode_envelope(bad, "here")


@given(st.binary(max_size=200))
def test_hostile_envelopes_with_a_right_checksum(content: bytes) -> None:
    value = content + checksum.digest64(content)
    with pytest.raises(CorruptionError):
        envelope.decode_envelope(value, "here")


def test_envelope_lengths_must_add_up() -> None:
    header = envelope.ENVELOPE.struct.pack(b"SKN", 1, 60, 1, 2, 3, 4, 5, 0, 0, 4_000_000_000)
    value = header + checksum.digest64(header)
    with pytest.raises(CorruptionError, match="do not add up"):
        envelope.decode_envelope(value, "here")


@given(st.lists(st.integers(0, 300)))
def test_trimmed_slots_survive_the_bitmap(slots: list[int]) -> None:
    bitmap = envelope.set_trimmed(b"", slots)
    assert envelope.trimmed_slots(bitmap) == set(slots)
    assert bitmap[-1:] != b"\0"


# --- entries of a node in Redis's protocol, beside a plain encoder --------------------------------

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
