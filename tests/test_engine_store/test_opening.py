"""Opening a store: what is refused before anything is written, and a store that is removed."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import streamkeep
from crash.power import another_boot, copy_store
from patience import wait_until
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.crash_recovery import stored_version
from streamkeep.engine.store import meta
from streamkeep.engine.store.registry import registry
from streamkeep.engine.system.pages import PAGE
from streamkeep.engine.system.safe_files import Folder

NEWER = 99


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of a newer format that a power loss has left in the middle of its use."""
    with monkeypatch.context() as patch:
        patch.setattr(meta, "STORE_VERSION", NEWER)
        patch.setattr(stored_version, "STORE_VERSION", NEWER)
        with streamkeep.open(tmp_path / "in use") as store:
            store.xadd_many("s", [{"f": str(n)} for n in range(100)])
            copy_store(tmp_path / "in use", tmp_path / "torn")
    return tmp_path / "torn"


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a store."""
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
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    with waiting_opening(path, create=False) as opening:
        shutil.rmtree(path)
    with pytest.raises(streamkeep.NotAStoreError, match="no such store"):
        opening.result()
    assert not path.exists()


def test_a_process_that_waits_for_a_store_that_is_removed_may_create_it_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    with waiting_opening(path, create=True) as opening:
        shutil.rmtree(path)
    with opening.result() as store:
        assert store.xadd("s", {"f": "v"})
    with streamkeep.open(path, create=False) as store:
        assert store.xlen("s") == 1


def test_a_read_only_opening_of_an_empty_data_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").touch()
    with pytest.raises(streamkeep.NotAStoreError, match=r"data\.mdb is empty.*for writing"):
        streamkeep.open(tmp_path, readonly=True)
    assert [one.name for one in tmp_path.iterdir()] == ["data.mdb"]


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_of_a_system_with_other_pages_is_refused_and_unchanged(
    tmp_path: Path, readonly: bool
) -> None:
    """As a kernel for arm64 with pages of 16 KiB makes it."""
    path = tmp_path / "store"
    with streamkeep.open(path) as store:
        store.xadd("s", {"f": "v"})
    data = bytearray((path / "data.mdb").read_bytes())
    at = data.index(struct.pack("<I", PAGE), 0, 256)  # in the meta page, of the machine's order
    second = PAGE + at
    for place in (at, second):
        assert data[place : place + 4] == struct.pack("<I", PAGE)
        data[place : place + 4] = struct.pack("<I", 4 * PAGE)
    data[4 * PAGE : 5 * PAGE] = data[PAGE : 2 * PAGE]
    (path / "data.mdb").write_bytes(data)
    before = contents(path)
    told = f"made with pages of {4 * PAGE:,} bytes, but this system has pages of {PAGE:,}; next: "
    with pytest.raises(streamkeep.StoreError, match=told):
        streamkeep.open(path, readonly=readonly)
    assert contents(path) == before
