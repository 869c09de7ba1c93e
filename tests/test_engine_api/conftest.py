"""Fixtures of the tests of what programs call."""

from __future__ import annotations

import pytest

from stores import Open
from streamkeep.aio import AsyncStore
from streamkeep.engine.blocking import waiters


@pytest.fixture
def twin(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> AsyncStore:
    """A store for asyncio, of which no task looks without being woken.

    So a lost wake-up is a failure.
    """
    monkeypatch.setattr(waiters, "FALLBACK_S", 3600.0)
    return AsyncStore(open_store())
