"""Following streams into other places."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from spark.in_process import LOCAL
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.jobs.tail import TailError, append_batch, tail
from streamkeep.pipeline.lake.files import LakeConflictError
from streamkeep.pipeline.sink.identity import Batch
from streamkeep.pipeline.storage.places import StorageError

FRAME = LOCAL.createDataFrame(pa.table({"n": [1, 2]}))  # a batch of two rows


def append(folder: Path, number: int, plan: int = 1 << 63, rows: Any = FRAME) -> None:
    append_batch(str(folder / "delta"), rows, Batch("query", number, plan))


def files_of(folder: Path) -> set[Path]:
    return set((folder / "delta").glob("*.parquet"))


def rows_of(folder: Path) -> int:
    return int(DeltaTable(folder / "delta").to_pyarrow_table().num_rows)


def test_a_batch_that_comes_again_is_not_written_again(tmp_path: Path) -> None:
    for number in (0, 0, 1, 1):
        append(tmp_path, number)
    assert rows_of(tmp_path) == 4
    assert len(files_of(tmp_path)) == len(DeltaTable(tmp_path / "delta").file_uris())
    for again in ((0,), (1, 7)):  # an older one, and the newest one with another plan
        with pytest.raises(TailError, match="up to batch 1: it was set back"):
            append(tmp_path, *again)
    with pytest.raises(TailError, match="batch 3 comes, but the batches from 2 on are missing"):
        append(tmp_path, 3)
    files = files_of(tmp_path)
    with pytest.MonkeyPatch.context() as patch:  # a storage that confirms what it loses
        patch.setattr(DeltaTable, "create_write_transaction", lambda *args, **options: None)
        with pytest.raises(StorageError, match="has confirmed a commit, and does not have it"):
            append(tmp_path, 2)
    assert files_of(tmp_path) > files  # the commit may be shown later
    append(tmp_path, 2)
    append(tmp_path, 3, rows=LOCAL.createDataFrame(pa.table({"n": pa.array([], pa.int64())})))
    append(tmp_path, 4)
    assert rows_of(tmp_path) == 8


@pytest.mark.parametrize("error", [DeltaError("timed out"), OSError("timed out")])
def test_a_commit_that_a_storage_shows_later_has_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    append(tmp_path, 0)
    late: list[Callable[[], None]] = []
    plain = DeltaTable.create_write_transaction

    def unanswered(*args: Any, **options: Any) -> None:
        late.append(lambda: plain(*args, **options))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", unanswered)
        with pytest.raises(
            StorageError, match=r"batch 1 was committed \(timed out\); its files stay"
        ):
            append(tmp_path, 1)
    late[0]()
    append(tmp_path, 1)
    assert rows_of(tmp_path) == 4


def test_a_disk_that_takes_no_commit_has_not_refused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta Lake raises another error than for a refused commit, so the files stay."""
    append(tmp_path, 0)
    files = files_of(tmp_path)
    plain = DeltaTable.create_write_transaction

    def on_a_full_disk(*args: Any, **options: Any) -> None:
        most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            plain(*args, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", on_a_full_disk)
        with pytest.raises(StorageError, match=r"1 was committed \(.*: File too large .*\); its"):
            append(tmp_path, 1)
    assert files_of(tmp_path) > files
    append(tmp_path, 1)
    assert rows_of(tmp_path) == 4


def test_a_commit_that_is_refused_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0)
    files = files_of(tmp_path)
    plain = DeltaTable.create_write_transaction

    def other_first(*args: Any, **options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", plain)
            append(tmp_path, 1)
        files.update(
            (tmp_path / "delta" / one.rpartition("/")[2])
            for one in DeltaTable(tmp_path / "delta").file_uris()
        )
        plain(*args, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", other_first)
    with pytest.raises(LakeConflictError):
        append(tmp_path, 1)
    assert files_of(tmp_path) == files
    assert rows_of(tmp_path) == 4


@pytest.mark.parametrize("by", [None, ["n"]])
def test_a_table_of_something_else_is_refused(tmp_path: Path, by: list[str] | None) -> None:
    """Rows would lose the columns that it lacks; a lake could not be opened any more."""
    write_deltalake(tmp_path / "delta", pa.table({"n": [7], "m": [8]}), partition_by=by)
    rows = FRAME if by else LOCAL.createDataFrame(pa.table({"n": [1], "of": [2]}))
    with pytest.raises(TailError, match="a Delta table of something else, with the columns n, m"):
        append(tmp_path, 0, rows=rows)
    assert rows_of(tmp_path) == 1


def test_targets_are_checked(orders: Store[bytes]) -> None:
    with pytest.raises(TailError, match="no target 'kafka', expected one of console"):
        tail(LOCAL, str(orders.path), "kafka")
    with pytest.raises(TailError, match="the target delta needs a path"):
        tail(LOCAL, str(orders.path), "delta")
