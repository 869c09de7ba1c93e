"""Queues for the tests of `streamkeep.jobs`."""

from __future__ import annotations

import pytest

from streamkeep import Store
from streamkeep.jobs import Queue


@pytest.fixture
def queue(store: Store) -> Queue:
    """An empty queue in a store whose clock stands still."""
    return Queue(store, "mails", backoff="10s")
