"""Named places where a crash test can stop the process.

A failpoint does nothing until a test arms it: after `arm("trim:before-commit", action)`, the next
`hit` of that name calls `action`. Child processes of the crash tests use `SIGKILL` as the action.
`tests/failpoint_names.py` says what each name stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_armed: Final[dict[str, Callable[[], None]]] = {}
_watching: Final[list[Callable[[str], None]]] = []


def hit(name: str) -> None:
    """Run the action and the watchers of the failpoint `name`, if there are any."""
    if _armed:
        action = _armed.pop(name, None)
        if action is not None:
            action()
    if _watching:
        for watcher in list(_watching):
            watcher(name)


def arm(name: str, action: Callable[[], None]) -> None:
    """Call `action` at the next hit of `name`."""
    _armed[name] = action


def watch(watcher: Callable[[str], None]) -> None:
    """Call `watcher` with the name of every failpoint that is hit."""
    _watching.append(watcher)


def unwatch(watcher: Callable[[str], None]) -> None:
    _watching.remove(watcher)


def disarm() -> None:
    _armed.clear()
    _watching.clear()
