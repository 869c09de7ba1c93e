"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import assert_sound


@pytest.fixture
def sound_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory; every store in it must be sound when the test ends."""
    monkeypatch.chdir(tmp_path)
    yield
    for data in tmp_path.glob("*/data.mdb"):
        assert_sound(data.parent)
