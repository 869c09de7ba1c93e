"""Nodes that a repair finds without their tree: none is dropped without a word."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

import streamkeep
from inside import begin_write, checkpoint_now
from streamkeep import recovery
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE
from streamkeep.engine.commands.rows import row_key
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.keys import (
    ERASURES,
    GROUPS,
    KEYS,
    META,
    NAMES,
    NODES,
    RETIRED,
    ROWS,
    SEGMENTS,
    STREAMS,
    node_key,
    pack_number,
)
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.envelope import encode_envelope
from streamkeep.format.rows.records import PAGE_FIT, StreamRecord
from streamkeep.format.rows.retired import former_name_key
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.fsck.source import open_source, read_metas
from streamkeep.recovery.salvage.found import NAMED, Found
from streamkeep.recovery.salvage.losses import LostAndFound
from streamkeep.recovery.salvage.new_store import NewStore
from streamkeep.recovery.salvage.placement import DAMAGED, FOUND_NODE, Candidate, place
from streamkeep.recovery.salvage.repair import repair as salvaged
from test_recovery.test_copies_damage import spoil

NUMBER = 7
EPOCH = 3


class Repair:
    """A repair that has found some nodes of a stream, three entries each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.found = Found(Folder(folder), None, LostAndFound(Folder(folder)))
        self.report = self.found.report

    def find(self, ms: int, *, known_live: bool, cut: int = 0) -> bytes:
        """Note a node; the last `cut` bytes of its entries are wrong, though its checksum fits."""
        entries = [(ms, seq, [b"f", b"%d" % seq]) for seq in range(3)]
        ((_, _, listpack),) = encode_nodes(entries, 4096)
        if cut:
            listpack = listpack[: -1 - cut] + b"\xfe" * cut + listpack[-1:]
        value = encode_envelope(NUMBER, ms, 0, EPOCH, 1, b"", listpack, b"")
        db_key = node_key(NUMBER, ms, 0)
        candidate = Candidate(EPOCH, 1, known_live, False)
        self.found.note(FOUND_NODE + db_key, candidate.with_value(value))
        return db_key

    def state(self, nodes: int) -> None:
        """Give the stream a record that states how many nodes it has."""
        record = StreamRecord(PAGE_FIT, 100)
        record.sealed_nodes = nodes
        record.max_deleted_ms = 1 << 40  # any of them may have been deleted
        value = encode_envelope(NUMBER, 0, 0, EPOCH, 1, record.encode(), b"", b"")
        self.found.put(STREAMS, pack_number(NUMBER), value)

    def run(self) -> None:
        place(self.found)
        self.found.lost.close()

    def kept(self) -> list[tuple[str | None, str]]:
        """Return stream and reason of the entries in lost+found."""
        path = self.path / "lost+found" / "entries.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(one.get("key"), one["why"]) for one in map(json.loads, lines)]


@pytest.fixture
def repair(tmp_path: Path) -> Iterator[Repair]:
    repair = Repair(tmp_path)
    yield repair
    repair.found.close()


@pytest.mark.parametrize(
    ("times", "unreadable", "stated", "moved"),
    [
        ((10, 20, 30), (), 4, 9),
        ((10, 20, 30), (), 3, 0),
        ((10, 20), (10, 30), 3, 0),  # rows that cannot be read count as well
    ],
    ids=["moved", "proved by their number", "proved by rows that cannot be read"],
)
def test_nodes_that_may_have_been_deleted_are_moved_and_counted_unless_their_number_proves_more(
    repair: Repair, times: tuple[int], unreadable: tuple[int], stated: int, moved: int
) -> None:
    keys = [repair.find(ms, known_live=False) for ms in times]
    for ms in unreadable:  # of one of them, another copy is whole
        repair.found.note(DAMAGED[NODES] + node_key(NUMBER, ms, 0), b"damaged")
    repair.state(stated)
    repair.found.note(NAMED + pack_number(NUMBER), b"")  # a name as any other
    repair.run()
    assert [key for key, _ in repair.found.rows(NODES)] == ([] if moved else keys)
    assert repair.report.stream(NUMBER).moved == moved
    assert set(repair.kept()) == ({("", "the node may have been deleted")} if moved else set())


@pytest.mark.parametrize("known_live", [False, True])
def test_a_node_that_cannot_be_read_to_its_end_is_not_dropped(
    repair: Repair, known_live: bool
) -> None:
    repair.find(10, known_live=known_live, cut=4)
    repair.state(1)
    repair.run()
    loss = repair.report.stream(NUMBER)
    if known_live:  # it is read up to the damage later
        assert len(list(repair.found.notes(DAMAGED[NODES]))) == 1
    else:
        assert loss.moved == 2
        assert ["may have been deleted, and is damaged" in why for _, why in repair.kept()] == [
            True,
            True,
        ]


def damage_roots(path: Path, tables: Iterable[int | None], data: bytes) -> None:
    """Write over the first bytes of the root pages of tables; None is LMDB's main database."""
    with open_source(path) as source:
        assert source.tables is not None
        trees = [source.tables.main if one is None else source.tables.tree(one) for one in tables]
        page_size = source.tables.pages.page_size
    with (path / "data.mdb").open("r+b") as file:
        for tree in trees:
            assert tree.database.root is not None
            file.seek(tree.database.root * page_size)
            file.write(data)


def lose_newest_trees(path: Path) -> None:
    newest = read_metas(Folder(path))[0][-1]
    with (path / "data.mdb").open("r+b") as file:
        file.seek(newest.commit_number % 2 * newest.page_size)
        file.write(bytes(newest.page_size))
    (path / CHECKPOINT_FILE).unlink()
    shutil.rmtree(path / "journal")


@pytest.mark.parametrize("later", [False, True], ids=["", "entries of later commits"])
def test_a_deleted_entry_that_waits_for_the_archive_does_not_come_back(
    tmp_path: Path, later: bool
) -> None:
    """Its leaf is found without its tree, which only `retired` has lost.

    Entries of a later commit than the trees, whose meta page is lost, are found so, too: they stay
    live.
    """
    path = tmp_path / "store"
    with streamkeep.open(path, node_max_entries=1) as store:
        store.set_retention("s", archive=True, archive_deleted=True)
        store.xadd_many("s", [{"n": n} for n in range(3)], ["1-0", "2-0", "3-0"])
        store.xdel("s", "2-0")
        store.set_retention("empty", archive=True, archive_deleted=True)
        store.xadd("empty", {"n": 1}, id="1-0")
        store.xdel("empty", "1-0")
    ids = [b"1-0", b"2-0", b"3-0"]
    if later:
        with streamkeep.open(path) as store:
            ids += [store.xadd("s", {"n": n}, id=f"{n}-0") for n in (4, 5)]
        lose_newest_trees(path)
    damage_roots(path, [RETIRED], b"\xff")  # the number of the page
    codes = [one.code for one in recovery.check(path) if one.severity > Severity.NOTE]
    assert codes == ["SK004"] or later
    report = salvaged(path, tmp_path / "repaired").report
    assert not report.lost_anything() or later
    with streamkeep.open(tmp_path / "repaired") as store:
        assert [one.id for one in store.xrange("s", history=True)] == ids
        assert [one.id for one in store.xrange("s")] == [one for one in ids if one != b"2-0"]
        assert store.xlen("empty") == 0
        assert [one.id for one in store.xrange("empty", history=True)] == [b"1-0"]


@pytest.mark.parametrize(
    ("tables", "lost"),
    [
        ((META,), "[0-9]+ rows of meta, in damaged pages"),
        ((GROUPS,), "2 rows of groups, in damaged pages"),
        ((RETIRED,), "1 row of retired, in damaged pages"),
        ((SEGMENTS,), "1 segment whose rows were in damaged pages"),
        ((ERASURES,), "1 row of erasures, in damaged pages"),
        ((ROWS,), "3 rows of rows, in damaged pages"),
        ((None,), "perhaps rows of meta, groups, retired, erasures, rows: what counts .*"),
        ((STREAMS, KEYS), "stream 's': its record, and with it the entries of its tail node"),
        ((STREAMS, KEYS, NAMES), "1 stream, of which nothing is left"),
    ],
)
def test_rows_of_lost_pages_are_counted_though_no_other_row_tells_of_them(
    tmp_path: Path, tables: tuple[int | None, ...], lost: str
) -> None:
    path = tmp_path / "store"
    with streamkeep.open(path, node_max_entries=3) as store:
        for group in ("g", "h"):
            store.xgroup_create("s", group, mkstream=True)
        store.set_retention("s", archive=True)
        ids = store.xadd_many("s", [{"n": n} for n in range(9)])
        store.erase("s", ids[0])
        for left in (6, 3):
            store.xtrim("s", maxlen=left, approximate=False)
            if left == 6:
                store.archive()
        with store.transaction() as transaction:
            for key in (b"a", b"b", b"c"):
                transaction.txn.put_row(ROWS, row_key(b"space", key), b"value")
    for segment in path.rglob("*.seg"):
        if SEGMENTS in tables:
            segment.unlink()
    damage_roots(path, tables, bytes(4096))
    lines = salvaged(path, tmp_path / "new").report.lines()
    assert any(re.fullmatch(f"lost: {lost}", line) for line in lines), lines
    assert len(lines) == 1 or len(tables) > 1 or None in tables, lines


def test_what_a_segment_has_stays_trimmed_though_the_first_entry_of_its_node_was_deleted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    with streamkeep.open(path, node_max_entries=3) as store:
        store.set_retention("s", archive=True)
        store.xadd_many("s", [{"n": n} for n in range(6)], [f"{n}-0" for n in range(1, 7)])
        store.xdel("s", "1-0")
    with streamkeep.open(path) as store:
        store.xtrim("s", maxlen=3, approximate=False)
        store.archive()
    lose_newest_trees(path)
    assert not salvaged(path, tmp_path / "repaired").report.lost_anything()
    with streamkeep.open(tmp_path / "repaired") as store:
        assert [one.id for one in store.xrange("s")] == [b"4-0", b"5-0", b"6-0"]
        assert len(store.xrange("s", history=True)) == 5
        assert len(store.archived_segments("s")) == 1


def test_a_renamed_and_deleted_stream_keeps_its_last_key(tmp_path: Path) -> None:
    """Its segment, of which only a part is sound, has the key before."""
    path, ids = tmp_path / "s", [f"{n}-0" for n in range(1, 2000)]
    with streamkeep.open(path) as store:
        store.set_retention("old", archive=True)
        store.xadd_many("old", [{"n": random.randbytes(200)} for _ in ids], ids)
        store.xtrim("old", maxlen=9, approximate=False)
        store.archive()
        store.rename("old", "k")
        store.set_retention("k", archive_deleted=True)
        store.delete("k")
    [segment] = path.rglob("*.seg")
    spoil(segment)
    salvaged(path, tmp_path / "new")
    with streamkeep.open(tmp_path / "new") as store:
        assert [one.key for one in store.archived_streams()] == [b"k"]
        assert store.erase("k", ids[50], ids[-1]) == 2


def test_an_adopted_segment_that_an_erasure_rewrote_loses_its_damaged_block_only(
    tmp_path: Path,
) -> None:
    """Its nodes have the number of the stream in the store that wrote them, and keys of then."""
    path, ids = tmp_path / "s", [f"{n}-0" for n in range(1, 4000)]
    with streamkeep.open(tmp_path / "other") as other:
        other.set_retention("k", archive=True)
        other.xadd_many("k", [{"n": random.randbytes(200)} for _ in ids], ids)
        other.xdel("k", "1-0")
        other.xtrim("k", maxlen=0, approximate=False)
        other.archive()
        list(other.export_segments(tmp_path / "out"))
    with streamkeep.open(path) as store:
        store.xadd("first", {"n": 1})
        list(store.adopt_segments(tmp_path / "out"))
        assert store.erase("k", "3900-0") == 1
        [record] = store.archived_segments("k")
        blocks = store.open_segment(record).index.blocks
    [segment] = path.rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[blocks[1].offset + 20] ^= 1
    segment.write_bytes(data)
    [line] = salvaged(path, tmp_path / "new").report.lines()
    with streamkeep.open(tmp_path / "new") as store:
        kept = len(store.xrange("k", history=True))
    assert kept == record.entries - blocks[1].entries
    assert f"{record.entries - kept:,} archived entries" in line


def test_a_segment_that_its_file_has_twice_is_no_loss_and_nothing_of_it_is_moved(
    tmp_path: Path,
) -> None:
    ids = [f"{n}-0" for n in range(1, 600)]
    with streamkeep.open(tmp_path / "s") as store:
        store.set_retention("k", archive=True)
        store.xadd_many("k", [{"n": 1} for _ in ids], ids)
        store.xtrim("k", maxlen=9, approximate=False)
        store.archive()
    [segment] = (tmp_path / "s").rglob("*.seg")
    segment.write_bytes(2 * segment.read_bytes())
    assert salvaged(tmp_path / "s", tmp_path / "new").report.lines() == []
    with streamkeep.open(tmp_path / "new") as store:
        assert len(store.xrange("k", history=True)) == len(ids)


def test_a_row_that_a_leaf_lacks_is_counted(tmp_path: Path) -> None:
    """As in one that the disk has kept from before; here LMDB's count says more."""
    with streamkeep.open(tmp_path / "s") as store:
        store.xgroup_create("s", "g", mkstream=True)
    with open_source(tmp_path / "s") as source:
        assert source.tables is not None
        record = source.tables.main.find(b"groups")[0] or b""
    data = (tmp_path / "s" / "data.mdb").read_bytes()
    more = record[:32] + (2).to_bytes(8, "little") + record[40:]
    (tmp_path / "s" / "data.mdb").write_bytes(data.replace(record, more))
    lines = salvaged(tmp_path / "s", tmp_path / "new").report.lines()
    assert lines == ["lost: 1 row of groups, in damaged pages"]


def test_nothing_of_a_segment_of_another_store_is_taken_in_place_of_an_own_one(
    tmp_path: Path,
) -> None:
    segments = []
    for name in ("s", "other"):
        with streamkeep.open(tmp_path / name, node_max_entries=7) as store:
            store.set_retention("k", archive=True)
            store.xadd_many("k", [{"of": name} for _ in range(9)], [f"{n}-0" for n in range(1, 10)])
            store.xtrim("k", maxlen=2, approximate=False)
            store.archive()
            segments.append(store.segment_path(store.archived_segments("k")[0]))
    shutil.copyfile(segments[1], segments[0])
    [line] = salvaged(tmp_path / "s", tmp_path / "new").report.lines()
    assert "7 archived entries, from 1-0 to 7-0: " in line
    with streamkeep.open(tmp_path / "new") as store:
        assert [one.id for one in store.xrange("k", history=True)] == [b"8-0", b"9-0"]


@pytest.mark.parametrize(
    ("file", "length", "lost"),
    [
        ("steady", 500, ""),
        ("data.mdb", 600, ""),
        ("data.mdb, without the journal", 500, "what data.mdb had at commit .*"),
    ],
)
def test_a_file_in_the_place_of_another_one_takes_nothing_of_what_is_whole_along(
    tmp_path: Path, file: str, length: int, lost: str
) -> None:
    """The checkpoint is that of another store, or later than `data.mdb`: it leads nowhere there."""
    for name in ("s", "other"):
        with streamkeep.open(tmp_path / name) as store:
            for key in ("k", "l"):
                store.xadd_many(key, [{"n": bytes(99)} for _ in range(500)])
    if length == 600 or lost:
        shutil.copytree(tmp_path / "s", tmp_path / "other", dirs_exist_ok=True)
        with streamkeep.open(tmp_path / "s") as store:
            store.xadd_many("k", [{"n": bytes(999)} for _ in range(100)])
            checkpoint_now(store)
    file, _, without = file.partition(", ")
    shutil.copyfile(tmp_path / "other" / file, tmp_path / "s" / file)
    if without:
        shutil.rmtree(tmp_path / "s" / "journal")
    lines = salvaged(tmp_path / "s", tmp_path / "new").report.lines()
    assert re.fullmatch(f"lost: {lost}" if lost else "", "\n".join(lines)), lines
    with streamkeep.open(tmp_path / "new") as store:
        assert (store.xlen("k"), store.xlen("l")) == (length, 500)


def test_what_was_deleted_does_not_come_back_where_the_log_position_is_lost(tmp_path: Path) -> None:
    """Without it, old copies in free pages were taken for newer than the trees."""
    with streamkeep.open(tmp_path / "s", node_max_entries=1) as store:
        for n in range(200):  # commits, of which LMDB sees few
            store.xadd("t", {"n": n})
        ids = store.xadd_many("s", [{"n": n} for n in range(9)])
        checkpoint_now(store)
        store.xdel("s", *ids[3:6])
        checkpoint_now(store)
    damage_roots(tmp_path / "s", [None], bytes(4096))
    salvaged(tmp_path / "s", tmp_path / "new")
    with streamkeep.open(tmp_path / "new") as store:
        assert [one.id for one in store.xrange("s")] == [*ids[:3], *ids[6:]]


def test_nothing_that_was_deleted_comes_back_where_only_the_free_list_is_damaged(
    tmp_path: Path,
) -> None:
    """Old copies of rows are in its pages; the trees are whole, so that nothing is missing."""
    with streamkeep.open(tmp_path / "s", node_max_entries=1) as store:
        store.xadd_many("s", [{"n": n} for n in range(20)], [f"{n}-1" for n in range(20)])
        keys = [row_key(b"space", b"%d" % n) for n in range(300)]
        for n in range(20):
            store.xgroup_create("s", f"g{n}")
        with store.transaction() as transaction:
            for key in keys:
                transaction.txn.put_row(ROWS, key, b"value")
        checkpoint_now(store)
        for n in range(10, 20):
            store.xgroup_destroy("s", f"g{n}")
            store.xdel("s", f"{n - 5}-1")
        with store.transaction() as transaction:
            for key in keys[10:]:
                transaction.txn.delete(ROWS, key)
        checkpoint_now(store)
    with open_source(tmp_path / "s") as source:
        assert source.tables is not None
        root = source.tables.free.database.root or 0
    for also in (False, True):
        if also:
            damage_roots(tmp_path / "s", [ROWS], bytes(4096))
        with (tmp_path / "s" / "data.mdb").open("r+b") as file:
            file.seek(root * 4096)
            file.write(bytes(4096))
        lines = salvaged(tmp_path / "s", tmp_path / f"new{also}").report.lines()
        assert bool(lines) == also
    assert re.search("the proof of [0-9]+ rows of rows, which may be old or deleted", lines[-1])
    with streamkeep.open(tmp_path / "newFalse") as store, store.snapshot() as snapshot:
        assert (len(store.xinfo_groups("s")), store.xlen("s")) == (10, 10)
        assert snapshot.txn.rows(ROWS) == 10


def test_a_node_in_the_page_of_another_one_is_counted(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "s") as store:
        store.xadd_many("", [{"n": random.randbytes(90)} for _ in range(200)])
    with open_source(tmp_path / "s") as source:
        assert source.tables is not None
        pages = [one.leaf.places[one.at] for one in source.tables.walk(NODES) if one.leaf]
    data = bytearray((tmp_path / "s" / "data.mdb").read_bytes())
    here, there = pages[1] * 4096, pages[2] * 4096
    data[there : there + 4096] = data[here : here + 4096]
    (tmp_path / "s" / "data.mdb").write_bytes(data)
    report = salvaged(tmp_path / "s", tmp_path / "new").report
    with streamkeep.open(tmp_path / "new") as store:
        assert 0 < 200 - store.xlen("") == report.stream(1).entries
    assert report.lines()[0].startswith("lost: stream '': ")


def test_trimmed_entries_that_wait_for_the_archive_in_a_damaged_node_are_counted(
    tmp_path: Path,
) -> None:
    with streamkeep.open(tmp_path / "s") as store:
        store.xadd_many("k", [{"n": random.randbytes(90)} for _ in range(200)])
        store.set_retention("k", archive=True)
        store.xtrim("k", maxlen=190, approximate=False)
    with open_source(tmp_path / "s") as source:
        assert source.tables is not None
        value = next(source.tables.walk(NODES)).value()
    data = (tmp_path / "s" / "data.mdb").read_bytes()
    at = data.index(value)
    (tmp_path / "s" / "data.mdb").write_bytes(data[: at + 200] + bytes(2000) + data[at + 2200 :])
    report = salvaged(tmp_path / "s", tmp_path / "new").report
    assert report.stream(1).archived is None
    assert "lost: stream 'k': up to 10 entries that had been trimmed" in report.lines()[-1]


def test_lost_and_found_is_on_disk_when_the_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    file = tmp_path / "lost+found" / "values" / "000001.bin"
    monkeypatch.setattr(os, "sync", lambda: synced.append(file.read_bytes()))
    with closing(LostAndFound(Folder(tmp_path))) as lost:
        lost.keep_value("row", "why", b"value")
    assert synced == [b"value"]


def test_entries_above_a_segment_that_was_adopted_into_a_gap_stay_archived(tmp_path: Path) -> None:
    """Their node has the key of a deleted entry, which is in the gap."""
    with streamkeep.open(tmp_path / "other") as other:
        other.set_retention("k", archive=True)
        other.xadd("k", {"n": 1}, "1-0")
        other.xtrim("k", maxlen=0, approximate=False)
        other.archive()
        list(other.export_segments(tmp_path / "out"))
    with streamkeep.open(tmp_path / "s") as store:
        store.set_retention("k", archive=True)
        store.xadd_many("k", [{"n": n} for n in range(3)], ["1-0", "2-0", "3-0"])
        store.xdel("k", "1-0")
        store.xtrim("k", maxlen=0, approximate=False)
        store.archive()
        list(store.adopt_segments(tmp_path / "out", key="k"))
        segment = store.segment_path(store.archived_segments("k")[1])
    data = bytearray(segment.read_bytes())
    data[-60] ^= 1  # its index, which is not needed to find the nodes
    segment.write_bytes(data)
    assert salvaged(tmp_path / "s", tmp_path / "new").report.lines() == []
    with streamkeep.open(tmp_path / "new") as store:
        assert [one.id for one in store.xrange("k", history=True)] == [b"1-0", b"2-0", b"3-0"]


def test_without_its_row_a_deleted_stream_gets_the_key_of_its_newest_segment(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    with streamkeep.open(path) as store:
        store.set_retention("old", archive=True, archive_deleted=True)
        for key, first in ("old", 1), ("k", 1000):
            if key == "k":
                store.rename("old", "k")
            ids = [f"{n}-0" for n in range(first, first + 900)]
            store.xadd_many(key, [{"n": random.randbytes(200)} for _ in ids], ids)
            store.xtrim(key, maxlen=0, approximate=False)
            store.archive()
        store.delete("k")
        txn = begin_write(store)
        txn.delete(RETIRED, former_name_key(1))
        txn.commit()
    for segment in path.rglob("*.seg"):
        spoil(segment)
    salvaged(path, tmp_path / "new")
    with streamkeep.open(tmp_path / "new") as store:
        assert [one.key for one in store.archived_streams()] == [b"k"]


def test_an_error_in_a_source_without_a_checkpoint_file_is_not_explained_by_that(
    tmp_path: Path,
) -> None:
    streamkeep.open(tmp_path / "s").close()
    (tmp_path / "s" / CHECKPOINT_FILE).unlink()
    with pytest.raises(ValueError, match="of the block") as caught, open_source(tmp_path / "s"):
        raise ValueError("of the block")
    assert caught.value.__context__ is None


def test_a_new_store_that_cannot_be_made_is_closed(tmp_path: Path) -> None:
    parent = Folder(tmp_path, outside=True)
    with closing(NewStore(parent.make_folder("new"), parent.make_folder("found"))) as new:
        with pytest.raises(lmdb.BadValsizeError) as caught:
            new.open({bytes(1000): b""})
        lmdb.open(str(tmp_path / "new")).close()
        del caught  # until here it has held the environment
