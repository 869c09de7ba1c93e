"""The commands that errors, hints, help texts and the web page name exist, with their options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streamkeep.tools.cli import main

ROOT = Path(__file__).resolve().parents[2] / "src" / "streamkeep"
FOLDERS = "arrow engine format integrations jobs metrics pipeline recovery server tools transfer"
IN_TICKS = re.compile(r"`streamkeep ([a-z][^`]*)`")
AT_BEGINNING = re.compile(r"(?:^|next: |[Rr]un )streamkeep ([a-z][^;]*)")
IN_SCRIPTS = re.compile(r"streamkeep ([a-z][^\"'`]*)")
OF_THREADS = {"worker", "handler", "orders", "leases", "lake", "sync"}  # their names begin so, too


def printed() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS.split():
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            for line, text in texts_of(ast.parse(source)) if "streamkeep " in source else ():
                place = f"{path.relative_to(ROOT)}:{line}"
                for found in (*IN_TICKS.findall(text), *AT_BEGINNING.findall(text)):
                    if found.split()[0] not in OF_THREADS:
                        yield place, " ".join(found.split())
    for path in sorted((ROOT / "server/ui").rglob("*.*")):
        if path.suffix in (".js", ".html"):
            for line, text in enumerate(path.read_text().splitlines(), 1):
                for found in IN_SCRIPTS.findall(text):
                    yield f"{path.relative_to(ROOT)}:{line}", found


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module, with VALUE for what is put into them."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner.update(id(one) for one in node.values)
            parts = [
                str(one.value) if isinstance(one, ast.Constant) else "VALUE" for one in node.values
            ]
            yield node.lineno, "".join(parts)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner
        ):
            yield node.lineno, node.value


def problem_of(text: str) -> str:
    """Return why a command cannot be run; empty if it can."""
    command: click.Command = main
    words = [word.rstrip(".,:;)") for word in text.split()]
    ctx = click.Context(command)
    while isinstance(command, click.Group) and words and words[0] != "--help":
        found = command.get_command(ctx, words[0])
        if found is not None:
            words = words[1:]
        else:
            found = command.get_command(ctx, "")  # what a group does with other arguments
        if found is None:
            return f"{ctx.command_path or 'streamkeep'} has no command {words[0]!r}"
        command = found
        ctx = click.Context(command, parent=ctx, info_name=command.name)
    known = {one for param in command.params for one in (*param.opts, *param.secondary_opts)}
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    for option in options:
        if option not in known | {"--help"} and not option[1:].isdigit():
            return f"{command.name} has no option {option}"
    return ""


@pytest.fixture(scope="module")
def commands() -> list[tuple[str, str]]:
    return list(printed())


def test_each_printed_command_and_its_options_exist(commands: list[tuple[str, str]]) -> None:
    assert len(commands) >= 90
    places = {place.partition(":")[0] for place, _ in commands}
    assert {"server/ui/static/store.js", "recovery/fsck/findings.py"} <= places
    problems = [
        f"{place}: `streamkeep {text}`: {problem}"
        for place, text in commands
        if (problem := problem_of(text))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("retention STORE KEY --archive", "no command 'STORE'"),
        ("fsck STORE --fast", "no option --fast"),
        ("fscheck STORE", "no command 'fscheck'"),
        ("retention set STORE KEY --archive", ""),
    ],
)
def test_a_command_that_fails_is_seen(text: str, problem: str) -> None:
    found = problem_of(text)
    assert problem in found
    assert bool(problem) == bool(found)
