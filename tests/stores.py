"""Opens stores for tests: through `streamkeep.open`, as users do, and with a clock of the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import streamkeep
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system.clock import Clock, clock_replaced, current_clock

Open = Callable[..., streamkeep.Store[Any]]  # of the fixture `open_store`

MODES: Final[tuple[Sync, ...]] = ("commit", "none")

# What machines draw when a run begins, so that each mode gets half of their examples.
SYNC_MODES: Final[SearchStrategy[Sync]] = st.sampled_from(MODES)


def open_at(
    path: Path | str, *, clock: Clock | None = None, **options: Any
) -> streamkeep.Store[Any]:
    """Open the store at `path` with these options of `streamkeep.open`."""
    with clock_replaced(clock or current_clock()):
        return streamkeep.open(path, **options)
