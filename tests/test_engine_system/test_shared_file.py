"""Files that processes share: blocks that stay, and a word of it to sleep on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamkeep.engine.system.shared_file import SharedFile, moves_blocks


def test_what_one_process_writes_another_sees(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    one, other = (os.open(path, os.O_RDWR) for _ in range(2))
    writer, reader = SharedFile(one), SharedFile(other)
    writer.write(100, b"some bytes")
    writer.set_word(511, (1 << 64) - 2)
    assert reader.data[100:110] == b"some bytes"
    assert memoryview(reader.data).cast("Q")[511] == (1 << 64) - 2
    assert path.read_bytes() == reader.data[:]
    for shared in (writer, reader):
        shared.close()
        os.close(shared.handle)


def test_only_file_systems_that_overwrite_in_place_are_written_through_a_map() -> None:
    """Of an unknown file system, and of the one of /proc, the worse is assumed."""
    shared_memory = Path("/dev/shm")
    if not os.path.ismount(shared_memory):
        pytest.skip("there is no file system in memory here")
    for path, moves in ((shared_memory, False), (Path("/proc"), True)):
        handle = os.open(path, os.O_RDONLY)
        assert moves_blocks(handle) == moves, path
        os.close(handle)
