"""Files of the journal are written before they are used, while no caller waits for them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from inside import checkpointer_of, journal_of
from streamkeep import Store
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.system import files


def test_new_files_are_filled_while_nobody_waits(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []
    fill = files.fill

    def watch(handle: int) -> None:
        fill(handle)
        size = os.fstat(handle).st_size
        assert os.pread(handle, size + 1, 0) == bytes(size)
        filled.append(size)

    monkeypatch.setattr(files, "fill", watch)
    store = open_store(sync="none")
    checkpointer = checkpointer_of(store)
    checkpointer.stop()  # which makes a spare file, too
    store.xadd("s", {"f": "v"})
    journal = journal_of(store)
    assert filled == [journal.first_size]
    for _ in range(6):
        store.xadd("s", {"f": os.urandom(journal.first_size)})  # more than fits: a writer waits
    assert filled == [journal.first_size]
    journal.file_size = journal.first_size  # so that a quarter of it is in use
    journal.prepare_recycled()
    recycled = store.path / JOURNAL_FOLDER / "spare"
    assert recycled.stat().st_size == journal.file_size
    assert filled == [journal.first_size]  # no caller has waited for a sync
    assert journal.drop_recycled()
    journal.sync(store.durability().last_commit)
    journal.prepare_recycled()
    assert filled == [journal.first_size, journal.file_size]
