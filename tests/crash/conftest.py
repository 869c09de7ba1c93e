"""The figures of the long runs, printed at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

_FIGURES: Final = pytest.StashKey[list[str]]()


@pytest.fixture
def tell_figures(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """A function that takes a line for the summary."""
    return pytestconfig.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what was killed, lost and found."""
    figures = config.stash.setdefault(_FIGURES, [])
    if figures:
        terminalreporter.section("kills and power losses")
        terminalreporter.write("".join(f"{line}\n" for line in figures))
