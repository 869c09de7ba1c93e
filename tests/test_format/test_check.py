"""Checking every byte of a node: damage gives our error and takes no memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.arrow.columns import ColumnWriter, FieldNames
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import check, node, tombstones
from streamkeep.format.node.node import PAIRS, RESP
from test_format import made_nodes

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
    assert made_nodes.REDIS_NODE.count(before) == 1
    with pytest.raises(CorruptionError):
        check.validate(made_nodes.REDIS_NODE.replace(before, after), *made_nodes.REDIS_KEY)


def test_a_field_count_of_billions_allocates_nothing() -> None:
    elements = bytes.fromhex("0101 0001 f3ffffff7f05")
    data = (6 + len(elements) + 1).to_bytes(4, "little") + b"\x03\x00" + elements + b"\xff"
    with pytest.raises(CorruptionError):
        check.validate(data, 1, 1)


@given(made_nodes.slots, st.data())
def test_a_node_that_is_read_to_its_end_has_as_many_slots_as_it_counts(
    entries: list[made_nodes.Slot], draws: st.DataObject
) -> None:
    """A writer may give wrong counts a right checksum; no decoder then returns all entries."""
    whole, ms, seq = made_nodes.build(entries)
    dead = draws.draw(st.integers(0, len(entries) - 1))
    whole = tombstones.mark(whole, ms, seq, [one for one, _ in entries[:dead]] or [(0, 0)], 0).data
    right = node.peek_counts(whole[:26])
    counts = st.tuples(st.integers(0, 15), st.integers(0, 15))
    wrong = draws.draw(counts.filter(lambda both: both != right))
    data = made_nodes.with_counts(whole, *wrong)
    expected = (
        f"macro node {ms}-{seq}: the master entry counts {wrong[0]} live and {wrong[1]} deleted "
        f"slots, found {right[0]} and {right[1]} "
    )
    bounds = [(*made_nodes.ALL[:5], newest_first) for newest_first in (False, True)]
    calls: tuple[Callable[[], object], ...] = (
        lambda: ColumnWriter().add(data, ms, seq, 0, 0, made_nodes.TOP, made_nodes.TOP),
        lambda: ColumnWriter([b"a"], [b"b"], False).add(
            data, ms, seq, 0, 0, made_nodes.TOP, made_nodes.TOP
        ),
        lambda: FieldNames().add_nodes([(ms, seq, data)], 0, 0, made_nodes.TOP, made_nodes.TOP),
        *(partial(made_nodes.read, data, ms, seq, one, int(PAIRS)) for one in bounds),
        *(partial(made_nodes.read, data, ms, seq, one, int(RESP)) for one in bounds),
        lambda: node.end_ids(data, ms, seq),
        lambda: list(node.slots(data, ms, seq)),
        lambda: tombstones.rewrite(data, ms, seq, set()),
        lambda: check.validate(data, ms, seq),
    )
    for call in calls:
        with pytest.raises(CorruptionError, match=expected):
            call()
