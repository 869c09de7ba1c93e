"""Queues for the tests of `streamkeep.jobs`."""

from __future__ import annotations

import pytest

from inside import context_of
from streamkeep import Store
from streamkeep.engine.notify.wait_table import hash_name
from streamkeep.jobs import Queue


@pytest.fixture
def queue(store: Store) -> Queue:
    """An empty queue in a store whose clock stands still."""
    return Queue(store, "mails", backoff="10s")


def is_awaited(queue: Queue, key: bytes | None = None) -> bool:
    """Return whether a call waits for a key of the queue; by default, for a job."""
    table = context_of(queue.store).wait_table
    counts = 512  # the word with the count of the keys whose hash is 0
    return table.words[counts + hash_name(key or queue.core.names.name) % 512] > 0
