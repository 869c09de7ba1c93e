"""Each kind of damage to the archive is found, by its own code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from raw_store import RawStore, codes, raw_store
from segments import archive, nodes_of, retire, some, write_file
from streamkeep import recovery, transfer
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.tables.manifest import NEXT_SEQUENCE
from streamkeep.engine.txn.txn import NEXT_GARBAGE
from streamkeep.format.core import keys
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.node.tombstones import mark
from streamkeep.format.rows.records import encode_file_garbage, encode_number
from streamkeep.format.rows.retired import encode_former_name, former_name_key
from streamkeep.format.segment.manifest import SegmentRecord, decode_segment_record, encode_erasure
from streamkeep.recovery.salvage.repair import repair

ORDERS = 1
FOLDER = "archive"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A closed store: `orders` with two segments, retired nodes, and live ones.

    Whatever a test has done to it, a repair makes it sound, and a second repair changes nothing.
    """
    path = tmp_path / "store"
    with Store(path, sync="none", clock=ManualClock(1000)) as store:
        number = archive(store, "orders", some(60, 1000), some(60, 3000))
        assert number == ORDERS
        retire(store, number, some(60, 5000))
        with store.transaction() as transaction:
            stream = transaction._txn.find_stream(b"orders")
            assert stream is not None
            stream.record.last_ms = 6000
        for ms in range(7000, 7200):
            store.xadd("orders", {"live": "x" * 100}, f"{ms}-0")
    assert codes(path) == []
    yield path
    assert repair(path, tmp_path / "repaired").findings == []
    again = repair(tmp_path / "repaired", tmp_path / "again")
    assert (again.findings, again.report.lines()) == ([], [])


def rows_of(raw: RawStore) -> list[SegmentRecord]:
    return [
        decode_segment_record(key, raw.body(keys.SEGMENTS, key), "row")
        for key in raw.keys(keys.SEGMENTS)
    ]


def put(raw: RawStore, row: SegmentRecord) -> None:
    raw.put(keys.SEGMENTS, row.db_key(), row.encode())


def files_of(path: Path) -> list[Path]:
    return sorted((path / FOLDER).rglob("*.seg"))


def test_a_missing_file(path: Path) -> None:
    files_of(path)[0].unlink()
    assert codes(path) == ["SK301"]


def test_each_damaged_block_is_named_and_a_quick_check_passes_over_it(path: Path) -> None:
    with Store(path, readonly=True) as store:
        blocks = store.open_segment(store.archived_segments("orders")[0]).index.blocks
    file = files_of(path)[0]
    data = bytearray(file.read_bytes())
    data[blocks[0].offset + 15] ^= 1
    data[blocks[1].offset + 15] ^= 1
    file.write_bytes(data)
    found = [str(one) for one in recovery.check(path)]
    assert [text.split(":")[0] for text in found] == ["error SK302", "error SK302"]
    assert "block 0 of segment" in found[0]
    assert "block 1 of segment" in found[1]
    assert list(recovery.check(path, quick=True)) == []
    file.write_bytes(data[:-1])
    assert [one.code for one in recovery.check(path, quick=True)] == ["SK302"]


def test_swapped_files(path: Path) -> None:
    one, two = files_of(path)
    shutil.copy(one, two)
    assert codes(path) == ["SK303"]


def test_overlapping_segments(path: Path) -> None:
    row = write_file(path / FOLDER, some(90, 1010), number=ORDERS, file_number=77)
    with raw_store(path) as raw:
        put(raw, row._replace(sequence=70))
        raw.put(keys.META, NEXT_SEQUENCE, encode_number(80))
    assert codes(path) == ["SK304"]


def test_segments_that_overlap_retired_and_live_nodes(path: Path) -> None:
    for ms in (5010, 4995, 7100, 6995):
        row = write_file(path / FOLDER, some(30, ms), number=ORDERS, file_number=ms)
        with raw_store(path) as raw:
            put(raw, row._replace(sequence=70))
            raw.put(keys.META, NEXT_SEQUENCE, encode_number(80))
        assert codes(path) == ["SK305"], ms
        with raw_store(path) as raw:
            raw.delete(keys.SEGMENTS, row.db_key())
        (path / FOLDER / row.path).unlink()
    assert codes(path) == []


def test_retired_nodes_that_overlap_each_other(path: Path) -> None:
    with raw_store(path) as raw:
        (other,) = nodes_of([(5000, 1, [b"f", b"v"])], number=ORDERS)
        raw.put_value(keys.RETIRED, keys.node_key(ORDERS, 5000, 1), other)
    assert codes(path) == ["SK305"]


@pytest.mark.parametrize("kind", ["flipped", "elsewhere", "deleted"])
def test_retired_nodes_that_are_damaged(path: Path, kind: str) -> None:
    with raw_store(path) as raw:
        key = raw.keys(keys.RETIRED)[-1]
        _, ms, seq = keys.unpack_node_key(key)
        value = raw.value(keys.RETIRED, key)
        found = decode_envelope(value, "")
        if kind == "flipped":
            raw.put_value(keys.RETIRED, key, value[:-1] + bytes([value[-1] ^ 1]))
        elif kind == "elsewhere":
            other = encode_envelope(ORDERS, ms, seq + 1, 1, 1, b"", found.listpack, b"")
            raw.put_value(keys.RETIRED, key, other)
        else:
            ids = [entry[:2] for entry in some(60, 5000)]
            dead = mark(found.listpack, ms, seq, ids, 0).data
            raw.put_value(keys.RETIRED, key, encode_envelope(ORDERS, ms, seq, 1, 1, b"", dead, b""))
    assert codes(path) == ["SK306"]


def test_the_name_of_a_deleted_stream(path: Path) -> None:
    with raw_store(path) as raw:
        raw.put_value(keys.RETIRED, former_name_key(ORDERS), encode_former_name(ORDERS, b"orders"))
    assert codes(path) == []
    with raw_store(path) as raw:
        raw.put_value(
            keys.RETIRED, former_name_key(ORDERS), encode_former_name(ORDERS + 1, b"orders")
        )
    assert codes(path) == ["SK306"]


def test_a_row_that_says_something_else_than_its_file(path: Path) -> None:
    with raw_store(path) as raw:
        put(raw, rows_of(raw)[0]._replace(entries=61, nodes=5))
    (found,) = recovery.check(path)
    assert found.code == "SK307"
    assert found.problem == "the row differs from the file in entries, nodes"


def test_sequences_that_were_given_twice(path: Path) -> None:
    with raw_store(path) as raw:
        put(raw, rows_of(raw)[1]._replace(sequence=1))
    assert codes(path) == ["SK308"]


def test_a_sequence_that_would_be_given_again(path: Path) -> None:
    with raw_store(path) as raw:
        raw.put(keys.META, NEXT_SEQUENCE, encode_number(2))
    assert codes(path) == ["SK014"]


def test_an_archive_of_a_stream_that_never_was(path: Path) -> None:
    with raw_store(path) as raw:
        raw.put(keys.ERASURES, keys.node_key(9, 1, 1), encode_erasure(5))
    assert codes(path) == ["SK309"]


def test_an_entry_that_was_erased_and_is_there(path: Path) -> None:
    with raw_store(path) as raw:
        for ms, seq in ((1000, 1), (1019, 2), (1019, 3), (3005, 0), (9000, 0)):
            raw.put(keys.ERASURES, keys.node_key(ORDERS, ms, seq), encode_erasure(5))
    found = [one.problem for one in recovery.check(path)]
    assert [one.split()[2] for one in found] == ["1000-1,", "1019-2,", "3005-0,"]
    assert codes(path) == ["SK310"]
    assert list(recovery.check(path, quick=True)) == []


def test_files_that_no_row_names(path: Path) -> None:
    one = files_of(path)[0]
    shutil.copy(one, one.with_name("copy.seg"))
    one.with_name("1.seg.tmp").write_bytes(b"x")
    found = {finding.code: finding for finding in recovery.check(path)}
    assert set(found) == {"SK311", "SK312"}
    assert found["SK311"].where.endswith("copy.seg")


def test_a_file_that_is_named_and_garbage(path: Path) -> None:
    with raw_store(path) as raw:
        row = rows_of(raw)[0]
        raw.put(keys.GARBAGE, keys.pack_number(1), encode_file_garbage(row.path))
        raw.put(keys.META, NEXT_GARBAGE, encode_number(2))
    assert codes(path) == ["SK313"]


def test_a_table_of_retired_nodes_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Store(path, sync="none", decode_responses=True) as store:
        store.set_retention("orders", archive=True)
        store.xadd_many("orders", [{"n": "x" * 50}] * 900, ids=[f"{n}-1" for n in range(1, 901)])
        store.xtrim("orders", maxlen=600, approximate=False)
        store.archive()
        store.xdel("orders", "301-1")
        store.xtrim("orders", maxlen=300, approximate=False)
        retired = [str(one.id) for one in store.xrange("orders", 1, 600, history=True)]
    with lmdb.open(str(path), max_dbs=40) as raw, raw.begin(write=True) as txn:
        txn.drop(raw.open_db(b"retired", txn=txn, create=False))
    assert codes(path) == ["SK009"]
    assert repair(path, tmp_path / "repaired").findings == []
    lost = (tmp_path / "repaired" / "lost+found" / "entries.jsonl").read_text().splitlines()
    with Store(tmp_path / "repaired", readonly=True, decode_responses=True) as store:
        kept = [str(one.id) for one in store.xrange("orders", 1, 600, history=True)]
    found = kept + [json.loads(line)["id"] for line in lost]
    assert sorted(found) == sorted(retired)
    loaded = transfer.load(
        tmp_path / "aside", tmp_path / "repaired/lost+found/entries.jsonl", key="orders", sort=True
    )
    assert loaded.entries == len(lost)


@pytest.mark.parametrize("table", [keys.SEGMENTS, keys.ERASURES, keys.GARBAGE])
def test_rows_that_cannot_be_read(path: Path, table: int) -> None:
    with raw_store(path) as raw:
        key = keys.pack_number(1) if table == keys.GARBAGE else keys.node_key(ORDERS, 1000, 0)
        raw.put(
            table, key, b"\4" + bytes(8) + b"../data.mdb" if table == keys.GARBAGE else b"short"
        )
        if table == keys.GARBAGE:
            raw.put(keys.META, NEXT_GARBAGE, encode_number(2))
    assert "SK001" in codes(path)


def test_a_file_that_goes_while_the_store_is_checked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are dropped between the snapshot of the check and its look at the files."""
    from streamkeep.recovery.fsck import archive as archive_checks

    with Store(path, sync="none") as store:
        original: Callable[..., object] = archive_checks.check_segments

        def drop_before(*args: object) -> object:
            store.drop_segments("orders", before=2000)
            archive(store, "other", some(60))
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(archive_checks, "check_segments", drop_before)
            assert [str(one) for one in recovery.check(store)] == []
    assert len(files_of(path)) == 2


def test_what_is_archived_and_restored_is_sound(tmp_path: Path) -> None:
    """The whole life: trimmed, retired, archived, the stream deleted, restored elsewhere."""
    path = tmp_path / "life"
    with Store(path, sync="none", clock=ManualClock(1000)) as store:
        store.set_retention("orders", archive=True)
        for ms in range(1, 2000):
            store.xadd("orders", {"f": "x" * 50}, f"{ms}-0")
        store.xtrim("orders", maxlen=700, approximate=False)
        report = store.archive()
        store.xtrim("orders", maxlen=300, approximate=False)
        assert codes(path) == []
        store.delete("orders")
        (one,) = store.archived_streams()
        assert (one.exists, one.key) == (False, b"orders")
        assert one.entries == report.entries
        assert one.entries + one.retired_entries == 1699
        assert codes(path) == []
        found = store.restore_archive("copy", stream_number=one.stream_number)
        assert found.entries == 1699
        store.archive()
        (one,) = [each for each in store.archived_streams() if not each.exists]
        assert (one.entries, one.retired_entries) == (1699, 0)
        assert codes(path) == []
    assert codes(path) == []
