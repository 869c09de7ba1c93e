"""What long work calls to say how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # takes how much is done, and of how much
StepProgress = Callable[[str, int, int], None]  # also takes what is done, before the numbers
Advance = Callable[[int], None]  # takes how much was done since the last call, or so far


def silent(*state: object) -> None:
    """Tell nobody how far work is."""
