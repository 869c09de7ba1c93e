"""Fixtures of the tests of what programs call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from patience import PATIENCE_S
from stores import Open
from streamkeep.aio import AsyncStore
from streamkeep.engine.blocking import waiters


@pytest.fixture
def play(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that runs a coroutine function with a store, which it closes.

    No task looks without being woken: a lost wake-up is a failure.
    """
    monkeypatch.setattr(waiters, "FALLBACK_S", 3600.0)

    def run(use: Callable[[AsyncStore], Awaitable[None]], **options: Any) -> None:
        async def main() -> None:
            async with AsyncStore(open_store(**options)) as store:
                await asyncio.wait_for(use(store), PATIENCE_S)

        asyncio.run(main())

    return run
