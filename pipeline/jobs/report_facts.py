"""The contents of a report, as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from streamkeep.format.time_buckets import Plan

LAGS: Final = "lag"  # the name of the file with the lags of all reports in a folder
PERCENTILES: Final = (50, 90, 99, 99.9)


@dataclass(slots=True)
class StreamFacts:
    """One stream.

    Attributes:
        archived, archived_bytes: entries in segments, and the size of these.
        counts: the number of entries in each bucket of the report's plan.
        gaps: the number of neighbours by the milliseconds between them.
    """

    key: str
    entries: int = 0
    live: int = 0
    live_bytes: int = 0
    archived: int = 0
    archived_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    counts: list[int] = field(default_factory=list)
    gaps: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class GroupFacts:
    """One group of a stream.

    Attributes:
        lag: the number of entries not delivered yet; None if unknown.
        latencies: milliseconds from ID to delivery, of pending entries that were delivered once.
        ages: milliseconds since the last delivery, of all pending entries.
    """

    key: str
    name: str
    consumers: int
    pending: int
    lag: int | None
    delay_ms: int | None  # the time from its last delivered entry to the newest entry
    latencies: Counter[int] = field(default_factory=Counter)
    ages: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class MeasureFacts:
    """A numeric field over time and by other fields; rows have the values of `columns`."""

    key: str
    name: str
    over_time: list[tuple[Any, ...]] = field(default_factory=list)
    by_field: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    columns: tuple[str, ...] = ("entries", "mean", "median", "p90")


class LagPoint(NamedTuple):
    """The lag of one group when a report was made."""

    at_ms: int
    key: str
    group: str
    lag: int | None
    delay_ms: int | None
    pending: int


@dataclass(slots=True)
class Facts:
    """The contents of a report.

    Attributes:
        lags: of this report and of those that were made into the same folder before it.
    """

    store: str
    now_ms: int
    plan: Plan | None
    streams: list[StreamFacts]
    groups: list[GroupFacts]
    measures: list[MeasureFacts]
    lags: list[LagPoint] = field(default_factory=list)


def percentile(histogram: Counter[int], percent: float) -> int | None:
    """Return the value that `percent` of all values do not exceed; None if there are no values."""
    total = sum(histogram.values())
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if seen * 100 >= percent * total:
            return value
    return None
