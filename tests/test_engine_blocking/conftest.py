"""Fixtures of the tests of calls that wait."""

from __future__ import annotations

import pytest

from streamkeep.engine.blocking import waiters


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a lost wake-up a failure: no reader looks again after a second."""
    monkeypatch.setattr(waiters, "FALLBACK_S", 3600.0)
