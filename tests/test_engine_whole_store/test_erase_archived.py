"""Erasing entries that were trimmed: from rows that wait for the archive, and from its segments."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock, patch

import pytest

import streamkeep
from conftest import assert_sound
from erased import SECRET, entry, grep, harmless
from inside import environment_of, run_read, uuid_of
from patience import PATIENCE_S, line_of, thread_of
from segments import entries_of, some, write_file
from stopped import child_of, die_at, status_of
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import garbage
from streamkeep.engine.archive.erase import erase_segments, remove_leftovers
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.checkpoint.checkpoint import Hold
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables.manifest import erased_ids
from streamkeep.engine.tables.segment_files import open_segment
from streamkeep.engine.whole_store import erase
from streamkeep.engine.whole_store.scrub import is_unfinished
from streamkeep.format.core import errors
from streamkeep.format.core.keys import RETIRED
from streamkeep.format.segment.manifest import REWRITTEN
from streamkeep.format.segment.segment import Segment
from tiers import slow_but


@pytest.fixture(params=slow_but(["retired", "segments", "both", "dictionary"], "both"))
def trimmed(request: pytest.FixtureRequest, open_store: Open) -> Store:
    """A store whose stream archives: 1-0 to 3000-0 trimmed, 3001-0 and more live.

    Every 100th entry holds the secret, and so do some field names.
    """
    store = open_store(sync="none")
    store.set_retention("k", archive=True)
    size = 40 if request.param == "dictionary" else 1
    fields = [
        entry(n, size=1 + n % 7) | ({SECRET: b"x"} if n % 700 == 0 else {})
        if n % 100 == 0
        else harmless(n) | {b"pad": b"common words of every entry, %d " % (n % 50) * size}
        for n in range(1, 4001)
    ]
    store.xadd_many("k", fields, [f"{n}-0" for n in range(1, 4001)])
    store.xgroup_create("k", "g", "0")
    store.xtrim("k", minid="1501-0", approximate=False)
    if request.param != "retired":
        store.archive()
    store.xtrim("k", minid="3001-0", approximate=False)
    if request.param in ("segments", "dictionary"):
        store.archive()
    return store


SECRETS = [f"{n}-0" for n in range(100, 4001, 100)]


def test_nothing_is_left_of_trimmed_entries_and_history_shows_the_others(trimmed: Store) -> None:
    before = trimmed.xrange("k", history=True)
    assert len(before) == 4000
    assert trimmed.erase("k", *SECRETS) == 40
    assert grep(trimmed.path) == []
    expected = [one for one in before if one.id.decode() not in SECRETS]
    assert trimmed.xrange("k", history=True) == expected
    trimmed.archive()
    trimmed.xtrim("k", maxlen=0, approximate=False)
    trimmed.archive()
    assert trimmed.xrange("k", history=True) == expected
    assert grep(trimmed.path) == []
    assert trimmed.erase("k", *SECRETS) == 0


def test_one_erased_entry_leaves_the_other_segments_as_they_are(trimmed: Store) -> None:
    trimmed.archive()
    before = {record.path for record in trimmed.archived_segments("k")}
    with patch.object(Segment, "block", autospec=True, side_effect=Segment.block) as block:
        assert trimmed.erase("k", "200-0", "4000-0") == 2
    assert len({call.args[0].where for call in block.call_args_list}) == 1  # nor reads them
    after = {record.path: record for record in trimmed.archived_segments("k")}
    assert len(before - after.keys()) == 1
    [new] = after.keys() - before
    assert after[new].erased == 1
    assert after[new].origin == REWRITTEN
    assert [problem for one in trimmed.verify_archive() for problem in one.problems] == []


def test_the_archive_of_a_deleted_stream_is_erased_by_its_key(trimmed: Store) -> None:
    trimmed.archive()
    trimmed.delete("k")
    trimmed.xadd("k", harmless(1), "5000-0")
    trimmed.archive()
    trimmed.erase("k", *SECRETS)
    assert grep(trimmed.path) == []


def test_a_segment_with_erased_entries_only_goes(open_store: Open) -> None:
    store = open_store(sync="none")
    store.set_retention("k", archive=True)
    ids = store.xadd_many("k", [entry(n) for n in range(500)])
    store.xtrim("k", maxlen=0, approximate=False)
    store.archive()
    assert len(list(store.archived_segments("k"))) == 1
    assert store.erase("k", *ids) == 500
    assert list(store.archived_segments("k")) == []
    assert grep(store.path) == []
    assert store.xrange("k", history=True) == []


@pytest.mark.slow
def test_reading_history_goes_on_while_entries_are_erased(trimmed: Store) -> None:
    trimmed.archive()
    expected = {one.id for one in trimmed.xrange("k", history=True)}
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                ids = [one.id for one in trimmed.xrange("k", history=True)]
                assert ids == sorted(ids, key=lambda one: int(one.split(b"-")[0]))
                assert expected - set(ids) <= {one.encode() for one in SECRETS}
        except BaseException as error:
            errors.append(error)

    thread = thread_of(read)
    for start in range(0, 40, 8):
        trimmed.erase("k", *SECRETS[start : start + 8])
    stop.set()
    thread.join()
    assert errors == []
    assert grep(trimmed.path) == []


# Another process that erases when it is told to, and is killed as soon as it rewrites a segment.
OTHER: Final = """
import os, signal, sys, streamkeep
from streamkeep.engine.system import failpoints
store = streamkeep.open(sys.argv[1])
store.xadd("other", {"a": "b"})
print("ready", flush=True)
sys.stdin.readline()
failpoints.arm("segment:begun", lambda: os.kill(os.getpid(), signal.SIGKILL))
store.erase("k", *sys.argv[2:])
"""


@pytest.mark.crash
@pytest.mark.parametrize("moment", ["before the scrub", "after its begin"])
def test_an_erasure_finishes_another_that_was_killed_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It must not remove the mark by which the next erasure would find that one."""
    monkeypatch.setattr(erase, "_STEP", 1)
    with streamkeep.open(path) as store:
        store.set_retention("k", archive=True)
        fields = [entry(n) if n % 100 == 0 else harmless(n) for n in range(1, 1001)]
        store.xadd_many("k", fields, [f"{n}-0" for n in range(1, 1001)])
        store.xtrim("k", minid="801-0", approximate=False)
        store.archive()
        ids = [f"{n}-0" for n in range(100, 1001, 100)]
        child = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(path), *ids[1::2]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert line_of(child) == b"ready\n"
        killed: list[int] = []

        def let_it_be_killed() -> None:
            if not killed:
                child.communicate(b"go\n", timeout=PATIENCE_S)
                killed.append(child.returncode)

        environment = environment_of(store)
        checkpoints = environment.checkpoints
        if moment == "before the scrub":
            failpoints.arm("erase:stored", let_it_be_killed)
        else:
            assert checkpoints is not None
            make_clean = checkpoints.make_clean

            def later() -> Hold:
                let_it_be_killed()
                return make_clean()

            monkeypatch.setattr(checkpoints, "make_clean", later)
        assert store.erase("k", *ids[::2]) == 5
        assert killed == [-signal.SIGKILL]
        if moment == "after its begin":  # its mark is still there
            assert run_read(store, is_unfinished)
            monkeypatch.undo()
            store.erase("k")
        assert not run_read(store, is_unfinished)
        assert grep(path) == []
    assert_sound(path)


@pytest.mark.crash
def test_no_archiver_that_is_killed_leaves_a_file_of_what_is_being_erased(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set_retention("k", archive=True)
    store.xadd_many("k", [entry(n) for n in range(1, 11)], [f"{n}-0" for n in range(1, 11)])
    ended: list[int] = []

    def archive() -> None:  # the first of this store
        die_at("archive:written", 1)
        with streamkeep.open(store.path) as other, suppress(errors.StoreLockedError):
            other.xtrim("k", maxlen=0, approximate=False)
            other.archive(wait=False)

    def then_archive(*args: Any) -> None:
        remove_leftovers(*args)
        ended.append(status_of(child_of(archive)))

    with monkeypatch.context() as patch:
        patch.setattr(erase, "remove_leftovers", then_archive)
        assert store.erase("k", *(f"{n}-0" for n in range(1, 11))) == 10
    assert ended == [0]
    assert list(store.path.glob("archive/*/*.seg")) == []


@pytest.mark.parametrize("key", ["k", "other"])
@pytest.mark.parametrize("there", [False, True])
def test_what_a_killed_adoption_has_left_is_found_and_erased(
    open_store: Open, tmp_path: Path, key: str, *, there: bool
) -> None:
    source, store = open_store("source"), open_store("target")
    source.set_retention("k", archive=True)
    source.xadd_many("k", [entry(n) for n in range(1, 100)], [f"{n}-0" for n in range(1, 100)])
    source.xtrim("k", maxlen=0, approximate=False)
    source.archive()
    list(source.export_segments(tmp_path / "out", "k"))
    if there:
        store.xadd(key, harmless(1), "500-0")
    failpoints.arm("adopt:copied", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        list(store.adopt_segments(tmp_path / "out", key=key))
    assert len(store.find_remains(key, {"city": "x"})) == 99
    assert store.erase(key, *(f"{n}-0" for n in range(2, 100))) == 0
    assert store.find_remains(key, {"city": "x"}) == [(1, 0)]
    [left] = store.path.rglob("*.seg")
    assert [one[:2] for one in entries_of(open_segment(left))] == [(1, 0)]
    list(store.adopt_segments(left, key=key))
    assert next(one.id for one in store.xrange(key, history=True)) == b"1-0"
    assert store.erase(key, "1-0") == 1
    assert list(store.path.rglob("*.seg")) == []


@pytest.mark.parametrize("key", ["k", "other"])
def test_an_erasure_fails_at_its_end_if_a_file_that_nothing_names_cannot_be_read(
    open_store: Open, tmp_path: Path, key: str
) -> None:
    store = open_store(node_max_entries=4)
    for one in ("k", "other"):
        store.set_retention(one, archive=True)
        store.xadd_many(one, [entry(n) for n in range(1, 9)], [f"{n}-0" for n in range(1, 9)])
        store.xtrim(one, maxlen=4, approximate=False)
    store.archive()
    [file] = store.path.glob("archive/*-k/*.seg")
    damaged = bytearray(file.read_bytes())
    damaged[50] ^= 1  # in a block: the index is sound
    store.drop_segments("k")
    file.with_name("9.seg").write_bytes(damaged)
    if key == "k":
        with pytest.raises(errors.CorruptionError, match="may hold what was to be erased"):
            store.erase(key, "1-0", "7-0")
        with pytest.raises(errors.CorruptionError, match="may hold what was to be erased"):
            store.find_remains(key, {"city": "x"})
    else:
        assert store.erase(key, "1-0", "7-0") == 2
    assert not run_read(store, is_unfinished)
    assert [one.id for one in store.xrange(key, "5", history=True)] == [b"5-0", b"6-0", b"8-0"]
    file.with_name("9.seg").rename(store.path / "archive" / "1-1.seg")
    (store.path / "archive" / "1-1.seg").write_bytes(damaged[:-9])  # nor has it an index
    with pytest.raises(errors.CorruptionError, match="may hold what was to be erased"):
        store.erase(key, "6-0")


def test_a_file_in_the_folder_of_another_stream_loses_what_was_erased_from_either(
    store: Store,
) -> None:
    for key in ("x", "y"):
        store.xadd(key, harmless(1), "9000-0")
    written = write_file(store.path / "archive", some(9), number=2, store_uuid=uuid_of(store))
    file = store.path / "archive" / written.path
    file.parent.rename(file.parent.with_name("1-x"))
    environment = environment_of(store)
    ids = [one[:2] for one in some(9)]
    with ArchiveLock(environment):
        erase_segments(environment, {1: ids[:1], 2: ids[2:3]}, None, [])
        garbage.remove_files(environment)
    [left] = store.path.glob("archive/1-*/*.seg")
    assert [one[:2] for one in entries_of(open_segment(left))] == [ids[1], *ids[3:]]
    erased = [run_read(store, erased_ids, number, (0, 0), ids[-1]) for number in (1, 2)]
    assert erased == [{ids[0]}, {ids[2]}]


@pytest.mark.parametrize("replaced", [False, True])
def test_what_waits_of_a_deleted_stream_is_erased(open_store: Open, *, replaced: bool) -> None:
    store = open_store(sync="commit")
    store.set_retention("k", archive=True)
    ids = [f"{n}-0" for n in range(1, 200)]
    store.xadd_many("k", [entry(n) for n in range(1, 200)], ids)
    store.xtrim("k", maxlen=50, approximate=False)
    dumped = store.dump("k")
    assert dumped is not None
    if replaced:
        store.restore("k", 0, dumped, replace=True)
    else:
        store.delete("k")
    store.erase("k", *ids)
    store.archive()
    assert grep(store.path) == []


def test_what_waits_of_a_renamed_stream_has_its_last_name(open_store: Open) -> None:
    store = open_store(sync="commit")
    store.set_retention("old", archive=True)
    ids = [f"{n}-0" for n in range(1, 100)]
    store.xadd_many("old", [entry(n) for n in range(1, 100)], ids)
    store.rename("old", "k")
    store.xtrim("k", maxlen=10, approximate=False)
    store.delete("k")
    store.erase("k", *ids)
    store.archive()
    assert grep(store.path) == []


def test_the_archive_of_a_renamed_stream_is_its_own(open_store: Open) -> None:
    """Its segments still name the key they were written under, which another stream has now."""
    store = open_store(node_max_entries=10)
    store.set_retention("k", archive=True)
    store.xadd_many("k", [harmless(n) for n in range(1, 100)], [f"{n}-0" for n in range(1, 100)])
    store.xtrim("k", maxlen=50, approximate=False)
    assert store.archive().segments == 1
    store.rename("k", "renamed")
    store.xadd("k", harmless(0), "1-0")
    assert store.erase("k", "1-0") == 1
    assert len(store.xrange("renamed", history=True)) == 99
    assert store.erase("renamed", "1-0") == 1
    assert len(store.xrange("renamed", history=True)) == 98


@pytest.mark.parametrize("key", ["old", "k"])
def test_the_archive_of_a_renamed_and_deleted_stream_is_erased_by_each_key(
    open_store: Open, key: str
) -> None:
    store = open_store(node_max_entries=10)
    store.set_retention("old", archive=True)
    ids = [f"{n}-0" for n in range(1, 100)]
    store.xadd_many("old", [entry(n) for n in range(1, 100)], ids)
    store.xtrim("old", maxlen=10, approximate=False)
    store.archive()
    store.rename("old", "k")
    store.delete("k")
    store.archive()
    assert [one.key for one in store.archived_streams()] == [b"k"]
    assert store.erase(key, *ids) == 89
    assert grep(store.path) == []
    assert list(store.archived_segments()) == []
    with store.snapshot() as snapshot:
        assert snapshot.txn.rows(RETIRED) == 0  # nor its name


def test_an_erasure_says_where_the_entries_of_a_renamed_stream_are(
    open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(node_max_entries=10)
    store.set_retention("old", archive=True)
    store.xadd_many("old", [entry(n) for n in range(1, 100)], [f"{n}-0" for n in range(1, 100)])
    store.xtrim("old", maxlen=10, approximate=False)
    store.archive()
    store.rename("old", "k")
    assert store.erase("old", "1-0") == 0
    assert "archived as b'old' is now b'k'" in caplog.text
    caplog.clear()
    assert store.erase("k", "1-0") == 1
    assert caplog.text == ""
    store.erase("between", "1-0")
    assert "no stream is known that has or had the key b'between'" in caplog.text
