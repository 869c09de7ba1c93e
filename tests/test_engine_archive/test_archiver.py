"""From live to retired to segment: each entry in one place, after every crash."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from archived_streams import fill, rows, segments, shown, sum_of
from inside import environment_of, flush_now
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions, clean
from streamkeep.engine.system import files
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError, StoreFullError
from streamkeep.format.core.keys import NAMES, RETIRED, pack_number
from streamkeep.format.segment.segment import SUFFIX


def test_every_way_of_trimming_retires(store: Store) -> None:
    store.set_retention("s", archive=True)
    ids = fill(store, 300)
    store.xtrim("s", maxlen=250, approximate=False)
    store.xtrim("s", minid=ids[80])
    store.trim_range("s", ids[200], ids[220])
    ids.append(store.xadd("s", {"n": 1}, maxlen=100, approximate=False))
    store.xtrim("s", maxlen=90, approximate=False, ref_policy="DELREF")
    store.xtrim("s", maxlen=80, approximate=False, ref_policy="ACKED")
    store.set_retention("s", maxlen=10)
    store.maintain()
    assert store.xlen("s") == 10
    assert shown(store) == ids
    report = store.archive()
    assert (report.entries, rows(store, RETIRED)) == (sum_of(store), 0)
    assert shown(store) == ids


@pytest.mark.parametrize("also", ["", "delete", "archive", "archive, delete", "drop"])
def test_nodes_do_not_grow_around_trimmed_ones(store: Store, also: str) -> None:
    """The newest nodes are trimmed away; the one before them has room left, and may not get it."""
    store.set_retention("s", archive=True)
    for number in range(1, 9):
        store.xadd("s", {"pad": "x" * (400 if number < 5 else 3000)}, id=f"{number}-0")
    assert store.trim_range("s", "6", "9") == 3
    expected = [b"%d-0" % number for number in range(1, 9)]
    if "archive" in also:
        assert store.archive().entries == 3
    if "delete" in also:
        assert store.xdel("s", "5-0") == 1
        expected.remove(b"5-0")
    if also == "drop":
        store.archive()
        store.drop_segments("s")
        expected = expected[:5]
    for number in range(20, 23):
        expected.append(store.xadd("s", {"n": number}, id=f"{number}-0"))
    assert shown(store) == expected
    assert [entry.id for entry in store.xrevrange("s", history=True)] == expected[::-1]
    store.archive()
    store.xtrim("s", maxlen=0, approximate=False)
    store.archive()
    assert shown(store) == expected


def test_a_tail_that_is_deleted_around_trimmed_slots_is_not_passed_by(store: Store) -> None:
    store.set_retention("s", archive=True)
    for number, size in enumerate([400, 400, 400, 400, 3000, 800], 1):
        store.xadd("s", {"pad": "x" * size}, id=f"{number}-0")
    assert store.trim_range("s", "5", "5") == 1
    assert store.xdel("s", "6-0") == 1
    store.xadd("s", {"n": 7}, id="7-0")
    expected = [b"%d-0" % number for number in (1, 2, 3, 4, 5, 7)]
    assert shown(store) == expected
    store.xtrim("s", maxlen=0, approximate=False)
    store.archive()
    assert shown(store) == expected


def test_history_has_long_keys_and_far_ids(store: Store) -> None:
    key = b"k" * 65_536
    top = (1 << 64) - 1
    store.set_retention(key, archive=True)
    ids = [b"0-1", b"1-0", b"9223372036854775807-5", b"%d-%d" % (top, top - 1)]
    for one in ids:
        store.xadd(key, {"a": one}, id=one)
    store.xtrim(key, maxlen=0, approximate=False)
    assert store.archive(options=ArchiveOptions(target_bytes=0)).entries == 4
    store.xadd(key, {"a": "end"}, id=b"%d-%d" % (top, top))
    store.xtrim(key, maxlen=0, approximate=False)
    assert store.archive().entries == 1
    assert len(store.xrange(key, history=True)) == 5
    assert [entry.id for entry in store.xrevrange(key, history=True)][1:] == ids[::-1]


def test_a_deleted_stream_leaves_its_archive_and_no_history(
    archived: tuple[Store, list[bytes]],
) -> None:
    store, ids = archived
    early = store.archive().entries
    store.xtrim("s", maxlen=50, approximate=False)
    number = store.archived_segments("s")[0].stream_number
    store.delete("s")
    assert shown(store) == []
    fill(store, 3)
    assert len(shown(store)) == 3
    assert store.archive().entries == 950 - early
    kept = store.archived_segments(stream_number=number)
    assert sum(record.entries for record in kept) == 950
    assert {record.key for record in kept} == {b"s"}
    assert rows(store, RETIRED) == 0
    store.restore_archive("back", stream_number=number)
    assert [entry.id for entry in store.xrange("back")] == ids[:950]


def test_a_stream_whose_name_was_lost_is_not_archived_under_another_one(
    archived: tuple[Store, list[bytes]],
) -> None:
    store, ids = archived
    lost = pack_number(1)
    environment_of(store).write(lambda txn: txn.delete(NAMES, lost))
    with pytest.raises(CorruptionError, match="stream 1: it has no name"):
        store.archive()
    assert segments(store) == []
    environment_of(store).write(lambda txn: txn.put_row(NAMES, lost, b"s"))
    store.archive()
    assert len(segments(store)) == 1
    assert shown(store) == ids


def test_ids_do_not_go_back_below_the_archive(archived: tuple[Store, list[bytes]]) -> None:
    store, ids = archived
    store.archive()
    store.xtrim("s", maxlen=0, approximate=False)
    with pytest.raises(streamkeep.CommandError, match="archive"):
        store.xsetid("s", "5-0")
    store.archive()
    with pytest.raises(streamkeep.CommandError, match="archive"):
        store.xsetid("s", ids[-2])
    store.erase("s", ids[-1])  # also with that ID, a later entry would count as erased
    with pytest.raises(streamkeep.CommandError, match="archive"):
        store.xsetid("s", ids[-2])
    assert store.xsetid("s", ids[-1])


def test_a_full_disk_keeps_everything_retired(
    archived: tuple[Store, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = archived

    with monkeypatch.context() as full:
        full.setattr(
            files, "write_at", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        )
        with pytest.raises(StoreFullError):
            store.archive()
    assert segments(store) == []
    assert list(store.path.glob("archive/*/*")) == []
    assert shown(store) == ids
    assert store.archive().entries > 800
    assert shown(store) == ids


def test_entries_are_refused_when_nothing_can_be_archived(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkeep.engine.archive import back_pressure
    from streamkeep.engine.store import environment

    monkeypatch.setattr(environment, "RETIRED_LEAST", 40_000)
    monkeypatch.setattr(back_pressure, "RETIRED_LEAST", 40_000)
    store = open_store(retired_max_bytes=50_000)
    store.set_retention("s", maxlen=50, archive=True)
    with monkeypatch.context() as broken:
        broken.setattr(
            back_pressure, "archive", Mock(side_effect=StoreFullError("no room for a segment"))
        )
        with pytest.raises(StoreFullError, match="wait for the archiver"):
            for _ in range(5000):
                store.xadd("s", {"x": "y" * 500})
        assert store.xtrim("s", maxlen=10, approximate=False) > 0
        store.xadd("other", {"a": 1})
    flush_now(store)
    store.archive()
    fill(store, 10)


@pytest.mark.parametrize("error", [StoreFullError("full"), OSError(errno.EMFILE, "simulated")])
def test_a_store_opens_although_what_an_archiver_left_cannot_be_removed(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    from streamkeep.engine.archive import back_pressure

    store = open_store()
    store.set_retention("s", archive=True)
    fill(store, 500)
    store.xtrim("s", maxlen=300, approximate=False)
    store.archive()
    store.xtrim("s", maxlen=10, approximate=False)
    store.close()
    monkeypatch.setattr(back_pressure, "clean", Mock(side_effect=error))
    assert open_store().xlen("s") == 10
    assert "will be removed later" in caplog.text


def test_cleaning_looks_at_each_file_once_however_many_streams_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    class Counted(str):
        __slots__ = ()

        def partition(self, separator: str, /) -> tuple[str, str, str]:
            nonlocal looks
            looks += 1
            return super().partition(separator)

        def startswith(self, *args: Any) -> bool:
            nonlocal looks
            looks += 1
            return super().startswith(*args)

    for key in map(str, range(20)):
        store.set_retention(key, archive=True)
        store.xadd_many(key, [{"n": "x" * 100} for _ in range(200)])
        store.xtrim(key, maxlen=1, approximate=False)
    there = [Counted(f"{number}-x/{file}{SUFFIX}") for number in range(100, 200) for file in "ab"]
    monkeypatch.setattr(Folder, "files_below", lambda folder, name: there)
    assert clean(environment_of(store)) == []
    assert 0 < looks <= len(there)
