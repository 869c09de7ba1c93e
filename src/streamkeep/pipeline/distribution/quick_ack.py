"""Immediate TCP acknowledgements, which avoid a delay of 40 ms at the start of each task.

Spark sends the command of a task to a Python worker over TCP, and the input in a second write. The
sending system holds the second write back until the first is acknowledged (Nagle's algorithm), and
the receiving system delays the acknowledgement, to send it together with an answer. So on Linux
every task would begin 40 ms late, the time to decode 200,000 entries.

The objects of a task arrive with the first write. When the worker unpickles them, it asks the
system to acknowledge at once. The setting does not last, so each task asks again.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_HANDLES: Final = "/proc/self/fd"


class QuickAck:
    """An object of a task that acknowledges received data when it is unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_now()


class QuickAckCall(QuickAck):
    """A function with this behaviour."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def acknowledge_now() -> int:
    """Make the system acknowledge received TCP data now; return the number of connections."""
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is None or not os.path.isdir(_HANDLES):  # not Linux, or no /proc
        return 0
    acknowledged = 0
    for name in os.listdir(_HANDLES):
        with suppress(OSError):  # not a TCP socket, or the handle of the listing itself
            handle = int(name)
            if stat.S_ISSOCK(os.fstat(handle).st_mode):
                with socket.socket(fileno=os.dup(handle)) as one:
                    one.setsockopt(socket.IPPROTO_TCP, quick, 1)
                    acknowledged += 1
    return acknowledged
