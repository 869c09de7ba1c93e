"""Durations on the command line: a number and its unit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core.durations import duration_text, parse_duration

DAY = 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        *(("0", 0), ("250ms", 250), ("1.5s", 1500), ("90s", 90_000), ("10m", 600_000)),
        *(("1h30m", 5_400_000), ("30d", 30 * DAY), ("2H", 7_200_000)),
    ],
)
def test_a_duration_has_a_unit(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "60000", "1.5", "-1s", "5 s", "5x", "s", "1.0001s", "1h30"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_duration(text)


def test_a_number_without_a_unit_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="has no unit: 60000ms, 60000s"):
        parse_duration("60000")


@given(st.integers(0, 10**13))
def test_a_duration_that_is_shown_whole_can_be_given_again(ms: int) -> None:
    assert parse_duration(duration_text(ms, parts=5)) == ms
    assert parse_duration(duration_text(ms)) <= ms
