"""The asyncio twin of the store: the same results, shared transactions, errors, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from inside import context_of
from patience import PATIENCE_S, wait_until
from stores import Open
from streamkeep import aio, facade
from streamkeep.aio import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.store.command import Write
from streamkeep.format.core.errors import StoreError

NEW = {"s": ">"}


async def test_open_gives_an_asyncio_store(tmp_path: Path) -> None:
    store = await streamkeep.aio.open(tmp_path / "store", sync="none")
    assert isinstance(store, AsyncStore)
    added = await store.xadd("s", {"f": "v"})
    assert await store.xrange("s") == [(added, {b"f": b"v"})]
    assert repr(store).startswith("<streamkeep.aio.AsyncStore ")
    await store.close()
    await store.close()
    for call in (store.xlen("s"), store.xadd("s", {"f": "v"})):
        with pytest.raises(streamkeep.StoreClosedError):
            await call
    async with await aio.open(tmp_path / "store", decode_responses=True) as text:
        assert (await text.xrange("s"))[0].fields == {"f": "v"}
        assert text.path == tmp_path / "store"
    with pytest.raises(streamkeep.NotAStoreError):
        await aio.open(tmp_path / "none", create=False)


def test_open_takes_the_options_of_open() -> None:
    options = inspect.signature(facade.open).parameters
    assert inspect.signature(aio.open).parameters == options
    assert list(options)[:2] == ["path", "sync"]
    assert "clock" not in options


def test_an_option_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sinc'"):
        streamkeep.open(tmp_path / "store", sinc="none")  # type: ignore[call-overload]
    assert not (tmp_path / "store").exists()


async def test_every_command_is_there(twin: AsyncStore) -> None:
    public = {
        name
        for name, value in vars(Store).items() | _inherited()
        if isinstance(value, types.FunctionType) and not name.startswith("_")
    }
    assert public - set(dir(AsyncStore)) == {
        "transaction",  # `run` instead
        "open_transaction",  # which no task can have
        "ask_stops",  # of threads: a task is cancelled
    }
    assert await twin.xgroup_create("s", "g", mkstream=True) is True
    assert await twin.xadd("s", {"f": "v"}, id="1-1") == b"1-1"
    found = await twin.xreadgroup("g", "c", NEW, count=1)
    assert found == [[b"s", [(b"1-1", {b"f": b"v"})]]]
    assert [name async for name in twin.scan_iter("*")] == [b"s"]
    assert (await twin.xgroup_help())[0].startswith("XGROUP")
    await twin.sync()
    assert await twin.delete("s") == 1
    with pytest.raises(streamkeep.NoSuchKeyError):
        await twin.xinfo_stream("s")
    with pytest.raises(streamkeep.ArgumentError):
        await twin.xadd("s", {})


def _inherited() -> set[tuple[str, Any]]:
    return {(name, getattr(Store, name)) for name in dir(Store) if not name.startswith("_")}


async def test_reads_that_wait_for_the_disk(open_store: Open) -> None:
    store = AsyncStore(open_store(read_durable=True))
    await store.xadd("s", {"f": "v"}, id="1-1")
    assert await store.xrange("s") == [(b"1-1", {b"f": b"v"})]


async def test_a_read_does_not_wait_for_the_thread_that_writes(open_store: Open) -> None:
    store = open_store(sync="none")
    for number in range(9):
        store.xadd("s", {"n": number})
    begun, go_on = threading.Event(), threading.Event()
    waited: list[bool] = []

    def hold(txn: object) -> None:
        begun.set()
        waited.append(go_on.wait(PATIENCE_S / 10))

    thread = threading.Thread(target=store._run, args=(Write(hold, ()),))
    tasks = AsyncStore(store)
    thread.start()
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    reads = asyncio.gather(tasks.xlen("s"), tasks.xrange("s"), tasks.xread({"s": 0}))
    length, entries, found = await reads
    go_on.set()
    assert length == len(entries) == len(found[0][1]) == 9
    thread.join(PATIENCE_S)
    assert waited == [True]


async def test_a_function_is_one_transaction(twin: AsyncStore) -> None:
    def move(txn: streamkeep.Transaction[bytes]) -> int:
        txn.xadd("a", {"f": "v"})
        txn.xadd("b", {"f": "v"})
        return txn.xlen("a")

    def fail(txn: streamkeep.Transaction[bytes]) -> None:
        txn.xadd("a", {"f": "v"})
        raise ZeroDivisionError

    async def add(txn: streamkeep.Transaction[bytes]) -> None:
        txn.xadd("a", {"f": "v"})

    def add_and_return(txn: streamkeep.Transaction[bytes]) -> object:
        txn.xadd("a", {"f": "v"})
        return add(txn)

    assert await twin.run(move) == 1
    with pytest.raises(ZeroDivisionError):
        await twin.run(fail)
    for coroutine in (add, add_and_return):
        with pytest.raises(streamkeep.ArgumentError, match="ordinary function"):
            await twin.run(coroutine)
    assert await twin.xlen("a") == 1
    with twin.snapshot() as snapshot:
        await twin.xadd("a", {"f": "v"})
        assert snapshot.xlen("a") == 1


async def test_a_pipeline_is_awaited(twin: AsyncStore) -> None:
    async with twin.pipeline() as pipeline:
        pipeline.xadd("s", {"f": "v"}, id="1-1")
        pipeline.xlen("s")
        assert await pipeline.execute() == [b"1-1", 1]
        pipeline.xadd("s", {"f": "v"}, id="1-1")
        with pytest.raises(streamkeep.IdTooSmallError):
            await pipeline.execute()


async def test_tasks_share_transactions(twin: AsyncStore) -> None:
    context = context_of(twin._store)
    await twin.xadd("s", {"f": "v"})
    before = context.last_commit
    added = await asyncio.gather(*(twin.xadd("s", {"n": n}) for n in range(300)))
    assert context.last_commit - before < 100
    entries = (await twin.xrange("s"))[1:]
    assert [entry.id for entry in entries] == added  # in the order of the calls
    assert [entry.fields[b"n"] for entry in entries] == [b"%d" % n for n in range(300)]


async def test_each_command_of_a_batch_has_its_own_result(twin: AsyncStore) -> None:
    calls = [twin.xadd("s", {"n": n}, id=f"{n}-1") for n in (5, 3, 6, 6, 7)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in results] == [
        bytes,
        streamkeep.IdTooSmallError,
        bytes,
        streamkeep.IdTooSmallError,
        bytes,
    ]
    assert [entry.id for entry in await twin.xrange("s")] == [b"5-1", b"6-1", b"7-1"]


async def test_what_fails_behind_a_commit_does_not_run_again(open_store: Open) -> None:
    """With every reader slot taken nothing can be cleaned up; entries were written, once."""
    store = AsyncStore(open_store(max_readers=4))
    await store.xadd("k", {"n": "first"})
    held = []
    with contextlib.suppress(StoreError):
        while True:
            held.append(store.snapshot())
    results = await asyncio.gather(*(store.xadd("k", {"n": n}) for n in "ab"))
    for one in held:
        one.close()
    assert [entry.id for entry in await store.xrange("k")][1:] == results
    assert await store.xlen("k") == 3


async def test_a_function_that_raises_stop_iteration_stops_nobody_else(twin: AsyncStore) -> None:
    async def bad() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await twin.run(lambda txn: next(iter([])))

    async def good() -> bytes:
        return await twin.run(lambda txn: txn.xadd("k", {"f": "v"}))

    assert len(await asyncio.gather(bad(), good(), good())) == 3
    assert await twin.xlen("k") == 2


async def test_a_pipeline_is_empty_when_its_execution_is_cancelled(twin: AsyncStore) -> None:
    begun, gate = threading.Event(), threading.Event()

    def work(_: object) -> None:
        begun.set()
        gate.wait(PATIENCE_S)

    busy = asyncio.create_task(twin.run(work))
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    pipeline = twin.pipeline()
    pipeline.xadd("k", {"n": "1"})
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(pipeline.execute(), 0.05)
    assert len(pipeline) == 0
    gate.set()
    await busy
    pipeline.xadd("k", {"n": "2"})
    assert len(await pipeline.execute()) == 1
    assert [entry.fields for entry in await twin.xrange("k")] == [{b"n": b"2"}]


async def test_another_sync_mode_reads_history(twin: AsyncStore) -> None:
    view = twin.using("none")
    await twin.set_retention("k", archive=True)
    for number in range(5):
        await view.xadd("k", {"n": str(number)})
    await view.xtrim("k", maxlen=1, approximate=False)
    await twin.archive()
    assert len(await view.xrange("k", history=True)) == 5
    assert len([entry async for entry in view.scan("k", history=True)]) == 5


async def test_a_cancelled_iteration_over_segments_is_cancelled_at_once(twin: AsyncStore) -> None:
    await twin.set_retention("k", archive=True)
    for _ in range(50):
        await twin.xadd("k", {"pad": "x" * 100})
    await twin.xtrim("k", maxlen=0, approximate=False)
    await twin.archive()
    begun, gate = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        begun.set()
        gate.wait(PATIENCE_S)

    async def verify() -> None:
        async for _ in twin.verify_archive(progress=wait):
            pass

    task = asyncio.create_task(verify())
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()


async def test_closing_again_ends_the_thread(open_store: Open) -> None:
    store = AsyncStore(open_store())
    await store.xadd("k", {"f": "v"})
    store._store.close()
    await store.close()
    await store.close()
    wait_until(lambda: "streamkeep" not in [thread.name for thread in threading.enumerate()])
