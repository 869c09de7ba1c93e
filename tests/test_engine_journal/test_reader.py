"""The journal is read in windows; the locks of those that hold its files."""

from __future__ import annotations

import errno
import random
import signal
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from inside import checkpoint_file_of, checkpoint_now, checkpointer_of
from stopped import child_of, ended
from streamkeep import Store, StoreError
from streamkeep.engine.journal import slots
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, Reader
from streamkeep.engine.system.safe_files import Folder

SEEDS = 4


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_commit_is_read_in_order(store: Store, seed: int) -> None:
    checkpointer_of(store).stop()  # a checkpoint would remove records
    store.xadd("s", {"first": "1"})
    store.sync()
    checkpoint_file = checkpoint_file_of(store)
    checkpoint_now(store)
    slot = checkpoint_file.newest()
    assert slot is not None
    rng = random.Random(seed)
    sizes = [rng.choice((1, 500, 70_000, 262_100, 300_000, 900_000)) for _ in range(60)]
    for size in sizes:
        store.xadd("s", {"f": "x" * size})
    folder = Folder(store.path / JOURNAL_FOLDER)
    last = slot.commit_number + len(sizes)
    reader = Reader(folder, slot, slot.position())
    found = []
    halfway = reader.position
    while (body := reader.next()) is not None:
        found.append((reader.position.commit_number, len(body)))
        if reader.position.commit_number == last - 30:
            halfway = reader.position
    assert [number for number, _ in found] == list(range(slot.commit_number + 1, last + 1))
    assert all(got > size for (_, got), size in zip(found, sizes, strict=True))
    assert reader.position.commit_number == last
    again = Reader(folder, slot, halfway)
    assert [len(body) for body in iter(again.next, None)] == [size for _, size in found[-30:]]


def test_without_a_descriptor_no_commit_is_taken_for_the_last_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer_of(store).stop()
    store.xadd("s", {"first": "1"})
    checkpoint_now(store)
    slot = checkpoint_file_of(store).newest()
    assert slot is not None
    store.xadd("s", {"second": "1"})
    reader = Reader(Folder(store.path / JOURNAL_FOLDER), slot, slot.position())
    with monkeypatch.context() as broken:
        broken.setattr(Folder, "open", Mock(side_effect=OSError(errno.EMFILE, "simulated")))
        with pytest.raises(StoreError, match="as many files open as it may"):
            reader.next()
    assert reader.next() is not None
    assert reader.next() is None


def test_a_record_that_claims_more_than_the_file_holds_ends_it(store: Store) -> None:
    store.xadd("s", {"first": "1"})
    checkpoint_now(store)
    checkpoint_file = checkpoint_file_of(store)
    slot = checkpoint_file.newest()
    assert slot is not None
    store.xadd("s", {"second": "2"})
    position = slot.position()
    path = store.path / JOURNAL_FOLDER / f"{position.file_number:012d}.skj"
    data = bytearray(path.read_bytes())
    for at in range(position.offset, position.offset + 4):
        data[at] = 0xFF
    copy = store.path.parent / "journal"
    copy.mkdir()
    (copy / path.name).write_bytes(data)
    assert Reader(Folder(store.path / JOURNAL_FOLDER), slot, position).next() is not None
    assert Reader(Folder(copy), slot, position).next() is None


# --- the locks of those that hold journal files ---------------------------------------------------


def test_a_lock_ends_with_its_close_whenever_another_thread_forks(tmp_path: Path) -> None:
    with Store(tmp_path / "store"):
        folder = Folder(tmp_path / "store" / JOURNAL_FOLDER)
        lock = slots.hold_slot(folder, "target")
        assert lock is not None
        slots._locks.discard(lock)  # as it is in the middle of `close`
        with closing(folder), ended(child_of(signal.pause)):
            assert slots.is_held(folder, "target")
            lock.close()
            assert not slots.is_held(folder, "target")
