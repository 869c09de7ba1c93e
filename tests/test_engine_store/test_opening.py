"""Opening a store: what is refused before anything is written; LMDB that refuses later."""

from __future__ import annotations

import logging
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import lmdb
import pytest

import streamkeep
from crash.power import another_boot, copy_store
from inside import environment_of
from patience import wait_until
from raw_store import raw_store
from stopped import child_of, die, status_of
from streamkeep import Store, StoreError, recovery
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.store import ending, meta, place
from streamkeep.engine.store.meta import META_FORMAT
from streamkeep.engine.store.registry import registry
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.keys import META
from streamkeep.format.rows import records
from streamkeep.format.rows.records import encode_number
from streamkeep.jobs import Queue
from tiers import slow_but

NEWER = 99


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of a newer format that a power loss has left in the middle of its use."""
    with monkeypatch.context() as patch:
        patch.setattr(records, "STORE_VERSION", NEWER)
        with streamkeep.open(tmp_path / "in use") as store:
            store.xadd_many("s", [{"f": str(n)} for n in range(100)])
            copy_store(tmp_path / "in use", tmp_path / "torn")
    return tmp_path / "torn"


def contents(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


@pytest.mark.parametrize("readonly", [False, True])
def test_a_torn_store_of_a_newer_format_is_refused_by_its_number_and_unchanged(
    torn: Path, readonly: bool
) -> None:
    before = contents(torn)
    with (
        another_boot(),
        pytest.raises(streamkeep.FormatVersionError, match=f"store format {NEWER}.*upgrade"),
    ):
        streamkeep.open(torn, readonly=readonly)
    assert contents(torn) == before


@pytest.mark.parametrize("torn", [False, True])
def test_a_store_that_names_no_format_is_refused_and_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    path = tmp_path / "in use"
    with monkeypatch.context() as patch:
        patch.setattr(meta, "META_FORMAT", b"another_name")
        with streamkeep.open(path) as store:
            store.xadd_many("s", [{"f": str(n)} for n in range(100)])
            copy_store(path, tmp_path / "torn")
    path = tmp_path / "torn" if torn else path
    before = contents(path)
    calls: list[Callable[[], object]] = [
        lambda: streamkeep.open(path),
        lambda: streamkeep.open(path, readonly=True),
        lambda: recovery.compact(path),
        lambda: recovery.backup(path, tmp_path / "copy"),
    ]
    with another_boot() if torn else nullcontext():
        for call in calls:
            with pytest.raises(streamkeep.NotAStoreError, match="names no store format; next"):
                call()
    assert contents(path) == before


@pytest.mark.parametrize(
    ("version", "problem"), [(0, r"store format 0, but .* format 1$"), (NEWER, "upgrade")]
)
def test_a_store_of_another_format_is_refused_by_its_number_and_unchanged(
    path: Path, version: int, problem: str
) -> None:
    streamkeep.open(path).close()
    with raw_store(path) as raw:
        raw.put(META, META_FORMAT, encode_number(version))
    before = contents(path)
    with pytest.raises(streamkeep.FormatVersionError, match=problem):
        streamkeep.open(path)
    assert contents(path) == before


def test_a_torn_store_whose_version_cannot_be_read_is_reported_as_damaged(torn: Path) -> None:
    data = bytearray((torn / "data.mdb").read_bytes())
    data[2 * 4096 :] = bytes(len(data) - 2 * 4096)
    (torn / "data.mdb").write_bytes(bytes(data))
    before = contents(torn)
    with another_boot(), pytest.raises(streamkeep.CorruptionError, match="streamkeep repair"):
        streamkeep.open(torn)
    assert contents(torn) == before


@contextmanager
def waiting_opening(path: Path, *, create: bool) -> Iterator[Future[streamkeep.Store[bytes]]]:
    """A thread that waits for the lock of the store at `path`; the block removes the store."""
    streamkeep.open(path).close()
    lock = CheckpointFile(Folder(path), readonly=False)
    assert lock.try_exclusive()
    with ThreadPoolExecutor(1) as pool:
        try:
            opening = pool.submit(streamkeep.open, path, create=create)
            wait_until(lambda: any(one.lock is not None for one in registry.openings))
            yield opening
        finally:
            lock.close()


def test_a_process_that_waits_for_a_store_that_is_removed_reports_that_there_is_none(
    path: Path,
) -> None:
    with waiting_opening(path, create=False) as opening:
        shutil.rmtree(path)
    with pytest.raises(streamkeep.NotAStoreError, match="no such store"):
        opening.result()
    assert not path.exists()


def test_a_process_that_waits_for_a_store_that_is_removed_may_create_it_again(path: Path) -> None:
    with waiting_opening(path, create=True) as opening:
        shutil.rmtree(path)
    with opening.result() as store:
        assert store.xadd("s", {"f": "v"})
    with streamkeep.open(path, create=False) as store:
        assert store.xlen("s") == 1


def test_a_store_that_another_process_creates_meanwhile_is_not_taken_for_a_damaged_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamkeep.open(tmp_path / "made").close()
    path.mkdir()
    create = partial(shutil.copytree, tmp_path / "made", path, dirs_exist_ok=True)
    monkeypatch.setattr(place, "_has_checkpoint", lambda folder: create())
    streamkeep.open(path).close()


def test_a_read_only_opening_of_an_empty_data_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").touch()
    with pytest.raises(streamkeep.NotAStoreError, match=r"data\.mdb is empty.*for writing"):
        streamkeep.open(tmp_path, readonly=True)
    assert [one.name for one in tmp_path.iterdir()] == ["data.mdb"]


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_of_a_system_with_other_pages_is_refused_and_unchanged(
    path: Path, readonly: bool
) -> None:
    """As a kernel for arm64 with pages of 16 KiB makes it."""
    with streamkeep.open(path) as store:
        store.xadd("s", {"f": "v"})
    data = bytearray((path / "data.mdb").read_bytes())
    at = data.index(struct.pack("<I", PAGE), 0, 256)  # in the meta page, of the machine's order
    second = PAGE + at
    for start in (at, second):
        assert data[start : start + 4] == struct.pack("<I", PAGE)
        data[start : start + 4] = struct.pack("<I", 4 * PAGE)
    data[4 * PAGE : 5 * PAGE] = data[PAGE : 2 * PAGE]
    (path / "data.mdb").write_bytes(data)
    before = contents(path)
    told = f"made with pages of {4 * PAGE:,} bytes, but this system has pages of {PAGE:,}; next: "
    with pytest.raises(streamkeep.StoreError, match=told):
        streamkeep.open(path, readonly=readonly)
    assert contents(path) == before


@pytest.fixture(scope="module")
def used_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store that a process has used until it closed it, and one until it was killed."""
    stores = {end: tmp_path_factory.mktemp("used") / end for end in ("closed", "killed")}
    for end, path in stores.items():
        child = child_of(partial(use, path, killed=end == "killed"))
        assert status_of(child) == (-signal.SIGKILL if end == "killed" else 0)
    return stores


def use(path: Path, *, killed: bool) -> None:
    store = streamkeep.open(path)
    for n in range(5):
        store.xadd("s", {"n": n})
    queue = Queue(store)
    queue.put(1)
    queue.get(timeout=0)
    if killed:
        die()
    store.close()


@pytest.fixture(params=["closed", "killed"])
def used(request: pytest.FixtureRequest, used_stores: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(used_stores[request.param], tmp_path / "store", copy_function=copy)
    return tmp_path / "store"


def copy(file: str, target: str) -> None:
    """Copy a file of a store; none of the pipes, which belong to processes."""
    if Path(file).is_file():
        shutil.copy2(file, target)


@pytest.mark.parametrize(
    "name", ["journal/head", "journal/write", "waiters/board", "steady", "lock.mdb", "leases/*"]
)
def test_bytes_after_the_end_of_a_shared_file_change_nothing(used: Path, name: str) -> None:
    for file in used.glob(name):
        with file.open("ab") as out:
            out.write(b"\1\2")
    for _ in range(2):
        with streamkeep.open(used) as store:
            assert store.xlen("s") == 5
            found = store.durability().last_recovery
            assert found is None or found.lost == 0
    with streamkeep.open(used, readonly=True) as store:
        assert store.xlen("s") == 5


@pytest.mark.parametrize(
    "name", ["copy of 000000000001.skj", "-1.skj", "1.skj", "004294967296.skj", f"{'9' * 40}.skj"]
)
@pytest.mark.parametrize("copied", [False, True])
def test_files_that_somebody_put_beside_those_of_the_journal_are_ignored(
    used: Path, name: str, copied: bool
) -> None:
    (first, *_) = sorted((used / "journal").glob("0*.skj"))
    stray = used / "journal" / name
    stray.write_bytes(first.read_bytes() if copied else b"x")
    for n in range(3):
        with streamkeep.open(used, sync="commit") as store:
            assert store.xlen("s") == 5 + n
            store.xadd("s", {"n": str(n)})
    assert [str(one) for one in recovery.check(used)] == []


# --- LMDB is opened again by itself after a commit that it could not finish -----------------------

# LMDB then refuses every transaction of its environment. `tests/crash/test_real_disks.py` fills the
# disks on which that happens; here, the environment is replaced by one that refuses.

_OTHER = """
import sys, streamkeep
with streamkeep.open(sys.argv[1]) as store:
    for n in range(int(sys.argv[2])):
        store.xadd("other", {"n": n})
"""


class Panicked:
    """An environment of LMDB after a commit that it could not finish."""

    def __init__(self, raw: lmdb.Environment) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def begin(self, *args: object, **options: object) -> NoReturn:
        raise lmdb.PanicError("mdb_txn_begin")


def panic(store: Store[Any]) -> None:
    context = environment_of(store).context
    context.use(Panicked(context.raw), context.tables)  # type: ignore[arg-type]


COMMANDS: dict[str, Callable[[Store[Any]], object]] = {
    "append": lambda store: store.xadd("s", {"n": "1"}),
    "read": lambda store: store.xlen("s"),
    "group": lambda store: store.xreadgroup("g", "c", {"s": ">"}, count=1),
    "pipeline": lambda store: store.pipeline().xadd("s", {"n": "1"}).xlen("s").execute(),
    "snapshot": lambda store: store.snapshot().close(),
    "sync": lambda store: store.sync(),
    "archive": lambda store: store.archive(),
    "durability": lambda store: store.durability(),
}


@pytest.mark.parametrize("sync", slow_but(["none", "interval", "commit"], "commit"))
@pytest.mark.parametrize("name", COMMANDS)
def test_each_call_opens_it_again_and_answers(
    tmp_path: Path, name: str, sync: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path / "store", sync=sync) as store:  # type: ignore[arg-type]
        acknowledged = [store.xadd("s", {"n": str(n)}) for n in range(20)]
        store.xgroup_create("s", "g", id="0")
        panic(store)
        with caplog.at_level(logging.WARNING, "streamkeep"):
            COMMANDS[name](store)
        assert "opened again" in caplog.text
        assert [entry.id for entry in store.xrange("s")][:20] == acknowledged
        last = store.xadd("s", {"n": "last"})
    with Store(tmp_path / "store") as store:
        assert [entry.id for entry in store.xrevrange("s", count=1)] == [last]


def test_other_processes_write_in_the_meantime(path: Path) -> None:
    with Store(path) as store:
        for n in range(20):
            store.xadd("s", {"n": str(n)})
        panic(store)
        subprocess.run([sys.executable, "-c", _OTHER, str(path), "30"], check=True)
        store.xadd("s", {"n": "20"})
        panic(store)
        assert (store.xlen("s"), store.xlen("other")) == (21, 30)
        subprocess.run([sys.executable, "-c", _OTHER, str(path), "30"], check=True)
        assert store.xlen("other") == 60


def test_an_open_snapshot_prevents_it_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "READERS_WAIT_S", 0.01)
    with Store(tmp_path / "store") as store:
        store.xadd("s", {"n": "1"})
        with store.snapshot() as snapshot:
            panic(store)
            with pytest.raises(StoreError, match="opened again, which open snapshots"):
                store.xadd("s", {"n": "2"})
            assert snapshot.xlen("s") == 1
        store.xadd("s", {"n": "3"})
        assert store.xlen("s") == 2


def test_an_opening_that_fails_is_tried_again_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path / "store") as store:
        added = store.xadd("s", {"n": "1"})
        environment = environment_of(store)
        panic(store)
        with monkeypatch.context() as broken:
            broken.setattr(
                environment, "_open_lmdb", Mock(side_effect=OSError(24, "Too many open files"))
            )
            for _ in range(2):
                with pytest.raises(StoreError, match="as many files open"):
                    store.xlen("s")
                with pytest.raises(StoreError, match="as many files open"):
                    store.xadd("s", {"n": "2"})
        assert [entry.id for entry in store.xrange("s")] == [added]
        store.xadd("s", {"n": "3"})
    with Store(tmp_path / "store") as store:
        assert store.xlen("s") == 2
