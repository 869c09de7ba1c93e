"""`top`: what fits into a screen."""

from __future__ import annotations

from rich.cells import cell_len

from streamkeep.tools.commands.top_cmd import fitting


def test_a_screen_that_is_high_and_wide_enough_shows_all() -> None:
    lines = ["one", "", "three"]
    assert fitting(lines, columns=5, height=3) == lines


def test_the_last_line_counts_what_does_not_fit() -> None:
    lines = [str(number) for number in range(10)]
    assert fitting(lines, columns=80, height=4) == ["0", "1", "2", "… 7 lines more"]


def test_long_lines_are_cut_to_the_width_of_the_screen() -> None:
    shown = fitting(["x" * 30, "日本" * 10, "a\x1b[31mb"], columns=9, height=9)
    assert shown == ["x" * 9, "日本日本", "a\\x1b[31m"]
    assert max(map(cell_len, shown)) <= 9
