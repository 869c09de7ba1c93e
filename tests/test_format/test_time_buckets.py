"""Times cut into buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.time_buckets import MAX_BUCKETS, plan_buckets

DAY = 86_400_000
JUNE_10 = 1_717_977_600_000  # a Monday


@pytest.mark.parametrize(
    ("first", "last", "unit", "label"),
    [
        (JUNE_10 + 5, JUNE_10 + 5, "millisecond", "2024-06-10 00:00:00.005"),
        (JUNE_10, JUNE_10 + 20_000, "second", "2024-06-10 00:00:00"),
        (JUNE_10 + 100, JUNE_10 + DAY - 1, "hour", "2024-06-10 00:00"),
        (JUNE_10 - 1, JUNE_10 + 20 * DAY, "day", "2024-06-09"),
        (JUNE_10 + DAY, JUNE_10 + 100 * DAY, "week", "2024-06-10"),
        (JUNE_10, JUNE_10 + 365 * DAY, "month", "2024-06"),
        (JUNE_10, JUNE_10 + 3650 * DAY, "6 months", "2024-01"),
        (0, JUNE_10, "5 years", "1970"),
    ],
)
def test_buckets_begin_where_people_expect_it(first: int, last: int, unit: str, label: str) -> None:
    plan = plan_buckets(first, last)
    assert (plan.unit, plan.label(0)) == (unit, label)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_buckets_cover_every_time(one: int, other: int) -> None:
    first, last = sorted((one, other))
    plan = plan_buckets(first, last)
    assert plan.edges[0] <= first
    assert last < plan.edges[-1]
    assert 1 <= len(plan.edges) - 1 <= MAX_BUCKETS
    assert list(plan.edges) == sorted(set(plan.edges))
    assert all(plan.label(index) for index in range(len(plan.edges) - 1))


@given(st.integers(0, 5 * 10**12), st.integers(0, 10**12))
def test_buckets_cover_ordinary_times(first: int, length: int) -> None:
    plan = plan_buckets(first, first + length)
    assert plan.edges[0] <= first <= first + length < plan.edges[-1]
    assert len(plan.edges) - 1 <= MAX_BUCKETS
