"""Tables, sizes, times and errors as commands print them, with the names of options."""

from __future__ import annotations

import click
import pytest
from rich.cells import cell_len

from streamkeep.tools.base import output
from streamkeep.tools.base.arguments import as_options
from streamkeep.tools.commands.figures_cmds import fitting
from streamkeep.tools.commands.load_cmd import load


def test_spans() -> None:
    assert output.span_text(3.44) == "3.4s"
    assert output.span_text(725.2) == "12m5s"


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


# --- top ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "columns", "height", "shown"),
    [
        (["one", "", "three"], 5, 3, ["one", "", "three"]),
        ([*"0123456789"], 80, 4, ["0", "1", "2", "… 7 lines more"]),
        (["x" * 30, "日本" * 10, "a\x1b[31mb"], 9, 9, ["x" * 9, "日本日本", "a\\x1b[31m"]),
    ],
)
def test_a_screen_shows_what_fits(
    lines: list[str], columns: int, height: int, shown: list[str]
) -> None:
    assert fitting(lines, columns, height) == shown
    assert max(map(cell_len, shown[:height])) <= columns


# --- arguments of the library, as its errors name them, become options of the command line --------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from_line=7 continues after them", "--from-line 7 continues after them"),
        ("sort=True puts the file in order", "--sort puts the file in order"),
        ('existing="skip" leaves it', "--existing skip leaves it"),
        ("id_column=, database= are for rows", "--id, --db are for rows"),
        ("key=KEY names it", "`streamkeep load STORE KEY FILE` names it"),
        ("leave key= out", "leave KEY out"),
        ("field 'a=b' and n=1 stay", "field 'a=b' and n=1 stay"),
    ],
)
def test_arguments_become_options(text: str, expected: str) -> None:
    with click.Context(load):
        assert as_options(text) == expected
