"""Live, retired and archived nodes of one stream, read as one, also while they move."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

from model.profile import configured
from segments import write_file
from spark.in_process import read_all
from streamkeep.arrow.batches import DEFAULT_SCHEMA, RowShape, record_batches
from streamkeep.engine.api.store import Store
from streamkeep.engine.tables.manifest import delete_segment, iter_segments, put_segment
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError, MissingSegmentError, NotAStoreError
from streamkeep.format.core.keys import RETIRED, node_key
from streamkeep.format.node.envelope import encode_envelope
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, read_range
from streamkeep.pipeline.data_source import StreamkeepSource
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source import executor, segment_folder, stores
from streamkeep.pipeline.source import pins as pins_module
from streamkeep.pipeline.source.plan import cut_stream, pin_now, plan_pins
from streamkeep.pipeline.source.slices import Slice, join
from streamkeep.pipeline.storage.places import NotOnExecutorError

TOP = (1 << 64) - 1
SHAPE = StructType().add("store", StringType()).add("incarnation", LongType())


def pairs_of(data: bytes, ms: int, seq: int) -> list[tuple[int, int, list[bytes]]]:
    out: list[Any] = []
    read_range(data, ms, seq, Range(0, 0, TOP, TOP, 1 << 40, False, PAIRS), out)
    return out


def move_nodes(store: Store[bytes], archived: int, retired: int) -> None:
    """Move the oldest nodes of stream `s` out of `nodes`: some into segments, the next to
    `retired`, as trimming and the archiver do.
    """
    moved = []
    with store.transaction() as transaction:
        txn = transaction.txn
        stream = txn.find_stream(b"s")
        assert stream is not None
        walk = NodeWalk(txn, stream)
        for at in range(archived + retired):
            if not walk.first() or walk.on_tail:
                break
            key, data = (walk.ms, walk.seq), walk.load()
            entries = pairs_of(data, *key)
            if at < archived:
                moved.append(entries)
            else:
                value = encode_envelope(stream.number, *key, 1, 1, b"", data, b"")
                txn.put(RETIRED, node_key(stream.number, *key), value)
            walk.drop()
        walk = NodeWalk(txn, stream)
        if walk.first():
            stream.set_first(pairs_of(walk.load(), walk.ms, walk.seq)[0][:2])
        for at, entries in enumerate(moved):
            folder = store.path / "archive"
            record = write_file(folder, entries, number=stream.number, file_number=at + 1)
            put_segment(txn, record._replace(stream_number=stream.number, key=b"s"))


def filled(store: Store[bytes], count: int) -> list[str]:
    """Fill stream `s` with entries in many small nodes; return their IDs."""
    ids = [f"{1000 + n}-0" for n in range(count)]
    store.xadd_many("s", [{"n": str(n), "text": "x" * 20} for n in range(count)], ids=ids)
    return ids


def read(store: Store[bytes], slices: list[Slice]) -> list[str]:
    found = []
    for one in slices:
        nodes = executor.read_nodes(store, one)
        for batch in record_batches(RowShape(DEFAULT_SCHEMA, one.key), nodes, one.start, one.end):
            found += batch.column("id").to_pylist()
    return found


def plan(store: Store[bytes], source: str, size: int = 1 << 30, **more: str) -> list[Slice]:
    options = parse_read({"path": str(store.path), "subscribe": "s", "source": source, **more})
    with store.snapshot() as snapshot:
        pins = pins_module.pin_streams(snapshot.txn, options)
        return [one for pin in pins for one in cut_stream(snapshot.txn, pin, options, size)]


@pytest.fixture
def small(open_store: Callable[..., Store[bytes]]) -> Store[bytes]:
    """A store whose nodes hold ten entries each."""
    return open_store("small", node_max_entries=10)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_CHUNK_BYTES", 600)


@configured(60)
@given(
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(1, 5000),
    st.tuples(st.integers(990, 1130), st.integers(990, 1130)),
)
def test_all_parts_are_joined_without_gap_or_duplicate(
    tmp_path_factory: pytest.TempPathFactory,
    archived: int,
    retired: int,
    size: int,
    ends: tuple[int, int],
) -> None:
    path = tmp_path_factory.mktemp("joined") / "store"
    with Store(path, sync="none", node_max_entries=10) as store:
        ids = filled(store, 113)
        move_nodes(store, archived, retired)
        low, high = sorted(ends)
        expected = [one for one in ids if low <= StreamId.parse(one).ms <= high]
        between = {"startingOffsets": f"{low}", "endingOffsets": f"{high}"}
        slices = plan(store, "auto", size, **between)
        assert read(store, slices) == expected
        edges = [(one.start, one.end) for one in slices]
        assert all(a[1].next() == b[0] for a, b in pairwise(edges))
        archived_ids = set(ids[: 10 * min(archived, 11)]) & set(expected)
        live = [one for one in ids[10 * min(archived + retired, 11) :] if one in expected]
        assert read(store, plan(store, "live", size, **between)) == live
        found = read(store, plan(store, "archive", size, **between))
        assert set(found) == archived_ids


def test_a_node_that_a_damaged_store_has_in_two_places_is_an_error(tmp_path: Path) -> None:
    """Read on, its entries would come twice, and those of a misplaced page not at all."""
    with Store(tmp_path / "damaged", sync="none", node_max_entries=10) as store:
        filled(store, 100)
        with store.transaction() as transaction:
            txn = transaction.txn
            stream = txn.find_stream(b"s")
            assert stream is not None
            walk = NodeWalk(txn, stream)
            assert walk.first()
            value = encode_envelope(stream.number, walk.ms, walk.seq, 1, 1, b"", walk.load(), b"")
            txn.put(RETIRED, node_key(stream.number, walk.ms, walk.seq), value)
        with pytest.raises(CorruptionError, match="in `nodes` as well"):
            plan(store, "auto")


def test_a_segment_that_is_replaced_while_it_is_read(small: Store[bytes]) -> None:
    ids = filled(small, 100)
    move_nodes(small, 4, 0)
    (one,) = plan(small, "auto")
    nodes = chain.from_iterable(executor.read_nodes(small, one))
    found = [f"{a}-{b}" for ms, seq, data in [next(nodes)] for a, b, _ in pairs_of(data, ms, seq)]
    with small.transaction() as transaction:  # an erasure rewrites the third segment
        txn = transaction.txn
        stream = txn.find_stream(b"s")
        assert stream is not None
        (record,) = [row for row in iter_segments(txn, stream.number) if row.first_ms == 1020]
        entries = [(1020 + n, 0, [b"n", b"%d" % n]) for n in range(1, 10)]
        new = write_file(small.path / "archive", entries, number=stream.number, file_number=9)
        delete_segment(txn, record)
        put_segment(txn, new._replace(stream_number=stream.number, key=b"s"))
    (small.path / "archive" / record.path).unlink()
    for ms, seq, data in nodes:
        found += [f"{a}-{b}" for a, b, _ in pairs_of(data, ms, seq)]
    assert found == [one for one in ids if one != "1020-0"]


def test_a_segment_that_is_missing_or_damaged_is_named(small: Store[bytes]) -> None:
    filled(small, 100)
    move_nodes(small, 2, 0)
    slices = plan(small, "auto")
    first, second = sorted((small.path / "archive").glob("*/*.seg"))
    whole = first.read_bytes()
    first.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    with pytest.raises(CorruptionError, match=r"block 0 of segment .*checksum"):
        read(small, slices)
    first.write_bytes(whole)
    second.rename(second.with_suffix(".away"))
    small.close()  # which closes the open file
    with Store(small.path, readonly=True) as again, pytest.raises(MissingSegmentError):
        read(again, slices)
    second.with_suffix(".away").rename(second)


def test_the_archive_of_a_deleted_stream(small: Store[bytes], tmp_path: Path) -> None:
    ids = filled(small, 100)
    move_nodes(small, 3, 0)
    small.delete("s")
    assert read(small, plan(small, "archive")) == ids[:30]
    small.xadd("s", {"n": "new"}, id="5-0")
    assert read(small, plan(small, "archive")) == []
    assert read(small, plan(small, "auto")) == ["5-0"]


def test_a_stream_that_was_made_again_is_not_taken_for_the_old_one(small: Store[bytes]) -> None:
    filled(small, 10)
    slices = plan(small, "auto")
    small.delete("s")
    filled(small, 10)
    with pytest.raises(stores.StreamReplacedError, match="load\\(\\) the DataFrame again"):
        read(small, slices)


def test_partitions_have_no_more_entries_than_was_asked_for(small: Store[bytes]) -> None:
    ids = filled(small, 1000)
    given = {"path": str(small.path), "subscribe": "s", "maxRecordsPerPartition": "100"}
    options = parse_read(given)
    parts = plan_pins(options, pin_now(options))
    assert max(sum(one.entries for one in part) for part in parts) <= 100
    assert 10 <= len(parts) <= 15
    assert read(small, [one for part in parts for one in part]) == ids


def test_a_folder_of_segments_without_its_store(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("archiving", node_max_entries=7)
    ids = filled(store, 500)
    store.set_retention("s", archive=True)
    for maxlen in (400, 250, 100):
        store.xtrim("s", maxlen=maxlen, approximate=False)
        store.archive()
    archived = [str(one.id, "ascii") for one in store.xrange("s", history=True)][:399]
    shutil.copytree(store.path / "archive", tmp_path / "copy")
    for root in (str(tmp_path / "copy"), (tmp_path / "copy").as_uri()):
        for between, expected in (
            ({}, archived),
            ({"startingOffsets": "1100", "endingOffsets": "1250"}, ids[100:251]),
        ):
            options = parse_read({"path": root, "subscribe": "s", **between})
            assert stores.is_folder(root)
            pins = segment_folder.pin_folder(options)
            for size in (None, 1, 2000):
                streams = segment_folder.list_segments(root)
                slices = segment_folder.cut_folder(root, streams, pins, size)
                found = []
                for one in join(slices):
                    nodes = executor.read_file(one)
                    shape = RowShape(DEFAULT_SCHEMA, one.key)
                    for batch in record_batches(shape, nodes, one.start, one.end):
                        found += batch.column("id").to_pylist()
                assert found == expected
    store.archive(to=(tmp_path / "fleet").as_uri(), seal=True)
    store.close()
    shutil.copytree(store.path, lost := tmp_path / "lost")
    (lost / "data.mdb").unlink()  # a damaged store is no folder of what is left of it
    with pytest.raises(CorruptionError, match="missing, and all that was live with it"):
        StreamkeepSource({"path": str(lost), "subscribe": "s"})
    with pytest.raises(NotAStoreError, match=r"next: \.option\('fleet', "):
        segment_folder.list_segments(str(tmp_path / "fleet"))
    for path in (tmp_path / "copy").glob("*/*.seg"):
        path.unlink()
    with pytest.raises(MissingSegmentError, match=r"load\(\) the DataFrame again"):
        list(executor.read_file(slices[0]))
    with pytest.raises(NotAStoreError, match="neither a store nor a folder with segments"):
        segment_folder.pin_folder(options)


def test_a_folder_has_all_incarnations_and_stores_apart(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    stores = [open_store(name) for name in ("one", "two")]
    for at, store in enumerate(stores):
        for incarnation in range(2):
            store.delete("s")
            filled(store, 50 + 10 * at + incarnation)  # the same IDs in all of them
            store.set_retention("s", archive=True)
            store.xtrim("s", maxlen=0, approximate=False)
            store.archive()
        shutil.copytree(store.path / "archive", tmp_path / "all" / str(at))
    root = str(tmp_path / "all")
    source = StreamkeepSource({"path": root, "subscribe": "s"})
    assert source.schema().names[:4] == ["store", "stream", "incarnation", "id"]
    rows = read_all(source.reader(SHAPE))
    found = Counter((row["store"], row["incarnation"]) for row in rows)
    assert sorted(found.values()) == [50, 51, 60, 61]
    assert {store for store, _ in found} == {store.uuid for store in stores}


def test_a_host_without_the_path_says_so(
    open_store: Callable[..., Store[bytes]], tmp_path: Path
) -> None:
    store = open_store("here")
    filled(store, 10)
    options = parse_read({"path": str(store.path), "subscribe": "s"})
    ((one, *_),) = plan_pins(options, pin_now(options))
    (tmp_path / "empty").mkdir()
    (tmp_path / "shared" / "archive" / "1-s").mkdir(parents=True)  # with the archive mounted
    for name, why in (
        ("empty", "not a store"),
        ("nowhere", "no"),
        ("shared", r"all that was live with it\); next: run where"),
    ):
        elsewhere = replace(one, path=str(tmp_path / name))
        with (
            pytest.raises(NotOnExecutorError, match=rf"on host .* does not have .*{name}.*{why}"),
            executor.nodes_of() as nodes,
        ):
            list(nodes(elsewhere))


def test_of_segments_that_overlap_the_newest_counts(tmp_path: Path) -> None:
    old = [(1000 + n, 0, [b"n", b"old"]) for n in range(20)]
    write_file(tmp_path, old, file_number=1, created_ms=1)
    write_file(tmp_path, old[:5] + old[6:], file_number=2, created_ms=2)
    write_file(tmp_path, [(2000, 0, [b"n", b"x"])], file_number=3, created_ms=1)
    (found,) = segment_folder.list_segments(str(tmp_path)).values()
    assert [one.segment.trailer.entries for one in found] == [19, 1]
