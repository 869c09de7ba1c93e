"""Restoring archived entries: ranges, order, exactly once through interruptions, erasures."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inside import context_of, environment_of, segment_files_of
from model.profile import configured
from segments import TOP, Pairs, archive, pairs_of, retire, some, write_file
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import iterate, restore
from streamkeep.engine.archive.iterate import archived_nodes
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables import manifest
from streamkeep.engine.tables.scan import rows_with
from streamkeep.format.core import errors
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.keys import RETIRED, node_key
from streamkeep.format.node import node, ranges, tombstones
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.node.envelope import encode_envelope
from streamkeep.format.segment.manifest import SegmentRecord


def history_of(
    store: Store, number: int, start: tuple[int, int], end: tuple[int, int]
) -> list[Pairs]:
    found: list[Pairs] = []
    for one in archived_nodes(environment_of(store), number, start, end):
        assert (one.ms, one.seq) == one.ids.first_live
        wanted = ranges.Range(0, 0, TOP, TOP, 1 << 40, False, node.PAIRS)
        ranges.read_range(one.data, one.ms, one.seq, wanted, found)  # type: ignore[arg-type]
    return found


@pytest.fixture
def archived(store: Store) -> list[Pairs]:
    """Entries of the stream `orders`: three segments, retired nodes between and after them."""
    parts = [some(60, ms) for ms in (1000, 2000, 3000, 4000, 5000)]
    number = archive(store, "orders", parts[0], parts[1], parts[3])
    retire(store, number, parts[2])
    retire(store, number, parts[4])
    with store.transaction() as transaction:
        stream = transaction._txn.find_stream(b"orders")
        assert stream is not None
        stream.record.last_ms = 6000
    store.xadd("orders", {"live": 1}, "7000-0")
    return [entry for part in parts for entry in part]


def test_everything_comes_back(store: Store, archived: list[Pairs]) -> None:
    calls: list[tuple[int, int]] = []
    report = store.restore_archive(
        "copy", "orders", progress=lambda done, of: calls.append((done, of))
    )
    assert report == (300, StreamId(1000, 0), StreamId(5019, 2), False, 0)
    assert pairs_of(store, "copy") == archived
    assert calls[-1][0] == 300
    info = store.xinfo_stream("copy")
    assert (info["length"], info["entries-added"]) == (300, 300)
    assert info["last-generated-id"] == b"5019-2"
    store.xadd("copy", {"more": 1}, "5019-*")
    assert store.xlen("copy") == 301
    assert pairs_of(store, "orders") == [(7000, 0, [b"live", b"1"])]


def test_entries_are_counted_up_to_where_redis_counts(store: Store, archived: list[Pairs]) -> None:
    most = (1 << 63) - 1
    store.xadd("copy", {"a": 1}, "1-1")
    store.xsetid("copy", "1-1", entries_added=most - 5)
    store.restore_archive("copy", "orders")
    assert store.xinfo_stream("copy")["entries-added"] == most
    payload = store.dump("copy")
    assert payload is not None
    store.restore("other", 0, payload)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("-", "1000-1"),
        ("1005", "1005"),
        ("1010-1", "3002-0"),
        ("(1019-2", "(5000-0"),
        ("6001", "+"),
    ],
)
def test_a_range_comes_back(store: Store, archived: list[Pairs], start: str, end: str) -> None:
    store.restore_archive("copy", "orders", start=start, end=end)
    low, high = (0, 0), (TOP, TOP)
    if start != "-":
        at = StreamId.parse(start.lstrip("("))
        low = at.next() if start[0] == "(" else at
    if end != "+":
        at = StreamId.parse(end.lstrip("("), default_seq=TOP)
        high = at.previous() if end[0] == "(" else at
    wanted = [entry for entry in archived if low <= entry[:2] <= high]
    assert pairs_of(store, "copy") == wanted
    assert bool(store.exists("copy")) == bool(wanted)


@configured(60)
@given(st.data())
def test_any_range_of_any_archive(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    ms = sorted(data.draw(st.sets(st.integers(0, 30), min_size=2, max_size=12)))
    entries = [(one, 1, [b"f", b"%d" % one]) for one in ms]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ms) - 1), max_size=4)))
    bounds = [0, *cuts, len(ms)]
    parts = [entries[a:b] for a, b in pairwise(bounds)]
    with Store(tmp_path_factory.mktemp("store") / "s", sync="none") as store:
        with store.transaction() as transaction:
            number = transaction._txn.create_stream(b"orders").number
        for part in parts:
            if data.draw(st.booleans()):
                archive(store, "orders", part)
            else:
                retire(store, number, part)
        start = (data.draw(st.integers(0, 31)), data.draw(st.integers(0, 2)))
        end = (data.draw(st.integers(0, 31)), data.draw(st.integers(0, 2)))
        wanted = [entry for entry in entries if start <= entry[:2] <= end]
        assert history_of(store, number, start, end) == wanted


def test_another_store_gets_a_month(open_store: Open) -> None:
    source, target = open_store("source"), open_store("target")
    number = archive(source, "orders", some(90))
    source.delete("orders")
    with pytest.raises(errors.NoSuchKeyError):
        target.restore_archive("orders", from_store=source)
    report = target.restore_archive("orders", from_store=source, stream_number=number, end=1009)
    assert report.entries == 30
    assert pairs_of(target, "orders") == some(90)[:30]


def test_a_restore_that_would_break_the_order_changes_nothing(
    store: Store, archived: list[Pairs]
) -> None:
    store.xadd("copy", {"a": 1}, "1000-0")
    with pytest.raises(
        errors.IdTooSmallError, match="is 1000-0, and IDs must rise: entries from 1000-0"
    ):
        store.restore_archive("copy", "orders")
    assert store.xlen("copy") == 1
    store.restore_archive("copy", "orders", start="(1000-0")
    assert [entry[:2] for entry in pairs_of(store, "copy")] == [one[:2] for one in archived]
    with pytest.raises(errors.IdTooSmallError, match="entry 1000-0 has other fields there; next: "):
        store.restore_archive("copy", "orders")
    with pytest.raises(errors.ArgumentError, match="cannot be restored into itself"):
        store.restore_archive("orders", "orders")
    with pytest.raises(errors.ArgumentError, match="not both"):
        store.archived_segments("orders", stream_number=1)


@pytest.mark.parametrize("number", [0, -1, 1 << 64, 1.0, float("nan"), "1", b"2", True])
def test_a_stream_number_is_a_positive_integer(store: Store, number: Any) -> None:
    for method in (store.archived_segments, store.drop_segments, store.verify_archive):
        with pytest.raises(errors.ArgumentError, match="stream_number"):
            list(method(stream_number=number))


def test_a_key_that_is_below_its_node_is_no_obstacle(store: Store) -> None:
    """The first entries of a node were deleted; its key is lower than what is restored."""
    builder = NodeBuilder(5, 0, [b"f"])
    for ms in (5, 6, 7):
        builder.append(ms, 0, [b"f", b"v"])
    data = tombstones.history_form(
        tombstones.mark(builder.listpack(), 5, 0, [(5, 0)], 0).data, 5, 0, b""
    )
    with store.transaction() as transaction:
        txn = transaction._txn
        number = txn.create_stream(b"orders").number
        txn.put(
            RETIRED, node_key(number, 5, 0), encode_envelope(number, 5, 0, 1, 1, b"", data, b"")
        )
    store.xadd("copy", {"a": 1}, "5-0")
    assert store.restore_archive("copy", "orders").entries == 2
    assert [entry[:2] for entry in pairs_of(store, "copy")] == [(5, 0), (6, 0), (7, 0)]


class Stopped(Exception):
    pass


def test_a_restore_that_was_interrupted_goes_on_where_it_was(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_STEP_NODES", 2)
    store = open_store()
    archive(store, "orders", some(200), some(200, 3000))
    lengths = []
    for _ in range(5):
        failpoints.arm("restore:step", Mock(side_effect=Stopped))
        with pytest.raises(Stopped):
            store.restore_archive("copy", "orders")
        lengths.append(store.xlen("copy"))
        store.close()
        store = open_store()
    assert lengths == sorted(set(lengths))
    report = store.restore_archive("copy", "orders")
    assert report.resumed
    assert report.entries == 400 - lengths[-1]
    assert pairs_of(store, "copy") == some(200) + some(200, 3000)
    assert store.restore_archive("copy", "orders").already == 400
    assert pairs_of(store, "copy") == some(200) + some(200, 3000)


def test_a_restore_that_was_stopped_after_its_last_step_was_complete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(store, "orders", [*some(9), (TOP, TOP, [b"f", b"v"])])
    failpoints.arm("restore:step", Mock(side_effect=Stopped))
    with pytest.raises(Stopped):
        store.restore_archive("copy", "orders")
    assert store.restore_archive("copy", "orders").already == 10


def test_a_restore_that_was_complete_changes_nothing(store: Store, archived: list[Pairs]) -> None:
    first, last = (StreamId(*archived[at][:2]) for at in (0, -1))
    assert store.restore_archive("copy", "orders").entries == len(archived)
    store.xadd("copy", {"later": 1}, "999999-0")
    before = store.xinfo_stream("copy")
    for _ in range(2):
        report = store.restore_archive("copy", "orders")
        assert report == (0, first, last, False, len(archived))
    part = store.restore_archive("copy", "orders", start=archived[3][0], end=archived[9][0])
    assert 0 < part.already < len(archived)
    assert store.xinfo_stream("copy") == before
    store.set_retention("copy", archive=True)
    store.xtrim("copy", maxlen=3)  # what was trimmed and archived is there as well
    store.archive()
    assert store.restore_archive("copy", "orders").already == len(archived)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("deleted", r"entry 1003-0 is missing there; next: delete the stream, or restore"),
        ("other", r"entry 1003-0 has other fields there"),
        ("between", r"there is an entry 1003-5, which is not one of them"),
        ("after", r"there is an entry 1003-5, which is not one of them"),
    ],
)
def test_what_differs_from_a_restore_is_told(store: Store, change: str, message: str) -> None:
    archive(store, "orders", [(1000 + n, 0, [b"n", b"%d" % n]) for n in range(8)])
    for n in range(4 if change == "after" else 8):
        value = "else" if (change, n) == ("other", 3) else str(n)
        store.xadd("copy", {"n": value}, f"{1000 + n}-0")
        if n == 3 and change in ("between", "after"):
            store.xadd("copy", {"n": "?"}, "1003-5")
    if change == "deleted":
        store.xdel("copy", "1003-0")
    before = pairs_of(store, "copy")
    with pytest.raises(errors.IdTooSmallError, match=message):
        store.restore_archive("copy", "orders")
    assert pairs_of(store, "copy") == before


@pytest.mark.parametrize("count", range(9))
def test_a_stream_that_has_the_first_entries_gets_the_others(store: Store, count: int) -> None:
    """Wherever the nodes of the archive begin, and whatever the stream has below them."""
    entries = [(1000 + n, 0, [b"n", b"%d" % n]) for n in range(8)]
    archive(store, "orders", entries)
    store.xadd("copy", {"n": "before"}, "5-0")
    for n in range(count):
        store.xadd("copy", {"n": n}, f"{1000 + n}-0")
    report = store.restore_archive("copy", "orders")
    assert (report.entries, report.already) == ((8 - count, 0) if count < 8 else (0, 8))
    assert report.resumed == (0 < count < 8)
    assert pairs_of(store, "copy")[1:] == entries
    assert store.restore_archive("copy", "orders").already == 8


def test_a_stream_that_was_appended_to_meanwhile_is_not_finished(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_STEP_NODES", 1)
    archive(store, "orders", [*some(200), *some(200, 3000)])
    failpoints.arm("restore:step", Mock(side_effect=Stopped))
    with pytest.raises(Stopped):
        store.restore_archive("copy", "orders")
    store.xadd("copy", {"a": 1})
    with pytest.raises(errors.IdTooSmallError, match=r"entry [0-9-]+ is missing there"):
        store.restore_archive("copy", "orders")


def test_a_stream_that_is_appended_to_between_two_steps_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_STEP_NODES", 1)
    archive(store, "orders", [*some(200), *some(200, 3000)])

    def append() -> None:
        store.xadd("copy", {"a": 1}, "2999-0")

    failpoints.arm("restore:step", append)
    with pytest.raises(errors.CommandError, match="was appended to during the restore"):
        store.restore_archive("copy", "orders")


def test_what_is_archived_and_rewritten_meanwhile_comes_once(
    store: Store, archived: list[Pairs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """During the walk, retired nodes become a segment and a segment gets another file."""
    monkeypatch.setattr(restore, "_STEP_NODES", 1)
    monkeypatch.setattr(iterate, "_STEP_BYTES", 1)
    number = store.archived_segments()[0].stream_number
    steps = 0

    def change() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            rewrite(store, store.archived_segments("orders")[0], some(60))
        if steps == 12:
            part = [entry for entry in archived if 3000 <= entry[0] < 4000]
            with store.transaction() as transaction:
                txn = transaction._txn
                doomed = [
                    key for key, _ in rows_with(txn, 14, b"") if key[8:16] < b"\0" * 6 + b"\x0f\xa0"
                ]
                for key in doomed:
                    txn.delete(14, key)
            archive(store, "orders", part)
        failpoints.arm("restore:step", change)

    failpoints.arm("restore:step", change)
    store.restore_archive("copy", "orders")
    assert steps > 12
    assert pairs_of(store, "copy") == archived
    assert len(store.archived_segments(stream_number=number)) == 4


def rewrite(store: Store, record: SegmentRecord, entries: list[Pairs]) -> None:
    """Put another file in the place of a segment, and remove the old one."""
    with store.transaction() as transaction:
        txn = transaction._txn
        manifest.delete_segment(txn, record)
        other = write_file(
            store.path / "archive", entries, number=record.stream_number, file_number=99
        )
        manifest.put_segment(txn, other)
    os.unlink(store.path / "archive" / record.path)
    segment_files_of(store).close()


def test_a_file_that_is_gone_or_damaged_is_an_error_and_what_was_before_it_stays(
    store: Store, archived: list[Pairs]
) -> None:
    record = store.archived_segments("orders")[1]
    path = store.path / "archive" / record.path
    data = bytearray(path.read_bytes())
    path.unlink()
    with pytest.raises(errors.MissingSegmentError):
        store.restore_archive("copy", "orders")
    assert not store.exists("copy")  # a step is written when it is full
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.CorruptionError, match="block 0 of segment"):
        store.restore_archive("copy", "orders")
    data[30] ^= 1
    path.with_suffix(".copy").write_bytes(data)
    path.with_suffix(".copy").rename(path)
    assert store.restore_archive("copy", "orders").entries == 300


def test_what_is_erased_while_it_is_restored_does_not_come_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_STEP_NODES", 4)
    number = archive(store, "orders", some(60))
    steps = restore._steps

    def erase_before_it_is_written(nodes: object) -> object:
        for step in steps(nodes):  # type: ignore[arg-type]
            with store.transaction() as transaction:
                if not manifest.erased_ids(transaction._txn, number, (1001, 0), (1001, 1)):
                    manifest.put_erasure(transaction._txn, number, 1001, 1)
            yield step

    monkeypatch.setattr(restore, "_steps", erase_before_it_is_written)
    store.restore_archive("copy", "orders")
    assert pairs_of(store, "copy") == [entry for entry in some(60) if entry[:2] != (1001, 1)]
    store.drop_segments(before="+")


def test_segments_of_this_store_that_come_back_from_another_honour_its_erasures(
    open_store: Open,
) -> None:
    store, backup = open_store(), open_store("backup")
    number = archive(store, "orders", some(60))
    files = list(store.export_segments(store.path.parent / "exported"))
    assert [adopted.erased for adopted in backup.adopt_segments(*files)] == [0]
    with store.transaction() as transaction:
        manifest.put_erasure(transaction._txn, number, 1001, 1)
    store.restore_archive("copy", "orders", from_store=backup)
    assert pairs_of(store, "copy") == [entry for entry in some(60) if entry[:2] != (1001, 1)]
    store.drop_segments(before="+")


def test_a_walk_holds_no_snapshot(store: Store, archived: list[Pairs]) -> None:
    number = store.archived_segments()[0].stream_number
    context = context_of(store)
    for _ in archived_nodes(environment_of(store), number, (0, 0), (TOP, TOP)):
        assert context.entered == context.left
