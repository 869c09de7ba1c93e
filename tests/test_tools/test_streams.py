"""Commands that look at streams: streams, info, stat."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, reply, run
from streamkeep.tools.commands import stream_cmds
from tiers import slow_but

HOUR = 3_600_000
NOON = 1_718_020_800_000  # 2024-06-10T12:00:00Z
ODD = {"base64": "/wpbcmVkXQ=="}  # a key, in JSON
END = 253_402_300_799_999  # of the calendar

needs_plots = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra `plot`")
pytestmark = pytest.mark.usefixtures("sound_folder")


@pytest.fixture
def stored() -> str:
    """A store with three streams: `orders` over three hours, one empty, one with an odd key."""
    with streamkeep.open("s", sync="none") as store:
        for hour, count in enumerate((40, 0, 10)):
            for n in range(count):
                store.xadd("orders", {"n": n}, id=f"{NOON + hour * HOUR + n}-0")
        store.xadd("empty", {"f": "v"}, id="5-0")
        store.xdel("empty", "5-0")
        store.xadd(b"\xff\n[red]", {"f": "v"}, id="1-0")
    return "s"


# --- streams ------------------------------------------------------------------------------------


def test_streams_lists_every_stream_in_a_table(stored: str) -> None:
    result = run("streams", stored)
    sizes = [one["size_bytes"] for one in objects("streams", stored)]
    assert result.stdout.splitlines() == [
        "key            entries  first                 last                  nodes   size",
        "empty                0  -                     -                         0    0 B",
        f"orders              50  2024-06-10T12:00:00Z  2024-06-10T14:00:00Z      1  {sizes[1]} B",
        r'"\xff\n[red]"        1  1970-01-01T00:00:00Z  1970-01-01T00:00:00Z      1   '
        f"{sizes[2]} B",
    ]
    assert result.stderr == f"3 streams, 51 entries, {sizes[3]} B\n"


def test_streams_takes_a_pattern(stored: str) -> None:
    assert [one["key"] for one in objects("streams", stored, "*e*")[:-1]] == [
        "empty",
        "orders",
        ODD,
    ]
    assert [one["key"] for one in objects("streams", stored, "[a-n]*")[:-1]] == ["empty"]
    result = run("streams", stored, "none")
    assert (result.stdout, result.stderr) == ("", "0 streams, 0 entries, 0 B\n")


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("key", ["empty", "orders", "zero", ODD]),
        *(
            (field, ["orders", ODD, "empty", "zero"])
            for field in ("entries", "first", "last", "nodes", "size")
        ),
    ],
)
def test_streams_are_sorted_by_a_column(stored: str, field: str, expected: list[object]) -> None:
    with streamkeep.open("s", sync="none") as store:
        store.xgroup_create("zero", "g", mkstream=True)
    assert [one["key"] for one in objects("streams", stored, "--sort", field)[:-1]] == expected


def test_streams_as_json(stored: str) -> None:
    orders, summary = objects("streams", stored, "orders")
    size = orders.pop("size_bytes")
    assert orders == {
        "type": "stream",
        "key": "orders",
        "length": 50,
        "first_time_ms": NOON,
        "last_time_ms": NOON + 2 * HOUR + 9,
        "nodes": 1,
        "tombstones": 0,
    }
    assert (summary["streams"], summary["entries"], summary["size_bytes"]) == (1, 50, size)


def test_long_keys_are_cut_in_the_table_only() -> None:
    key = "k" * 3000
    run("add", "s", key, "f", "v")
    assert lines("streams", "s")[1].startswith("k" * 39 + "…  ")
    assert objects("streams", "s")[0]["key"] == key


# --- info ---------------------------------------------------------------------------------------


def test_info_stream_prints_the_counters_and_both_ends() -> None:
    for n in range(1, 4):
        run("add", "s", "k", "n", str(n), "note", "two words", "--id", f"{n}-0")
    reply("s", "XDEL", "k", "2-0")
    found = lines("info", "s", "k")
    assert (len(found), found[0]) == (16, "length                   2")
    assert "max-deleted-entry-id     2-0" in found
    assert found[-2:] == [
        'first-entry              1-0  n=1 note="two words"',
        'last-entry               3-0  n=3 note="two words"',
    ]


def test_info_stream_of_an_empty_stream(stored: str) -> None:
    assert lines("info", stored, "empty")[-2:] == [
        "first-entry              -",
        "last-entry               -",
    ]
    assert objects("info", stored, "empty")[0]["last_entry_id"] is None


def test_info_stream_shows_groups_and_consumers() -> None:
    with streamkeep.open("s", sync="none") as store:
        store.xadd_many("k", [{"n": n} for n in range(1, 6)], [f"{n}-0" for n in range(1, 6)])
        store.xgroup_create("k", "g", id=0)
        store.xreadgroup("g", "ann", {"k": ">"}, count=3)
        store.xgroup_createconsumer("k", "g", "bob")
    group, ann, bob = [line.split() for line in lines("info", "s", "k") if line[:3] == "g  "]
    assert group == ["g", "3-0", "3", "2", "3", "2"]
    assert (ann[:3], bob[:3]) == (["g", "ann", "3"], ["g", "bob", "0"])
    assert (ann[-1], bob[-2:]) == ("dead", ["-", "unknown"])
    _, found, first, second, summary = objects("info", "s", "k")
    assert (found["type"], found["name"], found["last_delivered_id"]) == ("group", "g", "3-0")
    assert (found["lag"], found["pending"]) == (2, 3)
    assert (first["group"], first["name"], first["pending"]) == ("g", "ann", 3)
    assert (first["lease"], second["lease"]) == ("dead", "unknown")
    assert second["inactive_ms"] is None
    assert (summary["groups"], summary["consumers"]) == (1, 2)


def test_info_stream_cuts_long_values() -> None:
    with streamkeep.open("s", sync="none") as store:
        store.xadd("k", {"f": b"x" * 5_000_000}, id="1-0")
    assert lines("info", "s", "k")[-1].endswith(f"f={'x' * 200}… (4.8 MiB)")


# --- stat ---------------------------------------------------------------------------------------


def test_stat_prints_figures_and_a_chart(stored: str) -> None:
    found = lines("stat", stored, "orders")
    assert found[:5] == [
        "'orders'",
        "  entries     50",
        "  first       2024-06-10T12:00:00Z",
        "  last        2024-06-10T14:00:00Z",
        "  nodes       1, 50.0 entries each",
    ]
    chart = found[found.index("entries per 10 minutes, UTC") + 1 :]
    assert len(chart) == 13
    assert chart[0] == "2024-06-10 12:00  40  " + "█" * 58
    assert chart[1] == "2024-06-10 12:10   0"
    assert chart[12] == "2024-06-10 14:00  10  " + "█" * 14 + "▌"
    assert max(map(len, chart)) == 80


def test_stat_of_a_store_adds_its_files(stored: str) -> None:
    found = lines("stat", stored, "--no-chart")
    assert found[0] == "s"
    names = [line.split("  ")[1].strip() for line in found[1:]]
    assert names[0] == "streams"
    assert names[-3:] == ["data file", "map", "journal"]
    assert "1.0 TiB" in found[-2] or "GiB" in found[-2]


def test_stat_as_json(stored: str) -> None:
    found = objects("stat", stored)
    kinds = [one["type"] for one in found]
    assert kinds[:3] == ["stream"] * 3
    assert set(kinds[3:-1]) == {"bucket"}
    assert sum(one["entries"] for one in found[3:-1]) == 51
    assert found[1]["bytes_per_entry"] == round(found[1]["size_bytes"] / 50, 1)
    summary = found[-1]
    assert (summary["streams"], summary["entries"], summary["path"]) == (3, 51, "s")
    assert summary["file_size_bytes"] == Path("s/data.mdb").stat().st_size
    assert summary["map_used_bytes"] <= summary["map_size_bytes"]
    assert {one["type"] for one in objects("stat", stored, "--no-chart")} == {"stream", "summary"}


def test_stat_of_an_empty_store_and_stream(stored: str) -> None:
    assert lines("stat", stored, "empty")[1] == "  entries     0"
    assert objects("stat", stored, "empty")[-1]["bytes_per_entry"] is None
    reply(stored, "DEL", "orders", "empty", b"\xff\n[red]")
    assert lines("stat", stored)[1] == "  streams     0"
    result = run("stat", stored, "--plot", "x.png")
    assert "no entries: x.png was not written" in result.stderr


def test_stat_counts_much_only_when_asked(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_cmds, "COUNTED_UNASKED", 10)
    result = run("stat", stored, "orders")
    assert "entries per" not in result.stdout
    assert result.stderr == "next: --chart counts the 50 entries over time\n"
    assert "entries per" in run("stat", stored, "orders", "--chart").stdout


@needs_plots
def test_plot_draws_png_and_svg(stored: str) -> None:
    result = run("stat", stored, "orders", "--plot", "a.png", "--no-chart")
    assert result.stderr == "wrote a.png\n"
    assert "entries per" not in result.stdout
    assert Path("a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    run("stat", stored, "--plot", "b.SVG")
    svg = Path("b.SVG").read_text()
    assert "<svg" in svg
    assert "entries per" in svg or "<path" in svg


@needs_plots
@pytest.mark.parametrize("ms", slow_but([0, END, END + 1, (1 << 64) - 1], (1 << 64) - 1))
def test_plot_takes_ids_that_are_no_times(ms: int) -> None:
    run("add", "s", "$x$ 日本 \x01", "f", "v", "--id", f"{ms}-1")
    run("stat", "s", "$x$ 日本 \x01", "--plot", "a.png")
    assert Path("a.png").exists()
    run("add", "s", "two", "f", "v", "--id", "0-1")
    run("add", "s", "two", "f", "v", "--id", f"{ms}-2")
    run("stat", "s", "two", "--plot", "b.svg")
    assert sum(one.get("entries", 0) for one in objects("stat", "s", "two")[1:-1]) == 2


def test_plot_without_matplotlib_names_the_extra(
    stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("stat", stored, "orders", "--plot", "a.png", status=1)
    assert "--plot needs matplotlib" in result.stderr
    assert "next: pip install 'streamkeep[plot]'" in result.stderr


def test_plot_refuses_other_files_before_counting(stored: str) -> None:
    assert ".png or .svg" in run("stat", stored, "--plot", "a.pdf", status=2).stderr
    assert "nowhere" in run("stat", stored, "--plot", "nowhere/a.png", status=1).stderr


# --- `pending`, and what `add` and `trim` leave pending -------------------------------------------


@pytest.fixture
def context() -> str:
    """A store with entries 1-0 to 6-0 in `k`; of group `g`, ann has 1 to 3 pending, bob 4."""
    with streamkeep.open("s", sync="none") as store:
        store.xadd_many("k", [{"n": n} for n in range(1, 7)], [f"{n}-0" for n in range(1, 7)])
        store.xgroup_create("k", "g", id=0)
        store.xreadgroup("g", "ann", {"k": ">"}, count=3)
        store.xreadgroup("g", "bob", {"k": ">"}, count=1)
    return "s"


def held(*options: str) -> dict[str, tuple[str | None, int]]:
    """Return who has each pending entry, and how often it was delivered."""
    found = objects("pending", "s", "k", "g", *(options or ("--count", "0")))
    return {one["id"]: (one["consumer"], one["times_delivered"]) for one in found[:-1]}


# --- pending ------------------------------------------------------------------------------------


def test_pending_prints_a_summary(context: str) -> None:
    assert lines("pending", context, "k", "g") == [
        "pending  4",
        "from     1-0",
        "to       4-0",
        "",
        "consumer  pending",
        "ann             3",
        "bob             1",
    ]
    ann, _, summary = objects("pending", context, "k", "g")
    assert ann == {"type": "consumer", "key": "k", "group": "g", "name": "ann", "pending": 3}
    found = [summary[name] for name in ("pending", "min_id", "max_id", "unowned")]
    assert found == [4, "1-0", "4-0", 0]


def test_pending_lists_entries_by_id(context: str) -> None:
    result = run("pending", context, "k", "g", "--start", "2-0", "--count", "1")
    heading, row = result.stdout.splitlines()
    assert heading.split() == ["id", "consumer", "idle", "delivered"]
    assert row.split()[:2] == ["2-0", "ann"]
    assert result.stderr == "next: --start '(2-0' continues\n"
    assert list(held("--start", "(2-0", "--end", "3-0")) == ["3-0"]
    assert list(held("--consumer", "bob")) == ["4-0"]
    assert held("--consumer", "none") == {}
    assert run("pending", context, "k", "g", "--end", "0-1").stdout == ""


def test_pending_filters_by_idle_time(context: str) -> None:
    reply(context, "XCLAIM", "k", "g", "ann", "0", "2-0", "IDLE", str(2 * 3_600_000))
    reply(context, "XNACK", "k", "g", "FAIL", "IDS", "1", "4-0")
    assert list(held("--idle", "1h")) == ["2-0", "4-0"]
    rows = lines("pending", context, "k", "g", "--idle", "1h")[1:]
    assert rows[0].split()[:4] == ["2-0", "ann", "2h", "2"]
    assert rows[1].split() == ["4-0", "-", "-", "1"]


def test_pending_goes_on_beyond_one_batch(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_cmds, "_BATCH", 3)
    monkeypatch.setattr(stream_cmds, "LISTED", 2)
    assert list(held("--count", "0")) == ["1-0", "2-0", "3-0", "4-0"]
    found = objects("pending", context, "k", "g", "--start", "-")
    assert [one["id"] for one in found[:-1]] == ["1-0", "2-0"]
    assert (found[-1]["entries"], found[-1]["more"]) == (2, True)
    assert objects("pending", context, "k", "g", "--count", "4")[-1]["more"] is False


def test_trim_and_add_obey_the_policy(context: str) -> None:
    reply(context, "XACK", "k", "g", "1-0")
    result = run("trim", context, "k", "--maxlen", "0", "--exact", "--acked")
    assert result.stdout == "1 entry removed\n"
    assert "a group has not read or acknowledged them" in result.stderr
    run("add", context, "k", "n", "7", "--id", "7-0", "--maxlen", "5", "--exact", "--delref")
    assert list(held()) == ["3-0", "4-0"]
    run("add", context, "k", "n", "8", "--id", "8-0", "--maxlen", "5", "--exact", "--keepref")
    assert list(held()) == ["3-0", "4-0"]
    assert lines("range", context, "k")[0] == "4-0  n=4"
    problem = run("add", context, "k", "f", "v", "--acked", status=2).stderr
    assert "--acked needs --maxlen or --minid" in problem


def test_a_missing_group_is_the_error_of_redis(context: str) -> None:
    error, hint = run("pending", context, "k", "none", status=6).stderr.splitlines()
    assert ": NOGROUP No such " in error
    assert hint == "next: streamkeep exec s XINFO GROUPS k"
