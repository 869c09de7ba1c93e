"""A page of the manifest or of the retired nodes with the content of another page.

LMDB does not notice that. A read of the history must not just be shorter then.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import streamkeep
from inside import checkpointer_of
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import NODES, RETIRED, SEGMENTS, STREAMS
from streamkeep.recovery.fsck.source import open_source
from tiers import daily_or_all

PAGE = 4096
COUNT = 200


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with four streams; the manifest and the retired nodes have several pages each."""
    path = tmp_path_factory.mktemp("misplaced") / "store"
    with streamkeep.open(path, sync="none", node_max_entries=2) as store:
        for key in ("a", "b", "c", "d"):
            store.set_retention(key, archive=True)
        for number in range(1, COUNT + 1):
            for key in ("a", "b", "c", "d"):
                store.xadd(key, {"n": number}, id=f"{number}-0")
            if number % 5 == 0 and number <= COUNT // 2:
                for key in ("a", "b", "c"):
                    store.xtrim(key, maxlen=number % 3, approximate=False)
                store.archive()
        for key in ("a", "b"):
            store.xtrim(key, maxlen=10, approximate=False)
    return path


def leaves(path: Path, table: int) -> list[int]:
    with open_source(path) as source:
        assert source.tables is not None
        return [page.number for page in source.tables.tree(table).leaves()]


@pytest.mark.parametrize("over", [False, True], ids=["read-only", "under a memtable"])
@pytest.mark.parametrize("table", [SEGMENTS, RETIRED], ids=["segments", "retired"])
def test_a_misplaced_page_is_an_error_and_no_shorter_history(
    base: Path, tmp_path: Path, table: int, over: bool
) -> None:
    """Each page in the place of each other one, and pages of other tables."""
    with streamkeep.open(base) as store:
        expected = {key: [one.id for one in store.xrange(key, history=True)] for key in "abcd"}
    assert all(len(found) == COUNT for found in expected.values())
    own = leaves(base, table)
    assert len(own) > 2
    foreign = [leaves(base, other)[0] for other in (SEGMENTS, STREAMS, NODES) if other != table]
    print("own", own, "foreign", foreign)
    pairs = [(place, page) for place in own for page in [*own, *foreign] if place != page]
    path = tmp_path / "store"
    errors = 0
    for place, page in pairs[:: daily_or_all(5, 1)]:
        shutil.copytree(base, path)
        with streamkeep.open(path, readonly=not over, sync="none") as store:
            if over:
                checkpointer_of(store).stop()  # it would flush
                for key in "bd":  # the memtable gets nodes that are retired
                    store.xtrim(key, maxlen=6, approximate=False)
            sound = replace_page(path, place, page)
            for key, ids in expected.items():
                for first, last in ((0, COUNT), (20, 60), (60, 61), (130, 170)):
                    wanted = ids[first:last]
                    for newest_first in (False, True):
                        try:
                            found = read(store, key, wanted, newest_first)
                        except CorruptionError:
                            errors += 1
                        else:
                            assert found == wanted, (place, page, key, first, last)
            replace_page(path, place, sound)
        shutil.rmtree(path)
    assert errors


def replace_page(path: Path, place: int, page: int | bytes) -> bytes:
    """Give a page of an open store the content of another one, or this; return its own."""
    with open(path / "data.mdb", "r+b") as file:
        own, other = os.pread(file.fileno(), PAGE, place * PAGE), page
        if isinstance(other, int):
            other = os.pread(file.fileno(), PAGE, other * PAGE)
        os.pwrite(file.fileno(), other, place * PAGE)
    return own


def read(
    store: streamkeep.Store[bytes], key: str, wanted: list[bytes], newest_first: bool
) -> list[bytes]:
    if newest_first:
        down = store.xrevrange(key, wanted[-1], wanted[0], history=True)
        return [one.id for one in down][::-1]
    return [one.id for one in store.xrange(key, wanted[0], wanted[-1], history=True)]
