"""How the demo reports: one line per step, which begins with it, and a stop at a wrong answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

QUIET_S: Final = 3.0  # after each of these, a dot says that a step goes on


@contextmanager
def step(title: str) -> Iterator[list[str]]:
    """Print a step at once, then its duration and the facts that the block adds to the list."""
    facts: list[str] = []
    print(f"{title:<34} ", end="", flush=True)
    start = time.perf_counter()
    ended = threading.Event()
    ticking = threading.Thread(target=_tick, args=(ended,), daemon=True)
    ticking.start()
    try:
        yield facts
    finally:
        ended.set()
        ticking.join()
    seconds = time.perf_counter() - start
    print(f"{seconds:>7.2f} s  {'; '.join(facts)}", flush=True)


def _tick(ended: threading.Event) -> None:
    while not ended.wait(QUIET_S):
        print(".", end="", flush=True)


def expect(subject: str, found: Any, wanted: Any) -> None:
    """Stop the demo when the store's answer differs from the list of flights."""
    if found != wanted:
        raise SystemExit(f"demo failed: {subject} is {found!r}, expected {wanted!r}")
