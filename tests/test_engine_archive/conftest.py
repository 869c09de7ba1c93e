"""Fixtures of the tests of the archive."""

from __future__ import annotations

import pytest

from archived_streams import fill
from streamkeep.engine.api.store import Store


@pytest.fixture
def archived(store: Store) -> tuple[Store, list[bytes]]:
    """A store with 900 of 1,000 entries retired."""
    store.set_retention("s", archive=True)
    ids = fill(store, 1000)
    store.xtrim("s", maxlen=100, approximate=False)
    return store, ids
