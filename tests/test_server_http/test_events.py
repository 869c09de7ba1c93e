"""The event stream: no gap and no repeat, over restarts and trims; bounded for slow clients."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from http_client import TOKEN, EventClient, run
from patience import PATIENCE_S
from streamkeep import Entry, Store
from streamkeep.server.access import Access
from streamkeep.server.http import events
from streamkeep.server.http.app import App, create_app
from streamkeep.server.http.events import EventReply


async def test_new_entries_come_as_they_are_added(store: Store, app: App) -> None:
    store.xadd("k", {"n": "old"}, id="1-0")

    async with EventClient(app, "/streams/k") as reader:
        reader.take()
        await reader.until(lambda: reader.sent)
        assert reader.sent[0] == b"retry: 1000\nid: 1-0\n\n"
        assert app.state.event_streams == 1
        await app.state.async_store.xadd("k", {"n": "new"}, id="2-0")
        await reader.until(lambda: reader.ids)
        assert reader.entries == [{"id": "2-0", "fields": {"n": "new"}}]
        assert b'id: 2-0\ndata: {"id":"2-0"' in reader.sent[1]
    assert app.state.event_streams == 0


def test_a_reader_resumes_over_restarts_and_trims(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_STEP", 7)  # so that none is sent all that there is
    store = open_store()
    store.set_retention("k", archive=True)
    wanted = [f"{number}-0" for number in range(1, 201)]
    seen: list[str] = []
    for turn in range(4):
        store = open_store()
        app = create_app(store, Access(TOKEN))
        for one in wanted[50 * turn : 50 * turn + 50]:
            store.xadd("k", {"n": one}, id=one)
        store.xtrim("k", maxlen=10, approximate=False)
        if turn == 2:
            store.archive()

        async def read(app: App = app, turn: int = turn) -> None:
            headers = {"last_event_id": seen[-1]} if seen else {}
            async with EventClient(app, "/streams/k?after=0", **headers) as reader:
                reader.take(2 + turn)
                await reader.until(lambda: len(reader.sent) == 2 + turn)
                seen.extend(reader.ids)

        run(read)
        store.close()
    store = open_store()
    app = create_app(store, Access(TOKEN))

    async def read_rest() -> None:
        async with EventClient(app, "/streams/k", last_event_id=seen[-1]) as reader:
            reader.take()
            await reader.until(lambda: len(seen) + len(reader.ids) == len(wanted))
            seen.extend(reader.ids)

    run(read_rest)
    assert seen == wanted


async def test_a_client_that_received_nothing_continues_where_it_began(
    store: Store, app: App
) -> None:
    async with EventClient(app, "/streams/k") as reader:
        reader.take()
        await reader.until(lambda: reader.sent)
        begun = reader.sent[0].split(b"id: ")[1].split(b"\n")[0].decode()
    await app.state.async_store.xadd("k", {"n": "1"}, id="5-0")
    async with EventClient(app, "/streams/k", last_event_id=begun) as reader:
        reader.take()
        await reader.until(lambda: reader.ids == ["5-0"])


async def test_a_slow_client_is_read_for_one_step_at_a_time(store: Store, app: App) -> None:
    store.xadd_many("k", [{"v": b"x" * 100_000}] * 40)

    async with EventClient(app, "/streams/k?after=0") as reader:
        reader.take(2)
        await reader.until(lambda: len(reader.sent) == 2 and reader.waiting)
        assert len(b"".join(reader.sent)) < 1_000_000
        assert reader.waiting == 1
        reader.take()
        await reader.until(lambda: len(reader.ids) == 40)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("text/event-stream", "after=0"),
        ("application/x-ndjson", "history=0"),
        ("application/x-ndjson", "history=1"),
        ("application/x-ndjson", "reverse=1"),
    ],
)
async def test_large_entries_among_small_ones_make_no_large_step(
    store: Store, app: App, kind: str, options: str
) -> None:
    small = [{"v": b"s"}] * 600
    store.xadd_many("k", [*small, *[{"v": b"x" * 300_000}] * 10, *small])

    async with EventClient(app, f"/streams/k?{options}", accept=kind) as reader:
        reader.take()
        await reader.until(lambda: b"".join(reader.sent).count(b'"fields"') == 1210)
        assert max(map(len, reader.sent)) < (1 << 18) + 350_000  # and the names of JSON


def waits_after(reader: EventClient, chunks: int) -> bool:
    """Return whether the application waits for a client that has taken so many chunks."""
    return len(reader.sent) == chunks and reader.waiting > 0


def none_is_held(fields: dict[bytes, bytes]) -> bool:
    """Return whether no entry with these fields is in memory; entries of other tests may be."""
    gc.collect()
    return not any(type(one) is Entry and one.fields == fields for one in gc.get_objects())


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson"])
async def test_what_was_sent_to_a_slow_client_is_all_that_is_held(
    store: Store, app: App, kind: str
) -> None:
    fields = {b"v": b"held" * 25_000}
    store.xadd_many("k", [fields] * 40)
    path = "/streams/k" + ("?after=0" if "event" in kind else "")

    async with EventClient(app, path, accept=kind) as reader:
        for turn in range(4):
            await reader.until(partial(waits_after, reader, turn))
            # The thread that read them may still have to leave the call that returned them.
            async with asyncio.timeout(PATIENCE_S):
                while not none_is_held(fields):
                    await asyncio.sleep(0.01)
            reader.take(1)
        assert max(map(len, reader.sent)) < 500_000


async def test_a_client_that_takes_nothing_is_dropped(
    store: Store, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.xadd("k", {"n": 1})
    monkeypatch.setattr("streamkeep.server.http.events.STALL_S", 0.01)

    async with EventClient(app, "/streams/k?after=0") as reader:
        await reader.ended()
        assert reader.sent == []


async def test_a_silent_stream_has_heartbeats(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkeep.server.http.events.HEARTBEAT_S", 0.01)

    async with EventClient(app, "/streams/none") as reader:
        reader.take()
        await reader.until(lambda: reader.sent.count(b":\n\n") >= 2)
        await app.state.async_store.xadd("none", {"n": 1}, id="3-0")
        await reader.until(lambda: reader.ids == ["3-0"])


@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_goes_while_a_chunk_is_sent_ends_its_reply(turns: int) -> None:
    gone, sent = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.Event().wait()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await sent.wait()

    reply = EventReply(chunks(), "text/event-stream", 60.0)
    task = asyncio.create_task(reply({}, receive, send))
    await asyncio.sleep(0.001)
    gone.set()
    for _ in range(turns):  # of the event loop, between the two events
        await asyncio.sleep(0)
    sent.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert task.done()


async def test_a_stopping_server_ends_its_streams(store: Store, app: App) -> None:
    async with EventClient(app, "/streams/k") as reader:
        reader.take()
        await reader.until(lambda: reader.sent)
        app.stop()
        await reader.ended()


async def test_an_id_that_is_wrong_is_refused(store: Store, app: App) -> None:
    for path, header in (("/streams/k?after=x", ""), ("/streams/k", "1-x")):
        async with EventClient(app, path, last_event_id=header) as reader:
            reader.take()
            await reader.ended()
            assert reader.status == 400
