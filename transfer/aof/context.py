"""What the commands of `any_key` and `streams` share: the store, counts, options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from streamkeep.format.redis.stream_dump import Losses

DATABASE: Final = b"0"  # the only one that is loaded


class Refusal(Exception):
    """A command that is not run, and must not be skipped either."""


class Context:
    """The transaction and the database that commands work on, and counts of what they did."""

    def __init__(self) -> None:
        self.store: Any = None
        self.database = DATABASE
        self.losses = Losses()
        self.entries = 0  # that XADD has added

    def state(self) -> tuple[bytes, Losses, int]:
        """Return what `restore` needs to undo all that is counted from now on."""
        losses = Losses(self.losses)
        return self.database, losses, self.entries

    def restore(self, state: tuple[bytes, Losses, int]) -> None:
        """Go back to a state: its transaction was not committed."""
        self.database, self.losses, self.entries = state

    def lose(self, name: bytes) -> None:
        """Count a command that was skipped."""
        self.losses.add(f"command {name.decode('ascii', 'backslashreplace')}")

    def overwrite(self, *keys: bytes) -> None:
        """Delete streams whose keys hold something else now, or nothing."""
        self.store.delete(*keys)

    def has(self, key: bytes) -> bool:
        """Say whether a key is a stream."""
        return bool(self.store.exists(key))


def options_of(words: list[bytes], takes: dict[bytes, bool]) -> dict[bytes, bytes]:
    """Return the options among words: name to value, b"" for those that take none."""
    found: dict[bytes, bytes] = {}
    rest = iter(words)
    for word in rest:
        name = word.upper()
        if name not in takes:
            raise ValueError(f"{word!r} is no option")
        found[name] = _next(rest, word) if takes[name] else b""
    return found


def _next(rest: Iterator[bytes], option: bytes) -> bytes:
    value = next(rest, None)
    if value is None:
        raise ValueError(f"{option!r} needs a value")
    return value


def integer(found: dict[bytes, bytes], name: bytes) -> int | None:
    """Return the value of an option, where it was given."""
    return int(found[name]) if name in found else None


Run = Callable[[Context, list[bytes]], object]
