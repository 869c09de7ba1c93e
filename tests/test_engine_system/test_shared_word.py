"""Sleeping on a word of a file that processes share."""

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
from streamkeep.engine.system.shared_word import SharedWord

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
