"""Fixtures of the tests of what programs call."""

from __future__ import annotations

import pytest

from stores import Open
from streamkeep.aio import AsyncStore


@pytest.fixture
def twin(open_store: Open, no_fallback: None) -> AsyncStore:
    """A store for asyncio."""
    return AsyncStore(open_store())
