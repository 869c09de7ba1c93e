"""Files that processes share: blocks that stay, and a word of it to sleep on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from patience import PATIENCE_S
from stopped import child_of, status_of
from streamkeep.engine.system import files
from streamkeep.engine.system.shared_file import SharedFile, moves_blocks
from streamkeep.engine.system.shared_word import SharedWord


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


# --- sleeping on a word of a file that processes share --------------------------------------------

INDEX = 3


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.reserve(handle, 4096)
    yield handle
    os.close(handle)


def set_word(handle: int, value: int) -> None:
    files.write_at(handle, value.to_bytes(8, "little"), 8 * INDEX)


def test_who_sleeps_is_woken_by_another_process(handle: int) -> None:
    word = SharedWord(handle, INDEX)
    set_word(handle, 1 << 40 | 7)
    woken: list[int] = []

    def sleep(number: int) -> None:
        SharedWord(handle, INDEX).sleep(1 << 40 | 7, PATIENCE_S)
        woken.append(number)

    def wake() -> None:
        other = SharedWord(handle, INDEX)
        while True:
            other.wake()

    sleepers = [threading.Thread(target=sleep, args=(number,)) for number in range(2)]
    for thread in sleepers:
        thread.start()
    child = child_of(wake)
    for thread in sleepers:
        thread.join(PATIENCE_S)
    os.kill(child, 9)
    assert status_of(child) == -9
    assert sorted(woken) == [0, 1]
    word.close()
    word.close()


def test_nobody_sleeps_on_a_word_that_has_changed_or_beyond_the_limit(handle: int) -> None:
    word = SharedWord(handle, INDEX)
    set_word(handle, 7)
    word.sleep(6, PATIENCE_S)
    word.sleep(7, 0.001)
    word.close()


@pytest.mark.parametrize("lacks", ["the system call", "ctypes"])
def test_without_the_system_call_a_sleep_is_short(
    handle: int, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "ctypes":  # a Python without libffi
        monkeypatch.setitem(sys.modules, "ctypes", None)
    word = SharedWord(handle, INDEX)
    word._number = -1
    set_word(handle, 7)
    word.sleep(7, PATIENCE_S)
    word.wake()
    word.close()
