"""Text as people read and write it: quoting, JSON, durations, sizes, times and tables."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkeep
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.format import humanize, quoting
from streamkeep.format.core import json_form, times
from streamkeep.format.core.durations import duration_text, parse_duration
from streamkeep.format.time_buckets import MAX_BUCKETS, plan_buckets


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
    assert quoting.shown(data) == text


# `st.text` would make a table of all of Unicode first, which takes seconds.
texts = st.lists(st.integers(0, 0x10FFFF).map(chr), max_size=20).map("".join)


@given(st.binary(max_size=20) | texts.map(lambda text: text.encode("utf-8", "ignore")))
def test_quoted_text_is_safe_and_comes_back(data: bytes) -> None:
    text = quoting.quoted(data)
    assert text.isprintable()
    assert quoting.unquoted(text) == data
    assert quoting.shown(data).isprintable()


@given(st.lists(st.tuples(st.binary(min_size=0, max_size=4), st.binary(max_size=4)), min_size=1))
def test_the_short_way_to_text_agrees_with_the_long_one(pairs: list[tuple[bytes, bytes]]) -> None:
    expected = [
        f"{quoting.shown(field, ' =')}={quoting.shown(value, ' ')}" for field, value in pairs
    ]
    assert quoting.pairs_text(pairs) == " ".join(expected)


def test_pairs_are_told_apart() -> None:
    pairs = [(b"a=b", b"c=d"), (b"x y", b"z w"), (b"", b"")]
    assert quoting.pairs_text(pairs) == '"a=b"=c=d "x y"="z w" ""=""'


# --- the JSON form of bytes, and of lines ---------------------------------------------------------


@given(st.binary(max_size=20))
def test_any_bytes_come_back_from_their_json_form(data: bytes) -> None:
    for form in (json_form.json_bytes(data), json_form.json_base64(data)):
        assert json_form.from_json(json.loads(json.dumps(form))) == data


def test_text_is_a_string_and_other_bytes_are_base64() -> None:
    assert json_form.json_bytes("é".encode()) == "é"
    assert json_form.json_bytes(b"\xff") == {"base64": "/w=="}
    assert json_form.json_pairs([(b"a", b"1"), (b"a", b"\xff")]) == [
        ("a", "1"),
        ("a", {"base64": "/w=="}),
    ]


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, ["a"], "\ud800", {}, {"base64": 1}, {"base64": "%"}, {"base64": "/w"}),
        *({"base64": "é"}, {"base64": "", "more": ""}),
    ],
)
def test_what_is_no_json_form_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"base64|surrogates"):
        json_form.from_json(value)


def test_a_line_is_ascii_without_control_characters() -> None:
    line = json_form.json_line("entry", text="é\x7f\x1b\n")
    assert line == '{"type":"entry","text":"\\u00e9\\u007f\\u001b\\n"}'


# --- durations on the command line: a number and its unit -----------------------------------------

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


# --- sizes and times as people read them ----------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_048_524, "1023.9 KiB")),
        *((1_048_575, "1.0 MiB"), (5 << 50, "5.0 PiB"), (5 << 60, "5120.0 PiB")),
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


# --- times as people and files write them, and as bounds of ranges --------------------------------

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
        ("2024-06-10 07:33:20.1239", "auto", JUNE_10 + 123),
        ("2024-06-10", "auto", JUNE_10 - 27_200_000),
        ("20240610", "iso", JUNE_10 - 27_200_000),
        ("100000000", "auto", 100_000_000_000),
        ("7.0009", "s", 7000),
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
        ("1718004800123456789", "auto", "may be several times"),
        ("1e30", "ms", "beyond the highest"),
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


# --- times cut into buckets -----------------------------------------------------------------------

MONDAY = 1_717_977_600_000  # a Monday


@pytest.mark.parametrize(
    ("first", "last", "unit", "label"),
    [
        (MONDAY + 5, MONDAY + 5, "millisecond", "2024-06-10 00:00:00.005"),
        (MONDAY, MONDAY + 20_000, "second", "2024-06-10 00:00:00"),
        (MONDAY + 100, MONDAY + DAY - 1, "hour", "2024-06-10 00:00"),
        (MONDAY - 1, MONDAY + 20 * DAY, "day", "2024-06-09"),
        (MONDAY + DAY, MONDAY + 100 * DAY, "week", "2024-06-10"),
        (MONDAY, MONDAY + 365 * DAY, "month", "2024-06"),
        (MONDAY, MONDAY + 3650 * DAY, "6 months", "2024-01"),
        (0, MONDAY, "5 years", "1970"),
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


# --- notebooks show stores, streams, groups and entries as tables; nothing of them is markup ------

HOSTILE = b"<script>alert(1)</script>&\"'\x00\xff\n\xe2\x80\xae"
TAGS = {"table", "tr", "th", "td", "p"}


class Tags(HTMLParser):
    """Collects the tags of a text, and checks that it has no attributes but colspan."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert {name for name, _ in attrs} <= {"colspan"}


def tags(text: str) -> set[str]:
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert text.isprintable()
    return parser.found


@pytest.mark.parametrize("decode", [False, True])
def test_hostile_names_are_text(open_store: Open, decode: bool) -> None:
    store = open_store(decode_responses=decode)
    name = HOSTILE.replace(b"\xff", b"") if decode else HOSTILE
    store.xadd(name, [(name, name), (name, b"x" * 1000), (b"n", b"1")])
    store.xgroup_create(name, name, 0)
    store.xreadgroup(name, name, {name: ">"})
    for shown in (
        store,
        store.xrange(name),
        store.xrange(name)[0],
        next(store.scan(name)),
        store.xinfo_stream(name),
        store.xinfo_groups(name),
        store.xinfo_consumers(name, name),
    ):
        text = shown._repr_html_()  # type: ignore[union-attr]  # lists and dicts with a table
        assert tags(text) <= TAGS
        assert "script" not in tags(text)
        assert len(text) < 20_000
    assert store.xinfo_groups(name)[0]["name"] == store.xinfo_groups(name)[0]["name"]
    assert type(store.xrange(name)[0]) is streamkeep.Entry
    store.close()
    assert "closed" in store._repr_html_()


def test_long_tables_say_how_much_is_left(store: Store) -> None:
    store.xadd_many("s", [{"n": number} for number in range(150)])
    for number in range(101):
        store.xadd(f"k{number}", {"n": number})
    assert "50 more" in store.xrange("s")._repr_html_()  # type: ignore[attr-defined]
    assert "2 more" in store._repr_html_()
    assert store.xrange("s") == list(store.xrange("s"))


def test_private_names_are_not_listed(store: Store) -> None:
    for one in (store, store.snapshot(), store.pipeline(), streamkeep):
        assert not [name for name in dir(one) if name.startswith("_") and name[1] != "_"]
    assert {"xadd", "path", "to_pandas"} <= set(dir(store))
    assert {"open", "Store", "aio"} <= set(dir(streamkeep))
    assert "import_module" not in dir(streamkeep)


def test_the_log_says_opens_and_archive_runs(
    open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "streamkeep"):
        store = open_store()
        store.set_retention("s", archive=True)
        store.xadd_many("s", [{"n": 1}, {"n": 2}])
        store.xtrim("s", maxlen=0, approximate=False)
        store.archive()
    assert f"{store.path}: opened, sync=commit" in caplog.text
    assert "archived 2 entries in 1 segments" in caplog.text
