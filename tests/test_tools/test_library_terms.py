"""Arguments of the library, as its errors name them, become options of the command line."""

from __future__ import annotations

import click
import pytest

from streamkeep.tools.base.arguments import as_options
from streamkeep.tools.commands.load_cmd import load


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
