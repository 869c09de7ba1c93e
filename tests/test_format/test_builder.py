"""Building nodes: appends, limits, and going on where stored bytes end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.node import check, tombstones
from streamkeep.format.node.builder import NodeBuilder, builder_from, encode_nodes
from test_format import made_nodes

TOP = (1 << 64) - 1


def test_a_node_is_byte_for_byte_what_redis_writes() -> None:
    data, ms, seq = made_nodes.build(
        [
            (made_nodes.REDIS_KEY, [b"name", b"Sara", b"n", b"7"]),
            ((1526919030474, 56), [b"name", b"Bob", b"n", b"300"]),
            ((1526919030500, 0), [b"msg", b"hi"]),
        ]
    )
    marked = tombstones.mark(data, ms, seq, [(1526919030474, 56)], 0)
    assert marked.data == made_nodes.REDIS_NODE
    assert (marked.live, marked.deleted, marked.slots) == (2, 1, [1])


@given(made_nodes.slots, st.integers(0, 11))
def test_a_builder_goes_on_where_stored_bytes_end(entries: list[made_nodes.Slot], cut: int) -> None:
    data, ms, seq = made_nodes.build(entries)
    head, _, _ = made_nodes.build(entries[: max(1, cut)])
    builder = builder_from(head, ms, seq)
    for entry_id, fields in entries[max(1, cut) :]:
        builder.append(*entry_id, fields)
    assert builder.listpack() == data
    assert builder.size() == len(data)
    assert made_nodes.read(data, ms, seq) == made_nodes.as_pairs(entries)
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
    assert [entry for ms, seq, data in nodes for entry in made_nodes.read(data, ms, seq)] == entries
    huge = [(2, 0, [b"f", b"x" * 1000]), (2, 1, [b"f", b"y"])]
    assert [len(data) <= 400 for _, _, data in encode_nodes(huge, 400)] == [False, True]
