"""Tasks that begin at once: a way around a pause of 40 ms between Spark and its Python workers.

Spark tells a worker over TCP what to do, and sends the input in a second write. The system holds
that back until the first has been confirmed (Nagle's algorithm), and the worker's system delays the
confirmation, in the hope of an answer to send it along with. So on Linux every task would begin 40
ms late, as long as it takes to decode 200,000 entries.

What a worker unpickles has come with the first write. That is the moment to ask the system for the
confirmation; it holds for this task only, so each asks anew.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_HANDLES: Final = "/proc/self/fd"


class Prompt:
    """Something that a task is sent: to unpickle it confirms what has come in so far."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the attributes over."""
        self.__dict__.update(state)
        confirm_receipt()


class PromptCall(Prompt):
    """A function as such."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def confirm_receipt() -> int:
    """Have the system confirm at once what came in over TCP; return for how many connections."""
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is None or not os.path.isdir(_HANDLES):  # not Linux, or a bare root without /proc
        return 0
    confirmed = 0
    for name in os.listdir(_HANDLES):
        with suppress(OSError):  # no socket, or not one of TCP; the handle that lists them is gone
            handle = int(name)
            if stat.S_ISSOCK(os.fstat(handle).st_mode):
                with socket.socket(fileno=os.dup(handle)) as one:
                    one.setsockopt(socket.IPPROTO_TCP, quick, 1)
                    confirmed += 1
    return confirmed
