"""A creation that was cut off, at any step and by any loss, begins again at the next opening."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import streamkeep
from crash.losses import killed_after
from crash.power import another_boot
from streamkeep import recovery
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import RecoveryNeededError
from tiers import slow_but

PAGE = 4096


def images(data: bytes) -> Iterator[bytes]:
    """Yield what a power loss may leave of a data file that was never synced."""
    for size in sorted({0, 1, 100, PAGE - 1, PAGE + 152, *range(0, len(data) + 1, PAGE)}):
        if size <= len(data):
            yield data[:size]
            yield bytes(size)
            yield data[:size].ljust(len(data), b"\0")
    for at in range(0, len(data), PAGE):
        yield data[:at] + bytes(PAGE) + data[at + PAGE :]
        yield bytes(at) + data[at : at + PAGE] + bytes(len(data) - at - PAGE)


def unfinished(folder: Path) -> Iterator[Path]:
    """Yield what a process leaves that is killed at each step of a creation, up to its point."""
    for step in range(1, 99):
        path = folder / f"step-{step}"
        assert killed_after(step, lambda path=path: streamkeep.open(path).close())  # type: ignore[misc]
        lock = CheckpointFile(Folder(path), readonly=True)
        slot = lock.newest()
        lock.close()
        if slot is not None:
            return
        yield path


@pytest.mark.parametrize("boot", slow_but([another_boot, nullcontext], another_boot))
def test_a_creation_that_was_cut_off_begins_again(
    tmp_path: Path, boot: Callable[[], AbstractContextManager[None]]
) -> None:
    seen: set[tuple[bool, bytes]] = set()
    for path in unfinished(tmp_path):
        data = path / DATA_FILE
        there = data.read_bytes() if data.exists() else b""
        for image in images(there):
            for locked in (True, False):  # LMDB's lock file is never synced
                if (locked, image) in seen:
                    continue
                seen.add((locked, image))
                assert_begins_again(path, tmp_path / "copy", image, locked, boot)
    assert len(seen) > 30


def assert_begins_again(
    source: Path,
    path: Path,
    image: bytes,
    locked: bool,
    boot: Callable[[], AbstractContextManager[None]],
) -> None:
    shutil.copytree(source, path)
    (path / DATA_FILE).write_bytes(image)
    if not locked:
        (path / "lock.mdb").unlink(missing_ok=True)
    with boot():
        with pytest.raises(RecoveryNeededError, match="creation was cut off"):
            streamkeep.open(path, readonly=True)
        with streamkeep.open(path) as store:
            assert store.xadd("s", {"f": "v"}, id="1-1") == b"1-1"
        with streamkeep.open(path, readonly=True) as store:
            assert store.xlen("s") == 1
        assert [str(one) for one in recovery.check(path)] == []
    shutil.rmtree(path)
