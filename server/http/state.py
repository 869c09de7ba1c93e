"""What all routes share: the store, limits, and whether the server is stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import ArgumentError
from streamkeep.metrics.prometheus import Metric

_STATE: Final = "streamkeep"
_HEAVY_AT_ONCE: Final = 2  # searches and counts; each reads for up to half a second
_PAGES_AT_ONCE: Final = 2  # asyncio has 5 threads on a machine with one processor


class State:
    """What all routes share.

    Attributes:
        store: the store, for threads.
        async_store: the same for tasks.
        write: callers may change the store, as far as their rights go.
        heavy: to be held by what reads much.
        reading: to be held while a page is read, so that threads are left for short requests.
        event_streams: how many clients follow a stream.
        more_metrics: returns further figures for Prometheus.
    """

    def __init__(
        self,
        store: Store[bytes] | AsyncStore[bytes],
        *,
        write: bool,
        heartbeat_s: float,
        stall_s: float,
    ) -> None:
        if isinstance(store, AsyncStore):
            self.async_store = store
            self.store = store._store
        else:
            self.store = store
            self.async_store = AsyncStore(store)
        if self.store._decode:
            raise ArgumentError("open the store without decode_responses: names may be any bytes")
        self.write = write
        self.heartbeat_s = heartbeat_s
        self.stall_s = stall_s
        self.heavy = asyncio.Semaphore(_HEAVY_AT_ONCE)
        self.reading = asyncio.Semaphore(_PAGES_AT_ONCE)
        self.checker: Any = None  # a health.Checker, once one is asked for
        self.event_streams = 0
        self.more_metrics: Callable[[], list[Metric]] = list
        self._stopping = False

    def stop(self) -> None:
        """Have all event streams end, within a second."""
        self._stopping = True

    def stopping(self) -> bool:
        """Say whether the server is stopping."""
        return self._stopping


def keep_state(app: object, state: State) -> None:
    """Give an application its state."""
    setattr(app.state, _STATE, state)  # type: ignore[attr-defined]


def state_of(request: Request) -> State:
    """Return the state of the application that serves a request."""
    state: State = getattr(request.app.state, _STATE)
    return state
