"""A reader of history sees each entry once while segments are made, rewritten and dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import streamkeep
from inside import environment_of, segment_files_of
from stores import Open
from streamkeep.engine.api import read_commands
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.engine.commands import history
from streamkeep.engine.whole_store import erase as erasing
from streamkeep.format.core.errors import (
    ArgumentError,
    ErasureBlockedError,
    MissingSegmentError,
    StaleSnapshotError,
)

COUNT = 400
SMALL = ArchiveOptions(target_bytes=3000, block_bytes=1000)


def ids_from(first: int, last: int) -> list[bytes]:
    return [b"%d-0" % number for number in range(first, last + 1)]


@pytest.fixture
def archived(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of which 1 to 200 are in segments, 201 to 300 retired, the rest live."""
    store = open_store(node_max_entries=10, node_max_bytes=0)
    monkeypatch.setattr(read_commands, "_SCAN_BATCH", 30)
    store.set_retention("s", archive=True)
    for number in range(1, COUNT + 1):
        store.xadd("s", {"n": number, "pad": "x" * 60}, id=f"{number}-0")
    store.xtrim("s", minid="201", approximate=False)
    store.archive(options=SMALL)
    assert len(store.archived_segments("s")) > 3
    store.xtrim("s", minid="301", approximate=False)
    return store


def forget_files(store: Store) -> None:
    """Make the store open files again, as another process does."""
    segment_files_of(store).close()


def erase(store: Store, *numbers: int) -> None:
    with suppress(ErasureBlockedError):  # by then segments are rewritten
        store.erase("s", *(f"{number}-0" for number in numbers), timeout=0)
    forget_files(store)


def drop(store: Store, before: int) -> list[Any]:
    dropped = store.drop_segments("s", before=before)
    assert dropped
    forget_files(store)
    return dropped


def archive(store: Store) -> None:
    store.archive(options=SMALL)
    forget_files(store)


READERS: dict[str, Callable[[Store], Iterator[Any]]] = {
    "scan": lambda store: store.scan("s", history=True),
    "follow": lambda store: store.follow("s", 0, count=30, history=True, block=None),
    "view": lambda store: store.using(sync="none").scan("s", history=True),
}


@pytest.mark.parametrize("whole", [True, False])
def test_a_read_in_small_steps_always_gets_on(archived: Store, whole: bool) -> None:
    """The step after a node that is larger than a step does not begin with that node again."""
    start: Any = (0, 0)
    keys: list[tuple[int, int]] = []
    while start is not None:
        nodes, following = environment_of(archived).read(
            history.copy_range, b"s", start, (COUNT, 0), 1, whole
        )
        keys += [(ms, seq) for ms, seq, _ in nodes]
        assert following is None or following > start
        start = following
    assert keys == sorted(set(keys))
    assert keys[0] == ((1, 0) if whole else (301, 0))


def test_a_search_in_small_steps_always_gets_on(
    archived: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_STEP_BYTES", 1)
    ids = archived.find_remains("s", {"n": ["1", "201", "250", "301", "400"]})
    assert [one.ms for one in ids] == [1, 201, 250, 301, 400]


@pytest.mark.parametrize("reader", READERS)
def test_an_iterator_goes_on_while_segments_are_rewritten(archived: Store, reader: str) -> None:
    entries = READERS[reader](archived)
    seen = [bytes(next(entries).id) for _ in range(30)]
    erase(archived, 10, 100, 150, 250, 350)
    seen += [bytes(next(entries).id) for _ in range(90)]
    archive(archived)
    erase(archived, 20, 119, 260)
    archived.xtrim("s", minid="381", approximate=False)
    archive(archived)
    seen += [bytes(entry.id) for entry in entries]
    gone = {b"100-0", b"150-0", b"250-0", b"260-0", b"350-0"}
    assert seen == [one for one in ids_from(1, COUNT) if one not in gone]


@pytest.mark.parametrize("reader", READERS)
def test_an_iterator_goes_on_behind_what_was_dropped(archived: Store, reader: str) -> None:
    entries = READERS[reader](archived)
    seen = [bytes(next(entries).id) for _ in range(30)]
    last = drop(archived, 150)[-1].last_ms
    seen += [bytes(entry.id) for entry in entries]
    assert 30 < last < 150
    assert seen == ids_from(1, 30) + ids_from(last + 1, COUNT)


def test_an_iterator_backwards_ends_where_the_rest_was_dropped(archived: Store) -> None:
    entries = archived.scan("s", reverse=True, history=True)
    seen = [bytes(next(entries).id) for _ in range(210)]
    erase(archived, 180, 80)
    last = drop(archived, 60)[-1].last_ms
    archive(archived)
    seen += [bytes(entry.id) for entry in entries]
    expected = [one for one in ids_from(last + 1, COUNT) if one not in (b"180-0", b"80-0")]
    assert seen == expected[::-1]


def test_a_read_goes_on_when_its_file_is_removed_in_the_middle(
    archived: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is read, and the file is opened after another process has removed it."""
    segments = segment_files_of(archived)
    real = segments.open
    steps: list[Callable[[], object]] = [
        lambda: erase(archived, 30),
        lambda: drop(archived, 60),
        lambda: archive(archived),
    ]

    def interrupted(record: Any) -> Any:
        if steps and record.first_ms < 200:
            monkeypatch.setattr(segments, "open", real)
            steps.pop(0)()
            monkeypatch.setattr(segments, "open", interrupted)
        return real(record)

    monkeypatch.setattr(segments, "open", interrupted)
    found = archived.xrange("s", history=True)
    assert steps == []
    first = archived.archived_segments("s")[0].first_ms
    assert [entry.id for entry in found] == ids_from(first, COUNT)
    assert [entry.id for entry in archived.xrange("s", count=3, history=True)] == ids_from(
        first, first + 2
    )


@pytest.mark.parametrize("how", ["erased", "dropped"])
def test_a_snapshot_says_that_its_segments_are_gone(archived: Store, how: str) -> None:
    forget_files(archived)
    with archived.snapshot() as snapshot:
        entries = snapshot.scan("s", history=True)
        seen = [bytes(next(entries).id) for _ in range(30)]
        assert seen == ids_from(1, 30)
        if how == "erased":
            erase(archived, 100)
        else:
            drop(archived, 150)
        with pytest.raises(StaleSnapshotError, match="dropped or rewritten since this snapshot"):
            list(entries)
        with pytest.raises(StaleSnapshotError, match="take a new one, or read from the store"):
            snapshot.xrange("s", history=True)
        with pytest.raises(streamkeep.StoreError):
            snapshot.xrevrange("s", 110, 90, history=True)
        # What is retired or live is as it was, and so are segments that nobody touched.
        assert [entry.id for entry in snapshot.xrange("s", 190, history=True)] == ids_from(
            190, COUNT
        )
        assert len(snapshot.xrange("s")) == 100
    with archived.snapshot() as snapshot:
        assert [entry.id for entry in snapshot.xrange("s", history=True)] == [
            entry.id for entry in archived.xrange("s", history=True)
        ]
    archived.erase("s")


def test_a_snapshot_shows_what_is_archived_meanwhile_as_it_was(archived: Store) -> None:
    with archived.snapshot() as snapshot:
        archived.xtrim("s", maxlen=0, approximate=False)
        archive(archived)
        archived.xadd("s", {"n": "more"}, id="500-0")
        assert [entry.id for entry in snapshot.xrange("s", history=True)] == ids_from(1, COUNT)
        assert [bytes(entry.id) for entry in snapshot.scan("s", history=True)] == ids_from(1, COUNT)
        assert snapshot.xlen("s") == 100


def test_a_file_that_is_missing_is_an_error_for_everybody(archived: Store) -> None:
    one = archived.archived_segments("s")[1]
    path = archived.segment_path(one)
    forget_files(archived)
    away = path.rename(path.with_suffix(".away"))
    readers: list[Callable[[], object]] = [
        lambda: archived.xrange("s", history=True),
        lambda: archived.xrevrange("s", history=True),
        *(lambda reader=reader: list(reader(archived)) for reader in READERS.values()),
    ]
    with archived.snapshot() as snapshot:
        readers.append(lambda: snapshot.xrange("s", history=True))
        for read in readers:
            with pytest.raises(MissingSegmentError, match="not there"):
                read()
    with archived.transaction() as txn, pytest.raises(MissingSegmentError, match="not there"):
        txn.xrange("s", history=True)
    pipe = archived.pipeline()
    pipe.xadd("other", {"n": 1})
    pipe.xrange("s", history=True)
    with pytest.raises(MissingSegmentError):
        pipe.execute()
    assert archived.exists("other") == 0
    away.rename(path)
    assert [entry.id for entry in archived.xrange("s", history=True)] == ids_from(1, COUNT)


def test_a_transaction_reads_history_as_it_has_made_it(archived: Store) -> None:
    with archived.transaction() as txn:
        txn.xtrim("s", maxlen=10, approximate=False)
        txn.xadd("s", {"n": "new"}, id="500-0")
        txn.xdel("s", "395-0")
        expected = [one for one in [*ids_from(1, COUNT), b"500-0"] if one != b"395-0"]
        assert [entry.id for entry in txn.xrange("s", history=True)] == expected
        assert [bytes(entry.id) for entry in txn.scan("s", history=True)] == expected
    assert [entry.id for entry in archived.xrange("s", history=True)] == expected


@pytest.mark.parametrize("wrong", ["x", 1, None])
def test_what_is_not_a_segment_is_refused_with_its_name_and_value(
    archived: Store, wrong: Any
) -> None:
    shown = repr(wrong)
    for call in (archived.open_segment, archived.segment_path):
        with pytest.raises(ArgumentError, match=f"record must be one .*, not {shown}"):
            call(wrong)
