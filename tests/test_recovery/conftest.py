from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a test ships to; nothing is there yet."""
    return tmp_path / "target"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where it makes a standby; nothing is there yet."""
    return tmp_path / "standby"
