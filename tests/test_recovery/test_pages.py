"""Pages of LMDB: damages that once were not repaired as well as they could be, and walks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import lmdb
import pytest

import streamkeep
from mutations import Damage, Figures, hold
from specimens import PAGE, Specimen, shown
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.crash_recovery.stored_rows import check_extent
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.whole_store.compact import compact
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import CONSUMERS, GROUPS, KEYS, PEL, RETIRED, STREAMS, TABLES
from streamkeep.format.lmdb_file.lmdb_pages import DATABASE_SIZE, FREE_AT, MAIN_AT
from streamkeep.recovery.fsck.pages import PageWalk
from streamkeep.recovery.fsck.source import open_source, read_metas
from streamkeep.recovery.pages.tree import PageFile, Tables
from streamkeep.recovery.salvage.repair import repair
from tiers import daily_or_all, pairs_of

FLAGS_AT: Final = 10
POINTERS_AT: Final = 16


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    return Specimen.make(tmp_path_factory.mktemp("specimens"), 0)


@pytest.fixture
def damage(specimen: Specimen, tmp_path: Path) -> Iterator[Damage]:
    """A damage that a test makes; then it is held against what must be."""
    damage = Damage(specimen, random.Random(0))
    yield damage
    figures = Figures()
    hold(specimen, damage, tmp_path, figures, "damage")
    assert figures.hung == 0


def assert_saved(damage: Damage, folder: Path) -> None:
    damage.write(folder / "store")
    assert repair(folder / "store", folder / "new").report.lines() == []
    assert shown(folder / "new") == damage.specimen.state


def leaves(specimen: Specimen, table: int) -> list[int]:
    with open_source(specimen.path) as source:
        assert source.tables is not None
        return [page.number for page in source.tables.tree(table).leaves()]


@pytest.mark.parametrize(
    ("table", "at"), pairs_of([KEYS, GROUPS, CONSUMERS], [0, FLAGS_AT, POINTERS_AT])
)
def test_rows_of_a_leaf_with_a_damaged_header_come_back(
    specimen: Specimen, damage: Damage, tmp_path: Path, table: int, at: int
) -> None:
    """Their own checksums hold: nothing is lost."""
    damage.data[leaves(specimen, table)[0] * PAGE + at] ^= 0x55
    assert_saved(damage, tmp_path)


@pytest.mark.parametrize("record", ["the free list", "the main database", "`keys`"])
@pytest.mark.parametrize("bit", [2, 4])
def test_flags_that_no_tree_of_a_store_has_are_found(
    specimen: Specimen, tmp_path: Path, record: str, bit: int
) -> None:
    """LMDB would compare keys in another way, or take a value for a tree."""
    damage = Damage(specimen, random.Random(0))
    if record == "`keys`":
        with open_source(specimen.path) as source:
            assert source.tables is not None
            stored = source.tables.main.find(b"keys")[0]
            assert stored is not None
            at = damage.data.index(stored, next(source.tables.main.leaves()).number * PAGE)
    else:
        metas, _ = read_metas(Folder(specimen.path))
        at = metas[-1].commit_number % 2 * PAGE
        at += FREE_AT if record == "the free list" else MAIN_AT
    damage.data[at + 4] ^= bit
    damage.write(tmp_path / "store")
    found = [str(one) for one in recovery.check(tmp_path / "store") if one.code == "SK004"]
    assert len(found) == 1
    assert f"{record}: flags" in found[0]
    assert repair(tmp_path / "store", tmp_path / "new").report.lines() == []
    assert shown(tmp_path / "new") == specimen.state


@pytest.mark.slow
def test_swapped_nodes_come_back(specimen: Specimen, damage: Damage, tmp_path: Path) -> None:
    """Each node is in the place of another one; headers show that."""
    pages = [min(node.pages) for node in specimen.nodes if len(node.pages) == 1]
    big = [page for page in pages if page not in specimen.trees]
    damage.swap(big[3], big[-3])
    assert_saved(damage, tmp_path)


def test_a_node_of_several_pages_whose_first_one_was_swapped(
    specimen: Specimen, damage: Damage, tmp_path: Path
) -> None:
    big = max(specimen.nodes, key=lambda node: len(node.pages))
    damage.swap(min(big.pages), leaves(specimen, KEYS)[0])
    assert_saved(damage, tmp_path)


def test_swapped_nodes_that_are_live_and_retired(specimen: Specimen, damage: Damage) -> None:
    retired = [node for node in specimen.nodes if node.retired]
    live = [node for node in specimen.nodes if not node.retired and len(node.pages) == 1]
    damage.swap(min(retired[1].pages), min(live[2].pages))


def test_what_waits_for_the_archive_is_not_dropped_with_its_table(
    damage: Damage, tmp_path: Path
) -> None:
    damage.table = RETIRED
    damage.write(tmp_path / "store")
    lines = repair(tmp_path / "store", tmp_path / "new").report.lines()
    assert any("stream 'mails'" in line and "moved to lost+found" in line for line in lines)


def test_nor_with_its_leaf_and_the_free_list(specimen: Specimen, damage: Damage) -> None:
    for page in (leaves(specimen, RETIRED)[0], free_root(specimen)):
        damage.data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)


def free_root_at(specimen: Specimen) -> int:
    metas, _ = read_metas(Folder(specimen.path))
    return metas[-1].commit_number % 2 * PAGE + FREE_AT + DATABASE_SIZE - 8


def free_root(specimen: Specimen) -> int:
    at = free_root_at(specimen)
    return int.from_bytes(specimen.data[at : at + 8], "little")


def test_a_free_list_behind_the_end_of_any_file(specimen: Specimen, damage: Damage) -> None:
    damage.data[free_root_at(specimen) + 7] ^= 0x10


def test_a_page_that_a_damaged_free_list_lacks_is_not_taken_for_live(
    specimen: Specimen, damage: Damage
) -> None:
    """It holds a node that was archived long ago."""
    with open_source(specimen.path) as source:
        assert source.tables is not None
        (root,) = source.tables.free.leaves()
    last = root.places[-1] if root.flags[-1] == 0 else root.places[0]
    damage.data[root.number * PAGE + last + 8 + 2] ^= 0x08  # a page far behind the end


def test_swapped_leaves_of_pending_entries_keep_nobody_busy(
    specimen: Specimen, damage: Damage, tmp_path: Path
) -> None:
    """LMDB finds keys in them that are below the one that was asked for."""
    found = leaves(specimen, PEL)
    pairs = list(pairwise(found))
    assert pairs
    for one, other in pairs[: daily_or_all(1, None)]:
        trial = Damage(specimen, random.Random(0))
        header = (
            trial.data[one * PAGE : one * PAGE + 8],
            trial.data[other * PAGE : other * PAGE + 8],
        )
        trial.swap(one, other)
        trial.data[one * PAGE : one * PAGE + 8], trial.data[other * PAGE : other * PAGE + 8] = (
            header
        )
        path = tmp_path / f"store-{one}"
        trial.write(path)
        assert {"SK004"} <= {found.code for found in recovery.check(path)}
        assert read_all(path) > 0, "no command met the damage"


def read_all(path: Path) -> int:
    """Ask for everything about all groups; return how often damage was met."""
    met = 0
    with Store(path, readonly=True) as store:
        names = store.keys()
        for name in names:
            try:
                store.xinfo_stream(name, full=True, count=0)
            except CorruptionError:
                met += 1
    return met


def test_a_sound_file_may_end_before_its_last_page(specimen: Specimen, tmp_path: Path) -> None:
    """LMDB does not write pages that a commit took and gave back."""
    with lmdb.open(str(tmp_path), map_size=1 << 26, max_dbs=40) as raw:
        table = raw.open_db(b"keys")
        with raw.begin(write=True) as txn:
            txn.put(b"a", b"b", db=table)
        for turn in range(9):
            with raw.begin(write=True) as txn:
                txn.put(b"big", bytes(400_000), db=table)
                txn.put(b"a", str(turn).encode(), db=table)
                txn.delete(b"big", db=table)
            metas, _ = read_metas(Folder(tmp_path))
            if (tmp_path / "data.mdb").stat().st_size < (metas[-1].last_page + 1) * PAGE:
                break
        else:
            pytest.skip("this LMDB writes them")
    check_extent(Folder(tmp_path))
    tables = Tables(PageFile(Folder(tmp_path), PAGE), metas[-1])
    found = [one for one in PageWalk(tables).findings() if one.code != "SK009"]
    tables.pages.close()
    assert found == []


OPENINGS: list[Callable[[Path], object]] = [
    streamkeep.open,
    lambda path: streamkeep.open(path, readonly=True),
    Store,
    lambda path: Store(path, readonly=True),
    lambda path: Store(path, force_recovery="checkpoint"),
    lambda path: recovery.backup(path, path.with_name("backup")),
    compact,
]


@pytest.mark.parametrize(("number", "share"), pairs_of(range(len(OPENINGS)), [0.1, 0.5, 0.9]))
def test_a_file_that_was_cut_off_does_not_end_a_process_that_opens_it(
    specimen: Specimen, tmp_path: Path, number: int, share: float
) -> None:
    damage = Damage(specimen, random.Random(0))
    size = int(len(damage.data) * share)
    del damage.data[size:]
    damage.write(tmp_path / "store")
    before = (tmp_path / "store" / "data.mdb").read_bytes()
    with pytest.raises(CorruptionError, match=f"truncated: {size:,} bytes"):
        OPENINGS[number](tmp_path / "store")
    assert (tmp_path / "store" / "data.mdb").read_bytes() == before
    assert "truncated: " in str([str(one) for one in recovery.check(tmp_path / "store")])


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
