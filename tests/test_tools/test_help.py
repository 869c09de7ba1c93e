"""Help texts: every command has one, and its examples work; the generated parts of docs/."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path
from types import ModuleType

import click
import pytest

from cli_runner import APART, below, run
from conftest import module_at
from streamkeep.tools.cli import COMMANDS, main

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Older versions of click lay out help texts in another way.
NEW_CLICK = "deprecated" in inspect.signature(click.Option.__init__).parameters


def generator() -> ModuleType:
    return module_at(DOCS / "generate.py")


def all_commands(
    command: click.Command = main, path: str = "streamkeep"
) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    for name, one in below(command).items():
        found += all_commands(one, f"{path} {name}")
    return found


def examples(command: click.Command) -> list[str]:
    """Return the lines of the help text that begin with the name of the program."""
    return re.findall(r"^ +(streamkeep .*)$", inspect.cleandoc(command.help or ""), re.MULTILINE)


def make_folder(folder: Path) -> None:
    """Run the commands by which docs/cli makes the folder of the examples."""
    page = (DOCS / "cli" / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    with chdir(folder):
        for line in found[1].splitlines():
            if line.startswith("streamkeep "):
                run(*shlex.split(line)[1:])
            else:
                subprocess.run(["bash", "-c", line], check=True, capture_output=True)


def test_every_command_stands_in_one_family() -> None:
    names = [name for _, family in COMMANDS for name in family]
    assert {name: one.name for name, one in below(main).items()} == {name: name for name in names}
    assert len(set(names)) == len(names)


def test_every_command_has_a_help_text_with_an_example() -> None:
    for path, command in all_commands():
        assert command.help, path
        first, _, rest = inspect.cleandoc(command.help).partition("\n")
        assert first.endswith("."), path
        assert len(first) <= 66, f"{path}: the list of commands would cut this line: {first}"
        assert "Example" in rest, path
        assert any(f"{line} ".startswith(f"{path} ") for line in examples(command)), path


def test_every_option_is_explained() -> None:
    for path, command in all_commands():
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{path} {option.name}"
                assert option.help.rstrip("]").endswith((".", "approximate")), (
                    f"{path} {option.name}"
                )


def test_the_examples_of_every_command_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # `completion install` writes there
    made = tmp_path / "made"
    made.mkdir()
    make_folder(made)
    count = 0
    for number, (path, command) in enumerate(all_commands()):
        if path.split()[1:2] and path.split()[1] in APART:
            continue
        folder = tmp_path / str(number)
        shutil.copytree(made, folder)
        monkeypatch.chdir(folder)
        if path == "streamkeep ship":
            shutil.rmtree("orders.copy")  # which was moved, so that the store does not know it
        for example in examples(command):
            if "s3://" in example:  # tests/spark has a server for those
                continue
            text, _, file = example.partition(" > ")
            before: str | None = None
            for part in text.split(" | "):
                before = run(*shlex.split(part)[1:], input=before).stdout
            if file:
                Path(file).write_text(before or "")
            count += 1
    assert count >= 60


@pytest.mark.skipif(not NEW_CLICK, reason="this version of click lays out help texts otherwise")
def test_generated_documentation_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert generator().main(["--check"]) == 0, capsys.readouterr().err


def test_check_names_the_stale_file_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = generator()
    monkeypatch.setattr(module, "HERE", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: one -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(module, "PARTS", (module.Part("page.md", "one", lambda: "new"),))
    assert module.main(["--check"]) == 1
    assert "docs/page.md is stale" in capsys.readouterr().err
    assert "old" in page.read_text()
    assert module.main([]) == 0
    assert page.read_text() == ("before\n<!-- generated: one -->\n\nnew\n\n<!-- end -->\nafter\n")
    assert module.main(["--check"]) == 0
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match=r"docs/page\.md: no <!-- generated: one -->"):
        module.main([])
    assert module.main(["--wrong"]) == 2
