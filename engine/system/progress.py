"""What long work calls to say how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # takes how much is done, and of how much
Advance = Callable[[int], None]  # takes how much was done since the last call, or so far
