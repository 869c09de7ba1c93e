"""Counters of a stream: one method for each event, and the row is written when one changed."""

from __future__ import annotations

from streamkeep.engine.txn.stream import ABSENT, Stream
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.node.tombstones import mark
from streamkeep.format.rows.records import StreamRecord


def new_stream() -> Stream:
    return Stream(1, b"s", StreamRecord(4096, 100))


def node(*seqs: int) -> bytes:
    builder = NodeBuilder(1, seqs[0], [b"f"])
    for seq in seqs:
        builder.append(1, seq, [b"f", b"v"])
    return builder.listpack()


def counts(stream: Stream) -> tuple[int, int]:
    return stream.record.length, stream.record.tombstones


def test_the_counts_of_a_stream_change_by_what_its_nodes_state() -> None:
    stream = new_stream()
    data = node(1, 2, 3)
    stream.node_replaced(ABSENT, data)
    assert counts(stream) == (3, 0)
    marked = mark(data, 1, 1, [(1, 2)], 0).data
    stream.node_replaced(data, marked)
    assert counts(stream) == (2, 1)
    stream.node_replaced(marked, ABSENT)
    assert counts(stream) == (0, 0)


def test_only_the_first_entry_of_an_empty_stream_is_its_first() -> None:
    stream = new_stream()
    for entry_id in ((1, 1), (1, 2)):
        stream.entry_appended(*entry_id)
    record = stream.record
    assert (record.first_id(), record.last_live_id(), record.last_id()) == ((1, 1), (1, 2), (1, 2))
    assert (record.length, record.entries_added) == (2, 2)


def test_max_deleted_id_never_falls() -> None:
    stream = new_stream()
    stream.deleted_up_to((5, 0))
    stream.deleted_up_to((4, 9))
    assert stream.record.max_deleted_id() == (5, 0)


def test_a_stream_differs_until_its_row_is_written_and_after_every_change() -> None:
    stream = new_stream()
    assert stream.differs()
    stream.written(stream.encode(1, 1))
    assert not stream.differs()
    stream.set_last_id((7, 7))
    assert stream.differs()
    stream.written(stream.encode(1, 2))
    stream.sealed_added(100)
    stream.written(stream.encode(1, 3))
    stream.sealed_resized(100, 100)  # other bytes of the same size
    assert stream.differs()


def test_a_sealed_node_may_be_reopened_only_without_a_tail() -> None:
    stream = new_stream()
    stream.let_reopen()
    assert stream.may_reopen()
    stream.start_tail(NodeBuilder(1, 1, [b"f"]))
    assert not stream.may_reopen()
    stream.drop_tail()
    assert stream.may_reopen()
    stream.keep_sealed()
    assert not stream.may_reopen()
