"""Searching all nodes for what an erasure has to erase."""

from __future__ import annotations

from collections.abc import Callable

from streamkeep.engine.api.store import Store


def test_retired_nodes_of_a_deleted_stream_are_searched_and_erased(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(node_max_entries=5)
    store.set_retention("k", archive=True)
    ids = [f"{n}-0" for n in range(1, 31)]
    store.xadd_many("k", [{"user": n % 3} for n in range(30)], ids)
    store.xtrim("k", maxlen=10, approximate=False)
    store.delete("k")
    found = [str(one) for one in store.find_remains("k", {"user": 1})]
    assert found == ids[1:20:3]
    assert store.erase("k", *found) == len(found)
    assert store.find_remains("k", {"user": 1}) == []
    assert len(store.find_remains("k", {"user": 2})) == 6
