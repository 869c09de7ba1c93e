"""Named places where a crash test can stop the process.

A failpoint does nothing unless it was armed: `arm("trim:before-commit", action)` makes the next
passage call `action`. Child processes of the crash tests arm one with `os._exit` or `SIGKILL`.
"""

from __future__ import annotations

from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    """Pass the failpoint `name`."""
    if _armed:
        action = _armed.pop(name, None)
        if action is not None:
            action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` at the next passage of `name`."""
    _armed[name] = action


def disarm() -> None:
    """Forget every armed failpoint."""
    _armed.clear()
