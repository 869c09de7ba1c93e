"""The workflow, the units and the container file name only what exists; none of them runs here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from conftest import ROOT
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
