"""The check of phrases in docs/check_english.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def english() -> ModuleType:
    """Load the script."""
    spec = importlib.util.spec_from_file_location("english", ROOT / "docs" / "check_english.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(english: ModuleType, name: str, text: str) -> list[str]:
    """Return place and phrase of each finding."""
    return [line.partition(": write")[0] for line in english.findings(name, text)]


def test_phrases_are_found_in_docstrings_comments_and_messages(english: ModuleType) -> None:
    text = '"""Whoever reads."""\nx = 1  # what no\n# look finds\nf(f"it is written anew: {x}")\n'
    assert found(english, "a.py", text) == [
        "a.py:1: 'Whoever'",
        "a.py:4: 'anew'",
        "a.py:2: 'no look'",
    ]


def test_names_in_code_are_no_prose(english: ModuleType) -> None:
    assert found(english, "a.py", "behind = anew(whoever)\nno = look\n") == []


def test_a_page_is_read_without_its_code(english: ModuleType) -> None:
    text = "It stands\n`anew` [here](behind.md)\n```\nwhoever\n```\nfor `x`.\n"
    assert found(english, "a.md", text) == ["a.md:1: 'stands'"]


def test_generated_parts_of_a_page_are_checked_at_their_source(english: ModuleType) -> None:
    text = "<!-- generated: x -->\nanew\n<!-- end -->\nwho knows\nanew\n"
    assert found(english, "a.md", text) == ["a.md:5: 'anew'"]
