"""Fixtures of the tests of files and their owners."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamkeep


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a store with a journal, an archive and a board, and close it."""
    with streamkeep.open(tmp_path / "store", sync="none") as store:
        store.xadd("s", {"f": "v"})
        store.set_retention("s", archive=True)
        for _ in range(50):
            store.xadd("s", {"pad": "x" * 500})
        store.xtrim("s", maxlen=5, approximate=False)
        store.archive()
    return tmp_path / "store"
