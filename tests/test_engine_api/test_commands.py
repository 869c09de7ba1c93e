"""Commands beyond what the model covers: transactions, snapshots, iterators, pipelines, shapes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from archived_streams import rows
from patience import beside, thread_of
from stores import Open
from streamkeep import ArgumentError, recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.keys import GARBAGE_STEP
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.keys import GARBAGE, NODES
from streamkeep.recovery.salvage.repair import repair
from tiers import slow_but

pytestmark = pytest.mark.both_modes(daily=True)


# --- shapes -------------------------------------------------------------------------------------


def test_text_instead_of_bytes(open_store: Open) -> None:
    store: Store[Any] = open_store(decode_responses=True)
    assert store.xadd("grün", {"größe": "7€"}, id="5-0") == "5-0"
    assert store.xrange("grün") == [("5-0", {"größe": "7€"})]
    assert store.xread({"grün": 0}) == [["grün", [("5-0", {"größe": "7€"})]]]
    assert store.keys() == list(store.scan_iter()) == ["grün"]
    info = store.xinfo_stream("grün")
    assert info["last-generated-id"] == "5-0"
    assert info["first-entry"] == ("5-0", {"größe": "7€"})
    assert store.xinfo_stream("grün", full=True)["entries"] == {"5-0": {"größe": "7€"}}
    assert store.type("grün") == "stream"
    assert store.xadd_many("grün", [{"a": "b"}], ids=["6-*"]) == ["6-0"]
    with store.transaction() as txn:
        assert txn.xrange("grün", min="6") == [("6-0", {"a": "b"})]
    store.xadd("grün", {"bin": b"\xff"})
    with pytest.raises(UnicodeDecodeError):
        store.xrange("grün")


# --- transactions -------------------------------------------------------------------------------


def test_a_transaction_is_seen_whole_or_not_at_all(store: Store) -> None:
    store.xadd("s", {"n": 1}, id="1-1")
    with store.transaction() as txn:
        txn.xadd("s", {"n": 2}, id="1-2")
        txn.xadd("other", {"n": 3}, id="1-1")
        txn.xdel("s", "1-1")
        assert [entry.id for entry in txn.xrange("s")] == [b"1-2"]
        assert txn.keys() == [b"other", b"s"]
        assert store.keys() == [b"s"]  # a read of the store sees what is committed
        assert [entry.id for entry in store.xrange("s")] == [b"1-1"]
    assert [entry.id for entry in store.xrange("s")] == [b"1-2"]
    assert store.xlen("other") == 1


def test_a_transaction_belongs_to_its_thread(store: Store) -> None:
    errors: list[Exception] = []

    def use() -> None:
        try:
            txn.xadd("s", {"n": 1})
        except streamkeep.StoreError as error:
            errors.append(error)

    with store.transaction() as txn:
        thread = thread_of(use)
        thread.join()
    assert "belongs to the thread" in str(errors[0])


def test_ids_of_one_transaction_share_its_time(store: Store, clock: ManualClock) -> None:
    with store.transaction() as txn:
        first = txn.xadd("s", {"n": 1})
        clock.ms += 1000
        second = txn.xadd("s", {"n": 2})
    assert second == first.replace(b"-0", b"-1")
    assert store.xadd("s", {"n": 3}) == b"%d-0" % clock.ms


def test_aborting_does_not_wait_for_threads_that_read_without_a_pause(store: Store) -> None:
    store.xadd_many("s", [{"n": number} for number in range(2000)])
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            store.xrange("s")

    with beside(*[read] * 4, stop=stop.set):
        for _ in range(20):
            with pytest.raises(KeyError), store.transaction() as txn:
                txn.xadd("s", {"n": 1})
                raise KeyError
            with pytest.raises(streamkeep.IdTooSmallError):
                store.xadd("s", {"n": 1}, id="1-1")
    assert store.xlen("s") == 2000


# --- pipelines ----------------------------------------------------------------------------------


def test_an_error_in_a_pipeline_does_not_undo_the_rest(store: Store) -> None:
    pipe = store.pipeline(transaction=False)
    pipe.xadd("s", {"n": 1}, id="5-0")
    pipe.xadd("s", {"n": 2}, id="4-0")
    pipe.xadd("s", {"n": 3}, id="6-0")
    results = pipe.execute(raise_on_error=False)
    assert results[0] == b"5-0"
    assert isinstance(results[1], streamkeep.IdTooSmallError)
    assert results[2] == b"6-0"
    chained: Any = store.pipeline()
    with pytest.raises(streamkeep.IdTooSmallError) as caught:
        chained.xlen("s").xadd("s", {"n": 2}, id="4-0").delete("s").execute()
    assert caught.value.__notes__ == ["command 2 of 3 in the pipeline"]
    assert store.keys() == []


# --- snapshots and iterators --------------------------------------------------------------------


@pytest.mark.parametrize("reverse", slow_but([False, True], True))
def test_an_iterator_may_delete_what_it_stands_on(store: Store, reverse: bool) -> None:
    store.xadd_many("s", [{"n": number} for number in range(150)])
    seen = []
    for entry in store.scan("s", reverse=reverse):
        seen.append(int(entry.fields[b"n"]))
        assert entry.delete()
        assert not entry.delete()
    assert seen == sorted(range(150), reverse=reverse)
    assert store.xlen("s") == 0
    assert store.xinfo_stream("s")["radix-tree-keys"] == 0


def test_iterators_over_ranges(store: Store) -> None:
    top = (1 << 64) - 1
    ids = ["1-0", "1-1", "2-0", f"{top}-0", f"{top}-{top}"]
    store.xadd_many("s", [{"n": number} for number in range(5)], ids=ids)
    assert list(store.scan("s", "1-1", "2")) == store.xrange("s", "1-1", "2")
    assert list(store.scan("s", "(1-1", reverse=True)) == store.xrevrange("s", min="(1-1")
    assert list(store.scan("s", "3", "2")) == []
    assert list(store.scan("nothing")) == []
    assert "ScanEntry(id=b'1-0'" in repr(next(store.scan("s")))


def test_an_iterator_that_is_not_used_up_lets_its_snapshot_go(open_store: Open) -> None:
    store = open_store(max_readers=4)
    store.xadd_many("s", [{"n": number} for number in range(1000)])
    for _ in range(50):
        next(store.scan("s"))
        next(store.scan_iter())


# --- keys ---------------------------------------------------------------------------------------


def test_names_of_every_kind(store: Store) -> None:
    names = [b"", b"\x00", b"\xff" * 600, b"a", b"a" * 509, b"a" * 510, b"a" * 511, b"b" * 65536]
    names += [b"a" * 600 + bytes([n]) for n in range(5)]
    for number, name in enumerate(names):
        store.xadd(name, {"n": number}, id="1-1")
    assert store.keys() == list(store.scan_iter()) == sorted(names)
    for number, name in enumerate(names):
        assert store.xrange(name) == [(b"1-1", {b"n": b"%d" % number})]
    assert store.exists(*names, "nothing", "") == len(names) + 1
    assert store.rename(b"b" * 65536, b"c" * 65536)
    assert store.delete(*names, "nothing") == len(names) - 1
    assert store.keys() == [b"c" * 65536]


def test_deleting_frees_in_bounded_steps(open_store: Open) -> None:
    store = open_store(node_max_entries=1)
    count = 2 * GARBAGE_STEP + 10
    store.xadd_many("s", [{"n": number} for number in range(count)])
    with store.transaction() as txn:
        txn.delete("s")
        txn.xadd("s", {"n": "new"}, id="1-1")
        assert txn.xlen("s") == 1
    assert store.xlen("s") == 1
    assert (rows(store, GARBAGE), rows(store, NODES)) == (0, 0)


def test_garbage_of_a_crash_is_removed_on_opening(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(node_max_entries=1)
    store.xadd_many("s", [{"n": number} for number in range(50)])
    monkeypatch.setattr(Store, "_collect_garbage", lambda self: None)
    store.delete("s")
    store.close()
    monkeypatch.undo()
    store = open_store()
    assert (rows(store, GARBAGE), rows(store, NODES)) == (0, 0)


# --- macro nodes --------------------------------------------------------------------------------


def test_nodes_fill_a_page(store: Store) -> None:
    store.xadd_many("s", [{"data": "x" * 50} for _ in range(5000)])
    info = store.xinfo_stream("s")
    with store.snapshot() as snapshot:
        (stat,) = snapshot.stats()
    per_node = stat.node_bytes / info["radix-tree-keys"]
    assert 3900 < per_node <= 4020


def test_a_node_of_tombstones_is_rewritten_and_an_empty_one_goes(open_store: Open) -> None:
    store = open_store(node_max_bytes=0, node_max_entries=10)
    ids = store.xadd_many("s", [{"n": number} for number in range(40)])
    for one in ids[10:15]:
        store.xdel("s", one)
    assert stat_of(store).tombstones == 5
    store.xdel("s", ids[15])
    assert stat_of(store).tombstones == 0
    store.xdel("s", ids[19])
    assert stat_of(store).tombstones == 1
    store.xdel("s", ids[16], ids[17])
    assert stat_of(store).tombstones == 1, "the last slot stays, so that MINID ~ finds it"
    store.xdel("s", ids[18])
    assert (stat_of(store).tombstones, stat_of(store).nodes) == (0, 3)
    for one in ids[30:39]:
        store.xdel("s", one)
    assert stat_of(store).tombstones == 9, "the tail is not rewritten"


def stat_of(store: Store) -> Any:
    with store.snapshot() as snapshot:
        (stat,) = snapshot.stats()
    return stat


# --- rows: ordered keys and values beside the streams, in transactions with them ------------------


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


def test_rows_survive_compaction_backup_and_repair(open_store: Open, tmp_path: Path) -> None:
    with open_store("store") as store:
        store.row_put("space", b"key", b"v" * 9000)
    recovery.compact(tmp_path / "store")
    recovery.backup(tmp_path / "store", tmp_path / "copy")
    repair(tmp_path / "copy", tmp_path / "repaired")
    with open_store("repaired") as store:
        assert store.row_range("space") == [(b"key", b"v" * 9000)]


def test_an_error_shows_nothing_of_the_attempt_before_it(open_store: Open) -> None:
    open_store("store").close()
    with open_store("store") as store, pytest.raises(streamkeep.NoSuchGroupError) as first:
        store.xreadgroup("mail", "ann", {"orders": "0"})  # its first attempt needs a checkpoint
    assert first.value.__context__ is None
