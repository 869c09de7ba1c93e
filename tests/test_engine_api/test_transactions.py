"""What a transaction and a pipeline leave, however they end; in every sync mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest

import streamkeep
from conftest import assert_sound
from inside import environment_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.store.command import Write
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.rows.extension import with_section, without_section
from streamkeep.transfer.loading.staged import Load
from streamkeep.transfer.loading.tables import Row

MODES: Final[tuple[Sync, ...]] = ("commit", "interval", "none")
BAD = b"\xff\xfe"  # is not UTF-8
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


def test_what_was_aborted_never_was_and_the_block_goes_on(opened: Open) -> None:
    store = opened()
    store.xadd("s", {"n": 1})
    store.xgroup_create("gone", "g", 0, mkstream=True)
    with store.transaction() as txn:
        txn.xadd("s", {"n": 2})
        txn.xadd("new", {"n": 3})
        txn.delete("gone")
        txn.abort()
        txn.abort()
        assert store.xadd("s", {"n": 4})  # the lock is free
    assert [entry.fields[b"n"] for entry in store.xrange("s")] == [b"1", b"4"]
    assert store.keys() == [b"gone", b"s"]
    assert len(store.xinfo_groups("gone")) == 1


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


@pytest.mark.parametrize("place", ["commit:journaled", "commit:published", "commit:made"])
def test_an_interrupt_at_the_commit_leaves_all_or_nothing(opened: Open, place: str) -> None:
    store = opened()
    store.xadd("s", {"n": 0}, id="1-1")
    failpoints.arm(place, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), store.transaction() as txn:
        txn.xadd("s", {"n": 1}, id="1-2")
        txn.xadd("t", {"n": 1}, id="1-2")
    failpoints.disarm()
    there = place != "commit:journaled"
    assert (store.xlen("s"), store.xlen("t")) == ((2, 1) if there else (1, 0))
    store.xadd("s", {"n": 2}, id="1-3")
    store.sync()
    assert store.xlen("s") == (3 if there else 2)


@pytest.mark.parametrize("count", [11, 100], ids=["into the reserve", "past the reserve"])
def test_a_commit_past_the_limit_of_the_store_undoes_the_transaction(
    opened: Open, count: int
) -> None:
    store = opened(max_store_bytes=1 << 20)
    store.xadd("s", {"n": 0})
    with pytest.raises(streamkeep.StoreFullError), store.transaction() as txn:
        for _ in range(count):
            txn.xadd("s", {"big": bytes(100_000)})
    assert store.xlen("s") == 1
    assert store.xadd("s", {"n": 1})


def test_a_command_that_met_damage_half_way_undoes_the_transaction(opened: Open) -> None:
    store = opened()
    with pytest.raises(streamkeep.StoreError, match=r"nothing .* \(here: damaged\)"):  # noqa: SIM117
        with store.transaction() as txn:
            txn.xadd("s", {"n": 0})
            with pytest.raises(streamkeep.CorruptionError):
                txn._run(Write(damaged_write, ()))
            with pytest.raises(streamkeep.StoreError, match="one of its commands failed"):
                txn.xadd("s", {"n": 1})
    assert store.keys() == []


async def test_an_asyncio_transaction_can_be_aborted(tmp_path: Path) -> None:
    def work(txn: Any) -> str:
        txn.xadd("s", {"n": 1})
        txn.abort()
        return "done"

    for mode in MODES:
        store: Any = await streamkeep.aio.open(tmp_path / mode, sync=mode)
        async with store:
            await store.xadd("kept", {"n": 1})
            for each in MODES:
                assert await store.run(work, sync=each) == "done"
            assert await store.run(work) == "done"
            assert await store.keys() == [b"kept"]
        assert_sound(tmp_path / mode)


def test_an_aborted_transaction_costs_a_load_nothing(opened: Open) -> None:
    store = opened()
    with Load(store) as load:
        incoming = load.begin(b"s", "s")
        assert incoming is not None
        incoming.limit_nodes(0, 3)
        with store.transaction() as txn:
            txn.xadd("other", {"n": 1})
            txn.abort()  # it empties the cache
        incoming.append([Row(n, b"s", n, 0, [b"n", b"1"]) for n in range(1, 10)])
        load.publish()
    assert store.xinfo_stream("s")["radix-tree-keys"] == 3


def queue_bad_reads(commands: Any) -> None:
    commands.xadd("before", {"k": "v"})
    commands.xrange("bad")
    commands.xread({"bad": 0})
    commands.xinfo_stream("bad")
    commands.xreadgroup("g", "c", {"bad": ">"})
    commands.xclaim("bad", "g", "d", 0, ["1-1"])
    commands.xautoclaim("bad", "g", "e", 0)
    commands.xadd("after", {"k": "v"})


def make_bad(store: Store[Any]) -> None:
    store.xadd("bad", {"x": BAD}, id="1-1")
    store.xgroup_create("bad", "g", 0)


def test_a_result_of_a_pipeline_that_is_no_text_undoes_nothing(opened: Open) -> None:
    store = opened(decode_responses=True)
    make_bad(store)
    pipeline = store.pipeline()
    queue_bad_reads(pipeline)
    results = pipeline.execute(raise_on_error=False)
    assert [type(result) for result in results] == [str, *[UnicodeDecodeError] * 6, str]
    assert store.xlen("before") == store.xlen("after") == 1
    pending = store.xpending_range("bad", "g", "-", "+", 10)
    assert [(one["consumer"], one["times_delivered"]) for one in pending] == [("e", 3)]
    queue_bad_reads(pipeline)
    with pytest.raises(UnicodeDecodeError) as caught:
        pipeline.execute()
    assert caught.value.__notes__ == ["command 2 of 8 in the pipeline"]
    assert store.xlen("before") == store.xlen("after") == 2


def test_a_pipeline_returns_the_text_that_the_store_returns(opened: Open) -> None:
    store = opened(decode_responses=True)
    store.xadd("s", {"é": "ü"}, id="1-1")
    store.xgroup_create("s", "g", 0)
    calls: list[Callable[[Any], Any]] = [
        lambda on: on.xrange("s"),
        lambda on: on.xrevrange("s"),
        lambda on: on.xread({"s": 0}),
        lambda on: on.xreadgroup("g", "c", {"s": ">"}, claim_min_idle_time=0),
        lambda on: on.xreadgroup("g", "c", {"s": 0}),
        lambda on: on.xclaim("s", "g", "d", 0, ["1-1"]),
        lambda on: on.xclaim("s", "g", "d", 0, ["1-1"], justid=True),
        lambda on: on.xautoclaim("s", "g", "d", 0),
        lambda on: on.xautoclaim("s", "g", "d", 0, justid=True),
        lambda on: on.xinfo_stream("s", full=True)["entries"],
        lambda on: on.dump("s"),
    ]
    entry = ("1-1", {"é": "ü"})
    expected = [
        [entry],
        [entry],
        [["s", [entry]]],
        [["s", [(*entry, 0, 0)]]],
        [["s", [entry]]],
        [entry],
        ["1-1"],
        ["0-0", [entry], []],
        ["1-1"],
        {"1-1": {"é": "ü"}},
    ]
    assert [call(store) for call in calls[:-1]] == expected
    store.xgroup_destroy("s", "g")
    store.xgroup_create("s", "g", 0)
    with store.transaction() as txn:
        assert [call(txn) for call in calls[:-1]] == expected
        assert isinstance(txn.dump("s"), bytes)
    store.xgroup_destroy("s", "g")
    store.xgroup_create("s", "g", 0)
    pipeline = store.pipeline()
    for call in calls[:-2]:
        call(pipeline)
    pipeline.dump("s")
    *results, payload = pipeline.execute()
    assert results == expected[:-1]
    assert isinstance(payload, bytes)


def test_a_result_in_a_transaction_that_is_no_text_may_be_passed_over(opened: Open) -> None:
    store = opened(decode_responses=True)
    make_bad(store)
    with store.transaction() as txn:
        txn.xadd("w", {"k": "v"})
        with pytest.raises(UnicodeDecodeError):
            txn.xreadgroup("g", "c", {"bad": ">"})
        with pytest.raises(UnicodeDecodeError):
            txn.xrange("bad")
    assert store.xlen("w") == 1
    assert store.xpending("bad", "g")["pending"] == 1


async def test_what_shares_a_commit_is_not_undone_by_a_result_that_is_no_text(
    tmp_path: Path,
) -> None:
    store: Any = await streamkeep.aio.open(tmp_path / "store", decode_responses=True)
    async with store:
        await store.xadd("bad", {"x": BAD}, id="1-1")
        await store.xgroup_create("bad", "g", 0)
        results = await asyncio.gather(
            store.xadd("s", {"n": 1}),
            store.xreadgroup("g", "c", {"bad": ">"}),
            store.xadd("s", {"n": 2}),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [str, UnicodeDecodeError, str]
        assert await store.xlen("s") == 2
        pipeline = store.pipeline()
        queue_bad_reads(pipeline)
        results = await pipeline.execute(raise_on_error=False)
        assert [type(result) for result in results] == [str, *[UnicodeDecodeError] * 6, str]
        assert await store.xlen("after") == 1
    assert_sound(tmp_path / "store")


def test_an_entry_that_is_no_text_is_not_delivered_by_a_call_of_its_own(opened: Open) -> None:
    store = opened(decode_responses=True)
    make_bad(store)
    for _ in range(2):
        with pytest.raises(UnicodeDecodeError):
            store.xreadgroup("g", "c", {"bad": ">"})
        assert store.xpending("bad", "g")["pending"] == 0
        assert store.xinfo_consumers("bad", "g") == []


def test_a_record_that_only_loses_its_last_section_is_written(store: Store) -> None:
    """What is left of it is how the stored one begins."""
    store.xadd("s", {"f": "v"})

    def note(txn: WriteTxn) -> None:
        extension = stream_of(txn).record.extension
        stream_of(txn).record.extension = with_section(extension, 9, b"note")

    def forget(txn: WriteTxn) -> None:
        extension = stream_of(txn).record.extension
        stream_of(txn).record.extension = without_section(extension, 9)

    def stored(txn: ReadTxn) -> bytes:
        return stream_of(txn).record.extension

    def stream_of(txn: ReadTxn | WriteTxn) -> Stream:
        stream = txn.find_stream(b"s")
        assert stream is not None
        return stream

    environment = environment_of(store)
    for change, expected in ((note, with_section(b"", 9, b"note")), (forget, b"")):
        environment.write(change)
        environment.context.forget()  # what is in memory
        assert environment.read(stored) == expected
