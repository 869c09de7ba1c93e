"""What a transaction leaves, however it ends; in every sync mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from conftest import assert_sound
from streamkeep.engine import failpoints
from streamkeep.engine.api import Store

MODES = ("commit", "interval", "none")
Open = Callable[..., Store[Any]]


@pytest.fixture(params=MODES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """A function that opens a store as users do; the store is checked at the end."""
    stores: list[Store[Any]] = []

    def open_one(**options: Any) -> Store[Any]:
        stores.append(streamkeep.open(tmp_path / "store", sync=request.param, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()
    assert_sound(tmp_path / "store")


def damaged_write(txn: Any) -> None:
    """Be a command that meets damage when it has written already."""
    txn.create_stream(b"half")
    raise streamkeep.CorruptionError("here", "damaged")


# --- how a transaction ends -------------------------------------------------------------------


def test_what_was_aborted_never_was_and_the_block_goes_on(opened: Open) -> None:
    store = opened()
    store.xadd("s", {"n": 1})
    with store.transaction() as txn:
        txn.xadd("s", {"n": 2})
        txn.xadd("new", {"n": 3})
        txn.abort()
        txn.abort()
        assert store.xadd("s", {"n": 4})  # the lock is free
    assert [entry.fields[b"n"] for entry in store.xrange("s")] == [b"1", b"4"]
    assert store.keys() == [b"s"]


def test_an_aborted_transaction_takes_no_command_of_any_kind(opened: Open) -> None:
    store = opened()
    store.xadd("s", {"n": 1})
    with store.transaction() as txn:
        entries = txn.scan("s")
        next(entries)
        txn.xadd("s", {"n": 2})
        txn.abort()
        calls: list[Callable[[], object]] = [
            lambda: txn.xadd("s", {"n": 1}),
            lambda: txn.xlen("s"),
            lambda: list(txn.scan("s")),
            lambda: list(txn.scan_iter()),
            lambda: txn.delete("s"),
        ]
        for call in calls:
            with pytest.raises(streamkeep.StoreClosedError, match="has ended"):
                call()


def test_an_iterator_does_not_outlive_its_transaction(opened: Open) -> None:
    store = opened()
    store.xadd_many("s", [{"n": number} for number in range(3000)])
    with store.transaction() as txn:
        entries = txn.scan("s")
        next(entries)
    with pytest.raises(streamkeep.StoreClosedError, match="has ended"):
        list(entries)
    with store.snapshot() as snapshot:
        entries = snapshot.scan("s")
        next(entries)
    with pytest.raises(streamkeep.StoreClosedError, match="has ended"):
        list(entries)
    with pytest.raises(streamkeep.StoreClosedError, match="snapshot is closed"):
        list(snapshot.scan("s"))


def test_an_exception_after_an_abort_is_the_users_own(opened: Open) -> None:
    store = opened()
    with pytest.raises(KeyError, match="mine"), store.transaction() as txn:
        txn.xadd("s", {"n": 1})
        txn.abort()
        raise KeyError("mine")
    assert store.keys() == []


def test_an_aborted_deletion_leaves_what_it_deleted(opened: Open) -> None:
    store = opened()
    store.xadd("s", {"n": 1})
    store.xgroup_create("s", "g", 0)
    with store.transaction() as txn:
        txn.delete("s")
        txn.abort()
    assert store.xlen("s") == 1
    assert len(store.xinfo_groups("s")) == 1


def test_a_transaction_inside_another_is_refused_and_undoes_it(opened: Open) -> None:
    store = opened()
    with pytest.raises(streamkeep.StoreError, match="transaction open on the store"):  # noqa: SIM117
        with store.transaction() as outer:
            outer.xadd("s", {"n": 1})
            with store.transaction():
                pass
    assert store.keys() == []
    with store.transaction() as outer:
        outer.xadd("s", {"n": 1})
        outer.abort()
        with store.transaction() as inner:  # the first one has ended
            inner.xadd("t", {"n": 1})
    assert store.keys() == [b"t"]


def test_each_sync_mode_can_be_aborted(opened: Open) -> None:
    store = opened()
    for mode in MODES:
        with store.transaction(sync=mode) as txn:  # type: ignore[arg-type]
            txn.xadd("s", {"n": 1})
            txn.abort()
    assert store.keys() == []


@pytest.mark.parametrize("place", ["commit:journaled", "commit:made"])
def test_an_interrupt_at_the_commit_leaves_all_or_nothing(opened: Open, place: str) -> None:
    store = opened()
    store.xadd("s", {"n": 0}, id="1-1")

    def interrupt() -> None:
        raise KeyboardInterrupt

    failpoints.arm(place, interrupt)
    with pytest.raises(KeyboardInterrupt), store.transaction() as txn:
        txn.xadd("s", {"n": 1}, id="1-2")
        txn.xadd("t", {"n": 1}, id="1-2")
    failpoints.disarm()
    there = place == "commit:made"
    assert (store.xlen("s"), store.xlen("t")) == ((2, 1) if there else (1, 0))
    store.xadd("s", {"n": 2}, id="1-3")
    store.sync()
    assert store.xlen("s") == (3 if there else 2)


def test_a_commit_past_the_limit_of_the_store_undoes_the_transaction(opened: Open) -> None:
    store = opened(max_store_bytes=1 << 20)
    store.xadd("s", {"n": 0})
    with pytest.raises(streamkeep.StoreFullError), store.transaction() as txn:
        for _ in range(11):
            txn.xadd("s", {"big": bytes(100_000)})
    assert store.xlen("s") == 1
    assert store.xadd("s", {"n": 1})


def test_a_full_store_that_is_passed_over_is_told_at_the_end(opened: Open) -> None:
    store = opened(max_store_bytes=1 << 20)
    with pytest.raises(streamkeep.StoreError, match="nothing of the transaction was written"):  # noqa: SIM117
        with store.transaction() as txn:
            txn.xadd("s", {"n": 0})
            with pytest.raises(streamkeep.StoreFullError):
                for number in range(100):
                    txn.xadd(f"s{number}", {"big": bytes(100_000)})
    assert store.keys() == []


def test_a_command_that_met_damage_half_way_undoes_the_transaction(opened: Open) -> None:
    store = opened()
    with pytest.raises(streamkeep.StoreError, match=r"nothing .* \(here: damaged\)"):  # noqa: SIM117
        with store.transaction() as txn:
            txn.xadd("s", {"n": 0})
            with pytest.raises(streamkeep.CorruptionError):
                txn._write(None, damaged_write)
            with pytest.raises(streamkeep.StoreError, match="one of its commands failed"):
                txn.xadd("s", {"n": 1})
    assert store.keys() == []


def test_an_asyncio_transaction_can_be_aborted(tmp_path: Path) -> None:
    def work(txn: Any) -> str:
        txn.xadd("s", {"n": 1})
        txn.abort()
        return "done"

    async def play() -> None:
        for mode in MODES:
            store: Any = await streamkeep.aio.open(tmp_path / mode, sync=mode)
            async with store:
                await store.xadd("kept", {"n": 1})
                for each in MODES:
                    assert await store.run(work, sync=each) == "done"
                assert await store.run(work) == "done"
                assert await store.keys() == [b"kept"]
            assert_sound(tmp_path / mode)

    asyncio.run(play())
