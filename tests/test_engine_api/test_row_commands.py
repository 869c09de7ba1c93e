"""Rows: ordered keys and values beside the streams, in transactions with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeep import ArgumentError, Store, recovery
from streamkeep.recovery.salvage.repair import repair


def test_a_space_has_its_rows_in_the_order_of_their_keys(store: Store) -> None:
    for key in (b"b", b"a\xff", b"a", b"\xff" * 9):
        store.row_put("one", key, key * 2)
    store.row_put("one!", b"c", b"of a longer space")
    store.row_put("on", b"e\x01", b"of a shorter space")
    keys = [b"a", b"a\xff", b"b", b"\xff" * 9]
    assert [key for key, _ in store.row_range("one")] == keys
    assert [key for key, _ in store.row_range("one", reverse=True)] == keys[::-1]
    assert store.row_range("one", b"a\x00", b"b") == [(b"a\xff", b"a\xffa\xff"), (b"b", b"bb")]
    assert store.row_range("one", b"", b"b", 1, reverse=True) == [(b"b", b"bb")]
    assert store.row_range("one", count=0) == store.row_range("none") == []
    assert (store.row_get("one", b"b"), store.row_get("two", b"b")) == (b"bb", None)
    assert (store.row_delete("one", b"b"), store.row_delete("one", b"b")) == (True, False)
    assert store.row_get("one", b"b") is None


def test_rows_change_with_the_transaction_that_changes_them(store: Store) -> None:
    with pytest.raises(KeyError), store.transaction() as txn:
        txn.row_put("space", b"key", b"value")
        txn.xadd("orders", {"a": 1})
        assert txn.row_get("space", b"key") == b"value"
        raise KeyError
    assert (store.row_get("space", b"key"), store.exists("orders")) == (None, 0)


@pytest.mark.parametrize(
    ("space", "key"), [("", b"k"), ("s" * 256, b"k"), ("s", b""), ("s", b"k" * 510)]
)
def test_a_row_that_cannot_be_stored_is_refused(store: Store, space: str, key: bytes) -> None:
    with pytest.raises(ArgumentError, match="possible"):
        store.row_put(space, key, b"value")
    assert store.row_range(space or "s") == [] if len(space) < 256 else True


def test_rows_survive_compaction_backup_and_repair(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    with open_store("store") as store:
        store.row_put("space", b"key", b"v" * 9000)
    recovery.compact(tmp_path / "store")
    recovery.backup(tmp_path / "store", tmp_path / "copy")
    repair(tmp_path / "copy", tmp_path / "repaired")
    with open_store("repaired") as store:
        assert store.row_range("space") == [(b"key", b"v" * 9000)]
