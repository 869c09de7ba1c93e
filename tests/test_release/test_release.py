"""What a release names exists; where Streamkeep cannot run, or runs slowly, it says so."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import pytest

import streamkeep
from cli_runner import run
from conftest import ROOT
from streamkeep import supported
from streamkeep.format.node import listpack
from streamkeep.tools.cli import main

UNITS = ROOT / "examples" / "deploy" / "systemd"
CONTAINER = (ROOT / "examples" / "deploy" / "Containerfile").read_text()


def parse(words: list[str]) -> None:
    """Fail unless a command line names a command, options that it has, and as many arguments."""
    assert Path(words[0]).name == "streamkeep"
    name, command, rest = main.resolve_command(click.Context(main), words[1:])
    assert command is not None
    command.make_context(name, rest)


def unit_commands() -> list[list[str]]:
    texts = "".join(unit.read_text() for unit in sorted(UNITS.iterdir()))
    return [shlex.split(one) for one in re.findall(r"^ExecStart=(.*)$", texts, re.MULTILINE)]


def container_commands() -> list[list[str]]:
    lists = re.findall(r'^(?:CMD|ENTRYPOINT) \[(".*")\]', CONTAINER, re.MULTILINE)
    entry, command = ([*map(str, re.findall('"(.*?)"', one))] for one in lists)
    (check,) = re.findall(r"^ +CMD (streamkeep .*) \|\| test \$\? -eq 8$", CONTAINER, re.MULTILINE)
    return [check.split(), entry + command]


@pytest.mark.parametrize("words", [*unit_commands(), *container_commands()], ids=" ".join)
def test_units_and_the_container_start_commands_that_exist(words: list[str]) -> None:
    parse(words)


def test_the_container_has_no_rights_and_copies_what_exists() -> None:
    assert re.search(r"^USER (?!root)\w+$", CONTAINER, re.MULTILINE)
    assert re.search(r"^VOLUME /data$", CONTAINER, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", CONTAINER, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():  # the command need not be installed here
        text = unit.read_text().replace("/usr/local/bin/streamkeep", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def jobs() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="the extra `docs` is not installed")
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return found


def test_the_workflow_publishes_what_passed_and_only_for_a_tag() -> None:
    found = jobs()
    publish = found["publish"]
    assert set(publish["needs"]) == set(found) - {"publish", "container"}
    assert publish["permissions"] == {"id-token": "write"}
    for name in ("publish", "wheels"):
        assert found[name]["if"] == "startsWith(github.ref, 'refs/tags/v')"


def test_the_workflow_names_files_that_exist_and_actions_with_versions() -> None:
    for job in jobs().values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d[\d.]*|release/v1)", step["uses"])
                continue
            for name in re.findall(r"\b(?:\.ci|examples|scripts)/[\w./]+", step["run"]):
                assert (ROOT / name).is_file(), name


# --- where Streamkeep cannot run, or runs slowly, one sentence says so and what to do -------------

SOURCE = ROOT / "src" / "streamkeep"


def imported_on(platform: str, *words: str) -> str:
    """Return the last line of an import on another system."""
    code = f"import sys; sys.platform = {platform!r}; import streamkeep"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *(words or ("-c", code))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("platform", "why"), [("darwin", "a sync does not reach the drive"), ("win32", "this is win32")]
)
def test_an_import_on_another_system_names_containers_and_wsl(platform: str, why: str) -> None:
    told = imported_on(platform)
    assert told.startswith("ImportError: Streamkeep runs on Linux only")
    assert why in told
    assert "next: run it in a container" in told
    assert "WSL2" in told


def test_a_python_that_is_too_old_learns_which_one_is_needed() -> None:
    assert supported.problem(version=(3, 10)).startswith(
        "Streamkeep needs Python 3.11 or newer, and this is Python 3.10; next: "
    )
    assert supported.problem(version=(3, 11), platform="linux") == ""
    # What an old Python reads first.
    for one in ("supported.py", "__init__.py", "__main__.py", "../../setup.py"):
        ast.parse((SOURCE / one).read_text(), feature_version=(3, 7))


def test_an_interpreted_installation_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listpack, "__file__", "listpack.py")
    monkeypatch.setattr(supported, "_told", False)
    monkeypatch.delenv("STREAMKEEP_PURE", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            streamkeep.open(tmp_path / "store").close()
    [told] = caught
    assert told.filename == __file__
    assert "python3-dev), then pip install --force-reinstall" in str(told.message)
    assert "STREAMKEEP_PURE=1 silences this" in str(told.message)


@pytest.mark.parametrize(("file", "pure"), [("listpack.py", "1"), ("listpack.so", "")])
def test_no_warning_where_it_was_chosen_or_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, pure: str
) -> None:
    monkeypatch.setattr(listpack, "__file__", file)
    monkeypatch.setattr(supported, "_told", False)
    monkeypatch.setenv("STREAMKEEP_PURE", pure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streamkeep.open(tmp_path / "store").close()


def test_the_command_line_warns_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listpack, "__file__", "listpack.py")
    monkeypatch.delenv("STREAMKEEP_PURE", raising=False)
    assert run("create", tmp_path / "store").stderr == ""
