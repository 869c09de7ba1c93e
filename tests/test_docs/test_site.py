"""The site: its navigation, its lists, its check; and the whole of it in a browser, from disk."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import check_site
import pytest

from browser import Browser
from conftest import ROOT, module_at
from patience import PATIENCE_S
from streamkeep.recovery.fsck.findings import CATALOGUE

DOCS = ROOT / "docs"
# What people searched for, and the page that must be among the first three.
SEARCHES = {
    "list cron schedules": "guide/queue.html",
    "encryption at rest": "operate/security.html",
    "disk space data.mdb size": "operate/disk-full.html",
    "job id format": "guide/queue.html",
    "rate limit": "guide/queue.html",
    "kubernetes": "operate/deploy.html",
}


def hooks() -> ModuleType:
    return module_at(DOCS / "site" / "hooks.py")


def test_every_page_is_in_the_navigation_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"(\S+(?:\.md|/\*))$", nav, re.MULTILINE)
    assert len(named) == len(set(named))
    in_folders = {page for name in named if name.endswith("/*") for page in DOCS.glob(f"{name}.md")}
    pages = {DOCS / name for name in named if name.endswith(".md")}
    assert pages | in_folders == set(DOCS.rglob("*.md"))


def test_a_folder_of_the_navigation_becomes_its_other_pages() -> None:
    nav = [{"Home": "README.md"}, {"Operate": ["operate/fsck.md", {"More": ["operate/*"]}]}]
    made = hooks().expanded(nav, DOCS, set(hooks().named(nav)))
    first, below = made[1]["Operate"]
    more = below["More"]
    assert first == "operate/fsck.md"
    assert "operate/repair.md" in more
    assert "operate/fsck.md" not in more


def test_lists_get_the_empty_line_and_the_columns_that_they_need() -> None:
    text = "Two:\n1. one\n   and more\n   - below\n2. two\n\nText.\n\n```\nx:\n- no list\n```\n"
    assert hooks().with_lists(text) == (
        "Two:\n\n1. one\n    and more\n    - below\n2. two\n\nText.\n\n```\nx:\n- no list\n```\n"
    )


def test_the_page_of_findings_gets_a_row_for_each_code() -> None:
    rows = hooks().findings().splitlines()[2:]
    assert [row.split()[1] for row in rows] == sorted(CATALOGUE)
    assert "<!-- findings -->" in (DOCS / "reference" / "findings.md").read_text(encoding="utf-8")


def test_what_a_page_loads_from_elsewhere_or_misses_is_reported(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="https://fonts.example/css"><script src="//a.example/x.js">'
        '</script><a href="https://other.example">fine</a><a href="gone.html">not</a>'
        '<style>@import url("https://b.example/y.css")</style><img src="there.png">'
    )
    (tmp_path / "there.png").write_bytes(b"")
    (tmp_path / "style.css").write_text("a { background: url(http://c.example/z.png) }")
    found = list(check_site.findings(tmp_path))
    assert [line.split()[2] if " loads " in line else line for line in found] == [
        "https://fonts.example/css;",
        "//a.example/x.js;",
        "https://b.example/y.css;",
        "index.html: gone.html does not exist",
        "http://c.example/z.png;",
    ]
    assert check_site.main([str(tmp_path)]) == 1


def test_the_pictures_are_what_their_program_draws(tmp_path: Path) -> None:
    program = tmp_path / "draw.py"
    shutil.copy(DOCS / "concepts" / "draw.py", program)
    runpy.run_path(str(program), run_name="__main__")
    for picture in (DOCS / "concepts" / "pictures").iterdir():
        assert (tmp_path / "pictures" / picture.name).read_bytes() == picture.read_bytes()


def test_llms_txt_has_the_addresses_of_the_site() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert (
        hooks().addressed("[a](docs/guide/queue.md), [b](x.md)")
        == "[a](guide/queue.html), [b](x.md)"
    )
    for name in re.findall(r"\]\((docs/[^)]*)\)", text):
        assert (ROOT / name).is_file(), name


@pytest.mark.slow
def test_the_site_opens_from_disk_is_searched_and_asks_no_other_host(tmp_path: Path) -> None:
    if find_spec("material") is None or find_spec("mkdocstrings") is None:
        pytest.skip("the site needs pip install '.[docs]'")
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", site],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=PATIENCE_S * 10,
    )
    assert list(check_site.findings(site)) == []
    assert "xautoclaim" in (site / "reference" / "api" / "store.html").read_text()
    with Browser() as browser:
        browser.open((site / "guide" / "queue.html").as_uri())
        browser.until("document.querySelector('.md-search__input')")
        browser.type(".md-search__input", "retention")
        browser.until("document.querySelector('.md-search-result__item a')")
        assert "archive" in browser.text(".md-search-result__list").lower()
        for words, page in SEARCHES.items():
            browser.type(".md-search__input", words)
            browser.press("End")  # the page looks at the field when a key was released
            browser.until(
                "[...document.querySelectorAll('.md-search-result__item')].slice(0, 3)"
                f".some((one) => one.querySelector('a').pathname.endsWith('/{page}'))",
                words,
            )
        assert browser.complaints == []
        assert [one for one in browser.requests if not one.startswith(("file:", "data:"))] == []
