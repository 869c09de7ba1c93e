"""Sizes, counts and times as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_CALENDAR_MS: Final = 253_402_300_799_999  # the end of the year 9999
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size: int) -> str:
    """Return a size in bytes as text, such as `1.2 GiB`."""
    if size < 1024:
        return f"{size} B"
    number = float(size)
    for unit in _UNITS:
        number /= 1024
        if number < 1023.95 or unit == _UNITS[-1]:
            return f"{number:.1f} {unit}"
    raise AssertionError(size)


def time_text(ms: int) -> str:
    """Return Unix milliseconds as `2024-06-10T07:33:20Z`; after the year 9999 as a number."""
    if ms > MAX_CALENDAR_MS:
        return f"{ms} ms"
    return calendar(ms).strftime("%Y-%m-%dT%H:%M:%SZ")


def calendar(ms: int) -> datetime:
    """Return Unix milliseconds as a UTC date, exactly: a float would round."""
    return EPOCH + timedelta(milliseconds=ms)


def count_text(count: int, one: str, many: str | None = None) -> str:
    """Return `1 entry` or `1,204 entries`; `many` defaults to `one` with an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def lost_texts(losses: Mapping[str, int]) -> list[str]:
    found = sorted(losses.items())
    return [f"{what} ({count:,} times)" if count > 1 else what for what, count in found]


def entries_text(count: int) -> str:
    return count_text(count, "entry", "entries")
