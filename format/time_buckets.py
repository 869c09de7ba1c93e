"""Buckets of time for histograms.

The time of an entry is the millisecond part of its ID. Buckets have equal length and begin where
people expect it: on the hour, at midnight UTC, on a Monday. For spans of more than some weeks
buckets are calendar months and years. IDs that are not times (1-0, 2-0, ...) work as well; after
the year 9999 buckets are plain numbers of milliseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from streamkeep.format.humanize import EPOCH, MAX_CALENDAR_MS, calendar

_MILLISECOND: Final = timedelta(milliseconds=1)
MAX_BUCKETS: Final = 24
_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_WEEK: Final = 7 * _DAY
_FIRST_MONDAY: Final = 4 * _DAY  # 1970-01-05

# Length in milliseconds, its name, and the strftime format of a bucket's start.
_STEPS: Final = (
    (1, "millisecond", "%Y-%m-%d %H:%M:%S.%f"),
    *((n, f"{n} ms", "%Y-%m-%d %H:%M:%S.%f") for n in (2, 5, 10, 20, 50, 100, 200, 500)),
    (_SECOND, "second", "%Y-%m-%d %H:%M:%S"),
    *((n * _SECOND, f"{n} seconds", "%Y-%m-%d %H:%M:%S") for n in (2, 5, 10, 15, 30)),
    (_MINUTE, "minute", "%Y-%m-%d %H:%M"),
    *((n * _MINUTE, f"{n} minutes", "%Y-%m-%d %H:%M") for n in (2, 5, 10, 15, 30)),
    (_HOUR, "hour", "%Y-%m-%d %H:%M"),
    *((n * _HOUR, f"{n} hours", "%Y-%m-%d %H:%M") for n in (2, 3, 6, 12)),
    (_DAY, "day", "%Y-%m-%d"),
    (2 * _DAY, "2 days", "%Y-%m-%d"),
    (_WEEK, "week", "%Y-%m-%d"),
)
_MONTHS: Final = (
    (1, "month"),
    (3, "3 months"),
    (6, "6 months"),
    (12, "year"),
    *((12 * n, f"{n} years") for n in (2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)


class Plan(NamedTuple):
    """The edges of buckets: bucket i holds edges[i] <= ms < edges[i + 1]."""

    edges: tuple[int, ...]
    unit: str  # the length of a bucket, in words
    style: str  # strftime format of its start; empty after the year 9999

    def label(self, index: int) -> str:
        """Return the start of a bucket as text."""
        ms = self.edges[index]
        if not self.style:
            return f"{ms:,} ms"
        text = calendar(ms).strftime(self.style)
        return text[:-3] if self.style.endswith("%f") else text


def plan_buckets(first_ms: int, last_ms: int, most: int = MAX_BUCKETS) -> Plan:
    """Return at most `most` buckets that cover both times."""
    for length, unit, style in _STEPS:
        offset = _FIRST_MONDAY if length == _WEEK and first_ms >= _FIRST_MONDAY else 0
        start = (first_ms - offset) // length * length + offset
        if last_ms - start < most * length and last_ms <= MAX_CALENDAR_MS - length:
            count = (last_ms - start) // length + 1
            return Plan(tuple(start + n * length for n in range(count + 1)), unit, style)
    if last_ms <= MAX_CALENDAR_MS:
        for months, unit in _MONTHS:
            edges = _month_edges(first_ms, last_ms, months, most)
            if edges:
                style = "%Y-%m" if months < 12 else "%Y"
                return Plan(edges, unit, style)
    length = 1
    while last_ms - first_ms // length * length >= most * length:
        length *= 10
    start = first_ms // length * length
    count = (last_ms - start) // length + 1
    return Plan(tuple(start + n * length for n in range(count + 1)), f"{length:,} ms", "")


def _month_edges(first_ms: int, last_ms: int, months: int, most: int) -> tuple[int, ...]:
    """Return the edges of buckets of `months` months; empty if there would be more than `most`."""
    begin = calendar(first_ms)
    number = (begin.year * 12 + begin.month - 1) // months * months
    edges: list[int] = []
    while len(edges) <= most:
        year, month = divmod(number, 12)
        if year > 9999:
            return ()
        edges.append((datetime(max(year, 1), month + 1, 1, tzinfo=UTC) - EPOCH) // _MILLISECOND)
        if edges[-1] > last_ms:
            return tuple(edges)
        number += months
    return ()
