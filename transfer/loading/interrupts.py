"""Ctrl-C only between a commit and the next: counts then say exactly what was stored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until the block has ended.

    The block holds a commit and the counting of what it committed. The counts are then exact when
    KeyboardInterrupt is raised, and the caller can continue from them.
    """
    former = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()  # Python interrupts no other
    if not main or former is None or former in (signal.SIG_IGN, signal.SIG_DFL):
        yield  # ignored, as in a background job, it stays ignored
        return
    came = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if came:
        raise KeyboardInterrupt
