"""Durations, times and backoffs of jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamkeep.format.core.durations import milliseconds
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs.options import Backoff, backoff_of, unix_ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (90, 90_000),
        (0.25, 250),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_durations_are_seconds_texts_or_timedeltas(value: Any, ms: int) -> None:
    assert milliseconds(value, "delay") == ms


@pytest.mark.parametrize(
    "value", ["5", "soon", -1, True, None, timedelta(-1), "40000d", float("nan")]
)
def test_other_durations_are_refused_with_their_name(value: Any) -> None:
    with pytest.raises(ArgumentError, match="delay must be seconds, a timedelta, or a text"):
        milliseconds(value, "delay")


def test_times_have_a_time_zone() -> None:
    assert unix_ms(datetime(2026, 1, 1, tzinfo=UTC), "at") == 1_767_225_600_000
    for value in (datetime(2026, 1, 1), 5, datetime(1960, 1, 1, tzinfo=UTC)):
        with pytest.raises(ArgumentError, match="at must be"):
            unix_ms(value, "at")  # type: ignore[arg-type]


def test_a_backoff_doubles_up_to_its_longest_wait() -> None:
    backoff = backoff_of("2s..1m")
    assert backoff == Backoff(2000, 60_000)
    for failures, whole in ((1, 2000), (2, 4000), (5, 32_000), (6, 60_000), (2000, 60_000)):
        assert whole / 2 <= backoff.delay_ms(failures) <= whole
    assert backoff_of(str(backoff)) == backoff
    assert backoff_of("5s") == Backoff(5000, 5000)
    with pytest.raises(ArgumentError, match="begin with its shorter wait"):
        backoff_of("1m..2s")
