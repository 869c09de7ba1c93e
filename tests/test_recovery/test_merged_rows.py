"""A walk over a tree and rows in memory shows what a dictionary of both holds."""

from __future__ import annotations

import random
from pathlib import Path

import lmdb
import pytest

from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.keys import STREAMS, TABLES
from streamkeep.recovery.fsck.source import read_metas
from streamkeep.recovery.pages.tree import PageFile, Tables

Rows = dict[bytes, bytes]


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_shows_the_tree_with_the_changed_rows(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    size = random_.choice([0, 1, 5, 300])  # 300 rows are more than one leaf
    rows = {number(random_.randrange(1000)): b"x" * 40 for _ in range(size)}
    with lmdb.open(str(tmp_path), max_dbs=len(TABLES)) as environment:
        table = environment.open_db(TABLES[STREAMS].name.encode())
        with environment.begin(write=True) as txn:
            for key, value in rows.items():
                txn.put(key, value, db=table)
    changed: dict[bytes, bytes | None] = {}
    for _ in range(random_.choice([1, 5, 200])):
        key = random_.choice([*rows, number(random_.randrange(1200))])
        changed[key] = random_.choice([None, b"changed"])
    kept = {key: value for key, value in (rows | changed).items() if value is not None}
    keys = sorted(kept)
    metas, _ = read_metas(Folder(tmp_path))
    tables = Tables(PageFile(Folder(tmp_path), metas[-1].page_size), metas[-1])
    tables.changed[STREAMS] = changed
    shown = [(row.key, row.value()) for row in tables.walk(STREAMS)]
    assert shown == [(key, kept[key]) for key in keys]
    for _ in range(200):  # from any key on, of a row in memory or not, or of none
        wanted = random_.choice([number(random_.randrange(1300)), *changed])
        shown = [(row.key, row.value()) for row in tables.walk(STREAMS, start=wanted)]
        assert shown == [(key, kept[key]) for key in keys if key >= wanted]
    for prefix in {key[:7] for key in [*kept, number(0)]}:
        under = [row.key for row in tables.walk(STREAMS, prefix)]
        assert under == [key for key in keys if key.startswith(prefix)]
