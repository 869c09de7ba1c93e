"""Sizes and times as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format import humanize


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_524, "1023.9 KiB"),
        (1_048_575, "1.0 MiB"),
        (5 << 50, "5.0 PiB"),
        (5 << 60, "5120.0 PiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert humanize.size_text(size) == text


@given(st.integers(0, humanize.MAX_CALENDAR_MS))
def test_dates_are_exact(ms: int) -> None:
    moment = humanize.calendar(ms)
    assert round((moment - humanize.EPOCH).total_seconds() * 1000) == ms
    assert humanize.time_text(ms) == moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_there_is_no_date_after_the_year_9999() -> None:
    assert humanize.time_text(humanize.MAX_CALENDAR_MS).startswith("9999-12-31")
    assert humanize.time_text(humanize.MAX_CALENDAR_MS + 1) == "253402300800000 ms"


def test_counts() -> None:
    assert humanize.entries_text(1) == "1 entry"
    assert humanize.entries_text(1204) == "1,204 entries"
    assert humanize.count_text(0, "stream") == "0 streams"
