"""Segment files that come and go: adopted, exported, verified, dropped."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

import streamkeep
from inside import segment_files_of, uuid_of
from segments import Pairs, archive, entries_of, pairs_of, retire, some, write_file
from stores import Open
from streamkeep import aio, recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables import manifest
from streamkeep.format.core import errors
from streamkeep.format.segment.manifest import ADOPTED
from streamkeep.format.segment.segment import SUFFIX
from streamkeep.recovery.backups.backup import backup


def archived_entries(store: Store, key: str) -> list[Pairs]:
    found: list[Pairs] = []
    for record in store.archived_segments(key):
        found += entries_of(segment_files_of(store).open(record))
    return found


def files_of(store: Store) -> list[str]:
    folder = store.path / "archive"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_segments_go_from_store_to_store(open_store: Open, tmp_path: Path) -> None:
    source, target = open_store("source"), open_store("target")
    archive(source, "orders", some(60), some(60, 3000))
    copies = list(source.export_segments(tmp_path / "out", "orders"))
    assert [path.stat().st_size for path in copies] == [
        one.size_bytes for one in source.archived_segments("orders")
    ]
    adopted = list(target.adopt_segments(tmp_path / "out"))
    assert [one.source for one in adopted] == sorted(copies)
    assert archived_entries(target, "orders") == some(60) + some(60, 3000)
    for one in adopted:
        assert one.record is not None
        assert one.record.origin == ADOPTED
        assert one.record.key == b"orders"
        assert (target.path / "archive" / one.record.path).is_file()
    assert target.xinfo_stream("orders")["last-generated-id"] == b"3019-2"
    target.restore_archive("copy", "orders")
    assert pairs_of(target, "copy") == some(60) + some(60, 3000)
    shutil.rmtree(tmp_path / "out")
    assert all(not one.problems for one in target.verify_archive())


def test_adopting_again_changes_nothing(store: Store, tmp_path: Path) -> None:
    write_file(tmp_path / "out", some(60))
    first = [one.record for one in store.adopt_segments(tmp_path / "out")]
    before = files_of(store)
    calls: list[tuple[int, int]] = []
    again = list(
        store.adopt_segments(tmp_path / "out", progress=lambda done, of: calls.append((done, of)))
    )
    assert [one.record for one in again] == [None]
    assert calls[-1][0] == calls[-1][1] > 0
    assert files_of(store) == before
    assert store.archived_segments() == first


def test_files_below_the_archive_stay_where_they_are(store: Store) -> None:
    record = write_file(store.path / "archive", some(60))
    (one,) = store.adopt_segments(store.path / "archive")
    assert one.record is not None
    assert one.record.path == record.path
    assert files_of(store) == [record.path]
    assert archived_entries(store, "orders") == some(60)


def test_a_file_directly_in_the_archive_is_exported_and_backed_up(
    store: Store, tmp_path: Path
) -> None:
    record = write_file(tmp_path / "out", some(60))
    (store.path / "archive").mkdir(exist_ok=True)
    shutil.copy(tmp_path / "out" / record.path, store.path / "archive" / f"one{SUFFIX}")
    (one,) = store.adopt_segments(store.path / "archive")
    assert one.record is not None
    assert one.record.path == f"one{SUFFIX}"
    assert list(store.export_segments(tmp_path / "again")) == [tmp_path / "again" / f"one{SUFFIX}"]
    assert backup(store, tmp_path / "backup").copied_segments == 1
    with streamkeep.open(tmp_path / "backup") as copy:
        assert archived_entries(copy, "orders") == some(60)


def test_segments_of_a_deleted_stream_come_back_under_its_number(
    store: Store, open_store: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = archive(store, "orders", some(60))
    list(store.export_segments(tmp_path / "out"))
    store.delete("orders")
    store.xadd("orders", {"new": 1})
    assert len(store.drop_segments(stream_number=number)) == 1
    assert files_of(store) == []
    (one,) = store.adopt_segments(tmp_path / "out")
    assert one.record is not None
    assert one.record.stream_number == number
    assert store.archived_segments("orders") == []
    assert len(store.archived_segments(stream_number=number)) == 1
    later = archive(store, "orders", some(60, 1 << 42), some(60, 1 << 43))
    list(store.export_segments(tmp_path / "out", "orders"))
    assert caplog.text == ""
    assert len(list(open_store("other").adopt_segments(tmp_path / "out"))) == 3  # it has no numbers
    assert caplog.text.count("which had the same key; both are in the stream 'orders' now") == 1
    assert f"number {later} of its store, and files before it are of number {number}" in caplog.text


def test_a_renamed_stream_keeps_its_segments(store: Store, tmp_path: Path) -> None:
    archive(store, "orders", some(60))
    list(store.export_segments(tmp_path / "out"))
    store.drop_segments("orders")
    store.rename("orders", "orders-2024")
    list(store.adopt_segments(tmp_path / "out"))
    assert archived_entries(store, "orders-2024") == some(60)


def test_what_does_not_fit_is_refused(store: Store, tmp_path: Path) -> None:
    write_file(tmp_path / "a", some(60, 1000))
    for lowest in ("1005-0", "1000-0", "500-0"):
        store.xadd("live", {"a": 1}, lowest)
        with pytest.raises(errors.CommandError, match="the newest live entries begin at"):
            list(store.adopt_segments(tmp_path / "a", key="live"))
        store.delete("live")
    number = archive(store, "orders", some(60, 3000))
    retire(store, number, some(60, 5000))
    for ms, problem in ((3010, "overlaps with segment"), (4990, "not archived yet")):
        write_file(tmp_path / str(ms), some(60, ms))
        with pytest.raises(errors.CommandError, match=problem):
            list(store.adopt_segments(tmp_path / str(ms)))
    before = files_of(store)
    store.xadd("live", {"a": 1}, "1020-0")

    def add() -> None:
        store.xadd("new", {"a": 1}, "1005-0")

    failpoints.arm("adopt:copied", add)
    with pytest.raises(errors.CommandError, match="the newest live entries begin at"):
        list(store.adopt_segments(tmp_path / "a", key="new"))
    assert files_of(store) == before
    list(store.adopt_segments(tmp_path / "a", key="live"))
    assert archived_entries(store, "live") == some(60, 1000)
    assert len(files_of(store)) == len(before) + 1
    with pytest.raises(errors.ArgumentError, match="no such file or folder"):
        list(store.adopt_segments(tmp_path / "nothing"))


def _trim_the_middle(store: Store) -> list[Pairs]:
    """Archive the middle of a stream of many nodes; return what the segments hold."""
    for ms in range(1000, 1060):
        store.xadd("orders", {"n": str(ms)}, f"{ms}-0")
    store.set_retention("orders", archive=True)
    store.trim_range("orders", 1020, 1039)
    store.archive()
    (segment,) = store.archived_segments("orders")
    assert segment.first_id == (1020, 0)
    return archived_entries(store, "orders")


@pytest.mark.parametrize("dropped", [False, True])
def test_a_lost_segment_from_the_middle_comes_back(
    open_store: Open, tmp_path: Path, dropped: bool
) -> None:
    store = open_store(node_max_entries=5)
    archived = _trim_the_middle(store)
    before = store.xrange("orders", history=True)
    list(store.export_segments(tmp_path / "out"))
    (record,) = store.archived_segments("orders")
    if dropped:
        store.drop_segments("orders")
    else:
        os.unlink(store.path / "archive" / record.path)
        segment_files_of(store).close()
        assert [one.code for one in recovery.check(store)] == ["SK301"]
        with pytest.raises(errors.MissingSegmentError):
            store.xrange("orders", history=True)
    (one,) = store.adopt_segments(tmp_path / "out")
    assert one.record is not None
    assert archived_entries(store, "orders") == archived
    assert store.xrange("orders", history=True) == before
    if not dropped:
        assert store.archived_segments("orders") == [record]
    assert [one.record for one in store.adopt_segments(tmp_path / "out")] == [None]


def test_a_segment_goes_between_nodes_and_not_into_one(store: Store, tmp_path: Path) -> None:
    for ms in (1000, 1100, 3000, 3100):  # big enough to be nodes of their own
        store.xadd("orders", {"a": "x" * 5000}, f"{ms}-0")
    store.xadd("orders", {"a": 1}, "4000-0")
    write_file(tmp_path / "between", some(60, 2000))
    list(store.adopt_segments(tmp_path / "between"))
    for ms, problem in ((3100, "overlaps with the live entries"), (4001, "newest live")):
        write_file(tmp_path / str(ms), some(60, ms))
        with pytest.raises(errors.CommandError, match=problem):
            list(store.adopt_segments(tmp_path / str(ms)))
    assert archived_entries(store, "orders") == some(60, 2000)


def test_a_damaged_file_is_refused_and_those_before_it_stay(store: Store, tmp_path: Path) -> None:
    good = write_file(tmp_path / "a", some(60, 1000))
    bad = write_file(tmp_path / "b", some(60, 3000))
    path = tmp_path / "b" / bad.path
    data = bytearray(path.read_bytes())
    data[40] ^= 4
    path.write_bytes(data)
    with pytest.raises(errors.CorruptionError, match="block 0 of segment"):
        list(store.adopt_segments(tmp_path))
    assert [one.checksum for one in store.archived_segments()] == [good.checksum]
    assert len(files_of(store)) == 1


def test_erased_entries_do_not_come_back_with_a_file(store: Store, tmp_path: Path) -> None:
    number = archive(store, "orders", some(60))
    list(store.export_segments(tmp_path / "out"))
    assert store.erase("orders", "1003-1", "1000-0") == 2
    (record,) = store.archived_segments("orders")
    assert (record.entries, record.erased) == (58, 2)
    store.drop_segments("orders")
    gone = [(1000, 0), (1003, 1)]
    with store.transaction() as transaction:
        manifest.put_erasure(transaction._txn, number, 1003, 7)
    wanted = [entry for entry in some(60) if entry[:2] not in gone]
    # Once from elsewhere, once from below the archive, where the file itself has to go.
    shutil.copytree(tmp_path / "out", store.path / "archive", dirs_exist_ok=True)
    for source in (tmp_path / "out", store.path / "archive"):
        (one,) = store.adopt_segments(source)
        assert one.erased == 2
        assert one.record is not None
        assert one.record.erased == 2
        assert archived_entries(store, "orders") == wanted
        store.restore_archive("copy", "orders")
        assert pairs_of(store, "copy") == wanted
        store.delete("copy")
        store.drop_segments("orders")
    assert files_of(store) == []
    for place in tmp_path / "one", store.path / "archive":  # where it would stay
        write_file(place, some(1), number=number, store_uuid=uuid_of(store))
    (one,) = store.adopt_segments(tmp_path / "one")
    assert (one.record, one.erased) == (None, 1)
    with pytest.raises(errors.CommandError, match="all of its entries were erased"):
        list(store.adopt_segments(store.path / "archive"))


def test_a_file_is_known_after_an_erasure_of_some_of_its_entries(
    store: Store, tmp_path: Path
) -> None:
    """An archive that grows is adopted time after time."""
    write_file(tmp_path / "out", some(60))
    list(store.adopt_segments(tmp_path / "out"))
    assert store.erase("orders", "1003-1", "1000-0") == 2
    write_file(tmp_path / "out", some(60, 3000))
    assert [one.record is None for one in store.adopt_segments(tmp_path / "out")] == [True, False]
    left = [one for one in some(60) if one[:2] not in [(1000, 0), (1003, 1)]]
    assert archived_entries(store, "orders") == left + some(60, 3000)
    # Not if anything else differs, and not if the file of the rest is lost.
    fields = [(*one[:2], [b"n", b"0"]) for one in some(60)]
    write_file(tmp_path / "other", fields)
    with pytest.raises(errors.CommandError, match="it overlaps with segment"):
        list(store.adopt_segments(tmp_path / "other"))
    store.segment_path(store.archived_segments("orders")[0]).unlink()
    with pytest.raises(errors.CommandError, match="archive remove` its row, then adopt again"):
        list(store.adopt_segments(tmp_path / "out"))
    store.drop_segments("orders")
    assert [one.erased for one in store.adopt_segments(tmp_path / "out")] == [2, 0]


def test_field_names_of_an_entry_that_was_deleted_and_erased_do_not_come_back(
    store: Store, tmp_path: Path
) -> None:
    """They are in the node of the next entry, also in a file from before the erasure."""
    store.set_retention("k", archive=True)
    store.xadd_many("k", [{"secret": "1"}, {"a": "2"}, {"a": "3"}], ["1-0", "2-0", "3-0"])
    store.xdel("k", "1-0")
    store.xtrim("k", maxlen=0, approximate=False)
    store.archive()
    list(store.export_segments(tmp_path / "out"))
    assert store.erase("k", "1-0") == 0
    (known,) = store.adopt_segments(tmp_path / "out")
    assert known.record is None
    store.drop_segments("k")
    (again,) = store.adopt_segments(tmp_path / "out")
    assert archived_entries(store, "k") == [(2, 0, [b"a", b"2"]), (3, 0, [b"a", b"3"])]
    assert again.record is not None
    segment = segment_files_of(store).open(again.record)
    assert not any(b"secret" in node.listpack for node in segment.block(0))
    assert [one.record for one in store.adopt_segments(tmp_path / "out")] == [None]


@pytest.mark.parametrize("of_a_copy", [False, True])
def test_field_names_of_a_deleted_entry_are_erased_above_segments_that_were_adopted_into_the_gap(
    store: Store, tmp_path: Path, of_a_copy: bool
) -> None:
    if of_a_copy:
        backup(store.path, tmp_path / "other")
    with streamkeep.open(tmp_path / "other") as other:
        other.set_retention("k", archive=True)
        for one in ("1-0", "1-5"):
            other.xadd("k", {"n": 1}, one)
            other.xtrim("k", maxlen=0, approximate=False)
            other.archive()
        list(other.export_segments(tmp_path / "out"))
    store.set_retention("k", archive=True)
    store.xadd_many("k", [{"secret": "1"}, {"a": "2"}], ["1-0", "2-0"])
    store.xdel("k", "1-0")
    store.xtrim("k", maxlen=0, approximate=False)
    store.archive()
    assert len(list(store.adopt_segments(tmp_path / "out", key="k"))) == 2
    assert store.erase("k", "1-0") == 1
    *_, record = store.archived_segments("k")
    segment = segment_files_of(store).open(record)
    assert not any(b"secret" in node.listpack for node in segment.block(0))


@pytest.mark.parametrize("name", ["segment:written", "segment:named", "adopt:copied"])
def test_an_interrupted_adoption_is_made_again(open_store: Open, tmp_path: Path, name: str) -> None:
    store = open_store()
    write_file(tmp_path / "out", some(60))

    failpoints.arm(name, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        list(store.adopt_segments(tmp_path / "out"))
    assert store.archived_segments() == []
    store.close()
    store = open_store()
    list(store.adopt_segments(tmp_path / "out"))
    assert archived_entries(store, "orders") == some(60)
    for path in files_of(store):  # a whole file that no row names can be adopted, too
        if path != store.archived_segments()[0].path:
            assert [one.record for one in store.adopt_segments(store.path / "archive" / path)] == [
                None
            ]
            (store.path / "archive" / path).unlink()


def test_verifying_names_every_problem(store: Store) -> None:
    archive(store, "orders", some(200), some(60, 3000), some(60, 5000), some(60, 7000))
    one, two, three, four = store.archived_segments("orders")
    folder = store.path / "archive"
    data = bytearray((folder / one.path).read_bytes())
    blocks = segment_files_of(store).open(one).index.blocks
    for block in (blocks[0], blocks[2]):
        data[block.offset + 15] ^= 1
    (folder / one.path).write_bytes(data)
    os.unlink(folder / two.path)
    shutil.copy(folder / four.path, folder / three.path)
    found = {each.record: [str(one) for one in each.problems] for each in store.verify_archive()}
    assert [len(problems) for problems in found.values()] == [2, 1, 1, 0]
    assert found[one][0].startswith("block 0 of segment")
    assert found[one][1].startswith("block 2 of segment")
    assert "the file is not there" in found[two][0]
    assert "holds another segment" in found[three][0]
    with pytest.raises(errors.CorruptionError):
        list(store.export_segments(folder.parent / "out"))
    with pytest.raises(errors.MissingSegmentError):
        list(store.export_segments(folder.parent / "out", start=3000, end=3001))
    segment_files_of(store).close()
    (folder / one.path).unlink()
    shutil.rmtree(folder)
    assert len(store.drop_segments(before="+")) == 4


def test_a_check_that_cannot_go_on_first_tells_what_it_has_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(store, "orders", some(60), some(60, 3000))
    os.unlink(store.segment_path(store.archived_segments("orders")[0]))

    monkeypatch.setattr(
        "streamkeep.recovery.fsck.archive.check_means",
        Mock(side_effect=errors.StoreError("not enough memory")),
    )
    findings = recovery.check(store.path)
    assert next(findings).code == "SK301"
    with pytest.raises(errors.StoreError, match="memory"):
        next(findings)
    store.drop_segments("orders")


def test_exports_take_a_range_and_replace_nothing(store: Store, tmp_path: Path) -> None:
    archive(store, "orders", some(60), some(60, 3000), some(60, 5000))
    copies = list(store.export_segments(tmp_path / "out", "orders", start=3005, end="5000-0"))
    assert [path.name.split("-")[0] for path in copies] == ["3000", "5000"]
    assert list(store.export_segments(tmp_path / "out", "orders"))[1:] == copies
    shutil.copy(copies[0], copies[1])
    with pytest.raises(errors.StoreError, match="exists"):
        list(store.export_segments(tmp_path / "out", "orders"))
    assert all(path.suffix == SUFFIX for path in (tmp_path / "out").rglob("*.*"))


def test_old_segments_are_dropped_and_their_files_go(open_store: Open) -> None:
    store = open_store()
    archive(store, "orders", some(60), some(60, 3000), some(60, 5000))
    archive(store, "other", some(60))
    assert store.drop_segments("orders", before="1019-2") == []
    dropped = store.drop_segments("orders", before=3020)
    assert [one.first_id for one in dropped] == [(1000, 0), (3000, 0)]
    assert len(files_of(store)) == 2
    assert len(store.drop_segments(before=5000)) == 1
    left = store.archived_segments()
    assert [one.first_id for one in left] == [(5000, 0)]
    with pytest.raises(errors.ArgumentError, match="would drop the archive of all streams"):
        store.drop_segments()
    assert store.archived_segments() == left
    failpoints.arm("drop:step", lambda: exec("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        store.drop_segments(before="+")
    assert store.archived_segments() == []
    assert len(files_of(store)) == 1
    store.close()
    store = open_store()
    assert files_of(store) == []


def test_a_range_of_segments_is_listed(store: Store) -> None:
    archive(store, "orders", some(60), some(60, 3000), some(60, 5000))
    listed = store.archived_segments("orders", start="1019-2", end=3000)
    assert [one.first_id for one in listed] == [(1000, 0), (3000, 0)]
    assert store.archived_segments("orders", start=1020, end=2999) == []


def test_the_archive_for_asyncio(store: Store, tmp_path: Path) -> None:
    archive(store, "orders", some(60), some(60, 3000))

    async def use() -> None:
        async with await aio.open(store.path) as twin:
            listed = await twin.archived_segments("orders", end=2000)
            assert [one.first_id for one in listed] == [(1000, 0)]
            assert [one.problems async for one in twin.verify_archive()] == [[], []]
            copies = [one async for one in twin.export_segments(tmp_path / "out")]
            assert len(copies) == 2
            report = await twin.restore_archive("copy", "orders")
            assert report.entries == 120
            assert len(await twin.drop_segments("orders")) == 2
            adopted = [one.record async for one in twin.adopt_segments(tmp_path / "out")]
            assert None not in adopted
            async for one in twin.verify_archive():
                assert not one.problems
                break

    asyncio.run(use())
    assert pairs_of(store, "copy") == some(60) + some(60, 3000)
