"""The pages docs/reference/errors.md and options.md name what there is."""

from __future__ import annotations

import inspect
import re

import streamkeep
from conftest import ROOT

PAGES = ROOT / "docs" / "reference"


def test_every_error_is_explained_and_no_other() -> None:
    text = (PAGES / "errors.md").read_text(encoding="utf-8")
    found = set(re.findall(r"^\| `(\w+Error)` \|", text, re.MULTILINE))
    there = {name for name in streamkeep.__all__ if name.endswith("Error")}
    assert found == there - {"StreamkeepError"}


def test_every_option_of_open_is_listed_with_its_default() -> None:
    text = (PAGES / "options.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE))
    options = {
        name: repr(option.default).replace("'", '"')
        for name, option in inspect.signature(streamkeep.open).parameters.items()
        if option.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert found == options
