"""How values look, and how times are cut into buckets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.tools.base import output
from streamkeep.tools.base.durations import parse_duration
from streamkeep.tools.base.timeline import MAX_BUCKETS, bars, plan_buckets

DAY = 86_400_000
JUNE_10 = 1_717_977_600_000  # a Monday


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        (b"two words", "two words"),
        ("ü 日本".encode(), "ü 日本"),
        (b"back\\slash", "back\\slash"),
        (b'in"side', 'in"side'),
        (b"", '""'),
        (b'"', r'"\""'),
        (b'"\\', r'"\"\\"'),
        (b"\n\r\t\a\b\x1b[0m\x7f", r'"\n\r\t\a\b\x1b[0m\x7f"'),
        (b"\xff\xfea", r'"\xff\xfea"'),
        ("ü\n".encode(), r'"ü\n"'),
        ("\u202ex\u0085".encode(), r'"\xe2\x80\xaex\xc2\x85"'),
    ],
)
def test_what_is_not_plain_is_quoted_and_escaped(data: bytes, text: str) -> None:
    assert output.shown(data) == text


@given(
    st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "ignore"))
)
def test_quoted_text_is_safe_and_comes_back(data: bytes) -> None:
    text = output.quoted(data)
    assert text.isprintable()
    assert output.unquoted(text) == data
    assert output.shown(data).isprintable()


@given(st.lists(st.tuples(st.binary(min_size=0, max_size=4), st.binary(max_size=4)), min_size=1))
def test_the_short_way_to_text_agrees_with_the_long_one(pairs: list[tuple[bytes, bytes]]) -> None:
    expected = [f"{output.shown(field, ' =')}={output.shown(value, ' ')}" for field, value in pairs]
    assert output.pairs_text(pairs) == " ".join(expected)


def test_pairs_are_told_apart() -> None:
    pairs = [(b"a=b", b"c=d"), (b"x y", b"z w"), (b"", b"")]
    assert output.pairs_text(pairs) == '"a=b"=c=d "x y"="z w" ""=""'


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (1_288_490_189, "1.2 GiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert output.size_text(size) == text


def test_times() -> None:
    assert output.time_text(1_718_004_800_999) == "2024-06-10T07:33:20Z"
    assert output.time_text(0) == "1970-01-01T00:00:00Z"
    assert output.time_text(253_402_300_799_999) == "9999-12-31T23:59:59Z"
    assert output.time_text((1 << 64) - 1) == "18446744073709551615 ms"
    assert output.span_text(3.44) == "3.4s"
    assert output.span_text(725.2) == "12m5s"


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
    assert parse_duration(output.duration_text(ms, parts=5)) == ms
    assert parse_duration(output.duration_text(ms)) <= ms


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


def test_bars_show_every_bucket_that_has_entries() -> None:
    plan = plan_buckets(JUNE_10, JUNE_10 + 2 * 3_600_000)
    counts = [1000, 1, 0, 500] + [0] * (len(plan.edges) - 5)
    chart = list(bars(plan, counts, 60, blocks=True))
    assert chart[0].endswith("█")
    assert chart[1].endswith("  1  ▏")
    assert chart[2].endswith("  0")
    assert chart[3].count("█") == chart[0].count("█") // 2
    plain = list(bars(plan, counts, 60, blocks=False))
    assert plain[1].endswith("  1  #")
    assert all(line.isascii() and len(line) <= 60 for line in plain)


ROWS = (("orders", "1,200", "2 h"), ("e-mail", "7", "12 min"))


def test_a_table_is_aligned() -> None:
    lines = output.table_lines(
        ("STREAM", "entries", "age"), ROWS, left=(0,), width=None, ruled=True
    )
    assert lines == [
        "STREAM  entries     age",
        "──────  ───────  ──────",
        "orders    1,200     2 h",
        "e-mail        7  12 min",
    ]


def test_a_table_that_is_too_wide_becomes_blocks_that_lose_nothing() -> None:
    wide = output.table_lines(("STREAM", "entries", "age"), ROWS, left=(0,), width=23)
    assert wide[0] == "STREAM  entries     age"
    assert output.table_lines(("STREAM", "entries", "age"), ROWS, left=(0,), width=22) == [
        "STREAM orders",
        "  entries  1,200",
        "  age      2 h",
        "STREAM e-mail",
        "  entries  7",
        "  age      12 min",
    ]


def test_the_width_of_a_column_is_that_of_its_characters() -> None:
    lines = output.table_lines(("S", "n"), [("日本", "1"), ("a", "2")], left=(0,), width=7)
    assert lines == ["S     n", "日本  1", "a     2"]
