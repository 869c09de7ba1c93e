"""The snippets of a page of the documentation: found, run as printed, and compared.

`test_docs/test_snippets.py` runs all pages.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = 'streamkeep() { "$PYTHON" -m streamkeep "$@"; }\npython() { "$PYTHON" "$@"; }\n'


class Block(NamedTuple):
    """One fenced block: its language, its text, and the output that follows it."""

    line: int
    language: str
    text: str
    expected: str | None


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    result = []
    for index, match in enumerate(found):
        expected = None
        if index + 1 < len(found):
            following = found[index + 1]
            if following[1] == "text" and not text[match.end() : following.start()].strip():
                expected = following[2]
        line = text.count("\n", 0, match.start()) + 1
        result.append(Block(line, match[1], match[2], expected))
    return result


def is_session(block: Block) -> bool:
    """Say whether a block is a session in a shell that we can repeat."""
    begins = block.text.startswith(("$ streamkeep ", "$ python "))
    return begins and "kill -9" not in block.text  # test_readme_queue runs that one


def is_snippet(block: Block) -> bool:
    return block.language == "python" or is_session(block)


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


def run_program(block: Block, names: dict[str, Any], where: str) -> None:
    if name := re.match(r"# (\w+\.py)\n", block.text):
        Path(name[1]).write_text(block.text, encoding="utf-8")
    output = io.StringIO()
    with redirect_stdout(output):
        exec(compile(block.text, where, "exec"), names)
    if block.expected is not None:
        assert_alike(output.getvalue(), block.expected, where)


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
    for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        assert_alike(run_shell(command), expected, f"{where}: {command}")


def run_page(path: Path, names: dict[str, Any]) -> None:
    """Run all snippets of a page, in the folder that is current."""
    for block in filter(is_snippet, blocks(path)):
        where = f"{path.relative_to(ROOT)}, line {block.line}"
        if is_session(block):
            run_session(block, where)
        elif block.text.startswith(">>> "):
            run_prompts(block, names, where)
        else:
            run_program(block, names, where)
