"""Times as people and files write them, and as bounds of ranges."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core import times

JUNE_10 = 1_718_004_800_000  # 2024-06-10T07:33:20Z
TOP = (1 << 64) - 1
NOW = 1_761_004_800_000  # 2025-10-21T00:00:00Z
HOUR = 3_600_000
BERLIN = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("text", "unit", "ms"),
    [
        ("1718004800", "auto", JUNE_10),
        ("1718004800.25", "auto", JUNE_10 + 250),
        ("1718004800000", "auto", JUNE_10),
        (" 1718004800000999 ", "auto", JUNE_10),
        ("1.7180048e9", "auto", JUNE_10),
        ("2024-06-10T07:33:20Z", "auto", JUNE_10),
        ("2024-06-10 09:33:20+02:00", "iso", JUNE_10),
        ("2024-06-10T07:33:20", "iso", JUNE_10),
        ("0", "s", 0),
        ("5", "ms", 5),
        ("1999", "us", 1),
        (str(TOP), "ms", TOP),
    ],
)
def test_times_are_read(text: str, unit: times.TimeUnit, ms: int) -> None:
    assert times.parse_time(text, unit) == ms


@pytest.mark.parametrize(
    ("text", "unit", "problem"),
    [
        ("", "auto", "no time"),
        ("99999999", "auto", "its unit must be given"),
        ("100000000000000000", "auto", "its unit must be given"),
        ("-1", "s", "before 1970"),
        ("1969-12-31", "iso", "before 1970"),
        (str(TOP + 1), "ms", "beyond the highest entry ID"),
        ("soon", "auto", "'soon' is not a time such as"),
        ("soon", "ms", "'soon' is not a number of ms"),
        ("5", "iso", "'5' is not a time such as"),
    ],
)
def test_other_text_is_refused(text: str, unit: times.TimeUnit, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        times.parse_time(text, unit)


@given(st.integers(0, 253_402_300_799_999))
def test_milliseconds_survive_every_way_of_writing_them(ms: int) -> None:
    assert times.parse_time(str(ms), "ms") == ms
    assert times.parse_time(f"{ms // 1000}.{ms % 1000:03}", "s") == ms
    assert times.parse_time(f"{ms}999", "us") == ms


def now() -> int:
    return NOW


@pytest.mark.parametrize(
    ("value", "bound", "expected"),
    [
        ("2025-10-21", "from", b"%d" % NOW),
        (b"2025-10-21", "to", b"%d" % NOW),
        ("2025-10-21T02:00+02:00", "from", b"%d" % NOW),
        ("(2025-10-21", "from", b"(%d-%d" % (NOW, TOP)),
        ("(2025-10-21", "to", b"(%d-0" % NOW),
        ("2025-10-21", "after", b"%d-%d" % (NOW - 1, TOP)),
        ("1970-01-01", "after", b"0-0"),
        ("-2h", "from", b"%d" % (NOW - 2 * HOUR)),
        ("-1h30m", "to", b"%d" % (NOW - 3 * HOUR // 2)),
        ("(-250ms", "from", b"(%d-%d" % (NOW - 250, TOP)),
        ("-90000d", "from", b"0"),
        (dt.datetime(2025, 10, 21, tzinfo=dt.UTC), "from", b"%d" % NOW),
        (dt.datetime(2025, 10, 21, 2, tzinfo=BERLIN), "after", b"%d-%d" % (NOW - 1, TOP)),
        (dt.date(2025, 10, 21), "to", b"%d" % NOW),
        ("5-0", "from", None),
        ("2025-10", "from", None),
        ("-", "from", None),
        ("-5", "from", None),
        (5, "from", None),
        (None, "to", None),
    ],
)
def test_times_become_ids(value: Any, bound: times.Bound, expected: bytes | None) -> None:
    assert times.time_bound(value, bound, now) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2024-02-30", "'2024-02-30' is not a time such as"),
        ("2025-13-01", "'2025-13-01' is not a time such as"),
        ("1969-12-31", "before 1970"),
        ("-2x", "is not a duration such as"),
        ("-1.5ms", "not a whole number of milliseconds"),
        (dt.datetime(2025, 10, 21), "the time has no zone; next: "),
        (dt.datetime(1969, 1, 1, tzinfo=dt.UTC), "before 1970"),
        (dt.date(1960, 1, 1), "before 1970"),
    ],
)
def test_what_is_no_bound_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        times.time_bound(value, "from", now)
