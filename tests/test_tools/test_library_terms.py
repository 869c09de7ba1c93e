"""Arguments of the library, as its errors name them, become options of the command line."""

from __future__ import annotations

import inspect

import pytest

from streamkeep import transfer
from streamkeep.tools.base.library_terms import as_options
from streamkeep.tools.commands.dump_cmd import dump
from streamkeep.tools.commands.load_cmd import load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from_line=7 continues after them", "--from-line 7 continues after them"),
        ("sort=True puts the file in order", "--sort puts the file in order"),
        ('existing="skip" leaves it', "--existing skip leaves it"),
        ("start=, end= are not for rdb", "--start, --end are not for rdb"),
        ("key=KEY names it", "`streamkeep load STORE KEY FILE` names it"),
        ("leave key= out", "leave KEY out"),
        ("field 'a=b' and n=1 stay", "field 'a=b' and n=1 stay"),
    ],
)
def test_arguments_become_options(text: str, expected: str) -> None:
    assert as_options(text) == expected


def test_every_argument_becomes_an_option_that_its_command_has() -> None:
    for function, command in ((transfer.dump, dump), (transfer.load, load)):
        options = {name for param in command.params for name in param.opts}
        for name in inspect.signature(function).parameters:
            option = as_options(f"{name}=")
            if option.startswith("--"):
                assert option in options, name
