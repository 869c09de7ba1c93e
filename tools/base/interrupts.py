"""Ctrl-C at a moment when it is known what was done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until the block has ended.

    Within the block goes a commit and the counting of what it committed: what is printed after
    KeyboardInterrupt is then exactly what is stored, so that somebody can go on from there.
    """
    former = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()  # Python interrupts no other
    if not main or former is None or former in (signal.SIG_IGN, signal.SIG_DFL):
        yield  # ignored, as of a background job, it stays so
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
