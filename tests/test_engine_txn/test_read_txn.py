"""Snapshots: of a caller that keeps the streams it has read, and those that no one ends."""

from __future__ import annotations

import gc

from inside import context_of, environment_of
from streamkeep import Store
from streamkeep.engine.txn.stream import Stream


def test_a_known_stream_is_decoded_again_when_it_has_changed(store: Store) -> None:
    known: dict[bytes, Stream] = {}

    def found() -> Stream | None:
        with environment_of(store).begin_read() as txn:
            txn.known = known
            return txn.find_stream(b"s")

    assert found() is None
    store.xadd("s", {"f": "v"}, id="1-0")
    first = found()
    assert first is not None
    assert found() is first
    store.xadd("s", {"f": "v"}, id="2-0")
    second = found()
    assert second is not None
    assert second is not first
    assert second.record.length == 2
    store.delete("s")
    assert found() is None
    store.xadd("s", {"f": "v"}, id="3-0")
    third = found()
    assert third is not None
    assert third.record.length == 1
    assert third.number != second.number


def test_few_streams_are_kept(store: Store) -> None:
    known: dict[bytes, Stream] = {}
    for number in range(100):
        store.xadd(f"s{number}", {"f": "v"})
        with environment_of(store).begin_read() as txn:
            txn.known = known
            assert txn.find_stream(b"s%d" % number) is not None
    assert 0 < len(known) <= 64


def test_the_garbage_collector_may_end_a_snapshot_while_another_one_ends(store: Store) -> None:
    store.xadd("s", {"f": "v"})
    context = context_of(store)
    lost: list[object] = [store.snapshot()]
    lost.append(lost)
    del lost
    with context.exit_gate:
        gc.collect()
    assert context.left == context.entered
