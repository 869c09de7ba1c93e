"""Nodes as columns: their buffers, and hostile nodes. `spark.test_arrow` compares their values."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from streamkeep.arrow.columns import ColumnWriter
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import check, listpack
from test_format.made_nodes import TOP, Slot, build, listpack_of, wrapped

NUMBERS = [0, 127, 128, -1, 4095, -4096, 4096, 32767, -32768, 8388607, -8388608, 1 << 23]
NUMBERS += [(1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63)]


def test_nothing_is_marked_while_there_is_no_exception() -> None:
    entries: list[Slot] = [((1, seq), [b"f", b"%d" % seq]) for seq in range(100)]
    writer = ColumnWriter([b"f"], [b"f"])
    writer.add(*build(entries), 0, 0, TOP, TOP)
    columns = writer.finish()
    assert columns.texts[0].buffers()[2] == b""
    numbers, marks = columns.numbers[0].buffers()
    assert (marks, columns.numbers[0].texts.entries) == (b"", 0)
    assert memoryview(numbers).cast("q").tolist() == list(range(100))


@given(st.lists(st.binary(max_size=80) | st.sampled_from(NUMBERS).map(lambda n: b"%d" % n)))
@example([b"x" * size for size in (7, 8, 9, 15, 16, 17, 62, 63, 64, 65, 4095, 4096)])
def test_text_of_any_element_at_any_place(elements: list[bytes]) -> None:
    """Short strings are copied in words, which must not show, nor read beyond the end."""
    data = listpack_of(elements)
    position = listpack.HEADER_SIZE
    for element in elements:
        writer = BytesWriter()
        writer.write(b"before")
        listpack.put_text(writer, data, position)
        assert writer.getvalue() == b"before" + element
        canonical = re.fullmatch(rb"0|-?[1-9]\d*", element) is not None
        small = canonical and -(1 << 63) <= int(element) < 1 << 63
        assert listpack.is_integer_at(data, position) == small
        position = listpack.step(data, position, len(data) - 1)
    assert position == len(data) - 1


def test_a_count_of_fields_beyond_the_node_is_refused_before_memory_is_taken() -> None:
    body = BytesWriter()
    for value in (1, 0, 0, 0, 0, 0, 0, 1 << 40):  # a master without fields, one slot
        listpack.put_integer(body, value)
    data = wrapped(body.getvalue(), 8)
    for writer in (ColumnWriter(), ColumnWriter([b"a"], [b"b"], False)):
        with pytest.raises(CorruptionError):
            writer.add(data, 1, 1, 0, 0, TOP, TOP)


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
