"""Nodes as columns: pairs, fields as text and as numbers, full batches, hostile nodes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from streamkeep.arrow.column_buffers import NumberColumn, TextColumn
from streamkeep.arrow.columns import FULL, PAST_END, TAKEN, Columns, ColumnWriter
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import check, listpack
from test_format.made_nodes import TOP, Slot, as_pairs, build, slots, small_ids, wide_ids

I64 = range(-(1 << 63), 1 << 63)


def numbers_in(buffer: bytes, width: int, *, signed: bool = False) -> list[int]:
    return [
        int.from_bytes(buffer[at : at + width], "little", signed=signed)
        for at in range(0, len(buffer), width)
    ]


def texts_of(column: TextColumn) -> list[bytes | None]:
    offsets, values, missing = column.buffers()
    texts: list[bytes | None] = [values[a:b] for a, b in pairwise(numbers_in(offsets, 4))]
    assert len(missing) in (0, len(texts))
    assert not missing or 1 in missing
    return [None if missing and missing[at] else text for at, text in enumerate(texts)]


def values_of(column: NumberColumn) -> list[int | bytes | None]:
    """Return integers as such, everything else as the text that it is."""
    buffer, marks = column.buffers()
    values: list[int | bytes | None] = [*numbers_in(buffer, 8, signed=True)]
    assert len(marks) in (0, len(values))
    texts = iter(texts_of(column.texts))
    for at, mark in enumerate(marks):
        if mark:
            values[at] = next(texts)
    assert next(texts, 7) == 7
    return values


def as_number(text: bytes | None) -> int | bytes | None:
    """Return what a number column has for a stored value."""
    if text is None or not text.removeprefix(b"-").isdigit():
        return text
    number = int(text)
    return number if number in I64 and b"%d" % number == text else text


def pairs_of(columns: Columns) -> list[list[bytes | None]]:
    names, values = texts_of(columns.names), texts_of(columns.values)
    flat = [part for pair in zip(names, values, strict=True) for part in pair]
    assert len(names) == columns.pairs
    return [flat[2 * a : 2 * b] for a, b in pairwise(numbers_in(columns.pair_offsets, 4))]


@given(slots, small_ids | wide_ids, small_ids | wide_ids)
def test_columns_hold_what_the_entries_hold(
    entries: list[Slot], start: tuple[int, int], end: tuple[int, int]
) -> None:
    data, ms, seq = build(entries)
    writer = ColumnWriter()
    state = writer.add(data, ms, seq, *start, *end)
    columns = writer.finish()
    expected = [slot for slot in as_pairs(entries) if start <= slot[:2] <= end]
    found = zip(
        numbers_in(columns.ms, 8), numbers_in(columns.seq, 8), pairs_of(columns), strict=True
    )
    assert list(found) == expected
    assert columns.entries == len(expected)
    assert state == (PAST_END if entries[-1][0] > end else TAKEN)
    beyond = [slot[:2] for slot in expected if max(slot[:2]) >= 1 << 63]
    assert columns.beyond_i64 == (beyond[0] if beyond else None)
    if any(len(set(flat[0::2])) < len(flat[0::2]) for _, _, flat in expected):
        assert columns.repeated


@given(slots, st.integers(1, 5), st.integers(1, 60), st.booleans())
def test_columns_of_single_fields_and_full_batches(
    entries: list[Slot], max_entries: int, max_bytes: int, with_pairs: bool
) -> None:
    data, ms, seq = build(entries)
    texts, numbers = [b"a", b"nowhere", b""], [b"a", b"temperature"]
    found = []
    start = (0, 0)
    while True:
        writer = ColumnWriter(texts, numbers, with_pairs, max_entries, max_bytes)
        state = writer.add(data, ms, seq, *start, TOP, TOP)
        columns = writer.finish()
        assert 1 <= columns.entries <= max_entries
        rows: list[list[Any]] = [
            numbers_in(columns.ms, 8),
            *(texts_of(column) for column in columns.texts),
            *(values_of(column) for column in columns.numbers),
            pairs_of(columns) if with_pairs else [[]] * columns.entries,
        ]
        found += list(zip(*rows, strict=True))
        if state == TAKEN:
            break
        assert state == FULL
        start = (writer.next_ms, writer.next_seq)
    expected = []
    for at, _, flat in as_pairs(entries):
        fields = dict(zip(flat[0::2], flat[1::2], strict=True))
        promoted = [fields.get(name) for name in texts]
        as_numbers = [as_number(fields.get(name)) for name in numbers]
        expected.append((at, *promoted, *as_numbers, flat if with_pairs else []))
    assert found == expected


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=3), min_size=1))
def test_masters_that_change_from_node_to_node(shapes: list[list[bytes]]) -> None:
    """Fields come and go; each node has two entries, the second with the names of the next."""
    writer = ColumnWriter([b"b"], [b"c"], False)
    expected = []
    for at, shape in enumerate(shapes):
        entries: list[Slot] = []
        for seq, names in enumerate((shape, shapes[(at + 1) % len(shapes)])):
            flat = [part for n, name in enumerate(names) for part in (name, b"%d" % (seq + n))]
            entries.append(((at, seq), flat))
            fields = dict(zip(flat[0::2], flat[1::2], strict=True))
            expected.append((fields.get(b"b"), as_number(fields.get(b"c"))))
        assert writer.add(*build(entries), 0, 0, TOP, TOP) == TAKEN
    columns = writer.finish()
    found = zip(texts_of(columns.texts[0]), values_of(columns.numbers[0]), strict=True)
    assert list(found) == expected


NUMBERS = [0, 127, 128, -1, 4095, -4096, 4096, 32767, -32768, 8388607, -8388608, 1 << 23]
NUMBERS += [(1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63)]


def test_integers_of_every_width_and_what_only_looks_like_one() -> None:
    texts = [b"007", b" 7", b"-0", b"+7", b"7.0", b"", b"9223372036854775808", b"-", b"1e3"]
    stored = [part for n in NUMBERS for part in (b"%d" % n, texts[n % len(texts)])]
    entries: list[Slot] = [((1, seq), [b"f", value]) for seq, value in enumerate(stored)]
    writer = ColumnWriter([b"f"], [b"f"], False)
    writer.add(*build(entries), 0, 0, TOP, TOP)
    columns = writer.finish()
    assert texts_of(columns.texts[0]) == stored
    assert values_of(columns.numbers[0]) == [
        part for n in NUMBERS for part in (n, texts[n % len(texts)])
    ]


def test_nothing_is_marked_while_there_is_no_exception() -> None:
    entries: list[Slot] = [((1, seq), [b"f", b"%d" % seq]) for seq in range(100)]
    writer = ColumnWriter([b"f"], [b"f"])
    writer.add(*build(entries), 0, 0, TOP, TOP)
    columns = writer.finish()
    assert columns.texts[0].buffers()[2] == b""
    numbers, marks = columns.numbers[0].buffers()
    assert (marks, columns.numbers[0].texts.entries) == (b"", 0)
    assert numbers_in(numbers, 8) == list(range(100))


@given(st.lists(st.binary(max_size=80) | st.sampled_from(NUMBERS).map(lambda n: b"%d" % n)))
@example([b"x" * size for size in (7, 8, 9, 15, 16, 17, 62, 63, 64, 65, 4095, 4096)])
def test_text_of_any_element_at_any_place(elements: list[bytes]) -> None:
    """Short strings are copied in words, which must not show, nor read beyond the end."""
    data = listpack.encode(elements)
    position = listpack.HEADER_SIZE
    for element in elements:
        writer = BytesWriter()
        writer.write(b"before")
        listpack.put_text(writer, data, position)
        assert writer.getvalue() == b"before" + element
        assert listpack.is_integer_at(data, position) == isinstance(as_number(element), int)
        position = listpack.step(data, position, len(data) - 1)
    assert position == len(data) - 1


def test_a_count_of_fields_beyond_the_node_is_refused_before_memory_is_taken() -> None:
    body = BytesWriter()
    for value in (1, 0, 0, 0, 0, 0, 0, 1 << 40):  # a master without fields, one slot
        listpack.put_integer(body, value)
    data = listpack.wrap(body.getvalue(), 8)
    for writer in (ColumnWriter(), ColumnWriter([b"a"], [b"b"], False)):
        with pytest.raises(CorruptionError):
            writer.add(data, 1, 1, 0, 0, TOP, TOP)


def test_places_are_not_kept_from_one_node_to_the_next() -> None:
    """A big node, then one whose entry has fewer fields: what is absent stays absent."""
    names = [b"a", b"b"]
    big: list[Slot] = [((1, n), [b"a", b"x", b"b", b"7"]) for n in range(50)]
    small: list[Slot] = [((2, 0), [b"b", b"8"]), ((2, 1), [b"c", b"9", b"a", b"y"])]
    writer = ColumnWriter(names, names)
    for entries in (big, small):
        writer.add(*build(entries), 0, 0, TOP, TOP)
    columns = writer.finish()
    assert [texts_of(column)[-2:] for column in columns.texts] == [[None, b"y"], [b"8", None]]
    assert [values_of(column)[-2:] for column in columns.numbers] == [[None, b"y"], [8, None]]
    assert pairs_of(columns)[-2:] == [flat for _, flat in small]


def test_damage_inside_of_a_slot_is_our_error() -> None:
    """A node that ends with its master, cut in front of all slots, has fewer than it counts."""
    data, ms, seq = build([((1, 0), [b"a", b"x" * 70, b"b", b"300"])])
    for size in range(len(data) - 1, int(listpack.HEADER_SIZE), -1):
        cut = bytearray(data[:size])
        cut[-1] = 0xFF
        cut[:4] = size.to_bytes(4, "little")
        for writer in (ColumnWriter(), ColumnWriter([b"b"], [b"a"], False)):
            with pytest.raises(CorruptionError):
                writer.add(bytes(cut), ms, seq, 0, 0, TOP, TOP)
            assert writer.finish().entries == 0
    assert check.validate(data, ms, seq).first_live == (1, 0)
