"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import assert_sound


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, also of child processes."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sound_folder(tmp_path: Path) -> Iterator[None]:
    """Every store in the working directory must be sound when the test ends."""
    yield
    for data in tmp_path.glob("*/data.mdb"):
        assert_sound(data.parent)
